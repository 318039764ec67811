//! Device memory: the engines that copy for this worker, and transfers that stop in pinned host memory because no path reaches both ends.
//!
//! ```text
//! send, get from     device ─engine─▶ fragment ─▶ link            fragments of one transfer are copied, under way and
//! receive, get into  link ─▶ fragment ─engine─▶ device            landing at the same time: a pipe of four
//! copy               device ─engine─▶ device, or by a fragment
//! ```
//!
//! Bytes for device memory are pulled: the receiver asks for as many as it has a fragment for, so that a peer can never send what there is no
//! room for. A send from device memory is always announced, whatever its length: its place among other messages is that of the announcement.
//!
//! An operation owns what engines copy for it: its entry stays in the table, whatever ended it, until the last copy was reported
//! (`Staged::copies`). Nothing here blocks: engines are opened, and brought to rest, on threads that may.
//!
//! | file | holds |
//! |---|---|
//! | `engines` | the engines of a worker, and what they report |
//! | `which` | which accelerator is for which memory |
//! | `order` | the order that a copy keeps with the program's streams |
//! | `pool` | fragments |
//! | `pipe` | the parts of a transfer that are under way |
//! | `local`, `within`, `write`, `route`, `blocks` | what copies, transfers to oneself, streams, ways to a peer's device memory and blocks have of it |
//!
//! What is done with them stands above, in [`movers`](crate::worker::movers): `engines`, `order`, `pipe`, `local`, `within`, `write`, `route`,
//! `device_blocks`, and `pull` (into device memory: receives, gets, puts of a peer), `serve` (out of it: sends, and gets of a peer) and `put` (puts out of
//! it, into host memory of a peer). Opening an engine, and bringing all to rest, is an errand (`worker/errands.rs`).
//!
//! Comes in: operations whose buffers are on a device. Goes out: copies to engines, fragments to links. Uses `transport::accelerator`.
//! Tests: `tests/device/`.

pub(in crate::worker) mod blocks;
#[cfg(test)]
mod crowded;
pub(in crate::worker) mod engines;
#[cfg(test)]
pub(in crate::worker) mod hostile;
pub(in crate::worker) mod local;
pub(in crate::worker) mod order;
pub(in crate::worker) mod pipe;
pub(in crate::worker) mod pool;
pub(in crate::worker) mod route;
pub(in crate::worker) mod which;
pub(in crate::worker) mod within;
pub(in crate::worker) mod write;

pub(crate) use engines::{Devices, Open};
pub(crate) use local::LocalCopy;
pub(crate) use order::{Order, unknown};
pub(crate) use pipe::Staged;
pub(crate) use pool::Fragment;
pub(crate) use route::Lent;
pub(crate) use within::Own;
pub(crate) use write::DeviceWrite;

use crate::{
    Context,
    error::{Error, ErrorKind, Operation, Result},
    memory::{Buffer, BufferMut},
    types::MemoryType,
    worker::{device::which::find, peer::Peer},
};

/// Whether memory of these types, which the host does not reach, can be moved: all of it by one accelerator.
/// Errors: `Unsupported`.
#[cold]
pub(crate) fn admit(context: &Context, types: &[MemoryType], operation: Operation) -> Result<()> {
    let found = find(context, types).map(drop);
    found.map_err(|error| error.during(operation))
}

/// The same for a copy within the process: each part of it by some accelerator.
/// Errors: `Unsupported`.
pub(crate) fn admit_each(
    context: &Context,
    types: &[MemoryType],
    operation: Operation,
) -> Result<()> {
    let mut types = types.iter();
    types.try_for_each(|held| admit(context, &[*held], operation))
}

/// The same for what is sent to a peer.
/// Errors: `Unsupported`.
#[inline]
pub(crate) fn admit_source(
    context: &Context,
    peer: &Peer,
    buffer: &Buffer,
    unstaged: bool,
    operation: Operation,
) -> Result<()> {
    if !buffer.is_on_device() {
        return Ok(());
    }
    admit(context, &buffer.device_types(), operation)?;
    if !unstaged && *context.config().staging {
        return Ok(());
    }
    let direct = peer.reaches_devices() || peer.has_rails();
    admit_staging(context, direct, operation)?;
    match direct {
        true => Ok(()),
        false => Err(forbidden(true).during(operation)),
    }
}

/// The same for what is received into.
/// Errors: `Unsupported`.
#[inline]
pub(crate) fn admit_target(
    context: &Context,
    buffer: &BufferMut,
    operation: Operation,
) -> Result<()> {
    match buffer.is_on_device() {
        false => Ok(()),
        true => admit(context, &buffer.device_types(), operation),
    }
}

/// Refuses at once what would stop in host memory for certain, where that is forbidden. `direct`: it may not have to. What is not known
/// before it begins is refused when it takes the first fragment.
/// Errors: `Unsupported`.
pub(crate) fn admit_staging(context: &Context, direct: bool, operation: Operation) -> Result<()> {
    match direct || *context.config().staging {
        true => Ok(()),
        false => Err(forbidden(false).during(operation)),
    }
}

/// The same for one operation that may not stop there, between memories on these sides of which a device has some. `reaches`: there may be a way
/// between devices.
/// Errors: `Unsupported`.
#[cold]
pub(crate) fn admit_unstaged(
    (out, into): (bool, bool),
    reaches: bool,
    operation: Operation,
) -> Result<()> {
    match (out, into) {
        (false, false) => Ok(()),
        (true, true) if reaches => Ok(()),
        _ => Err(forbidden(true).during(operation)),
    }
}

#[cold]
pub(in crate::worker) fn forbidden(by_operation: bool) -> Error {
    let who = match by_operation {
        true => "operation",
        false => "context",
    };
    let text = format!(
        "no path reaches both ends, and this {who} forbids to stop in host memory between them"
    );
    Error::new(ErrorKind::Unsupported, text)
}
