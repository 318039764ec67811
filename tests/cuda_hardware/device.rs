#![allow(unsafe_code)]
//! The first device as the tests use it: memory, streams, kernels by the driver itself, and wharf on the same driver.
//!
//! # Safety
//! Slices are made of pinned, managed and mapped host memory of the length that the caller allocated, while no copy of it is under way. Memory that the
//! tests give to wharf is the driver's until the value is dropped.

use std::{
    ffi::{CString, c_char},
    future::Future,
    os::fd::AsRawFd,
    sync::{Arc, OnceLock},
};

use tokio::runtime::Runtime;
use wharf::{
    BufferMut, Context, MemoryType, Progress, Worker,
    transport::cuda::{CudaCopy, CudaStream},
};

pub(crate) use crate::support::pattern;
use crate::{
    raw::{Access, Opaque, Prop, Raw},
    suite,
    support::{LIMIT, watchdog},
};

pub(crate) const DEVICE: MemoryType = MemoryType::Cuda(0);
pub(crate) const MIB: usize = 1 << 20;

/// The primary context of the first device, current on this thread.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) raw: &'static Raw,
    pub(crate) context: u64,
}

impl Current {
    pub(crate) fn enter() -> Self {
        let raw = suite::raw();
        let mut context = 0;
        raw.ok(raw.cuDevicePrimaryCtxRetain(&mut context, 0));
        raw.ok(raw.cuCtxPushCurrent_v2(context));
        Self { raw, context }
    }

    /// Device memory.
    #[track_caller]
    pub(crate) fn alloc(&self, len: usize) -> u64 {
        let mut address = 0;
        self.raw.ok(self.raw.cuMemAlloc_v2(&mut address, len));
        address
    }

    #[track_caller]
    pub(crate) fn free(&self, address: u64) {
        self.raw.ok(self.raw.cuMemFree_v2(address));
    }

    /// Pinned host memory.
    #[track_caller]
    pub(crate) fn pinned(&self, len: usize) -> u64 {
        let mut address = 0;
        self.raw.ok(self.raw.cuMemHostAlloc(&mut address, len, 3));
        address
    }

    #[track_caller]
    pub(crate) fn free_pinned(&self, address: u64) {
        self.raw.ok(self.raw.cuMemFreeHost(address));
    }

    /// A stream that does not wait for the default one.
    #[track_caller]
    pub(crate) fn stream(&self) -> u64 {
        let mut stream = 0;
        self.raw.ok(self.raw.cuStreamCreate(&mut stream, 1));
        stream
    }

    #[track_caller]
    pub(crate) fn event(&self, flags: u32) -> u64 {
        let mut event = 0;
        self.raw.ok(self.raw.cuEventCreate(&mut event, flags));
        event
    }

    /// Queues a copy, whose direction the addresses say.
    #[track_caller]
    pub(crate) fn copy(&self, to: u64, from: u64, len: usize, stream: u64) {
        self.raw.ok(self.raw.cuMemcpyAsync(to, from, len, stream));
    }

    #[track_caller]
    pub(crate) fn wait(&self, stream: u64) {
        self.raw.ok(self.raw.cuStreamSynchronize(stream));
    }

    /// Memory of the virtual memory calls, in so many physical pieces of `each` bytes, mapped one behind the other. For good.
    #[track_caller]
    pub(crate) fn mapped(&self, each: usize, pieces: usize, handle_types: u32) -> u64 {
        let raw = self.raw;
        let prop = prop(handle_types);
        let mut address = 0;
        raw.ok(raw.cuMemAddressReserve(&mut address, each * pieces, 0, 0, 0));
        for piece in 0..pieces {
            let mut handle = 0;
            raw.ok(raw.cuMemCreate(&mut handle, each, &prop, 0));
            raw.ok(raw.cuMemMap(address + (piece * each) as u64, each, 0, handle, 0));
            raw.ok(raw.cuMemRelease(handle));
        }
        let access = Access {
            location: [1, 0],
            flags: 3,
        };
        raw.ok(raw.cuMemSetAccess(address, each * pieces, &access, 1));
        address
    }

    /// What [`Current::mapped`] maps at least, in bytes.
    #[track_caller]
    pub(crate) fn granularity(&self) -> usize {
        let mut bytes = 0;
        let code = self
            .raw
            .cuMemGetAllocationGranularity(&mut bytes, &prop(1), 0);
        self.raw.ok(code);
        bytes
    }

    /// Bytes of device memory in use.
    pub(crate) fn used(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        self.raw.ok(self.raw.cuMemGetInfo_v2(&mut free, &mut total));
        total - free
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // A broken context goes as well.
        let _ = self.raw.cuCtxPopCurrent_v2(std::ptr::null_mut());
        let _ = self.raw.cuDevicePrimaryCtxRelease_v2(0);
    }
}

/// Device memory of the first device, to be handed out as these.
pub(crate) fn prop(handle_types: u32) -> Prop {
    Prop {
        kind: 1,
        handle_types,
        location: [1, 0],
        ..Prop::default()
    }
}

/// Host memory as the program sees it.
pub(crate) fn bytes<'a>(address: u64, len: usize) -> &'a mut [u8] {
    let at = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: see the module.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// A word that a device writes.
pub(crate) fn word<'a>(address: u64) -> &'a std::sync::atomic::AtomicU64 {
    let at = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: aligned pinned memory that the test keeps.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(at) }
}

/// The address of host memory.
pub(crate) fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

/// The address of host memory that the driver writes.
pub(crate) fn address_mut(bytes: &mut [u8]) -> u64 {
    bytes.as_mut_ptr().expose_provenance() as u64
}

/// Pages of the program's own: of an unnamed file, or of none. For good.
pub(crate) fn pages(len: usize, of_a_file: bool) -> u64 {
    let file = of_a_file.then(|| {
        let file = tempfile::tempfile().expect("a file for a while");
        file.set_len(len as u64).expect("room");
        file
    });
    let (kind, fd) = match &file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the kernel likes.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, kind, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at.expose_provenance() as u64
}

/// Gives pages of [`pages`] back.
pub(crate) fn unmap(at: u64, len: usize) {
    let at = std::ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: a mapping of this module's, which the test uses no more.
    assert_eq!(unsafe { libc::munmap(at, len) }, 0);
}

/// Asks for huge pages; the error, if there are none.
pub(crate) fn want_huge_pages(at: u64, len: usize) -> std::io::Result<()> {
    let at = std::ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: advice for a mapping of this module's.
    match unsafe { libc::madvise(at, len, libc::MADV_HUGEPAGE) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Maps a descriptor, shared; the error, if that cannot be.
pub(crate) fn map_fd(fd: &impl AsRawFd, len: usize, offset: u64) -> std::io::Result<u64> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the kernel likes.
    let at = unsafe {
        let none = std::ptr::null_mut();
        libc::mmap(
            none,
            len,
            rights,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            offset as i64,
        )
    };
    match at {
        libc::MAP_FAILED => Err(std::io::Error::last_os_error()),
        at => Ok(at.expose_provenance() as u64),
    }
}

/// Numbers without order, the same in each run.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Kernels for any device since Volta: one writes words after a while, one writes where nothing is.
const PTX: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 8 .u64 wharf_word;
.visible .entry slow_fill(.param .u64 to, .param .u32 value, .param .u32 words, .param .u32 rounds)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [value];
    ld.param.u32 %r2, [words];
    ld.param.u32 %r3, [rounds];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r4, 0;
$sleep:
    setp.ge.u32 %p1, %r4, %r3;
    @%p1 bra $awake;
    nanosleep.u32 1000;
    add.u32 %r4, %r4, 1;
    bra $sleep;
$awake:
    mov.u32 %r5, %tid.x;
    mov.u32 %r6, %ntid.x;
$fill:
    setp.ge.u32 %p2, %r5, %r2;
    @%p2 bra $done;
    mul.wide.u32 %rd2, %r5, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r1;
    add.u32 %r5, %r5, %r6;
    bra $fill;
$done:
    ret;
}
.visible .entry illegal()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 16;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
";

/// Work for a stream that a copy cannot be mistaken for. On the emulated driver, which runs no kernels, by its own command.
#[derive(Debug)]
pub(crate) struct Kernels {
    raw: &'static Raw,
    emulated: bool,
    module: u64,
}

impl Kernels {
    /// In the current context.
    pub(crate) fn load(current: &Current, emulated: bool) -> Self {
        let raw = current.raw;
        let mut module = 0;
        if !emulated {
            let text = CString::new(PTX).expect("no zero");
            raw.ok(raw.cuModuleLoadData(&mut module, text.as_ptr()));
        }
        Self {
            raw,
            emulated,
            module,
        }
    }

    /// A variable of the module, where there is one.
    pub(crate) fn global(&self) -> Option<u64> {
        let (mut at, mut len) = (0, 0);
        let name: *const c_char = c"wharf_word".as_ptr();
        (!self.emulated).then(|| {
            self.raw.ok(self
                .raw
                .cuModuleGetGlobal_v2(&mut at, &mut len, self.module, name));
            assert_eq!(len, 8);
            at
        })
    }

    fn launch(&self, name: &CString, stream: u64, arguments: &[*mut std::ffi::c_void]) {
        let (raw, mut function) = (self.raw, 0);
        raw.ok(raw.cuModuleGetFunction(&mut function, self.module, name.as_ptr()));
        let none = std::ptr::null();
        let code = raw.cuLaunchKernel(
            function,
            1,
            1,
            1,
            256,
            1,
            1,
            0,
            stream,
            arguments.as_ptr(),
            none,
        );
        raw.ok(code);
    }

    /// After about so many microseconds, `len` bytes of [`Kernels::filled`].
    pub(crate) fn slow_fill(&self, stream: u64, micros: u32, at: u64, len: usize, round: u32) {
        if self.emulated {
            let command = format!("kernel {stream} {micros} fill {at} {len} {round}");
            self.raw.control(&command);
            return;
        }
        let (mut at, mut value, mut words, mut rounds) = (at, round, (len / 4) as u32, micros);
        let arguments = [
            (&raw mut at).cast(),
            (&raw mut value).cast(),
            (&raw mut words).cast(),
            (&raw mut rounds).cast(),
        ];
        self.launch(&CString::from(c"slow_fill"), stream, &arguments);
    }

    /// What it writes.
    pub(crate) fn filled(&self, len: usize, round: u32) -> Vec<u8> {
        if self.emulated {
            return (0..len as u64)
                .map(|at| {
                    (at.wrapping_add(round.into())
                        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                        >> 56) as u8
                })
                .collect();
        }
        round.to_ne_bytes().repeat(len / 4)
    }

    /// Breaks the context.
    pub(crate) fn break_it(&self, stream: u64) {
        if self.emulated {
            self.raw
                .control(&format!("kernel {stream} 20000 break 700"));
        } else {
            self.launch(&CString::from(c"illegal"), stream, &[]);
        }
    }
}

/// The accelerator, on the suite's driver. One for the process.
pub(crate) fn accelerator() -> CudaCopy {
    static ONE: OnceLock<CudaCopy> = OnceLock::new();
    ONE.get_or_init(|| CudaCopy::with_library(suite::library()))
        .clone()
}

/// A stream as wharf takes it.
pub(crate) fn handle(stream: u64) -> CudaStream {
    let at = std::ptr::with_exposed_provenance_mut(stream as usize);
    // SAFETY: the tests keep their streams until all that they were given to is over.
    unsafe { CudaStream::from_raw(at, 0) }
}

/// wharf on the suite's driver.
pub(crate) fn context(progress: Progress) -> Context {
    let builder = Context::builder().accelerator(Arc::new(accelerator()));
    builder.progress(progress).build().expect("a context")
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Runs it, at most ten times as long as anything should take here: devices copy gigabytes in these tests.
pub(crate) async fn guarded<F: Future>(future: F) -> F::Output {
    watchdog(10 * LIMIT, future).await
}

/// Memory with these bytes.
pub(crate) async fn filled(
    context: &Context,
    worker: &Worker,
    of: MemoryType,
    bytes: Vec<u8>,
) -> BufferMut {
    let memory = context.allocate_on(of, bytes.len()).await.expect("memory");
    guarded(worker.copy(bytes, memory)).await.expect("filled")
}

/// The bytes of any memory.
pub(crate) async fn read(worker: &Worker, memory: BufferMut) -> Vec<u8> {
    let len = memory.len();
    let copied = guarded(worker.copy(memory.freeze(), vec![0; len])).await;
    copied.expect("copied").to_vec()
}

/// Memory that the driver gave to the program, as wharf takes it. Never freed here.
pub(crate) fn own(context: &Context, at: u64, len: usize) -> BufferMut {
    // SAFETY: nobody else has it, and it stays.
    let memory = unsafe { BufferMut::foreign(context, at, len, ()) };
    memory.expect("found by its address")
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// And back.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// A driver's handle from its text.
pub(crate) fn opaque(text: &str) -> Opaque {
    Opaque(unhex(text).try_into().expect("64 bytes"))
}
