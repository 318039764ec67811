//! Whether shared libraries have been loaded into this process.
//!
//! # Safety
//! The callback of `dl_iterate_phdr` gets a description that lives for the call, of the size that it is told, and a pointer to a local variable.
#![allow(unsafe_code)]

use std::{ffi::c_void, mem::offset_of};

/// How many libraries were ever loaded into this process. When it has not changed, none has been. About 100 ns.
pub(crate) fn loads() -> u64 {
    unsafe extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        size: libc::size_t,
        data: *mut c_void,
    ) -> libc::c_int {
        // Old loaders give less than the whole structure.
        if size >= offset_of!(libc::dl_phdr_info, dlpi_subs) {
            // SAFETY: the loader's description, which is this long.
            let adds = unsafe { (*info).dlpi_adds };
            // SAFETY: the variable of the caller below.
            unsafe { *data.cast::<u64>() = adds };
        }
        // Not zero: no more are wanted.
        1
    }
    let mut adds = 0_u64;
    // SAFETY: the callback is of the type that is called for, and the variable outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut adds).cast()) };
    adds
}

#[cfg(test)]
mod tests {
    #[test]
    fn loads_are_counted() {
        assert!(super::loads() > 0);
    }
}
