//! A child made by `fork` is refused everything, clearly, and its parent goes on as if nothing had happened.
//!
//! # Safety
//! The child runs with one thread of the parent's and its locks as they were: it makes calls that are refused before they take one, and ends. `fork` makes
//! the allocator's locks free in the child, a bare `clone` does not: such a child is made in a process where no other thread allocates.
#![allow(unsafe_code)]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task,
};

use wharf::{
    Access, Context, ErrorKind, Tag, Worker,
    memory::{BufferPool, Timing},
};

use crate::{
    fakes::{READ, Space, block_on, fakes_with, roomy},
    support::{FakeRegistrar, LIMIT, again, block_until, is_alone, passes, this_test, watchdog},
};

/// The result of a future that has to be ready at its first poll: a child has no runtime whose threads would run.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut cx = task::Context::from_waker(task::Waker::noop());
    match pin!(future).poll(&mut cx) {
        task::Poll::Ready(value) => Some(value),
        task::Poll::Pending => None,
    }
}

/// How many of these calls, counted from 1, is the first that is not refused as it should be; 0 for none.
fn asked_in_the_child(context: &Context, worker: &Worker) -> i32 {
    fn refused<T>(result: Option<wharf::Result<T>>) -> bool {
        matches!(result, Some(Err(error)) if error.kind() == ErrorKind::Forked)
    }
    let answers = [
        refused(at_once(context.allocate(4096))),
        refused(at_once(context.expose(vec![0; 8], Access::READ))),
        refused(Some(Worker::new(context))),
        refused(Some(worker.address())),
        refused(at_once(worker.connect("127.0.0.1:1"))),
        refused(at_once(worker.listen("127.0.0.1:0"))),
        refused(Some(Context::builder().build())),
    ];
    answers
        .iter()
        .position(|refused| !refused)
        .map_or(0, |index| index as i32 + 1)
}

/// Runs a test in a process where no other thread allocates.
fn on_one_thread(test: &str) {
    passes(again(test).arg("--test-threads=1"));
}

enum How {
    Fork,
    Clone,
}

fn child(how: &How, act: impl FnOnce() -> i32) {
    let pid = match how {
        // SAFETY: the child makes calls that take no lock that another thread may hold, and ends.
        How::Fork => unsafe { libc::fork() },
        // SAFETY: as above.
        How::Clone => unsafe {
            libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t
        },
    };
    if pid == 0 {
        let code = act();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0, "no child");
    let mut status = 0;
    // SAFETY: `status` is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child ended by {status:#x}");
    assert_eq!(
        libc::WEXITSTATUS(status),
        0,
        "the first call that was not refused"
    );
}

/// The places of a pool are memory that both would have.
#[test]
fn a_child_has_nothing_of_a_pool() {
    if !is_alone() {
        return on_one_thread(this_test!());
    }
    let pool = BufferPool::new(FakeRegistrar::new(), Access::READ, 100, 2).expect("a pool");
    let held = pool.try_lease().expect("free");
    for how in [How::Fork, How::Clone] {
        child(&how, || match (pool.try_lease(), at_once(pool.lease())) {
            (None, None) => 0,
            _ => 1,
        });
    }
    let other = pool.try_lease().expect("free");
    drop((held, other));
    assert_eq!(pool.stats().leased, 0);
}

/// A registration that is under way when the process forks.
#[test]
fn a_child_waits_for_no_thread_of_its_parents() {
    let (cache, registrar, _monitor) = fakes_with(FakeRegistrar::new(), Timing::Before, roomy());
    let goes_on = Arc::new(AtomicBool::new(false));
    let may = Arc::clone(&goes_on);
    registrar.set_rule(move |_, _, _| {
        block_until("the permission", || may.load(SeqCst));
        Ok(())
    });
    // Long enough for a thread of its own.
    let pages = Space::new().pages(0, 1024);
    let mut get = Box::pin(cache.get(pages, READ));
    assert!(at_once(get.as_mut()).is_none());
    child(&How::Fork, || {
        let polled = at_once(get.as_mut());
        let refused = matches!(polled, Some(Err(error)) if error.kind() == ErrorKind::Forked);
        i32::from(!refused || cache.statistics().regions != 0)
    });
    goes_on.store(true, SeqCst);
    assert!(block_on(get).is_ok());
}

#[test]
fn a_child_is_refused_and_the_parent_goes_on() {
    if !is_alone() {
        return on_one_thread(this_test!());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(watchdog(LIMIT, async {
        let context = Context::builder()
            .transports("shm,tcp")
            .unwrap()
            .build()
            .unwrap();
        let (here, there) = (
            Worker::new(&context).unwrap(),
            Worker::new(&context).unwrap(),
        );
        let out = here.connect(&there.address().unwrap()).await.unwrap();
        let region = context.expose(vec![1; 64], Access::READ).await.unwrap();
        for how in [How::Fork, How::Clone] {
            child(&how, || asked_in_the_child(&context, &here));
            // What a child drops is its parent's still.
            child(&how, || {
                // SAFETY: a copy that only the child sees; it ends without dropping the original.
                drop(unsafe { std::ptr::read(&raw const out) });
                // SAFETY: as above.
                drop(unsafe { std::ptr::read(&raw const region) });
                0
            });
            out.tag_send(Tag(1), "still here").await.unwrap();
            let got = there.tag_recv(Tag(1), vec![0; 64]).await.unwrap();
            assert_eq!(&got.buffer[..got.len], b"still here");
        }
        assert_eq!(region.unexpose().await.len(), 64);
    }));
}

#[test]
fn a_child_that_drops_everything_takes_nothing_from_its_parent() {
    if !is_alone() {
        return on_one_thread(this_test!());
    }
    for transports in ["shm", "tcp"] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (context, here, there, out) = runtime.block_on(watchdog(LIMIT, async {
            let context = Context::builder().transports(transports).unwrap();
            let context = context.build().unwrap();
            let [here, there] = [(); 2].map(|()| Worker::new(&context).unwrap());
            let out = here.connect(&there.address().unwrap()).await.unwrap();
            (context, here, there, out)
        }));
        for how in [How::Fork, How::Clone] {
            // With the runtime go the reactors, which share the workers.
            child(&how, || {
                // SAFETY: copies that only the child sees; it ends without dropping the originals.
                unsafe {
                    drop(std::ptr::read(&raw const out));
                    drop(std::ptr::read(&raw const here));
                    drop(std::ptr::read(&raw const there));
                    drop(std::ptr::read(&raw const context));
                    drop(std::ptr::read(&raw const runtime));
                }
                0
            });
            runtime.block_on(watchdog(LIMIT, async {
                out.tag_send(Tag(1), "still here").await.unwrap();
                let got = there.tag_recv(Tag(1), vec![0; 64]).await;
                let got = got.unwrap();
                assert_eq!(&got.buffer[..got.len], b"still here");
            }));
        }
    }
}
