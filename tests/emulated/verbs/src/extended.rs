//! The table that stands before a context, by which the header makes the newer calls.
//!
//! # Safety
//! Pointers come from a C caller; see the crate. Fields are written at the header's offsets.

use std::ffi::{c_int, c_void};

use crate::{
    abi::{Context, Extended},
    completion_ex,
    device::{attributes, index_of, port_attributes},
    plan::plan,
    queue_ex,
};

/// A context with its table. What no emulated device has is null, as a provider may leave it; old libraries have no table.
pub(crate) fn table(mut context: Context, old: bool) -> Extended {
    let function = |function: *const ()| if old { 0 } else { function as usize };
    if !old {
        context.abi_compat = usize::MAX;
    }
    Extended {
        query_port: function(query_port as *const ()),
        _advise_to_create_wq: [0; 23],
        query_rt_values: 0,
        create_cq_ex: function(completion_ex::create_cq_ex as *const ()),
        private: 0,
        query_device_ex: function(query_device_ex as *const ()),
        _flows: [0; 4],
        open_qp: 0,
        create_qp_ex: function(queue_ex::create_qp_ex as *const ()),
        _get_srq_num: 0,
        create_srq_ex: 0,
        _domains: [0; 3],
        size: if old { 0 } else { size_of::<Extended>() },
        context,
    }
}

/// Where the table of a context begins.
pub(crate) fn of(context: *mut Context) -> *mut Extended {
    context
        .wrapping_byte_sub(std::mem::offset_of!(Extended, context))
        .cast()
}

unsafe extern "C" fn query_port(
    context: *mut Context,
    port: u8,
    to: *mut u8,
    size: usize,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { port_attributes(context, port, to, size) }
}

/// The struct with what was added to it: nothing of which these devices have, but the number of ports.
unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    input: *const c_void,
    to: *mut u8,
    size: usize,
) -> c_int {
    plan!("ibv_query_device_ex", number);
    // SAFETY: the input begins with its mask; a live context, and so many bytes are given.
    unsafe {
        if size < 240 || (!input.is_null() && input.cast::<u32>().read() != 0) {
            return libc::EINVAL;
        }
        to.write_bytes(0, size);
        attributes(index_of((*context).device), to);
        if size >= 400 {
            to.add(396).cast::<u32>().write(1);
        }
    }
    0
}
