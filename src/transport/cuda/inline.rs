//! Copies that the processor makes by itself, within the call.

use std::fmt;

use crate::{error::Result, transport::accelerator::CopyRequest};

/// A window of the processor's into device memory (`gdr_copy`), for copies too small to be worth a stream's while.
pub(super) trait InlineCopy: Send + fmt::Debug {
    /// Makes the copy now if it can and it pays; `false`: a stream makes it. The host's end may be ordinary memory. Called with the worker's
    /// lock held: it makes no slow call; what is not mapped yet is mapped by another thread meanwhile.
    ///
    /// # Errors
    /// This copy cannot be made at all.
    ///
    /// # Safety
    /// As of [`CopyEngine::copy`](crate::transport::accelerator::CopyEngine::copy), for the length of the call.
    #[allow(unsafe_code)]
    unsafe fn try_copy(&mut self, request: &CopyRequest) -> Result<bool>;
}
