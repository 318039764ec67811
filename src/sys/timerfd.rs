//! A timer as a descriptor: it rings once, after a time, whoever polls it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::Duration,
};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd as NixTimerFd, TimerFlags, TimerSetTimeFlags},
};

/// A timer that is off or rings once. Non-blocking, closed on exec.
#[derive(Debug)]
pub(crate) struct TimerFd {
    timer: NixTimerFd,
    on: bool,
}

impl TimerFd {
    /// A new one, off.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Self {
            timer: NixTimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?,
            on: false,
        })
    }

    /// Rings once after `time`, at least a nanosecond, instead of whatever it was to do.
    ///
    /// # Errors
    /// None that a timer of this process has; what the kernel said.
    pub(crate) fn start(&mut self, time: Duration) -> io::Result<()> {
        let time = TimeSpec::from(time.max(Duration::from_nanos(1)));
        self.timer
            .set(Expiration::OneShot(time), TimerSetTimeFlags::empty())?;
        self.on = true;
        Ok(())
    }

    /// Turns it off. No system call when it is.
    pub(crate) fn stop(&mut self) {
        if std::mem::take(&mut self.on) {
            // It can only ring once more then.
            let _ = self.timer.unset();
        }
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
        timer.start(Duration::from_millis(1)).expect("starts");
        timer.stop();
        assert!(!rings(&timer, 20));
        timer.stop();
    }
}
