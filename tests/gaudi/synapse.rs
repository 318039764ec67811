//! Cards that Synapse has: acquired by the program, or by wharf because the program asked for it.

use std::{thread, time::Duration};

use wharf::{
    Context, ErrorKind, MemoryType, Worker, memory::AddressRange, transport::Accelerator as _,
};

use crate::{
    fixture::{pattern, run, same},
    machine::{DEVICE, OTHER, Random, bytes, filled},
    stranger::{
        Bench, Stranger, alone, calls, control, device, gaudi, host, live, number, thunk_calls,
    },
    support::{Looks, block_until, child, this_test},
};

fn range(start: u64, length: u64) -> AddressRange {
    AddressRange::new(start, length).expect("a range")
}

fn context() -> Context {
    let builder = Context::builder().transports("self").expect("known");
    let gaudi = std::sync::Arc::new(gaudi());
    builder.accelerator(gaudi).build().expect("a context")
}

fn nothing_wrong() {
    assert_eq!(number("misused"), 0, "{}", control("misuses"));
}

#[test]
fn a_card_of_the_programs_is_used_by_synapse() {
    if child("alone").is_none() {
        return alone(this_test!(), &[("EMULATED_SYNAPSE_DELAY_US", "300")]);
    }
    let stranger = Stranger::with_card();
    run(async {
        let context = context();
        let worker = Worker::new(&context).expect("a worker");
        for size in [1, 100, 4095, 65_537, (1 << 20) + 1, 5 << 20] {
            let wanted = pattern(size, size);
            let there = filled(&worker, &context, DEVICE, wanted).await;
            let room = context.allocate_on(DEVICE, size + 2).await.expect("memory");
            let again = worker
                .copy(there.freeze(), room)
                .at(1)
                .await
                .expect("copied");
            let found = bytes(&worker, again.freeze()).await;
            same(&found[1..=size], wanted, format_args!("{size} bytes"));
            assert_eq!((found[0], found[size + 1]), (0, 0), "it was zeroed");
            // Constants cannot be mapped for writing.
            let pinned = filled(&worker, &context, MemoryType::HostPinned, wanted).await;
            let there = filled(&worker, &context, DEVICE, &[7].repeat(size)).await;
            let there = worker.copy(pinned.freeze(), there).await.expect("copied");
            same(
                &bytes(&worker, there.freeze()).await,
                wanted,
                "from pinned memory",
            );
        }
        drop((worker, context));
    });
    // wharf took no card, and gives everything back.
    assert_eq!(
        calls("synDeviceAcquireByModuleId") + calls("synDeviceAcquire"),
        1
    );
    assert_eq!(calls("synInitialize"), 1);
    assert_eq!(thunk_calls("hlthunk_open"), 0);
    assert_eq!(thunk_calls("hlthunk_command_submission"), 0);
    for call in ["synStreamSynchronize", "synEventSynchronize"] {
        assert_eq!(calls(call), 0, "{call} waits");
    }
    block_until("all is given back", || {
        ["streams", "events", "allocations", "mapped"]
            .iter()
            .all(|what| live(what) == 0)
    });
    stranger.release();
    nothing_wrong();
}

#[test]
fn the_programs_own_device_memory() {
    if child("alone").is_none() {
        alone(this_test!(), &[]);
        // Older runtimes do not say where the pool is; then SCAL does.
        return alone(this_test!(), &[("EMULATED_SYNAPSE_POOL_KNOWN", "0")]);
    }
    let stranger = Stranger::with_card();
    let address = stranger.allocate(1 << 20);
    let gaudi = gaudi();
    let domain = gaudi.domain();
    assert!(domain.is_loaded());
    for (start, length) in [(address, 1), (address + 100, 4096), (address, 1 << 20)] {
        let known = domain.detect(range(start, length)).expect("no error");
        let known = known.expect("Gaudi's");
        assert_eq!(known.memory_type, DEVICE);
        assert!(known.allocation.contains(range(start, length)) && known.dma_buf);
    }
    let local = 0_u64;
    let own = range(&raw const local as u64, 8);
    for elsewhere in [
        own,
        range(0x1001_C006_0000_0000, 8),
        range(0x7fff_0000_0000_0000, 8),
    ] {
        assert_eq!(
            domain.detect(elsewhere).expect("no error"),
            None,
            "{elsewhere}"
        );
    }
    let mut bench = Bench::new(&gaudi);
    let mut there = pattern(1 << 20, 3).to_vec();
    let mut back = vec![0; 1 << 20];
    bench
        .copy(host(&mut there), device(address), 1 << 20)
        .expect("copied");
    bench
        .copy(device(address), host(&mut back), 1 << 20)
        .expect("copied");
    same(&back, &there, "there and back");
    // Between the program's memory and wharf's.
    let memory = domain.allocate(DEVICE, 1 << 20).expect("memory");
    let start = memory.range().start();
    bench
        .copy(device(address), device(start), 1 << 20)
        .expect("copied");
    back.fill(0);
    bench
        .copy(device(start), host(&mut back), 1 << 20)
        .expect("copied");
    same(&back, &there, "by way of wharf's");
    // Host memory that the program has mapped by itself overlaps, and is staged.
    let mut mapped = vec![5; 1 << 16];
    stranger.map(&mut mapped);
    bench
        .copy(host(&mut mapped), device(address), 1 << 16)
        .expect("copied");
    bench
        .copy(device(address), host(&mut back), 1 << 16)
        .expect("copied");
    same(&back[..1 << 16], &mapped, "staged");
    drop((bench, memory, domain, gaudi));
    stranger.free(address);
    nothing_wrong();
}

#[test]
fn four_thousand_copies_by_engines_that_overtake_each_other() {
    if child("alone").is_none() {
        let late = ("EMULATED_SYNAPSE_DELAY_US", "500");
        return alone(this_test!(), &[late, ("EMULATED_SYNAPSE_SEED", "9")]);
    }
    const SLOTS: usize = 48;
    const SLOT: usize = 8 << 10;
    const COPIES: usize = 4000;
    let stranger = Stranger::with_card();
    let gaudi = gaudi();
    let mut bench = Bench::new(&gaudi);
    let base = stranger.allocate((SLOTS * SLOT) as u64);
    let mut memory = vec![0_u8; SLOTS * SLOT];
    let mut random = Random(0x1357_9bdf_2468_ace1);
    // Even slots are the host's, odd ones the device's.
    let mut wanted: Vec<Vec<u8>> = Vec::new();
    for slot in 0..SLOTS {
        let content = pattern(SLOT, slot).to_vec();
        memory[slot * SLOT..][..SLOT].copy_from_slice(&content);
        if slot % 2 == 1 {
            let at = device(base + (slot * SLOT) as u64);
            bench
                .copy(host(&mut memory[slot * SLOT..][..SLOT]), at, SLOT)
                .expect("filled");
        }
        wanted.push(content);
    }
    let mut begun = 0;
    while begun < COPIES {
        // As many as there are pairs of slots that nobody else uses.
        let mut free: Vec<usize> = (0..SLOTS).collect();
        let mut running = 0;
        while running < 16 && begun < COPIES {
            let from = free.swap_remove(random.below(free.len()));
            let to = free.swap_remove(random.below(free.len()));
            if (from | to).is_multiple_of(2) {
                // Not a device's business.
                free.extend([from, to]);
                continue;
            }
            let length = 1 + random.below(SLOT);
            let mut end = |slot: usize| match slot % 2 {
                1 => device(base + (slot * SLOT) as u64),
                _ => host(&mut memory[slot * SLOT..][..SLOT]),
            };
            let (source, target) = (end(from), end(to));
            bench
                .begin(source, target, length, begun as u64)
                .expect("begun");
            let moved = wanted[from][..length].to_vec();
            wanted[to][..length].copy_from_slice(&moved);
            running += 1;
            begun += 1;
        }
        let count = bench.sink.done.len() + running;
        bench.until(count);
    }
    for (token, result) in &bench.sink.done {
        assert!(result.is_ok(), "{token}: {result:?}");
    }
    for (slot, content) in wanted.iter().enumerate() {
        let mut found = vec![0; SLOT];
        if slot % 2 == 1 {
            let at = device(base + (slot * SLOT) as u64);
            bench.copy(at, host(&mut found), SLOT).expect("read");
        } else {
            found.copy_from_slice(&memory[slot * SLOT..][..SLOT]);
        }
        same(&found, content, format_args!("slot {slot}"));
    }
    nothing_wrong();
}

#[test]
fn nothing_is_called_at_idle_and_a_cached_buffer_is_mapped_once() {
    if child("alone").is_none() {
        return alone(this_test!(), &[]);
    }
    let stranger = Stranger::with_card();
    let gaudi = gaudi();
    let mut bench = Bench::new(&gaudi);
    let address = stranger.allocate(4 << 20);
    let mut bytes = vec![1; 4 << 20];
    bench
        .copy(host(&mut bytes), device(address), 4 << 20)
        .expect("copied");
    let mapped = calls("synHostMap");
    for _ in 0..50 {
        let copies = calls("synMemCopyAsync");
        bench
            .copy(host(&mut bytes), device(address), 4 << 20)
            .expect("copied");
        assert_eq!(calls("synMemCopyAsync"), copies + 1);
    }
    assert_eq!(calls("synHostMap"), mapped);
    let before = control("counts");
    let mut looks = Looks::new("a call");
    for _ in 0..50 {
        bench.poll();
        looks.block();
    }
    assert_eq!(control("counts"), before, "calls without copies");
    nothing_wrong();
}

#[test]
fn synapse_acquires_a_card_that_the_program_names() {
    if child("alone").is_none() {
        for chip in ["1", "2", "3"] {
            let chip = [
                ("EMULATED_HLTHUNK_CHIP", chip),
                ("EMULATED_SYNAPSE_GENERATION", chip),
            ];
            alone(this_test!(), &chip);
        }
        return;
    }
    let chip = std::env::var("EMULATED_HLTHUNK_CHIP").expect("given");
    let chosen = gaudi().own_cards("synapse:1");
    chosen.probe().expect("acquired");
    assert_eq!(thunk_calls("hlthunk_open"), 0);
    assert_eq!((calls("synInitialize"), calls("synDeviceAcquire")), (1, 1));
    run(async {
        let builder = Context::builder().transports("self").expect("known");
        let context = builder.accelerator(std::sync::Arc::new(chosen));
        let context = context.build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let wanted = pattern(3 << 20, 1);
        let there = filled(&worker, &context, OTHER, wanted).await;
        same(
            &bytes(&worker, there.freeze()).await,
            wanted,
            "there and back",
        );
        let error = context.allocate_on(DEVICE, 8).await.expect_err("not named");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        drop((worker, context));
    });
    block_until("the card is given back", || control("live") == "devices 0");
    // A Gaudi 3 is Synapse's in any case, and a process has one.
    let both = gaudi().own_cards("all");
    if chip == "3" {
        let error = both.probe().expect_err("two");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        for part in ["0000:44:00.0", "synDeviceAcquire"] {
            assert!(error.to_string().contains(part), "{part} in {error}");
        }
        let error = gaudi()
            .domain()
            .allocate(OTHER, 8)
            .expect_err("left to Synapse");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    nothing_wrong();
}

#[test]
fn synapse_that_is_there_and_does_not_work() {
    if child("alone").is_none() {
        for status in ["26", "28", "17", "8"] {
            alone(this_test!(), &[("EMULATED_SYNAPSE_FAILING", status)]);
        }
        return;
    }
    let _stranger = Stranger::new();
    let gaudi = gaudi();
    gaudi.probe().expect("cards are found");
    let domain = gaudi.domain();
    let address = range(0x1001_5000_0200_0000, 8);
    assert_eq!(domain.detect(address).expect("no error"), None);
    // The card may be meant for Synapse, so the program has to say.
    let error = domain.allocate(DEVICE, 8).expect_err("Synapse is loaded");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    for part in ["0000:33:00.0", "Synapse", "WHARF_GAUDI_OWN"] {
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
    let error = gaudi
        .clone()
        .own_cards("synapse:0")
        .probe()
        .expect_err("fails");
    for part in ["0000:33:00.0", "syn"] {
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
    let chosen = gaudi.own_cards("0");
    drop(chosen.domain().allocate(DEVICE, 8).expect("by submissions"));
}

#[test]
fn scal_that_is_there_and_does_not_work() {
    if child("alone").is_none() {
        return alone(this_test!(), &[("EMULATED_SYNAPSE_POOL_KNOWN", "0")]);
    }
    let stranger = Stranger::with_card();
    crate::support::emulated::control_of(&crate::support::emulated::scal(), "failing 1");
    let address = stranger.allocate(4096);
    let gaudi = gaudi();
    let domain = gaudi.domain();
    // Nobody says where the program's memory is; wharf's own is known all the same.
    assert_eq!(domain.detect(range(address, 8)).expect("no error"), None);
    let memory = domain.allocate(DEVICE, 4096).expect("memory");
    let known = domain
        .detect(memory.range())
        .expect("no error")
        .expect("known");
    assert_eq!(
        (known.memory_type, known.allocation),
        (DEVICE, memory.range())
    );
    let mut bench = Bench::new(&gaudi);
    let mut there = pattern(4096, 5).to_vec();
    let mut back = vec![0; 4096];
    let start = memory.range().start();
    bench
        .copy(host(&mut there), device(start), 4096)
        .expect("copied");
    bench
        .copy(device(start), host(&mut back), 4096)
        .expect("copied");
    same(&back, &there, "there and back");
    let error = domain.export(memory.range()).expect_err("nobody knows how");
    assert!(error.to_string().contains("SCAL"), "{error}");
    nothing_wrong();
}

#[test]
fn a_reset_ends_all_copies() {
    if child("alone").is_none() {
        return alone(this_test!(), &[]);
    }
    copies_end_with(|_| drop(control("lose 17")), "lost");
    control("release");
    nothing_wrong();
}

/// To most calls of Synapse's it is a failure like any other that there is no device.
#[test]
fn a_device_that_the_program_releases_is_lost() {
    if child("alone").is_none() {
        return alone(this_test!(), &[]);
    }
    copies_end_with(Stranger::release, "was released");
}

/// What ends a device under copies ends them, with these words, and those that come later.
fn copies_end_with(end: impl FnOnce(&Stranger), said: &str) {
    let stranger = Stranger::with_card();
    let gaudi = gaudi();
    let mut bench = Bench::new(&gaudi);
    let address = stranger.allocate(1 << 20);
    let mut bytes = vec![1; 1 << 20];
    bench
        .copy(host(&mut bytes), device(address), 1 << 20)
        .expect("copied");
    control("hold all");
    for token in 0..8 {
        bench
            .begin(host(&mut bytes), device(address), 1 << 17, token)
            .expect("begun");
    }
    bench.poll();
    end(&stranger);
    bench.until(8);
    for (_, result) in &bench.sink.done {
        let error = result.as_ref().expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    let error = bench
        .copy(host(&mut bytes), device(address), 8)
        .expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
}

/// What is being zeroed is not given back before that is over, though nothing will be heard of its end.
#[test]
fn memory_that_is_zeroed_without_an_event_stays_until_the_stream_is_idle() {
    if child("alone").is_none() {
        return alone(this_test!(), &[]);
    }
    let stranger = Stranger::with_card();
    let gaudi = gaudi();
    let mut bench = Bench::new(&gaudi);
    let address = stranger.allocate(1 << 16);
    let mut bytes = vec![1; 1 << 16];
    bench
        .copy(host(&mut bytes), device(address), 1 << 16)
        .expect("copied");
    let (domain, freed) = (gaudi.domain(), calls("synDeviceFree"));
    control("hold all");
    control("fault synEventRecord@1=1");
    let released = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        let before = calls("synDeviceFree");
        control("release");
        before
    });
    let error = domain.allocate(DEVICE, 1 << 16).map(drop);
    let error = error.expect_err("nobody knows");
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    let text = error.to_string();
    assert!(text.contains("does not tell of its end"), "{text}");
    drop((bench, domain, gaudi));
    assert_eq!(released.join().expect("no panic"), freed);
    nothing_wrong();
}

#[test]
fn each_call_may_fail() {
    if child("alone").is_none() {
        return alone(this_test!(), &[]);
    }
    let stranger = Stranger::with_card();
    let address = stranger.allocate(1 << 16);
    let mut bytes = vec![3; 1 << 16];
    let mut scenario = |what: &str| {
        let gaudi = gaudi();
        let domain = gaudi.domain();
        let Ok(memory) = domain.allocate(DEVICE, 1 << 16) else {
            return;
        };
        let mut bench = Bench::new(&gaudi);
        for (from, to) in [
            (host(&mut bytes), device(address)),
            (device(address), device(memory.range().start())),
            (device(memory.range().start()), host(&mut bytes)),
        ] {
            // It fails or not; it ends.
            let result = bench.copy(from, to, 1 << 16);
            if let Err(error) = result {
                assert!(!error.to_string().is_empty(), "{what}");
            }
        }
        let _ = domain.export(memory.range());
    };
    scenario("nothing");
    for name in [
        "synDeviceGetInfoV2",
        "synDeviceGetMemoryInfo",
        "synDeviceMalloc",
        "synDeviceFree",
        "synHostMap",
        "synStreamCreateGeneric",
        "synStreamQuery",
        "synStreamDestroy",
        "synEventCreate",
        "synEventRecord",
        "synEventQuery",
        "synEventDestroy",
        "synMemCopyAsync",
        "synMemsetD8Async",
    ] {
        for nth in [1, 2, 3] {
            for code in [1, 2, 26] {
                control(&format!("fault {name}@{nth}={code}"));
                scenario(name);
                control("fault clear");
            }
        }
    }
    // And it works again. (What is not unmapped stays so, and other memory at its address cannot be used: that is not asked for here.)
    let gaudi = gaudi();
    let mut bench = Bench::new(&gaudi);
    let mut wanted = pattern(1 << 16, 8).to_vec();
    let mut back = vec![0; 1 << 16];
    bench
        .copy(host(&mut wanted), device(address), 1 << 16)
        .expect("copied");
    bench
        .copy(device(address), host(&mut back), 1 << 16)
        .expect("copied");
    same(&back, &wanted, "after all faults");
}
