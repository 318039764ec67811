//! What a worker has of the devices, which its connections are made in.

use std::sync::Arc;

use super::{
    device::OpenDevice,
    devices::Devices,
    queues::{Queues, Reservation},
    rail::Retired,
};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// What a worker has of the devices.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) devices: Arc<Devices>,
    queues: Mutex<Vec<Arc<Queues>>>,
    pub(super) retired: Arc<Retired>,
}

impl Room {
    /// # Errors
    /// What the system said.
    pub(super) fn new(devices: Arc<Devices>) -> Result<Self> {
        let retired = Retired::new(Arc::clone(&devices.reaper))
            .map_err(|error| Error::io("an eventfd", error))?;
        Ok(Self {
            retired: Arc::new(retired),
            devices,
            queues: Mutex::default(),
        })
    }

    /// Room for one more rail of a connection, of `messages` or of one-sided operations alone. May take milliseconds.
    /// Errors: what the device said.
    pub(super) fn reserve(
        &self,
        device: &Arc<OpenDevice>,
        completions: u32,
        messages: bool,
    ) -> Result<Reservation> {
        let mut all = self.queues.lock();
        all.retain(|queues| !queues.has_failed());
        let same = all
            .iter()
            .filter(|queues| Arc::ptr_eq(&queues.device, device));
        if let Some(found) = same
            .into_iter()
            .find_map(|queues| queues.reserve(completions, messages))
        {
            return Ok(found);
        }
        let queues = Arc::new(Queues::new(device, completions)?);
        let found = queues.reserve(completions, messages);
        all.push(queues);
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::Exhausted,
                "the device's queues are too short for a connection",
            )
        })
    }

    /// Lets go of queues that have failed.
    pub(super) fn let_go(&self, mut queues: Vec<Arc<Queues>>) {
        // Who holds the lock does so for milliseconds. What is left there goes with the next connection.
        if let Some(mut all) = self.queues.try_lock() {
            queues.extend(all.extract_if(.., |queues| queues.has_failed()));
        }
        if !queues.is_empty() {
            self.devices.reaper.drop_later(queues);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.retired.close();
        let queues = std::mem::take(self.queues.get_mut());
        if !queues.is_empty() {
            self.devices.reaper.drop_later(queues);
        }
    }
}
