//! The transports of this build.

use std::sync::Arc;

#[cfg(feature = "tls")]
use super::bed;
use super::{Subject, tcp_channel, unix_channel};
#[cfg(feature = "tls")]
use crate::transport::channel::Channel;
use crate::transport::{loopback::Loopback, shm, tcp};
#[cfg(feature = "verbs")]
use crate::{driver::rdmacm::Libraries, transport::verbs};

fn over_tcp_by(options: tcp::TcpOptions) -> Subject {
    let transport = move || Arc::new(tcp::Tcp::new(options.clone())) as Arc<_>;
    Subject::new(transport, tcp_channel)
}

fn over_shm_by(options: shm::ShmOptions) -> Subject {
    let transport = move || Arc::new(shm::Shm::new(options.clone())) as Arc<_>;
    Subject::new(transport, unix_channel)
}

fn to_itself() -> Subject {
    Subject::to_itself(|| Arc::new(Loopback), Loopback::connected)
}

conformance!(over_self, to_itself());
conformance!(over_shm, over_shm_by(shm::ShmOptions::default()));
conformance!(
    over_shm_without_pidfd,
    over_shm_by(shm::ShmOptions { use_pidfd: false })
);
conformance!(over_tcp, over_tcp_by(tcp::TcpOptions::default()));
conformance!(
    over_tcp_with_checksums,
    over_tcp_by(tcp::TcpOptions {
        checksums: true,
        ..tcp::TcpOptions::default()
    })
);

/// Over the emulated devices, which stand beside the test's executable, or over those of the virtual machine.
#[cfg(feature = "verbs")]
fn over_verbs() -> Subject {
    let transport = || {
        let program = std::env::current_exe().expect("this program");
        let emulated = std::env::var_os("RDMA_VM").is_none();
        let options = verbs::RcOptions {
            libraries: Libraries {
                verbs: emulated.then(|| program.with_file_name("libwharf_emulated_verbs.so")),
                cm: None,
            },
            ..verbs::RcOptions::default()
        };
        Arc::new(verbs::RcVerbs::new(options)) as Arc<_>
    };
    Subject::new(transport, tcp_channel)
}
#[cfg(feature = "verbs")]
conformance!(over_rc_verbs, over_verbs());

#[cfg(feature = "tls")]
#[path = "../../../tests/tls/certificates.rs"]
mod certificates;

#[cfg(feature = "tls")]
fn under_tls() -> Subject {
    let options = tcp::TcpOptions {
        tls: true,
        ..tcp::TcpOptions::default()
    };
    let transport = move || Arc::new(tcp::Tcp::new(options.clone())) as Arc<_>;
    Subject::new(transport, tls_channel)
}
#[cfg(feature = "tls")]
conformance!(over_tls, under_tls());

#[cfg(feature = "tls")]
fn tls_channel() -> (Channel, Channel) {
    use std::io::{Read, Write};

    let authority = certificates::Authority::new();
    let shown = authority.issue(&["127.0.0.1"]);
    let tls =
        crate::transport::tls::Tls::new(authority.client(None), authority.server(&shown, false));
    let [near, far] = bed::tcp_streams();
    let address = near.peer_addr().unwrap().ip();
    let dialled = tls.dial(false, None, address).unwrap();
    let mut ends = [(near, dialled), (far, tls.accept().unwrap())];
    for (stream, _) in &ends {
        stream.set_nonblocking(true).unwrap();
    }
    let start = std::time::Instant::now();
    while ends
        .iter()
        .any(|(_, session)| session.is_handshaking() || session.wants_write())
    {
        assert!(start.elapsed() < bed::WATCHDOG, "the handshake hangs");
        for (stream, session) in &mut ends {
            session.flush(&mut |bytes| stream.write(bytes)).unwrap();
            if session.is_handshaking() {
                match session.shake(&mut |bytes| stream.read(bytes)) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    result => result.unwrap(),
                }
            }
        }
    }
    let [near, far] = ends.map(|(stream, session)| {
        Channel::secured(tokio::net::TcpStream::from_std(stream).unwrap(), session)
    });
    (near, far)
}

/// Whoever writes a scenario names it in the macro, too.
#[test]
fn every_scenario_is_a_test() {
    let written = include_str!("scenario.rs").lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("pub fn ")?.split_once('(')?;
        Some(name)
    });
    let called = include_str!("mod.rs").lines().filter_map(|line| {
        let (name, _) = line
            .split_once("::scenario::")?
            .1
            .split_once("(&$subject)")?;
        Some(name)
    });
    let mut named: Vec<&str> = called.collect();
    let mut written: Vec<&str> = written.collect();
    named.sort_unstable();
    written.sort_unstable();
    assert_eq!(named, written);
    assert!(written.len() > 10, "they were not found");
}
