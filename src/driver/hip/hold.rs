//! Streams that wait for the host's word.
//!
//! `hipStreamWaitValue64` has a stream wait until a word of host memory has reached a value. By default that is a small kernel which looks at the word;
//! older runtimes, and newer ones that are told to have the command processor wait, want the word in signal memory (`hipMallocSignalMemory`, 8 bytes
//! exactly), which some devices do not have: then any host memory that devices reach does. The word of a hold that has ended serves the next, with a
//! higher value. None is freed: `hipFree` waits for all that a device has to do.
//!
//! # Safety
//! As of the room's door. Words are never freed, so a stream or a hold may look at them at any time.
#![allow(unsafe_code)]

use std::{
    fmt,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Release},
};

use super::runtime::{Hip, OnDevice, RawStream, check};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// `hipStreamWaitValueGte`.
const AT_LEAST: u32 = 0;
/// `hipMallocSignalMemory`.
const SIGNAL_MEMORY: u32 = 2;
/// `hipHostMallocMapped` and `hipHostMallocCoherent`.
const COHERENT: u32 = 0x2 | 0x4000_0000;

/// Words that no hold has, each with its device.
static FREE: Mutex<Vec<(i32, Word)>> = Mutex::new(Vec::new());

/// Host memory that a device looks at.
#[derive(Clone, Copy)]
struct Word {
    host: NonNull<AtomicU64>,
    /// Its address for the device.
    device: usize,
    /// What holds before had it reach.
    value: u64,
}

// SAFETY: memory that is never freed, touched as an atomic only.
unsafe impl Send for Word {}

/// Keeps a stream from what was queued in it behind this: until it is opened, or dropped.
pub(crate) struct Hold {
    word: Word,
    device: i32,
}

// SAFETY: as of the word, which all threads may write.
unsafe impl Sync for Hold {}

impl Hip {
    /// Has a stream wait: what is queued in it from now on begins when the hold is opened or dropped. Some microseconds; the first of a device allocate.
    /// Errors: `Unsupported`: not with this runtime, or this device; `InvalidArgument`: the stream captures a graph, or is none; `Exhausted`. The stream does
    /// not wait then.
    ///
    /// # Safety
    /// The stream is one of this HIP, and is not destroyed during the call.
    pub(crate) unsafe fn hold(self, stream: RawStream) -> Result<Hold> {
        let Some(wait) = self.api.hipStreamWaitValue64 else {
            let text = "this HIP has no streams that wait for a word (hipStreamWaitValue64)";
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        // SAFETY: of the stream the caller vouches.
        let _device = unsafe { OnDevice::of(self, stream) };
        self.captures(stream)?;
        let device = self.device_of(stream)?;
        let mut word = self.word(device)?;
        word.value += 1;
        // SAFETY: a word that stays; of the stream the caller vouches.
        let code = unsafe { wait(stream, word.device, word.value, AT_LEAST, u64::MAX) };
        let hold = Hold { word, device };
        match code {
            // What some runtimes say of memory that is not the kind they want, and of devices that cannot.
            1 | 801 => {
                self.forget_error();
                let text = format!(
                    "hipStreamWaitValue64: HIP error {code}: no stream waits for a word here"
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            code => check(code, "hipStreamWaitValue64").map(|()| hold),
        }
    }

    /// # Errors
    /// `InvalidArgument`: the stream captures a graph.
    fn captures(self, stream: RawStream) -> Result<()> {
        let Some(is_capturing) = self.api.hipStreamIsCapturing else {
            return Ok(());
        };
        let mut status = 0;
        // SAFETY: writes one number.
        let code = unsafe { is_capturing(stream, &raw mut status) };
        check(code, "hipStreamIsCapturing")?;
        match status {
            0 => Ok(()),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                "the HIP stream is capturing a graph",
            )),
        }
    }

    /// The device of a stream, which is current; −1 where HIP cannot say.
    fn device_of(self, stream: RawStream) -> Result<i32> {
        let mut device = -1;
        let code = match (stream, self.api.hipStreamGetDevice, self.api.hipGetDevice) {
            // SAFETY: writes one number.
            (1.., Some(of), _) => unsafe { of(stream, &raw mut device) },
            // SAFETY: as above.
            (0, _, Some(get)) => unsafe { get(&raw mut device) },
            _ => 0,
        };
        check(code, "hipStreamGetDevice, hipGetDevice")?;
        Ok(device)
    }

    /// A word for the current device.
    fn word(self, device: i32) -> Result<Word> {
        let mut free = FREE.lock();
        if let Some(at) = free.iter().position(|(of, _)| *of == device) {
            return Ok(free.swap_remove(at).1);
        }
        drop(free);
        let (mut host, mut seen) = (0_usize, 0_usize);
        let mut code = 801;
        if let Some(allocate) = self.api.hipExtMallocWithFlags {
            // SAFETY: writes one address.
            code = unsafe { allocate(&raw mut host, 8, SIGNAL_MEMORY) };
            seen = host;
        }
        let api = &self.api;
        if code != 0
            && let Some(allocate) = api.hipHostMalloc
            && let Some(address) = api.hipHostGetDevicePointer
            && let Some(free) = api.hipHostFree
        {
            self.forget_error();
            // SAFETY: writes one address.
            code = unsafe { allocate(&raw mut host, 8, COHERENT) };
            if code == 0 {
                // SAFETY: writes one address.
                code = unsafe { address(&raw mut seen, host, 0) };
                if code != 0 {
                    // SAFETY: allocated above, and nobody has it.
                    unsafe { free(host) };
                }
            }
        }
        check(code, "hipExtMallocWithFlags, hipHostMalloc")?;
        let Some(host) = NonNull::new(std::ptr::with_exposed_provenance_mut::<AtomicU64>(host))
        else {
            return Err(Error::new(
                ErrorKind::Exhausted,
                "HIP gave no memory for a word",
            ));
        };
        let word = Word {
            host,
            device: seen,
            value: 0,
        };
        word.store();
        Ok(word)
    }

    /// What failed and was not needed is not the error that a program's `hipGetLastError` is to find.
    fn forget_error(self) {
        if let Some(last) = self.api.hipGetLastError {
            // SAFETY: takes nothing.
            unsafe { last() };
        }
    }
}

impl Word {
    fn store(self) {
        // SAFETY: eight bytes of aligned host memory that is never freed.
        unsafe { self.host.as_ref() }.store(self.value, Release);
    }
}

impl Hold {
    /// Lets the stream go on.
    pub(crate) fn open(&self) {
        self.word.store();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.open();
        FREE.lock().push((self.device, self.word));
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hold of a HIP stream at {:p}", self.word.host)
    }
}
