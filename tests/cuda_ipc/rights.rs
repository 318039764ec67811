//! Other users, other namespaces, other hosts, and peers that speak for others.
// `unshare`, which has no safe face here.
#![allow(unsafe_code)]

use nix::unistd::{Gid, Uid, geteuid, setgid, setuid};

use crate::{
    agent::{self, Agent, BLOCK, Far, exported, hex, imported, is, peer_of, unhex, who},
    error::ErrorKind,
    hostile::seal,
    support::{Child, child, this_test},
    sys::identity::identity,
};

const NOBODY: u32 = 65_534;

#[test]
#[ignore = "needs root: starts a process of another user"]
fn another_users_memory_is_refused_by_both() {
    if let Some(parent) = child("nobody") {
        setgid(Gid::from_raw(NOBODY)).expect("root may");
        setuid(Uid::from_raw(NOBODY)).expect("root may");
        return agent::serve(parent);
    }
    assert!(
        geteuid().is_root(),
        "only root can start a process of another user"
    );
    let mut far = Far::from_child(Child::start(this_test!(), "nobody", &[]));
    let near = Agent::new();
    for kind in ["device", "virtual", "pool"] {
        let at = near.allocate(kind, BLOCK, 0);
        let answer = near.export(at, 4096);
        let mut descriptor = unhex(exported(&answer));
        let line = format!("import {} {}", hex(&descriptor), who(identity()));
        let answer = far.ask(line);
        assert!(is(&answer, ErrorKind::PermissionDenied), "{kind}: {answer}");
        // It says that it is of the same user; the kernel knows better.
        descriptor[48..52].copy_from_slice(&NOBODY.to_le_bytes());
        seal(&mut descriptor);
        let mut liar = identity().clone();
        liar.user = NOBODY;
        let answer = far.ask(format_args!("import {} {}", hex(&descriptor), who(&liar)));
        if kind != "device" {
            // The driver alone judges its own handles; this one does not care.
            assert!(is(&answer, ErrorKind::PermissionDenied), "{kind}: {answer}");
        }
    }
    far.finish();
}

/// Not by `child`, which would read the line that is for the process within.
fn child_is_outer() -> bool {
    std::env::var("WHARFTEST_PART").as_deref() == Ok("outer")
}

fn in_namespaces(test: &str, flags: libc::c_int, check: impl FnOnce(&mut Agent, &mut Far)) {
    if child_is_outer() {
        // SAFETY: the call takes flags and touches no memory.
        let made = unsafe { libc::unshare(flags) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        let status = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                test,
                "--nocapture",
                "--ignored",
                "--test-threads=1",
            ])
            .env("WHARFTEST_PART", "inner")
            .status()
            .expect("a process in a namespace of its own");
        assert!(status.success(), "{status}");
        return;
    }
    assert!(geteuid().is_root(), "only root can make a namespace");
    let mut far = Far::from_child(Child::start(test, "outer", &[]));
    check(&mut Agent::new(), &mut far);
    far.finish();
}

/// The driver's handles are refused with the reason; descriptors by the socket work.
#[test]
#[ignore = "needs root: makes a namespace"]
fn another_process_namespace() {
    if let Some(parent) = child("inner") {
        return agent::serve(parent);
    }
    in_namespaces(this_test!(), libc::CLONE_NEWPID, |near, far| {
        assert_ne!(far.who.pid_namespace, identity().pid_namespace);
        let peer = far.who.clone();
        for kind in ["device", "virtual", "pool"] {
            let at = far.number(format_args!("allocate {kind} {BLOCK} 0"));
            far.ask(format_args!("control fill {at} 4096 5"));
            let answer = far.ask(format_args!("export {at} 4096"));
            let answer = near.import(exported(&answer), &peer);
            if kind == "device" {
                assert!(
                    is(&answer, ErrorKind::Unsupported) && answer.contains("namespace"),
                    "{answer}"
                );
            } else {
                // (The emulated pool's pointer names a process, but nothing is asked of it.)
                assert_eq!(near.read(imported(&answer), 4096, 5), "same", "{kind}");
            }
            // And the other way.
            let at = near.allocate(kind, BLOCK, 0);
            let answer = near.export(at, 4096);
            let line = format!("import {} {}", exported(&answer), who(identity()));
            let answer = far.ask(line);
            match kind {
                "device" => assert!(is(&answer, ErrorKind::Unsupported), "{answer}"),
                _ => assert_ne!(imported(&answer), 0),
            }
        }
    });
}

/// Abstract sockets do not leave it: only what needs none is opened.
#[test]
#[ignore = "needs root: makes a namespace"]
fn another_network_namespace() {
    if let Some(parent) = child("inner") {
        return agent::serve(parent);
    }
    in_namespaces(this_test!(), libc::CLONE_NEWNET, |near, far| {
        let peer = far.who.clone();
        for kind in ["device", "virtual", "pool"] {
            let at = far.number(format_args!("allocate {kind} {BLOCK} 0"));
            let answer = far.ask(format_args!("export {at} 4096"));
            let answer = near.import(exported(&answer), &peer);
            match kind {
                "device" => assert_ne!(imported(&answer), 0),
                _ => assert!(
                    is(&answer, ErrorKind::Unreachable) && answer.contains("network namespace"),
                    "{answer}"
                ),
            }
        }
    });
}

#[test]
fn a_peer_speaks_for_itself_alone() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let at = far.number("allocate device 4096 0");
    let answer = far.ask(format_args!("export {at} 4096"));
    let descriptor = exported(&answer).to_owned();
    // Passed on by another process, as if it were its own.
    let answer = near.import(&descriptor, identity());
    assert!(is(&answer, ErrorKind::Protocol), "{answer}");
    // From another host, or another life of this one.
    let mut bytes = unhex(&descriptor);
    bytes[8] ^= 1;
    seal(&mut bytes);
    let mut peer = peer_of(&who(&far.who));
    peer.boot[0] ^= 1;
    let answer = near.import(&hex(&bytes), &peer);
    assert!(is(&answer, ErrorKind::Unreachable), "{answer}");
    imported(&near.import(&descriptor, &far.who));
    far.finish();
}
