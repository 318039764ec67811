//! The scenarios. Each takes a [`Subject`] and panics where it does not do what it must.

use std::{
    collections::HashMap,
    os::fd::AsFd,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{
    Subject,
    bed::{Bed, How, Message, Policy, WATCHDOG},
};
use crate::{
    error::ErrorKind,
    sys::memfd::Memfd,
    transport::{SHARED_WORDS, SendError, SharedMemory},
    types::LinkId,
};

/// Ways to send a message of `length` bytes over `link`.
fn ways(bed: &mut Bed, link: usize, prefix: usize, length: usize) -> Vec<How> {
    let attributes = bed.out(link).attributes();
    let mut ways = Vec::new();
    if length <= attributes.max_short {
        ways.push(How::Short);
    }
    if length <= attributes.max_bcopy {
        ways.push(How::Bcopy);
    }
    if bed.places() && length - prefix <= attributes.max_zcopy {
        ways.push(How::Zcopy);
    }
    ways
}

/// Messages of every size arrive as they were sent, by every way that takes them, with prefixes of any length; of those that were lent it is told once that
/// they are free. What the link says of itself holds, and is enough for the worker.
///
/// # Panics
/// Where that is not so.
pub fn sizes(subject: &Subject) {
    let mut bed = Bed::new(subject, 1);
    let attributes = bed.out(0).attributes();
    assert!(attributes.max_short >= 48, "{attributes:?}");
    assert!(attributes.max_bcopy >= 8192, "{attributes:?}");
    let mut lengths = vec![
        0,
        1,
        47,
        48,
        49,
        63,
        64,
        65,
        4095,
        4096,
        4097,
        8191,
        8192,
        8193,
        65_535,
        65_536,
        1 << 20,
    ];
    lengths.extend([
        attributes.max_short,
        attributes.max_bcopy,
        attributes.max_bcopy + 1,
    ]);
    for policy in [Policy::Whole, Policy::Memory] {
        bed.receiver().sink.policy = policy;
        for &length in &lengths {
            for prefix in [0, 1, 16, 64] {
                let prefix = prefix.min(length);
                for how in ways(&mut bed, 0, prefix, length) {
                    let message = bed.message(0, length + prefix, length);
                    let token = bed.send(0, how, &message, prefix);
                    bed.received(1);
                    assert!(
                        bed.receiver().sink.messages.pop().expect("it works") == message,
                        "{how:?} of {length} differs"
                    );
                    if let Some(token) = token {
                        bed.until("sent", |bed| {
                            bed.sender()
                                .sink
                                .sent
                                .iter()
                                .any(|(_, sent)| *sent == token)
                        });
                    }
                }
            }
        }
    }
    assert_eq!(bed.receiver().sink.placed > 0, bed.places());
    bed.until("flushed", |bed| bed.out(0).is_flushed());
}

/// Messages arrive in the order in which they were accepted, whatever their lengths and ways.
///
/// # Panics
/// Where that is not so.
pub fn order(subject: &Subject) {
    let mut bed = Bed::new(subject, 1);
    let mut expected = Vec::new();
    let mut pending = 0;
    bed.receiver().sink.policy = Policy::Memory;
    for seed in 0..3000_usize {
        let length = match seed % 50 {
            49 if bed.places() => 300_000,
            rest => bed.fitting(rest * rest * 5 % 9000),
        };
        let prefix = (seed % 65).min(length);
        let ways = ways(&mut bed, 0, prefix, length);
        let how = ways[seed % ways.len()];
        let message = bed.message(0, seed, length);
        pending += usize::from(bed.send(0, how, &message, prefix).is_some());
        expected.push(message);
        if seed % 7 == 0 {
            bed.flush(0);
        }
    }
    bed.received(expected.len());
    assert!(
        bed.receiver().sink.messages == expected,
        "order or content differs"
    );
    bed.until("sent", |bed| bed.sender().sink.sent.len() >= pending);
    assert_eq!(bed.sender().sink.sent.len(), pending);
    assert!(bed.receiver().sink.places.is_empty());
}

/// A link that is full takes nothing, and says when there is room.
///
/// # Panics
/// Where that is not so.
pub fn full_then_writable(subject: &Subject) {
    let mut bed = Bed::new(subject, 1);
    let mut expected = Vec::new();
    for length in [8, 700, 4000] {
        let how = bed.copying(length);
        bed.sender().sink.writable.clear();
        loop {
            assert!(expected.len() < 3_000_000, "never full");
            let message = bed.message(0, expected.len(), length);
            match bed.try_send(0, how, &message, 0) {
                Ok(_) => expected.push(message),
                Err(SendError::Full) => break,
                Err(SendError::Failed(error)) => panic!("{error:?}"),
            }
        }
        let out = bed.ends[0].0;
        bed.until("writable", |bed| bed.sender().sink.writable.contains(&out));
        // There is room now: that is what `writable` promised, once it was followed by a flush.
        let message = bed.message(0, expected.len(), length);
        bed.send(0, how, &message, 0);
        expected.push(message);
        bed.received(expected.len());
    }
    assert!(
        bed.receiver().sink.messages == expected,
        "order or content differs"
    );
    bed.until("flushed", |bed| bed.out(0).is_flushed());
}

/// A short message behind a long one that was not copied does not overtake it, wherever the sink has it put.
///
/// # Panics
/// Where that is not so.
pub fn long_zcopy_then_short(subject: &Subject) {
    let mut bed = Bed::new(subject, 1);
    let long = bed.out(0).attributes().max_zcopy.min(32 << 20);
    if long == 0 {
        return;
    }
    for policy in [Policy::Whole, Policy::Memory, Policy::Discard] {
        bed.receiver().sink.policy = policy;
        let first = bed.message(0, 1, long);
        let second = bed.message(0, 2, 20);
        let token = bed.send(0, How::Zcopy, &first, 0);
        bed.send(0, How::Short, &second, 0);
        let expected = if policy == Policy::Discard {
            vec![second]
        } else {
            vec![first, second]
        };
        bed.received(expected.len());
        assert!(
            std::mem::take(&mut bed.receiver().sink.messages) == expected,
            "order or content differs"
        );
        if let Some(token) = token {
            bed.until("sent", |bed| {
                bed.sender()
                    .sink
                    .sent
                    .iter()
                    .any(|(_, sent)| *sent == token)
            });
        }
    }
    assert_eq!(bed.receiver().sink.placed, 1);
    assert_eq!(bed.receiver().sink.discarded, 1);
}

/// A payload that the sink does not want is read and gone, and what follows it arrives.
///
/// # Panics
/// Where that is not so.
pub fn discard(subject: &Subject) {
    let mut bed = Bed::new(subject, 1);
    if !bed.places() {
        return; // Nothing is asked for.
    }
    bed.receiver().sink.policy = Policy::Discard;
    for seed in 0..100 {
        let long = bed.message(0, seed, 60_000);
        bed.send(0, How::Bcopy, &long, 10);
        let short = bed.message(0, seed, 10);
        bed.send(0, How::Short, &short, 0);
        bed.received(1);
        assert_eq!(bed.receiver().sink.messages.pop(), Some(short));
    }
    assert_eq!(bed.receiver().sink.discarded, 100);
}

/// Sixty-four links of one worker do not mix.
///
/// # Panics
/// Where that is not so.
pub fn many_links(subject: &Subject) {
    let mut bed = Bed::new(subject, 64);
    let mut expected: HashMap<LinkId, Vec<Message>> = HashMap::new();
    let mut count = 0;
    for seed in 0..4000 {
        let link = (seed * 7 + seed / 64) % 64;
        let length = bed.fitting([8, 100, 5000, 60_000][seed % 4]);
        let message = bed.message(link, seed, length);
        bed.send(link, How::Bcopy, &message, 4);
        expected.entry(message.from).or_default().push(message);
        count += 1;
    }
    bed.received(count);
    let mut got: HashMap<LinkId, Vec<Message>> = HashMap::new();
    for message in std::mem::take(&mut bed.receiver().sink.messages) {
        got.entry(message.from).or_default().push(message);
    }
    assert!(got == expected, "order or content differs");
}

/// Nothing is reported of a link that was detached; others go on.
///
/// # Panics
/// Where that is not so.
pub fn detach(subject: &Subject) {
    let mut bed = Bed::new(subject, 2);
    let how = bed.copying(100);
    for link in 0..2 {
        let message = bed.message(link, 1, 100);
        bed.send(link, how, &message, 0);
    }
    bed.received(2);
    let gone = bed.ends[0].1;
    let late = bed.message(0, 2, 100);
    bed.send(0, how, &late, 0);
    bed.receiver().close(gone);
    for seed in 0..100 {
        let message = bed.message(1, seed, 5000);
        bed.send(1, How::Bcopy, &message, 0);
    }
    bed.received(102);
    let receiver = bed.receiver();
    assert_eq!(
        receiver
            .sink
            .messages
            .iter()
            .filter(|message| message.from == gone)
            .count(),
        1
    );
    assert!(receiver.sink.failed.iter().all(|(link, _)| *link != gone));
}

/// A link whose message the sink refuses is closed without a word; others go on.
///
/// # Panics
/// Where that is not so.
pub fn refuse(subject: &Subject) {
    let mut bed = Bed::new(subject, 2);
    let bad = bed.ends[0].1;
    bed.receiver().sink.refuse.push(bad);
    for seed in 0..50 {
        for link in 0..2 {
            let message = bed.message(link, seed, 10);
            // The first link breaks some time.
            let _ = bed.try_send(link, How::Short, &message, 0);
        }
    }
    bed.received(50);
    for _ in 0..100 {
        bed.nodes.iter_mut().for_each(|node| {
            node.pass();
        });
    }
    let receiver = bed.receiver();
    assert!(
        receiver
            .sink
            .messages
            .iter()
            .all(|message| message.from != bad)
    );
    assert!(receiver.sink.failed.is_empty(), "the worker knows already");
}

/// The end of a peer is told once, behind all that it had sent; others go on.
///
/// # Panics
/// Where that is not so.
pub fn peer_drop(subject: &Subject) {
    if !subject.has_peer() {
        return; // A worker is no peer of its own.
    }
    let mut bed = Bed::new(subject, 2);
    let how = bed.copying(1000);
    for seed in 0..100 {
        let message = bed.message(0, seed, 1000);
        bed.send(0, how, &message, 0);
    }
    bed.until("flushed", |bed| {
        bed.flush(0);
        bed.out(0).is_flushed()
    });
    let (out, into) = bed.ends[0];
    bed.sender().close(out);
    bed.until("failed", |bed| !bed.receiver().sink.failed.is_empty());
    let receiver = bed.receiver();
    assert_eq!(
        receiver.sink.messages.len(),
        100,
        "what had been sent is delivered first"
    );
    let [(failed, kind)] = receiver.sink.failed[..] else {
        panic!("failed {:?}", receiver.sink.failed)
    };
    assert_eq!(failed, into);
    assert!(
        matches!(kind, ErrorKind::ConnectionReset | ErrorKind::PeerDied),
        "{kind:?}"
    );
    receiver.close(into);
    let message = bed.message(1, 7, 30);
    bed.send(1, How::Short, &message, 0);
    bed.received(101);
}

/// A peer that goes in the middle of a payload: it is not said to be complete.
///
/// # Panics
/// Where that is not so.
pub fn peer_drop_within_a_payload(subject: &Subject) {
    if !subject.has_peer() {
        return;
    }
    let mut bed = Bed::new(subject, 1);
    bed.receiver().sink.policy = Policy::Memory;
    let long = bed.out(0).attributes().max_zcopy.min(32 << 20);
    if long == 0 {
        return;
    }
    let message = bed.message(0, 1, long);
    let token = bed.send(0, How::Zcopy, &message, 0);
    let (out, _) = bed.ends[0];
    bed.sender().close(out);
    bed.until("failed", |bed| !bed.receiver().sink.failed.is_empty());
    assert!(bed.sender().sink.sent.is_empty());
    let receiver = bed.receiver();
    assert!(token.is_none() || receiver.sink.placed == 0);
    assert_eq!(receiver.sink.failed.len(), 1);
}

/// Who sends to a peer that is gone is told.
///
/// # Panics
/// Where that is not so.
pub fn send_to_a_dead_peer(subject: &Subject) {
    if !subject.has_peer() {
        return;
    }
    let mut bed = Bed::new(subject, 1);
    let (out, into) = bed.ends[0];
    bed.receiver().close(into);
    let how = if bed.places() { How::Zcopy } else { How::Bcopy };
    let start = Instant::now();
    while bed.sender().sink.failed.is_empty() {
        assert!(
            start.elapsed() < WATCHDOG,
            "the death of the peer goes unnoticed"
        );
        let message = bed.message(0, 1, 1000);
        match bed.try_send(0, how, &message, 0) {
            Ok(_) | Err(SendError::Full) => {}
            Err(SendError::Failed(_)) => break,
        }
        bed.sender().pass();
    }
    bed.sender().close(out);
}

/// A pass does about as much as it may, and an interface that has something left does not let itself be armed.
///
/// # Panics
/// Where that is not so.
pub fn small_budget(subject: &Subject) {
    let mut bed = Bed::new(subject, 1);
    let expected: Vec<_> = (0..200).map(|seed| bed.message(0, seed, 8)).collect();
    for message in &expected {
        bed.send(0, How::Short, message, 0);
    }
    let start = Instant::now();
    while bed.receiver().sink.messages.len() < expected.len() {
        assert!(start.elapsed() < WATCHDOG, "messages are missing");
        bed.sender().events(Duration::ZERO);
        let receiver = bed.receiver();
        receiver.events(Duration::ZERO);
        let before = receiver.sink.messages.len();
        receiver.progress(3);
        let got = receiver.sink.messages.len() - before;
        assert!(got <= 16, "{got} messages for a budget of 3");
        if (1..expected.len()).contains(&receiver.sink.messages.len()) && got > 0 {
            // All were sent before: some are left.
            assert!(!receiver.interface.arm());
            receiver.interface.disarm();
        }
    }
    assert!(
        bed.receiver().sink.messages == expected,
        "order or content differs"
    );
}

/// Whoever was armed is woken by a message, each time.
///
/// # Panics
/// Where that is not so.
pub fn wake(subject: &Subject) {
    let mut bed = Bed::new(subject, 3);
    for seed in 0..2000 {
        let start = Instant::now();
        let receiver = bed.receiver();
        while !receiver.interface.arm() {
            receiver.pass();
            assert!(start.elapsed() < WATCHDOG, "never ready to park");
        }
        let length = bed.fitting([8, 300, 20_000][seed / 3 % 3]);
        let message = bed.message(seed % 3, seed, length);
        bed.send(seed % 3, How::Bcopy, &message, 0);
        // Looks only when it is woken.
        loop {
            let receiver = bed.receiver();
            assert!(receiver.events(WATCHDOG) > 0, "message {seed} woke nobody");
            receiver.interface.disarm();
            while receiver.progress(64) > 0 {}
            if !receiver.sink.messages.is_empty() {
                break;
            }
            while !receiver.interface.arm() {
                receiver.progress(64);
            }
        }
        assert_eq!(bed.receiver().sink.messages.pop(), Some(message));
    }
}

/// What a link offers for one copy is one memory at both ends, and no other link's; who has gone is said to be gone. Nothing to do where it offers none.
///
/// # Panics
/// Where that is not so.
pub fn shared_memory(subject: &Subject) {
    let mut bed = Bed::new(subject, 2);
    if !subject.has_peer() {
        assert!(
            bed.out(0).shared_memory().is_none(),
            "a worker has its own memory"
        );
        return;
    }
    let mut offers = |link: usize| {
        let (out, into) = bed.ends[link];
        let near = bed.sender().links[&out].shared_memory();
        (near, bed.receiver().links[&into].shared_memory())
    };
    let (near, far) = match offers(0) {
        (None, None) => return,
        (Some(near), Some(far)) => (near, far),
        (near, far) => panic!("one end alone has something in common: {near:?}, {far:?}"),
    };
    let (Some(other), Some(_)) = offers(1) else {
        panic!("another link has nothing in common")
    };
    assert_ne!(near.role(), far.role());
    assert_eq!(near.has_barriers(), far.has_barriers());
    let value = |memory: &dyn SharedMemory, at: usize| memory.words()[at].load(Ordering::Acquire);
    let is_all = |memory: &dyn SharedMemory, what: &dyn Fn(usize) -> u64| {
        (0..SHARED_WORDS).all(|at| value(memory, at) == what(at))
    };
    assert!(is_all(&*near, &|_| 0) && is_all(&*far, &|_| 0), "not zero");
    for at in 0..SHARED_WORDS {
        let writer = [&near, &far][at % 2];
        writer.words()[at].store(at as u64 + 1, Ordering::Release);
    }
    let written = |at| at as u64 + 1;
    assert!(
        is_all(&*near, &written) && is_all(&*far, &written),
        "not one memory"
    );
    assert!(is_all(&*other, &|_| 0), "another link's as well");
    for seed in 0..100 {
        let message = bed.message(0, seed, 5000);
        bed.send(0, How::Bcopy, &message, 0);
    }
    bed.received(100);
    assert!(is_all(&*far, &written), "messages go through it");
    assert!(!near.is_peer_gone() && !far.is_peer_gone());
    let (out, into) = bed.ends[0];
    bed.sender().close(out);
    bed.until("failed", |bed| !bed.receiver().sink.failed.is_empty());
    bed.until("gone", |_| far.is_peer_gone());
    bed.receiver().close(into);
    // It outlives the link at both ends, for as long as somebody may be inside.
    assert!(far.is_peer_gone() && is_all(&*far, &written) && is_all(&*near, &written));
    assert!(!other.is_peer_gone());
}

/// A segment of memory that is passed over the link is the same one at the other end, and nothing else waits for it. Nothing to do where the link passes none.
///
/// # Panics
/// Where that is not so.
pub fn share(subject: &Subject) {
    let mut bed = Bed::new(subject, 1);
    let start = Instant::now();
    let mut given = Vec::new();
    for number in 0..50_u64 {
        let length = 4096 * (number + 1);
        let memory = Memfd::create(c"conformance", length as usize).expect("anonymous memory");
        while let Err(error) = bed.out(0).share(number, memory.as_fd(), length) {
            match error {
                SendError::Failed(error) if error.kind() == ErrorKind::Unsupported => return,
                SendError::Failed(error) => panic!("{error:?}"),
                SendError::Full => {}
            }
            assert!(start.elapsed() < WATCHDOG, "no room for too long");
            bed.nodes.iter_mut().for_each(|node| {
                node.pass();
            });
        }
        given.push((number, memory, length));
        let message = bed.message(0, number as usize, 30);
        bed.send(0, How::Short, &message, 0);
    }
    bed.until("segments", |bed| {
        bed.receiver().sink.shared.len() == given.len()
    });
    bed.received(given.len());
    let into = bed.ends[0].1;
    let file = |fd: &dyn AsFd| {
        let stat = nix::sys::stat::fstat(fd.as_fd()).expect("a file");
        (stat.st_dev, stat.st_ino)
    };
    let got = std::mem::take(&mut bed.receiver().sink.shared);
    for ((number, memory, length), (from, id, fd, said)) in given.iter().zip(&got) {
        assert_eq!((*from, *id, *said), (into, *number, *length));
        assert_eq!(file(fd), file(memory), "another segment");
    }
}
