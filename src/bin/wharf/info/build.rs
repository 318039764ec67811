//! This program, and what of the system transports depend on.

use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde_json::{Value, json};

/// Version and build.
pub(super) fn build() -> Value {
    let features: Vec<&str> = [
        ("etcd", cfg!(feature = "etcd")),
        ("mem-hooks", cfg!(feature = "mem-hooks")),
        ("tools", cfg!(feature = "tools")),
    ]
    .into_iter()
    .filter_map(|(name, has)| has.then_some(name))
    .collect();
    let environment = if cfg!(target_env = "musl") {
        "musl"
    } else if cfg!(target_env = "gnu") {
        "gnu"
    } else {
        "other"
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "target": format!("{}-{}-{environment}", std::env::consts::ARCH, std::env::consts::OS),
        "optimised": !cfg!(debug_assertions),
        "features": features,
    })
}

/// The kernel, and the limits and permissions that decide what works here.
pub(super) fn system() -> Value {
    let kernel = read("/proc/sys/kernel/osrelease");
    // Zero or one processor: the system did not say.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    json!({
        "kernel": kernel,
        "processors": processors,
        "locked_memory_limit": limit(Resource::RLIMIT_MEMLOCK),
        "open_files_limit": limit(Resource::RLIMIT_NOFILE),
        "ptrace_scope": number("/proc/sys/kernel/yama/ptrace_scope"),
        "unprivileged_userfaultfd": number("/proc/sys/vm/unprivileged_userfaultfd"),
        "huge_pages": number("/proc/sys/vm/nr_hugepages"),
    })
}

/// What may be had now; `null`: without limit, or unknown.
fn limit(resource: Resource) -> Value {
    match getrlimit(resource) {
        Ok((soft, _)) if soft != RLIM_INFINITY => json!(soft),
        _ => Value::Null,
    }
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// `null` where the kernel does not have it.
fn number(path: &str) -> Option<u64> {
    read(path)?.parse().ok()
}
