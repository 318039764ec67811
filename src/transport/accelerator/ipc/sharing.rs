//! What a vendor gives: how its memory crosses, and where tickets for its descriptors are had.

use std::{fmt::Debug, os::fd::OwnedFd, sync::Arc};

use super::{
    descriptor::{Allocation, Way},
    handover::{Service, Ticket, Wanted},
};
use crate::{error::Result, types::MemoryType, util::lock::Mutex};

/// How a vendor's memory crosses.
pub(crate) trait Sharing: Send + Sync + Debug + 'static {
    /// The ways that it has.
    type Way: Way;
    /// What the driver says of an address.
    type Seen;
    /// An allocation of another process, open here until it is dropped, which may block.
    type Opened: Send + Sync + Debug + 'static;

    /// What lies at an address now: its id, which no other allocation of this process ever has, or 0 where the vendor gives none; and what else
    /// there is to say. A short call.
    ///
    /// # Errors
    /// What the driver said.
    fn look(&self, address: u64) -> Result<(u64, Self::Seen)>;

    /// Makes the allocation at `address` ready for other processes. May take long. `Ok(Err(why))`: such memory cannot be given.
    ///
    /// # Errors
    /// `InvalidArgument`: no memory of this vendor's; what the driver said.
    fn share(
        &self,
        address: u64,
        id: u64,
        seen: &Self::Seen,
        tickets: &Tickets<Self>,
    ) -> Result<std::result::Result<Shared<Self::Way>, String>>
    where
        Self: Sized;

    /// The descriptor that a ticket of this process stands for, if the memory still is the same. May block.
    ///
    /// # Errors
    /// `StaleKey`: it is not; what the driver said.
    fn hand_over(&self, wanted: Wanted) -> Result<OwnedFd>;

    /// Opens an allocation of another process, with the descriptor where the way has a ticket. It has at least the bytes that are said, or that is
    /// an error. Blocks.
    ///
    /// # Errors
    /// `Unsupported`: the device is not visible here; `Malformed`; what the driver said.
    fn open(&self, allocation: &Allocation<Self::Way>, fd: Option<OwnedFd>)
    -> Result<Self::Opened>;

    /// Where an allocation begins here, and what it is.
    fn place(opened: &Self::Opened) -> (u64, MemoryType);

    /// What memory of this process itself is, where `id` still lies at `address`.
    ///
    /// # Errors
    /// What the driver said.
    fn own(&self, address: u64, id: u64) -> Result<Option<MemoryType>>;
}

/// An allocation as it is given.
pub(crate) struct Shared<W> {
    /// Which device, in words that are the same in all processes of the host.
    pub(crate) device: [u8; 16],
    pub(crate) base: u64,
    pub(crate) length: u64,
    pub(crate) way: W,
}

/// Where tickets for descriptors are had: a service, started by the first.
#[derive(Debug)]
pub(crate) struct Tickets<S> {
    sharing: Arc<S>,
    service: Mutex<Option<Service>>,
}

impl<S: Sharing> Tickets<S> {
    pub(super) fn new(sharing: &Arc<S>) -> Self {
        Self {
            sharing: Arc::clone(sharing),
            service: Mutex::new(None),
        }
    }

    /// What lets another process fetch a descriptor.
    /// Errors: as of [`Service::start`].
    pub(crate) fn ticket(&self, wanted: Wanted) -> Result<Ticket> {
        let mut service = self.service.lock();
        let service = match &mut *service {
            Some(service) => service,
            none => {
                let sharing = Arc::clone(&self.sharing);
                none.insert(Service::start(move |wanted| sharing.hand_over(wanted))?)
            }
        };
        Ok(service.ticket(wanted))
    }
}
