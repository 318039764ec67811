//! Memory of other cards, of this process or another, that a card's engines reach: by its dma-buf, where the driver can (`driver/hlthunk/import`).
//!
//! A dma-buf, which is of a whole pool, is mapped once, whatever part of it is wanted by whom, and until nobody wants any. Its inode tells which it is. It keeps the other
//! card from being given back, and its pool from being freed, until then.
//!
//! # Safety
//! `lseek` and `fstat` of a descriptor that is borrowed, into a local.
#![allow(unsafe_code)]

use std::{
    collections::{BTreeMap, HashMap},
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::{Arc, Weak},
};

use super::{
    backend::{Backend, Mapping},
    heap::{Taken, next_id},
};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// What a card reaches.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Parts that are in use, by the engines' first address and the number.
    windows: Mutex<BTreeMap<(u64, u64), Taken>>,
    /// By device and inode. Held while one is mapped.
    mapped: Mutex<HashMap<(u64, u64), Weak<dyn Mapping>>>,
    state: Mutex<Known>,
}

/// What is known of the driver.
#[derive(Clone, Debug, Default)]
pub(super) enum Known {
    /// It was not asked.
    #[default]
    Nothing,
    /// It has done it.
    Can,
    /// It cannot, and why.
    Cannot(String),
}

impl Peers {
    /// The part that an address of the engines' lies in.
    pub(super) fn find(&self, own: u64) -> Option<Taken> {
        let windows = self.windows.lock();
        let mut before = windows.range(..=(own, u64::MAX)).rev();
        let found = before.find(|(_, window)| own - window.start < window.length);
        found.map(|(_, window)| *window)
    }

    /// Whether other cards are reached.
    pub(super) fn known(&self) -> Known {
        self.state.lock().clone()
    }

    /// Opens `length` bytes at `offset` of a dma-buf for the card that `backend` is of: the part, until [`Peers::close`], and what keeps it in reach. May take
    /// long.
    /// Errors: `Unsupported`: the card cannot; `Malformed`: the dma-buf is shorter; and what the kernel said.
    pub(super) fn open(
        &self,
        backend: &dyn Backend,
        dma_buf: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> Result<(Taken, Arc<dyn Mapping>)> {
        // Asked once: the driver does not change.
        if let Known::Cannot(why) = self.known() {
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let (inode, size) = measure(dma_buf)?;
        let wanted = offset.checked_add(length);
        // All dma-bufs tell; of anything else the driver says what it is.
        let size = size.or(wanted).unwrap_or(0);
        // A copy past its end would cost the card.
        if wanted.is_none_or(|end| end > size) {
            let text =
                format!("a dma-buf of {size} bytes does not hold {length} bytes from {offset} on");
            return Err(Error::new(ErrorKind::Malformed, text));
        }
        let mapped = {
            let mut mapped = self.mapped.lock();
            mapped.retain(|_, mapping| mapping.strong_count() > 0);
            match mapped.get(&inode).and_then(Weak::upgrade) {
                Some(mapping) => mapping,
                None => {
                    let made = backend.reach(dma_buf, size);
                    self.learn(&made);
                    let made: Arc<dyn Mapping> = Arc::from(made?);
                    mapped.insert(inode, Arc::downgrade(&made));
                    made
                }
            }
        };
        let no_address = || Error::new(ErrorKind::Io, "a mapping without an address");
        let start = mapped.translate(offset, length).ok_or_else(no_address)?;
        let part = Taken {
            start,
            length,
            id: next_id(),
        };
        self.windows.lock().insert((start, part.id), part);
        Ok((part, mapped))
    }

    /// No copy uses the part any more.
    pub(super) fn close(&self, part: &Taken) {
        self.windows.lock().remove(&(part.start, part.id));
    }

    fn learn<T>(&self, made: &Result<T>) {
        let known = match made {
            Ok(_) => Known::Can,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                Known::Cannot(error.to_string())
            }
            // Of this once.
            Err(_) => return,
        };
        *self.state.lock() = known;
    }
}

/// Which dma-buf it is, and how long, if it tells.
fn measure(dma_buf: BorrowedFd<'_>) -> Result<((u64, u64), Option<u64>)> {
    let fd = dma_buf.as_raw_fd();
    // SAFETY: all zeros is a value.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: see the head of the file.
    if unsafe { libc::fstat(fd, &raw mut stat) } < 0 {
        let error = io::Error::last_os_error();
        return Err(Error::io("asking which dma-buf this is", error));
    }
    // SAFETY: numbers alone.
    let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    Ok(((stat.st_dev, stat.st_ino), u64::try_from(size).ok()))
}
