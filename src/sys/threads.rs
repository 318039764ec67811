//! Names of threads: numbers, never given twice, of which it is known whether their threads have ended.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::fork;
use crate::util::lock::Mutex;

/// Every name is a multiple of this, so that who has one can add a number below it.
pub(super) const SPACING: u64 = 64;

/// Names of threads that may still do something.
static LIVING: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

thread_local! {
    /// 0: none was asked for, or it was given up.
    static NAME: Cell<u64> = const { Cell::new(0) };
    /// Its end is that of the name.
    static END: End = const { End };
}

struct End;

impl Drop for End {
    /// What the thread still does, in what is dropped after this, it does under another name, which is kept for good.
    fn drop(&mut self) {
        let name = NAME.replace(0);
        // In a child made by `fork` nobody may ever let go of the lock.
        if fork::forked() {
            return;
        }
        LIVING.lock().remove(&name);
    }
}

/// This thread's name, or 0 where it has not been asked for it.
#[inline(always)]
pub(super) fn known() -> u64 {
    NAME.get()
}

/// This thread's and no other's, ever; not 0.
pub(super) fn own() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if NAME.get() == 0 {
        let name = (LAST.fetch_add(1, Relaxed) + 1) * SPACING;
        LIVING.lock().insert(name);
        NAME.set(name);
        // From now on its end is noticed, unless that is on its way.
        let _ = END.try_with(|_| ());
    }
    NAME.get()
}

/// Whether the thread of a name that was given does nothing under it any more.
pub(super) fn has_ended(name: u64) -> bool {
    !LIVING.lock().contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_with_its_thread() {
        let here = own();
        assert_eq!((own(), known()), (here, here));
        let there = std::thread::spawn(|| {
            assert_eq!(known(), 0, "nobody has asked");
            (own(), has_ended(own()))
        });
        let (name, had_ended) = there.join().expect("a thread");
        assert!(name != here && !had_ended && has_ended(name) && !has_ended(here));
    }

    /// What is dropped with a thread after its name has another.
    #[test]
    fn who_goes_on_after_its_end_has_another_name() {
        struct Last(std::sync::mpsc::Sender<(u64, u64)>, u64);
        impl Drop for Last {
            fn drop(&mut self) {
                let _ = self.0.send((self.1, own()));
            }
        }
        thread_local! {
            static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
        }
        let (say, said) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // Values of a thread are dropped in the order in which they were first used, or in the other.
            LAST.with(|last| *last.borrow_mut() = Some(Last(say, 0)));
            let name = own();
            LAST.with(|last| last.borrow_mut().as_mut().expect("put there").1 = name);
        });
        thread.join().expect("a thread");
        let (before, after) = said.recv().expect("it was dropped");
        assert!(has_ended(before));
        assert!(after == before || !has_ended(after));
    }
}
