//! Versions of the exported names, as programs that were linked against `libibverbs.so.1` ask for them.
//!
//! `rustc` gives the linker a version script of its own, with the names that the crate exports and without versions. LLD takes ours beside it, GNU's linker
//! takes none beside it: so it is tried here, on a library of a line. Where it does not go the names have no versions; the loader then says so, and
//! runs the programs all the same.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// From `libibverbs.map` of rdma-core; that of what is private to its programs has the number of Debian 12's, 44:
/// programs of a newer one that ask for it find another number, and do not start.
const SCRIPT: &str = "
IBVERBS_1.0 {};
IBVERBS_1.1 {} IBVERBS_1.0;
IBVERBS_1.5 {} IBVERBS_1.1;
IBVERBS_1.6 {} IBVERBS_1.5;
IBVERBS_1.7 {} IBVERBS_1.6;
IBVERBS_1.8 {} IBVERBS_1.7;
IBVERBS_1.9 {} IBVERBS_1.8;
IBVERBS_1.11 {} IBVERBS_1.9;
IBVERBS_1.12 {} IBVERBS_1.11;
IBVERBS_1.13 {} IBVERBS_1.12;
IBVERBS_PRIVATE_34 {};
";

/// What `versions.rs` does, once.
const TRIAL: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() {}
core::arch::global_asm!(
    ".globl versioned_ibv_fork_init",
    "versioned_ibv_fork_init:",
    ".symver versioned_ibv_fork_init, ibv_fork_init@IBVERBS_1.1, remove",
);
"#;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(symbol_versions)");
    // Addresses of the library's own functions are settled when it is linked: a process may have the real one, too.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    let script = folder.join("versions.map");
    fs::write(&script, SCRIPT).expect("a folder of ours");
    let argument = format!("-Wl,--version-script={}", script.display());
    if known() && links(&folder, &argument) {
        println!("cargo::rustc-cdylib-link-arg={argument}");
        println!("cargo::rustc-cfg=symbol_versions");
    }
}

/// Whether `versions.rs` has a jump for this processor.
fn known() -> bool {
    let architecture = env::var("CARGO_CFG_TARGET_ARCH");
    architecture.is_ok_and(|name| name == "x86_64" || name == "aarch64")
}

fn links(folder: &Path, argument: &str) -> bool {
    let (source, library) = (folder.join("trial.rs"), folder.join("libtrial.so"));
    fs::write(&source, TRIAL).expect("a folder of ours");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("Cargo sets it"));
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--target"]);
    rustc.arg(env::var_os("TARGET").expect("Cargo sets it"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    // What the library itself is built with, that chooses another linker.
    if let Ok(flags) = env::var("CARGO_ENCODED_RUSTFLAGS") {
        rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    }
    rustc.arg("-C").arg(format!("link-arg={argument}"));
    rustc.arg("-o").arg(&library).arg(&source);
    let quiet = rustc.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
