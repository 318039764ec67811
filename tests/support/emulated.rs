//! Where the emulated vendor libraries are: Cargo builds them for the tests and puts them beside the test's executable,
//! whatever the profile and the target folder.
//!
//! # Safety
//! The control function is called with the signature that the emulator's crate declares.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char},
    fs, io,
    path::{Path, PathBuf},
};

/// The emulated CUDA driver, for `WHARF_LIBCUDA`.
pub(crate) fn cuda() -> PathBuf {
    beside("libwharf_emulated_cuda.so")
}

/// The emulated GDRCopy over that driver, for `WHARF_LIBGDRAPI`.
pub(crate) fn gdr() -> PathBuf {
    beside("libwharf_emulated_gdr.so")
}

/// The emulated HSA runtime, for `WHARF_LIBHSA`.
pub(crate) fn hsa() -> PathBuf {
    beside("libwharf_emulated_hsa.so")
}

/// The emulated management library, for programs that look for `libnvidia-ml.so.1`.
pub(crate) fn nvml() -> PathBuf {
    beside("libwharf_emulated_nvml.so")
}

/// The few functions of the CUDA runtime, for programs that look for `libcudart.so.12`.
pub(crate) fn cudart() -> PathBuf {
    beside("libwharf_emulated_cudart.so")
}

/// The emulated libhl-thunk, for `WHARF_LIBHLTHUNK`.
pub(crate) fn hlthunk() -> PathBuf {
    beside("libwharf_emulated_hlthunk.so")
}

/// The emulated Synapse, for `WHARF_LIBSYNAPSE`.
pub(crate) fn synapse() -> PathBuf {
    beside("libwharf_emulated_synapse.so")
}

/// The emulated SCAL, for `WHARF_LIBSCAL`.
pub(crate) fn scal() -> PathBuf {
    beside("libwharf_emulated_scal.so")
}

/// The emulated library of RDMA devices, for `WHARF_LIBIBVERBS`.
pub(crate) fn verbs() -> PathBuf {
    beside("libwharf_emulated_verbs.so")
}

/// Whether this is the virtual machine with RDMA devices, whose processors may be emulated.
pub(crate) fn in_machine() -> bool {
    std::env::var_os("RDMA_VM").is_some()
}

/// Has contexts find the emulated RDMA devices, outside of the virtual machine.
pub(crate) fn find_rdma_devices() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if !in_machine() {
            // SAFETY: tests read the environment by the standard library alone, which locks it.
            unsafe { std::env::set_var("WHARF_LIBIBVERBS", verbs()) };
        }
    });
}

/// Tells the emulated CUDA driver something, and has its answer. It has been loaded, and stays so.
pub(crate) fn control(text: &str) -> String {
    control_of(&cuda(), text)
}

/// Tells an emulated library something, and has its answer. It has been loaded, and stays so.
pub(crate) fn control_of(library: &Path, text: &str) -> String {
    type Control = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
    // SAFETY: the function has this signature.
    unsafe {
        let library = libloading::Library::new(library).expect("the emulated library");
        let call = library
            .get::<Control>("wharf_emulated_control")
            .expect("exported");
        let text = CString::new(text).expect("no zero");
        let mut answer = vec![0_u8; 256 << 10];
        let code = call(text.as_ptr(), answer.as_mut_ptr().cast(), answer.len());
        let answer = CStr::from_bytes_until_nul(&answer).expect("ends with a zero");
        assert!(code >= 0, "{text:?}: {answer:?}");
        answer.to_string_lossy().trim().to_owned()
    }
}

/// Loads a library for as long as this process lives, as a program does that brings it.
pub(crate) fn bring(library: &Path) {
    // SAFETY: the emulators run nothing when they are loaded.
    let library = unsafe { libloading::Library::new(library) }.expect("the emulated library");
    // Never unloaded.
    let _ = Box::leak(Box::new(library));
}

/// A file in the `deps` folder of the profile that this program was built with. Examples stand in a folder beside it.
fn beside(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this program's path");
    let folder = this.parent().expect("a folder");
    let places = [folder.join(name), folder.join("../deps").join(name)];
    places
        .into_iter()
        .find(|place| place.exists())
        .unwrap_or_else(|| panic!("{name} was not built beside {}", this.display()))
}

/// A copy of a library in `folder` that lacks the exported `names`, as an older one does: the loader does not find them.
///
/// # Errors
/// From reading and writing; `NotFound` when it does not have one of the names.
pub(crate) fn without(library: &Path, names: &[&str], folder: &Path) -> io::Result<PathBuf> {
    let mut bytes = fs::read(library)?;
    for name in names {
        // Names stand in a table, each between zero bytes; the hash that finds them stays, the comparison then fails.
        let entry = [b"\0", name.as_bytes(), b"\0"].concat();
        let mut from = 0;
        let mut found = false;
        while let Some(at) = bytes[from..]
            .windows(entry.len())
            .position(|window| window == entry)
        {
            bytes[from + at + 1] = b'_';
            from += at + entry.len() - 1;
            found = true;
        }
        if !found {
            return Err(io::Error::new(io::ErrorKind::NotFound, (*name).to_owned()));
        }
    }
    let to = folder.join("liblacking.so");
    fs::write(&to, bytes)?;
    Ok(to)
}
