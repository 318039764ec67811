//! A lock that one thread takes and gives back without a locked instruction.
//!
//! ```text
//! owner                                   anybody else
//!                                         0 lock the slow lock
//! 1 inside = odd                          1 owner = none
//! 2 (kept in order by the compiler)       2 barrier of all threads (membarrier)
//! 3 still the owner?  yes: it has it      3 is the old owner inside?  wait until it is outside
//!                     no:  inside = even, as anybody else
//! ```
//!
//! A locked instruction makes the processor wait until its last store has reached the line that another core holds, which is most of what a
//! short message takes; so who takes a worker's lock for each message must do without. Whoever takes it often enough in a row becomes its *owner*.
//! Of the owner's store and look, and the other's store and look, at least one sees the other's, as in a doorbell, and only the rare side pays.
//!
//! The ownership is taken away by whoever else comes; a few microseconds. So it is given only after a streak, and where it was taken away before
//! it had paid for that, only after a streak twice as long. Where the kernel has no such barrier nobody becomes the owner, and it is an ordinary lock.
//!
//! # Safety
//! The value is reached through a guard alone. A guard exists while its thread is inside and was the owner after it said so, or while it
//! holds the slow lock and has seen that there is no owner, or that the owner is outside. Guards are not `Send`.
#![allow(unsafe_code)]

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use super::{futex::Futex, membarrier, threads};
use crate::util::loom::{AtomicU64, Mutex, MutexGuard, Ordering, UnsafeCell, spin_loop};

/// Times in a row that a thread takes the slow lock before it becomes the owner.
const STREAK: u32 = if cfg!(wharf_loom) { 1 } else { 32 };
/// The longest that is asked for after ownerships that did not pay.
const LONGEST: u32 = 1 << 20;
/// Uses of an ownership that pay for taking it away: some 3 µs against some 10 ns each.
const PAYS: u32 = 1024;
/// Threads that may be owners of one lock in turn, while all of them live: their words fill four lines.
const OWNERS: usize = if cfg!(wharf_loom) {
    2
} else {
    threads::SPACING as usize
};
const PLACES: u64 = OWNERS as u64;
/// There is no owner: no thread's name, and not next to one, nor to 0.
const NOBODY: u64 = u64::MAX;
/// Looks at an owner that is inside before the other thread sleeps.
const LOOKS: u32 = if cfg!(wharf_loom) { 1 } else { 64 };

/// How the two sides keep their stores and loads in order.
pub(crate) trait Barrier {
    /// Whether both are to be had.
    fn available() -> bool;
    /// The owner's.
    fn light();
    /// Anybody else's.
    fn heavy();
}

/// By `membarrier(2)`.
#[derive(Debug)]
pub(crate) struct Membarrier;

impl Barrier for Membarrier {
    fn available() -> bool {
        membarrier::available()
    }
    #[inline(always)]
    fn light() {
        membarrier::light();
    }
    fn heavy() {
        membarrier::heavy();
    }
}

/// See the module's text.
pub(crate) struct Biased<T, B = Membarrier> {
    /// The name of the thread that need not lock, and the number of its word; or [`NOBODY`]. Written by who has the slow lock.
    owner: AtomicU64,
    /// Odd while a thread is inside as the owner. Each word is one thread's, for the life of the thread: one that lost the ownership just before it
    /// says that it is inside must not say so for another.
    inside: [Futex; OWNERS],
    slow: Mutex<State>,
    value: UnsafeCell<T>,
    barrier: PhantomData<fn() -> B>,
}

struct State {
    /// Who had the slow lock last, and how many times in a row.
    last: u64,
    streak: u32,
    /// A streak as long as this makes an owner.
    needed: u32,
    /// The owner's word when it became the owner.
    since: u32,
    /// Whose word is which; 0: nobody's.
    names: [u64; OWNERS],
}

// SAFETY: it hands its value to one thread at a time.
unsafe impl<T: Send, B> Send for Biased<T, B> {}
// SAFETY: as above.
unsafe impl<T: Send, B> Sync for Biased<T, B> {}

/// The value, until it is dropped.
pub(crate) struct Guard<'a, T, B: Barrier = Membarrier> {
    lock: &'a Biased<T, B>,
    /// `None`: this thread is inside as the owner.
    slow: Option<MutexGuard<'a, State>>,
    owner: u64,
    /// Not `Send`.
    here: PhantomData<*mut ()>,
}

/// The value for its owner, until it is dropped: two words less to carry than [`Guard`].
pub(crate) struct OwnerGuard<'a, T, B: Barrier = Membarrier> {
    lock: &'a Biased<T, B>,
    owner: u64,
    /// Not `Send`.
    here: PhantomData<*mut ()>,
}

/// As [`name`], or 0 where this thread has not been asked for it.
#[cfg(not(wharf_loom))]
#[inline(always)]
fn known_name() -> u64 {
    threads::known()
}

/// A multiple of [`PLACES`] that is this thread's and no other's, ever.
#[cfg(not(wharf_loom))]
fn name() -> u64 {
    threads::own()
}

/// Whether a thread will never again say that it is inside, or outside.
#[cfg(not(wharf_loom))]
fn has_ended(name: u64) -> bool {
    threads::has_ended(name)
}

#[cfg(wharf_loom)]
fn has_ended(_name: u64) -> bool {
    false
}

#[cfg(wharf_loom)]
fn known_name() -> u64 {
    name()
}

#[cfg(wharf_loom)]
fn name() -> u64 {
    // A model's threads are numbered anew in each of its runs.
    let id = format!("{:?}", loom::thread::current().id());
    let digits: String = id.chars().filter(char::is_ascii_digit).collect();
    (digits.parse::<u64>().expect("a number") + 1) * PLACES
}

impl<T, B: Barrier> Biased<T, B> {
    pub(crate) fn new(value: T) -> Self {
        let needed = if B::available() { STREAK } else { u32::MAX };
        Self {
            owner: AtomicU64::new(NOBODY),
            inside: std::array::from_fn(|_| Futex::new(0)),
            slow: Mutex::new(State {
                last: 0,
                streak: 0,
                needed,
                since: 0,
                names: [0; OWNERS],
            }),
            value: UnsafeCell::new(value),
            barrier: PhantomData,
        }
    }

    #[inline(always)]
    fn inside(&self, owner: u64) -> &Futex {
        &self.inside[(owner % PLACES) as usize]
    }

    /// Waits until nobody else has it.
    ///
    /// # Panics
    /// This thread has it already.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T, B> {
        match self.go_inside() {
            Some(owner) => Guard {
                lock: self,
                slow: None,
                owner,
                here: PhantomData,
            },
            None => self.lock_slowly(),
        }
    }

    /// As [`Biased::lock`], for the owner alone. `None`: this thread is not the owner, or has it already.
    #[inline(always)]
    pub(crate) fn lock_as_owner(&self) -> Option<OwnerGuard<'_, T, B>> {
        let owner = self.go_inside()?;
        Some(OwnerGuard {
            lock: self,
            owner,
            here: PhantomData,
        })
    }

    /// Says that this thread is inside as the owner, and sees whether it still is the owner.
    #[inline(always)]
    fn go_inside(&self) -> Option<u64> {
        let owner = self.owner.load(Ordering::Relaxed);
        // One subtraction tells whose it is and which word: names are multiples of it.
        let place = owner.wrapping_sub(known_name());
        if place >= PLACES {
            return None;
        }
        let inside = &self.inside[place as usize];
        let count = inside.load(Ordering::Relaxed);
        if !count.is_multiple_of(2) {
            return None;
        }
        inside.store(count.wrapping_add(1), Ordering::Relaxed);
        B::light();
        if self.owner.load(Ordering::Relaxed) != owner {
            self.too_late(inside, count);
            return None;
        }
        Some(owner)
    }

    /// Says that the owner is outside.
    #[inline(always)]
    fn go_outside(&self, owner: u64) {
        let inside = self.inside(owner);
        inside.store(
            inside.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Release,
        );
        B::light();
        // Taken away meanwhile: somebody may sleep until this thread is outside. Who took it away had every thread pass a barrier after
        // that, so either this look sees it, or the store above was seen.
        if self.owner.load(Ordering::Relaxed) != owner {
            inside.wake();
        }
    }

    /// The ownership was taken away before this thread said that it is inside.
    #[cold]
    fn too_late(&self, inside: &Futex, count: u32) {
        inside.store(count.wrapping_add(2), Ordering::Release);
        inside.wake();
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self) -> Guard<'_, T, B> {
        let name = name();
        let owner = self.owner.load(Ordering::Relaxed);
        if owner - owner % PLACES == name
            && !self.inside(owner).load(Ordering::Relaxed).is_multiple_of(2)
        {
            twice();
        }
        let mut state = self.wait_for_slow();
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NOBODY {
            self.take_away(owner, &mut state);
        }
        if state.last == name {
            state.streak = state.streak.saturating_add(1);
        } else {
            (state.last, state.streak) = (name, 0);
        }
        Guard {
            lock: self,
            slow: Some(state),
            owner: NOBODY,
            here: PhantomData,
        }
    }

    /// Whoever has it is through in less than a microsecond as a rule, and falling asleep and being woken takes many.
    fn wait_for_slow(&self) -> MutexGuard<'_, State> {
        for _ in 0..LOOKS {
            if let Some(state) = self.slow.try_lock() {
                return state;
            }
            spin_loop();
        }
        self.slow.lock()
    }

    #[cold]
    fn take_away(&self, owner: u64, state: &mut State) {
        self.owner.store(NOBODY, Ordering::Relaxed);
        B::heavy();
        let inside = self.inside(owner);
        while !inside.load(Ordering::Acquire).is_multiple_of(2) {
            wait(inside);
        }
        let used = inside.load(Ordering::Relaxed).wrapping_sub(state.since) / 2;
        state.needed = match (B::available(), used >= PAYS) {
            (false, _) => u32::MAX,
            (true, true) => STREAK,
            (true, false) => state.needed.saturating_mul(2).min(LONGEST),
        };
        state.streak = 0;
    }

    /// Makes who has the slow lock the owner.
    #[cold]
    fn give(&self, state: &mut State) {
        state.streak = 0;
        let name = state.last;
        let mut names = state.names.iter();
        let place = names.position(|&of| of == name || of == 0);
        let place = place.or_else(|| state.names.iter().position(|&of| has_ended(of)));
        if let Some(place) = place {
            state.names[place] = name;
            state.since = self.inside[place].load(Ordering::Relaxed);
            self.owner.store(name + place as u64, Ordering::Relaxed);
        }
    }
}

impl<T, B: Barrier> Drop for Guard<'_, T, B> {
    #[inline(always)]
    fn drop(&mut self) {
        let lock = self.lock;
        if let Some(state) = &mut self.slow {
            if state.streak >= state.needed {
                lock.give(state);
            }
            // The slow lock is given back by its own guard.
            return;
        }
        lock.go_outside(self.owner);
    }
}

impl<T, B: Barrier> Drop for OwnerGuard<'_, T, B> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.go_outside(self.owner);
    }
}

impl<T, B: Barrier> Deref for OwnerGuard<'_, T, B> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: module docs.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T, B: Barrier> DerefMut for OwnerGuard<'_, T, B> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: module docs; the guard is borrowed alone.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T, B: Barrier> Deref for Guard<'_, T, B> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: module docs.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T, B: Barrier> DerefMut for Guard<'_, T, B> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: module docs; the guard is borrowed alone.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T, B> fmt::Debug for Biased<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Biased").finish_non_exhaustive()
    }
}

#[cold]
fn twice() -> ! {
    panic!("locked twice by one thread")
}

/// Returns when the owner may be outside.
fn wait(inside: &Futex) {
    for _ in 0..LOOKS {
        if inside.load(Ordering::Relaxed).is_multiple_of(2) {
            return;
        }
        spin_loop();
    }
    let count = inside.load(Ordering::Relaxed);
    // An owner that went outside at the last moment wakes nobody any more: nobody may sleep until it goes there again.
    if !count.is_multiple_of(2) {
        inside.wait(count);
    }
}

#[cfg(test)]
/// What stands for `membarrier`: a fence on both sides, which is to be had everywhere.
struct Fences;

#[cfg(test)]
impl Barrier for Fences {
    fn available() -> bool {
        true
    }
    fn light() {
        crate::util::loom::fence(Ordering::SeqCst);
    }
    fn heavy() {
        crate::util::loom::fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, wharf_loom))]
mod models {
    use super::*;
    use crate::util::loom::{Arc, fence, thread};

    /// The owner's side without one.
    struct Missing;

    impl Barrier for Missing {
        fn available() -> bool {
            true
        }
        fn light() {}
        fn heavy() {
            fence(Ordering::SeqCst);
        }
    }

    /// A thread that becomes the owner, and one that comes by: `loom`'s cell fails where both are inside.
    fn two<B: Barrier + 'static>() {
        loom::model(|| {
            let lock = Arc::new(Biased::<u32, B>::new(0));
            let owner = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    for _ in 0..3 {
                        *lock.lock() += 1;
                    }
                })
            };
            *lock.lock() += 1;
            owner.join().expect("the owner");
            assert_eq!(*lock.lock(), 4);
        });
    }

    #[test]
    fn one_at_a_time() {
        two::<Fences>();
    }

    #[test]
    #[should_panic]
    fn without_the_owners_barrier_two_are_inside() {
        two::<Missing>();
    }
}

#[cfg(all(test, not(wharf_loom)))]
mod tests {
    use std::{
        sync::{
            Barrier as Meeting,
            atomic::{AtomicBool, Ordering::Relaxed},
        },
        time::Duration,
    };

    use super::*;

    fn is_owned<T, B>(lock: &Biased<T, B>) -> bool {
        lock.owner.load(Relaxed) != NOBODY
    }

    #[test]
    fn a_streak_makes_an_owner_and_another_thread_ends_it() {
        let lock = Biased::<_, Fences>::new(0);
        for _ in 0..=STREAK {
            assert!(!is_owned(&lock));
            *lock.lock() += 1;
        }
        assert!(is_owned(&lock));
        *lock.lock() += 1;
        std::thread::scope(|scope| {
            scope.spawn(|| *lock.lock() += 1);
        });
        assert!(!is_owned(&lock));
        // It had not paid: a longer streak the next time.
        for _ in 0..=STREAK {
            *lock.lock() += 1;
        }
        assert!(!is_owned(&lock));
        for _ in 0..=STREAK {
            *lock.lock() += 1;
        }
        assert!(is_owned(&lock));
        assert_eq!(*lock.lock(), 3 * (STREAK + 1) + 2);
    }

    /// Stands for a kernel without the system call.
    struct Absent;

    impl Barrier for Absent {
        fn available() -> bool {
            false
        }
        fn light() {}
        fn heavy() {
            unreachable!("there is no owner")
        }
    }

    /// However many threads have come and gone.
    #[test]
    fn the_word_of_a_thread_that_has_ended_is_anothers() {
        let lock = Biased::<_, Fences>::new(0);
        for _ in 0..2 * OWNERS {
            let own = || {
                *lock.lock() += 1;
                // It asks for more after each that did not pay.
                lock.slow.lock().needed = STREAK;
                for _ in 0..STREAK {
                    *lock.lock() += 1;
                }
                assert!(lock.lock_as_owner().is_some(), "it owns it");
            };
            // Joined, so that the thread has ended and not its closure alone.
            std::thread::scope(|scope| scope.spawn(own).join().expect("a thread"));
        }
        assert_eq!(*lock.lock(), 2 * OWNERS as u32 * (STREAK + 1));
    }

    #[test]
    fn as_the_owner_only_the_owner_gets_it() {
        let lock = Biased::<_, Fences>::new(0);
        assert!(lock.lock_as_owner().is_none(), "nobody owns it");
        for _ in 0..=STREAK {
            drop(lock.lock());
        }
        let mut guard = lock.lock_as_owner().expect("its owner");
        *guard += 1;
        assert!(lock.lock_as_owner().is_none(), "it has it already");
        drop(guard);
        let other = || lock.lock_as_owner().map(|guard| *guard);
        let seen = std::thread::scope(|scope| scope.spawn(other).join().expect("the thread"));
        assert_eq!(seen, None, "another thread");
        assert_eq!(lock.lock_as_owner().map(|guard| *guard), Some(1));
    }

    #[test]
    fn without_the_barrier_nobody_owns_it() {
        let lock = Biased::<_, Absent>::new(0);
        for _ in 0..4 * STREAK {
            *lock.lock() += 1;
            assert!(!is_owned(&lock));
        }
    }

    #[test]
    #[should_panic(expected = "locked twice")]
    fn an_owner_that_locks_twice_is_told() {
        let lock = Biased::<_, Fences>::new(0);
        for _ in 0..=STREAK {
            drop(lock.lock());
        }
        let _first = lock.lock();
        let _second = lock.lock();
    }

    #[test]
    fn who_comes_by_waits_for_an_owner_that_stays_inside() {
        let lock = Biased::<_, Fences>::new(false);
        for _ in 0..=STREAK {
            drop(lock.lock());
        }
        let met = Meeting::new(2);
        std::thread::scope(|scope| {
            let mut guard = lock.lock();
            scope.spawn(|| {
                met.wait();
                assert!(*lock.lock(), "it came in while the owner was inside");
            });
            met.wait();
            std::thread::sleep(Duration::from_millis(20));
            *guard = true;
            drop(guard);
        });
    }

    #[test]
    fn by_fences_nothing_is_counted_twice() {
        counts_nothing_twice::<Fences>();
    }

    /// An ordinary lock where the kernel has no such barrier.
    #[test]
    fn by_the_kernels_barrier_nothing_is_counted_twice() {
        counts_nothing_twice::<Membarrier>();
    }

    /// Threads that own it in turn, and come by at any moment.
    fn counts_nothing_twice<B: Barrier>() {
        const ROUNDS: u32 = if cfg!(miri) { 3 } else { 1500 };
        let lock = Biased::<_, B>::new((0_u64, 0_u64));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let lock = &lock;
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            for _ in 0..40 + 40 * ((round + thread) % 7) {
                                let mut both = lock.lock();
                                both.0 += 1;
                                // Somebody else inside would be seen between the two.
                                assert_eq!(both.0, both.1 + 1);
                                both.1 += 1;
                            }
                            if round % 3 == thread {
                                std::thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            let visitor = scope.spawn(|| {
                while !over.load(Relaxed) {
                    let both = lock.lock();
                    assert_eq!(both.0, both.1);
                    drop(both);
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            for thread in threads {
                thread.join().expect("a thread");
            }
            over.store(true, Relaxed);
            visitor.join().expect("the visitor");
        });
        let total: u64 = (0..3_u32)
            .flat_map(|thread| {
                (0..ROUNDS).map(move |round| u64::from(40 + 40 * ((round + thread) % 7)))
            })
            .sum();
        assert_eq!(*lock.lock(), (total, total));
    }
}
