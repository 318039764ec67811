//! What the headers of hl-thunk 1.10 and later say, read once more for the emulator: it shares nothing with the library that it tests.

use std::ffi::c_void;

/// `struct hl_cs_chunk`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Chunk {
    pub(crate) cb_handle: u64,
    pub(crate) queue_index: u32,
    pub(crate) cb_size: u32,
    pub(crate) flags: u32,
    pub(crate) collective: u32,
    pub(crate) pad: [u32; 10],
}

/// `struct hlthunk_cs_in`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CsIn {
    pub(crate) restore: *const c_void,
    pub(crate) execute: *const Chunk,
    pub(crate) num_restore: u32,
    pub(crate) num_execute: u32,
    pub(crate) flags: u32,
}

/// `struct hlthunk_cs_out`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CsOut {
    pub(crate) seq: u64,
    pub(crate) status: u32,
    pub(crate) sob_count: u16,
}

/// `struct hlthunk_wait_multi_cs_in`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MultiIn {
    pub(crate) seq: *const u64,
    pub(crate) timeout_us: u64,
    pub(crate) len: u32,
}

/// `struct hlthunk_wait_multi_cs_out`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MultiOut {
    pub(crate) status: u32,
    pub(crate) seq_set: u32,
    pub(crate) completed: u8,
}

const _: () = {
    assert!(size_of::<Chunk>() == 64);
    assert!(size_of::<CsIn>() == 32);
    assert!(size_of::<CsOut>() == 16);
    assert!(size_of::<MultiIn>() == 24);
    assert!(size_of::<MultiOut>() == 12);
};

/// `HLTHUNK_DEVICE_DONT_CARE` and `HLTHUNK_DEVICE_INVALID`.
pub(crate) const DONT_CARE: u32 = 4;
pub(crate) const INVALID: u32 = 3;

/// `HL_CS_CHUNK_FLAGS_USER_ALLOC_CB`.
pub(crate) const USER_CB: u32 = 1;
/// `HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT`.
pub(crate) const SKIP_RESET: u32 = 0x400;

/// Wait states.
pub(crate) const COMPLETED: u32 = 0;
pub(crate) const BUSY: u32 = 1;
pub(crate) const TIMED_OUT: u32 = 2;
pub(crate) const ABORTED: u32 = 3;

/// Notifier events.
pub(crate) const UNDEFINED_OPCODE: u64 = 1 << 1;
pub(crate) const DEVICE_RESET: u64 = 1 << 2;
pub(crate) const CS_TIMEOUT: u64 = 1 << 3;
pub(crate) const USER_ENGINE_ERR: u64 = 1 << 5;
pub(crate) const PAGE_FAULT: u64 = 1 << 8;

/// A generation of cards.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Chip {
    Gaudi,
    Gaudi2,
    Gaudi3,
}

impl Chip {
    /// That of the settings.
    pub(crate) fn now() -> Self {
        match crate::settings::CHIP.get() {
            1 => Self::Gaudi,
            3 => Self::Gaudi3,
            _ => Self::Gaudi2,
        }
    }

    /// `enum hlthunk_device_name`.
    pub(crate) fn name(self) -> u32 {
        match (crate::settings::CHIP.get(), self) {
            (unknown @ 4.., _) => unknown as u32,
            (_, Self::Gaudi) => 2,
            (_, Self::Gaudi2) => 5,
            (_, Self::Gaudi3) => 7,
        }
    }

    /// PCI device id.
    pub(crate) const fn pci_id(self) -> u32 {
        match self {
            Self::Gaudi => 0x1000,
            Self::Gaudi2 => 0x1020,
            Self::Gaudi3 => 0x1060,
        }
    }

    /// Where device memory begins.
    pub(crate) const fn dram_base(self) -> u64 {
        match self {
            Self::Gaudi => 0x2000_0000,
            Self::Gaudi2 => 0x1001_0018_0000_0000,
            Self::Gaudi3 => 0x0201_E000_0000_0000,
        }
    }

    /// Where mapped host memory begins.
    pub(crate) const fn host_base(self) -> u64 {
        match self {
            Self::Gaudi => 0x0001_0000_0000_0000,
            _ => 0xFFF0_0000_0000_0000,
        }
    }

    /// What allocations are rounded up to.
    pub(crate) fn page(self) -> u64 {
        match self {
            Self::Gaudi => 2 << 20,
            _ => crate::settings::PAGE.get().max(4096),
        }
    }

    /// How many submissions the kernel remembers, which is also how many may run.
    pub(crate) const fn ring(self) -> u64 {
        match self {
            Self::Gaudi => 16384,
            _ => 64,
        }
    }
}

/// An `errno`.
pub(crate) type Outcome<T = ()> = Result<T, i32>;
