//! What it costs to wake a Tokio task of another process by an eventfd.

use std::sync::atomic::Ordering::{Acquire, Release};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::half::{Arrivals, Half, parked_sender};
use crate::shared::Shared;
use crate::{Outcome, runtime};

/// Nanoseconds from the stamp, through the write, to the first line of the woken task. The eventfd is never read.
pub(crate) fn eventfd(half: &mut Half) -> Outcome<f64> {
    let shared = Shared::new(half, 4096)?;
    let word = shared.word(0);
    if half.is_a() {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        half.link.send_fd(&bell)?;
        half.barrier()?;
        parked_sender(&half.spec, |stamp| {
            word.store(stamp, Release);
            bell.write(1)?;
            Ok(())
        })?;
        return half.hand_over(0.0);
    }
    let bell = half.link.receive_fd()?;
    let mut arrivals = Arrivals::default();
    runtime()?.block_on(async {
        let bell = bell_of(bell)?;
        half.barrier()?;
        let mut seen = 0;
        loop {
            let mut ready = bell.readable().await?;
            ready.clear_ready();
            let sent = word.load(Acquire);
            if sent == seen {
                continue;
            }
            seen = sent;
            if !arrivals.note(sent) {
                return Outcome::Ok(());
            }
        }
    })?;
    half.hand_over(arrivals.median())
}

#[allow(deprecated, reason = "the replacement is an unsafe function")]
fn bell_of(fd: std::os::fd::OwnedFd) -> Outcome<AsyncFd<std::os::fd::OwnedFd>> {
    Ok(AsyncFd::with_interest(fd, Interest::READABLE)?)
}
