//! Where code is not patched: built without the feature, or for another system.

use crate::error::{Error, ErrorKind, Operation, Result};

/// # Safety
/// Does nothing.
/// Errors: `Unsupported`, always.
#[allow(unsafe_code)]
pub(super) unsafe fn install() -> Result<()> {
    let why = match cfg!(feature = "mem-hooks") {
        true => "code is patched on x86-64 Linux with glibc only",
        false => "built without the feature `mem-hooks`",
    };
    Err(Error::new(ErrorKind::Unsupported, why).during(Operation::Memory))
}

pub(super) fn healthy() -> bool {
    false
}

pub(super) fn stand() -> bool {
    false
}

pub(super) fn check(_: bool) -> bool {
    false
}

pub(super) fn disable() {}
