//! What went away of late: whoever fetches an answer meanwhile sees that it may be out of date.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use crate::memory::AddressRange;

/// Events that are remembered, for answers under way.
pub(super) const RECENT: u64 = 64;

/// What went away of late.
#[derive(Debug)]
pub(super) struct Events {
    count: AtomicU64,
    recent: [Event; RECENT as usize],
}

/// `number` is the event's count, from 1 on; 0 while it is being written, by one handler at a time.
#[derive(Debug)]
struct Event {
    number: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

impl Events {
    pub(super) fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            recent: std::array::from_fn(|_| Event {
                number: AtomicU64::new(u64::MAX),
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
            }),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// No lock, no allocation.
    pub(super) fn note(&self, range: AddressRange) {
        let number = self.count.fetch_add(1, SeqCst);
        let event = &self.recent[(number % RECENT) as usize];
        // One that is still being written belongs to a handler that was stopped there: it will bear that one's number, never this.
        if event.number.swap(0, Acquire) == 0 {
            return;
        }
        // Whoever reads what follows finds the count gone up.
        fence(Release);
        event.start.store(range.start(), Relaxed);
        event.end.store(range.end(), Relaxed);
        event.number.store(number + 1, Release);
    }

    /// Whether a part of `range` may have gone since the count was `since`.
    pub(super) fn touched(&self, range: AddressRange, since: u64) -> bool {
        let until = self.count();
        if until.wrapping_sub(since) > RECENT {
            return true;
        }
        let touched = (since..until).any(|number| {
            let event = &self.recent[(number % RECENT) as usize];
            if event.number.load(Acquire) != number + 1 {
                // It is being written, or was not.
                return true;
            }
            event.start.load(Relaxed) < range.end() && range.start() < event.end.load(Relaxed)
        });
        fence(Acquire);
        touched || self.count().wrapping_sub(since) > RECENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x2000_0000_0000;

    fn range(start: u64, length: u64) -> AddressRange {
        AddressRange::new(start, length).expect("a range")
    }

    #[test]
    fn an_event_under_one_that_is_stuck_is_not_lost() {
        let events = Events::new();
        let far = range(BASE + (1 << 30), 4096);
        // A handler that was stopped in the middle of its note, and goes on when 64 others have come.
        events.note(far);
        let stuck = &events.recent[0];
        stuck.number.store(0, SeqCst);
        for _ in 1..RECENT {
            events.note(far);
        }
        let since = events.count();
        events.note(range(BASE, 4096));
        stuck.start.store(far.start(), SeqCst);
        stuck.end.store(far.end(), SeqCst);
        assert!(events.touched(range(BASE, 4096), since));
        stuck.number.store(1, SeqCst);
        assert!(events.touched(range(BASE, 4096), since));
        // It is as good as new afterwards.
        for _ in 0..RECENT {
            events.note(far);
        }
        let since = events.count();
        assert!(!events.touched(range(BASE, 4096), since));
        events.note(range(BASE, 4096));
        assert!(events.touched(range(BASE, 4096), since));
        assert!(!events.touched(range(BASE + 8192, 4096), since));
    }
}
