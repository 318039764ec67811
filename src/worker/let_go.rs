//! What is the program's is not dropped under the lock: the drop of a buffer's owner, or of a waker
//! that is the last to hold its task, may come back.
//!
//! # Safety
//! What is made a buffer lives as long as the test.
#![allow(unsafe_code)]

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use crate::{
    Error,
    error::ErrorKind,
    memory::{BufferListMut, BufferMut},
    protocol::control,
    transport::Sink,
    types::{AmId, Mask, OpKey, Tag},
    worker::{
        core::Core,
        engine::Engine,
        inbox::tests::{LINK, core},
    },
};

const TAG: Tag = Tag(7);
const ID: AmId = AmId(3);

struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// A waker that was left is held until the lock is gone, and no longer.
#[track_caller]
fn is_let_go_later(core: &mut Core, task: &Arc<Task>) {
    assert_eq!(Arc::strong_count(task), 2, "dropped under the lock");
    core.movers.ctx.deferred.clear();
    assert_eq!(Arc::strong_count(task), 1, "still held");
}

fn receive(core: &mut Core) -> OpKey {
    core.post_receive(TAG, Mask::ALL, BufferMut::from(vec![0; 8]), false)
}

/// A receive that waits in this core, with a waker.
fn waits() -> (Core, OpKey, Arc<Task>) {
    let (mut core, _) = core();
    let key = receive(&mut core);
    let task = Arc::new(Task);
    core.leave_waker(key, &Waker::from(task.clone()));
    (core, key, task)
}

#[test]
fn wakers_of_receives() {
    let ways: [fn(&mut Core, OpKey); 3] = [
        |core, key| core.drop_future(key),
        Core::take_waker,
        |core, key| core.leave_waker(key, Waker::noop()),
    ];
    for way in ways {
        let (mut core, key, task) = waits();
        way(&mut core, key);
        is_let_go_later(&mut core, &task);
    }
}

#[test]
fn wakers_of_operations() {
    for is_over in [false, true] {
        let (mut core, _, task) = waits();
        core.message(
            LINK,
            control::TAG_RTS,
            TAG.0,
            &crate::worker::inbox::tests::rts(8, 1),
        )
        .expect("announced");
        let waker = core.movers.ctx.operations.iter().map(|(key, _)| key).next();
        let key = waker.expect("it was entered");
        if is_over {
            core.fail_operation(key, Error::new(ErrorKind::Canceled, "cancelled"));
            core.movers.ctx.wakes.clear();
            core.leave_waker(key, &Waker::from(task.clone()));
            core.movers.ctx.wakes.clear();
        }
        core.drop_future(key);
        is_let_go_later(&mut core, &task);
    }
}

#[test]
fn wakers_of_inboxes() {
    for closes in [false, true] {
        let (mut core, _) = core();
        let serial = core.am_open(ID, 16).expect("opened");
        let task = Arc::new(Task);
        let slot = core.am_waker(ID, serial).expect("open");
        assert!(slot.leave(&Waker::from(task.clone())).is_none());
        let mut engine = Engine::new(core).expect("an engine");
        match closes {
            true => drop(engine.core.am_close(ID, serial)),
            false => drop(engine.am_try(ID, serial, false)),
        }
        is_let_go_later(&mut engine.core, &task);
    }
}

/// The message is shorter than the list, of whose buffers the rest is not needed any more.
#[test]
fn the_rest_of_a_list() {
    let (mut core, _) = core();
    let mut bytes = [[0_u8; 8]; 2];
    let owner = Arc::new(Task);
    let pieces = bytes.each_mut().map(|bytes| {
        // SAFETY: module docs.
        unsafe { BufferMut::from_raw(bytes.as_mut_ptr(), bytes.len(), owner.clone()) }
    });
    let list = BufferMut::from(BufferListMut::from(pieces));
    let key = core.post_receive(TAG, Mask::ALL, list, false);
    core.message(LINK, control::TAG_EAGER, TAG.0, b"short")
        .expect("received");
    core.drop_future(key);
    assert_eq!(Arc::strong_count(&owner), 3, "dropped under the lock");
    core.movers.ctx.deferred.clear();
    assert_eq!(Arc::strong_count(&owner), 2, "still held");
    assert!(core.take_unexpected(TAG, Mask::ALL).is_some());
}
