//! A HIP made on the spot, where tests have a program's streams. It shows no device's order: that a stream waits is what it has been told.
//!
//! # Safety
//! Functions are called with the signatures that the library declares; its streams are numbers.
#![allow(unsafe_code)]

use std::ffi::c_void;

use libloading::Library;
use wharf::transport::rocm::RocmStream;

use crate::{alone::child_with, fake::Fakes};

/// Stream `s` is done after `s / 16` questions; stream 999 is none, 998 captures a graph.
///
/// A word that streams wait for is signal memory, as long as there is any (`NO_SIGNALS` unset), else host memory, at another address for the device.
/// `holds` tells how many words a stream waits for, `words` how many were ever given.
const SOURCE: &str = r#"
    use std::sync::{Mutex, atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst}};
    static EVENTS: AtomicUsize = AtomicUsize::new(0);
    static WORDS: AtomicUsize = AtomicUsize::new(0);
    static ERROR: AtomicUsize = AtomicUsize::new(0);
    static WAITS: Mutex<Vec<(usize, usize, u64)>> = Mutex::new(Vec::new());
    const FAR: usize = 1 << 56;
    fn failed(code: u32) -> u32 { ERROR.store(code as usize, SeqCst); code }
    fn word(to: &mut usize) -> u32 {
        WORDS.fetch_add(1, SeqCst);
        *to = Box::leak(Box::new(AtomicU64::new(!0))) as *const AtomicU64 as usize;
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipEventCreateWithFlags(to: &mut usize, _: u32) -> u32 {
        EVENTS.fetch_add(1, SeqCst);
        *to = Box::leak(Box::new(AtomicUsize::new(0))) as *const AtomicUsize as usize;
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipEventRecord(event: &AtomicUsize, stream: usize) -> u32 {
        if stream == 999 { return 400; }
        event.store(stream / 16, SeqCst);
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipEventQuery(event: &AtomicUsize) -> u32 {
        let left = event.load(SeqCst);
        if left == 0 { return 0; }
        event.store(left - 1, SeqCst);
        600
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipEventDestroy(_: usize) -> u32 { EVENTS.fetch_sub(1, SeqCst); 0 }
    #[unsafe(no_mangle)] pub extern "C" fn hipStreamIsCapturing(stream: usize, to: &mut u32) -> u32 {
        *to = (stream == 998) as u32;
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipExtMallocWithFlags(to: &mut usize, length: usize, flags: u32) -> u32 {
        if length != 8 || flags != 2 || std::env::var_os("NO_SIGNALS").is_some() { return failed(1); }
        word(to)
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipHostMalloc(to: &mut usize, length: usize, flags: u32) -> u32 {
        if length != 8 || flags != 0x4000_0002 { return failed(1); }
        word(to)
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipHostFree(_: usize) -> u32 { WORDS.fetch_sub(1, SeqCst); 0 }
    #[unsafe(no_mangle)] pub extern "C" fn hipHostGetDevicePointer(to: &mut usize, host: usize, _: u32) -> u32 {
        *to = host | FAR;
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipStreamWaitValue64(stream: usize, word: usize, value: u64, flags: u32, mask: u64) -> u32 {
        let far = std::env::var_os("NO_SIGNALS").is_some();
        if stream == 999 { return failed(400); }
        if (word & FAR != 0) != far || flags != 0 || mask != !0 || std::env::var_os("NO_WAITS").is_some() { return failed(1); }
        WAITS.lock().unwrap().push((stream, word & !FAR, value));
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipGetLastError() -> u32 { ERROR.swap(0, SeqCst) as u32 }
    #[unsafe(no_mangle)] pub extern "C" fn events() -> usize { EVENTS.load(SeqCst) }
    #[unsafe(no_mangle)] pub extern "C" fn words() -> usize { WORDS.load(SeqCst) }
    #[unsafe(no_mangle)] pub extern "C" fn holds(stream: usize) -> usize {
        let below = |word: usize, value| unsafe { &*(word as *const AtomicU64) }.load(SeqCst) < value;
        WAITS.lock().unwrap().iter().filter(|(of, word, value)| *of == stream && below(*word, *value)).count()
    }
"#;

/// The library as a program has it.
pub(crate) struct Hip(Library);

/// Runs a test in a process of its own, which finds this library by `WHARF_LIBHIP`.
pub(crate) fn alone(test: &str, variables: &[(&str, &str)]) {
    let fakes = Fakes::new();
    let path = fakes.compile("hip", SOURCE);
    let mut all = vec![("WHARF_LIBHIP", path.to_str().expect("UTF-8"))];
    all.extend_from_slice(variables);
    child_with(test, &all);
}

pub(crate) fn compile(fakes: &Fakes) -> std::path::PathBuf {
    fakes.compile("hip", SOURCE)
}

impl Hip {
    /// Loads what [`alone`] has made.
    pub(crate) fn load() -> Self {
        let path = std::env::var("WHARF_LIBHIP").expect("given");
        // SAFETY: the library above, which runs nothing when it is loaded.
        Self(unsafe { Library::new(path) }.expect("loads"))
    }

    fn number(&self, name: &str, stream: usize) -> usize {
        // SAFETY: the names have this signature, or one without a parameter.
        unsafe {
            let function = self.0.get::<extern "C" fn(usize) -> usize>(name);
            function.expect("exported")(stream)
        }
    }

    pub(crate) fn events(&self) -> usize {
        self.number("events", 0)
    }

    /// For how much a stream waits.
    pub(crate) fn holds(&self, stream: usize) -> usize {
        self.number("holds", stream)
    }

    /// Words that were allocated.
    pub(crate) fn words(&self) -> usize {
        self.number("words", 0)
    }

    /// The error that the program finds.
    pub(crate) fn last_error(&self) -> usize {
        self.number("hipGetLastError", 0) & 0xffff_ffff
    }
}

pub(crate) fn stream(number: usize) -> RocmStream {
    let raw = std::ptr::without_provenance_mut::<c_void>(number);
    // SAFETY: a number to the library above.
    unsafe { RocmStream::from_raw(raw, 0) }
}
