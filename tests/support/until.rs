//! Waits for what comes by itself and tells nobody: the only place where tests look again and again.

use std::{
    panic::Location,
    thread,
    time::{Duration, Instant},
};

use super::LIMIT;

/// Waits, as a future, until it is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let mut looks = Looks::new(what);
    async move {
        while !is_so() {
            looks.again().await;
        }
    }
}

/// The same, blocking the thread.
#[track_caller]
pub(crate) fn block_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut looks = Looks::new(what);
    while !is_so() {
        looks.block();
    }
}

/// Waits, as a future, until `look` sees the same for so long; what that is.
///
/// For what ends on threads of its own, of which nobody is told: a process at rest, and the like.
#[track_caller]
pub(crate) fn at_rest<T: PartialEq>(
    what: &str,
    quiet: Duration,
    mut look: impl FnMut() -> T,
) -> impl Future<Output = T> {
    let mut rest = Rest::new(what, quiet, look());
    async move {
        while !rest.is_over(&mut look) {
            rest.looks.again().await;
        }
        rest.last
    }
}

/// The same, blocking the thread.
#[track_caller]
pub(crate) fn block_at_rest<T: PartialEq>(
    what: &str,
    quiet: Duration,
    mut look: impl FnMut() -> T,
) -> T {
    let mut rest = Rest::new(what, quiet, look());
    while !rest.is_over(&mut look) {
        rest.looks.block();
    }
    rest.last
}

/// Paces a loop that looks whether something has come, and panics when it never does.
///
/// For looks that are more than a condition: `loop { … break …; looks.again().await; }`.
pub(crate) struct Looks<'a> {
    what: &'a str,
    place: &'static Location<'static>,
    start: Instant,
    limit: Duration,
    pause: Duration,
}

impl<'a> Looks<'a> {
    #[track_caller]
    pub(crate) fn new(what: &'a str) -> Self {
        Self {
            what,
            place: Location::caller(),
            start: Instant::now(),
            limit: LIMIT,
            pause: Duration::from_micros(20),
        }
    }

    /// For what may take longer than others.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Before the next look, in a future.
    pub(crate) async fn again(&mut self) {
        let pause = self.pause();
        tokio::time::sleep(pause).await;
    }

    /// Before the next look, in a thread of its own.
    pub(crate) fn block(&mut self) {
        thread::sleep(self.pause());
    }

    /// Soon at first, and seldom enough then to be no load to what is waited for.
    fn pause(&mut self) -> Duration {
        assert!(
            self.start.elapsed() < self.limit,
            "watchdog: {} never came, at {}",
            self.what,
            self.place
        );
        let pause = self.pause;
        self.pause = (2 * pause).min(Duration::from_millis(1));
        pause
    }
}

struct Rest<'a, T> {
    looks: Looks<'a>,
    quiet: Duration,
    last: T,
    since: Instant,
    /// Looks since then: a stall of the whole machine is no rest.
    same: u32,
}

impl<'a, T: PartialEq> Rest<'a, T> {
    #[track_caller]
    fn new(what: &'a str, quiet: Duration, first: T) -> Self {
        Self {
            looks: Looks::new(what),
            quiet,
            last: first,
            since: Instant::now(),
            same: 0,
        }
    }

    fn is_over(&mut self, look: impl FnOnce() -> T) -> bool {
        // Of the times between two looks at the same, the shortest that it can have been.
        let quiet = self.since.elapsed();
        let now = look();
        if now != self.last {
            (self.last, self.since, self.same) = (now, Instant::now(), 0);
            return false;
        }
        self.same += 1;
        self.same >= 10 && quiet >= self.quiet
    }
}
