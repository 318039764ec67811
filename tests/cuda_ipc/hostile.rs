//! Descriptors that nobody exported: each is an error, or memory of the peer's own, as long as it says.

use std::cell::RefCell;

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use crate::{
    agent::{self, Agent, BLOCK, Far, exported, hex, imported, is, unhex, who},
    error::ErrorKind,
    support::{Child, child, this_test},
    sys::identity::identity,
};

/// Makes the sum right.
pub(crate) fn seal(bytes: &mut [u8]) {
    let at = bytes.len().saturating_sub(4);
    let sum = crc32fast::hash(&bytes[..at]);
    bytes[at..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn bytes_that_are_no_descriptor() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let peer = far.who.clone();
    for kind in ["device", "virtual", "pool"] {
        let at = far.number(format_args!("allocate {kind} {BLOCK} 0"));
        let whole = unhex(exported(&far.ask(format_args!("export {at} 4096"))));
        // Cut anywhere, with and without a sum that is right.
        for len in 0..whole.len() {
            let mut cut = whole[..len].to_vec();
            assert!(is(&near.import(&hex(&cut), &peer), ErrorKind::Malformed));
            if len >= 4 {
                seal(&mut cut);
                let answer = near.import(&hex(&cut), &peer);
                assert!(is(&answer, ErrorKind::Malformed), "{len}: {answer}");
            }
        }
        // Longer.
        let mut longer = whole.clone();
        longer.extend_from_slice(&[0; 4]);
        assert!(is(&near.import(&hex(&longer), &peer), ErrorKind::Malformed));
        seal(&mut longer);
        assert!(is(&near.import(&hex(&longer), &peer), ErrorKind::Malformed));
        // Each bit turned without the sum.
        for at in 0..whole.len() {
            let mut turned = whole.clone();
            turned[at] ^= 1 << (at % 8);
            let answer = near.import(&hex(&turned), &peer);
            assert!(is(&answer, ErrorKind::Malformed), "{at}: {answer}");
        }
        // Other versions and ways, and numbers that are impossible.
        let word = |at: usize, value: u64| {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            seal(&mut bytes);
            bytes
        };
        for (at, value) in [(4, 2), (6, 0), (6, 99)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            seal(&mut bytes);
            let answer = near.import(&hex(&bytes), &peer);
            assert!(is(&answer, ErrorKind::VersionMismatch), "{answer}");
        }
        let len = BLOCK as u64;
        for (at, value) in [
            (96, 0),         // no number
            (104, u64::MAX), // wraps
            (112, 0),        // no bytes
            (112, 4095),     // shorter than its part
            (120, len),      // begins at its end
            (120, u64::MAX), // wraps
            (128, 0),        // nothing of it
            (128, len + 1),  // more than it
        ] {
            let answer = near.import(&hex(&word(at, value)), &peer);
            assert!(is(&answer, ErrorKind::Malformed), "{at} {value}: {answer}");
        }
        // Longer than it is. A copy there would cost the context.
        let answer = near.import(&hex(&word(112, len + (2 << 20))), &peer);
        assert!(!answer.starts_with("ok"), "{kind}: {answer}");
        imported(&near.import(&hex(&whole), &peer));
        near.release(None);
    }
    far.finish();
}

/// Any bytes changed, with a sum that is right: an error, or memory that can be read to its end.
#[test]
fn changed_descriptors_lead_nowhere() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    // The importer in a process of its own: what it opens must not harm it.
    let mut far = Far::from_child(Child::start(this_test!(), "agent", &[]));
    let near = Agent::new();
    let me = who(identity());
    let wholes: Vec<Vec<u8>> = ["device", "virtual", "pool"]
        .into_iter()
        .map(|kind| {
            let at = near.allocate(kind, 2 * BLOCK, 0);
            unhex(exported(&near.export(at + 64, 4096)))
        })
        .collect();
    let far = RefCell::new(&mut far);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    let mut runner = TestRunner::new(Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&(0..3_usize, changes), |(kind, changes)| {
            let mut bytes = wholes[kind].clone();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            seal(&mut bytes);
            let far = &mut *far.borrow_mut();
            let answer = far.ask(format_args!("import {} {me}", hex(&bytes)));
            if answer.starts_with("ok ") {
                let length = u64::from_le_bytes(bytes[128..136].try_into().expect("8 bytes"));
                // As a copy would: what is not there breaks the context, and the next line fails.
                let last = imported(&answer) + length - 1;
                far.ask(format_args!("write {last} 1 1"));
                prop_assert_eq!(far.ask(format_args!("read {last} 1 1")), "same");
            }
            far.ask("release");
            Ok(())
        })
        .expect("none does harm");
    let far = far.into_inner();
    assert_eq!(far.ask("control misused"), "0");
    for whole in &wholes {
        imported(&far.ask(format_args!("import {} {me}", hex(whole))));
    }
    far.tell("quit");
}

/// Those who ask at the socket without a ticket, or say nothing, get nothing and hold up nobody for long.
#[test]
fn strangers_at_the_socket() {
    use std::{
        io::{Read, Write},
        os::{
            linux::net::SocketAddrExt,
            unix::net::{SocketAddr, UnixStream},
        },
        time::Duration,
    };
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut far = Far::start(this_test!(), &[]);
    let mut near = Agent::new();
    let at = far.number(format_args!("allocate virtual {BLOCK} 0"));
    let answer = far.ask(format_args!("export {at} 4096"));
    let descriptor = unhex(exported(&answer));
    let mut name = b"wharf-ipc-".to_vec();
    name.extend_from_slice(hex(&descriptor[136..152]).as_bytes());
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let connect = || {
        let socket = UnixStream::connect_addr(&address).expect("it listens");
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a watchdog");
        socket
    };
    // A ticket of another allocation's, or of nobody's.
    for question in [[0_u8; 33], [0xff; 33]] {
        let mut socket = connect();
        socket.write_all(&question).expect("it listens");
        let mut text = Vec::new();
        socket.read_to_end(&mut text).expect("an answer");
        assert_eq!(text.first(), Some(&2));
        assert!(String::from_utf8_lossy(&text).contains("not exported"));
    }
    // Silence, half a question, and gone at once.
    let silent = connect();
    let mut half = connect();
    half.write_all(&[1; 16]).expect("it listens");
    drop(connect());
    imported(&near.import(&hex(&descriptor), &far.who));
    drop((silent, half));
    // A ticket for another allocation than its own: the proof is of another question.
    let mut other = descriptor.clone();
    other[104..112].copy_from_slice(&(at + BLOCK as u64).to_le_bytes());
    seal(&mut other);
    let answer = near.import(&hex(&other), &far.who);
    assert!(is(&answer, ErrorKind::Rejected), "{answer}");
    far.finish();
}
