//! The windows of an engine.
//!
//! Each is onto one allocation, or a MiB of it; they may overlap. The end of memory is told from anywhere, within `free`: so what is marked then
//! are atomics alone, and the engine looks at them with its next copy.
//!
//! # Safety
//! Copies through a window are as unsafe as those of the window.
#![allow(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use crate::{
    driver::{
        cuda::DevicePtr,
        gdr::{DirectWindow, PAGE, Window},
    },
    error::Result,
    memory::{AddressRange, Cause, MemorySink, Subscription, subscribe},
};

/// Windows at once: with their MiB each they take an eighth of the smallest BAR1, of 256 MiB.
const COUNT: usize = 32;
/// Pages that are remembered to have been missed once, and ranges that are not mapped.
const REMEMBERED: usize = 16;
/// After so many further misses what was refused is tried again.
const RETRY: u64 = 1024;

/// A window of either kind.
#[derive(Debug)]
pub(super) enum Pane {
    Gdr(Window),
    Direct(DirectWindow),
}

impl Pane {
    #[inline]
    fn start(&self) -> u64 {
        match self {
            Self::Gdr(window) => window.start().0,
            Self::Direct(window) => window.start().0,
        }
    }

    #[inline]
    fn end(&self) -> u64 {
        let len = match self {
            Self::Gdr(window) => window.len(),
            Self::Direct(window) => window.len(),
        };
        self.start() + len as u64
    }

    /// # Errors
    /// As of [`Window::write`].
    ///
    /// # Safety
    /// As of [`Window::write`].
    pub(super) unsafe fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        match self {
            // SAFETY: the caller's.
            Self::Gdr(window) => unsafe { window.write(offset, source) },
            // SAFETY: the caller's.
            Self::Direct(window) => unsafe { window.write(offset, source) },
        }
    }

    /// # Errors
    /// As of [`Window::read`].
    ///
    /// # Safety
    /// As of [`Window::read`].
    pub(super) unsafe fn read(&self, offset: usize, target: *mut u8, len: usize) -> Result<()> {
        match self {
            // SAFETY: the caller's.
            Self::Gdr(window) => unsafe { window.read(offset, target, len) },
            // SAFETY: the caller's.
            Self::Direct(window) => unsafe { window.read(offset, target, len) },
        }
    }
}

/// A window, and the number of the allocation that it is onto.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) pane: Pane,
    pub(super) id: u64,
}

#[derive(Debug)]
pub(super) struct Windows {
    slots: [Option<Numbered>; COUNT],
    /// Whether it was used since the hand came by.
    used: [bool; COUNT],
    hand: usize,
    marks: Arc<Marks>,
    missed: [u64; REMEMBERED],
    refused: [Option<(AddressRange, u64)>; REMEMBERED],
    misses: u64,
    /// While it lives, the marks hear of events.
    _subscription: Subscription,
}

/// Where the windows look, for whoever tells that memory ends. Nothing there: an end of 0.
#[derive(Debug, Default)]
struct Marks {
    places: [Mark; COUNT],
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct Mark {
    start: AtomicU64,
    end: AtomicU64,
    ended: AtomicBool,
}

impl MemorySink for Marks {
    /// A place that changes meanwhile may be marked for nothing, or not be: what is kept is compared with the driver's number before it is used.
    fn invalidate(&self, range: AddressRange, _: Cause) {
        for place in &self.places {
            if range.start() < place.end.load(Relaxed) && place.start.load(Relaxed) < range.end() {
                place.ended.store(true, Relaxed);
                self.any.store(true, Release);
            }
        }
    }
}

impl Windows {
    /// # Errors
    /// `Exhausted`: too many listen to memory events.
    pub(super) fn new() -> Result<Self> {
        let marks = Arc::<Marks>::default();
        Ok(Self {
            slots: [const { None }; COUNT],
            used: [false; COUNT],
            hand: 0,
            _subscription: subscribe(marks.clone())?,
            marks,
            missed: [u64::MAX; REMEMBERED],
            refused: [None; REMEMBERED],
            misses: 0,
        })
    }

    /// The window that shows all of these bytes.
    #[inline]
    pub(super) fn find(&mut self, at: u64, len: usize) -> Option<usize> {
        let end = at.checked_add(len as u64)?;
        let shows = |slot: &Option<Numbered>| {
            slot.as_ref()
                .is_some_and(|slot| slot.pane.start() <= at && end <= slot.pane.end())
        };
        let index = self.slots.iter().position(shows)?;
        self.used[index] = true;
        Some(index)
    }

    /// Whether a window is onto the allocation of this number.
    #[inline]
    pub(super) fn is_of(&self, index: usize, id: u64) -> bool {
        self.slots[index].as_ref().is_some_and(|slot| slot.id == id)
    }

    /// A window, and where in it the address is.
    #[inline]
    pub(super) fn at(&self, index: usize, at: u64) -> Option<(&Pane, usize)> {
        let pane = &self.slots[index].as_ref()?.pane;
        let offset = usize::try_from(at.checked_sub(pane.start())?).ok()?;
        Some((pane, offset))
    }

    /// Keeps a window; what had to go for it.
    pub(super) fn insert(&mut self, new: Numbered) -> Option<Numbered> {
        let free = self.slots.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| self.oldest());
        let old = self.remove(index);
        let mark = &self.marks.places[index];
        mark.ended.store(false, Relaxed);
        mark.start.store(new.pane.start(), Relaxed);
        mark.end.store(new.pane.end(), Relaxed);
        self.slots[index] = Some(new);
        self.used[index] = true;
        old
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Numbered> {
        self.marks.places[index].end.store(0, Relaxed);
        self.slots[index].take()
    }

    /// Takes the window out that was not used for longest, roughly.
    pub(super) fn evict(&mut self) -> Option<Numbered> {
        let index = self.oldest();
        self.remove(index)
    }

    /// The next that was not used since the hand came by; empty places are passed over while there is a window.
    fn oldest(&mut self) -> usize {
        for _ in 0..2 * COUNT {
            let index = self.hand;
            self.hand = (self.hand + 1) % COUNT;
            if self.slots[index].is_some() && !std::mem::take(&mut self.used[index]) {
                return index;
            }
        }
        self.hand
    }

    /// A window whose memory's end was told.
    #[inline]
    pub(super) fn ended(&mut self) -> Option<Numbered> {
        if !self.marks.any.load(Relaxed) {
            return None;
        }
        self.take_ended()
    }

    #[cold]
    fn take_ended(&mut self) -> Option<Numbered> {
        // Taken down first: what is marked from here on is seen by the next look.
        self.marks.any.swap(false, AcqRel);
        for index in 0..COUNT {
            if self.marks.places[index].ended.swap(false, Acquire)
                && let Some(old) = self.remove(index)
            {
                // There may be more.
                self.marks.any.store(true, Relaxed);
                return Some(old);
            }
        }
        None
    }

    /// Whether a window is to be made for an address: the second time that its page is missed, where nothing is known against it.
    pub(super) fn wants(&mut self, at: u64) -> bool {
        self.misses += 1;
        let misses = self.misses;
        let mut refused = self.refused.iter().flatten();
        if refused
            .any(|(range, since)| range.start() <= at && at < range.end() && misses - since < RETRY)
        {
            return false;
        }
        let page = at / PAGE;
        if let Some(seen) = self.missed.iter_mut().find(|seen| **seen == page) {
            *seen = u64::MAX;
            return true;
        }
        self.missed[(misses % REMEMBERED as u64) as usize] = page;
        false
    }

    /// Notes memory that cannot be mapped.
    pub(super) fn refuse(&mut self, range: AddressRange) {
        let same =
            |entry: &Option<(AddressRange, u64)>| entry.is_some_and(|(known, _)| known == range);
        let known = self.refused.iter().position(same);
        // Else the one that was noted first.
        let since = |entry: &Option<(AddressRange, u64)>| entry.map_or(0, |(_, since)| since + 1);
        let oldest = || (0..REMEMBERED).min_by_key(|index| since(&self.refused[*index]));
        if let Some(index) = known.or_else(oldest) {
            self.refused[index] = Some((range, self.misses));
        }
    }
}

/// What a window for `at` covers: the MiB around it as far as it is of the allocation, and the page behind, so that copies find a window also
/// where two meet.
pub(super) fn extent(allocation: AddressRange, at: DevicePtr) -> (DevicePtr, usize) {
    const MIB: u64 = 1 << 20;
    let start = (at.0 / MIB * MIB).max(allocation.start());
    let end = (at.0 / MIB * MIB)
        .saturating_add(MIB + PAGE)
        .min(allocation.end());
    (DevicePtr(start), (end - start) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, len: u64) -> AddressRange {
        AddressRange::new(start, len).expect("a range")
    }

    #[test]
    fn a_page_is_wanted_when_it_is_missed_again() {
        let mut windows = Windows::new().expect("subscribes");
        assert!(!windows.wants(5 * PAGE));
        assert!(!windows.wants(6 * PAGE));
        assert!(windows.wants(5 * PAGE + 100));
        assert!(!windows.wants(5 * PAGE), "asked for once");
        // Long forgotten by then.
        for page in 100..140 {
            assert!(!windows.wants(page * PAGE));
        }
        assert!(!windows.wants(6 * PAGE));
    }

    #[test]
    fn what_is_refused_is_tried_again_much_later() {
        let mut windows = Windows::new().expect("subscribes");
        windows.refuse(range(PAGE, PAGE));
        for _ in 1..RETRY {
            assert!(!windows.wants(PAGE + 8));
        }
        assert!(!windows.wants(PAGE + 8));
        assert!(windows.wants(PAGE + 8));
        for number in 0..100 {
            windows.refuse(range(number * PAGE, PAGE));
        }
        assert!(windows.refused.iter().all(Option::is_some));
    }

    #[test]
    fn windows_stay_within_their_allocation() {
        let mib = 1 << 20;
        assert_eq!(
            extent(range(mib + 512, 100), DevicePtr(mib + 520)),
            (DevicePtr(mib + 512), 100)
        );
        let large = range(mib, 10 * mib);
        let (start, len) = extent(large, DevicePtr(3 * mib + 5));
        assert_eq!((start, len as u64), (DevicePtr(3 * mib), mib + PAGE));
        let (start, len) = extent(large, DevicePtr(11 * mib - 1));
        assert_eq!((start, len as u64), (DevicePtr(10 * mib), mib));
        let (start, len) = extent(range(u64::MAX - 10, 8), DevicePtr(u64::MAX - 5));
        assert_eq!((start, len), (DevicePtr(u64::MAX - 10), 8));
    }
}
