//! The emulated vendor libraries themselves, each used as a stranger would.

mod stranger_cuda;
