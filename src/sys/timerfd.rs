//! A timer as a descriptor: it rings once, after a time, whoever polls it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd as NixTimerFd, TimerFlags, TimerSetTimeFlags},
};

/// A timer that is off or rings once. Non-blocking, closed on exec.
#[derive(Debug)]
pub(crate) struct TimerFd {
    timer: NixTimerFd,
    /// On, and when it rings.
    due: Option<Instant>,
}

impl TimerFd {
    /// A new one, off.
    /// Errors: `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Self {
            timer: NixTimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?,
            due: None,
        })
    }

    /// Rings once after `time`, at least a nanosecond, instead of whatever it was to do.
    /// Errors: none that a timer of this process has; what the kernel said.
    pub(crate) fn start(&mut self, time: Duration) -> io::Result<()> {
        let time = time.max(Duration::from_nanos(1));
        // Before, so that it has passed when the timer rings.
        let due = Instant::now() + time;
        self.timer.set(
            Expiration::OneShot(TimeSpec::from(time)),
            TimerSetTimeFlags::empty(),
        )?;
        self.due = Some(due);
        Ok(())
    }

    /// Turns it off: it does not ring any more, and what it has rung is not to be seen. Whether its time had come. No system call when it is off.
    #[must_use]
    pub(crate) fn stop(&mut self) -> bool {
        let Some(due) = self.due.take() else {
            return false;
        };
        // It can only ring once more then.
        let _ = self.timer.unset();
        Instant::now() >= due
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(timer: &TimerFd, limit: i32) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(limit).expect("a time");
        poll(&mut fds, limit).expect("polls") == 1
    }

    #[test]
    fn it_rings_after_its_time_and_not_when_it_is_off() {
        let mut timer = TimerFd::new().expect("a timer");
        assert!(!rings(&timer, 0));
        timer.start(Duration::from_millis(1)).expect("starts");
        assert!(rings(&timer, 10_000));
        timer.start(Duration::from_secs(1000)).expect("starts");
        assert!(!rings(&timer, 0), "starting takes back what it had rung");
        timer.start(Duration::from_secs(1000)).expect("starts");
        assert!(!timer.stop(), "its time had not come");
        assert!(!rings(&timer, 20));
        assert!(!timer.stop(), "it was off");
        timer.start(Duration::from_millis(1)).expect("starts");
        assert!(rings(&timer, 10_000));
        assert!(timer.stop(), "its time had come");
        assert!(!rings(&timer, 0));
    }
}
