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

use parking_lot::Mutex;

use super::{home::Home, shared::Shared, words::Bell};
use crate::{
    driver::cuda::CudaContext,
    error::{Error, ErrorKind, Result},
};

/// What is to be opened: devices that are not yet, and a path between two.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) devices: Vec<u16>,
    pub(super) pair: Option<(u16, u16)>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) homes: Vec<Home>,
    pub(super) failed: Vec<(u16, Error)>,
    pub(super) pair: Option<(u16, u16)>,
}

/// Under way.
#[derive(Debug)]
pub(super) struct Opening(Arc<Slot>);

#[derive(Debug, Default)]
struct Slot {
    done: AtomicBool,
    opened: Mutex<Option<Opened>>,
}

impl Opening {
    /// Begins. Rings the bell at the end.
    ///
    /// # Errors
    /// `Exhausted`: no thread.
    pub(super) fn start(shared: &Arc<Shared>, bell: &Arc<Bell>, wanted: Wanted) -> Result<Self> {
        let slot = Arc::new(Slot::default());
        let (shared, bell, theirs) = (Arc::clone(shared), Arc::clone(bell), Arc::clone(&slot));
        let run = move || {
            let opened = open(&shared, &bell, &wanted);
            *theirs.opened.lock() = Some(opened);
            theirs.done.store(true, Release);
            // Whether or not anybody is parked: it is rare.
            bell.fd.ring();
        };
        thread::Builder::new()
            .name("wharf-cuda-open".to_owned())
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
    pub(super) fn take(self) -> Opened {
        self.0.opened.lock().take().unwrap_or_default()
    }
}

/// Opens, and joins a pair. That two devices do not reach each other is no error: then the driver copies through the host.
pub(super) fn open(shared: &Shared, bell: &Arc<Bell>, wanted: &Wanted) -> Opened {
    let mut opened = Opened {
        pair: wanted.pair,
        ..Opened::default()
    };
    for ordinal in &wanted.devices {
        let home = shared
            .context(*ordinal)
            .and_then(|context| Home::open(context, bell));
        match home {
            Ok(home) => opened.homes.push(home),
            Err(error) => {
                let text = format!("opening cuda:{ordinal}: {error}");
                let kind = match error.kind() {
                    ErrorKind::WouldBlock => ErrorKind::Io,
                    kind => kind,
                };
                opened.failed.push((*ordinal, Error::new(kind, text)));
            }
        }
    }
    if let Some((one, other)) = wanted.pair {
        let joined = shared
            .context(one)
            .and_then(|one| Ok((one, shared.context(other)?)))
            .and_then(|(one, other)| {
                join(&one, &other)?;
                join(&other, &one)
            });
        if let Err(error) = joined {
            tracing::debug!(target: "wharf::cuda", "cuda:{one} and cuda:{other}: {error}");
        }
    }
    opened
}

/// Lets one device reach the other's memory, if it can.
fn join(one: &CudaContext, other: &CudaContext) -> Result<()> {
    if one.device().can_access(&other.device())? {
        one.enter()?.enable_peer(other)?;
    }
    Ok(())
}
