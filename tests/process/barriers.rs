//! Processes that may not, or may no longer, have the kernel make all threads pass a barrier (`membarrier(2)`): their doorbells and locks go by
//! fences, and whoever sleeps is woken all the same.
#![allow(unsafe_code)] // a filter for system calls, which has no safe face here.

use std::time::Duration;

use wharf::{Endpoint, Mask, Tag, Worker};

use crate::{
    common::{First, Path, Second, current_thread},
    support::{LIMIT, Parent, child, seccomp, this_test, watchdog},
};

const PING: Tag = Tag(1);
/// From here on the second process is refused the barrier.
const REFUSED: Tag = Tag(2);
const END: Tag = Tag(3);

/// Messages there and back until a receiver leaves its sender's fence out for certain.
const MANY: usize = 5_000;
/// Sleeps after them, each ended by a message.
const SLEEPS: usize = 30;

/// This thread, and those that it starts, are refused `membarrier`.
fn refuse() {
    seccomp::refuse(&[libc::SYS_membarrier], libc::EPERM);
    // SAFETY: a question; no pointer is given.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    assert_eq!(answer, -1, "the filter lets it pass");
}

/// One message there and one back.
async fn ping(worker: &Worker, endpoint: &Endpoint, tag: Tag) {
    let both = async {
        endpoint.tag_send(tag, vec![7; 8]).await.expect("a send");
        let back = worker.tag_recv(tag, vec![0; 8]).await;
        assert_eq!(back.expect("an answer").buffer, [7; 8]);
    };
    watchdog(LIMIT, both).await;
}

/// Without a sleep until fences are left out, and then with one before each.
async fn rounds(worker: &Worker, endpoint: &Endpoint) {
    for _ in 0..MANY {
        ping(worker, endpoint, PING).await;
    }
    for sleep in 0..SLEEPS {
        tokio::time::sleep(Duration::from_micros(100 * (sleep as u64 % 20))).await;
        ping(worker, endpoint, PING).await;
    }
}

async fn first(test: &'static str, part: &str) {
    let first = First::new(test, Path::Shm, Path::Shm.context()).await;
    let child = first.start(part);
    let accepted = async { first.listener.accept().await?.accept().await };
    let endpoint = watchdog(LIMIT, accepted).await.expect("a connection");
    rounds(&first.worker, &endpoint).await;
    ping(&first.worker, &endpoint, REFUSED).await;
    rounds(&first.worker, &endpoint).await;
    ping(&first.worker, &endpoint, END).await;
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    first.finish().await;
}

async fn second(parent: Parent, part: &str) {
    if part == "refused" {
        refuse();
    }
    let second = Second::new(parent, Path::Shm.told()).await;
    loop {
        let (any, buffer) = (Mask(0), vec![0; 8]);
        let received = watchdog(LIMIT, second.worker.tag_recv(Tag(0), buffer).mask(any)).await;
        let received = received.expect("a message");
        if received.tag == REFUSED && part == "refused later" {
            refuse();
        }
        let send = second.endpoint.tag_send(received.tag, received.buffer);
        send.await.expect("a send");
        if received.tag == END {
            break;
        }
    }
    watchdog(LIMIT, second.endpoint.closed()).await;
}

fn who_sleeps_is_woken(test: &'static str, part: &str) {
    match child(part) {
        Some(parent) => current_thread().block_on(second(parent, part)),
        None => current_thread().block_on(first(test, part)),
    }
}

/// From the beginning.
#[test]
fn refused() {
    who_sleeps_is_woken(this_test!(), "refused");
}

/// After both ends have left their fences out.
#[test]
fn refused_later() {
    who_sleeps_is_woken(this_test!(), "refused later");
}

#[test]
fn not_refused() {
    who_sleeps_is_woken(this_test!(), "not refused");
}
