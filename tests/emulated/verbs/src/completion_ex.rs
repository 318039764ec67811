//! Extended queues for completions, of which a program reads one completion at a time, by fields.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use crate::{
    abi::{Context, Cq, CqEx, CqInitEx, Wc},
    completion::{self, Readers},
    plan::{null, plan},
    world::WORLD,
};

/// Fields that can be asked for: all but those of a clock, of VLANs and of tags.
const FIELDS: u64 = 0x7f;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut Context,
    init: *mut CqInitEx,
) -> *mut CqEx {
    plan!("ibv_create_cq_ex", pointer);
    // SAFETY: given for it.
    let init = unsafe { &*init };
    if init.wc_flags & !FIELDS != 0 || init.comp_mask != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let Ok(entries) = c_int::try_from(init.cqe) else {
        return null(libc::EINVAL);
    };
    let vector = init.comp_vector as c_int;
    completion::new(
        context,
        entries,
        init.cq_context,
        init.channel,
        vector,
        READERS,
    )
    .cast()
}

/// In the header's order.
const READERS: Readers = [
    start_poll as *const c_void,
    next_poll as *const c_void,
    end_poll as *const c_void,
    read_opcode as *const c_void,
    read_vendor_err as *const c_void,
    read_byte_len as *const c_void,
    read_imm_data as *const c_void,
    read_qp_num as *const c_void,
    read_src_qp as *const c_void,
    read_wc_flags as *const c_void,
    read_slid as *const c_void,
    read_sl as *const c_void,
    read_dlid_path_bits as *const c_void,
    ptr::null(),
    ptr::null(),
    ptr::null(),
    ptr::null(),
    ptr::null(),
];

/// # Safety
/// A live queue.
unsafe fn advance(cq: *mut CqEx) -> c_int {
    let mut world = WORLD.lock();
    let at = cq as usize;
    let next = world.poll(at);
    let Some(state) = world.cqs.get_mut(&at) else {
        return libc::EINVAL;
    };
    let failed = state.failed;
    match next {
        Some(wc) => {
            state.current = wc;
            // SAFETY: the caller says so.
            unsafe {
                (*cq).status = wc.status;
                (*cq).wr_id = wc.wr_id;
            }
            0
        }
        None if failed => libc::EIO,
        None => {
            completion::give_way(world);
            libc::ENOENT
        }
    }
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *const u32) -> c_int {
    plan!("ibv_poll_cq", number);
    // SAFETY: a mask is given.
    if unsafe { attr.read() } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: a live queue.
    unsafe { advance(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    // SAFETY: a live queue.
    unsafe { advance(cq) }
}

extern "C" fn end_poll(_cq: *mut Cq) {}

fn current(cq: *mut CqEx) -> Wc {
    let world = WORLD.lock();
    let state = world.cqs.get(&(cq as usize));
    state.map_or_else(Wc::default, |state| state.current)
}

extern "C" fn read_opcode(cq: *mut CqEx) -> u32 {
    current(cq).opcode
}

extern "C" fn read_vendor_err(cq: *mut CqEx) -> u32 {
    current(cq).vendor_err
}

extern "C" fn read_byte_len(cq: *mut CqEx) -> u32 {
    current(cq).byte_len
}

extern "C" fn read_imm_data(cq: *mut CqEx) -> u32 {
    current(cq).imm_data
}

extern "C" fn read_qp_num(cq: *mut CqEx) -> u32 {
    current(cq).qp_num
}

extern "C" fn read_src_qp(cq: *mut CqEx) -> u32 {
    current(cq).src_qp
}

extern "C" fn read_wc_flags(cq: *mut CqEx) -> u32 {
    current(cq).wc_flags
}

extern "C" fn read_slid(cq: *mut CqEx) -> u32 {
    u32::from(current(cq).slid)
}

extern "C" fn read_sl(cq: *mut CqEx) -> u8 {
    current(cq).sl
}

extern "C" fn read_dlid_path_bits(cq: *mut CqEx) -> u8 {
    current(cq).dlid_path_bits
}
