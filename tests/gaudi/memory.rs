//! The memory domain: allocation, whose an address is, dma-bufs.

use std::os::fd::AsRawFd as _;

use wharf::{
    Context, ErrorKind, MemoryType,
    memory::{AddressRange, Advice, DomainCapabilities},
    transport::Accelerator as _,
};

use crate::{
    fixture::run,
    machine::{DEVICE, Machine, OTHER, Random, bytes},
    support::{again, block_until, is_alone, open_fds, passes, this_test},
};

fn range(start: u64, length: u64) -> AddressRange {
    AddressRange::new(start, length).expect("a range")
}

#[test]
fn nothing_is_opened_before_memory_is_allocated() {
    let machine = Machine::new(&[]);
    let gaudi = machine.gaudi();
    let domain = gaudi.domain();
    assert!(!domain.is_loaded());
    let local = 0_u64;
    let own = range(&raw const local as u64, 8);
    assert_eq!(domain.detect(own).expect("no error"), None);
    gaudi.probe().expect("cards");
    assert!(!domain.is_loaded());
    assert_eq!(
        (machine.calls("hlthunk_open"), machine.live("sessions")),
        (0, 0)
    );
    let can = |memory_type| {
        let attributes = domain.attributes();
        attributes.can(DomainCapabilities::ALLOCATE, memory_type)
    };
    assert!(can(DEVICE) && can(OTHER) && can(MemoryType::HostPinned));
    assert!(!can(MemoryType::Gaudi(2)) && !can(MemoryType::Host));

    let memory = machine.allocate(&domain, OTHER, 100);
    assert!(domain.is_loaded());
    assert_eq!(machine.live("sessions"), 1, "the other card alone");
    let known = domain
        .detect(memory.range())
        .expect("no error")
        .expect("known");
    assert_eq!(
        (known.memory_type, known.allocation),
        (OTHER, memory.range())
    );
    assert_eq!((known.id, known.dma_buf), (memory.id(), true));
    drop((memory, domain, gaudi));
    machine.check_gone();
}

#[test]
fn allocations_are_divided_from_pages() {
    let machine = Machine::new(&[]);
    let gaudi = machine.gaudi();
    let domain = gaudi.domain();
    let mut held: Vec<Box<dyn wharf::memory::DomainMemory>> = Vec::new();
    let mut random = Random(99);
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..500 {
        if random.below(3) == 0 && !held.is_empty() {
            let memory = held.swap_remove(random.below(held.len()));
            let place = memory.range();
            drop(memory);
            block_until("it is freed", || {
                domain.detect(place).expect("no error").is_none()
            });
        } else {
            let card = [DEVICE, OTHER][random.below(2)];
            let memory = machine.allocate(&domain, card, random.below(100_000) + 1);
            assert!(ids.insert(memory.id()), "an id twice");
            let overlaps = held
                .iter()
                .any(|other| other.range().overlaps(memory.range()));
            assert!(!overlaps, "{memory:?} is another's");
            held.push(memory);
        }
    }
    for memory in &held {
        let last = range(memory.range().end() - 1, 1);
        let known = domain.detect(last).expect("no error").expect("known");
        assert_eq!((known.allocation, known.id), (memory.range(), memory.id()));
    }
    assert_eq!(machine.live("allocations"), 2, "one page of each card");
    // More than a page, and what is not there.
    let large = machine.allocate(&domain, DEVICE, (1 << 30) + 5);
    assert_eq!(machine.live("allocations"), 3);
    let error = domain.allocate(DEVICE, 6 << 30).expect_err("too much");
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    drop((large, held));
    block_until("memory is given back", || machine.live("allocations") == 2);
    drop((domain, gaudi));
    machine.check_gone();
}

#[test]
fn memory_is_zeroed() {
    run(async {
        let machine = Machine::new(&[]);
        let (context, worker) = machine.worker();
        for size in [1, 70, 5000, 1 << 20] {
            let memory = context.allocate_on(DEVICE, size).await.expect("memory");
            let memory = worker.copy(vec![0xaa; size], memory).await.expect("copied");
            drop(memory);
            let memory = context.allocate_on(DEVICE, size).await.expect("memory");
            let found = bytes(&worker, memory.freeze()).await;
            assert!(found.iter().all(|byte| *byte == 0), "{size} bytes");
        }
    });
}

#[test]
fn addresses_are_of_one_card_and_never_the_hosts() {
    for chip in [1, 2] {
        let machine = Machine::new(&[("chip", chip)]);
        let gaudi = machine.gaudi();
        let domain = gaudi.domain();
        let one = machine.allocate(&domain, DEVICE, 4096);
        let other = machine.allocate(&domain, OTHER, 4096);
        assert!(
            !one.range().overlaps(other.range()),
            "{one:?} and {other:?}"
        );
        for memory in [&one, &other] {
            let top = memory.range().start() >> 47;
            assert!(
                top != 0 && top != u64::MAX >> 47,
                "{memory:?} could be the host's"
            );
        }
        let known = domain.detect(other.range()).expect("no error");
        assert_eq!(known.expect("known").memory_type, OTHER);
        // What is not allocated, and what a processor has.
        for nobody in [one.range().end() + (1 << 20), 0x2000_0000, 8, u64::MAX - 8] {
            assert_eq!(domain.detect(range(nobody, 4)).expect("no error"), None);
        }
    }
}

#[test]
fn a_pool_is_exported_once() {
    let machine = Machine::new(&[]);
    let gaudi = machine.gaudi();
    let domain = gaudi.domain();
    let first = machine.allocate(&domain, DEVICE, 4096);
    let memory = machine.allocate(&domain, DEVICE, 20_000);
    let place = memory.range();
    let one = domain.export(place).expect("exported");
    let inner = domain
        .export(range(place.start() + 100, 7))
        .expect("exported");
    assert_eq!(inner.offset, one.offset + 100);
    assert_eq!(
        machine.calls("hlthunk_device_mapped_memory_export_dmabuf_fd"),
        1
    );
    let said = machine.control(&format!("dmabuf {}", one.fd.as_raw_fd()));
    let same = machine.control(&format!("dmabuf {}", inner.fd.as_raw_fd()));
    assert_eq!(said, same);
    for wrong in [
        range(place.start(), 20_001),
        range(place.end() + (1 << 20), 1),
    ] {
        let error = domain.export(wrong).expect_err("not one allocation");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    // It stays where it is.
    let error = domain.advise(place, Advice::WillNeed).expect_err("no call");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    drop((one, inner, memory, first, domain, gaudi));
    machine.check_gone();
    block_until("no dma-buf is open", || machine.live("exported") == 0);
}

#[test]
fn ten_thousand_queries_leave_no_descriptor() {
    // Other tests of this program open some as well.
    if !is_alone() {
        return passes(&mut again(this_test!()));
    }
    let machine = Machine::new(&[]);
    let context = Context::builder()
        .transports("self")
        .expect("known")
        .accelerator(std::sync::Arc::new(machine.gaudi()))
        .build()
        .expect("a context");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let memory = runtime
        .block_on(context.allocate_on(DEVICE, 10_000))
        .expect("memory")
        .freeze();
    let place = memory.device_range().expect("on a device");
    let query = |index: u64| {
        let part = range(place.start() + index % 9000, 1 + index % 1000);
        context.refresh_memory_attributes(part).expect("known");
        let exported = context.export(part).expect("exported");
        drop(exported);
    };
    query(0);
    let before = open_fds();
    for index in 0..10_000 {
        query(index);
    }
    assert_eq!(open_fds(), before);
    assert_eq!(
        machine.calls("hlthunk_device_mapped_memory_export_dmabuf_fd"),
        1
    );
}
