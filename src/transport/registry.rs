//! The transports of this build, and which is preferred.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

#[cfg(feature = "cuda")]
use crate::transport::cuda::CudaCopy;
#[cfg(feature = "gaudi")]
use crate::transport::gaudi::GaudiCopy;
#[cfg(feature = "rocm")]
use crate::transport::rocm::RocmCopy;
#[cfg(feature = "verbs")]
use crate::transport::verbs::{RcOptions, RcVerbs};
use crate::{
    transport::{
        Accelerator, Transport,
        loopback::Loopback,
        shm::{Shm, ShmOptions},
        tcp::{Tcp, TcpOptions},
    },
    util::features::is_built_in,
};

/// What can be chosen, the preferred first: the shorter the way, the earlier. With the feature that brings it, where it can be left out of a build; and
/// of which other it is a part.
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
const ALL: [(&str, Option<&str>, Option<&str>); 13] = [
    ("self", None, None),
    ("shm", None, None),
    ("cma", None, None),
    ("rc_verbs", Some("verbs"), None),
    ("tcp", None, None),
    ("cuda_copy", Some("cuda"), None),
    ("cuda_ipc", Some("cuda"), Some("cuda_copy")),
    ("gdr_copy", Some("cuda"), Some("cuda_copy")),
    ("gaudi_copy", Some("gaudi"), None),
    ("gaudi_ipc", Some("gaudi"), Some("gaudi_copy")),
    ("gaudi_gdr", Some("gaudi"), Some("gaudi_copy")),
    ("rocm_copy", Some("rocm"), None),
    ("rocm_ipc", Some("rocm"), Some("rocm_copy")),
];

/// Those that are in this build.
pub(crate) static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let here = |feature: Option<&str>| feature.is_none_or(is_built_in);
    let names = ALL.into_iter().filter(|(_, feature, _)| here(*feature));
    names.map(|(name, ..)| name).collect()
});

/// Those that were left out of this build, and the feature that would bring each.
pub(crate) fn left_out() -> impl Iterator<Item = (&'static str, &'static str)> {
    let features = ALL
        .into_iter()
        .filter_map(|(name, feature, _)| Some((name, feature?)));
    features.filter(|(_, feature)| !is_built_in(feature))
}

/// Of which other this one is a part.
pub(crate) fn part_of(name: &str) -> Option<&'static str> {
    ALL.into_iter().find(|(part, ..)| *part == name)?.2
}

/// The feature that would bring this one, where it was left out of this build.
pub(crate) fn missing_feature(name: &str) -> Option<&'static str> {
    left_out()
        .find(|(left, _)| *left == name)
        .map(|(_, feature)| feature)
}

/// What to do where one of [`NAMES`] is not available, as far as anything can be done about it.
const REMEDIES: [(&str, &str); 7] = [
    (
        "shm",
        "allow memfd_create and timerfd_create; WHARF_TLS=^shm does without it",
    ),
    (
        "cma",
        "allow it by kernel.yama.ptrace_scope=0, or in a container by CAP_SYS_PTRACE or a seccomp profile with process_vm_readv; without it (WHARF_CMA=n) shm copies twice what is not of Context::allocate",
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
    match missing_feature(name) {
        Some("cuda") => return Some("build wharf with its feature `cuda`"),
        Some("gaudi") => return Some("build wharf with its feature `gaudi`"),
        Some("rocm") => return Some("build wharf with its feature `rocm`"),
        Some("verbs") => return Some("build wharf with its feature `verbs`"),
        _ => {}
    }
    let mut remedies = REMEDIES.iter();
    remedies
        .find(|(of, _)| *of == name)
        .map(|(_, remedy)| *remedy)
}

/// What to do where network devices refuse memory.
pub(crate) const REFUSED_MEMORY: &str = "raise the limit on locked memory (ulimit -l, LimitMEMLOCK=), or take what the devices can have: memory of Context::allocate, or of a device that exports it";

/// What to do where both ends have this one and it does not come about between them.
pub(crate) fn remedy_between(name: &str) -> Option<&'static str> {
    match name {
        "shm" => Some(
            "let both processes run as one user, and in their host's network namespace; WHARF_TLS=^shm does without it",
        ),
        _ => remedy(name),
    }
}

/// What the kernel takes for the time between keepalive probes, in seconds.
const KEEPALIVE: (u64, u64) = (1, 32_767);

/// Those of [`NAMES`] that carry messages, in the same order. `keepalive` is the silence after which the peer's host is
/// asked whether it is still there; `None`: it never is.
pub(crate) fn built_in(
    keepalive: Option<Duration>,
    use_pidfd: bool,
    #[cfg(feature = "verbs")] rc: RcOptions,
    tcp: TcpOptions,
) -> Vec<Arc<dyn Transport>> {
    // Up to whole seconds.
    let keepalive = keepalive.map(|time| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        Duration::from_secs(seconds.clamp(KEEPALIVE.0, KEEPALIVE.1))
    });
    #[cfg(feature = "verbs")]
    let rc = RcOptions { keepalive, ..rc };
    let shm = ShmOptions { use_pidfd };
    let tcp = TcpOptions { keepalive, ..tcp };
    vec![
        Arc::new(Loopback),
        Arc::new(Shm::new(shm)),
        #[cfg(feature = "verbs")]
        Arc::new(RcVerbs::new(rc)),
        Arc::new(Tcp::new(tcp)),
    ]
}

/// The kinds of devices of this build that are allowed by their names, in the order in which they are asked.
pub(crate) fn accelerators(allows: impl Fn(&str) -> bool) -> Vec<Arc<dyn Accelerator>> {
    #[cfg(feature = "cuda")]
    let cuda = CudaCopy::new()
        .ipc(allows("cuda_ipc"))
        .gdr(allows("gdr_copy"));
    #[cfg(feature = "gaudi")]
    let gaudi = GaudiCopy::new()
        .ipc(allows("gaudi_ipc"))
        .gdr(allows("gaudi_gdr"));
    #[cfg(feature = "rocm")]
    let rocm = RocmCopy::new().ipc(allows("rocm_ipc"));
    let mut all: Vec<Arc<dyn Accelerator>> = vec![
        #[cfg(feature = "cuda")]
        Arc::new(cuda),
        #[cfg(feature = "gaudi")]
        Arc::new(gaudi),
        #[cfg(feature = "rocm")]
        Arc::new(rocm),
    ];
    all.retain(|device| allows(device.name()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_names_agree() {
        let transports = built_in(
            None,
            true,
            #[cfg(feature = "verbs")]
            RcOptions::default(),
            TcpOptions::default(),
        );
        let places: Vec<_> = transports
            .iter()
            .map(|transport| NAMES.iter().position(|name| *name == transport.name()))
            .collect();
        assert!(
            places.iter().all(Option::is_some),
            "a transport under a name that cannot be chosen"
        );
        assert!(places.is_sorted(), "the order differs from the preference");
    }

    /// What is not here was left out with its feature.
    #[test]
    fn each_is_here_or_left_out() {
        for (name, feature, _) in ALL {
            let is_left_out = left_out().any(|left| Some(left.1) == feature && left.0 == name);
            assert_ne!(NAMES.contains(&name), is_left_out, "{name}");
        }
        assert_eq!(NAMES.len() + left_out().count(), ALL.len());
    }
}
