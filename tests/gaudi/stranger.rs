//! A program that uses Synapse by itself, as PyTorch does, and an engine driven by hand.
//!
//! A process has one device of Synapse's, so each test of it runs in a process of its own.
//!
//! # Safety
//! Functions are called with the signatures of the public header, in libraries that stay loaded. Memory of copies stays until they were reported.
#![allow(unsafe_code)]

use std::{ffi::c_void, time::Instant};

use wharf::{
    Error, ErrorKind, MemoryType, Result,
    transport::{
        Accelerator as _, CopyEnd, CopyEngine, CopyRequest, CopySink, SendError, gaudi::GaudiCopy,
    },
};

use crate::support::{Child, LIMIT, emulated};

/// `synFail`: among others a release while another thread is in a call.
const IN_A_CALL: i32 = 26;

/// Modules of the emulated cards.
pub(crate) const MODULE: u32 = 7;

/// Runs a test in a process of its own, with cards that the three emulated libraries share there.
pub(crate) fn alone(test: &str, variables: &[(&str, &str)]) {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("text").to_owned();
    let mut all = vec![("EMULATED_HLTHUNK_FOLDER", folder.as_str())];
    all.extend_from_slice(variables);
    Child::start(test, "alone", &all).finish();
}

/// Synapse as the program itself has it.
pub(crate) struct Stranger {
    library: &'static libloading::Library,
}

impl Stranger {
    /// Loads Synapse, and SCAL with it.
    pub(crate) fn new() -> Self {
        // SAFETY: the emulated libraries; their constructors do nothing.
        let load = |path| unsafe { libloading::Library::new(path) }.expect("loads");
        Box::leak(Box::new(load(emulated::scal())));
        Self {
            library: Box::leak(Box::new(load(emulated::synapse()))),
        }
    }

    /// Loads it and acquires a card.
    pub(crate) fn with_card() -> Self {
        let stranger = Self::new();
        stranger.initialise();
        stranger.acquire(MODULE);
        stranger
    }

    fn find<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the callers give the header's type.
        *unsafe { self.library.get::<F>(name) }.expect("exported")
    }

    pub(crate) fn initialise(&self) {
        let call: unsafe extern "C" fn() -> i32 = self.find("synInitialize");
        // SAFETY: takes nothing.
        assert_eq!(unsafe { call() }, 0);
    }

    pub(crate) fn acquire(&self, module: u32) {
        let call: unsafe extern "C" fn(*mut u32, u32) -> i32 =
            self.find("synDeviceAcquireByModuleId");
        let mut id = 0;
        // SAFETY: writes one number.
        assert_eq!(unsafe { call(&raw mut id, module) }, 0);
    }

    pub(crate) fn release(&self) {
        let call: unsafe extern "C" fn(u32) -> i32 = self.find("synDeviceRelease");
        let start = Instant::now();
        // SAFETY: a number.
        let mut status = unsafe { call(0) };
        // One of wharf's threads is in a call: it is refused then, and a program tries again.
        while status == IN_A_CALL && start.elapsed() < LIMIT {
            std::thread::yield_now();
            // SAFETY: as above.
            status = unsafe { call(0) };
        }
        assert_eq!(status, 0);
    }

    /// Device memory of the program's own.
    pub(crate) fn allocate(&self, length: u64) -> u64 {
        let call: unsafe extern "C" fn(u32, u64, u64, u32, *mut u64) -> i32 =
            self.find("synDeviceMalloc");
        let mut address = 0;
        // SAFETY: writes one number.
        assert_eq!(unsafe { call(0, length, 0, 0, &raw mut address) }, 0);
        address
    }

    pub(crate) fn free(&self, address: u64) {
        let call: unsafe extern "C" fn(u32, u64, u32) -> i32 = self.find("synDeviceFree");
        // SAFETY: numbers.
        assert_eq!(unsafe { call(0, address, 0) }, 0);
    }

    /// Maps host memory, as the program may have done.
    pub(crate) fn map(&self, bytes: &mut [u8]) {
        let call: unsafe extern "C" fn(u32, u64, *const c_void) -> i32 = self.find("synHostMap");
        let start = bytes.as_ptr().cast();
        // SAFETY: memory that the callers keep.
        assert_eq!(unsafe { call(0, bytes.len() as u64, start) }, 0);
    }
}

/// Tells the emulated Synapse something, and has its answer.
pub(crate) fn control(text: &str) -> String {
    emulated::control_of(&emulated::synapse(), text)
}

pub(crate) fn number(text: &str) -> u64 {
    control(text).parse().expect("a number")
}

/// How often a function of Synapse's was called.
pub(crate) fn calls(function: &str) -> u64 {
    number(&format!("count {function}"))
}

/// One line of the emulated Synapse's `live`.
pub(crate) fn live(what: &str) -> u64 {
    let text = control("live");
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or_else(|| panic!("{what} in {text}"))
}

/// How often a function of libhl-thunk's was called.
pub(crate) fn thunk_calls(function: &str) -> u64 {
    let count = emulated::control_of(&emulated::hlthunk(), &format!("count {function}"));
    count.parse().expect("a number")
}

pub(crate) fn gaudi() -> GaudiCopy {
    GaudiCopy::with_library(emulated::hlthunk())
        .synapse(emulated::synapse())
        .scal(emulated::scal())
}

/// An engine, and what it reported.
pub(crate) struct Bench {
    pub(crate) engine: Box<dyn CopyEngine>,
    pub(crate) sink: Sink,
}

#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) done: Vec<(u64, Result<()>)>,
    pub(crate) lost: Option<Error>,
}

impl CopySink for Sink {
    fn copied(&mut self, token: u64, result: Result<()>) {
        self.done.push((token, result));
    }

    fn lost(&mut self, error: Error) {
        self.lost = Some(error);
    }
}

pub(crate) fn host(bytes: &mut [u8]) -> CopyEnd {
    CopyEnd::Host {
        address: bytes.as_mut_ptr(),
        pinned: false,
    }
}

pub(crate) fn device(address: u64) -> CopyEnd {
    CopyEnd::Device {
        address,
        memory_type: MemoryType::Gaudi(0),
    }
}

impl Bench {
    pub(crate) fn new(gaudi: &GaudiCopy) -> Self {
        Self {
            engine: gaudi.open().expect("an engine"),
            sink: Sink::default(),
        }
    }

    /// Begins a copy; `WouldBlock` when there is no room.
    pub(crate) fn begin(
        &mut self,
        from: CopyEnd,
        to: CopyEnd,
        length: usize,
        token: u64,
    ) -> Result<()> {
        let request = CopyRequest {
            from,
            to,
            length,
            token,
            unstaged: false,
        };
        // SAFETY: as the file says.
        match unsafe { self.engine.copy(request) } {
            Ok(()) => Ok(()),
            Err(SendError::Full) => Err(Error::new(ErrorKind::WouldBlock, "full")),
            Err(SendError::Failed(error)) => Err(error),
        }
    }

    pub(crate) fn poll(&mut self) {
        self.engine.flush();
        self.engine.progress(64, &mut self.sink);
        std::thread::yield_now();
    }

    /// Polls until so many were reported in all.
    pub(crate) fn until(&mut self, count: usize) {
        let start = Instant::now();
        while self.sink.done.len() < count {
            self.poll();
            let so_far = self.sink.done.len();
            assert!(start.elapsed() < LIMIT, "watchdog: {so_far} of {count}");
        }
    }

    /// One copy from end to end.
    pub(crate) fn copy(&mut self, from: CopyEnd, to: CopyEnd, length: usize) -> Result<()> {
        self.begin(from, to, length, 1)?;
        let count = self.sink.done.len() + 1;
        self.until(count);
        self.sink.done.pop().expect("reported").1
    }
}
