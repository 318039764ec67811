//! The first Gaudi's memory, which has no page table: this process has all of it, and its ranges are handed out here.

use std::collections::BTreeMap;

use crate::util::lock::Mutex;

/// What the first Gaudi's memory is handed out in, where the driver names no page.
pub(super) const PHYSICAL_PAGE: u64 = 2 << 20;

/// The ranges of the first Gaudi's memory that are in use: start and length.
#[derive(Debug)]
pub(super) struct Physical {
    base: u64,
    size: u64,
    page: u64,
    used: Mutex<BTreeMap<u64, u64>>,
}

impl Physical {
    /// `size` bytes from `base` on, in pages of `page` bytes; 0: the driver names none.
    pub(super) fn new(base: u64, size: u64, page: u64) -> Self {
        Self {
            base,
            size,
            page: match page {
                0 => PHYSICAL_PAGE,
                page => page,
            },
            used: Mutex::new(BTreeMap::new()),
        }
    }

    /// The first range that fits, and its length.
    pub(super) fn take(&self, len: u64) -> Option<(u64, u64)> {
        let len = len.checked_next_multiple_of(self.page)?;
        let end = self.base.checked_add(self.size)?;
        let mut used = self.used.lock();
        let mut at = self.base;
        for (start, taken) in used.iter() {
            if start - at >= len {
                break;
            }
            at = start + taken;
        }
        if end.checked_sub(at)? < len {
            return None;
        }
        used.insert(at, len);
        Some((at, len))
    }

    pub(super) fn give_back(&self, start: u64) {
        self.used.lock().remove(&start);
    }
}
