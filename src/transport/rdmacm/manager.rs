//! The connection manager's library, or why there are no connections by RDMA address.

use crate::{
    driver::{
        rdmacm::{Libraries, RdmaCm},
        verbs::Verbs,
    },
    error::{Error, Result},
};

/// The libraries, loaded at the first call. May take milliseconds.
/// Errors: why connections by RDMA address are not available here.
pub(super) fn manager(libraries: &Libraries) -> Result<(&'static RdmaCm, &'static Verbs)> {
    libraries.load().map_err(unavailable)
}

/// Says what is not available.
#[cold]
pub(super) fn unavailable(error: Error) -> Error {
    let text = format!("connections by RDMA address are not available: {error}");
    Error::new(error.kind(), text).with_source(error)
}
