//! Queues for completions, and the channels that tell of them.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    collections::VecDeque,
    ffi::{c_int, c_void},
    ptr, thread,
};

use parking_lot::MutexGuard;

use crate::{
    abi::{Channel, Context, Cq, CqEx, Wc},
    device::MOST_COMPLETIONS,
    plan::{errno, null, plan, struck},
    world::{ACKNOWLEDGED, ChannelState, CqState, JOURNAL, WORLD, World, counter, take},
};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut Channel {
    plan!("ibv_create_comp_channel", pointer);
    let Ok(fd) = counter() else {
        return null(libc::EMFILE);
    };
    let channel = Box::into_raw(Box::new(Channel {
        context,
        fd,
        refcnt: 0,
    }));
    let state = ChannelState {
        context: context as usize,
        fd,
        events: VecDeque::new(),
    };
    WORLD.lock().channels.insert(channel as usize, state);
    channel
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut Channel) -> c_int {
    plan!("ibv_destroy_comp_channel", number);
    let mut world = WORLD.lock();
    if world.cqs.values().any(|cq| cq.channel == channel as usize) {
        JOURNAL.misuse("ibv_destroy_comp_channel with queues left".to_owned());
        return libc::EBUSY;
    }
    match world.channels.remove(&(channel as usize)) {
        // SAFETY: ours, and boxed.
        Some(state) => unsafe {
            libc::close(state.fd);
            drop(Box::from_raw(channel));
            0
        },
        None => libc::EINVAL,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut Channel,
    vector: c_int,
) -> *mut Cq {
    plan!("ibv_create_cq", pointer);
    let readers = [ptr::null(); 18];
    new(context, entries, cq_context, channel, vector, readers).cast()
}

/// The calls by which an extended queue is read.
pub(crate) type Readers = [*const c_void; 18];

/// A queue, with room for what an extended one has.
pub(crate) fn new(
    context: *mut Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut Channel,
    vector: c_int,
    functions: Readers,
) -> *mut CqEx {
    if !(1..=MOST_COMPLETIONS as c_int).contains(&entries) || vector != 0 {
        return null(libc::EINVAL);
    }
    let mut world = WORLD.lock();
    let known = |channel: &ChannelState| channel.context == context as usize;
    if !channel.is_null() && !world.channels.get(&(channel as usize)).is_some_and(known) {
        return null(libc::EINVAL);
    }
    let cq = Box::into_raw(Box::new(CqEx {
        base: Cq {
            context,
            channel,
            cq_context,
            handle: 0,
            cqe: entries,
            rest: [0; 12],
        },
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        functions,
    }));
    let state = CqState {
        context: context as usize,
        channel: channel as usize,
        room: entries as usize,
        entries: VecDeque::new(),
        armed: 0,
        unacked: 0,
        failed: false,
        current: Wc::default(),
    };
    world.cqs.insert(cq as usize, state);
    cq
}

/// What is there stays; it must fit.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut Cq, entries: c_int) -> c_int {
    plan!("ibv_resize_cq", number);
    let mut world = WORLD.lock();
    let Some(state) = world.cqs.get_mut(&(cq as usize)) else {
        return libc::EINVAL;
    };
    if !(1..=MOST_COMPLETIONS as c_int).contains(&entries) || state.entries.len() > entries as usize
    {
        return libc::EINVAL;
    }
    state.room = entries as usize;
    // SAFETY: a live queue.
    unsafe { (*cq).cqe = entries };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    plan!("ibv_destroy_cq", number);
    let at = cq as usize;
    let mut world = WORLD.lock();
    loop {
        if world
            .qps
            .values()
            .any(|qp| qp.send_cq == at || qp.recv_cq == at)
        {
            JOURNAL.misuse("ibv_destroy_cq with queue pairs left".to_owned());
            return libc::EBUSY;
        }
        match world.cqs.get(&at) {
            None => return libc::EINVAL,
            Some(state) => {
                // Events that nobody has taken go with the queue.
                let channel = state.channel;
                let unacked = state.unacked;
                let waiting = world.channels.get_mut(&channel).map_or(0, |channel| {
                    let before = channel.events.len();
                    channel.events.retain(|event| *event != at);
                    for _ in channel.events.len()..before {
                        take(channel.fd);
                    }
                    before - channel.events.len()
                });
                if unacked as usize == waiting {
                    world.cqs.remove(&at);
                    World::gone(world, at);
                    // SAFETY: boxed above.
                    drop(unsafe { Box::from_raw(cq.cast::<CqEx>()) });
                    return 0;
                }
                if let Some(state) = world.cqs.get_mut(&at) {
                    state.unacked -= waiting as u32;
                }
            }
        }
        // As the library: until somebody acknowledges.
        ACKNOWLEDGED.wait(&mut world);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut Channel,
    cq: *mut *mut Cq,
    context: *mut *mut c_void,
) -> c_int {
    if let Some(code) = struck("ibv_get_cq_event") {
        errno(code as c_int);
        return -1;
    }
    // SAFETY: a live channel.
    if !take(unsafe { (*channel).fd }) {
        return -1;
    }
    let mut world = WORLD.lock();
    let state = world.channels.get_mut(&(channel as usize));
    match state.and_then(|state| state.events.pop_front()) {
        Some(event) => {
            // SAFETY: a live queue, and variables given for it.
            unsafe {
                *cq = event as *mut Cq;
                *context = (**cq).cq_context;
            }
            0
        }
        None => {
            errno(libc::EAGAIN);
            -1
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: u32) {
    struck("ibv_ack_cq_events");
    let mut world = WORLD.lock();
    match world.cqs.get_mut(&(cq as usize)) {
        Some(state) if state.unacked >= count => state.unacked -= count,
        _ => JOURNAL.misuse("ibv_ack_cq_events of events that were not got".to_owned()),
    }
    ACKNOWLEDGED.notify_all();
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut Cq, room: c_int, to: *mut Wc) -> c_int {
    if let Some(code) = struck("ibv_poll_cq") {
        return -(code as c_int);
    }
    let mut world = WORLD.lock();
    let mut found = 0;
    while found < room {
        match world.poll(cq as usize) {
            // SAFETY: room for so many is given.
            Some(wc) => unsafe { to.add(found as usize).write(wc) },
            None => break,
        }
        found += 1;
    }
    let answer = match world.cqs.get(&(cq as usize)) {
        Some(state) if state.failed && found == 0 => -1,
        Some(_) => found,
        None => -libc::EINVAL,
    };
    if found == 0 {
        give_way(world);
    }
    answer
}

/// Who polls without end leaves the lock, and the processor, to the thread that brings what is polled for.
pub(crate) fn give_way(world: MutexGuard<'_, World>) {
    if world.wire.is_some() {
        MutexGuard::unlock_fair(world);
        thread::yield_now();
    }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited: c_int) -> c_int {
    plan!("ibv_req_notify_cq", number);
    let world = &mut *WORLD.lock();
    match world.cqs.get_mut(&(cq as usize)) {
        // Where that is a call of the kernel's, as with soft-RoCE.
        Some(state)
            if world
                .contexts
                .get(&state.context)
                .is_some_and(|context| context.over) =>
        {
            libc::EIO
        }
        Some(state) => {
            state.armed = if solicited == 0 {
                1
            } else {
                state.armed.max(2)
            };
            0
        }
        None => libc::EINVAL,
    }
}
