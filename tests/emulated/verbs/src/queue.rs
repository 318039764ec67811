//! Queue pairs and shared receive queues: made, changed, asked and destroyed.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    collections::VecDeque,
    ffi::{c_int, c_void},
    ptr,
};

use crate::{
    abi::{Cq, Pd, Qp, QpAttr, QpEx, QpInit, Srq, SrqAttr, SrqInit},
    device::{MOST, MOST_INLINE, PIECES, device_with},
    plan::{null, plan},
    world::{ERR, INIT, JOURNAL, QpState, RESET, RTR, RTS, SrqState, WORLD, World},
};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, init: *mut SrqInit) -> *mut Srq {
    plan!("ibv_create_srq", pointer);
    // SAFETY: given for it, as is the domain.
    let (init, context) = unsafe { (&*init, (*pd).context) };
    if init.attr.max_wr > MOST || init.attr.max_sge > PIECES {
        return null(libc::EINVAL);
    }
    let srq = Box::into_raw(Box::new(Srq {
        context,
        srq_context: init.srq_context,
        pd,
        handle: 0,
        rest: [0; 12],
    }));
    let state = SrqState {
        pd: pd as usize,
        room: init.attr.max_wr as usize,
        pieces: init.attr.max_sge,
        limit: 0,
        receives: VecDeque::new(),
    };
    WORLD.lock().srqs.insert(srq as usize, state);
    srq
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    plan!("ibv_destroy_srq", number);
    let mut world = WORLD.lock();
    if world.qps.values().any(|qp| qp.srq == srq as usize) {
        JOURNAL.misuse("ibv_destroy_srq with queue pairs left".to_owned());
        return libc::EBUSY;
    }
    if world.srqs.remove(&(srq as usize)).is_none() {
        return libc::EINVAL;
    }
    World::gone(world, srq as usize);
    // SAFETY: boxed above.
    drop(unsafe { Box::from_raw(srq) });
    0
}

/// Bits of `ibv_srq_attr_mask`.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;

/// Sets below how many receives it is told; how much room there is does not change.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut Srq,
    attr: *const SrqAttr,
    mask: c_int,
) -> c_int {
    plan!("ibv_modify_srq", number);
    // SAFETY: given for it.
    let attr = unsafe { &*attr };
    let world = &mut *WORLD.lock();
    let Some(state) = world.srqs.get_mut(&(srq as usize)) else {
        return libc::EINVAL;
    };
    if mask & MAX_WR != 0 {
        return libc::EOPNOTSUPP;
    }
    if mask != LIMIT || attr.srq_limit as usize > state.room {
        return libc::EINVAL;
    }
    state.limit = attr.srq_limit;
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, to: *mut SrqAttr) -> c_int {
    plan!("ibv_query_srq", number);
    let world = WORLD.lock();
    let Some(state) = world.srqs.get(&(srq as usize)) else {
        return libc::EINVAL;
    };
    let attr = SrqAttr {
        max_wr: state.room as u32,
        max_sge: state.pieces,
        srq_limit: state.limit,
    };
    // SAFETY: given for it.
    unsafe { to.write(attr) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, init: *mut QpInit) -> *mut Qp {
    plan!("ibv_create_qp", pointer);
    // SAFETY: as the caller says.
    unsafe { new(pd, init, NONE) }
}

/// The calls by which an extended queue pair is posted to.
pub(crate) type Builders = [*const c_void; 22];

/// Of one to which requests are posted as structs.
pub(crate) const NONE: Builders = [ptr::null(); 22];

/// A queue pair, with room for what an extended one has.
///
/// # Safety
/// A live domain; a struct given for it.
pub(crate) unsafe fn new(pd: *mut Pd, init: *mut QpInit, functions: Builders) -> *mut Qp {
    // SAFETY: the caller says so.
    let (init, context) = unsafe { (&*init, (*pd).context) };
    let cap = init.cap;
    let fits = cap.max_send_wr <= MOST
        && cap.max_recv_wr <= MOST
        && cap.max_send_sge <= PIECES
        && cap.max_recv_sge <= PIECES
        && cap.max_inline_data <= MOST_INLINE;
    let mut world = WORLD.lock();
    let known = |cq: *mut Cq| {
        let state = world.cqs.get(&(cq as usize));
        state.is_some_and(|state| state.context == context as usize)
    };
    let shares = init.srq.is_null() || world.srqs.contains_key(&(init.srq as usize));
    if !fits || !shares || !known(init.send_cq) || !known(init.recv_cq) {
        return null(libc::EINVAL);
    }
    // Reliable connections alone.
    if init.qp_type != 2 {
        return null(libc::EOPNOTSUPP);
    }
    let Some(number) = world.queue_pair_number() else {
        return null(libc::ENOMEM);
    };
    let qp = Box::into_raw(Box::new(QpEx {
        base: Qp {
            context,
            qp_context: init.qp_context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: number,
            qp_num: number,
            state: RESET,
            qp_type: init.qp_type,
            rest: [0; 12],
        },
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        functions,
    }));
    let state = QpState {
        raw: qp as usize,
        pd: pd as usize,
        send_cq: init.send_cq as usize,
        recv_cq: init.recv_cq as usize,
        srq: init.srq as usize,
        cap,
        signal_all: init.sq_sig_all != 0,
        state: RESET,
        attr: QpAttr::default(),
        peer_device: None,
        receives: VecDeque::new(),
        sends: VecDeque::new(),
        used: 0,
        untold: 0,
        building: None,
        flight: None,
        patience: None,
    };
    world.qps.insert(number, state);
    qp.cast()
}

/// The bits that each step needs, as in the manual of `ibv_modify_qp`.
pub(crate) const TO_INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
pub(crate) const TO_RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
pub(crate) const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

/// What may be said beside: the key's place and rights; the state that it is in, rights and the receiver's timer.
const MAY_RTR: c_int = 1 << 3 | 1 << 4;
const MAY_RTS: c_int = 1 << 1 | 1 << 3 | 1 << 15;

const STATE: c_int = 1;
const CUR_STATE: c_int = 1 << 1;

/// That all is said that must be, and nothing that must not.
fn says(mask: c_int, must: c_int, may: c_int) -> bool {
    mask & must == must && mask & !(must | may) == 0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut Qp,
    attr: *const QpAttr,
    mask: c_int,
) -> c_int {
    plan!("ibv_modify_qp", number);
    // SAFETY: a live queue pair, and a struct given for it.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
    let mut world = WORLD.lock();
    let Some(state) = world.qps.get_mut(&number) else {
        return libc::EINVAL;
    };
    if mask & CUR_STATE != 0 && attr.cur_qp_state != state.state {
        return libc::EINVAL;
    }
    let next = match mask & STATE {
        0 => state.state,
        _ => attr.qp_state,
    };
    match (state.state, next) {
        (_, RESET) if mask == STATE => {
            state.sends.clear();
            state.receives.clear();
            (state.used, state.untold) = (0, 0);
            (state.flight, state.patience) = (None, None);
            (state.attr, state.peer_device) = (QpAttr::default(), None);
            state.state = RESET;
            world.clean(number);
        }
        (RESET | INIT, INIT) if mask == TO_INIT && attr.port_num == 1 && attr.pkey_index == 0 => {
            state.attr.qp_access_flags = attr.qp_access_flags;
            state.attr.port_num = attr.port_num;
            state.state = INIT;
        }
        (INIT, RTR)
            if says(mask, TO_RTR, MAY_RTR)
                && (1..=5).contains(&attr.path_mtu)
                && attr.max_dest_rd_atomic <= 16
                && (mask & 1 << 4 == 0 || attr.pkey_index == 0) =>
        {
            // By GIDs alone, as on Ethernet; this side's is the only one.
            let path = attr.path;
            if path.is_global == 0 || path.port_num != 1 || path.sgid_index != 0 {
                return libc::EINVAL;
            }
            let Some(device) = device_with(path.dgid) else {
                // Nobody says which hardware address that GID has.
                return libc::ETIMEDOUT;
            };
            state.peer_device = Some(device);
            state.attr = QpAttr {
                path,
                path_mtu: attr.path_mtu,
                dest_qp_num: attr.dest_qp_num,
                rq_psn: attr.rq_psn & 0xff_ffff,
                max_dest_rd_atomic: attr.max_dest_rd_atomic,
                min_rnr_timer: attr.min_rnr_timer,
                ..state.attr
            };
            if mask & 1 << 3 != 0 {
                state.attr.qp_access_flags = attr.qp_access_flags;
            }
            state.state = RTR;
        }
        (RTR, RTS)
            if says(mask, TO_RTS, MAY_RTS)
                && attr.retry_cnt <= 7
                && attr.rnr_retry <= 7
                && attr.timeout <= 31
                && attr.max_rd_atomic <= 16 =>
        {
            state.attr = QpAttr {
                sq_psn: attr.sq_psn & 0xff_ffff,
                timeout: attr.timeout,
                retry_cnt: attr.retry_cnt,
                rnr_retry: attr.rnr_retry,
                max_rd_atomic: attr.max_rd_atomic,
                ..state.attr
            };
            also(&mut state.attr, attr, mask);
            state.state = RTS;
        }
        (RTS, RTS) if says(mask, 0, STATE | MAY_RTS) => also(&mut state.attr, attr, mask),
        (_, ERR) if mask == STATE => world.fail(number),
        _ => return libc::EINVAL,
    }
    // What the program reads in its own struct.
    let now = world.qps.get(&number).map_or(ERR, |state| state.state);
    // SAFETY: a live queue pair.
    unsafe { (*qp).state = now };
    world.progress();
    0
}

/// What may be said beside, on the way to RTS and there.
fn also(to: &mut QpAttr, attr: &QpAttr, mask: c_int) {
    if mask & 1 << 3 != 0 {
        to.qp_access_flags = attr.qp_access_flags;
    }
    if mask & 1 << 15 != 0 {
        to.min_rnr_timer = attr.min_rnr_timer;
    }
}

/// Tells all, whatever was asked for.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut Qp,
    to: *mut QpAttr,
    _mask: c_int,
    init: *mut QpInit,
) -> c_int {
    plan!("ibv_query_qp", number);
    // SAFETY: a live queue pair.
    let qp = unsafe { &mut *qp };
    let world = WORLD.lock();
    let Some(state) = world.qps.get(&qp.qp_num) else {
        return libc::EINVAL;
    };
    qp.state = state.state;
    // SAFETY: structs given for it.
    unsafe {
        to.write(QpAttr {
            qp_state: state.state,
            cur_qp_state: state.state,
            cap: state.cap,
            ..state.attr
        });
        init.write(QpInit {
            qp_context: qp.qp_context,
            send_cq: qp.send_cq,
            recv_cq: qp.recv_cq,
            srq: qp.srq,
            cap: state.cap,
            qp_type: qp.qp_type,
            sq_sig_all: c_int::from(state.signal_all),
        });
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    plan!("ibv_destroy_qp", number);
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).qp_num };
    let mut world = WORLD.lock();
    if world.qps.remove(&number).is_none() {
        return libc::EINVAL;
    }
    world.clean(number);
    world.progress();
    World::gone(world, qp as usize);
    // SAFETY: boxed above, and given once.
    drop(unsafe { Box::from_raw(qp.cast::<QpEx>()) });
    0
}
