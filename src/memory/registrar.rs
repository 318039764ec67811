//! What registers memory with a device, a kernel or a library, so that it may be accessed by it.

use crate::{error::Result, memory::AddressRange, types::Access};

/// What a [`Registrar`] can do and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrarAttributes {
    /// Ranges are rounded out to multiples of this many bytes before they are registered; a power of two.
    pub alignment: u64,
    /// Bytes that one registration may have.
    pub max_length: u64,
    /// Registrations of more bytes than this run on a thread that may block instead of the caller's.
    pub inline_max: u64,
    /// Whether a registration goes on translating to pages that the process has given back, so that memory events are needed. False for
    /// devices that fault pages in by themselves.
    pub pins_pages: bool,
}

impl Default for RegistrarAttributes {
    /// 4 KiB pages, any length, inline up to 256 KiB, pins pages.
    fn default() -> Self {
        Self {
            alignment: 4096,
            max_length: u64::MAX,
            inline_max: 256 << 10,
            pins_pages: true,
        }
    }
}

impl RegistrarAttributes {
    /// With another [`alignment`](Self::alignment).
    #[must_use]
    pub const fn alignment(mut self, bytes: u64) -> Self {
        self.alignment = bytes;
        self
    }

    /// With another [`max_length`](Self::max_length).
    #[must_use]
    pub const fn max_length(mut self, bytes: u64) -> Self {
        self.max_length = bytes;
        self
    }

    /// With another [`inline_max`](Self::inline_max).
    #[must_use]
    pub const fn inline_max(mut self, bytes: u64) -> Self {
        self.inline_max = bytes;
        self
    }

    /// With another [`pins_pages`](Self::pins_pages).
    #[must_use]
    pub const fn pins_pages(mut self, yes: bool) -> Self {
        self.pins_pages = yes;
        self
    }
}

/// Registers memory: the part of a memory domain that a registration cache stands before.
///
/// Its methods may take long and may block; the cache calls them outside its locks. Ranges up to [`inline_max`](RegistrarAttributes::inline_max) are
/// registered in the thread that asked, longer ones in a thread that may block. `deregister` is called in a thread of the cache's own; but who
/// registers does it too, where more waits for it than [`max_unreleased`](super::RegistrationCacheOptions::max_unreleased), where there is no room for what is
/// to be registered, and of a registration whose memory changed meanwhile. A panic in one of them is an error of that registration.
pub trait Registrar: Send + Sync + 'static {
    /// What a registration is to who uses it: keys, an index.
    type Handle: Send + Sync + 'static;

    /// Its name in logs.
    fn name(&self) -> &'static str;

    /// What it can do. Asked once, when a cache is made.
    fn attributes(&self) -> RegistrarAttributes {
        RegistrarAttributes::default()
    }

    /// Registers all of `range`, which is aligned and not empty.
    ///
    /// # Errors
    /// Whatever the system says about memory that is not mapped or does not allow this access. `Exhausted` makes the cache give back what it
    /// can and try once more.
    fn register(&self, range: AddressRange, access: Access) -> Result<Self::Handle>;

    /// The same for memory whose owner keeps it: `range` is rounded out, and of that only what is in the allocation `whole` is meant.
    ///
    /// # Errors
    /// As of [`register`](Self::register).
    fn register_owned(
        &self,
        range: AddressRange,
        whole: AddressRange,
        access: Access,
    ) -> Result<Self::Handle> {
        let _ = whole;
        self.register(range, access)
    }

    /// Ends a registration. There is nobody left who uses it.
    ///
    /// # Errors
    /// Logged and counted by the cache; the handle is gone all the same.
    fn deregister(&self, handle: Self::Handle, range: AddressRange) -> Result<()>;
}
