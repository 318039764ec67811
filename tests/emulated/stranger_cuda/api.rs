#![allow(unsafe_code)]
//! The emulated driver as a program sees it that looks names up by the loader: nothing is shared with the emulator.
//!
//! # Safety
//! Each function's type is written from the public header; the pointers that tests pass live through the call.

#![allow(non_snake_case, dead_code, clippy::too_many_arguments)]

use std::{
    ffi::{CString, c_char, c_void},
    sync::OnceLock,
};

#[path = "functions.rs"]
mod functions;

use functions::cuda_functions;
pub(crate) use functions::{Access, Opaque, PoolProps, Prop};

fn handle() -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        if std::env::var_os("EMULATED_CUDA_DEVICES").is_none() {
            // SAFETY: nothing else of this program reads the environment but through Rust's library, which locks it.
            unsafe { std::env::set_var("EMULATED_CUDA_DEVICES", "16") };
        }
        let path = crate::support::emulated::cuda();
        let name = CString::new(path.to_str().expect("a path in UTF-8")).expect("no zero bytes");
        // SAFETY: a C string; the library's start does nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} does not load", path.display());
        handle.expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*handle)
}

/// The address of a name; null when there is no such.
pub(crate) fn symbol(name: &str) -> *mut c_void {
    let name = CString::new(name).expect("no zero bytes");
    // SAFETY: an open library and a C string.
    unsafe { libc::dlsym(handle(), name.as_ptr()) }
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(pub(crate) fn $name($($argument: $type),*) -> u32 {
            let address = symbol(stringify!($name));
            assert!(!address.is_null(), concat!(stringify!($name), " is missing"));
            // SAFETY: the type is the public header's.
            let function: extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(address) };
            function($($argument),*)
        })*
    };
}

cuda_functions!(functions);

/// A command to the emulator; its answer.
pub(crate) fn control(command: &str) -> String {
    try_control(command).unwrap_or_else(|reason| panic!("{command}: {reason}"))
}

/// The same; what was not understood comes back.
pub(crate) fn try_control(command: &str) -> Result<String, String> {
    let address = symbol("wharf_emulated_control");
    assert!(!address.is_null(), "the emulator's control is missing");
    // SAFETY: the type is the one that the emulator's documentation gives.
    let function: extern "C" fn(*const c_char, *mut c_char, usize) -> isize =
        unsafe { std::mem::transmute(address) };
    let text = CString::new(command).expect("no zero bytes");
    let mut room = vec![0_u8; 1 << 20];
    let len = function(text.as_ptr(), room.as_mut_ptr().cast(), room.len());
    let end = room
        .iter()
        .position(|byte| *byte == 0)
        .expect("a zero byte");
    room.truncate(end);
    let answer = String::from_utf8(room).expect("text");
    if len < 0 { Err(answer) } else { Ok(answer) }
}

/// Demands success.
#[track_caller]
pub(crate) fn ok(code: u32) {
    assert_eq!(code, 0, "the call should succeed");
}

/// `cuInit`, a context of its own on a device, current on this thread until it is dropped.
pub(crate) struct Ctx(pub(crate) u64);

impl Ctx {
    pub(crate) fn new(device: i32) -> Self {
        ok(cuInit(0));
        let mut context = 0;
        ok(cuCtxCreate_v2(&mut context, 0, device));
        Self(context)
    }
}

impl Drop for Ctx {
    fn drop(&mut self) {
        // A broken one goes as well.
        let _ = cuCtxDestroy_v2(self.0);
    }
}

/// Device memory.
#[track_caller]
pub(crate) fn alloc(len: usize) -> u64 {
    let mut address = 0;
    ok(cuMemAlloc_v2(&mut address, len));
    address
}

/// Pinned host memory.
#[track_caller]
pub(crate) fn pinned(len: usize) -> u64 {
    let mut address = 0;
    ok(cuMemHostAlloc(&mut address, len, 0));
    address
}

/// A stream that does not wait for the default one.
#[track_caller]
pub(crate) fn stream() -> u64 {
    let mut stream = 0;
    ok(cuStreamCreate(&mut stream, 1));
    stream
}

/// An event without timing.
#[track_caller]
pub(crate) fn event() -> u64 {
    let mut event = 0;
    ok(cuEventCreate(&mut event, 2));
    event
}

/// One attribute as a word; `None` when the call refuses.
pub(crate) fn attribute(attribute: u32, address: u64) -> Option<u64> {
    let mut value = 0_u64;
    let code = cuPointerGetAttribute((&raw mut value).cast(), attribute, address);
    (code == 0).then_some(value)
}

/// Host memory as the program sees it.
pub(crate) fn bytes<'a>(address: u64, len: usize) -> &'a mut [u8] {
    // SAFETY: tests pass pinned or managed memory of that length, and look at it when no copy is on its way.
    unsafe {
        std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address as usize), len)
    }
}

/// The result of `run` in a forked child.
pub(crate) fn forked(run: impl FnOnce() -> u32) -> u32 {
    // SAFETY: the child calls one function of the emulator's that answers at once, and ends without a clean-up.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let code = run();
        // SAFETY: it does not return.
        unsafe { libc::_exit(code as i32) };
    }
    let mut status = 0;
    // SAFETY: a child of this process.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    libc::WEXITSTATUS(status) as u32
}

/// The signal that ended a process.
pub(crate) fn signal(status: std::process::ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

/// Reads a byte where the program believes that memory is.
pub(crate) fn peek(address: u64) -> u8 {
    let address: *const u8 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: none: the test wants the fault.
    unsafe { address.read_volatile() }
}

/// `write(2)` from an address to /dev/null's sibling that really reads it, a pipe; the error's number.
pub(crate) fn write_from(address: u64) -> Option<i32> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let from = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the kernel checks the address.
    let written = unsafe { libc::write(ends[1], from, 8) };
    let error = (written < 0)
        .then(|| std::io::Error::last_os_error().raw_os_error())
        .flatten();
    for end in ends {
        // SAFETY: this function's own.
        unsafe { libc::close(end) };
    }
    error
}

/// `process_vm_readv` from an address of this process; the error's number.
pub(crate) fn vm_read(address: u64) -> Option<i32> {
    let mut room = [0_u8; 8];
    let local = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: 8,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: 8,
    };
    // SAFETY: the kernel checks the addresses.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (read < 0)
        .then(|| std::io::Error::last_os_error().raw_os_error())
        .flatten()
}

/// Pages of the program's own, which it can take away.
pub(crate) fn map_pages(len: usize) -> u64 {
    // SAFETY: no fixed address.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at.expose_provenance() as u64
}

/// Takes them away, but keeps the addresses, or another thread might get them.
pub(crate) fn take_pages_away(address: u64, len: usize) {
    let at = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: of `map_pages`, and the test uses them no more.
    assert_eq!(unsafe { libc::mprotect(at, len, libc::PROT_NONE) }, 0);
}

/// The file position of a descriptor and its size.
pub(crate) fn position_and_size(fd: i32) -> (i64, i64) {
    // SAFETY: numbers only.
    let position = unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) };
    // SAFETY: numbers only.
    let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    (position, size)
}

/// Reads from a descriptor at an offset.
pub(crate) fn read_at(fd: i32, offset: i64, room: &mut [u8]) {
    // SAFETY: room for so many bytes.
    let count = unsafe { libc::pread(fd, room.as_mut_ptr().cast(), room.len(), offset) };
    assert_eq!(count, room.len() as isize);
}

/// Closes a descriptor.
pub(crate) fn close(fd: i32) {
    // SAFETY: the test's own.
    unsafe { libc::close(fd) };
}

/// A word that a device writes.
pub(crate) fn word_at<'a>(at: *mut u8) -> &'a std::sync::atomic::AtomicU64 {
    // SAFETY: tests pass aligned pinned memory that they keep.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(at.cast()) }
}

/// A descriptor of a child of this process.
pub(crate) fn fetch(process: i32, fd: i32) -> i32 {
    // SAFETY: numbers only.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    assert!(pidfd >= 0, "pidfd_open");
    // SAFETY: numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) };
    assert!(fd >= 0, "pidfd_getfd: {}", std::io::Error::last_os_error());
    fd as i32
}

/// Whether a library has a name. It is loaded by itself, whatever else is.
pub(crate) fn has(library: &std::path::Path, name: &str) -> bool {
    let path = CString::new(library.to_str().expect("a path in UTF-8")).expect("no zero bytes");
    // SAFETY: a C string; the library's start does nothing.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} does not load", library.display());
    let name = CString::new(name).expect("no zero bytes");
    // SAFETY: an open library and a C string.
    !unsafe { libc::dlsym(handle, name.as_ptr()) }.is_null()
}
