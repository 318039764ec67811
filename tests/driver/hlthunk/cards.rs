//! Cards: found without being opened, opened by one process at a time, their memory, what tells of a reset.

use std::{io, os::fd::AsRawFd, sync::Arc, time::Duration};

use super::{Bench, Emulated, finish, patiently};
use crate::{
    alone::{child_with, is_child},
    driver::hlthunk::{BusId, Chip, HlThunk, State},
    error::{Error, ErrorKind},
    support::{Child, child, emulated, open_fds, this_test},
};

fn refused<T>(result: Result<T, Error>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else {
        panic!("must be refused: {words:?}")
    };
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} in {error}");
    }
    error
}

/// What an error stems from.
fn source(error: &Error) -> String {
    let source = error.get_ref();
    source.map(ToString::to_string).unwrap_or_default()
}

#[test]
fn discovery_asks_control_nodes_and_opens_nothing() {
    // A newer library writes more than it is known for.
    let own = Emulated::new(&[("cards", 3), ("hw_ip_bytes", 1500)]);
    let cards: Vec<_> = own
        .thunk
        .discover()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let places: Vec<_> = cards.iter().map(|card| card.bus_id.as_str()).collect();
    assert_eq!(places, ["0000:33:00.0", "0000:44:00.0", "0000:55:00.0"]);
    assert_eq!(cards[1].hw.module_id, 6);
    assert_eq!(cards[1].index, 1);
    assert_eq!(cards[2].hw.name, "HL-emulated-2");
    let card = &cards[0];
    assert_eq!((card.chip, card.state), (Chip::Gaudi2, State::Operational));
    assert_eq!(card.hw.dram_base, 0x1001_0018_0000_0000);
    assert_eq!(card.hw.dram_page, 768 << 20);
    assert_eq!((card.hw.edma_mask, card.hw.device_id), (0xFE, 0x1020));
    assert_eq!(own.calls("hlthunk_open"), 0);
    assert_eq!(own.calls("hlthunk_close"), 3);
    own.control("state 1 2");
    let states: Vec<_> = own
        .thunk
        .discover()
        .into_iter()
        .map(|card| card.unwrap().state)
        .collect();
    assert_eq!(states[1], State::Malfunction);
}

#[test]
fn generations_are_told_apart() {
    for (raw, chip, submits) in [
        (1, Chip::Gaudi, true),
        (2, Chip::Gaudi2, true),
        (3, Chip::Gaudi3, false),
    ] {
        let own = Emulated::new(&[("chip", raw)]);
        let card = own.card();
        assert_eq!(card.chip(), chip);
        assert_eq!(chip.takes_submissions(), submits);
        let ring = card.command_ring(1);
        if submits {
            ring.expect("a ring");
        } else {
            refused(ring, ErrorKind::Unsupported, &["Gaudi 3", "Synapse"]);
        }
    }
}

#[test]
fn places_are_read_in_every_usual_form() {
    for text in ["0000:33:00.0", "33:00.0", " 0000:33:00.0\n", "0000:33:00.0"] {
        assert_eq!(
            text.parse::<BusId>().expect("a place").as_str(),
            "0000:33:00.0"
        );
    }
    assert_eq!(
        "ABCD:EF:1F.7".parse::<BusId>().expect("a place").as_str(),
        "abcd:ef:1f.7"
    );
    for text in [
        "",
        "33",
        "0000:33:00",
        "0000:33:00.00",
        "0000:3g:00.0",
        "é000:33:00.0",
        "a:b:c:d",
    ] {
        refused(
            text.parse::<BusId>(),
            ErrorKind::InvalidArgument,
            &["PCI place"],
        );
    }
}

#[test]
fn a_card_is_opened_by_place_and_closed_once() {
    let own = Emulated::new(&[]);
    let second = "0000:44:00.0".parse().expect("a place");
    let card = own
        .thunk
        .open(&second, Duration::ZERO)
        .expect("the second card");
    assert_eq!(card.bus_id().as_str(), "0000:44:00.0");
    refused(
        own.thunk.open(&second, Duration::ZERO),
        ErrorKind::Exhausted,
        &["0000:44:00.0", "hlthunk_open", "another process"],
    );
    let nowhere = "0000:99:00.0".parse().expect("a place");
    refused(
        own.thunk.open(&nowhere, Duration::ZERO),
        ErrorKind::InvalidArgument,
        &["0000:99:00.0", "no such card"],
    );
    assert!(card.is_owned() && !card.is_closed());
    let memory = card.allocate(1).expect("memory");
    own.control("forget");
    card.close();
    card.close();
    assert!(card.is_closed());
    refused(card.allocate(1), ErrorKind::Closed, &["0000:44:00.0"]);
    drop((card, memory));
    assert_eq!(own.calls("hlthunk_close"), 1);
    assert_eq!(
        own.number("calls"),
        1,
        "what is made from a closed card makes no calls"
    );
    own.patiently(1);
}

#[test]
fn states_have_their_own_errors() {
    let own = Emulated::new(&[]);
    for (state, kind, word) in [
        (1, ErrorKind::WouldBlock, "being reset"),
        (2, ErrorKind::DeviceLost, "not in operation"),
        (3, ErrorKind::DeviceLost, "administrator"),
        (4, ErrorKind::WouldBlock, "try again"),
        (5, ErrorKind::WouldBlock, "given back"),
    ] {
        own.control(&format!("state 0 {state}"));
        refused(
            own.open(0),
            kind,
            &["Gaudi card 0000:33:00.0: hlthunk_open", word],
        );
    }
    own.control("state 0 0");
    own.control("busy 0 1");
    let error = refused(own.open(0), ErrorKind::Exhausted, &["hl-smi"]);
    assert_eq!(
        source(&error),
        io::Error::from_raw_os_error(libc::EBUSY).to_string()
    );
    own.open(1).expect("the other card");
    own.control("busy 0 0");
    own.card();
}

#[test]
fn who_is_patient_gets_a_card_that_is_given_back() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let own = Emulated::new(&[("release_ms", 200)]);
    drop(own.card());
    refused(own.open(0), ErrorKind::WouldBlock, &["given back"]);
    let place = "0000:33:00.0".parse().expect("a place");
    let before = own.calls("hlthunk_open");
    own.thunk
        .open(&place, Duration::from_secs(30))
        .expect("after a while");
    assert!(own.calls("hlthunk_open") > before + 1);
}

#[test]
fn a_borrowed_card_is_not_closed() {
    let own = Emulated::new(&[]);
    let owner = own.card();
    // The owner's descriptor: the highest that is the card's file.
    let fd = owner.with_fd(|fd| fd).expect("open");
    // SAFETY: the owner outlives it.
    let guest = unsafe { own.thunk.borrow(fd) }.expect("the same card");
    assert_eq!(guest.bus_id(), owner.bus_id());
    assert!(!guest.is_owned());
    drop(guest.allocate(1).expect("memory"));
    refused(guest.command_ring(1), ErrorKind::Unsupported, &["Synapse"]);
    own.control("forget");
    drop(guest);
    assert_eq!(own.calls("hlthunk_close"), 0);
    owner.allocate(1).expect("still open");
    // SAFETY: no descriptor of a card's; nothing is done with it.
    refused(
        unsafe { own.thunk.borrow(0) },
        ErrorKind::Unsupported,
        &["Gaudi card"],
    );
}

#[test]
fn device_memory_comes_in_whole_pages_and_ends() {
    let own = Emulated::new(&[("page", 3 << 20), ("memory", 10 << 20)]);
    let card = own.card();
    assert_eq!(card.granularity(), 3 << 20);
    refused(
        card.allocate(0),
        ErrorKind::InvalidArgument,
        &["0000:33:00.0"],
    );
    let one = card.allocate(1).expect("a page");
    let two = card.allocate((3 << 20) + 1).expect("two pages");
    assert_eq!((one.len(), two.len()), (3 << 20, 6 << 20));
    refused(
        card.allocate(1),
        ErrorKind::Exhausted,
        &["hlthunk_device_memory_alloc"],
    );
    refused(card.allocate(u64::MAX), ErrorKind::Exhausted, &[]);
    drop(one);
    let again = card.allocate(1).expect("the page is free again");
    drop((again, two));
    assert_eq!(own.live("allocations"), 0);
}

#[test]
fn the_first_gaudis_memory_is_handed_out_here() {
    let own = Emulated::new(&[("chip", 1), ("memory", 8 << 20)]);
    let card = own.card();
    let mut parts: Vec<_> = (0..4).map(|_| card.allocate(1).expect("2 MiB")).collect();
    assert_eq!(parts[0].address(), 0x2000_0000);
    assert_eq!(parts[3].address(), 0x2000_0000 + (6 << 20));
    refused(card.allocate(1), ErrorKind::Exhausted, &["not free"]);
    drop(parts.drain(1..3));
    refused(card.allocate((4 << 20) + 1), ErrorKind::Exhausted, &[]);
    let middle = card.allocate(4 << 20).expect("both");
    assert_eq!(middle.address(), 0x2000_0000 + (2 << 20));
    assert_eq!(own.calls("hlthunk_device_memory_alloc"), 0);
}

#[test]
fn host_memory_is_mapped_as_often_as_wanted() {
    let own = Emulated::new(&[]);
    let card = own.card();
    let bytes = vec![0_u8; 10_000];
    let start = bytes.as_ptr().expose_provenance() as u64;
    let one = card.map_host(start + 1, 9_000).expect("mapped");
    let two = card.map_host(start + 1, 9_000).expect("mapped");
    assert_ne!(one.device(), two.device());
    assert_eq!(
        one.device() % 4096,
        (start + 1) % 4096,
        "the place in the page stays"
    );
    assert_eq!(one.translate(start + 11, 8_990), Some(one.device() + 10));
    assert_eq!(one.translate(start + 11, 8_991), None);
    assert_eq!(one.translate(start, 1), None);
    drop((one, two));
    assert_eq!(own.live("mappings"), 0);
    for (host, len) in [(0, 1), (start, 0), (u64::MAX, 2)] {
        refused(
            card.map_host(host, len),
            ErrorKind::InvalidArgument,
            &["no range"],
        );
    }
    // Not mapped; and a text, which may not be written.
    for host in [4096, "text".as_ptr().expose_provenance() as u64] {
        let words = ["hlthunk_host_memory_map", "may not be written"];
        refused(card.map_host(host, 4), ErrorKind::InvalidArgument, &words);
    }
}

#[test]
fn dma_bufs_hold_memory_and_card() {
    let own = Emulated::new(&[]);
    let card = own.card();
    let mut memory = card.allocate(1).expect("memory");
    let buffer = memory.export(8192, 4096).expect("a dma-buf");
    let told = own.control(&format!("dmabuf {}", buffer.as_raw_fd()));
    assert_eq!(
        told,
        format!("0000:33:00.0 {:#x} 0x2000 0x1000", memory.address())
    );
    // It has no bytes for the host.
    let shown = nix::sys::stat::fstat(&buffer).expect("open").st_size;
    assert_eq!(shown, 0);
    for (offset, len) in [(1, 4096), (0, 4095), (0, 0)] {
        let words = ["hlthunk_device_mapped_memory_export_dmabuf_fd"];
        refused(
            memory.export(offset, len),
            ErrorKind::InvalidArgument,
            &words,
        );
    }
    refused(
        memory.export(memory.len(), 4096),
        ErrorKind::OutOfBounds,
        &[],
    );
    refused(
        card.export(memory.address() + 4096, 0, 4096),
        ErrorKind::InvalidArgument,
        &[],
    );
    // Memory of a dma-buf is not given back, by any of its copies.
    let copy = buffer.try_clone().expect("a copy");
    drop(buffer);
    refused(
        memory.free(),
        ErrorKind::InvalidArgument,
        &["hlthunk_memory_unmap"],
    );
    drop(copy);
    patiently(|| memory.free());
    memory.free().expect("it is done");
    drop(memory);
    assert_eq!(own.live("allocations"), 0);
    // Nor is the card.
    let memory = card.allocate(1).expect("memory");
    let buffer = memory.export(0, 4096).expect("a dma-buf");
    card.close();
    refused(own.open(0), ErrorKind::Exhausted, &[]);
    drop(buffer);
    own.card();
}

#[test]
fn the_first_gaudi_exports_physical_memory() {
    let own = Emulated::new(&[("chip", 1)]);
    let card = own.card();
    let memory = card.allocate(1).expect("memory");
    let buffer = memory.export(4096, 4096).expect("a dma-buf");
    let told = own.control(&format!("dmabuf {}", buffer.as_raw_fd()));
    assert_eq!(told, "0000:33:00.0 0x20001000 0x0 0x1000");
}

#[test]
fn no_descriptor_is_lost() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let own = Emulated::new(&[]);
    let round = |count: usize| {
        for _ in 0..count {
            for card in own.thunk.discover() {
                card.expect("a card");
            }
            let card = own.card();
            let _notifier = card.notifier().expect("a notifier");
            let bench = Bench::new(&card, 2, 4096).expect("memory");
            finish(&mut bench.put(0, 0, 4096).expect("submitted")).expect("copied");
            for _ in 0..50 {
                let buffer = bench.device.export(0, 4096).expect("a dma-buf");
                drop(buffer.try_clone().expect("a copy"));
            }
            refused(bench.device.export(1, 1), ErrorKind::InvalidArgument, &[]);
            refused(own.open(0), ErrorKind::Exhausted, &[]);
        }
    };
    round(2);
    let before = open_fds();
    round(20);
    assert_eq!(open_fds(), before);
    assert_eq!(own.live("sessions"), 0);
}

#[test]
fn the_notifier_tells_of_a_reset() {
    let own = Emulated::new(&[]);
    let card = own.card();
    let notifier = card.notifier().expect("a notifier");
    refused(
        card.notifier(),
        ErrorKind::InvalidArgument,
        &["hlthunk_notifier_create"],
    );
    assert_eq!(notifier.receive().expect("nothing").bits(), 0);
    let mut bench = Bench::new(&card, 2, 4096).expect("memory");
    own.control("hold");
    let mut running = bench.put(0, 0, 4096).expect("submitted");
    own.control("break 0 0x400");
    let mut poll = [nix::poll::PollFd::new(
        std::os::fd::AsFd::as_fd(&notifier),
        nix::poll::PollFlags::POLLIN,
    )];
    assert_eq!(
        nix::poll::poll(&mut poll, 60_000_u16),
        Ok(1),
        "it is readable"
    );
    let events = notifier.receive().expect("events");
    let names = format!("{events:?}");
    assert!(
        names.contains("CRITICAL_FIRMWARE_ERROR") && names.contains("DEVICE_RESET"),
        "{names}"
    );
    assert!(events.is_end() && card.is_lost());
    assert_eq!(notifier.receive().expect("nothing more").bits(), 0);
    refused(running.poll(), ErrorKind::DeviceLost, &["0000:33:00.0"]);
    refused(bench.put(0, 0, 1), ErrorKind::DeviceLost, &["reset"]);
    refused(card.allocate(1), ErrorKind::DeviceLost, &["reset"]);
    refused(
        bench.device.free(),
        ErrorKind::DeviceLost,
        &["hlthunk_memory_unmap"],
    );
    own.control("release");
    card.close();
    drop((running, bench, notifier));
    let card = own.card();
    assert!(!card.is_lost());
    card.allocate(1).expect("a new card");
}

#[test]
fn the_notifiers_descriptor_is_released_even_when_the_card_is_closed_first() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let own = Emulated::new(&[]);
    drop(own.card());
    let before = open_fds();
    for _ in 0..5 {
        let card = own.card();
        let notifier = card.notifier().expect("a notifier");
        card.close();
        refused(notifier.receive(), ErrorKind::Closed, &[]);
        drop(notifier);
    }
    assert_eq!(open_fds(), before);
}

#[test]
fn optional_functions_are_named_when_they_are_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let names = [
        "hlthunk_notifier_create",
        "hlthunk_wait_for_multi_cs",
        "hlthunk_get_device_status_info",
    ];
    let path = emulated::without(&emulated::hlthunk(), &names, folder.path()).expect("a copy");
    let thunk = HlThunk::load(Some(&path)).expect("none of them is required");
    let info = thunk.discover().remove(0).expect("a card");
    assert_eq!(info.state, State::Other(-1));
    let card = thunk.open(&info.bus_id, Duration::ZERO).expect("opens");
    refused(
        card.notifier(),
        ErrorKind::Unsupported,
        &["hlthunk_notifier_create"],
    );
    // Without the wait for several, the first is waited for.
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    let mut copy = bench.put(0, 0, 4096).expect("submitted");
    while card
        .wait_any(&[copy.seq()], Duration::from_secs(1))
        .expect("waits")
        == 0
    {}
    finish(&mut copy).expect("copied");
}

#[test]
fn one_process_has_a_card() {
    const FOLDER: &str = "EMULATED_HLTHUNK_FOLDER";
    for part in ["owner", "other"] {
        let Some(mut parent) = child(part) else {
            continue;
        };
        let own = Emulated::new(&[]);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let mut card = None;
            loop {
                match parent.hear().await.as_str() {
                    "open" => match own.open(0) {
                        Ok(opened) => {
                            card = Some(opened);
                            parent.say("open");
                        }
                        Err(error) => parent.say(format!("{:?}", error.kind())),
                    },
                    "close" => {
                        card = None;
                        parent.say("closed");
                    }
                    "discover" => {
                        let found = own.thunk.discover();
                        parent.say(found.iter().flatten().count());
                    }
                    _ => break,
                }
            }
            drop(card);
        });
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("text");
    // The one that is killed removes nothing of its own: that lies in the folder too.
    let variables = [(FOLDER, path), ("TMPDIR", path)];
    let mut owner = Child::start(this_test!(), "owner", &variables);
    let mut other = Child::start(this_test!(), "other", &variables);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        for (to_owner, line, answer) in [
            (true, "open", "open"),
            (false, "open", "Exhausted"),
            (false, "discover", "2"),
            (true, "close", "closed"),
            (false, "open", "open"),
            (true, "open", "Exhausted"),
            (false, "close", "closed"),
            (true, "open", "open"),
        ] {
            let process = if to_owner { &mut owner } else { &mut other };
            process.say(line);
            assert_eq!(process.hear().await, answer, "{line}");
        }
        // Who dies gives the card back as well.
        owner.kill();
        other.say("open");
        assert_eq!(other.hear().await, "open");
        other.say("end");
    });
    other.finish();
}

#[test]
fn a_forked_child_is_told() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let own = Emulated::new(&[]);
    let card = own.card();
    let bench = Bench::new(&card, 2, 4096).expect("memory");
    own.control("forget");
    // SAFETY: a process of this one test; the child makes a few calls and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let forked = |error: Error| error.kind() == ErrorKind::Forked;
        let told = card.allocate(1).err().is_some_and(forked)
            && bench.put(0, 0, 1).err().is_some_and(forked);
        drop(bench);
        drop(card);
        let quiet = own.number("calls") == 0;
        // SAFETY: leaves at once.
        unsafe { libc::_exit(i32::from(!(told && quiet))) };
    }
    let mut status = -1;
    // SAFETY: the child of above, and a number.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0);
    finish(&mut bench.put(0, 0, 4096).expect("submitted")).expect("the parent goes on");
}

#[test]
fn handles_may_go_to_any_thread() {
    fn check<T: Send + Sync>() {}
    use crate::driver::hlthunk::{
        Allocation, Card, CommandRing, HostMapping, Notifier, Submission,
    };
    check::<Arc<Card>>();
    check::<Allocation>();
    check::<HostMapping>();
    check::<CommandRing>();
    check::<Submission>();
    check::<Notifier>();
}
