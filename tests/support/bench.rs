//! An accelerator with an engine and its sink, driven by hand, and memory of each kind: what the tests of all vendors' transports stand on.
//!
//! Used by `#[path = "../support/bench.rs"] mod bench;` beside `mod support;`, in programs that have a `mod error`.
//!
//! # Safety
//! Pinned and managed memory is read and written while no copy of it is under way.
// No test program uses all of it.
#![allow(unsafe_code, dead_code)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use wharf::{
    Context, MemoryType, Worker,
    memory::{DomainMemory, MemoryDomain},
    transport::{
        Registry, SendError,
        accelerator::{Accelerator, CopyEnd, CopyEngine, CopyRequest, CopySink},
    },
};

pub(crate) use crate::support::pattern;
use crate::{
    error::{Error, ErrorKind, Result},
    support::{LIMIT, block_on},
};

/// Runs a test with a context of this accelerator, and a worker, on a runtime of one thread.
pub(crate) fn run<F: Future<Output = ()>>(
    accelerator: impl Accelerator + 'static,
    test: impl FnOnce(Context, Worker) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    block_on(&runtime, LIMIT, async {
        let builder = Context::builder().transports("self").expect("self");
        let builder = builder.accelerator(Arc::new(accelerator));
        let context = builder.build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        test(context, worker).await;
    });
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
pub(crate) struct Bench<A> {
    pub(crate) accelerator: A,
    pub(crate) domain: Arc<dyn MemoryDomain>,
    pub(crate) engine: Box<dyn CopyEngine>,
    pub(crate) sink: Sink,
    /// Copies may not stop in host memory.
    pub(crate) unstaged: bool,
}

impl<A: Accelerator> Bench<A> {
    pub(crate) fn with(accelerator: A) -> Self {
        accelerator.probe().expect("a library");
        Self {
            domain: accelerator.domain(),
            engine: accelerator.open().expect("opens"),
            sink: Sink::default(),
            unstaged: false,
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
            unstaged: self.unstaged,
        };
        // SAFETY: the tests keep memory until its copies were reported, or mean to break that.
        match unsafe { self.engine.copy(request) } {
            Ok(()) => Ok(()),
            Err(SendError::Full) => Err(Error::new(ErrorKind::WouldBlock, "full")),
            Err(SendError::Failed(error)) => Err(error),
        }
    }

    /// Ends the engine, as a worker does.
    pub(crate) fn quiesce(&mut self) {
        self.engine.quiesce(Instant::now() + Duration::from_secs(5));
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

    /// Brings bytes to memory of any kind.
    pub(crate) fn put(&mut self, memory: &mut Memory, bytes: &[u8]) {
        if memory.0.memory_type().is_host_accessible() {
            memory.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            return;
        }
        let mut pinned = self.pinned(bytes.len());
        pinned.bytes_mut().copy_from_slice(bytes);
        let copied = self.copy(pinned.end(0), memory.end(0), bytes.len());
        copied.expect("copies");
    }

    /// Fetches bytes from memory of any kind.
    pub(crate) fn get(&mut self, memory: &Memory, length: usize) -> Vec<u8> {
        if memory.0.memory_type().is_host_accessible() {
            return memory.bytes()[..length].to_vec();
        }
        self.fetch(memory.end(0), length)
    }

    /// Fetches bytes from a device's memory.
    pub(crate) fn fetch(&mut self, from: CopyEnd, length: usize) -> Vec<u8> {
        let pinned = self.pinned(length);
        self.copy(from, pinned.end(0), length).expect("copies");
        pinned.bytes().to_vec()
    }
}

/// A poll with the engine in it.
pub(crate) struct Parked(mio::Poll, mio::Events);

impl Parked {
    pub(crate) fn new<A>(bench: &mut Bench<A>) -> Self {
        let poll = mio::Poll::new().expect("a poll");
        let registry = poll.registry().try_clone().expect("a registry");
        let registered = bench.engine.register(Registry::new(registry, 1 << 50));
        registered.expect("registers");
        Self(poll, mio::Events::with_capacity(8))
    }

    /// Parks until an fd of the engine's is ready, and tells it.
    pub(crate) fn park<A>(&mut self, bench: &mut Bench<A>) {
        assert!(self.wakes_within(bench, LIMIT), "nothing wakes it");
    }

    /// The same for a time; whether anything woke it. It stays armed when not.
    pub(crate) fn wakes_within<A>(&mut self, bench: &mut Bench<A>, time: Duration) -> bool {
        self.0.poll(&mut self.1, Some(time)).expect("polls");
        if self.1.is_empty() {
            return false;
        }
        for event in &self.1 {
            bench.engine.ready(event.token().0 & !(1 << 50));
        }
        bench.engine.disarm();
        true
    }

    /// Parks until so many more were reported.
    pub(crate) fn drain<A>(&mut self, bench: &mut Bench<A>, count: usize) {
        let wanted = bench.sink.done.len() + count;
        while bench.sink.done.len() < wanted {
            if bench.engine.arm() {
                self.park(bench);
            } else {
                bench.engine.disarm();
            }
            bench.engine.progress(64, &mut bench.sink);
        }
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
