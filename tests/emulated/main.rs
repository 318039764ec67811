//! The emulated vendor libraries themselves, each used as a stranger would.

#[path = "../support/mod.rs"]
mod support;

mod stranger_cuda;
mod stranger_synapse;
mod stranger_ucx;
mod stranger_verbs;
