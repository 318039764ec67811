//! CUDA devices.

pub(crate) mod ipc;
