//! Copies by submissions: every byte, every queue, the ring's bounds, waits, and what goes wrong under way.

use std::time::{Duration, Instant};

use super::{Bench, Emulated, finish};
use crate::{
    driver::hlthunk::{IN_FLIGHT, LinDma, Queue},
    error::ErrorKind,
    support::LIMIT,
};

/// As the emulated library makes and knows them.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let byte =
        |index: u64| (seed.wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..len as u64).map(byte).collect()
}

#[test]
fn bytes_go_in_across_and_out() {
    for chip in [1, 2] {
        let own = Emulated::new(&[("chip", chip)]);
        let card = own.card();
        let mut bench = Bench::new(&card, 4, 1 << 20).expect("memory");
        let half = 1_u32 << 19;
        let data = pattern(7, half as usize);
        bench.host[..half as usize].copy_from_slice(&data);
        finish(&mut bench.put(0, 0, half).expect("submitted")).expect("copied");
        let address = bench.device.address();
        let same = own.control(&format!("compare 0 {address:#x} {half} 7"));
        assert_eq!(same, "same");
        for queue in card.queues_within() {
            let across = LinDma::copy(address, address + u64::from(half), half);
            finish(&mut bench.submit(queue, &[across]).expect("submitted")).expect("copied");
        }
        own.control(&format!("fill 0 {address:#x} {half} 9"));
        let mut back = bench
            .get(u64::from(half), u64::from(half), half)
            .expect("submitted");
        finish(&mut back).expect("copied");
        assert_eq!(bench.host[half as usize..], data[..]);
        // A fill, of a part.
        let fill = LinDma {
            fill: true,
            ..LinDma::copy(0x0403_0201, address, 4096)
        };
        finish(&mut bench.submit(card.queue_in(), &[fill]).expect("submitted")).expect("filled");
        finish(&mut bench.get(0, 0, 4100).expect("submitted")).expect("copied");
        assert_eq!(bench.host[..4096], [1, 2, 3, 4].repeat(1024)[..]);
        assert_eq!(bench.host[4096..4100], pattern(9, 4100)[4096..]);
        assert_eq!(own.control("misuses"), "");
        drop((bench, back));
        card.close();
        drop(own.card());
    }
}

#[test]
fn engines_within_the_card_are_those_that_work() {
    let own = Emulated::new(&[("edma", 0b1000_0010)]);
    let card = own.card();
    assert_eq!(card.queues_within(), [Queue(12), Queue(124)]);
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    let across = LinDma::copy(bench.device.address(), bench.device.address() + 4096, 64);
    let error = bench
        .submit(Queue(8), &[across])
        .expect_err("an engine that is off");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(
        error.to_string().contains("hlthunk_command_submission"),
        "{error}"
    );
    let own = Emulated::new(&[("chip", 1)]);
    assert_eq!(own.card().queues_within(), [Queue(0)]);
}

#[test]
fn ten_thousand_copies_on_queues_that_overtake_each_other() {
    const COUNT: usize = 10_000;
    const SLOT: usize = 1024;
    const PLACES: usize = 64;
    let own = Emulated::new(&[("delay_us", 20)]);
    let card = own.card();
    let mut bench = Bench::new(&card, IN_FLIGHT, 2 * PLACES * SLOT).expect("memory");
    own.control("forget");
    let back = PLACES * SLOT;
    let mut overtaken = 0;
    for round in 0..COUNT / 2 / PLACES + 1 {
        for place in 0..PLACES {
            let data = pattern((round * PLACES + place) as u64, SLOT);
            bench.host[place * SLOT..(place + 1) * SLOT].copy_from_slice(&data);
        }
        for out in [false, true] {
            let mut running = Vec::new();
            for place in 0..PLACES {
                // The direction is a convention: any of the eight takes any.
                let queue = Queue((place % 8) as u32);
                let (host, device) = (bench.mapping.device(), bench.device.address());
                let at = (place * SLOT) as u64;
                let packet = if out {
                    LinDma::copy(device + at, host + back as u64 + at, SLOT as u32)
                } else {
                    LinDma::copy(host + at, device + at, SLOT as u32)
                };
                loop {
                    match bench.submit(queue, &[packet]) {
                        Ok(submission) => break running.push(submission),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                    }
                    wait_for_one(&bench, &mut running, &mut overtaken);
                }
            }
            while !running.is_empty() {
                wait_for_one(&bench, &mut running, &mut overtaken);
            }
        }
        assert_eq!(bench.host[..back], bench.host[back..], "round {round}");
        bench.host[back..].fill(0xEE);
    }
    assert!(own.calls("hlthunk_command_submission") >= COUNT as u64);
    assert!(overtaken > 0, "queues have no order among them");
    assert_eq!(own.live("held_up"), 0, "the ring was never full");
    assert_eq!(own.control("misuses"), "");
}

/// Until at least one has ended; those are taken out.
fn wait_for_one(
    bench: &Bench,
    running: &mut Vec<crate::driver::hlthunk::Submission>,
    overtaken: &mut usize,
) {
    let start = Instant::now();
    loop {
        let seqs: Vec<u64> = running
            .iter()
            .take(32)
            .map(|submission| submission.seq())
            .collect();
        let set = bench
            .card
            .wait_any(&seqs, Duration::from_millis(100))
            .expect("waits");
        assert!(start.elapsed() < LIMIT, "watchdog: {seqs:?}");
        if set == 0 {
            continue;
        }
        *overtaken += usize::from(set & 1 == 0);
        let mut bit = 0;
        running.retain_mut(|submission| {
            let ended = bit < 32 && set >> bit & 1 == 1;
            bit += 1;
            if ended {
                assert!(
                    submission.poll().expect("copied"),
                    "{submission:?} was said to have ended"
                );
            }
            !ended
        });
        return;
    }
}

#[test]
fn a_full_card_says_so_and_is_never_spun_on() {
    let own = Emulated::new(&[]);
    let card = own.card();
    let bench = Bench::new(&card, 64, 4096).expect("memory");
    own.control("hold");
    let mut running = Vec::new();
    let error = loop {
        match bench.put(0, 0, 64) {
            Ok(submission) => running.push(submission),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    assert_eq!(running.len(), IN_FLIGHT);
    assert_eq!(own.calls("hlthunk_command_submission"), IN_FLIGHT as u64);
    assert!(!running[0].poll().expect("running"));
    let seqs: Vec<u64> = running.iter().map(|submission| submission.seq()).collect();
    assert_eq!(
        card.wait_any(&seqs, Duration::from_millis(1))
            .expect("time runs out"),
        0
    );
    own.control("release");
    for submission in &mut running {
        finish(submission).expect("copied");
        assert!(
            submission.poll().expect("still so"),
            "no further call is made"
        );
    }
    finish(&mut bench.put(0, 0, 64).expect("there is room")).expect("copied");
    assert_eq!(own.live("held_up"), 0);
}

#[test]
fn a_small_ring_is_full_before_the_card() {
    let own = Emulated::new(&[]);
    let card = own.card();
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    own.control("hold");
    drop(bench.put(0, 0, 64).expect("submitted"));
    let kept = bench.put(0, 0, 64).expect("submitted");
    let error = bench.put(0, 0, 64).expect_err("two slots");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    drop(kept);
    own.control("release");
    // Slots of dropped submissions are used again when the card is done with them.
    let start = Instant::now();
    for _ in 0..10 {
        loop {
            match bench.put(0, 0, 64) {
                Ok(submission) => break drop(submission),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            assert!(start.elapsed() < LIMIT, "watchdog");
            std::thread::yield_now();
        }
    }
    assert_eq!(own.control("misuses"), "");
}

#[test]
fn a_ring_that_goes_while_it_is_read_harms_nothing() {
    let own = Emulated::new(&[]);
    let card = own.card();
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    own.control("hold");
    drop(bench.put(0, 0, 64).expect("submitted"));
    drop(bench);
    assert_eq!(own.live("running"), 1);
    // The packets are mapped still; what they name has gone, by the test's own fault, but the card is closed first.
    assert_eq!(own.live("mappings"), 1);
    card.close();
    own.control("release");
    let fresh = own.card();
    assert_eq!(own.live("running"), 0);
    drop(fresh);
}

#[test]
fn an_end_is_known_however_late_it_is_asked() {
    let own = Emulated::new(&[]);
    let card = own.card();
    let bench = Bench::new(&card, 8, 4096).expect("memory");
    own.control("hold");
    let mut early = bench.put(0, 0, 64).expect("submitted");
    own.control("abort 0");
    own.control("release");
    for _ in 0..300 {
        finish(&mut bench.put(0, 64, 64).expect("submitted")).expect("copied");
    }
    // By now the kernel says that it went well.
    for _ in 0..2 {
        let error = early.poll().expect_err("it was aborted");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        assert!(error.to_string().contains("submission 1"), "{error}");
    }
}

#[test]
fn submissions_that_cannot_be_are_refused() {
    let own = Emulated::new(&[]);
    let card = own.card();
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    let copy = LinDma::copy(bench.mapping.device(), bench.device.address(), 64);
    for packets in [vec![], vec![copy; 171], vec![LinDma { len: 0, ..copy }]] {
        let error = bench.submit(Queue(0), &packets).expect_err("no submission");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    finish(&mut bench.submit(Queue(0), &[copy; 170]).expect("a full page")).expect("copied");
    for queue in [16, 260, u32::MAX] {
        let error = bench.submit(Queue(queue), &[copy]).expect_err("no queue");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    for seqs in [&[][..], &[1; 33], &[0], &[1_000_000]] {
        let error = card
            .wait_any(seqs, Duration::ZERO)
            .expect_err("no such wait");
        assert_eq!(
            error.kind(),
            ErrorKind::InvalidArgument,
            "{seqs:?}: {error}"
        );
    }
    for slots in [0, 1025] {
        let error = card.command_ring(slots).expect_err("no ring");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    assert!(!card.is_lost());
}

#[test]
fn a_submission_that_times_out_loses_the_card() {
    let own = Emulated::new(&[("timeout_ms", 20)]);
    let card = own.card();
    let notifier = card.notifier().expect("a notifier");
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    own.control("hold");
    let mut copy = bench.put(0, 0, 64).expect("submitted");
    let error = finish(&mut copy).expect_err("it never starts");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    assert!(card.is_lost());
    let start = Instant::now();
    let mut events = notifier.receive().expect("events");
    while events.is_empty() {
        assert!(start.elapsed() < LIMIT, "watchdog");
        events = notifier.receive().expect("events");
    }
    assert!(events.is_end() && events.bits() & 8 == 8, "{events:?}");
}

#[test]
fn memory_that_goes_under_a_copy_is_a_fault_of_the_card() {
    let own = Emulated::new(&[]);
    // The mapping is given back before the copy is done.
    let card = own.card();
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    own.control("hold");
    let mut copy = bench.put(0, 0, 4096).expect("submitted");
    let Bench {
        mapping, device, ..
    } = bench;
    drop(mapping);
    own.control("release");
    assert_eq!(
        finish(&mut copy).expect_err("fault").kind(),
        ErrorKind::DeviceLost
    );
    assert!(own.control("misuses").contains("not in one mapping"));
    drop((copy, device));
    card.close();
    // The memory itself goes, and its registration stays.
    own.control("forget");
    let card = own.card();
    let device = card.allocate(4096).expect("memory");
    let ring = card.command_ring(2).expect("a ring");
    let pages = std::num::NonZeroUsize::new(8192).expect("not 0");
    let rights = nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE;
    let private = nix::sys::mman::MapFlags::MAP_PRIVATE;
    // SAFETY: no fixed address.
    let host = unsafe { nix::sys::mman::mmap_anonymous(None, pages, rights, private) };
    let host = host.expect("pages");
    let mapping = card
        .map_host(host.addr().get() as u64, 8192)
        .expect("mapped");
    // Nothing else may come to the place: it stays, and nobody may touch it.
    let nothing = nix::sys::mman::ProtFlags::PROT_NONE;
    // SAFETY: mapped above; nobody has a reference to it.
    unsafe { nix::sys::mman::mprotect(host, 8192, nothing) }.expect("closed");
    let packet = LinDma::copy(device.address(), mapping.device(), 8192);
    // SAFETY: the fault is meant; the addresses are nobody's.
    let mut copy = unsafe { ring.submit(Queue(4), &[packet]) }.expect("submitted");
    assert_eq!(
        finish(&mut copy).expect_err("fault").kind(),
        ErrorKind::DeviceLost
    );
    assert!(own.control("misuses").contains("host memory has gone"));
}

#[test]
fn a_copy_beyond_an_end_is_a_fault_of_the_card() {
    let own = Emulated::new(&[("page", 4096)]);
    let card = own.card();
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    let mut copy = bench.put(1, 0, 4096).expect("submitted");
    let error = finish(&mut copy).expect_err("fault");
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    assert!(error.to_string().contains("0000:33:00.0"), "{error}");
}

#[test]
fn threads_share_a_ring() {
    let own = Emulated::new(&[("delay_us", 5)]);
    let card = own.card();
    let bench = Bench::new(&card, IN_FLIGHT, 8 << 12).expect("memory");
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let bench = &bench;
            scope.spawn(move || {
                for _ in 0..200 {
                    let mut copy = loop {
                        match bench.put(thread << 12, thread << 12, 4096) {
                            Ok(copy) => break copy,
                            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                        }
                    };
                    finish(&mut copy).expect("copied");
                }
            });
        }
    });
    assert_eq!(own.calls("hlthunk_command_submission"), 800);
    assert_eq!(own.control("misuses"), "");
}
