//! The emulated CUDA driver: found beside this program, loaded by path through the real loader, and told how to behave.
//!
//! # Safety
//! The control function is called with the signature that the emulator's crate declares.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char},
    path::PathBuf,
};

use crate::driver::cuda::{Cuda, CudaContext};

/// Where the build puts it: beside this program.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let path = program.with_file_name("libwharf_emulated_cuda.so");
    assert!(path.exists(), "{} is not built", path.display());
    path
}

/// The emulated driver, loaded as any other.
pub(crate) fn cuda() -> &'static Cuda {
    Cuda::load(Some(&library())).expect("the emulated driver loads")
}

/// The primary context of a device.
pub(crate) fn context(ordinal: u16) -> CudaContext {
    let device = cuda().device(ordinal).expect("a device");
    device.primary_context().expect("a context")
}

/// Tells the emulator something, and has its answer.
pub(crate) fn control(text: &str) -> String {
    type Control = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
    // SAFETY: the function has this signature, and the library stays loaded by `cuda`.
    unsafe {
        let _ = cuda();
        let library = libloading::Library::new(library()).expect("is loaded");
        let call = library
            .get::<Control>("wharf_emulated_control")
            .expect("exported");
        let text = CString::new(text).expect("no zero");
        let mut answer = vec![0_u8; 64 << 10];
        let code = call(text.as_ptr(), answer.as_mut_ptr().cast(), answer.len());
        let answer = CStr::from_bytes_until_nul(&answer).expect("ends with a zero");
        assert!(code >= 0, "{text:?}: {answer:?}");
        answer.to_string_lossy().trim().to_owned()
    }
}

/// How often a function was called.
pub(crate) fn calls(function: &str) -> u64 {
    control(&format!("count {function}"))
        .parse()
        .expect("a number")
}
