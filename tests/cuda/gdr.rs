//! `gdr_copy`: small copies by the processor, through the emulated GDRCopy. Each test in a process of its own, for the variable that names the
//! library and for the counts.

use wharf::{
    MemoryType,
    Operation::{Get, Put, TagSend},
    memory::{Cause, invalidate},
    transport::accelerator::CopyEnd,
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{
        Bench, Memory, accelerator, block_until, calls, context, control, device_end, live, number,
        pattern,
    },
    program,
    support::{emulated, this_test},
};

/// Runs the test again in a process that has the emulated GDRCopy, with more variables; whether this is it.
fn with_gdr(test: &str, variables: &[(&str, &str)]) -> bool {
    if is_child() {
        return true;
    }
    let library = emulated::gdr();
    let library = library.to_str().expect("a path in UTF-8");
    let mut all = vec![("WHARF_LIBGDRAPI", library)];
    all.extend_from_slice(variables);
    child_with(test, &all);
    false
}

/// Copies through windows until now.
fn through_windows() -> u64 {
    calls("gdr_copy_to_mapping") + calls("gdr_copy_from_mapping")
}

/// Copies by streams until now.
fn by_streams() -> u64 {
    calls("cuMemcpyHtoDAsync_v2") + calls("cuMemcpyDtoHAsync_v2")
}

/// Copies there until a window is there.
fn warm(bench: &mut Bench, pinned: &Memory, device: CopyEnd) {
    let before = through_windows();
    block_until("a window", || {
        bench.copy(pinned.end(0), device, 8).expect("copies");
        through_windows() > before
    });
}

/// Nothing is left of windows, and nothing was done that must not be.
fn clean(bench: Bench) {
    drop(bench);
    block_until("the windows' end", || live("windows") == 0);
    // Freeing memory while other memory is copied is one for the emulator.
    let misuses = control("misuses");
    let misuses: Vec<&str> = misuses
        .lines()
        .filter(|line| line.contains("gdr_"))
        .collect();
    assert!(misuses.is_empty(), "{misuses:?}");
}

/// The program's own memory, of which nobody tells when it ends.
fn own(len: usize) -> program::Memory {
    let context = context(0);
    let guard = context.enter().expect("enters");
    guard.allocate(len).expect("memory")
}

#[test]
fn small_copies_go_through_a_window() {
    if !with_gdr(this_test!(), &[]) {
        return;
    }
    const LEN: usize = 3 << 20;
    let mut bench = Bench::new();
    assert!(accelerator().gdr_copy().expect("there").ends_with("2.6"));
    let device = bench.allocate(MemoryType::Cuda(0), LEN);
    let (mut pinned, room) = (bench.pinned(1 << 20), bench.pinned(1 << 20));
    let mut model = vec![0; LEN];
    warm(&mut bench, &pinned, device.end(100));
    assert!(by_streams() > 0, "the first ones find no window");

    // At random, over the seams of windows too; every byte checked.
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    for round in 0..4000 {
        let length = 1 + next(if round % 2 == 0 { 40_000 } else { 3000 });
        let seam = (1 + next(2)) << 20;
        let at = if round % 3 == 0 {
            seam - next(length + 1)
        } else {
            next(LEN - length)
        };
        if round % 2 == 0 {
            let bytes = pattern(round, length);
            pinned.bytes_mut()[..length].copy_from_slice(&bytes);
            bench
                .copy(pinned.end(0), device.end(at), length)
                .expect("copies");
            model[at..at + length].copy_from_slice(&bytes);
        } else {
            bench
                .copy(device.end(at), room.end(0), length)
                .expect("copies");
            assert!(
                room.bytes()[..length] == model[at..at + length],
                "{round}: {length} at {at}"
            );
        }
    }
    assert!(calls("gdr_copy_to_mapping") > 1000 && calls("gdr_copy_from_mapping") > 800);
    drop(device);
    clean(bench);
}

#[test]
fn the_limits_and_the_cost() {
    if !with_gdr(this_test!(), &[]) {
        return;
    }
    let mut bench = Bench::new();
    let device = bench.allocate(MemoryType::Cuda(0), 1 << 20);
    let managed = bench.allocate(MemoryType::CudaManaged, 4096);
    let pinned = bench.pinned(1 << 20);
    warm(&mut bench, &pinned, device.end(0));
    for (from, to, length, inline) in [
        (pinned.end(0), device.end(0), 1, true),
        (pinned.end(0), device.end(0), 32 << 10, true),
        (pinned.end(0), device.end(0), (32 << 10) + 1, false),
        (device.end(0), pinned.end(0), 2 << 10, true),
        (device.end(0), pinned.end(0), (2 << 10) + 1, false),
        (device.end(0), device.end(4096), 8, false),
        (pinned.end(0), managed.end(0), 8, false),
    ] {
        control("reset");
        bench.copy(from, to, length).expect("copies");
        assert_eq!(
            through_windows(),
            u64::from(inline),
            "{from:?} {to:?} {length}"
        );
        if inline {
            // One call of the driver, one of the library.
            assert_eq!(calls("cuPointerGetAttribute"), 1);
            assert_eq!(number("calls"), 2, "{}", control("counts"));
        }
    }
    clean(bench);
}

/// Memory that the program frees and allocates anew at the same address: no window onto what it was is used.
#[test]
fn memory_that_takes_the_place_of_other() {
    if !with_gdr(this_test!(), &[("EMULATED_CUDA_REUSE", "1")]) {
        return;
    }
    let mut bench = Bench::new();
    let (mut pinned, room) = (bench.pinned(4096), bench.pinned(4096));
    // Small memory shares its pages with other; large goes with its pages.
    for len in [4096, 3 << 20] {
        let mut at = None;
        for round in 0..20 {
            let memory = own(len);
            let address = memory.at();
            assert!(at.is_none_or(|at| at == address), "the same address");
            at = Some(address);
            let before = through_windows();
            let bytes = pattern(round, 100);
            pinned.bytes_mut()[..100].copy_from_slice(&bytes);
            bench
                .copy(pinned.end(0), device_end(address + 9, 0), 100)
                .expect("copies");
            assert_eq!(through_windows(), before, "onto memory that is gone");
            warm(&mut bench, &room, device_end(address + 2000, 0));
            bench
                .copy(device_end(address + 9, 0), room.end(0), 100)
                .expect("copies");
            assert!(room.bytes()[..100] == bytes);
            drop(memory);
        }
    }
    clean(bench);
}

/// The end of memory is told, as a context does for what it allocated: its window goes with the next small copy, of whatever memory.
#[test]
fn windows_onto_freed_memory_go() {
    if !with_gdr(this_test!(), &[]) {
        return;
    }
    let mut bench = Bench::new();
    let pinned = bench.pinned(64);
    // Small memory of one block, whose pages stay while any of it lives.
    let other = bench.allocate(MemoryType::Cuda(0), 64);
    warm(&mut bench, &pinned, other.end(0));
    for _ in 0..5 {
        let device = bench.allocate(MemoryType::Cuda(0), 64);
        warm(&mut bench, &pinned, device.end(0));
        assert_eq!(live("windows"), 2);
        invalidate(device.0.range(), Cause::Freed);
        drop(device);
        block_until("its window's end", || {
            bench.copy(other.end(0), pinned.end(0), 8).expect("copies");
            live("windows") == 1
        });
    }
    clean(bench);
}

#[test]
fn more_memory_than_windows() {
    if !with_gdr(this_test!(), &[]) {
        return;
    }
    let mut bench = Bench::new();
    let mut pinned = bench.pinned(64);
    let memories: Vec<Memory> = (0..40)
        .map(|_| bench.allocate(MemoryType::Cuda(0), 2 << 20))
        .collect();
    for round in 0..5 {
        for (index, memory) in memories.iter().enumerate() {
            warm(&mut bench, &pinned, memory.end(64));
            let bytes = pattern(index as u64 + 100 * round, 64);
            pinned.bytes_mut().copy_from_slice(&bytes);
            bench
                .copy(pinned.end(0), memory.end(0), 64)
                .expect("copies");
        }
        block_until("no more windows than 32", || live("windows") <= 32);
        for (index, memory) in memories.iter().enumerate() {
            bench
                .copy(memory.end(0), pinned.end(0), 64)
                .expect("copies");
            assert!(pinned.bytes() == pattern(index as u64 + 100 * round, 64));
        }
    }
    clean(bench);
}

#[test]
fn what_cannot_be_mapped_is_copied_by_streams() {
    if !with_gdr(this_test!(), &[("EMULATED_GDR_BAR1", "65536")]) {
        return;
    }
    let mut bench = Bench::new();
    let pinned = bench.pinned(64);
    // More than BAR1 is.
    let device = bench.allocate(MemoryType::Cuda(0), 1 << 20);
    for _ in 0..200 {
        bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    }
    assert!(
        (1..=2).contains(&calls("gdr_pin_buffer")),
        "{}",
        control("counts")
    );
    assert_eq!(through_windows(), 0);
    // What fits still does.
    drop(device);
    let small = own(512);
    warm(&mut bench, &pinned, device_end(small.at(), 0));
    clean(bench);
}

#[test]
fn faults_leave_copies_to_streams() {
    if !with_gdr(this_test!(), &[]) {
        return;
    }
    let mut bench = Bench::new();
    let mut pinned = bench.pinned(64);
    for (number, fault) in [
        "gdr_pin_buffer@1=5",
        "gdr_map@1=22",
        "gdr_get_info_v2@1=22",
        "gdr_copy_to_mapping@1=13",
        "gdr_copy_from_mapping@1=13",
        "gdr_unmap@1=22",
        "gdr_unpin_buffer@1=22",
        "cuPointerGetAttribute@1=999",
        "cuPointerGetAttribute@2=1",
        "cuPointerGetAttributes@1=999",
    ]
    .into_iter()
    .enumerate()
    {
        let device = bench.allocate(MemoryType::Cuda(0), 2 << 20);
        control(&format!("fault {fault}"));
        for round in 0..50 {
            let bytes = pattern(round + 1000 * number as u64, 64);
            pinned.bytes_mut().copy_from_slice(&bytes);
            bench
                .copy(pinned.end(0), device.end(64), 64)
                .expect("copies");
            pinned.bytes_mut().fill(0);
            bench
                .copy(device.end(64), pinned.end(0), 64)
                .expect("copies");
            assert!(pinned.bytes() == bytes, "{fault} {round}");
            std::thread::yield_now();
        }
        control("fault clear");
    }
    drop(bench);
    assert_eq!(live("streams"), 0);
}

#[test]
fn absence_is_a_reason() {
    const NOWHERE: (&str, &str) = ("WHARF_LIBGDRAPI", "/nowhere/libgdrapi.so.2");
    let expected = match std::env::var("EMULATED_GDR_OPEN").as_deref() {
        Ok("0") => "gdrdrv",
        _ => "/nowhere/libgdrapi.so.2",
    };
    if !is_child() {
        child_with(this_test!(), &[NOWHERE]);
        with_gdr(this_test!(), &[("EMULATED_GDR_OPEN", "0")]);
        return;
    }
    let mut bench = Bench::new();
    let error = accelerator().gdr_copy().expect_err("is not there");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains(expected), "{error}");
    // The program's word comes first.
    let named = accelerator().gdr_library("/named/libgdrapi.so.2");
    let error = named.gdr_copy().expect_err("is not there");
    assert!(error.to_string().contains("/named/"), "{error}");
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 64), bench.pinned(64));
    for _ in 0..50 {
        bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    }
    assert_eq!(by_streams(), 50);
    clean(bench);
}

/// How many pieces of device memory the host has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a mounted /proc");
    let lines = maps.lines();
    lines
        .filter(|line| line.contains("rw-s") && line.contains("emulated-cuda-memory"))
        .count()
}

/// Without GDRCopy, by a driver that maps its dma-bufs.
#[test]
fn the_driver_maps_by_itself() {
    if !is_child() {
        let variables = [
            ("WHARF_LIBGDRAPI", "/nowhere/libgdrapi.so.2"),
            ("EMULATED_CUDA_VERSION", "13030"),
            ("EMULATED_CUDA_REUSE", "1"),
        ];
        return child_with(this_test!(), &variables);
    }
    accelerator()
        .gdr_copy()
        .expect_err("the driver is not in use");
    let mut bench = Bench::new();
    let way = bench.accelerator.gdr_copy().expect("the driver does");
    assert!(way.contains("driver"), "{way}");
    let (mut pinned, room) = (bench.pinned(40_000), bench.pinned(40_000));
    let mut address = None;
    for round in 0..5 {
        const LEN: usize = 600_000;
        let memory = own(LEN);
        let at = memory.at();
        assert!(
            address.is_none_or(|address| address == at),
            "the same address"
        );
        address = Some(at);
        let mut model = vec![0; LEN];
        for step in 0..500_u64 {
            let (seed, before) = (1000 * round + step, by_streams());
            let length = 1 + seed as usize * 7919 % if step % 2 == 0 { 40_000 } else { 3000 };
            let offset = seed as usize * 104_729 % (LEN - length);
            if step % 2 == 0 {
                let bytes = pattern(seed, length);
                pinned.bytes_mut()[..length].copy_from_slice(&bytes);
                bench
                    .copy(pinned.end(0), device_end(at + offset as u64, 0), length)
                    .expect("copies");
                model[offset..offset + length].copy_from_slice(&bytes);
            } else {
                bench
                    .copy(device_end(at + offset as u64, 0), room.end(0), length)
                    .expect("copies");
                let known = &model[offset..offset + length];
                // The program's memory begins with whatever it held.
                let same = room.bytes()[..length]
                    .iter()
                    .zip(known)
                    .all(|(got, known)| got == known || *known == 0);
                assert!(same, "{length} at {offset}");
            }
            if step == 0 {
                assert_eq!(by_streams(), before + 1, "onto memory that is gone");
                block_until("a window", || {
                    let before = by_streams();
                    bench
                        .copy(device_end(at, 0), room.end(0), 8)
                        .expect("copies");
                    by_streams() == before
                });
            } else {
                let limit = if step % 2 == 0 { 32 << 10 } else { 2 << 10 };
                assert_eq!(by_streams() - before, u64::from(length > limit), "{length}");
            }
        }
        assert_eq!(mapped(), 1);
        drop(memory);
    }
    drop(bench);
    block_until("the window's end", || mapped() == 0);
}

#[test]
fn what_is_said_of_a_way() {
    if !with_gdr(this_test!(), &[]) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(crate::support::watchdog(crate::support::LIMIT, async {
        for gdr in [true, false] {
            let builder = wharf::Context::builder()
                .transports("self,shm")
                .expect("known");
            let builder = builder.accelerator(std::sync::Arc::new(accelerator().gdr(gdr)));
            let context = builder.build().expect("a context");
            let worker = wharf::Worker::new(&context).expect("a worker");
            let address = worker.address().expect("an address");
            let endpoint = worker.connect(&address).await.expect("connected");
            let (device, host) = (MemoryType::Cuda(0), MemoryType::Host);
            let by = |operation, (from, to), length, wanted: bool| {
                let said = endpoint.explain(operation, from, to, length).to_string();
                assert_eq!(said.contains("by gdr_copy"), wanted, "{length}: {said}");
            };
            // Nothing is known before the engine is open.
            by(Put, (device, host), 1000, false);
            let memory = context.allocate_on(device, 8).await.expect("memory");
            drop(worker.copy(vec![0; 8], memory).await.expect("copied"));
            by(Put, (device, host), 2 << 10, gdr);
            by(TagSend, (device, host), 2 << 10, gdr);
            by(Put, (device, host), (2 << 10) + 1, false);
            by(Get, (host, device), 32 << 10, gdr);
            by(Get, (host, device), (32 << 10) + 1, false);
            // The worker is at both ends: whichever is the device's.
            by(Get, (device, host), 8, gdr);
            by(Put, (host, device), 8, gdr);
            // The other side's copies are its own affair.
            let other = wharf::Worker::new(&context).expect("a worker");
            let address = other.address().expect("an address");
            let endpoint = worker.connect(&address).await.expect("connected");
            let said = endpoint.explain(Get, device, host, 8).to_string();
            assert!(!said.contains("by gdr_copy"), "{said}");
        }
    }));
}
