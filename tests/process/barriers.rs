//! Processes that may not, or may no longer, have the kernel make all threads pass a barrier (`membarrier(2)`): their doorbells and locks go by
//! fences, and whoever sleeps is woken all the same.
#![allow(unsafe_code)] // a filter for system calls, which has no safe face here.

use std::time::Duration;

use wharf::{Endpoint, Mask, Tag, Worker};

use crate::{
    common::{First, Path, Second, current_thread},
    support::{LIMIT, Parent, child, this_test, watchdog},
};

const PING: Tag = Tag(1);
/// From here on the second process is refused the barrier.
const REFUSED: Tag = Tag(2);
const END: Tag = Tag(3);

/// Refused from the beginning, and only after both ends have left their fences out.
const PARTS: [&str; 3] = ["refused", "refused later", "not refused"];

/// Messages there and back until a receiver leaves its sender's fence out for certain.
const MANY: usize = 5_000;
/// Sleeps after them, each ended by a message.
const SLEEPS: usize = 30;

/// This thread, and those that it starts, are refused `membarrier`.
fn refuse() {
    let mut filter = [
        // The call's number, at 0 of `struct seccomp_data`.
        libc::sock_filter {
            code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
            jt: 0,
            jf: 0,
            k: 0,
        },
        libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: libc::SYS_membarrier as u32,
        },
        libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        },
        libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        },
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: a program of that length; the other call takes numbers only.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
    };
    assert_eq!(result, 0, "a filter: {}", std::io::Error::last_os_error());
    // SAFETY: a question; no pointer is given.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    assert_eq!(answer, -1, "the filter lets it pass");
}

/// One message there and one back.
async fn ping(worker: &Worker, endpoint: &Endpoint, tag: Tag) {
    let both = async {
        endpoint.tag_send(tag, vec![7; 8]).await.expect("a send");
        let back = worker.tag_recv(tag, Mask::ALL, vec![0; 8]).await;
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

async fn first(test: &'static str) {
    for part in PARTS {
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
}

async fn second(parent: Parent, part: &str) {
    if part == "refused" {
        refuse();
    }
    let second = Second::new(parent, Path::Shm.told()).await;
    loop {
        let (any, buffer) = (Mask(0), vec![0; 8]);
        let received = watchdog(LIMIT, second.worker.tag_recv(Tag(0), any, buffer)).await;
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

#[test]
fn who_sleeps_is_woken() {
    for part in PARTS {
        if let Some(parent) = child(part) {
            return current_thread().block_on(second(parent, part));
        }
    }
    current_thread().block_on(first(this_test!()));
}
