//! Emulated cards, and memory on them.
//!
//! # Safety
//! An emulated library that is loaded stays so; its constructors do nothing.
#![allow(unsafe_code)]

use std::{fs, path::PathBuf, sync::Arc, time::Instant};

use wharf::{
    Buffer, BufferMut, Context, ContextBuilder, ErrorKind, MemoryType, Worker,
    memory::{DomainMemory, MemoryDomain},
    transport::gaudi::GaudiCopy,
};

use crate::support::{LIMIT, Looks, block_until, emulated};

pub(crate) const DEVICE: MemoryType = MemoryType::Gaudi(0);
pub(crate) const OTHER: MemoryType = MemoryType::Gaudi(1);

/// Events of the notifier.
pub(crate) const DEVICE_RESET: u64 = 1 << 2;

/// A machine with Gaudi cards.
pub(crate) struct Machine {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Machine {
    /// With settings of the emulator's, by name.
    pub(crate) fn new(settings: &[(&str, u64)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("libown.so");
        // A copy is another library; a link would be the same.
        fs::copy(emulated::hlthunk(), &path).expect("a copy");
        // SAFETY: the emulator; its constructors do nothing.
        let library = unsafe { libloading::Library::new(&path) }.expect("loads");
        Box::leak(Box::new(library));
        let machine = Self {
            path,
            _folder: folder,
        };
        for (name, value) in settings {
            machine.control(&format!("set {name} {value}"));
        }
        machine
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub(crate) fn gaudi(&self) -> GaudiCopy {
        GaudiCopy::with_library(&self.path)
    }

    pub(crate) fn builder(&self) -> ContextBuilder {
        Context::builder()
            .transports("self")
            .expect("known")
            .accelerator(Arc::new(self.gaudi()))
    }

    /// A context with these cards, and a worker.
    pub(crate) fn worker(&self) -> (Context, Worker) {
        let context = self.builder().build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        (context, worker)
    }

    pub(crate) fn control(&self, text: &str) -> String {
        emulated::control_of(&self.path, text)
    }

    pub(crate) fn number(&self, text: &str) -> u64 {
        self.control(text).parse().expect("a number")
    }

    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.number(&format!("count {name}"))
    }

    /// One line of `live`.
    pub(crate) fn live(&self, name: &str) -> u64 {
        let text = self.control("live");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("{name} in {text}"))
    }

    /// Waits until nothing is left of what was opened, and that nothing was done that works by luck.
    pub(crate) fn check_gone(&self) {
        block_until("all cards given back", || self.live("sessions") == 0);
        self.check();
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.number("misused"), 0, "{}", self.control("misuses"));
        assert_eq!(self.live("held_up"), 0);
        assert!(self.live("waits_peak") <= 1, "two waits at once");
    }

    /// Memory, allocated by the domain. Another process that is just being started may have this one's descriptors for a moment.
    pub(crate) fn allocate(
        &self,
        domain: &Arc<dyn MemoryDomain>,
        memory_type: MemoryType,
        length: usize,
    ) -> Box<dyn DomainMemory> {
        patiently(|| domain.allocate(memory_type, length))
    }
}

/// Tries until a card that was given back is free.
pub(crate) fn patiently<T>(mut attempt: impl FnMut() -> wharf::Result<T>) -> T {
    let mut looks = Looks::new("a free card");
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => {
                let kinds = [ErrorKind::Exhausted, ErrorKind::WouldBlock];
                assert!(kinds.contains(&error.kind()), "{error}");
            }
        }
        looks.block();
    }
}

/// Memory with these bytes.
pub(crate) async fn filled(
    worker: &Worker,
    context: &Context,
    memory_type: MemoryType,
    bytes: &[u8],
) -> BufferMut {
    if memory_type == MemoryType::Host {
        return bytes.to_vec().into();
    }
    let memory = context
        .allocate_on(memory_type, bytes.len())
        .await
        .expect("memory");
    worker.copy(bytes.to_vec(), memory).await.expect("filled")
}

/// The bytes of a buffer, wherever they are.
pub(crate) async fn bytes(worker: &Worker, buffer: impl Into<Buffer>) -> Vec<u8> {
    let buffer = buffer.into();
    let room = vec![0xee; buffer.len()];
    worker.copy(buffer, room).await.expect("copied")
}

/// A buffer again that was copied from. The worker lets go of it a moment after it has told.
pub(crate) async fn alone(mut buffer: Buffer) -> BufferMut {
    let start = Instant::now();
    loop {
        match buffer.try_into_mut() {
            Ok(alone) => return alone,
            Err(shared) => buffer = shared,
        }
        assert!(start.elapsed() < LIMIT, "watchdog: {buffer:?} is kept");
        tokio::task::yield_now().await;
    }
}

/// Random numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
