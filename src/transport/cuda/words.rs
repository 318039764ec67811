//! Words of 8 bytes by which a device tells the host that it has come to a place, and the host the device.
//!
//! ```text
//! stream:  copy ─ copy ─ write 7 ─ copy ─ write 8 ─▶
//!                           │
//! word:                     7          the host reads: all up to batch 7 is done
//! ```
//! They lie in pages of this process's own that are registered with the driver: whatever becomes of the device's context, reading them is safe.
//!
//! # Safety
//! The pages are mapped for as long as anybody has a [`Page`], and accessed here as atomic words alone. They are unmapped after the driver has let
//! them go, or its context is gone; else never.
#![allow(unsafe_code)]

use std::{
    mem::ManuallyDrop,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, SeqCst},
        },
    },
};

use crate::{
    driver::cuda::{ContextGuard, DevicePtr, HostCallback, HostRegistration, Status},
    error::{Error, Result},
    sys::pages::Anonymous,
    transport::accelerator::Bell,
};

/// Words on a page, each in a cache line of its own.
pub(super) const WORDS: usize = 64;
const LINE: usize = 64;

/// The memory of the words.
#[derive(Debug)]
pub(super) struct Page(Anonymous);

impl Page {
    /// A word. `index` is below [`WORDS`].
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS);
        let at = self.0.as_ptr().wrapping_add(index * LINE).cast::<u64>();
        // SAFETY: within the mapping, aligned, never accessed but atomically, and living as long as `self`.
        unsafe { AtomicU64::from_ptr(at) }
    }
}

/// The words of one device.
#[derive(Debug)]
pub(super) struct Words {
    page: Arc<Page>,
    /// Without one the device does not reach them: host functions write them.
    registration: Option<HostRegistration>,
}

impl Words {
    /// Words that are 0, which the device does not reach yet.
    pub(super) fn new() -> Result<Self> {
        let pages = Anonymous::new(WORDS * LINE)
            .map_err(|error| Error::io("allocating a page of words", error))?;
        // Only then may a child of `fork` get the page that the device writes.
        let _ = pages.dont_fork();
        Ok(Self {
            page: Arc::new(Page(pages)),
            registration: None,
        })
    }

    /// Makes them reachable for devices, whichever the context.
    pub(super) fn pin(&mut self, guard: &ContextGuard<'_>) -> Result<()> {
        let pages = &self.page.0;
        let Some(start) = NonNull::new(pages.as_ptr()) else {
            return Ok(());
        };
        // SAFETY: mapped until the registration is gone.
        self.registration = Some(unsafe { guard.register_host(start, pages.len(), true) }?);
        Ok(())
    }

    /// What the word says. Whatever was written before it is visible then.
    #[inline]
    pub(super) fn load(&self, index: usize) -> u64 {
        self.page.word(index).load(Acquire)
    }

    /// Where the device sees the word.
    pub(super) fn device_ptr(&self, index: usize) -> Option<DevicePtr> {
        let registration = self.registration.as_ref()?;
        Some(registration.device_ptr() + (index * LINE) as u64)
    }

    pub(super) fn page(&self) -> Arc<Page> {
        Arc::clone(&self.page)
    }

    /// The device may still write or read them: they stay for good.
    pub(super) fn leak(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take()
            && let Err(error) = registration.unregister()
            && !is_end(&error)
        {
            tracing::warn!(target: "wharf::cuda", "a page stays pinned: {error}");
            let _ = ManuallyDrop::new(self.page());
        }
    }
}

/// Whether an error of a call with our own objects means that their context is gone.
pub(super) fn is_end(error: &Error) -> bool {
    Status::of(error).is_some_and(Status::is_end)
}

/// A host function that only rings.
#[derive(Debug)]
pub(super) struct Ring(pub(super) Arc<Bell>);

impl HostCallback for Ring {
    fn run(&self) {
        self.0.ring();
    }
}

/// A host function that writes a word where the stream cannot, and rings.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) page: Arc<Page>,
    pub(super) index: usize,
    pub(super) value: u64,
    pub(super) bell: Arc<Bell>,
}

impl HostCallback for Written {
    fn run(&self) {
        self.page.word(self.index).store(self.value, SeqCst);
        self.bell.ring();
    }
}
