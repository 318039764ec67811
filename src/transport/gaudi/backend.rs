//! What carries copies out on one card, whoever has opened it: this process by libhl-thunk (`own`), or, where another library has the card, that library.
//!
//! Calls that may take long are named so; the others take microseconds.

use std::{fmt, os::fd::BorrowedFd, os::fd::OwnedFd, time::Duration};

use crate::{
    error::{Error, ErrorKind, Result},
    transport::accelerator::Route,
};

/// See the module.
pub(super) trait Backend: Send + Sync + fmt::Debug + 'static {
    /// Allocates device memory of at least `length` bytes, which have an address that engines take. May take long.
    ///
    /// # Errors
    /// `Exhausted`, and what the library said.
    fn allocate(&self, length: u64) -> Result<Box<dyn Pages>>;

    /// Lets the engines reach host memory. May take long.
    ///
    /// # Errors
    /// `InvalidArgument`: memory that cannot be pinned for writing; and what the library said.
    fn map(&self, host: u64, length: u64) -> Result<Box<dyn Mapping>>;

    /// Begins a copy, on an engine for this route.
    ///
    /// # Errors
    /// `WouldBlock`: as many are under way as may, try again when one is over; and what the library said: nothing was begun.
    ///
    /// # Safety
    /// Both addresses are the engines', of memory that stays, and that nobody else uses, until the flight is over or the backend was closed.
    #[allow(unsafe_code)]
    unsafe fn copy(&self, route: Route, to: u64, from: u64, length: u64)
    -> Result<Box<dyn Flight>>;

    /// Begins to write zeros. `length` is a multiple of 64.
    ///
    /// # Errors
    /// As of [`Backend::copy`].
    ///
    /// # Safety
    /// As of [`Backend::copy`].
    #[allow(unsafe_code)]
    unsafe fn zero(&self, to: u64, length: u64) -> Result<Box<dyn Flight>>;

    /// Waits until one of these flights is over, about `timeout` at most: a bit for each that is. Called by one thread alone.
    ///
    /// # Errors
    /// `DeviceLost`, and what the library said.
    fn wait_any(&self, numbers: &[u64], timeout: Duration) -> Result<u32>;

    /// What becomes readable when there is news of the card.
    fn watched(&self) -> Option<BorrowedFd<'_>>;

    /// Takes the news: whether the card is lost by them.
    ///
    /// # Errors
    /// What the library said.
    fn news(&self) -> Result<bool>;

    /// Whether a call has said that the card is lost.
    fn is_lost(&self) -> bool;

    /// Whether another library has opened the card.
    fn is_guest(&self) -> bool {
        false
    }

    /// First byte and length of all device memory in which this process has allocations, also those of others, if the library tells that. Then the
    /// addresses are as they are, without a card's number in them.
    fn pool(&self) -> Option<(u64, u64)> {
        None
    }

    /// A new descriptor of the dma-buf that holds an address, and where in it that is, if all device memory is exported as one. May take long the first time.
    ///
    /// # Errors
    /// In `Some`: what the library said.
    fn export(&self, address: u64) -> Option<Result<(OwnedFd, u64)>> {
        let _ = address;
        None
    }

    /// Lets the engines reach the first `length` bytes of another card's memory, by its dma-buf. May take long.
    ///
    /// # Errors
    /// `Unsupported`: they cannot; and what the library said.
    fn reach(&self, dma_buf: BorrowedFd<'_>, length: u64) -> Result<Box<dyn Mapping>> {
        let _ = (dma_buf, length);
        let text = "Synapse copies to and from no other card";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Gives the card up: afterwards its engines touch nothing of this process. May take long.
    fn close(&self);
}

/// The most flights that [`Backend::wait_any`] takes, and that are under way on a card at once.
pub(super) const IN_FLIGHT: usize = 32;

/// Device memory. Dropping it gives it back, which may take long.
pub(super) trait Pages: Send + Sync + fmt::Debug {
    /// First byte, as the engines have it.
    fn address(&self) -> u64;

    /// Bytes.
    fn length(&self) -> u64;

    /// A dma-buf of all of it. May take long.
    ///
    /// # Errors
    /// `Unsupported`, and what the library said.
    fn export(&self) -> Result<OwnedFd>;
}

/// Host memory, or another card's, that the engines reach. Dropping it ends that, which may take long.
pub(super) trait Mapping: Send + Sync + fmt::Debug {
    /// The engines' address of `length` bytes at the host's address (of another card's memory: from this offset on), if they lie in it.
    fn translate(&self, host: u64, length: u64) -> Option<u64>;
}

/// A copy under way. Dropped only when it is over, or the backend was closed.
pub(super) trait Flight: Send + fmt::Debug {
    /// For [`Backend::wait_any`].
    fn number(&self) -> u64;

    /// Whether it is over, and went well. Does not wait.
    ///
    /// # Errors
    /// `DeviceLost`: it failed, and the card with it; else the question failed.
    fn poll(&mut self) -> Result<bool>;
}
