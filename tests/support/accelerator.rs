//! An accelerator without hardware: memory that the host cannot reach, and an engine that copies late, out of order and in pieces, on a thread
//! of its own. It checks what an engine may demand, and fails as it is told to.
//!
//! # Safety
//! Device addresses are of mappings without any rights: whoever uses one as a pointer faults. The bytes are elsewhere, behind a lock. Host
//! ends of copies are the caller's promise, as the contract has it.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Condvar, Mutex};
use wharf::{
    Error, ErrorKind, MemoryType, Result,
    memory::{
        AddressRange, DomainAttributes, DomainCapabilities, DomainMemory, MemoryAttributes,
        MemoryDomain,
    },
    transport::{
        Accelerator, CopyAttributes, CopyEnd, CopyEngine, CopyRequest, CopySink, Export, Registry,
        SendError,
    },
};

/// What it does, and when it fails.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) attributes: CopyAttributes,
    /// Most that a copy is late, in microseconds.
    pub(crate) late: u64,
    /// The copies, counted from 1, that fail.
    pub(crate) fail: Vec<usize>,
    /// The copy at which the device is lost.
    pub(crate) lose: Option<usize>,
    /// How often opening fails.
    pub(crate) fail_open: usize,
    /// No engine opens before this is taken back.
    pub(crate) stuck_open: bool,
    /// No copy ends before this is taken back.
    pub(crate) stuck: bool,
    /// No export ends before this is taken back.
    pub(crate) stuck_export: bool,
    /// Pinned memory cannot be had.
    pub(crate) no_pinned: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            attributes: CopyAttributes {
                max_copy: 1 << 20,
                max_in_flight: 64,
                fragment: FRAGMENT,
                pageable_from: None,
            },
            late: 50,
            fail: Vec::new(),
            lose: None,
            fail_open: 0,
            stuck_open: false,
            stuck: false,
            stuck_export: false,
            no_pinned: false,
        }
    }
}

/// Length of a fragment, unless a plan says otherwise.
pub(crate) const FRAGMENT: usize = 64 << 10;

/// The accelerator. Clones are the same one.
#[derive(Clone)]
pub(crate) struct FakeAccelerator(Arc<Shared>);

struct Shared {
    plan: Mutex<Plan>,
    /// Its devices.
    types: [MemoryType; 2],
    changed: Condvar,
    memory: Mutex<BTreeMap<u64, Block>>,
    /// What broke the contract.
    violations: Mutex<Vec<String>>,
    copies: AtomicUsize,
    exports: AtomicUsize,
    opened: AtomicUsize,
    quiesced: AtomicUsize,
    seed: AtomicU64,
}

struct Block {
    length: usize,
    memory_type: MemoryType,
    /// Of device memory. Of pinned memory none: it is where its address says.
    bytes: Vec<u8>,
    /// Copies under way that touch it.
    used: usize,
}

impl FakeAccelerator {
    pub(crate) fn new() -> Self {
        Self::with(Plan::default())
    }

    pub(crate) fn with(plan: Plan) -> Self {
        Self::of(plan, [MemoryType::Cuda(0), MemoryType::Cuda(1)])
    }

    /// One with other devices.
    pub(crate) fn of(plan: Plan, types: [MemoryType; 2]) -> Self {
        Self(Arc::new(Shared {
            plan: Mutex::new(plan),
            types,
            changed: Condvar::new(),
            memory: Mutex::default(),
            violations: Mutex::default(),
            copies: AtomicUsize::new(0),
            exports: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            quiesced: AtomicUsize::new(0),
            seed: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
        }))
    }

    /// Changes the plan for what comes.
    pub(crate) fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.0.plan.lock());
        self.0.changed.notify_all();
    }

    /// Copies begun so far.
    pub(crate) fn copies(&self) -> usize {
        self.0.copies.load(Ordering::Relaxed)
    }

    /// Exports begun so far.
    pub(crate) fn exports(&self) -> usize {
        self.0.exports.load(Ordering::Relaxed)
    }

    /// Engines opened so far.
    pub(crate) fn opened(&self) -> usize {
        self.0.opened.load(Ordering::Relaxed)
    }

    /// Allocations that are not freed.
    pub(crate) fn allocated(&self) -> usize {
        self.0.memory.lock().len()
    }

    /// Demands that nobody broke the contract.
    #[track_caller]
    pub(crate) fn check(&self) {
        let violations = self.0.violations.lock();
        assert!(violations.is_empty(), "{violations:?}");
    }

    /// Waits until all engines were brought to rest and all memory was freed.
    #[track_caller]
    pub(crate) fn check_freed(&self) {
        super::block_until("the rest of all engines", || {
            self.opened() == self.0.quiesced.load(Ordering::Relaxed)
        });
        super::block_until("the end of all allocations", || self.allocated() == 0);
        self.check();
    }
}

impl Shared {
    fn random(&self) -> u64 {
        let mut state = self.seed.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.seed.store(state, Ordering::Relaxed);
        state
    }

    fn violation(&self, text: String) {
        self.violations.lock().push(text);
    }

    /// Marks the memory of both ends used, or unused again. What is wrong with them.
    fn mark(
        &self,
        request: &CopyRequest,
        takes_pageable: bool,
        use_it: bool,
    ) -> Result<(), String> {
        let mut memory = self.memory.lock();
        let mut device = false;
        for end in [request.from, request.to] {
            let (address, wanted) = match end {
                CopyEnd::Device {
                    address,
                    memory_type,
                } => {
                    device = true;
                    (address, memory_type)
                }
                CopyEnd::Host {
                    address,
                    pinned: true,
                } => (address as u64, MemoryType::HostPinned),
                CopyEnd::Host { .. } if takes_pageable => continue,
                CopyEnd::Host { address, .. } => return Err(format!("{address:?} is not pinned")),
            };
            let found = memory.range_mut(..=address).next_back();
            let Some((start, block)) = found.filter(|(start, block)| {
                address + request.length as u64 <= **start + block.length as u64
            }) else {
                return Err(format!(
                    "{address:#x} and {} more: nobody's",
                    request.length
                ));
            };
            if block.memory_type != wanted {
                return Err(format!("{start:#x} is {}, not {wanted}", block.memory_type));
            }
            if use_it {
                block.used += 1;
            } else {
                block.used -= 1;
            }
        }
        if request.length == 0 {
            return Err("a copy of nothing".to_owned());
        }
        if !device && use_it {
            return Err("no end is a device's".to_owned());
        }
        Ok(())
    }

    /// Marks the memory at an address used, or unused again.
    fn mark_exported(&self, address: u64, use_it: bool) {
        let mut memory = self.memory.lock();
        match memory.range_mut(..=address).next_back() {
            Some((_, block)) if use_it => block.used += 1,
            Some((_, block)) if block.used > 0 => block.used -= 1,
            _ => self.violation(format!("{address:#x} is exported, and nobody's")),
        }
    }

    /// Copies a part of a request.
    fn copy(&self, request: &CopyRequest, offset: usize, length: usize) {
        let mut memory = self.memory.lock();
        let mut piece = vec![0; length];
        match request.from {
            // SAFETY: the contract: valid until the copy was reported.
            CopyEnd::Host { address, .. } => unsafe {
                ptr::copy_nonoverlapping(address.add(offset), piece.as_mut_ptr(), length);
            },
            CopyEnd::Device { address, .. } => {
                let bytes = bytes(&mut memory, address + offset as u64, length);
                piece.copy_from_slice(bytes);
            }
        }
        match request.to {
            // SAFETY: as above.
            CopyEnd::Host { address, .. } => unsafe {
                ptr::copy_nonoverlapping(piece.as_ptr(), address.add(offset), length);
            },
            CopyEnd::Device { address, .. } => {
                bytes(&mut memory, address + offset as u64, length).copy_from_slice(&piece);
            }
        }
    }
}

fn bytes(memory: &mut BTreeMap<u64, Block>, address: u64, length: usize) -> &mut [u8] {
    let (start, block) = memory.range_mut(..=address).next_back().expect("allocated");
    let offset = (address - start) as usize;
    &mut block.bytes[offset..offset + length]
}

impl fmt::Debug for FakeAccelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeAccelerator")
    }
}

impl Accelerator for FakeAccelerator {
    fn name(&self) -> &'static str {
        "fake_copy"
    }

    fn probe(&self) -> Result<()> {
        Ok(())
    }

    fn domain(&self) -> Arc<dyn MemoryDomain> {
        Arc::new(self.clone())
    }

    fn serves(&self, memory_type: MemoryType) -> bool {
        self.0.types.contains(&memory_type)
    }

    fn open(&self) -> Result<Box<dyn CopyEngine>> {
        // Long enough to be seen by whoever waits for it.
        takes(Duration::from_millis(2));
        let mut plan = self.0.plan.lock();
        let changed = &self.0.changed;
        changed.wait_while_for(&mut plan, |plan| plan.stuck_open, super::LIMIT);
        if plan.fail_open > 0 {
            plan.fail_open -= 1;
            return Err(Error::new(ErrorKind::Io, "the engine does not start"));
        }
        drop(plan);
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let engine = Engine {
            shared: self.0.clone(),
            queue: Arc::new(Queue::default()),
            fd: Arc::new(fd.map_err(|error| Error::io("an eventfd", error))?.into()),
            lost: false,
        };
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        let (shared, queue, fd) = (self.0.clone(), engine.queue.clone(), engine.fd.clone());
        thread::spawn(move || run(&shared, &queue, &fd));
        Ok(Box::new(engine))
    }

    fn export(&self, address: u64, _: u64) -> Result<Export> {
        self.0.mark_exported(address, true);
        self.0.exports.fetch_add(1, Ordering::Relaxed);
        let (mut plan, changed) = (self.0.plan.lock(), &self.0.changed);
        changed.wait_while_for(&mut plan, |plan| plan.stuck_export, super::LIMIT);
        drop(plan);
        self.0.mark_exported(address, false);
        Ok(Export::Impossible("it is a fake".to_owned()))
    }
}

impl MemoryDomain for FakeAccelerator {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn attributes(&self) -> DomainAttributes {
        DomainAttributes::new(
            DomainCapabilities::ALLOCATE | DomainCapabilities::DETECT,
            [self.0.types[0], self.0.types[1], MemoryType::HostPinned],
        )
    }

    fn detect(&self, range: AddressRange) -> Result<Option<MemoryAttributes>> {
        let memory = self.0.memory.lock();
        let found = memory.range(..=range.start()).next_back();
        Ok(found.and_then(|(start, block)| {
            let allocation = AddressRange::new(*start, block.length as u64).ok()?;
            (range.start() < start + block.length as u64)
                .then(|| MemoryAttributes::new(block.memory_type, allocation))
        }))
    }

    fn allocate(&self, memory_type: MemoryType, length: usize) -> Result<Box<dyn DomainMemory>> {
        let pinned = memory_type == MemoryType::HostPinned;
        if pinned && self.0.plan.lock().no_pinned {
            return Err(Error::new(ErrorKind::Exhausted, "no memory can be pinned"));
        }
        let rights = if pinned {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_NONE
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe { libc::mmap(ptr::null_mut(), length, rights, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let address = base.expose_provenance() as u64;
        let bytes = if pinned { Vec::new() } else { vec![0; length] };
        let block = Block {
            length,
            memory_type,
            bytes,
            used: 0,
        };
        self.0.memory.lock().insert(address, block);
        Ok(Box::new(Memory {
            shared: self.0.clone(),
            range: AddressRange::new(address, length as u64)?,
            memory_type,
        }))
    }
}

struct Memory {
    shared: Arc<Shared>,
    range: AddressRange,
    memory_type: MemoryType,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.memory_type, self.range)
    }
}

// SAFETY: pinned memory is a mapping of its own, zeroed, until it is dropped; the rest the host does not reach.
unsafe impl DomainMemory for Memory {
    fn range(&self) -> AddressRange {
        self.range
    }
    fn memory_type(&self) -> MemoryType {
        self.memory_type
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let block = self.shared.memory.lock().remove(&self.range.start());
        match block {
            Some(block) if block.used == 0 => {}
            _ => self
                .shared
                .violation(format!("{self:?} was freed under a copy or an export")),
        }
        let base = ptr::with_exposed_provenance_mut(self.range.start() as usize);
        // SAFETY: mapped by `allocate`, and used by nobody from here on.
        unsafe { libc::munmap(base, self.range.len() as usize) };
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    armed: AtomicBool,
}

#[derive(Default)]
struct QueueState {
    waiting: Vec<(CopyRequest, usize)>,
    running: usize,
    done: Vec<(CopyRequest, Result<()>)>,
    lost: bool,
    ended: bool,
}

struct Engine {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    fd: Arc<OwnedFd>,
    lost: bool,
}

/// What the emulated device takes.
fn takes(time: Duration) {
    thread::sleep(time);
}

/// The thread that copies.
fn run(shared: &Shared, queue: &Queue, fd: &OwnedFd) {
    loop {
        let (request, number) = {
            let mut state = queue.state.lock();
            loop {
                if !state.waiting.is_empty() {
                    let index = shared.random() as usize % state.waiting.len();
                    state.running += 1;
                    break state.waiting.swap_remove(index);
                }
                if state.ended {
                    return;
                }
                queue.changed.wait(&mut state);
            }
        };
        let plan = {
            let mut plan = shared.plan.lock();
            while plan.stuck && !queue.state.lock().ended {
                shared.changed.wait_for(&mut plan, Duration::from_millis(1));
            }
            plan.clone()
        };
        if plan.late > 0 {
            takes(Duration::from_micros(shared.random() % plan.late));
        }
        let lost = plan.lose.is_some_and(|lose| number >= lose);
        let result = if lost {
            Err(Error::new(
                ErrorKind::DeviceLost,
                "the device fell off the bus",
            ))
        } else if plan.fail.contains(&number) {
            Err(Error::new(ErrorKind::Io, format!("copy {number} failed")))
        } else {
            // In pieces, the last of them first.
            let mut end = request.length;
            while end > 0 {
                let piece = (shared.random() as usize % request.length + 1).min(end);
                end -= piece;
                shared.copy(&request, end, piece);
            }
            Ok(())
        };
        let mut state = queue.state.lock();
        state.running -= 1;
        state.lost |= lost;
        state.done.push((request, result));
        drop(state);
        queue.changed.notify_all();
        if queue.armed.load(Ordering::SeqCst) {
            nix::unistd::write(fd, &1_u64.to_ne_bytes()).expect("an eventfd");
        }
    }
}

impl CopyEngine for Engine {
    fn attributes(&self) -> CopyAttributes {
        self.shared.plan.lock().attributes
    }

    unsafe fn copy(&mut self, request: CopyRequest) -> Result<(), SendError> {
        let attributes = self.attributes();
        let mut state = self.queue.state.lock();
        if self.lost {
            let error = Error::new(ErrorKind::DeviceLost, "lost before");
            return Err(SendError::Failed(error));
        }
        if state.waiting.len() + state.running + state.done.len() >= attributes.max_in_flight {
            return Err(SendError::Full);
        }
        let whole = request.length <= attributes.max_copy;
        if let Err(text) = self
            .shared
            .mark(&request, attributes.takes_pageable(0), true)
        {
            self.shared.violation(text);
        } else if !whole {
            self.shared
                .violation(format!("a copy of {} bytes", request.length));
        }
        let number = self.shared.copies.fetch_add(1, Ordering::Relaxed) + 1;
        state.waiting.push((request, number));
        Ok(())
    }

    fn flush(&mut self) {
        self.queue.changed.notify_all();
    }

    fn progress(&mut self, budget: usize, sink: &mut dyn CopySink) -> usize {
        let mut state = self.queue.state.lock();
        let count = state.done.len().min(budget);
        let done: Vec<_> = state.done.drain(..count).collect();
        let under_way = !state.waiting.is_empty() || state.running > 0 || !state.done.is_empty();
        let lost = state.lost && !under_way && !self.lost;
        drop(state);
        for (request, result) in done {
            let pageable = self.attributes().takes_pageable(0);
            if let Err(text) = self.shared.mark(&request, pageable, false) {
                self.shared.violation(format!("at its end: {text}"));
            }
            sink.copied(request.token, result);
        }
        if lost {
            self.lost = true;
            sink.lost(Error::new(
                ErrorKind::DeviceLost,
                "the device fell off the bus",
            ));
        }
        count + usize::from(lost)
    }

    fn register(&mut self, registry: Registry) -> Result<()> {
        let fd = self.fd.as_raw_fd();
        registry.register(&mut mio::unix::SourceFd(&fd), 7, mio::Interest::READABLE)
    }

    fn ready(&mut self, token: usize) {
        if token != 7 {
            self.shared
                .violation(format!("an fd was registered under 7, not {token}"));
        }
    }

    fn arm(&mut self) -> bool {
        self.queue.armed.store(true, Ordering::SeqCst);
        self.queue.state.lock().done.is_empty()
    }

    fn disarm(&mut self) {
        self.queue.armed.store(false, Ordering::SeqCst);
    }

    fn quiesce(&mut self, deadline: Instant) {
        // Long enough for what is slow, and an end for what hangs.
        let time = deadline.saturating_duration_since(Instant::now());
        if !(Duration::from_secs(1)..=Duration::from_secs(10)).contains(&time) {
            self.shared
                .violation(format!("brought to rest within {time:?}"));
        }
        let mut state = self.queue.state.lock();
        // Ends what is stuck.
        state.ended = true;
        self.queue.changed.notify_all();
        while !state.waiting.is_empty() || state.running > 0 {
            self.queue
                .changed
                .wait_for(&mut state, Duration::from_millis(1));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // What was never taken from it touches nothing any more.
        struct Nobody;
        impl CopySink for Nobody {
            fn copied(&mut self, _: u64, _: Result<()>) {}
            fn lost(&mut self, _: Error) {}
        }
        {
            let state = self.queue.state.lock();
            if !state.ended || !state.waiting.is_empty() || state.running > 0 {
                self.shared
                    .violation("dropped before it was brought to rest".to_owned());
            }
        }
        while self.progress(usize::MAX, &mut Nobody) > 0 {}
        self.queue.state.lock().ended = true;
        self.queue.changed.notify_all();
        self.shared.quiesced.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeEngine")
    }
}
