//! What tells of faults and resets: an eventfd, never of a copy that is done.
//!
//! # Safety
//! The eventfd was made by the library for this value, and is released once, before the card it holds. Calls get pointers to live locals.
#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
};

use super::Card;
use crate::error::{Error, Result};

bitflags::bitflags! {
    /// What happened, from `HL_NOTIFIER_EVENT_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Events: u64 {
        /// A kernel's assertion failed.
        const TPC_ASSERT = 1;
        /// An engine met a packet that it does not know.
        const UNDEFINED_OPCODE = 1 << 1;
        /// The card is reset. The process has 30 s to close it.
        const DEVICE_RESET = 1 << 2;
        /// A submission did not end in time.
        const CS_TIMEOUT = 1 << 3;
        /// The card is not to be used.
        const DEVICE_UNAVAILABLE = 1 << 4;
        /// An engine failed by what the program had it do.
        const USER_ENGINE_ERROR = 1 << 5;
        /// The hardware failed.
        const HARDWARE_ERROR = 1 << 6;
        /// An engine met an address that it may not use.
        const RAZWI = 1 << 7;
        /// An engine met an address that is not mapped.
        const PAGE_FAULT = 1 << 8;
        /// The hardware failed beyond repair.
        const CRITICAL_HARDWARE_ERROR = 1 << 9;
        /// The firmware failed beyond repair.
        const CRITICAL_FIRMWARE_ERROR = 1 << 10;
        /// What came later.
        const _ = !0;
    }
}

impl Events {
    /// Whether nothing on the card goes on.
    pub(crate) const fn is_end(self) -> bool {
        self.intersects(
            Self::DEVICE_RESET
                .union(Self::DEVICE_UNAVAILABLE)
                .union(Self::CRITICAL_HARDWARE_ERROR)
                .union(Self::CRITICAL_FIRMWARE_ERROR),
        )
    }
}

/// A card's notifier. Its descriptor becomes readable when something has happened, and does not block.
pub(crate) struct Notifier {
    card: Arc<Card>,
    fd: RawFd,
}

impl Card {
    /// Makes the card's notifier. There is one for each opened card; where Synapse has the card, Synapse has it. With it the process is not killed at once
    /// when the card is reset.
    /// Errors: `InvalidArgument`: there is one already; `Unsupported`; `DeviceLost`, `Closed`, `Forked`.
    pub(crate) fn notifier(self: &Arc<Self>) -> Result<Notifier> {
        let call = "hlthunk_notifier_create";
        let api = &self.library().api;
        let create = self.library().optional(api.hlthunk_notifier_create, call)?;
        // Asked for before there is something to undo.
        self.library()
            .optional(api.hlthunk_notifier_release, "hlthunk_notifier_release")?;
        self.library()
            .optional(api.hlthunk_notifier_recv, "hlthunk_notifier_recv")?;
        // SAFETY: takes a descriptor.
        let result = self.with_live_fd(|fd| unsafe { create(fd) })?;
        let notifier = Notifier {
            card: Arc::clone(self),
            fd: self.checked(result, call)?,
        };
        // SAFETY: numbers alone; the descriptor is open. An eventfd has no other flags that matter.
        let set = unsafe { libc::fcntl(notifier.fd, libc::F_SETFL, libc::O_NONBLOCK) };
        if set < 0 {
            let text = format!("{self}: the notifier cannot be made to not block");
            return Err(Error::io(text, std::io::Error::last_os_error()));
        }
        Ok(notifier)
    }
}

impl Notifier {
    /// What has happened since the last look; nothing, as a rule. Never waits. A reset marks the card as lost.
    /// Errors: `Closed`, `Forked`; what the library reports.
    pub(crate) fn receive(&self) -> Result<Events> {
        let call = "hlthunk_notifier_recv";
        let receive = self.card.library().api.hlthunk_notifier_recv;
        let receive = self.card.library().optional(receive, call)?;
        let (mut events, mut count) = (0, 0);
        let result = self.card.with_fd(|fd| {
            // SAFETY: writes two numbers.
            unsafe { receive(fd, self.fd, &raw mut events, &raw mut count, 0, 0) }
        })?;
        self.card.checked(result, call)?;
        if count == 0 {
            return Ok(Events::empty());
        }
        let events = Events::from_bits_retain(events);
        tracing::warn!(target: "wharf::gaudi", "{}: {events:?}", self.card);
        if events.is_end() {
            self.card.set_lost();
        }
        Ok(events)
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until the drop.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl AsRawFd for Notifier {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        let call = self.card.library().api.hlthunk_notifier_release;
        let released = match call {
            // SAFETY: made once, released once.
            Some(release) => self.card.with_fd(|fd| unsafe { release(fd, self.fd) }),
            None => Ok(-1),
        };
        // The library closes it when the kernel has let go of it, and only then.
        if released.is_ok_and(|result| result >= 0) {
            return;
        }
        // SAFETY: nobody has closed it.
        unsafe { libc::close(self.fd) };
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "notifier of {}", self.card)
    }
}
