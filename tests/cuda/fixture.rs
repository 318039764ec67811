//! The accelerator on the emulated driver, an engine with its sink, and memory of each kind.
//!
//! # Safety
//! Pinned and managed memory is read and written while no copy of it is under way.
#![allow(unsafe_code)]

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use wharf::{
    MemoryType,
    memory::{DomainMemory, MemoryDomain},
    transport::{
        SendError,
        accelerator::{Accelerator, CopyEnd, CopyEngine, CopyRequest, CopySink},
        cuda::CudaCopy,
    },
};

use crate::{
    driver::cuda::{Cuda, CudaContext},
    error::{Error, ErrorKind, Result},
    support::LIMIT,
};

/// The emulated driver's file.
pub(crate) fn library() -> PathBuf {
    crate::support::emulated::cuda()
}

/// The accelerator. A new one, on the one driver of this process.
pub(crate) fn accelerator() -> CudaCopy {
    CudaCopy::with_library(library())
}

/// The program's own view of the driver.
pub(crate) fn cuda() -> &'static Cuda {
    Cuda::load(Some(&library())).expect("the emulated driver loads")
}

/// The program's own hold on a primary context.
pub(crate) fn context(ordinal: u16) -> CudaContext {
    let device = cuda().device(ordinal).expect("a device");
    device.primary_context().expect("a context")
}

/// Tells the emulator something, and has its answer.
pub(crate) fn control(text: &str) -> String {
    let _ = cuda();
    crate::support::emulated::control(text)
}

/// A number of the emulator's.
pub(crate) fn number(command: &str) -> u64 {
    control(command).parse().expect("a number")
}

/// How often a function was called.
pub(crate) fn calls(function: &str) -> u64 {
    number(&format!("count {function}"))
}

/// How many of something there are, by the emulator's `live`.
pub(crate) fn live(what: &str) -> u64 {
    let text = control("live");
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    let line = line.unwrap_or_else(|| panic!("{what} in {text}"));
    line.trim().parse().expect("a number")
}

/// Waits for something that comes by itself.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what} never came");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What an engine reported.
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
        assert!(self.lost.is_none(), "told twice");
        self.lost = Some(error);
    }
}

/// An accelerator with an engine.
pub(crate) struct Bench {
    pub(crate) accelerator: CudaCopy,
    pub(crate) domain: Arc<dyn MemoryDomain>,
    pub(crate) engine: Box<dyn CopyEngine>,
    pub(crate) sink: Sink,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(accelerator())
    }

    pub(crate) fn with(accelerator: CudaCopy) -> Self {
        accelerator.probe().expect("a driver");
        Self {
            domain: accelerator.domain(),
            engine: accelerator.open().expect("opens"),
            sink: Sink::default(),
            accelerator,
        }
    }

    pub(crate) fn allocate(&self, memory_type: MemoryType, length: usize) -> Memory {
        Memory(self.domain.allocate(memory_type, length).expect("memory"))
    }

    pub(crate) fn pinned(&self, length: usize) -> Memory {
        self.allocate(MemoryType::HostPinned, length)
    }

    /// Begins a copy; what is refused is the error.
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
        };
        // SAFETY: the tests keep memory until its copies were reported, or mean to break that.
        match unsafe { self.engine.copy(request) } {
            Ok(()) => Ok(()),
            Err(SendError::Full) => Err(Error::new(ErrorKind::WouldBlock, "full")),
            Err(SendError::Failed(error)) => Err(error),
        }
    }

    /// Polls until so many more were reported.
    pub(crate) fn drain(&mut self, count: usize) {
        let wanted = self.sink.done.len() + count;
        let start = Instant::now();
        while self.sink.done.len() < wanted {
            self.engine.progress(64, &mut self.sink);
            assert!(
                start.elapsed() < LIMIT,
                "{} of {wanted} were reported",
                self.sink.done.len()
            );
            std::thread::yield_now();
        }
    }

    /// One copy from end to end: its report.
    pub(crate) fn copy(&mut self, from: CopyEnd, to: CopyEnd, length: usize) -> Result<()> {
        const TOKEN: u64 = 77;
        self.begin(from, to, length, TOKEN)?;
        self.engine.flush();
        self.drain(1);
        let (token, result) = self.sink.done.pop().expect("reported");
        assert_eq!(token, TOKEN);
        result
    }
}

/// Memory of the domain's.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) Box<dyn DomainMemory>);

impl Memory {
    pub(crate) fn address(&self) -> u64 {
        self.0.range().start()
    }

    /// As an end of a copy, from `offset` on.
    pub(crate) fn end(&self, offset: usize) -> CopyEnd {
        let address = self.address() + offset as u64;
        match self.0.memory_type() {
            MemoryType::HostPinned => pinned_end(address),
            memory_type => CopyEnd::Device {
                address,
                memory_type,
            },
        }
    }

    /// Its bytes. Host accessible memory alone.
    pub(crate) fn bytes(&self) -> &[u8] {
        let (at, len) = self.place();
        // SAFETY: initialised host memory of the domain's, which no copy writes now.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// Its bytes, for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let (at, len) = self.place();
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }

    fn place(&self) -> (*mut u8, usize) {
        assert!(self.0.memory_type().is_host_accessible());
        let range = self.0.range();
        let at = std::ptr::with_exposed_provenance_mut(range.start() as usize);
        (at, range.len() as usize)
    }
}

/// Pinned host memory at an address.
pub(crate) fn pinned_end(address: u64) -> CopyEnd {
    CopyEnd::Host {
        address: std::ptr::with_exposed_provenance_mut(address as usize),
        pinned: true,
    }
}

/// Memory of a device at an address.
pub(crate) fn device_end(address: u64, ordinal: u16) -> CopyEnd {
    CopyEnd::Device {
        address,
        memory_type: MemoryType::Cuda(ordinal),
    }
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| {
        (at.wrapping_add(seed.wrapping_mul(977))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            >> 56) as u8
    };
    (0..len as u64).map(byte).collect()
}
