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

/// The emulated management library, for programs that look for `libnvidia-ml.so.1`.
pub(crate) fn nvml() -> PathBuf {
    beside("libwharf_emulated_nvml.so")
}

/// The few functions of the CUDA runtime, for programs that look for `libcudart.so.12`.
pub(crate) fn cudart() -> PathBuf {
    beside("libwharf_emulated_cudart.so")
}

/// Tells the emulated CUDA driver something, and has its answer. It has been loaded, and stays so.
pub(crate) fn control(text: &str) -> String {
    type Control = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
    // SAFETY: the function has this signature.
    unsafe {
        let library = libloading::Library::new(cuda()).expect("the emulated driver");
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
