//! Every kind of memory, in both directions; what cannot cross, and why.

use crate::{
    agent::{self, Agent, BLOCK, Far, address_of, exported, imported, is, who},
    api::control,
    error::ErrorKind,
    support::{child, this_test},
    sys::identity::identity,
};

const KINDS: [&str; 5] = ["device", "virtual", "fabric", "pool", "poolfabric"];
const FABRIC: (&str, &str) = ("EMULATED_CUDA_FABRIC", "1");

#[test]
fn every_kind_crosses_both_ways() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    control("set fabric 1");
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[FABRIC]);
    let me = who(identity());
    for (index, kind) in KINDS.into_iter().enumerate() {
        for device in [0, 1] {
            let len = 3 * BLOCK - 1000;
            let (offset, part) = (5000, 3_000_000);
            let seed = 10 * index as u64;
            // From there.
            let at = far.number(format_args!("allocate {kind} {len} {device}"));
            far.ask(format_args!("control fill {at} {len} {seed}"));
            let answer = far.ask(format_args!("export {} {part}", at + offset));
            let there = imported(&near.import(exported(&answer), &far.who.clone()));
            assert_ne!(there, 0);
            assert_eq!(
                near.read(there, part, seed + offset),
                "same",
                "{kind} on {device}"
            );
            near.write(there, part, seed + 1);
            let line = format!("control compare {} {part} {}", at + offset, seed + 1);
            assert_eq!(far.ask(line), "same", "{kind} on {device}");
            // The rest is as it was.
            assert_eq!(
                far.ask(format_args!("control compare {at} {offset} {seed}")),
                "same"
            );
            near.release(None);
            near.close();
            far.ask(format_args!("free {kind} {at} {len}"));

            // From here.
            let at = near.allocate(kind, len, device);
            control(&format!("fill {at} {len} {seed}"));
            let answer = near.export(at + 7, 100_000);
            let answer = far.ask(format_args!("import {} {me}", exported(&answer)));
            assert!(answer.ends_with(&format!(" {device}")), "{answer}");
            let there = imported(&answer);
            let line = format!("read {there} 100000 {}", seed + 7);
            assert_eq!(far.ask(line), "same", "{kind} on {device}");
            far.ask(format_args!("write {there} 100000 99"));
            assert_eq!(
                control(&format!("compare {} 100000 99", at + 7)),
                "same",
                "{kind} on {device}"
            );
            far.ask("release");
            far.ask("close");
            near.free(kind, at, len);
        }
    }
    // Not of this process, where other tests are at work.
    assert_eq!(far.ask("control misused"), "0");
    far.finish();
}

#[test]
fn nothing_stays_when_it_is_closed() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let me = who(identity());
    for kind in ["device", "virtual", "pool"] {
        let at = near.allocate(kind, BLOCK, 0);
        let answer = near.export(at, 4096);
        // Once, so that what is made for ever is made.
        far.ask(format_args!("import {} {me}", exported(&answer)));
        far.ask("release");
        far.ask("close");
        let (live, fds) = (far.ask("live"), far.ask("fds"));
        for _ in 0..5 {
            let answer = far.ask(format_args!("import {} {me}", exported(&answer)));
            imported(&answer);
            far.ask("release");
            far.ask("close");
        }
        assert_eq!((far.ask("live"), far.ask("fds")), (live, fds), "{kind}");
        near.free(kind, at, BLOCK);
    }
    far.finish();
}

/// An exporter keeps nothing of what it exported: freed memory is free.
#[test]
fn an_export_keeps_no_memory() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let live = far.ask("live");
    for kind in ["device", "virtual"] {
        let at = far.number(format_args!("allocate {kind} {BLOCK} 0"));
        let answer = far.ask(format_args!("export {at} {BLOCK}"));
        imported(&near.import(exported(&answer), &far.who.clone()));
        near.release(None);
        near.close();
        far.ask(format_args!("free {kind} {at} {BLOCK}"));
        assert_eq!(far.ask("live"), live, "{kind}");
    }
    far.finish();
}

#[test]
fn what_cannot_cross_says_why() {
    let agent = Agent::new();
    for (kind, why) in [
        ("managed", "managed"),
        ("default", "pool"),
        ("sealed", "without leave"),
        ("pinned", "host"),
    ] {
        let at = agent.allocate(kind, BLOCK, 0);
        let answer = agent.export(at, 100);
        assert!(
            answer.starts_with("impossible ") && answer.contains(why),
            "{kind}: {answer}"
        );
        agent.free(kind, at, BLOCK);
    }
    // Over the seam of two pieces; each alone is fine.
    let at = agent.allocate("two", 2 * BLOCK, 0);
    let seam = at + BLOCK as u64;
    let answer = agent.export(seam - 1, 2);
    assert!(
        answer.starts_with("impossible ") && answer.contains("several pieces"),
        "{answer}"
    );
    exported(&agent.export(seam - 1, 1));
    exported(&agent.export(seam, 1));
    exported(&agent.export(at, BLOCK as u64));
}

#[test]
fn what_is_no_device_memory_is_an_error() {
    let agent = Agent::new();
    let host = [0_u8; 64];
    let at = agent.allocate("device", 10_000, 0);
    for (address, length) in [
        (address_of(&host), 64),
        (0, 1),
        (16, 1),
        (at, 0),
        (at, u64::MAX),
        (u64::MAX, 1),
        (at, 10_001),
        (at + 9_999, 2),
    ] {
        let answer = agent.export(address, length);
        assert!(
            is(&answer, ErrorKind::InvalidArgument),
            "{address:#x} {length}: {answer}"
        );
    }
    exported(&agent.export(at + 9_999, 1));
    agent.free("device", at, 10_000);
    // It was exported before, and is known no longer.
    let answer = agent.export(at, 1);
    assert!(is(&answer, ErrorKind::InvalidArgument), "{answer}");
}

/// A process that imports its own memory gets its own address, as long as it is there.
#[test]
fn a_process_has_its_own_memory_already() {
    let mut agent = Agent::new();
    for kind in ["device", "virtual", "pool"] {
        let at = agent.allocate(kind, BLOCK, 1);
        let answer = agent.export(at + 10, 100);
        let descriptor = exported(&answer);
        let answer = agent.import(descriptor, identity());
        assert_eq!(answer, format!("ok {} 1", at + 10), "{kind}");
        agent.release(None);
        agent.free(kind, at, BLOCK);
        let answer = agent.import(descriptor, identity());
        assert!(is(&answer, ErrorKind::StaleKey), "{kind}: {answer}");
    }
    assert_eq!(agent.ipc.counts().openings, 0);
}

#[test]
fn devices_are_found_by_who_they_are() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let near = Agent::new();
    let me = who(identity());
    let first = near.allocate("device", 4096, 0);
    let second = near.allocate("virtual", BLOCK, 1);
    control(&format!("fill {first} 4096 1"));
    control(&format!("fill {second} 4096 2"));
    let (first, second) = (near.export(first, 4096), near.export(second, 4096));
    let mut far = Far::start(this_test!(), &[("CUDA_VISIBLE_DEVICES", "1,0")]);
    for (export, device, seed) in [(&first, 1, 1), (&second, 0, 2)] {
        let answer = far.ask(format_args!("import {} {me}", exported(export)));
        assert!(answer.ends_with(&format!(" {device}")), "{answer}");
        let at = imported(&answer);
        assert_eq!(
            far.ask(format_args!("control compare {at} 4096 {seed}")),
            "same"
        );
    }
    far.finish();
    let mut far = Far::start(this_test!(), &[("CUDA_VISIBLE_DEVICES", "1")]);
    let answer = far.ask(format_args!("import {} {me}", exported(&first)));
    assert!(
        is(&answer, ErrorKind::Unsupported) && answer.contains("not visible"),
        "{answer}"
    );
    imported(&far.ask(format_args!("import {} {me}", exported(&second))));
    far.finish();
}
