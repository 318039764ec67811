//! Pinned host memory: the driver's own, and the program's that is registered, at exact ranges of bytes.

use std::sync::Arc;

use wharf_emulated_common::backing::{HostPages, is_mapped};

use crate::{
    abi::{Outcome, Status},
    context::Context,
    driver::driver,
    memory::Memory,
};

/// A pinned range.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) flags: u32,
    /// Never used again.
    pub(crate) id: u64,
    /// Handle and number of its context.
    pub(crate) context: (u64, u64),
    pub(crate) device: usize,
    /// The driver's own; without it the range is registered.
    pub(crate) pages: Option<HostPages>,
}

impl Memory {
    /// `cuMemHostAlloc`.
    pub(crate) fn allocate_host(
        &mut self,
        context: &Arc<Context>,
        len: u64,
        flags: u32,
    ) -> Outcome<u64> {
        if len == 0 || flags & !7 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let pages = HostPages::new(len).map_err(|_| Status::OUT_OF_MEMORY)?;
        let start = pages.start();
        self.pin(context, start, len, flags, Some(pages));
        Ok(start)
    }

    /// `cuMemHostRegister`.
    pub(crate) fn register_host(
        &mut self,
        context: &Arc<Context>,
        start: u64,
        len: u64,
        flags: u32,
    ) -> Outcome {
        let end = start.checked_add(len).ok_or(Status::INVALID_VALUE)?;
        if start == 0 || len == 0 || flags & !0xF != 0 || self.is_ours(start) {
            return Err(Status::INVALID_VALUE);
        }
        let before = self.pinned.range(..end).next_back();
        if before.is_some_and(|(_, pinned)| pinned.start + pinned.len > start) {
            return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !is_mapped(start, len) {
            return Err(Status::INVALID_VALUE);
        }
        self.pin(context, start, len, flags, None);
        Ok(())
    }

    fn pin(
        &mut self,
        context: &Arc<Context>,
        start: u64,
        len: u64,
        flags: u32,
        pages: Option<HostPages>,
    ) {
        let pinned = Pinned {
            start,
            len,
            flags,
            id: driver().number(),
            context: (context.handle, context.id),
            device: context.device,
            pages,
        };
        self.pinned.insert(start, pinned);
    }

    /// `cuMemFreeHost`: exactly the address that was given out. To be dropped without the lock.
    pub(crate) fn free_host(&mut self, start: u64) -> Outcome<Pinned> {
        match self.pinned.get(&start) {
            Some(pinned) if pinned.pages.is_some() => {
                self.pinned.remove(&start).ok_or(Status::INVALID_VALUE)
            }
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// `cuMemHostUnregister`: exactly the address that was registered. One inside a pinned range is refused in another way than one outside.
    pub(crate) fn unregister_host(&mut self, start: u64) -> Outcome<Pinned> {
        match self.pinned.get(&start) {
            Some(pinned) if pinned.pages.is_none() => self
                .pinned
                .remove(&start)
                .ok_or(Status::HOST_MEMORY_NOT_REGISTERED),
            None if self.pinned_at(start).is_none() => Err(Status::HOST_MEMORY_NOT_REGISTERED),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// The pinned range that holds `address`.
    pub(crate) fn pinned_at(&self, address: u64) -> Option<&Pinned> {
        let (_, pinned) = self.pinned.range(..=address).next_back()?;
        (address - pinned.start < pinned.len).then_some(pinned)
    }

    /// Whether one pinned range holds all of `address..address + len`.
    pub(crate) fn is_pinned(&self, address: u64, len: u64) -> bool {
        self.pinned_at(address)
            .is_some_and(|pinned| len <= pinned.len - (address - pinned.start))
    }
}
