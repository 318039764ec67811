#![allow(unsafe_code)]
//! The part of UCX's API that the test of data needs, looked up by the loader.
//!
//! # Safety
//! Types, sizes and offsets are those of `ucp/api/ucp.h` of 1.22, as a C compiler printed them; each struct is words that are zero but for
//! the fields that its mask names. Pointers live through the calls; a buffer of an operation lives until the operation is over, because
//! every wait here is for that.

use std::ffi::{CString, c_void};

type Raw = *mut c_void;

fn symbol(name: &str) -> *mut c_void {
    // Its libraries depend on one another, and are found by LD_LIBRARY_PATH.
    // SAFETY: a C string; UCX's constructors read the environment and start nothing.
    let library = unsafe { libc::dlopen(c"libucp.so.0".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "libucp.so.0 does not load");
    let name = CString::new(name).expect("no zero bytes");
    // SAFETY: an open library and a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "UCX has no {name:?}");
    address
}

macro_rules! call {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty) => {{
        let address = symbol(stringify!($name));
        // SAFETY: the type is the public header's.
        let function: extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute(address) };
        function($($argument),*)
    }};
}

fn ok(what: &str, status: i8) {
    assert_eq!(status, 0, "{what}");
}

/// A context with one worker.
pub(crate) struct Worker {
    context: Raw,
    worker: Raw,
}

impl Worker {
    /// Reads `UCX_…`.
    pub(crate) fn new() -> Self {
        let (mut context, mut worker): (Raw, Raw) = (std::ptr::null_mut(), std::ptr::null_mut());
        // Fields: features; those are TAG and RMA.
        let mut params = [0_u64; 11];
        (params[0], params[1]) = (1, 1 | 2);
        ok(
            "ucp_init",
            call!(ucp_init_version(1 => u32, 22 => u32, params.as_ptr() => *const u64, std::ptr::null_mut() => Raw, &raw mut context => *mut Raw) -> i8),
        );
        let params = [0_u64; 25];
        ok(
            "ucp_worker_create",
            call!(ucp_worker_create(context => Raw, params.as_ptr() => *const u64, &raw mut worker => *mut Raw) -> i8),
        );
        Self { context, worker }
    }

    /// For [`Worker::connect`] of another process.
    pub(crate) fn address(&self) -> Vec<u8> {
        let (mut address, mut len): (*mut u8, usize) = (std::ptr::null_mut(), 0);
        ok(
            "ucp_worker_get_address",
            call!(ucp_worker_get_address(self.worker => Raw, &raw mut address => *mut *mut u8, &raw mut len => *mut usize) -> i8),
        );
        // SAFETY: the library's bytes, so many as it says.
        let bytes = unsafe { std::slice::from_raw_parts(address, len) }.to_vec();
        call!(ucp_worker_release_address(self.worker => Raw, address => *mut u8) -> ());
        bytes
    }

    pub(crate) fn connect(&self, address: &[u8]) -> Endpoint<'_> {
        let mut endpoint: Raw = std::ptr::null_mut();
        let mut params = [0_u64; 13];
        (params[0], params[1]) = (1, address.as_ptr().expose_provenance() as u64);
        ok(
            "ucp_ep_create",
            call!(ucp_ep_create(self.worker => Raw, params.as_ptr() => *const u64, &raw mut endpoint => *mut Raw) -> i8),
        );
        Endpoint {
            worker: self,
            endpoint,
        }
    }

    pub(crate) fn progress(&self) {
        call!(ucp_worker_progress(self.worker => Raw) -> u32);
    }

    /// Makes device memory reachable: what a peer needs for it. The mapping lasts as long as the process.
    pub(crate) fn expose(&self, address: u64, len: usize) -> Vec<u8> {
        let (mut memory, mut key): (Raw, *mut u8) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut size = 0_usize;
        // Fields: address, length.
        let params = [3, address, len as u64, 0, 0, 0];
        ok(
            "ucp_mem_map",
            call!(ucp_mem_map(self.context => Raw, params.as_ptr() => *const u64, &raw mut memory => *mut Raw) -> i8),
        );
        ok(
            "ucp_rkey_pack",
            call!(ucp_rkey_pack(self.context => Raw, memory => Raw, &raw mut key => *mut *mut u8, &raw mut size => *mut usize) -> i8),
        );
        // SAFETY: the library's bytes, so many as it says.
        let bytes = unsafe { std::slice::from_raw_parts(key, size) }.to_vec();
        call!(ucp_rkey_buffer_release(key => *mut u8) -> ());
        bytes
    }

    /// Receives into any memory; returns when it is there.
    pub(crate) fn receive(&self, address: u64, len: usize, tag: u64) {
        let param = [0_u64; 12];
        let request = call!(ucp_tag_recv_nbx(self.worker => Raw, address => u64, len => usize, tag => u64, u64::MAX => u64, param.as_ptr() => *const u64) -> isize);
        self.wait("ucp_tag_recv_nbx", request);
    }

    /// A request is null when it is over, a negative number when it failed, else a pointer.
    fn wait(&self, what: &str, request: isize) {
        assert!(!(-100..0).contains(&request), "{what}: {request}");
        if request == 0 {
            return;
        }
        let start = std::time::Instant::now();
        loop {
            match call!(ucp_request_check_status(request => isize) -> i8) {
                0 => break,
                // In progress.
                1 => self.progress(),
                status => panic!("{what}: {status}"),
            }
            assert!(start.elapsed() < crate::support::LIMIT, "{what} hangs");
        }
        call!(ucp_request_free(request => isize) -> ());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        call!(ucp_worker_destroy(self.worker => Raw) -> ());
        call!(ucp_cleanup(self.context => Raw) -> ());
    }
}

/// A connection.
pub(crate) struct Endpoint<'a> {
    worker: &'a Worker,
    endpoint: Raw,
}

impl Endpoint<'_> {
    pub(crate) fn key(&self, packed: &[u8]) -> Key {
        let mut key: Raw = std::ptr::null_mut();
        ok(
            "ucp_ep_rkey_unpack",
            call!(ucp_ep_rkey_unpack(self.endpoint => Raw, packed.as_ptr() => *const u8, &raw mut key => *mut Raw) -> i8),
        );
        Key(key)
    }

    pub(crate) fn send(&self, address: u64, len: usize, tag: u64) {
        let param = [0_u64; 12];
        let request = call!(ucp_tag_send_nbx(self.endpoint => Raw, address => u64, len => usize, tag => u64, param.as_ptr() => *const u64) -> isize);
        self.worker.wait("ucp_tag_send_nbx", request);
    }

    /// Puts and flushes.
    pub(crate) fn put(&self, from: u64, len: usize, to: u64, key: &Key) {
        let param = [0_u64; 12];
        let request = call!(ucp_put_nbx(self.endpoint => Raw, from => u64, len => usize, to => u64, key.0 => Raw, param.as_ptr() => *const u64) -> isize);
        self.worker.wait("ucp_put_nbx", request);
        let request =
            call!(ucp_ep_flush_nbx(self.endpoint => Raw, param.as_ptr() => *const u64) -> isize);
        self.worker.wait("ucp_ep_flush_nbx", request);
    }

    pub(crate) fn get(&self, to: u64, len: usize, from: u64, key: &Key) {
        let param = [0_u64; 12];
        let request = call!(ucp_get_nbx(self.endpoint => Raw, to => u64, len => usize, from => u64, key.0 => Raw, param.as_ptr() => *const u64) -> isize);
        self.worker.wait("ucp_get_nbx", request);
    }
}

/// What a peer's exposed memory is reached by.
pub(crate) struct Key(Raw);

impl Drop for Key {
    fn drop(&mut self) {
        call!(ucp_rkey_destroy(self.0 => Raw) -> ());
    }
}
