//! Memory that nobody here uses any more and that a peer may still be inside: kept until it is outside, or dead.
//!
//! One thread for all of it, which is there only while something is kept. What is kept for a peer that neither leaves nor ends is
//! looked at ever less often.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

use crate::util::lock::Mutex;

/// Memory, and whether it may go now. Dropping it frees the memory.
pub(crate) type Lingering = Box<dyn FnMut() -> bool + Send>;

/// Between two looks, at first and at most.
const SOON: Duration = Duration::from_millis(1);
const SELDOM: Duration = Duration::from_millis(100);

struct Keeper {
    new: Vec<Lingering>,
    is_running: bool,
}

static KEEPER: Mutex<Keeper> = Mutex::new(Keeper {
    new: Vec::new(),
    is_running: false,
});

/// Keeps `kept` until it says that it may go. It is asked and dropped on another thread.
pub(crate) fn keep(kept: Lingering) {
    let mut keeper = KEEPER.lock();
    keeper.new.push(kept);
    if keeper.is_running {
        return;
    }
    let thread = thread::Builder::new()
        .name("wharf-keeper".into())
        .spawn(run);
    match thread {
        Ok(_) => keeper.is_running = true,
        // It is kept: the next one tries again.
        Err(error) => {
            tracing::error!(target: "wharf::memory", %error, "no thread to wait for a peer that is inside memory here: the memory is kept");
        }
    }
}

fn run() {
    let mut all: Vec<Lingering> = Vec::new();
    let mut pause = SOON;
    loop {
        {
            let mut keeper = KEEPER.lock();
            if !keeper.new.is_empty() {
                pause = SOON;
                all.append(&mut mem::take(&mut keeper.new));
            } else if all.is_empty() {
                keeper.is_running = false;
                return;
            }
        }
        look(&mut all);
        if !all.is_empty() {
            thread::sleep(pause);
            pause = (pause * 2).min(SELDOM);
        }
    }
}

/// Lets go of what may go. What is dropped with it is a program's, and may panic: what else is kept stays for all that.
fn look(all: &mut Vec<Lingering>) {
    let mut index = 0;
    while let Some(kept) = all.get_mut(index) {
        let looked = match catch_unwind(AssertUnwindSafe(kept)) {
            Ok(true) => {
                let kept = all.swap_remove(index);
                catch_unwind(AssertUnwindSafe(|| drop(kept)))
            }
            // One that is several may have dropped the first of them.
            not_over => {
                index += 1;
                not_over.map(drop)
            }
        };
        if looked.is_err() {
            tracing::error!(target: "wharf::memory", "the drop of memory that a peer was inside has panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// In the place of the thread.
    #[test]
    fn a_drop_that_panics_takes_nothing_along() {
        struct Owner;
        impl Drop for Owner {
            fn drop(&mut self) {
                panic!("a program's own");
            }
        }
        let (owner, memory) = (Owner, Arc::new(()));
        let held = Arc::clone(&memory);
        let mut may_go = false;
        let mut all: Vec<Lingering> = vec![
            Box::new(move || {
                let _owner = &owner;
                true
            }),
            Box::new(move || {
                let _memory = &held;
                mem::replace(&mut may_go, true)
            }),
        ];
        look(&mut all);
        assert_eq!(
            (all.len(), Arc::strong_count(&memory)),
            (1, 2),
            "it goes on"
        );
        look(&mut all);
        assert_eq!((all.len(), Arc::strong_count(&memory)), (0, 1));
    }

    #[test]
    fn what_is_kept_goes_when_it_may() {
        let memory = Arc::new(());
        let asked = Arc::new(AtomicUsize::new(0));
        for may in [1, 3, usize::MAX] {
            let (memory, asked) = (Arc::clone(&memory), Arc::clone(&asked));
            let mut looks = 0;
            keep(Box::new(move || {
                let _memory = &memory;
                asked.fetch_add(1, Ordering::Relaxed);
                looks += 1;
                looks >= may
            }));
        }
        while Arc::strong_count(&memory) > 2 || asked.load(Ordering::Relaxed) < 8 {
            thread::sleep(SOON);
        }
        assert_eq!(Arc::strong_count(&memory), 2, "the last may not go");
    }
}
