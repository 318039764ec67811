//! A rail, and those that end without a connection: of a set-up that was given up, and those that were too many.
//!
//! The worker's interface polls what came for them before they are destroyed: only it polls the queues, and what a destroyed queue pair leaves there
//! is thrown away by providers (libmlx5), with the receives that it lies in.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use super::{buffers::Memory, devices::SharedReaper, queues::Reservation};
use crate::{driver::verbs::QueuePair, error::Result, sys::eventfd::EventFd, util::lock::Mutex};

/// One queue pair with what it sends from. The fields end in this order.
pub(super) struct Rail {
    pub(super) queue_pair: Arc<QueuePair>,
    pub(super) ring: Memory,
    pub(super) reservation: Reservation,
    /// The number of its port.
    pub(super) port: u8,
    /// Bytes that can be sent inline.
    pub(super) inline: usize,
    /// The peer's device at the other end.
    pub(super) peer_device: u64,
    /// For one-sided operations alone.
    pub(super) data: bool,
    /// Nothing is posted any more, of a rail for one-sided operations. Of others the connection says that.
    pub(super) over: AtomicBool,
    /// The queue pair was ended.
    pub(super) ended: AtomicBool,
    /// Where it ends without a connection.
    pub(super) retired: Arc<Retired>,
}

impl Rail {
    /// The device at this end.
    pub(super) fn device(&self) -> u64 {
        self.reservation.queues.device.id
    }

    /// Ends its queue pair: what is under way completes with an error, and nothing comes any more. Once that is done it costs nothing.
    /// Errors: what the device said.
    pub(super) fn to_error(&self) -> Result<()> {
        if !self.ended.load(Acquire) {
            self.queue_pair.to_error()?;
            self.ended.store(true, Release);
        }
        Ok(())
    }

    /// Nothing more is posted.
    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Whether requests may be posted.
    pub(super) fn is_live(&self) -> bool {
        !self.over.load(Relaxed)
    }

    /// Whether one-sided operations may go over it.
    #[inline]
    pub(super) fn is_usable(&self) -> bool {
        self.data && self.is_live()
    }

    /// Whether that does atomics.
    pub(super) fn does_atomics(&self) -> bool {
        self.reservation.queues.device.does_atomics()
    }
}

impl fmt::Debug for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rail").field(&self.queue_pair).finish()
    }
}

/// Rails that wait for a worker's interface.
pub(super) struct Retired {
    /// `None`: there is no interface any more, and the queues end too.
    rails: Mutex<Option<Vec<Rail>>>,
    any: AtomicBool,
    bell: Arc<EventFd>,
    reaper: SharedReaper,
}

impl fmt::Debug for Retired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Retired").field(&*self.rails.lock()).finish()
    }
}

impl Retired {
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(super) fn new(reaper: SharedReaper) -> io::Result<Self> {
        Ok(Self {
            rails: Mutex::new(Some(Vec::new())),
            any: AtomicBool::new(false),
            bell: Arc::new(EventFd::new()?),
            reaper,
        })
    }

    /// Rung when a rail is added. So may be what else the interface is to look at.
    pub(super) fn bell(&self) -> &Arc<EventFd> {
        &self.bell
    }

    /// Whether rails wait.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// The interface takes those that wait.
    pub(super) fn take(&self) -> Vec<Rail> {
        let mut rails = self.rails.lock();
        self.any.store(false, Relaxed);
        rails.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// There is no interface any more.
    pub(super) fn close(&self) {
        let rails = self.rails.lock().take().unwrap_or_default();
        if !rails.is_empty() {
            self.reaper.drop_later(rails);
        }
    }

    fn add(&self, rail: Rail) {
        let mut rails = self.rails.lock();
        match rails.as_mut() {
            Some(all) => {
                all.push(rail);
                self.any.store(true, Relaxed);
                drop(rails);
                self.bell.ring();
            }
            None => {
                drop(rails);
                self.reaper.drop_later(rail);
            }
        }
    }
}

/// Ends rails that no connection has been attached with.
pub(super) fn retire(rails: impl IntoIterator<Item = Rail>) {
    for rail in rails {
        let retired = Arc::clone(&rail.retired);
        retired.add(rail);
    }
}
