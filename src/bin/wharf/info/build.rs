//! This program, and what of the system transports depend on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde_json::{Value, json};

/// Version and build.
pub(super) fn build() -> Value {
    let features: Vec<&str> = [
        ("axum", cfg!(feature = "axum")),
        ("channel", cfg!(feature = "channel")),
        ("conformance", cfg!(feature = "conformance")),
        ("cuda", cfg!(feature = "cuda")),
        ("etcd", cfg!(feature = "etcd")),
        ("gaudi", cfg!(feature = "gaudi")),
        ("graviola", cfg!(feature = "graviola")),
        ("hyper", cfg!(feature = "hyper")),
        ("mem-hooks", cfg!(feature = "mem-hooks")),
        ("rocm", cfg!(feature = "rocm")),
        ("secret", cfg!(feature = "secret")),
        ("serde", cfg!(feature = "serde")),
        ("tls", cfg!(feature = "tls")),
        ("tonic", cfg!(feature = "tonic")),
        ("tools", cfg!(feature = "tools")),
        ("verbs", cfg!(feature = "verbs")),
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
        "compiler": compiler(),
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

/// What the compiler has left of itself in this program: its name and version. `None` where that was stripped.
fn compiler() -> Option<String> {
    // Of an ELF file of 64 bits: where its sections are described, how long a description is, how many there are; of a section its place and length.
    let file = File::open("/proc/self/exe").ok()?;
    let number = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let short = |at: u64| Some(number(at)? & 0xffff);
    let (first, length, count) = (number(0x28)?, short(0x3a)?, short(0x3c)?);
    (0..count).find_map(|section| {
        let at = first + section * length;
        let (place, size) = (number(at + 0x18)?, number(at + 0x20)?);
        // Remarks of compilers and linkers are short; code, data and what is for debuggers is not.
        let mut bytes = vec![0; usize::try_from(size).ok().filter(|size| *size <= 4096)?];
        file.read_exact_at(&mut bytes, place).ok()?;
        let mut texts = bytes.split(|byte| *byte == 0);
        texts.find_map(|text| {
            let version = str::from_utf8(text).ok()?.strip_prefix("rustc version ")?;
            Some(format!("rustc {version}"))
        })
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
