//! One Linux facility a file, each with a safe face where one is possible.
//!
//! Comes in: file descriptors, process ids, names, addresses. Goes out: owned descriptors, mappings, copied bytes, `io::Result`.
//! Uses `types` for the process's identity, and no other room: it knows neither transports nor workers.
//! Tests: beside each facility.

pub(crate) mod abstract_socket;
pub(crate) mod bell;
pub(crate) mod biased;
#[cfg_attr(
    not(all(feature = "channel", feature = "cuda", feature = "verbs")),
    allow(dead_code, reason = "these use all of it")
)]
pub(crate) mod blocking;
pub(crate) mod eventfd;
pub(crate) mod fd_passing;
pub(crate) mod fd_socket;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod identity;
pub(crate) mod interfaces;
pub(crate) mod libraries;
pub(crate) mod mappings;
pub(crate) mod membarrier;
pub(crate) mod memfd;
pub(crate) mod pages;
pub(crate) mod pidfd;
pub(crate) mod process;
pub(crate) mod process_vm;
#[cfg_attr(
    wharf_loom,
    allow(dead_code, reason = "models have names of their own")
)]
pub(crate) mod threads;
pub(crate) mod timerfd;
pub(crate) mod topology;
pub(crate) mod udmabuf;
pub(crate) mod userfaultfd;
