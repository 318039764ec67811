//! The emulated CUDA driver: found beside this program, loaded by path through the real loader, and told how to behave.

use std::path::PathBuf;

use crate::{
    driver::cuda::{Cuda, CudaContext},
    raw::{self, Raw},
};

/// Where the build puts it: beside this program.
pub(crate) fn library() -> PathBuf {
    crate::support::emulated::cuda()
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

/// The emulated driver's functions, as it exports them.
pub(crate) fn raw() -> &'static Raw {
    raw::load(&library()).expect("the emulated driver loads")
}

/// Tells the emulator something, and has its answer.
pub(crate) fn control(text: &str) -> String {
    let _ = cuda();
    crate::support::emulated::control(text)
}

/// How often a function was called.
pub(crate) fn calls(function: &str) -> u64 {
    control(&format!("count {function}"))
        .parse()
        .expect("a number")
}
