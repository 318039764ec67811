//! A card that Synapse has in this process: acquired by the program, as PyTorch does, or here because the program asked for that.
//!
//! ```text
//! copy ─▶ stream of its direction ─▶ an event behind it ─▶ asked until it was reached: nothing rings, and no call waits
//! ```
//! Each direction has a stream of its own, so that an event marks copies of one direction alone. Host memory is mapped by `synHostMap`; its address for the
//! engines is the host's.
//!
//! # Whose memory
//! All device memory of the process lies in one pool, also what others in it allocate: where it begins is said by newer runtimes
//! (`globalHbmBaseAddress`), else by SCAL, where Synapse has brought it. It is exported as one dma-buf, once; that keeps the card busy until it is closed.
//!
//! # What cannot be done
//! A card that somebody else has acquired cannot be closed. After a failure its streams are waited for; if they do not end, what they may touch stays mapped
//! and allocated for good. The kernel ends a copy that hangs by a reset, and Synapse then the process.
//!
//! # Safety
//! Copies are the caller's promise, passed on. Mapped host memory is the registration cache's, which unmaps it here before it goes, or this crate's own. A borrowed
//! descriptor is asked for anew before each use, and used for one call.
#![allow(unsafe_code)]

use std::{
    collections::{BTreeMap, HashMap},
    mem::ManuallyDrop,
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use super::backend::{Backend, Flight, IN_FLIGHT, Mapping, Pages};
use crate::{
    driver::{
        hlthunk::{BusId, HlThunk},
        scal::{GLOBAL_HBM, Scal},
        synapse::{
            Device, DeviceAllocation, DeviceType, Direction, Event, HostMapping, MAX_COPY, Stream,
            Synapse,
        },
    },
    error::{Error, ErrorKind, Result},
    transport::accelerator::Route,
    util::lock::{Mutex, RwLock},
};

/// What device memory is asked for in multiples of: Synapse divides its pool by itself, so this only saves calls.
const SLAB: u64 = 2 << 20;
/// What pages of a dma-buf, and the addresses here, are multiples of.
const PAGE: u64 = 4096;
/// How long closing waits for copies that are under way.
const CLOSING: Duration = Duration::from_secs(5);
/// How long a mapping waits for an older one at its addresses to end; others stage their copy then.
const UNMAPPING: Duration = Duration::from_millis(500);
/// Pauses between looks at the events: about the time of a short copy, and what a thread's sleep takes at least.
const PAUSES: (Duration, Duration) = (Duration::from_micros(10), Duration::from_micros(200));

/// The device that somebody in this process has acquired by Synapse. Loads, initialises and acquires nothing.
pub(super) fn resident(library: Option<&Path>) -> Option<Device> {
    match Synapse::resident(library)?.attach() {
        Ok(device) => device,
        Err(error) => {
            tracing::debug!(target: "wharf::gaudi", "Synapse is here, its device is not: {error}");
            None
        }
    }
}

/// Whether Synapse is loaded in this process.
pub(super) fn is_resident(library: Option<&Path>) -> bool {
    Synapse::resident(library).is_some()
}

/// The PCI place of Synapse's device.
/// Errors: what the libraries said.
pub(super) fn place(thunk: &'static HlThunk, device: &Device) -> Result<BusId> {
    let fd = device.info()?.fd;
    // SAFETY: Synapse's own descriptor, just asked for; the card is dropped with this function.
    let card = unsafe { thunk.borrow(fd) }?;
    Ok(card.bus_id().clone())
}

/// See the module.
#[derive(Debug)]
pub(super) struct Guest {
    inner: Arc<Inner>,
    thunk: &'static HlThunk,
    scal: Option<PathBuf>,
    pool: Option<(u64, u64)>,
    dma_buf: Mutex<Option<Exported>>,
}

/// What copies hold.
#[derive(Debug)]
struct Inner {
    /// Taken out by closing.
    queues: RwLock<Option<Queues>>,
    /// Copies under way, by number.
    flying: Mutex<HashMap<u64, Arc<Mark>>>,
    next: AtomicU64,
    lost: AtomicBool,
    /// Engines may still touch what they were given.
    stuck: AtomicBool,
    /// Host memory that is mapped here: start and length.
    mapped: Mutex<BTreeMap<u64, u64>>,
}

#[derive(Debug)]
struct Queues {
    device: Device,
    in_: Stream,
    out: Stream,
    within: Stream,
    spare: Mutex<Vec<Event>>,
}

/// The end of a copy.
#[derive(Debug)]
struct Mark {
    event: Event,
    done: AtomicBool,
    /// Why nothing will be heard of it. Its memory is in use until the device was closed.
    untold: Option<Error>,
}

/// What came of putting a copy into a stream in pieces.
enum Enqueued {
    Whole,
    /// Only the first ones are under way.
    Part(Error),
}

/// The pool as a dma-buf.
#[derive(Debug)]
struct Exported {
    fd: OwnedFd,
    start: u64,
    length: u64,
}

impl Guest {
    /// Makes streams on a device.
    /// Errors: `Exhausted`: no stream is left; and what Synapse said.
    pub(super) fn new(
        device: Device,
        thunk: &'static HlThunk,
        scal: Option<&Path>,
    ) -> Result<Self> {
        let info = device.info()?;
        let pool = match (info.kind, info.global_hbm_base) {
            // Its addresses could be the host's.
            (DeviceType::Gaudi, _) => None,
            (_, Some(base)) => Some((base, info.dram_size)),
            (_, None) => match scal_pool(scal, info.fd) {
                Ok(pool) => Some((pool.base, pool.total)),
                Err(error) => {
                    tracing::warn!(target: "wharf::gaudi", "memory that others allocate on this card is not known: {error}");
                    None
                }
            },
        };
        let queues = Queues {
            in_: device.stream()?,
            out: device.stream()?,
            within: device.stream()?,
            spare: Mutex::new(Vec::new()),
            device,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                queues: RwLock::new(Some(queues)),
                flying: Mutex::new(HashMap::new()),
                next: AtomicU64::new(1),
                lost: AtomicBool::new(false),
                stuck: AtomicBool::new(false),
                mapped: Mutex::new(BTreeMap::new()),
            }),
            thunk,
            scal: scal.map(Path::to_owned),
            pool,
            dma_buf: Mutex::new(None),
        })
    }

    /// Exports the pool: whole where its size is known, else as much as the device says that it has.
    fn export_pool(&self) -> Result<Exported> {
        let (info, total) = self.inner.with(|queues| {
            let info = queues.device.info()?;
            Ok((info, queues.device.memory().map(|memory| memory.total)))
        })?;
        // SAFETY: Synapse's own descriptor, just asked for; the card is dropped with this function.
        let card = unsafe { self.thunk.borrow(info.fd) }?;
        let export = |start: u64, length: u64| {
            let length = length - length % PAGE;
            let fd = card.export(start, 0, length)?;
            Ok(Exported { fd, start, length })
        };
        let by_scal = scal_pool(self.scal.as_deref(), info.fd);
        let error = match by_scal.map(|pool| {
            let before = pool.base - pool.allocated_base;
            export(pool.allocated_base, before.saturating_add(pool.total))
        }) {
            Ok(Ok(exported)) => return Ok(exported),
            Ok(Err(error)) | Err(error) => error,
        };
        let Some(base) = info.global_hbm_base else {
            return Err(error);
        };
        match export(base, info.dram_size) {
            Err(error) if error.kind() == ErrorKind::InvalidArgument => export(base, total?),
            exported => exported,
        }
    }

    fn begin(
        &self,
        route: Route,
        enqueue: impl FnOnce(&Stream) -> Result<Enqueued>,
    ) -> Result<Box<dyn Flight>> {
        self.inner.with(|queues| {
            if self.inner.flying.lock().len() >= IN_FLIGHT {
                return Err(full());
            }
            let spare = queues.spare.lock().pop();
            let event = match spare {
                Some(event) => event,
                None => queues.device.event()?,
            };
            let stream = match route {
                Route::ToDevice => &queues.in_,
                Route::ToHost => &queues.out,
                Route::Across => &queues.within,
            };
            let untold = match enqueue(stream) {
                Ok(Enqueued::Whole) => stream.record(&event).err(),
                Ok(Enqueued::Part(error)) => Some(error),
                Err(error) => {
                    queues.spare.lock().push(event);
                    // Its queue is full, as nothing else is counted in copies.
                    let full_queue = error.kind() == ErrorKind::Exhausted;
                    return Err(match full_queue && !self.inner.flying.lock().is_empty() {
                        true => full(),
                        false => error,
                    });
                }
            };
            let mark = Arc::new(Mark {
                event,
                done: AtomicBool::new(false),
                untold: untold.map(|error| self.inner.untold(&error)),
            });
            let number = self.inner.next.fetch_add(1, Relaxed);
            self.inner.flying.lock().insert(number, Arc::clone(&mark));
            let flight = Flown {
                inner: Arc::clone(&self.inner),
                mark: Some(mark),
                number,
            };
            Ok(Box::new(flight) as Box<dyn Flight>)
        })
    }
}

/// Where SCAL says that the pool lies. Loads and sets up nothing.
fn scal_pool(library: Option<&Path>, fd: i32) -> Result<crate::driver::scal::PoolInfo> {
    let scal = Scal::resident(library).ok_or_else(|| {
        let text = "libscal.so is not in this process, as it is with Synapse";
        Error::new(ErrorKind::Unsupported, text)
    })?;
    scal.attach(fd)?.pool(GLOBAL_HBM)
}

#[cold]
fn full() -> Error {
    Error::new(ErrorKind::WouldBlock, "as many copies are under way as may")
}

impl Inner {
    /// Runs with the device, unless it is closed.
    fn with<R>(&self, run: impl FnOnce(&Queues) -> Result<R>) -> Result<R> {
        match &*self.queues.read() {
            Some(queues) => run(queues).map_err(|error| self.judge(&queues.device, error)),
            None => Err(Error::new(
                ErrorKind::Closed,
                "Synapse's device was given up",
            )),
        }
    }

    /// Whether a mapping that was made here overlaps.
    fn is_mapped(&self, host: u64, length: u64) -> bool {
        let mapped = self.mapped.lock();
        let before = mapped.range(..host.saturating_add(length)).next_back();
        before.is_some_and(|(start, length)| start.saturating_add(*length) > host)
    }

    /// Whether a copy is done.
    fn is_done(&self, mark: &Mark) -> Result<bool> {
        let done = mark.is_done();
        done.map_err(|error| self.judge(mark.event.device(), error))
    }

    /// Takes note of an error that ends the device. One that its owner has released is gone as well.
    fn judge(&self, device: &Device, error: Error) -> Error {
        let gone = device.was_released(&error);
        if error.kind() == ErrorKind::DeviceLost || gone {
            self.lost.store(true, SeqCst);
        }
        if gone {
            let text = format!("Synapse's device was released: {error}");
            return Error::new(ErrorKind::DeviceLost, text);
        }
        error
    }

    /// Something was begun of which nothing will be heard: the device is given up, and whoever waits for it is told after that.
    #[cold]
    fn untold(&self, error: &Error) -> Error {
        self.lost.store(true, SeqCst);
        let text = format!("Synapse took a copy and does not tell of its end: {error}");
        Error::new(ErrorKind::DeviceLost, text)
    }
}

impl Mark {
    fn is_done(&self) -> Result<bool> {
        if let Some(error) = &self.untold {
            return Err(error.clone());
        }
        if self.done.load(SeqCst) {
            return Ok(true);
        }
        let done = self.event.is_done()?;
        self.done.store(done, SeqCst);
        Ok(done)
    }
}

impl Backend for Guest {
    fn allocate(&self, length: u64) -> Result<Box<dyn Pages>> {
        // Synapse aligns to less than a page.
        let wanted = length.checked_add(PAGE);
        let slab = wanted.and_then(|wanted| wanted.checked_next_multiple_of(SLAB));
        let (Some(wanted), Some(slab)) = (wanted, slab) else {
            let text = format!("an allocation of {length} bytes");
            return Err(Error::new(ErrorKind::Exhausted, text));
        };
        let memory = self
            .inner
            .with(|queues| match queues.device.allocate(slab) {
                Err(error) if error.kind() == ErrorKind::Exhausted && slab > wanted => {
                    queues.device.allocate(wanted)
                }
                made => made,
            })?;
        let start = memory.address();
        let address = start.checked_next_multiple_of(PAGE).unwrap_or(start);
        let length = memory.len().saturating_sub(address - start);
        Ok(Box::new(Slab {
            inner: Arc::clone(&self.inner),
            memory: ManuallyDrop::new(memory),
            address,
            length: length - length % PAGE,
        }))
    }

    fn map(&self, host: u64, length: u64) -> Result<Box<dyn Mapping>> {
        let at = usize::try_from(host)
            .ok()
            .and_then(|at| NonNull::new(ptr::with_exposed_provenance_mut(at)));
        let at = at.ok_or_else(|| {
            let text = format!("{length} bytes of host memory at {host:#x}");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        // A mapping of memory that has gone is still there for a moment, and Synapse knows it by this address.
        let start = Instant::now();
        while self.inner.is_mapped(host, length) && start.elapsed() < UNMAPPING {
            thread::sleep(PAUSES.1);
        }
        // SAFETY: the registration cache's, which is told before memory goes, or this crate's own, which outlives its mapping.
        let mapping = self
            .inner
            .with(|queues| unsafe { queues.device.map(at, length) })?;
        self.inner.mapped.lock().insert(host, length);
        Ok(Box::new(Mapped {
            inner: Arc::clone(&self.inner),
            mapping: ManuallyDrop::new(mapping),
            host,
            length,
        }))
    }

    unsafe fn copy(
        &self,
        route: Route,
        to: u64,
        from: u64,
        length: u64,
    ) -> Result<Box<dyn Flight>> {
        let direction = match route {
            Route::ToDevice => Direction::ToDevice,
            Route::ToHost => Direction::ToHost,
            Route::Across => Direction::Within,
        };
        self.begin(route, |stream| {
            Inner::pieces(length, |at, some| {
                // SAFETY: the caller's promise.
                unsafe { stream.copy(direction, from + at, some, to + at) }
            })
        })
    }

    unsafe fn zero(&self, to: u64, length: u64) -> Result<Box<dyn Flight>> {
        self.begin(Route::Across, |stream| {
            Inner::pieces(length, |at, some| {
                // SAFETY: the caller's promise.
                unsafe { stream.fill(to + at, 0, some) }
            })
        })
    }

    /// Looks at the events again and again. No call of Synapse's waits.
    fn wait_any(&self, numbers: &[u64], timeout: Duration) -> Result<u32> {
        let start = Instant::now();
        let mut pause = PAUSES.0;
        let marks: Vec<Option<Arc<Mark>>> = {
            let flying = self.inner.flying.lock();
            let find = |number| flying.get(number).cloned();
            numbers.iter().take(IN_FLIGHT).map(find).collect()
        };
        loop {
            let mut over = 0;
            for (place, mark) in marks.iter().enumerate() {
                // One that is unknown is over.
                let mark = mark.as_ref();
                if mark.map_or(Ok(true), |mark| self.inner.is_done(mark))? {
                    over |= 1 << place;
                }
            }
            if over != 0 || start.elapsed() >= timeout {
                return Ok(over);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn news(&self) -> Result<bool> {
        Ok(false)
    }

    fn is_lost(&self) -> bool {
        self.inner.lost.load(SeqCst)
    }

    fn close(&self) {
        let queues = self.inner.queues.write().take();
        // It keeps the card busy. No other is made without the queues.
        *self.dma_buf.lock() = None;
        let Some(queues) = queues else {
            return;
        };
        if queues.is_over(CLOSING) {
            return;
        }
        tracing::warn!(target: "wharf::gaudi", "Synapse's copies do not end: the memory that they use stays taken");
        self.inner.stuck.store(true, SeqCst);
        let _ = ManuallyDrop::new(queues);
    }

    fn is_guest(&self) -> bool {
        true
    }

    fn pool(&self) -> Option<(u64, u64)> {
        self.pool
    }

    fn export(&self, address: u64) -> Option<Result<(OwnedFd, u64)>> {
        Some(self.export_at(address))
    }
}

impl Guest {
    fn export_at(&self, address: u64) -> Result<(OwnedFd, u64)> {
        let mut dma_buf = self.dma_buf.lock();
        let exported = match &mut *dma_buf {
            Some(exported) => exported,
            none => none.insert(self.export_pool()?),
        };
        let offset = address
            .checked_sub(exported.start)
            .filter(|offset| *offset < exported.length);
        let offset = offset.ok_or_else(|| {
            let text = format!("{address:#x} is not in the pool that Synapse exports");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        let fd = exported.fd.try_clone();
        let fd = fd.map_err(|error| Error::io("a descriptor of a dma-buf", error))?;
        Ok((fd, offset))
    }
}

impl Inner {
    /// Enqueues in pieces of at most [`MAX_COPY`].
    fn pieces(length: u64, each: impl Fn(u64, u64) -> Result<()>) -> Result<Enqueued> {
        /// Whole pages.
        const PIECE: u64 = MAX_COPY - MAX_COPY % PAGE;
        let mut at = 0;
        while at < length {
            let some = PIECE.min(length - at);
            match each(at, some) {
                Err(error) if at > 0 => return Ok(Enqueued::Part(error)),
                piece => piece?,
            }
            at += some;
        }
        Ok(Enqueued::Whole)
    }
}

impl Queues {
    /// Waits until nothing is under way.
    fn is_over(&self, limit: Duration) -> bool {
        let start = Instant::now();
        for stream in [&self.in_, &self.out, &self.within] {
            loop {
                match stream.is_idle() {
                    Ok(true) => break,
                    // A device that is gone does nothing.
                    Err(error) if error.kind() == ErrorKind::DeviceLost => return true,
                    Err(error) if self.device.was_released(&error) => return true,
                    Err(error) if error.kind() == ErrorKind::Forked => return true,
                    _ if start.elapsed() >= limit => return false,
                    _ => thread::sleep(Duration::from_millis(1)),
                }
            }
        }
        true
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.close();
    }
}

/// A copy under way.
#[derive(Debug)]
struct Flown {
    inner: Arc<Inner>,
    mark: Option<Arc<Mark>>,
    number: u64,
}

impl Flight for Flown {
    fn number(&self) -> u64 {
        self.number
    }

    fn poll(&mut self) -> Result<bool> {
        let mark = self.mark.as_ref();
        mark.map_or(Ok(true), |mark| self.inner.is_done(mark))
    }
}

impl Drop for Flown {
    fn drop(&mut self) {
        self.inner.flying.lock().remove(&self.number);
        let mark = self.mark.take().and_then(Arc::into_inner);
        let Some(mark) = mark else { return };
        if !mark.done.load(SeqCst) {
            return;
        }
        if let Some(queues) = &*self.inner.queues.read() {
            queues.spare.lock().push(mark.event);
        }
    }
}

/// Device memory.
#[derive(Debug)]
struct Slab {
    inner: Arc<Inner>,
    memory: ManuallyDrop<DeviceAllocation>,
    address: u64,
    length: u64,
}

impl Pages for Slab {
    fn address(&self) -> u64 {
        self.address
    }

    fn length(&self) -> u64 {
        self.length
    }

    /// The pool is exported as a whole.
    fn export(&self) -> Result<OwnedFd> {
        let text = "a part of Synapse's pool";
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if !self.inner.stuck.load(SeqCst) {
            // SAFETY: once, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// Host memory that is mapped for the device.
#[derive(Debug)]
struct Mapped {
    inner: Arc<Inner>,
    mapping: ManuallyDrop<HostMapping>,
    host: u64,
    length: u64,
}

impl Mapping for Mapped {
    fn translate(&self, host: u64, length: u64) -> Option<u64> {
        let offset = host.checked_sub(self.host)?;
        let end = offset.checked_add(length)?;
        (end <= self.length).then_some(host)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.inner.stuck.load(SeqCst) {
            // SAFETY: once, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
            self.inner.mapped.lock().remove(&self.host);
        }
    }
}
