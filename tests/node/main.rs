//! Two hosts, as far as the network goes: two network namespaces with a cable (a veth pair) between them, a process in each.
//!
//! Both processes find the same boot id, so shared memory is tried, and cannot be reached. And the cable can be pulled.
//! The test's own process starts both, listens to what they say and pulls the cable.

#[path = "../support/mod.rs"]
mod support;

mod cable;
mod end;

use std::time::{Duration, Instant};

use wharf::{Context, Error, ErrorKind};

use crate::{
    cable::Cable,
    end::{End, Meeting, current_thread, multi_thread},
    support::{Child, LIMIT, Looks, Parent, child, this_test, until, watchdog},
};

/// Starts the test's two ends, or is one of them and runs `$role`. Gives back the cable, who listens, and who connects.
macro_rules! ends {
    ($meeting:expr, $builder:expr, $role:expr) => {{
        for listens in [true, false] {
            if let Some(mut parent) = child(part(listens)) {
                multi_thread().block_on(async {
                    let end = End::new(&mut parent, $builder, listens, $meeting).await;
                    $role(end, parent).await;
                });
                return;
            }
        }
        let cable = Cable::new();
        let ends = [true, false].map(|listens| {
            let by = cable.command(listens);
            Child::start_by(&by, this_test!(), part(listens), &[])
        });
        (cable, ends)
    }};
}

fn part(listens: bool) -> &'static str {
    if listens { "listens" } else { "connects" }
}

/// Brings the two together: over tcp, of which the one that connects warns, once.
async fn expect_fallback([listens, connects]: &mut [Child; 2]) {
    connects.say(listens.hear().await);
    for (end, expected) in [(connects, 1), (listens, 0)] {
        assert_eq!(end.hear().await, "[\"tcp\"]");
        let count: usize = end.hear().await.parse().expect("a number");
        let mut warnings = Vec::new();
        for _ in 0..count {
            warnings.push(end.hear().await);
        }
        assert_eq!(warnings.len(), expected, "{warnings:#?}");
        for warning in warnings {
            for part in ["wharf::wireup", "shared memory cannot be used", "tcp"] {
                assert!(warning.contains(part), "{warning}");
            }
        }
    }
}

async fn exchange(end: End, _: Parent) {
    end.exchange().await;
    end.part().await;
}

#[test]
#[ignore = "needs root: makes network namespaces"]
fn exchange_by_host_and_port() {
    let (_cable, mut ends) = ends!(Meeting::HostAndPort, Context::builder(), exchange);
    current_thread().block_on(watchdog(2 * LIMIT, expect_fallback(&mut ends)));
    ends.into_iter().for_each(Child::finish);
}

#[test]
#[ignore = "needs root: makes network namespaces"]
fn exchange_by_worker_address() {
    let (_cable, mut ends) = ends!(Meeting::WorkerAddress, Context::builder(), exchange);
    current_thread().block_on(watchdog(2 * LIMIT, expect_fallback(&mut ends)));
    ends.into_iter().for_each(Child::finish);
}

async fn counts(ends: &mut [Child; 2]) -> [u64; 2] {
    let mut counts = [0; 2];
    for (end, count) in ends.iter_mut().zip(&mut counts) {
        end.say("count");
        *count = end.hear().await.parse().expect("a number");
    }
    counts
}

/// Waits until both ends have received this many more.
async fn expect_flow(ends: &mut [Child; 2], more: u64) {
    let before = counts(ends).await;
    let mut looks = Looks::new("more at both ends");
    while (counts(ends).await.iter().zip(before)).any(|(now, before)| *now < before + more) {
        looks.again().await;
    }
}

async fn stream(end: End, mut parent: Parent) {
    end.stream(&mut parent).await;
    end.part().await;
}

#[test]
#[ignore = "needs root: makes network namespaces"]
fn cable_pulled_in_a_transfer() {
    let (cable, mut ends) = ends!(Meeting::HostAndPort, Context::builder(), stream);
    let test = async {
        expect_fallback(&mut ends).await;
        for listens in [true, false] {
            expect_flow(&mut ends, 50).await;
            cable.set(listens, "down");
            // What was on its way is still received; then nothing is.
            let (mut looks, mut since) = (Looks::new("a standstill"), Instant::now());
            let mut before = counts(&mut ends).await;
            while since.elapsed() < Duration::from_millis(500) {
                looks.again().await;
                let now = counts(&mut ends).await;
                if now != before {
                    (before, since) = (now, Instant::now());
                }
            }
            cable.set(listens, "up");
            expect_flow(&mut ends, 50).await;
        }
        ends.iter_mut().for_each(|end| end.say("stop"));
        for end in &mut ends {
            assert_eq!(end.hear().await, "all received");
        }
    };
    current_thread().block_on(watchdog(3 * LIMIT, test));
    ends.into_iter().for_each(Child::finish);
}

/// The kernel's words for a host that answers no more, or to which its own network does not lead any more.
#[track_caller]
fn expect_silence(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(error.is_peer_failure());
    let text = error.to_string();
    let says = |errno| text.contains(&std::io::Error::from_raw_os_error(errno).to_string());
    let silent = [libc::ETIMEDOUT, libc::ENETUNREACH, libc::EHOSTUNREACH];
    assert!(silent.into_iter().any(says), "{text}");
}

async fn idle(end: End, parent: Parent) {
    end.exchange().await;
    until("the last acknowledgements", is_acknowledged).await;
    parent.say("idle");
    let error = watchdog(LIMIT, end.endpoint.closed()).await;
    expect_silence(&error);
    // What comes later hears the same.
    let late = end.endpoint.tag_send(0, vec![1]).await;
    assert_eq!(late.expect_err("no connection").kind(), error.kind());
    parent.say("closed");
}

#[test]
#[ignore = "needs root: makes network namespaces"]
fn cable_pulled_while_idle() {
    let builder = Context::builder().keepalive(Duration::from_secs(1));
    let (cable, mut ends) = ends!(Meeting::HostAndPort, builder, idle);
    let test = async {
        expect_fallback(&mut ends).await;
        for end in &mut ends {
            assert_eq!(end.hear().await, "idle");
        }
        expect_notice(&cable, &mut ends, "idle").await;
    };
    current_thread().block_on(watchdog(2 * LIMIT, test));
    ends.into_iter().for_each(Child::finish);
}

/// Whether the other host has acknowledged all that was sent from this one. The children of this program have a network of their own.
fn is_acknowledged() -> bool {
    ["tcp", "tcp6"].iter().all(|table| {
        let table = std::fs::read_to_string(format!("/proc/self/net/{table}"));
        table.unwrap_or_default().lines().skip(1).all(|line| {
            let mut words = line.split_ascii_whitespace().skip(3);
            let (state, queues) = (words.next(), words.next().unwrap_or_default());
            // Of an established connection: what was sent, and what came and was not read.
            state != Some("01") || queues.starts_with("00000000:")
        })
    })
}

/// Pulls the cable and waits until both ends have noticed: three seconds with probes every second. Twice that again for a busy machine is
/// far below what the kernel takes by itself.
async fn expect_notice(cable: &Cable, ends: &mut [Child; 2], which: &str) {
    cable.set(true, "down");
    let pulled = Instant::now();
    for end in ends {
        assert_eq!(end.hear().await, "closed");
        let after = pulled.elapsed();
        eprintln!("the end of a connection that was {which} was noticed after {after:?}");
        assert!(after < Duration::from_secs(9), "{after:?}");
    }
}

/// Sends a message now and then until the connection is over.
async fn busy(end: End, parent: Parent) {
    end.exchange().await;
    let sends = async {
        let mut sent = 0;
        while end.endpoint.tag_send(0, vec![1]).await.is_ok() {
            sent += 1;
            if sent == 10 {
                parent.say("busy");
            }
            // So slow that there is room until the end is noticed.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        end.endpoint.closed().await
    };
    let error = watchdog(LIMIT, sends).await;
    expect_silence(&error);
    parent.say("closed");
}

#[test]
#[ignore = "needs root: makes network namespaces"]
fn cable_pulled_while_busy() {
    let builder = Context::builder().keepalive(Duration::from_secs(1));
    let (cable, mut ends) = ends!(Meeting::HostAndPort, builder, busy);
    let test = async {
        expect_fallback(&mut ends).await;
        for end in &mut ends {
            assert_eq!(end.hear().await, "busy");
        }
        expect_notice(&cable, &mut ends, "busy").await;
    };
    current_thread().block_on(watchdog(2 * LIMIT, test));
    ends.into_iter().for_each(Child::finish);
}
