//! What a context remembers of memory by its address, with a device that is not there. More of it beside the cache.

use std::{
    sync::{Arc, Barrier, atomic::Ordering::SeqCst},
    thread,
};

use wharf::{
    Context, ErrorKind, MemoryType,
    memory::{AddressRange, Cause, MemoryAttributes, announce_device_runtime, invalidate},
};

use crate::{
    expert::Expert,
    support::{Child, LIMIT, child, this_test, watchdog},
};

fn range(start: u64, length: u64) -> AddressRange {
    AddressRange::new(start, length).expect("a range")
}

fn context(expert: &Arc<Expert>) -> Context {
    Context::builder()
        .memory_domain(expert.clone())
        .build()
        .expect("a context")
}

#[test]
fn an_id_that_changes() {
    let expert = Expert::new();
    let context = context(&expert);
    let place = range(0x3200_0000_0000, 1 << 20);
    expert.allocate_at(place, 1);
    assert_eq!(context.memory_attributes(place).expect("known").id, 1);
    // Freed and allocated anew without a word.
    expert.allocate_at(place, 2);
    assert_eq!(context.memory_attributes(place).expect("known").id, 1);
    assert_eq!(
        context.refresh_memory_attributes(place).expect("known").id,
        2
    );
    assert_eq!(context.memory_attributes(place).expect("known").id, 2);
    // With a word.
    expert.allocate_at(place, 3);
    context.notify_freed(place);
    assert_eq!(context.memory_attributes(place).expect("known").id, 3);
    expert.allocate_at(place, 4);
    invalidate(range(place.start() + 8192, 1), Cause::Unmapped);
    assert_eq!(context.memory_attributes(place).expect("known").id, 4);
}

#[test]
fn a_framework_tells() {
    let expert = Expert::new();
    let context = context(&expert);
    let told = MemoryAttributes::new(MemoryType::Rocm(3), range(0x3300_0000_0000, 4096)).id(9);
    context.notify_allocated(&told);
    assert_eq!(context.known_memory_attributes(told.allocation), Some(told));
    let part = range(told.allocation.start() + 5, 10);
    assert_eq!(context.memory_attributes(part).expect("known"), told);
    assert_eq!(expert.asked.load(SeqCst), 0);
}

#[test]
fn one_question_from_many_threads() {
    let expert = Expert::new();
    let context = context(&expert);
    let place = range(0x3400_0000_0000, 16 << 20);
    expert.allocate_at(place, 1);
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (context, start) = (&context, &start);
            scope.spawn(move || {
                start.wait();
                let part = range(place.start() + thread * (2 << 20), 2 << 20);
                let found = context.memory_attributes(part).expect("known");
                assert_eq!(found.allocation, place);
            });
        }
    });
    assert_eq!(expert.asked.load(SeqCst), 1);
}

#[test]
fn bad_ranges() {
    let expert = Expert::new();
    let context = context(&expert);
    expert.allocate_at(range(0x3500_0000_0000, 4096), 1);
    for bad in [range(0x3500_0000_0000, 0), range(0x3500_0000_0000, 4097)] {
        let error = context.memory_attributes(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    // Beyond what the index holds: asked each time.
    let far = range(1 << 60, 4096);
    expert.allocate_at(far, 2);
    for _ in 0..2 {
        assert_eq!(context.memory_attributes(far).expect("known").id, 2);
    }
}

/// In a process of its own, where no test has made a device yet.
#[test]
fn a_runtime_that_appears_late() {
    if let Some(parent) = child("late") {
        let expert = Expert::new();
        expert.asleep.store(true, SeqCst);
        let context = context(&expert);
        let place = range(0x3600_0000_0000, 4096);
        expert.allocate_at(place, 1);
        let host = context
            .known_memory_attributes(place)
            .expect("nothing else is there");
        assert_eq!(host.memory_type, MemoryType::Host);
        assert_eq!(expert.asked.load(SeqCst), 0);
        expert.asleep.store(false, SeqCst);
        announce_device_runtime();
        assert_eq!(context.known_memory_attributes(place), None);
        let device = context.memory_attributes(place).expect("known");
        assert_eq!(device.memory_type, MemoryType::Cuda(1));
        parent.say("done");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut late = Child::start(this_test!(), "late", &[]);
    runtime.block_on(watchdog(LIMIT, async {
        assert_eq!(late.hear().await, "done")
    }));
    late.finish();
}
