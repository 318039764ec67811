//! The transports of this build, and which is preferred.

use std::{sync::Arc, time::Duration};

use crate::transport::{
    Accelerator, Transport,
    cuda::CudaCopy,
    gaudi::GaudiCopy,
    loopback::Loopback,
    rocm::RocmCopy,
    shm::{Shm, ShmOptions},
    tcp::{Tcp, TcpOptions},
    verbs::{RcOptions, RcVerbs},
};

/// What can be chosen, the preferred first: the shorter the way, the earlier.
///
/// * `self` stays within the worker: one copy, no peer to wake.
/// * `shm` reaches another process by loads and stores, without a system call.
/// * `cma` reaches memory that is not shared with one system call a transfer, so it comes after. It carries no messages:
///   it is a faculty of a connection that has `shm`, and no [`Transport`] of its own.
/// * `rc_verbs` reaches other hosts through InfiniBand and RoCE devices, without a system call for a message.
/// * `tcp` goes everywhere, through the kernel and with two copies, so it is the last that carries messages.
/// * `cuda_copy` is no [`Transport`] but an [`Accelerator`], which copies at the ends of the others; `cuda_ipc` and `gdr_copy` are faculties of it.
/// * `gaudi_copy` is one as well; `gaudi_ipc` and `gaudi_gdr` are faculties of it.
/// * `rocm_copy` is the same for AMD's devices, with `rocm_ipc`.
pub(crate) const NAMES: [&str; 13] = [
    "self",
    "shm",
    "cma",
    "rc_verbs",
    "tcp",
    "cuda_copy",
    "cuda_ipc",
    "gdr_copy",
    "gaudi_copy",
    "gaudi_ipc",
    "gaudi_gdr",
    "rocm_copy",
    "rocm_ipc",
];

/// Those of [`NAMES`] that are parts of another, and of which.
pub(crate) const PARTS: [(&str, &str); 5] = [
    ("cuda_ipc", "cuda_copy"),
    ("gdr_copy", "cuda_copy"),
    ("gaudi_ipc", "gaudi_copy"),
    ("gaudi_gdr", "gaudi_copy"),
    ("rocm_ipc", "rocm_copy"),
];

/// What to do where one of [`NAMES`] is not available, as far as anything can be done about it.
const REMEDIES: [(&str, &str); 6] = [
    (
        "cma",
        "allow it by kernel.yama.ptrace_scope=0, or in a container by CAP_SYS_PTRACE or a seccomp profile with process_vm_readv; without it shm copies twice",
    ),
    (
        "rc_verbs",
        "install rdma-core (libibverbs1, ibverbs-providers), load the device's driver and ib_uverbs, give a container /dev/infiniband and memory to lock (ulimit -l); another library: WHARF_LIBIBVERBS",
    ),
    (
        "cuda_copy",
        "install NVIDIA's driver, give a container its devices and libcuda.so.1 (--gpus all); another library: WHARF_LIBCUDA",
    ),
    (
        "gdr_copy",
        "install GDRCopy (libgdrapi.so.2) and load its kernel module gdrdrv; another library: WHARF_LIBGDRAPI",
    ),
    (
        "gaudi_copy",
        "install Habana's driver and libhl-thunk, give a container /dev/accel; another library: WHARF_LIBHLTHUNK",
    ),
    (
        "rocm_copy",
        "load amdgpu, install the HSA runtime (libhsa-runtime64.so.1), give this user or container /dev/kfd and /dev/dri; another library: WHARF_LIBHSA",
    ),
];

/// What to do where this one is not available.
pub(crate) fn remedy(name: &str) -> Option<&'static str> {
    let mut remedies = REMEDIES.iter();
    remedies
        .find(|(of, _)| *of == name)
        .map(|(_, remedy)| *remedy)
}

/// What the kernel takes for the time between keepalive probes, in seconds.
const KEEPALIVE: (u64, u64) = (1, 32_767);

/// Those of [`NAMES`] that carry messages, in the same order. `keepalive` is the silence after which the peer's host is
/// asked whether it is still there; `None`: it never is.
pub(crate) fn built_in(
    keepalive: Option<Duration>,
    use_pidfd: bool,
    rc: RcOptions,
    tcp: TcpOptions,
) -> Vec<Arc<dyn Transport>> {
    // Up to whole seconds.
    let keepalive = keepalive.map(|time| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        Duration::from_secs(seconds.clamp(KEEPALIVE.0, KEEPALIVE.1))
    });
    let rc = RcOptions { keepalive, ..rc };
    let shm = ShmOptions { use_pidfd };
    let tcp = TcpOptions { keepalive, ..tcp };
    vec![
        Arc::new(Loopback),
        Arc::new(Shm::new(shm)),
        Arc::new(RcVerbs::new(rc)),
        Arc::new(Tcp::new(tcp)),
    ]
}

/// The kinds of devices of this build that are allowed by their names, in the order in which they are asked.
pub(crate) fn accelerators(allows: impl Fn(&str) -> bool) -> Vec<Arc<dyn Accelerator>> {
    let cuda = CudaCopy::new()
        .ipc(allows("cuda_ipc"))
        .gdr(allows("gdr_copy"));
    let gaudi = GaudiCopy::new()
        .ipc(allows("gaudi_ipc"))
        .gdr(allows("gaudi_gdr"));
    let rocm = RocmCopy::new().ipc(allows("rocm_ipc"));
    let all: [Arc<dyn Accelerator>; 3] = [Arc::new(cuda), Arc::new(gaudi), Arc::new(rocm)];
    let mut all = Vec::from(all);
    all.retain(|device| allows(device.name()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_names_agree() {
        let places: Vec<_> = built_in(None, true, RcOptions::default(), TcpOptions::default())
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
