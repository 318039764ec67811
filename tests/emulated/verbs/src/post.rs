//! Posting of requests.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{ffi::c_int, slice};

use crate::{
    abi::{Qp, RecvWr, SendWr, Sge, Srq},
    bytes::bytes_at,
    device::PIECES,
    plan::struck,
    world::{
        ADD, ERR, INLINE, JOURNAL, QpState, RESET, RTS, Receive, SEND_IMM, Send, WORLD, World,
    },
};

/// An array of pieces; one more than there may be is refused when it is posted.
///
/// # Safety
/// An array of the caller's.
unsafe fn pieces(list: *const Sge, count: c_int) -> Vec<Sge> {
    match usize::try_from(count) {
        // SAFETY: the caller says so.
        Ok(count) if count > 0 => unsafe {
            slice::from_raw_parts(list, count.min(PIECES as usize + 1)).to_vec()
        },
        _ => Vec::new(),
    }
}

/// The error number with which a request may not be posted.
pub(crate) fn refused(state: &QpState, send: &Send) -> Option<c_int> {
    let inline = send.flags & INLINE != 0;
    let most = match inline {
        true => u64::from(state.cap.max_inline_data),
        false => 1 << 31,
    };
    let fine = matches!(state.state, RTS | ERR)
        && send.opcode <= ADD
        && send.pieces.len() <= state.cap.max_send_sge as usize
        && send.length() <= most
        && !(inline && send.opcode > SEND_IMM);
    match fine {
        false => Some(libc::EINVAL),
        true if state.used >= state.cap.max_send_wr => Some(libc::ENOMEM),
        true => None,
    }
}

/// Puts a request that may be posted in its place.
pub(crate) fn place(world: &mut World, number: u32, send: Send) {
    const KINDS: [&str; 7] = [
        "RDMA_WRITE",
        "RDMA_WRITE_WITH_IMM",
        "SEND",
        "SEND_WITH_IMM",
        "RDMA_READ",
        "ATOMIC_CMP_AND_SWP",
        "ATOMIC_FETCH_AND_ADD",
    ];
    // What was posted, for tests that ask how bytes travelled: `count RDMA_READ`.
    if let Some(kind) = KINDS.get(send.opcode as usize) {
        JOURNAL.call(kind, [0; 4], 0);
    }
    let Some(state) = world.qps.get_mut(&number) else {
        return;
    };
    let failed = state.state == ERR;
    state.used += 1;
    state.sends.push_back(send);
    if failed {
        world.fail(number);
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut Qp,
    mut request: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).qp_num };
    let mut answer = 0;
    let mut world = WORLD.lock();
    while !request.is_null() {
        // SAFETY: a request of the caller's, with the pieces that it names.
        let (wr, list) = unsafe { (&*request, pieces((*request).sg_list, (*request).num_sge)) };
        let struck = struck("ibv_post_send");
        let Some(state) = world.qps.get(&number) else {
            return libc::EINVAL;
        };
        let mut send = Send {
            id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            imm: wr.imm_data,
            inline: None,
            pieces: list,
            wr: wr.wr,
        };
        answer = match struck {
            Some(code) => code as c_int,
            None => refused(state, &send).unwrap_or(0),
        };
        if answer != 0 {
            // SAFETY: given for it.
            unsafe { *bad = request };
            break;
        }
        if send.flags & INLINE != 0 {
            let copied = |piece: &Sge| {
                // SAFETY: inline bytes are readable while they are posted.
                unsafe { bytes_at(piece.addr, piece.length as usize) }
            };
            send.inline = Some(send.pieces.iter().flat_map(copied).collect());
        }
        place(&mut world, number, send);
        request = wr.next;
    }
    world.progress();
    answer
}

/// Posts receives where `place` says.
unsafe fn post_receives(
    mut request: *mut RecvWr,
    bad: *mut *mut RecvWr,
    mut place: impl FnMut(Receive) -> c_int,
) -> c_int {
    while !request.is_null() {
        // SAFETY: a request of the caller's, with the pieces that it names.
        let (wr, list) = unsafe { (&*request, pieces((*request).sg_list, (*request).num_sge)) };
        let answer = match struck("ibv_post_recv") {
            Some(code) => code as c_int,
            None => place(Receive {
                id: wr.wr_id,
                pieces: list,
            }),
        };
        if answer != 0 {
            // SAFETY: given for it.
            unsafe { *bad = request };
            return answer;
        }
        request = wr.next;
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut Qp,
    request: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).qp_num };
    let mut world = WORLD.lock();
    let place = |receive: Receive| {
        let Some(state) = world.qps.get_mut(&number) else {
            return libc::EINVAL;
        };
        if state.state == RESET
            || state.srq != 0
            || receive.pieces.len() > state.cap.max_recv_sge as usize
        {
            return libc::EINVAL;
        }
        if state.receives.len() >= state.cap.max_recv_wr as usize {
            return libc::ENOMEM;
        }
        state.receives.push_back(receive);
        if state.state == ERR {
            world.fail(number);
        }
        0
    };
    // SAFETY: the caller's requests.
    let answer = unsafe { post_receives(request, bad, place) };
    world.progress();
    answer
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    request: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    let mut world = WORLD.lock();
    let place = |receive: Receive| match world.srqs.get_mut(&(srq as usize)) {
        Some(state) if receive.pieces.len() > state.pieces as usize => libc::EINVAL,
        Some(state) if state.receives.len() >= state.room => libc::ENOMEM,
        Some(state) => {
            state.receives.push_back(receive);
            0
        }
        None => libc::EINVAL,
    };
    // SAFETY: the caller's requests.
    let answer = unsafe { post_receives(request, bad, place) };
    world.progress();
    answer
}
