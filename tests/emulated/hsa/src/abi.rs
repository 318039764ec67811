#![allow(unsafe_code)]
//! The types of `hsa.h` and `hsa_ext_amd.h` (ROCm 5.2.3), and their numbers.
//!
//! # Safety
//! [`Out`] and [`In`] are pointers that a C caller passed. The headers make them null or good for the call; null is checked here, the rest is the
//! caller's duty, as towards the real runtime.

use std::mem::offset_of;

/// `hsa_status_t`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Status(pub(crate) u32);

/// What a call gives: a status that is never [`Status::SUCCESS`] is the error.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

macro_rules! codes {
    ($($name:ident $code:literal)*) => {
        impl Status {
            $(pub(crate) const $name: Self = Self($code);)*
        }
    };
}

codes! {
    SUCCESS 0
    ERROR 0x1000
    INVALID_ARGUMENT 0x1001
    INVALID_ALLOCATION 0x1003
    INVALID_AGENT 0x1004
    INVALID_SIGNAL 0x1006
    OUT_OF_RESOURCES 0x1008
    RESOURCE_FREE 0x100A
    NOT_INITIALIZED 0x100B
    INVALID_MEMORY_POOL 40
}

/// `hsa_amd_pointer_info_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PointerInfo {
    pub(crate) size: u32,
    pub(crate) kind: u32,
    pub(crate) agent_base: u64,
    pub(crate) host_base: u64,
    pub(crate) len: u64,
    pub(crate) user_data: u64,
    pub(crate) owner: u64,
    pub(crate) flags: u32,
}

/// `hsa_amd_memory_pool_link_info_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct LinkInfo {
    pub(crate) latency: [u32; 2],
    pub(crate) bandwidth: [u32; 2],
    pub(crate) atomics: [u8; 2],
    pub(crate) coherent: u8,
    pub(crate) link_type: u32,
    pub(crate) distance: u32,
}

/// `hsa_amd_event_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Event {
    pub(crate) event_type: u32,
    pub(crate) agent: u64,
    pub(crate) address: u64,
    pub(crate) reason: u32,
}

const _: () = {
    assert!(size_of::<PointerInfo>() == 56 && offset_of!(PointerInfo, owner) == 40);
    assert!(size_of::<LinkInfo>() == 28 && offset_of!(LinkInfo, link_type) == 20);
    assert!(size_of::<Event>() == 32 && offset_of!(Event, reason) == 24);
};

/// `hsa_amd_signal_handler`.
pub(crate) type OnSignal = Option<unsafe extern "C" fn(i64, usize) -> bool>;
/// `hsa_amd_deallocation_callback_t`.
pub(crate) type OnFree = Option<unsafe extern "C" fn(u64, usize)>;
/// `hsa_amd_system_event_callback_t`.
pub(crate) type OnEvent = Option<unsafe extern "C" fn(*const Event, usize) -> u32>;
/// What iterating calls, with a handle.
pub(crate) type OnEach = Option<unsafe extern "C" fn(u64, usize) -> u32>;

/// A pointer to where the caller wants a result.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Writes the result.
    pub(crate) fn set(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the C caller's duty is that it points to room for a T; it may be unaligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// What is there before the call.
    pub(crate) fn get(&self) -> Outcome<T> {
        In(self.0.cast_const()).get()
    }

    /// Whether the caller wants it at all.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.0.is_null()
    }

    /// The same place for a value of another type.
    pub(crate) const fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// A place by its address, which a caller gave.
    pub(crate) fn at(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Writes the first `len` bytes of a value.
    pub(crate) fn set_bytes(&self, value: &T, len: usize) -> Outcome {
        if self.0.is_null() || len > size_of::<T>() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null; the C caller has room for so much of a T, and the value is another place.
        unsafe {
            std::ptr::from_ref(value)
                .cast::<u8>()
                .copy_to(self.0.cast::<u8>(), len);
        };
        Ok(())
    }
}

/// A pointer to what the caller gives.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value.
    pub(crate) fn get(&self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the C caller's duty is that it points to a T; it may be unaligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads `count` values; none from nowhere.
    pub(crate) fn list(&self, count: usize) -> Outcome<Vec<T>> {
        if count > 0 && self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: the C caller's duty is that it points to `count` values.
        let read = |index| unsafe { self.0.add(index).read_unaligned() };
        Ok((0..count).map(read).collect())
    }

    /// Whether there is none.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }
}
