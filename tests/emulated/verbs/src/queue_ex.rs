//! Extended queue pairs, to which a program posts by calls that build requests one after the other.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    ffi::{c_int, c_void},
    ptr, slice,
};

use crate::{
    abi::{Context, DataBuf, Qp, QpEx, QpInit, QpInitEx, Sge},
    bytes::bytes_at,
    device::PIECES,
    plan::{null, plan},
    post,
    queue::{self, Builders},
    world::{ADD, CAS, INLINE, JOURNAL, READ, SEND, SEND_IMM, Send, WORLD, WRITE, WRITE_IMM},
};

/// Of the mask of the struct: a domain, and which requests are to be built.
const PD: u32 = 1;
const SEND_OPS: u32 = 1 << 6;
/// Requests that can be built: writes, sends, reads and atomics.
const BUILT: u64 = 0x7f;

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut Context,
    init: *mut QpInitEx,
) -> *mut Qp {
    plan!("ibv_create_qp_ex", pointer);
    // SAFETY: given for it.
    let (plain, init) = unsafe { (init.cast::<QpInit>(), &*init) };
    if init.comp_mask & PD == 0 || init.comp_mask & !(PD | SEND_OPS) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let builds = init.comp_mask & SEND_OPS != 0;
    if builds && init.send_ops_flags & !BUILT != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: a live domain.
    if unsafe { (*init.pd).context } != context {
        return null(libc::EINVAL);
    }
    let builders = if builds { BUILDERS } else { queue::NONE };
    // SAFETY: a live domain, and the struct begins as the plain one does.
    unsafe { queue::new(init.pd, plain, builders) }
}

/// The queue pair, if it was made for it; else null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
    let qp = qp.cast::<QpEx>();
    // SAFETY: a live queue pair; all are made with room for it.
    if unsafe { (*qp).functions[BEGIN] }.is_null() {
        return ptr::null_mut();
    }
    qp
}

/// Where `wr_start` stands.
const BEGIN: usize = 17;

/// In the header's order.
const BUILDERS: Builders = [
    compare_swap as *const c_void,
    fetch_add as *const c_void,
    ptr::null(),
    ptr::null(),
    read as *const c_void,
    write as *const c_void,
    write_imm as *const c_void,
    send as *const c_void,
    send_imm as *const c_void,
    ptr::null(),
    ptr::null(),
    ptr::null(),
    ptr::null(),
    set_inline_data as *const c_void,
    set_inline_data_list as *const c_void,
    set_sge as *const c_void,
    set_sge_list as *const c_void,
    start as *const c_void,
    complete as *const c_void,
    abort as *const c_void,
    ptr::null(),
    ptr::null(),
];

/// Begins a request.
///
/// # Safety
/// A live queue pair.
unsafe fn build(qp: *mut QpEx, opcode: u32, imm: u32, wr: [u64; 4]) {
    // SAFETY: the caller says so.
    let (number, id, flags) = unsafe { ((*qp).base.qp_num, (*qp).wr_id, (*qp).wr_flags) };
    let mut world = WORLD.lock();
    match world.qps.get_mut(&number).map(|state| &mut state.building) {
        Some(Some(building)) => building.push(Send {
            id,
            opcode,
            flags: flags & !INLINE,
            imm,
            pieces: Vec::new(),
            inline: None,
            wr,
        }),
        _ => JOURNAL.misuse("ibv_wr_… without ibv_wr_start".to_owned()),
    }
}

/// Changes the request that was begun last.
///
/// # Safety
/// A live queue pair.
unsafe fn change(qp: *mut QpEx, change: impl FnOnce(&mut Send)) {
    // SAFETY: the caller says so.
    let number = unsafe { (*qp).base.qp_num };
    let mut world = WORLD.lock();
    let state = world.qps.get_mut(&number);
    match state.and_then(|state| state.building.as_mut()?.last_mut()) {
        Some(send) => change(send),
        None => JOURNAL.misuse("ibv_wr_set_… without a request".to_owned()),
    }
}

unsafe extern "C" fn start(qp: *mut QpEx) {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).base.qp_num };
    if let Some(state) = WORLD.lock().qps.get_mut(&number)
        && state.building.replace(Vec::new()).is_some()
    {
        JOURNAL.misuse("ibv_wr_start after ibv_wr_start".to_owned());
    }
}

/// All of them are posted, or none.
unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).base.qp_num };
    let mut world = WORLD.lock();
    let Some(state) = world.qps.get_mut(&number) else {
        return libc::EINVAL;
    };
    let Some(sends) = state.building.take() else {
        JOURNAL.misuse("ibv_wr_complete without ibv_wr_start".to_owned());
        return libc::EINVAL;
    };
    let free = state.cap.max_send_wr.saturating_sub(state.used);
    if sends.len() > free as usize {
        return libc::ENOMEM;
    }
    if let Some(errno) = sends.iter().find_map(|send| post::refused(state, send)) {
        return errno;
    }
    for send in sends {
        post::place(&mut world, number, send);
    }
    world.progress();
    0
}

unsafe extern "C" fn abort(qp: *mut QpEx) {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).base.qp_num };
    if let Some(state) = WORLD.lock().qps.get_mut(&number) {
        state.building = None;
    }
}

unsafe extern "C" fn compare_swap(qp: *mut QpEx, key: u32, address: u64, compare: u64, swap: u64) {
    // SAFETY: a live queue pair.
    unsafe { build(qp, CAS, 0, [address, compare, swap, u64::from(key)]) };
}

unsafe extern "C" fn fetch_add(qp: *mut QpEx, key: u32, address: u64, add: u64) {
    // SAFETY: a live queue pair.
    unsafe { build(qp, ADD, 0, [address, add, 0, u64::from(key)]) };
}

unsafe extern "C" fn read(qp: *mut QpEx, key: u32, address: u64) {
    // SAFETY: a live queue pair.
    unsafe { build(qp, READ, 0, [address, u64::from(key), 0, 0]) };
}

unsafe extern "C" fn write(qp: *mut QpEx, key: u32, address: u64) {
    // SAFETY: a live queue pair.
    unsafe { build(qp, WRITE, 0, [address, u64::from(key), 0, 0]) };
}

unsafe extern "C" fn write_imm(qp: *mut QpEx, key: u32, address: u64, imm: u32) {
    // SAFETY: a live queue pair.
    unsafe { build(qp, WRITE_IMM, imm, [address, u64::from(key), 0, 0]) };
}

unsafe extern "C" fn send(qp: *mut QpEx) {
    // SAFETY: a live queue pair.
    unsafe { build(qp, SEND, 0, [0; 4]) };
}

unsafe extern "C" fn send_imm(qp: *mut QpEx, imm: u32) {
    // SAFETY: a live queue pair.
    unsafe { build(qp, SEND_IMM, imm, [0; 4]) };
}

unsafe extern "C" fn set_sge(qp: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: a live queue pair.
    unsafe { change(qp, |send| send.pieces = vec![Sge { addr, length, lkey }]) };
}

unsafe extern "C" fn set_sge_list(qp: *mut QpEx, count: usize, list: *const Sge) {
    // One more than there may be is refused when it is posted.
    let count = count.min(PIECES as usize + 1);
    // SAFETY: a live queue pair, and so many pieces.
    unsafe {
        let list = match count {
            0 => Vec::new(),
            count => slice::from_raw_parts(list, count).to_vec(),
        };
        change(qp, |send| send.pieces = list);
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut QpEx, address: *const c_void, length: usize) {
    let buffer = DataBuf {
        address: address as u64,
        length,
    };
    // SAFETY: a live queue pair, and a buffer of the caller's.
    unsafe { set_inline_data_list(qp, 1, &raw const buffer) };
}

unsafe extern "C" fn set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    // SAFETY: a live queue pair, and so many buffers, all of them readable.
    unsafe {
        let buffers = match count {
            0 => &[][..],
            count => slice::from_raw_parts(list, count),
        };
        let mut bytes = Vec::new();
        for buffer in buffers {
            bytes.extend(bytes_at(buffer.address, buffer.length));
        }
        change(qp, |send| {
            send.flags |= INLINE;
            send.inline = Some(bytes);
        });
    }
}
