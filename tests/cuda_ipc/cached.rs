//! What is kept open: found again, opened once, bounded, and never taken for what came after it.

use crate::{
    agent::{
        self, Agent, BLOCK, CudaIpc, Far, exported, imported, is, map, poll_once, runtime, unhex,
        who,
    },
    api::{self, ok},
    error::ErrorKind,
    ipc::CudaSharing,
    support::{LIMIT, Looks, block_until, child, this_test, watchdog},
    sys::identity::identity,
};

fn opens(far: &mut Far) -> u64 {
    far.number("control count cuIpcOpenMemHandle_v2")
}

fn closes(far: &mut Far) -> u64 {
    far.number("control count cuIpcCloseMemHandle")
}

#[test]
fn an_allocation_is_opened_once() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let me = who(identity());
    let at = near.allocate("device", 100_000, 0);
    let mut first = 0;
    for (index, offset) in [0, 500, 99_999].into_iter().enumerate() {
        let answer = near.export(at + offset, 1);
        let there = imported(&far.ask(format_args!("import {} {me}", exported(&answer))));
        if index == 0 {
            first = there;
        }
        assert_eq!(there, first + offset);
        far.ask("release");
    }
    assert_eq!((opens(&mut far), closes(&mut far)), (1, 0));
    let counts = far.ask("counts");
    assert!(counts.contains("openings: 1, hits: 2"), "{counts}");
    // Who exports asks for the handle once, too: seen in the other process, where nothing else does.
    let at = far.number("allocate device 100000 0");
    for (offset, len) in [(0, 1), (0, 5), (500, 99_500)] {
        exported(&far.ask(format_args!("export {} {len}", at + offset)));
        assert_eq!(far.number("control count cuIpcGetMemHandle"), 1);
    }
    far.finish();
}

/// The same address, another allocation.
#[test]
fn memory_that_was_freed_is_not_taken_for_what_came_after_it() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[("EMULATED_CUDA_REUSE", "1")]);
    let peer = far.who.clone();
    let mut stale: Vec<String> = Vec::new();
    let mut place = None;
    for seed in 0..5 {
        let at = far.number("allocate device 3000000 0");
        assert_eq!(
            *place.get_or_insert(at),
            at,
            "the test wants the same address"
        );
        far.ask(format_args!("control fill {at} 3000000 {seed}"));
        let answer = far.ask(format_args!("export {at} 3000000"));
        assert!(!stale.contains(&answer), "another number");
        let there = imported(&near.import(exported(&answer), &peer));
        assert_eq!(near.read(there, 3_000_000, seed), "same");
        near.release(None);
        let counts = near.ipc.counts();
        assert_eq!(
            (counts.openings, counts.evictions, counts.live),
            (seed + 1, seed, 1),
            "what lay there before is closed"
        );
        far.ask(format_args!("free device {at} 3000000"));
        stale.push(answer);
    }
    far.finish();
}

/// The same with physical memory, where an old descriptor is told by the exporter.
#[test]
fn a_descriptor_of_freed_memory_is_stale() {
    if let Some(parent) = child("exporter") {
        let near = Agent::new();
        let runtime = runtime();
        let mut parent = parent;
        let context = agent::context(0);
        let _guard = context.enter().expect("enters");
        let mut at = 0;
        ok(api::cuMemAddressReserve(&mut at, BLOCK, 0, 0, 0));
        loop {
            map(at, BLOCK, 1, 0);
            parent.say(near.export(at, 4096));
            if runtime.block_on(parent.hear()) == "quit" {
                return;
            }
            ok(api::cuMemUnmap(at, BLOCK));
        }
    }
    let mut near = Agent::new();
    let runtime = runtime();
    let mut other = crate::support::Child::start(this_test!(), "exporter", &[]);
    let mut peer = identity().clone();
    peer.pid = other.pid();
    let first = runtime.block_on(other.hear());
    other.say("next");
    let second = runtime.block_on(other.hear());
    // Never opened while it was there; and opened, but gone before it is asked for again.
    let answer = near.import(exported(&first), &peer);
    assert!(is(&answer, ErrorKind::StaleKey), "{answer}");
    imported(&near.import(exported(&second), &peer));
    near.release(None);
    other.say("next");
    let third = runtime.block_on(other.hear());
    imported(&near.import(exported(&third), &peer));
    let answer = near.import(exported(&second), &peer);
    assert!(is(&answer, ErrorKind::StaleKey), "{answer}");
    other.say("quit");
    other.finish();
}

#[test]
fn the_unused_make_room_and_the_used_do_not() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let me = who(identity());
    far.ask("limit 3");
    let exports: Vec<String> = (0..5)
        .map(|_| near.export(near.allocate("device", BLOCK, 0), 4096))
        .collect();
    let import = |far: &mut Far, index: usize| {
        far.ask(format_args!("import {} {me}", exported(&exports[index])))
    };
    for index in 0..3 {
        imported(&import(&mut far, index));
    }
    // All three are in use: the fourth is refused, and nothing is closed.
    let answer = import(&mut far, 3);
    assert!(is(&answer, ErrorKind::Exhausted), "{answer}");
    // What is open may be used again.
    imported(&import(&mut far, 1));
    assert_eq!((opens(&mut far), closes(&mut far)), (3, 0));
    // 0 is let go: it makes room, and is opened anew later.
    far.ask("release 0");
    imported(&import(&mut far, 3));
    assert_eq!((opens(&mut far), closes(&mut far)), (4, 1));
    far.ask("release");
    // Of 1, 2 and 3, none in use, the one that was used longest ago goes: 2.
    imported(&import(&mut far, 4));
    assert_eq!((opens(&mut far), closes(&mut far)), (5, 2));
    for index in [1, 3, 4] {
        imported(&import(&mut far, index));
    }
    assert_eq!(opens(&mut far), 5);
    assert!(far.ask("live").contains("opened 3"));
    let counts = far.ask("counts");
    assert!(counts.contains("evictions: 2, live: 3"), "{counts}");
    far.finish();
}

/// Superseded while it is in use: it stays for its user, who closes it.
#[test]
fn who_uses_a_superseded_one_closes_it() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let peer = far.who.clone();
    // Physical memory, which may be open twice at once.
    let at = far.number(format_args!("allocate virtual {BLOCK} 0"));
    let answer = far.ask(format_args!("export {at} {BLOCK}"));
    let old = imported(&near.import(exported(&answer), &peer));
    near.write(old, 4096, 7);
    far.ask(format_args!("free virtual {at} {BLOCK}"));
    let again = far.number(format_args!("allocate virtual {BLOCK} 0"));
    let answer = far.ask(format_args!("export {again} {BLOCK}"));
    let new = imported(&near.import(exported(&answer), &peer));
    assert_ne!(old, new);
    assert_eq!(near.read(old, 4096, 7), "same");
    near.release(None);
    near.close();
    far.finish();
}

/// In a process of its own, which counts and holds the driver's calls.
#[test]
fn many_who_ask_at_once_open_it_once() {
    if let Some(mut parent) = child("importer") {
        let runtime = runtime();
        let (descriptor, peer) = runtime.block_on(async {
            (
                unhex(exported(&parent.hear().await)),
                agent::peer_of(&parent.hear().await),
            )
        });
        api::control("set open_held 1");
        let ipc = CudaIpc::new(CudaSharing(agent::cuda())).expect("random bytes");
        // The context first: it may take its time.
        let _context = agent::context(0);
        runtime.block_on(watchdog(LIMIT, async {
            // The first who asks is dropped as soon as the opening is under way; so is one who waits.
            for _ in 0..2 {
                let mut dropped = ipc.import(&descriptor, &peer);
                assert!(!poll_once(&mut dropped), "it is held");
            }
            let (mut turns, mut looks) = (0_u64, Looks::new("the opening"));
            let all = futures::future::join_all((0..8).map(|_| ipc.import(&descriptor, &peer)));
            tokio::pin!(all);
            let all = loop {
                tokio::select! {
                    all = &mut all => break all,
                    () = looks.again() => turns += 1,
                }
                if turns >= 10 && api::control("openings") == "1" {
                    api::control("set open_held 0");
                }
            };
            // The runtime went on while the driver was held.
            assert!(turns >= 10, "{turns}");
            let mut all = all.into_iter().map(|one| one.expect("opens"));
            let first = all.next().expect("eight").address();
            assert!(all.all(|one| one.address() == first));
            assert!(ipc.imported(&descriptor, &peer).is_some());
        }));
        assert_eq!(api::control("count cuIpcOpenMemHandle_v2"), "1");
        assert_eq!(ipc.counts().live, 1);
        // Dropped within a runtime, it closes elsewhere; and it does close.
        let inside = runtime.enter();
        drop(ipc);
        drop(inside);
        block_until("the closing", || {
            api::control("count cuIpcCloseMemHandle") == "1"
        });
        parent.say("done");
        return;
    }
    let near = Agent::new();
    let at = near.allocate("device", 4096, 0);
    let mut importer = crate::support::Child::start(this_test!(), "importer", &[]);
    importer.say(near.export(at, 4096));
    importer.say(who(identity()));
    assert_eq!(runtime().block_on(importer.hear()), "done");
    importer.finish();
}

/// The runtime that opens it ends meanwhile: those who wait are told, and nothing is kept.
#[test]
fn a_runtime_that_ends_fails_the_opening() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let at = far.number("allocate device 4096 0");
    let answer = far.ask(format_args!("export {at} 4096"));
    let descriptor = unhex(exported(&answer));
    let gone = runtime();
    let handle = gone.handle().clone();
    gone.shutdown_background();
    let mut import = near.ipc.import(&descriptor, &far.who);
    {
        // The opening goes to the runtime that has ended.
        let _inside = handle.enter();
        assert!(poll_once(&mut import), "told at once");
    }
    assert_eq!(near.ipc.counts().live, 0);
    let other = near.ipc.import(&descriptor, &far.who);
    runtime()
        .block_on(watchdog(LIMIT, other))
        .expect("another runtime opens it");
    far.finish();
}
