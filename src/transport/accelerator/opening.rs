//! Opening devices, and paths between them, on another thread: it may take hundreds of milliseconds.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    thread,
};

use super::{Bell, Vendor};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// What is to be opened: devices that are not yet, and a path between two.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) devices: Vec<u16>,
    pub(super) pair: Option<(u16, u16)>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Opened<H> {
    pub(super) homes: Vec<H>,
    pub(super) failed: Vec<(u16, Error)>,
    pub(super) pair: Option<(u16, u16)>,
}

/// Under way.
#[derive(Debug)]
pub(super) struct Opening<H>(Arc<Slot<H>>);

#[derive(Debug)]
struct Slot<H> {
    done: AtomicBool,
    opened: Mutex<Option<Opened<H>>>,
}

impl<H> Default for Opened<H> {
    fn default() -> Self {
        Self {
            homes: Vec::new(),
            failed: Vec::new(),
            pair: None,
        }
    }
}

impl<H: Send + 'static> Opening<H> {
    /// Begins. Rings the bell at the end.
    /// Errors: `Exhausted`: no thread.
    pub(super) fn start<V: Vendor<Home = H>>(
        vendor: &Arc<V>,
        bell: &Arc<Bell>,
        wanted: Wanted,
    ) -> Result<Self> {
        let slot = Arc::new(Slot {
            done: AtomicBool::new(false),
            opened: Mutex::new(None),
        });
        let (vendor, bell, theirs) = (Arc::clone(vendor), Arc::clone(bell), Arc::clone(&slot));
        let run = move || {
            let opened = open(&*vendor, &bell, &wanted);
            *theirs.opened.lock() = Some(opened);
            theirs.done.store(true, Release);
            // Whether or not anybody is parked: it is rare.
            bell.ring_always();
        };
        thread::Builder::new()
            .name("wharf-dev-open".to_owned())
            .spawn(run)
            .map_err(|error| Error::io("a thread to open a device", error))?;
        Ok(Self(slot))
    }

    /// Whether it has ended.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.0.done.load(Acquire)
    }

    /// What came of it, once it has ended.
    pub(super) fn take(self) -> Opened<H> {
        self.0.opened.lock().take().unwrap_or_default()
    }
}

/// Opens, and joins a pair. That two devices do not reach each other is no error: then copies go through the host.
pub(super) fn open<V: Vendor>(vendor: &V, bell: &Arc<Bell>, wanted: &Wanted) -> Opened<V::Home> {
    let mut opened = Opened {
        pair: wanted.pair,
        ..Opened::default()
    };
    for device in &wanted.devices {
        match vendor.open(*device, bell) {
            Ok(home) => opened.homes.push(home),
            Err(error) => {
                let text = format!("opening {}: {error}", V::memory(*device));
                let kind = match error.kind() {
                    ErrorKind::WouldBlock => ErrorKind::Io,
                    kind => kind,
                };
                opened.failed.push((*device, Error::new(kind, text)));
            }
        }
    }
    if let Some((one, other)) = wanted.pair
        && let Err(error) = vendor.join(one, other)
    {
        let (one, other) = (V::memory(one), V::memory(other));
        tracing::debug!(target: "wharf::device", "{one} and {other}: {error}");
    }
    opened
}
