//! Copies that the engines of one card cannot make by themselves: from or to host memory that cannot be pinned, and between two cards.
//!
//! Between two cards, one writes into the other's memory by itself where the driver lets it (`peers`). Else, as for the host's memory, the bytes go through pages of
//! this room's own, of which there are two pieces: one is filled while the other is emptied.
//!
//! # Safety
//! The user's memory is touched while it is known that the copy was not given up (`Alive`). Memory that an engine may still touch is never unmapped.
#![allow(unsafe_code)]

use std::{mem::ManuallyDrop, ops::Range, os::fd::AsFd as _, ptr, sync::Arc};

use super::{
    backend::Mapping,
    card::{OpenCard, Pending},
    peers::Known,
    window::Window,
};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::pages::Anonymous,
    transport::accelerator::{
        Route,
        staging::{Alive, forbidden},
    },
};

/// Bytes of a piece.
pub(super) const PIECE: u64 = 1 << 20;
/// Pieces after which it is asked whether the copy was given up: that waits for so many.
const BATCH: u64 = 8;
/// From this length on one card writes into the other's memory: that has to be mapped before, all of a pool. Not measured on cards.
pub(super) const DIRECT_FROM: u64 = 4 << 20;
/// Bytes of a submission that does.
const DIRECT_PIECE: u64 = 64 << 20;

/// One end.
pub(super) enum Spot {
    /// Host memory.
    Host(u64),
    /// A card's, as its engines have it.
    Card(Arc<OpenCard>, u64),
}

/// A copy.
pub(super) struct Staged {
    pub(super) from: Spot,
    pub(super) to: Spot,
    pub(super) length: u64,
    /// It fails where it would go through the host.
    pub(super) unstaged: bool,
}

/// That one card writes into the other's memory by itself, as far as is known; or why it does not. `unstaged`: where nothing may stop it is worth a try at any
/// length.
pub(super) fn is_direct(known: &Known, length: u64, unstaged: bool) -> Result<(), String> {
    match known {
        Known::Cannot(why) => Err(why.clone()),
        _ if length < DIRECT_FROM && !unstaged => Err(format!("shorter than {DIRECT_FROM} bytes")),
        Known::Nothing | Known::Can => Ok(()),
    }
}

/// Copies it, by one card alone or piece by piece. May take long.
/// Errors: `Exhausted`: no memory for it; `Canceled`: it was given up; `Unsupported`: it may not go through the host; `DeviceLost`, and what the library said.
pub(super) fn stage(copy: &Staged, alive: &Alive) -> Result<()> {
    if let (Spot::Card(from, at), Spot::Card(to, there)) = (&copy.from, &copy.to)
        && is_direct(&from.peers().known(), copy.length, copy.unstaged).is_ok()
    {
        match window(from, to, *there, copy.length) {
            Ok(window) => return direct(copy, alive, from, *at, &window),
            Err(error) if error.kind() == ErrorKind::DeviceLost => return Err(error),
            Err(error) => {
                tracing::debug!(target: "wharf::gaudi", "a copy between cards is staged: {error}");
            }
        }
    }
    match copy.unstaged {
        true => Err(forbidden()),
        false => through_the_host(copy, alive),
    }
}

/// Memory of `to` in reach of `from`.
fn window(from: &Arc<OpenCard>, to: &OpenCard, there: u64, length: u64) -> Result<Window> {
    let made = to.export_own(there)?;
    Window::open(from, made.fd.as_fd(), made.offset, length)
}

/// One card writes into the other's memory.
fn direct(copy: &Staged, alive: &Alive, card: &OpenCard, from: u64, window: &Window) -> Result<()> {
    let mut done = 0;
    while done < copy.length {
        let length = DIRECT_PIECE.min(copy.length - done);
        let (to, from) = (window.start() + done, from + done);
        let copied = alive.touch(|| {
            // SAFETY: the copy is alive: whoever submitted it vouches for both ends; the window stays. A copy that does not end costs the card.
            unsafe { card.copy(Route::Across, to, from, length) }
        });
        if let Err(error) = &copied
            && error.kind() == ErrorKind::DeadlineExceeded
        {
            card.completer().fail(error.clone());
        }
        copied?;
        done += length;
    }
    Ok(())
}

/// Copies piece by piece through pages of its own.
fn through_the_host(copy: &Staged, alive: &Alive) -> Result<()> {
    alive.stops(copy.length);
    // Two pieces, as long as there is something for the second.
    let room = copy.length.min(2 * PIECE);
    let pages = Anonymous::new(room as usize)
        .map_err(|error| Error::io("pages to stage a copy in", error))?;
    pages
        .dont_fork()
        .map_err(|error| Error::io("keeping pages out of children", error))?;
    let host = pages.as_ptr().expose_provenance() as u64;
    let map = |spot: &Spot| match spot {
        Spot::Host(_) => Ok(None),
        Spot::Card(card, _) => card.backend().map(host, room).map(Some),
    };
    let block = Block {
        mappings: (map(&copy.from)?, map(&copy.to)?),
        pages,
        host,
    };
    let result = pieces(copy, alive, &block);
    if let Err(error) = &result
        && error.kind() == ErrorKind::DeadlineExceeded
    {
        // An engine may touch the pages until its card is closed.
        for spot in [&copy.from, &copy.to] {
            if let Spot::Card(card, _) = spot {
                card.completer().fail(error.clone());
            }
        }
        let _ = ManuallyDrop::new(block);
    }
    result
}

/// For an end on a card.
type Mapped = Option<Box<dyn Mapping>>;

struct Block {
    /// For the source's card and the target's.
    mappings: (Mapped, Mapped),
    pages: Anonymous,
    host: u64,
}

fn pieces(copy: &Staged, alive: &Alive, block: &Block) -> Result<()> {
    let mut done = 0;
    while done < copy.length {
        let end = copy.length.min(done + BATCH * PIECE);
        alive.touch(|| {
            let mut emptied = None;
            let filled = batch(copy, block, done..end, &mut emptied);
            // Before anybody else may touch the ends, and before the pages go, whatever happened.
            let last = emptied.map_or(Ok(()), Pending::wait);
            match (&filled, &last) {
                // The worse of both: something goes on.
                (Err(_), Err(error)) if error.kind() == ErrorKind::DeadlineExceeded => last,
                _ => filled.and(last),
            }
        })?;
        done = end;
    }
    Ok(())
}

/// Fills a piece while the one before is emptied. The last one is left being emptied.
fn batch(
    copy: &Staged,
    block: &Block,
    bytes: Range<u64>,
    emptied: &mut Option<Pending>,
) -> Result<()> {
    for done in bytes.clone().step_by(PIECE as usize) {
        let at = (done, done % (2 * PIECE), PIECE.min(bytes.end - done));
        if let Some(filling) = move_piece(&copy.from, block, at, true)? {
            filling.wait()?;
        }
        if let Some(before) = emptied.take() {
            before.wait()?;
        }
        *emptied = move_piece(&copy.to, block, at, false)?;
    }
    Ok(())
}

/// Copies between one end, from `done` on, and the pages, from `room` on; what an engine does is waited for by the caller.
fn move_piece(
    spot: &Spot,
    block: &Block,
    (done, room, length): (u64, u64, u64),
    load: bool,
) -> Result<Option<Pending>> {
    let (card, at) = match spot {
        Spot::Host(start) => {
            let user = ptr::with_exposed_provenance_mut::<u8>((start + done) as usize);
            // SAFETY: within the pages, which have two pieces, or one and nothing behind it.
            let pages = unsafe { block.pages.as_ptr().add(room as usize) };
            let (to, from) = if load { (pages, user) } else { (user, pages) };
            // SAFETY: the copy is alive: whoever submitted it vouches for its end; this piece is as long, and no engine uses it now.
            unsafe { ptr::copy_nonoverlapping(from, to, length as usize) };
            return Ok(None);
        }
        Spot::Card(card, start) => (card, start + done),
    };
    let mapping = match load {
        true => &block.mappings.0,
        false => &block.mappings.1,
    };
    let here = mapping
        .as_ref()
        .and_then(|mapping| mapping.translate(block.host + room, length));
    let here = here.ok_or_else(|| Error::new(ErrorKind::Io, "a mapping without an address"))?;
    // SAFETY: the copy is alive, and the pages stay until the card is done with them, or for good. Whoever gives the copy up waits for the card's end.
    let begun = unsafe {
        match load {
            true => card.begin_copy(Route::ToHost, here, at, length),
            false => card.begin_copy(Route::ToDevice, at, here, length),
        }
    };
    begun.map(Some)
}
