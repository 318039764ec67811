//! The transports of this build, and which is preferred.

use std::{sync::Arc, time::Duration};

use crate::transport::{
    Accelerator, Transport,
    cuda::CudaCopy,
    loopback::Loopback,
    shm::{Shm, ShmOptions},
    tcp::{Tcp, TcpOptions},
};

/// What can be chosen, the preferred first: the shorter the way, the earlier.
///
/// * `self` stays within the worker: one copy, no peer to wake.
/// * `shm` reaches another process by loads and stores, without a system call.
/// * `cma` reaches memory that is not shared with one system call a transfer, so it comes after. It carries no messages:
///   it is a faculty of a connection that has `shm`, and no [`Transport`] of its own.
/// * `tcp` goes everywhere, through the kernel and with two copies, so it is the last that carries messages.
/// * `cuda_copy` is no [`Transport`] but an [`Accelerator`], which copies at the ends of the others; `cuda_ipc` and `gdr_copy` are faculties of it.
pub(crate) const NAMES: [&str; 7] = [
    "self",
    "shm",
    "cma",
    "tcp",
    "cuda_copy",
    "cuda_ipc",
    "gdr_copy",
];

/// What the kernel takes for the time between keepalive probes, in seconds.
const KEEPALIVE: (u64, u64) = (1, 32_767);

/// Those of [`NAMES`] that carry messages, in the same order. `keepalive` is the silence after which the peer's host is
/// asked whether it is still there; `None`: it never is.
pub(crate) fn built_in(keepalive: Option<Duration>, use_pidfd: bool) -> Vec<Arc<dyn Transport>> {
    // Up to whole seconds.
    let keepalive = keepalive.map(|time| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        Duration::from_secs(seconds.clamp(KEEPALIVE.0, KEEPALIVE.1))
    });
    let shm = ShmOptions { use_pidfd };
    let tcp = TcpOptions {
        keepalive,
        ..TcpOptions::default()
    };
    vec![
        Arc::new(Loopback),
        Arc::new(Shm::new(shm)),
        Arc::new(Tcp::new(tcp)),
    ]
}

/// The kinds of devices of this build that are allowed by their names, in the order in which they are asked.
pub(crate) fn accelerators(allows: impl Fn(&str) -> bool) -> Vec<Arc<dyn Accelerator>> {
    let cuda = CudaCopy::new()
        .ipc(allows("cuda_ipc"))
        .gdr(allows("gdr_copy"));
    let all: [Arc<dyn Accelerator>; 1] = [Arc::new(cuda)];
    let mut all = Vec::from(all);
    all.retain(|device| allows(device.name()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_names_agree() {
        let places: Vec<_> = built_in(None, true)
            .iter()
            .map(|transport| NAMES.iter().position(|name| *name == transport.name()))
            .collect();
        assert!(
            places.iter().all(Option::is_some),
            "a transport under a name that cannot be chosen"
        );
        assert!(places.is_sorted(), "the order differs from the preference");
    }
}
