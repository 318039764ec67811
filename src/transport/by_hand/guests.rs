//! Peers that reach exposed memory by themselves, for who takes it back.

use std::sync::{Arc, Weak};

use crate::{
    memory::{
        keeper,
        region::{Guest, RegionTable, RegionWatcher},
    },
    transport::Pair,
    types::LinkId,
    util::lock::Mutex,
};

/// The peers of a driver, and those whose link has ended and that have not been seen outside since.
#[derive(Debug, Default)]
pub(super) struct Guests {
    peers: Mutex<Vec<(LinkId, Arc<Pair>)>>,
}

impl Guests {
    /// Those of the regions of a table.
    pub(super) fn of(table: &RegionTable) -> Arc<Self> {
        let guests = Arc::new(Self::default());
        let watcher: Weak<Self> = Arc::downgrade(&guests);
        table.watch(watcher);
        guests
    }

    pub(super) fn add(&self, link: LinkId, pair: &Arc<Pair>) {
        self.peers.lock().push((link, Arc::clone(pair)));
    }

    /// The link has ended. Its peer is let at nothing from here on; it is known until it is outside.
    pub(super) fn end(&self, link: LinkId) {
        let mut peers = self.peers.lock();
        peers.retain(|(of, pair)| {
            if *of == link {
                pair.end();
            }
            !pair.is_over_here() || !pair.is_peer_outside()
        });
    }

    /// Ends all, and stays until all are outside: memory that is taken back meanwhile waits for them.
    pub(super) fn end_all(self: &Arc<Self>) {
        let all_outside = |guests: &Self| {
            let mut peers = guests.peers.lock();
            peers.retain(|(_, pair)| !pair.is_peer_outside());
            peers.is_empty()
        };
        self.peers.lock().iter().for_each(|(_, pair)| pair.end());
        if !all_outside(self) {
            let guests = Arc::clone(self);
            keeper::keep(Box::new(move || all_outside(&guests)));
        }
    }
}

impl RegionWatcher for Guests {
    fn revoke(&self, slot: u32, generation: u64) -> Vec<Box<dyn Guest>> {
        let peers = self.peers.lock();
        let inside = peers.iter().filter_map(|(_, pair)| {
            let may_be = pair.take_back(slot, generation) && !pair.is_peer_outside();
            may_be.then(|| Box::new(Inside(Arc::clone(pair))) as Box<dyn Guest>)
        });
        inside.collect()
    }
}

/// A peer that was inside when memory was taken back.
struct Inside(Arc<Pair>);

impl Guest for Inside {
    fn is_outside(&self) -> bool {
        self.0.is_peer_outside()
    }

    /// Nothing more is lent to it. What it may still do reaches no memory that is given back, see [`Region::unexpose`](crate::Region::unexpose).
    fn cut(&self) {
        self.0.end();
    }
}
