//! Queue pairs by which peers read and write memory of this side.
//!
//! A registration that cannot be ended leaves a key with which peers go on to reach the memory, whoever has that by then. The memory is its
//! owner's and cannot be kept, so it is the ways to it that end: all such queue pairs of the device, and it gets no others.

use std::sync::{Arc, Weak};

use crate::{
    driver::verbs::QueuePair,
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// So few are never looked through.
const LEAST: usize = 16;

/// Those of one device.
#[derive(Debug)]
pub(crate) struct Served {
    /// `None`: it serves peers no more.
    all: Mutex<Option<All>>,
}

#[derive(Debug, Default)]
struct All {
    some: Vec<Weak<QueuePair>>,
    /// Once there are so many, those that are gone are taken out: twice as many as were left the last time, so that each costs little.
    most: usize,
}

impl Default for Served {
    fn default() -> Self {
        Self {
            all: Mutex::new(Some(All::default())),
        }
    }
}

impl Served {
    /// One more, before it is joined to a peer's.
    /// Errors: `DeviceLost`: the device serves peers no more.
    pub(super) fn add(&self, queue_pair: &Arc<QueuePair>) -> Result<()> {
        let mut all = self.all.lock();
        let Some(all) = all.as_mut() else {
            let text =
                "the device could not end a registration: peers reach no memory by it any more";
            return Err(Error::new(ErrorKind::DeviceLost, text));
        };
        if all.some.len() >= all.most {
            all.some.retain(|one| one.strong_count() > 0);
            all.most = 2 * all.some.len().max(LEAST);
        }
        all.some.push(Arc::downgrade(queue_pair));
        Ok(())
    }

    /// Ends one that nobody else has; when this returns it is gone.
    pub(super) fn end(&self, queue_pair: Arc<QueuePair>) {
        // `shut` holds others' meanwhile.
        let _all = self.all.lock();
        drop(queue_pair);
    }

    /// Ends all; what is under way there fails. When it returns peers reach nothing.
    #[cold]
    pub(super) fn shut(&self) {
        // Taken under the lock, ended under it: who comes second returns when that is done.
        let mut all = self.all.lock();
        for queue_pair in all.take().unwrap_or_default().some {
            if let Some(queue_pair) = queue_pair.upgrade()
                && let Err(error) = queue_pair.to_error()
            {
                // A device that is gone reaches nothing either.
                tracing::error!(target: "wharf::verbs", %error, "a queue pair that peers write by cannot be ended");
            }
        }
    }
}
