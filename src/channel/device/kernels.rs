//! The kernels: loaded into a context, tried there, and launched.
//!
//! # Safety
//! Arguments are as many and of the kinds as `channel.ptx` declares. The trial's memory is kept until its stream was waited for.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    slice,
    sync::{Arc, Weak},
};

use crate::{
    driver::cuda::{
        Argument::{Long, Word},
        ContextGuard, ContextId, CudaContext, DevicePtr, Kernel, Stream,
    },
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// The text, which the driver compiles.
const TEXT: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("channel.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a zero within the text"),
    };

/// Threads of a block.
const THREADS: u32 = 512;
/// Most blocks of a launch: as many as fill a link between devices leave most of a device to others.
const BLOCKS: u32 = 64;
/// Bytes for each thread before there is another block: four words of 16 bytes.
const EACH: u64 = 64;
/// Contexts of which something is kept.
const KNOWN: usize = 64;

/// The kernels in one context.
#[derive(Debug)]
pub(super) struct Kernels {
    signal: Kernel,
    signal_store: Kernel,
    wait: Kernel,
    put: Kernel,
    packets_put: Kernel,
    packets_get: Kernel,
}

enum Known {
    Loaded(Weak<Kernels>),
    /// Why not, for good.
    Refused(String),
}

static CONTEXTS: Mutex<Vec<(ContextId, Known)>> = Mutex::new(Vec::new());

/// A counter's addition.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    /// By an atomic addition.
    Add(DevicePtr),
    /// By a store of what the second counts.
    Store(DevicePtr, DevicePtr),
}

impl Kernels {
    /// Those of a context, compiled, loaded and tried if nobody has done it. Takes tens of milliseconds then.
    /// Errors: `Unsupported`: the driver does not compile them, or they do not do there what they should; that is asked once. What else the driver said.
    pub(super) fn of(context: &CudaContext) -> Result<Arc<Self>> {
        for (id, known) in &*CONTEXTS.lock() {
            if *id == context.id() {
                match known {
                    Known::Loaded(kernels) => {
                        if let Some(kernels) = kernels.upgrade() {
                            return Ok(kernels);
                        }
                    }
                    Known::Refused(why) => {
                        return Err(Error::new(ErrorKind::Unsupported, why.clone()));
                    }
                }
            }
        }
        let loaded = Self::load(context);
        let known = match &loaded {
            Ok(kernels) => Known::Loaded(Arc::downgrade(kernels)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                Known::Refused(error.to_string())
            }
            Err(_) => return loaded,
        };
        let mut contexts = CONTEXTS.lock();
        contexts.retain(|(id, _)| *id != context.id());
        if contexts.len() == KNOWN {
            contexts.remove(0);
        }
        contexts.push((context.id(), known));
        drop(contexts);
        loaded
    }

    fn load(context: &CudaContext) -> Result<Arc<Self>> {
        let guard = context.enter()?;
        let module = guard.load_module(TEXT)?;
        let kernel = |name: &CStr| module.kernel(&guard, name);
        let kernels = Arc::new(Self {
            signal: kernel(c"wharf_signal")?,
            signal_store: kernel(c"wharf_signal_store")?,
            wait: kernel(c"wharf_wait")?,
            put: kernel(c"wharf_put")?,
            packets_put: kernel(c"wharf_packets_put")?,
            packets_get: kernel(c"wharf_packets_get")?,
        });
        kernels.try_all(&guard)?;
        Ok(kernels)
    }

    /// # Safety
    /// The counter is 8 bytes of memory of devices that this stream's device reaches, aligned to 8, and valid until the stream has passed it.
    pub(super) unsafe fn signal(
        &self,
        guard: &ContextGuard<'_>,
        stream: &Stream,
        signal: Signal,
    ) -> Result<()> {
        match signal {
            // SAFETY: by the caller's promise.
            Signal::Add(token) => unsafe {
                stream.launch(guard, &self.signal, (1, 1), &[Long(token.0), Long(1)])
            },
            Signal::Store(token, sent) => {
                let arguments = [Long(token.0), Long(sent.0), Long(1)];
                // SAFETY: by the caller's promise.
                unsafe { stream.launch(guard, &self.signal_store, (1, 1), &arguments) }
            }
        }
    }

    /// # Safety
    /// As [`Kernels::signal`], for both counters; and `status` is a word of 4 bytes that the device reaches.
    pub(super) unsafe fn wait(
        &self,
        guard: &ContextGuard<'_>,
        stream: &Stream,
        (token, taken): (DevicePtr, DevicePtr),
        looks: u64,
        status: DevicePtr,
    ) -> Result<()> {
        let arguments = [Long(token.0), Long(taken.0), Long(looks), Long(status.0)];
        // SAFETY: by the caller's promise.
        unsafe { stream.launch(guard, &self.wait, (1, 1), &arguments) }
    }

    /// # Safety
    /// Both ranges are memory that the device reaches, valid until the stream has passed it, and do not overlap; nobody changes the source or uses the
    /// target. `done` is a word of 4 bytes of the device's own, 0, that only work of this stream uses. As [`Kernels::signal`], for the counter.
    pub(super) unsafe fn put(
        &self,
        guard: &ContextGuard<'_>,
        stream: &Stream,
        (to, from, length): (DevicePtr, DevicePtr, u64),
        done: DevicePtr,
        signal: Option<Signal>,
    ) -> Result<()> {
        let (add, store) = match signal {
            Some(Signal::Add(token)) => (token.0, None),
            Some(store @ Signal::Store(..)) => (0, Some(store)),
            None => (0, None),
        };
        let arguments = [
            Long(to.0),
            Long(from.0),
            Long(length),
            Long(done.0),
            Long(add),
            Long(1),
        ];
        // SAFETY: by the caller's promise.
        unsafe { stream.launch(guard, &self.put, grid(length), &arguments) }?;
        match store {
            // Behind the copy in the stream, and so behind its bytes.
            // SAFETY: by the caller's promise.
            Some(store) => unsafe { self.signal(guard, stream, store) },
            None => Ok(()),
        }
    }

    /// # Safety
    /// The source is `length` bytes and the target `words` words of 8, aligned to 8: memory that the device reaches, valid until the stream has passed
    /// it. `words` hold `length` bytes.
    pub(super) unsafe fn packets_put(
        &self,
        guard: &ContextGuard<'_>,
        stream: &Stream,
        (to, from, length): (DevicePtr, DevicePtr, u64),
        words: u64,
        flag: u32,
    ) -> Result<()> {
        let arguments = [
            Long(to.0),
            Long(from.0),
            Long(length),
            Long(words),
            Word(flag),
        ];
        // SAFETY: by the caller's promise.
        unsafe { stream.launch(guard, &self.packets_put, grid(length), &arguments) }
    }

    /// # Safety
    /// As [`Kernels::packets_put`], with the sides exchanged; and `status` is a word of 4 bytes that the device reaches.
    pub(super) unsafe fn packets_get(
        &self,
        guard: &ContextGuard<'_>,
        stream: &Stream,
        (to, from, length): (DevicePtr, DevicePtr, u64),
        flag: u32,
        looks: u64,
        status: DevicePtr,
    ) -> Result<()> {
        let arguments = [
            Long(to.0),
            Long(from.0),
            Long(length),
            Word(flag),
            Long(looks),
            Long(status.0),
        ];
        // SAFETY: by the caller's promise.
        unsafe { stream.launch(guard, &self.packets_get, grid(length), &arguments) }
    }

    /// Does each of them once and looks at what came of it. What a driver loads late, it loads here, before any kernel waits for another.
    ///
    /// # Errors
    /// `Unsupported`: one did something else.
    fn try_all(&self, guard: &ContextGuard<'_>) -> Result<()> {
        /// Bytes of the trial's memory, and where in it what is.
        const ROOM: usize = 16 << 10;
        const COUNTERS: [u64; 4] = [0, 8, 16, 24];
        const DONE: u64 = 32;
        const STATUS: [u64; 2] = [40, 44];
        const PACKETS: u64 = 64;
        const SOURCE: u64 = 1 << 10;
        const ALIGNED: u64 = 4 << 10;
        const ODD: u64 = 8 << 10;
        const UNPACKED: u64 = 12 << 10;
        const LONG: u64 = 2_005;
        const SHORT: u64 = 13;

        let memory = guard.allocate(ROOM)?;
        let pinned = guard.allocate_pinned(ROOM)?;
        let stream = guard.stream(false)?;
        let at = |offset: u64| memory.ptr() + offset;
        let [token, taken, stored, sent] = COUNTERS.map(at);
        let [passed, failed] = STATUS.map(at);
        let source = |index: u64| (index * 37 % 251) as u8;
        // SAFETY: pinned memory of this function's alone, which no copy uses yet.
        let bytes = unsafe { slice::from_raw_parts_mut(pinned.as_ptr().as_ptr(), ROOM) };
        for index in 0..LONG {
            bytes[(SOURCE + index) as usize] = source(index);
        }
        // SAFETY: all memory is this function's and kept until the stream is idle; ranges are within it, aligned, and do not overlap; counters and
        // words are 0 at the beginning. After an error the memory is freed by calls that wait for the device.
        unsafe {
            stream.copy(guard, memory.ptr(), pinned.device_ptr(), ROOM)?;
            let add = Signal::Add(token);
            let aligned = (at(ALIGNED), at(SOURCE), LONG);
            self.put(guard, &stream, aligned, at(DONE), Some(add))?;
            let odd = (at(ODD + 1), at(SOURCE + 2), LONG - 2);
            self.put(guard, &stream, odd, at(DONE), None)?;
            self.signal(guard, &stream, add)?;
            let store = Signal::Store(stored, sent);
            self.signal(guard, &stream, store)?;
            self.signal(guard, &stream, store)?;
            self.wait(guard, &stream, (token, taken), 1, passed)?;
            self.wait(guard, &stream, (token, taken), 1, passed)?;
            self.wait(guard, &stream, (token, taken), 1, failed)?;
            let packets = (at(PACKETS), at(SOURCE), SHORT);
            self.packets_put(guard, &stream, packets, SHORT.div_ceil(4), 7)?;
            let packets = (at(UNPACKED), at(PACKETS), SHORT);
            self.packets_get(guard, &stream, packets, 7, 1, passed)?;
            stream.copy(guard, pinned.device_ptr(), memory.ptr(), ROOM)?;
        }
        stream.synchronize(guard)?;
        // SAFETY: as above; the stream is idle.
        let bytes = unsafe { slice::from_raw_parts(pinned.as_ptr().as_ptr(), ROOM) };
        let words = |offset: u64, count: usize| {
            let words = bytes[offset as usize..].chunks_exact(4).take(count);
            Vec::from_iter(
                words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])),
            )
        };
        let same = |at: u64, from: u64, length: u64| {
            let found = &bytes[at as usize..][..length as usize];
            let room = bytes[(at + length) as usize];
            room == 0
                && found
                    .iter()
                    .zip(from..)
                    .all(|(byte, index)| *byte == source(index))
        };
        let wrong = if words(0, 12) != [2, 0, 2, 0, 2, 0, 2, 0, 0, 0, 0, 1] {
            format!("signals and waits left {:?}", words(0, 12))
        } else if !same(ALIGNED, 0, LONG) || !same(ODD + 1, 2, LONG - 2) {
            "a put left other bytes".to_owned()
        } else if words(PACKETS, 8)[1..]
            .iter()
            .step_by(2)
            .any(|flag| *flag != 7)
            || !same(UNPACKED, 0, SHORT)
        {
            "packets left other bytes".to_owned()
        } else {
            return Ok(());
        };
        let text = format!("the kernels were tried on {:?}: {wrong}", guard.context());
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

/// Blocks and threads for so many bytes.
fn grid(length: u64) -> (u32, u32) {
    let blocks = length.div_ceil(EACH * u64::from(THREADS));
    let blocks = u32::try_from(blocks).unwrap_or(BLOCKS);
    (blocks.clamp(1, BLOCKS), THREADS)
}
