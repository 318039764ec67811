//! The accelerator on the emulated driver, the program's own view of that driver, and how the emulator is asked.

use std::path::PathBuf;

use wharf::{
    MemoryType,
    transport::{accelerator::CopyEnd, cuda::CudaCopy},
};

pub(crate) use crate::bench::{Memory, Parked, Sink, pattern, pinned_end};
pub(crate) use crate::support::block_until;
use crate::{
    program::{self, CudaContext},
    raw::{self, Raw},
};

/// Memory of two devices, and of each kind, the host's first.
pub(crate) const DEVICE: MemoryType = MemoryType::Cuda(0);
pub(crate) const OTHER: MemoryType = MemoryType::Cuda(1);
pub(crate) const KINDS: [MemoryType; 4] = [
    MemoryType::HostPinned,
    DEVICE,
    OTHER,
    MemoryType::CudaManaged,
];
/// What errors of copies name, where they name a call.
pub(crate) const COPIES: Option<&str> = Some("cuMemcpy");
/// `kDLCUDA`.
pub(crate) const DLPACK: i32 = 2;
/// How the emulator is for random copies: with and without peer access.
pub(crate) const RANDOM: [[(&str, &str); 4]; 2] = [
    [
        ("EMULATED_CUDA_SEED", "1"),
        ("EMULATED_CUDA_DELAY_US", "80"),
        ("EMULATED_CUDA_PEERS", "1"),
        ("WHARFTEST_SEED", "1"),
    ],
    [
        ("EMULATED_CUDA_SEED", "2"),
        ("EMULATED_CUDA_DELAY_US", "200"),
        ("EMULATED_CUDA_PEERS", "0"),
        ("WHARFTEST_SEED", "2"),
    ],
];

/// Waits until the driver has nothing of this process's.
pub(crate) fn nothing_is_left() {
    block_until("the end", || live("allocations") == 0);
}

/// The emulated driver's file.
pub(crate) fn library() -> PathBuf {
    crate::support::emulated::cuda()
}

/// The accelerator. A new one, on the one driver of this process.
pub(crate) fn accelerator() -> CudaCopy {
    CudaCopy::with_library(library())
}

/// The driver's functions, as it exports them.
pub(crate) fn raw() -> &'static Raw {
    raw::load(&library()).expect("the emulated driver loads")
}

/// The program's own hold on a primary context.
pub(crate) fn context(ordinal: u16) -> CudaContext {
    CudaContext::primary(ordinal)
}

/// The program's own memory of a device.
pub(crate) fn own(device: u16, length: usize) -> program::Memory {
    let context = context(device);
    let guard = context.enter().expect("current");
    guard.allocate(length).expect("memory")
}

/// The program's own pinned memory.
pub(crate) fn own_pinned(length: usize) -> program::Memory {
    let context = context(0);
    let guard = context.enter().expect("current");
    guard.allocate_pinned(length).expect("memory")
}

/// Tells the emulator something, and has its answer.
pub(crate) fn control(text: &str) -> String {
    let _ = raw();
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

/// An accelerator with an engine.
pub(crate) type Bench = crate::bench::Bench<CudaCopy>;

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(accelerator())
    }
}

/// Memory of a device at an address.
pub(crate) fn device_end(address: u64, ordinal: u16) -> CopyEnd {
    CopyEnd::Device {
        address,
        memory_type: MemoryType::Cuda(ordinal),
    }
}
