//! The accelerator on the emulated runtime, the program's own view of that runtime, and how the emulator is asked.

use std::path::PathBuf;

use wharf::{
    MemoryType,
    transport::{accelerator::CopyEnd, rocm::RocmCopy},
};

pub(crate) use crate::bench::{Memory, Parked, Sink, pattern, pinned_end};
pub(crate) use crate::support::block_until;
use crate::{
    program::{self, Allocation},
    support::emulated,
};

/// Memory of two devices, and of each kind, the host's first.
pub(crate) const DEVICE: MemoryType = MemoryType::Rocm(0);
pub(crate) const OTHER: MemoryType = MemoryType::Rocm(1);
pub(crate) const KINDS: [MemoryType; 3] = [MemoryType::HostPinned, DEVICE, OTHER];
/// What errors of copies name, where they name a call: the addresses are looked up before.
pub(crate) const COPIES: Option<&str> = None;
/// `kDLROCM`.
pub(crate) const DLPACK: i32 = 10;
/// How the emulator is for random copies: without and with a large BAR.
pub(crate) const RANDOM: [[(&str, &str); 4]; 2] = [
    [
        ("EMULATED_HSA_SEED", "1"),
        ("EMULATED_HSA_DELAY_US", "80"),
        ("EMULATED_HSA_BAR", "0"),
        ("WHARFTEST_SEED", "1"),
    ],
    [
        ("EMULATED_HSA_SEED", "2"),
        ("EMULATED_HSA_DELAY_US", "200"),
        ("EMULATED_HSA_BAR", "1"),
        ("WHARFTEST_SEED", "2"),
    ],
];

/// Waits until the runtime has nothing of this process's.
pub(crate) fn nothing_is_left() {
    block_until("the end", || live("allocations") == 0);
    let left = (live("signals"), live("notifiers"), live("handlers"));
    assert_eq!(left, (0, 0, 0));
}

/// The accelerator. A new one, on the one runtime of this process.
pub(crate) fn accelerator() -> RocmCopy {
    RocmCopy::with_library(library())
}

pub(crate) fn library() -> PathBuf {
    emulated::hsa()
}

/// The program's own memory, of a device's pool.
pub(crate) fn own(device: u16, length: usize) -> Allocation {
    program::on_device(device, length)
}

/// The program's own memory, of the host's pool.
pub(crate) fn own_pinned(length: usize) -> Allocation {
    program::on_host(length)
}

/// Tells the emulator something, and has its answer.
pub(crate) fn control(text: &str) -> String {
    let _ = program::library();
    emulated::control_of(&library(), text)
}

/// How often a function was called.
pub(crate) fn calls(function: &str) -> u64 {
    control(&format!("count {function}"))
        .parse()
        .expect("a number")
}

/// How many of something there are, by the emulator's `live`.
pub(crate) fn live(what: &str) -> u64 {
    let text = control("live");
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    let line = line.unwrap_or_else(|| panic!("{what} in {text}"));
    line.trim().parse().expect("a number")
}

/// An accelerator with an engine.
pub(crate) type Bench = crate::bench::Bench<RocmCopy>;

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(accelerator())
    }
}

/// Memory of a device at an address.
pub(crate) fn device_end(address: u64, ordinal: u16) -> CopyEnd {
    CopyEnd::Device {
        address,
        memory_type: MemoryType::Rocm(ordinal),
    }
}
