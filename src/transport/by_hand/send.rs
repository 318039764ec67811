//! What leaves: operations part by part, and answers.
//!
//! # Safety
//! What is lent to a link or a device is memory of an operation in the table, which keeps it until the link has said that it is done with it, or was dropped
//! ([`state`](super::state)).
#![allow(unsafe_code)]

use super::{
    state::{Operation, Out, Part, State, Work},
    wire::{self, PUT_PREFIX, Place},
};
use crate::{
    error::{Error, ErrorKind},
    transport::{Link, LocalRange, RawSlice, RemoteRange, SendError, Zcopy},
    types::{Access, LinkId},
};

/// From so many bytes on they are lent to a link that takes them so.
const LENT: usize = 8 << 10;
/// Bytes in one message, at most: what answers wait behind.
const PIECE: usize = 256 << 10;

/// Bytes of a get that one message brings, at most: they are copied for it.
const ANSWER: usize = 64 << 10;

/// What became of one step.
enum Step {
    Sent,
    /// A part was sent, and there are more.
    More,
    /// Nothing can be asked before something was answered.
    Waits,
}

/// Sends what can be sent on one link. Whether anything was.
pub(super) fn pump(state: &mut State, id: LinkId, link: &mut dyn Link) -> bool {
    let (mut sent, mut waiting) = (false, 0);
    while let Ok(endpoint) = state.endpoint(id)
        && waiting < endpoint.out.len()
        && let Some(mut out) = endpoint.out.pop_front()
    {
        let step = step(state, id, link, &mut out);
        let Ok(endpoint) = state.endpoint(id) else {
            break;
        };
        match step {
            Ok(Step::Sent) => (sent, waiting) = (true, 0),
            // The others have their turn between two parts.
            Ok(Step::More) => {
                (sent, waiting) = (true, 0);
                endpoint.out.push_back(out);
            }
            Ok(Step::Waits) => {
                waiting += 1;
                endpoint.out.push_back(out);
            }
            Err(SendError::Full) => {
                endpoint.out.push_front(out);
                break;
            }
            Err(SendError::Failed(error)) => {
                state.fail(id, error);
                break;
            }
        }
    }
    sent
}

fn step(
    state: &mut State,
    id: LinkId,
    link: &mut dyn Link,
    out: &mut Out,
) -> Result<Step, SendError> {
    match out {
        Out::Operation(token) => operation(state, id, link, *token),
        Out::Bytes { token, rest } => bytes(state, id, link, *token, rest),
        Out::Done {
            token,
            code,
            shared,
        } => {
            link.am_short(wire::DONE, *token, &[*code, (*shared).into()])?;
            settled(state, id);
            Ok(Step::Sent)
        }
        Out::Segment(segment) => {
            if let Some(fd) = segment.fd() {
                link.share(segment.id(), fd, segment.mapping().len() as u64)?;
            }
            Ok(Step::Sent)
        }
    }
}

/// An answer has left.
fn settled(state: &mut State, id: LinkId) {
    if let Ok(endpoint) = state.endpoint(id) {
        endpoint.owed -= 1;
    }
}

/// A part of what the peer gets. The region may have been taken back since the last.
fn bytes(
    state: &mut State,
    id: LinkId,
    link: &mut dyn Link,
    token: u64,
    rest: &mut Place,
) -> Result<Step, SendError> {
    let piece = ANSWER.min(link.attributes().max_bcopy) as u64;
    let part = Place {
        length: piece.min(rest.length),
        ..*rest
    };
    let mut copied = vec![0; part.length as usize];
    let read = state
        .exposed(&part, Access::READ)
        .and_then(|exposed| exposed.read(part.offset as usize, &mut copied));
    if read.is_err() {
        link.am_short(wire::DONE, token, &[wire::code(&read), 0])?;
        settled(state, id);
        return Ok(Step::Sent);
    }
    link.am_bcopy(wire::BYTES, token, &[], &copied)?;
    rest.offset += part.length;
    rest.length -= part.length;
    if rest.length > 0 {
        return Ok(Step::More);
    }
    settled(state, id);
    Ok(Step::Sent)
}

/// A part of an operation of this end.
fn operation(
    state: &mut State,
    id: LinkId,
    link: &mut dyn Link,
    token: u64,
) -> Result<Step, SendError> {
    let number = state.number();
    let Some(operation) = state.operations.get_mut(&token) else {
        return Ok(Step::Sent);
    };
    // What has failed sends no more of it.
    if operation.result.is_err() {
        return Ok(Step::Sent);
    }
    if operation.by_devices {
        let begun = by_devices(operation, link, number);
        return match begun {
            Err(SendError::Failed(error)) if error.kind() == ErrorKind::Unsupported => {
                operation.result = Err(error);
                Ok(Step::Sent)
            }
            Err(error) => Err(error),
            Ok(pending) => {
                if pending {
                    operation.parts += 1;
                    state.parts.insert(number, Part::Moved(token));
                }
                Ok(operation_step(operation))
            }
        };
    }
    let endpoint = state.endpoints.get_mut(&id);
    let Some(endpoint) = endpoint.filter(|endpoint| endpoint.asked < wire::WINDOW) else {
        return Ok(Step::Waits);
    };
    if by_messages(operation, link, token, number)? {
        operation.lent += 1;
        state.parts.insert(number, Part::Lent(token));
    }
    operation.parts += 1;
    endpoint.asked += 1;
    Ok(operation_step(operation))
}

fn operation_step(operation: &Operation) -> Step {
    match operation.taken < operation.length {
        true => Step::More,
        false => Step::Sent,
    }
}

/// Asks the peer for the next part. Whether the link keeps its bytes, until it tells of `number`.
fn by_messages(
    operation: &mut Operation,
    link: &mut dyn Link,
    token: u64,
    number: u64,
) -> Result<bool, SendError> {
    let mut place = operation.target.place;
    let all = match &operation.work {
        Work::Short(bytes) => bytes.as_slice(),
        Work::Put(buffer) => buffer.as_run().unwrap_or_default(),
        Work::Get(_) => {
            place.length = operation.length as u64;
            link.am_short(wire::GET, token, &place.get())?;
            operation.taken = operation.length;
            return Ok(false);
        }
        Work::Open(_) => {
            link.am_short(wire::OPEN, token, &place.open())?;
            operation.taken = operation.length;
            return Ok(false);
        }
    };
    let attributes = link.attributes();
    place.offset += operation.taken as u64;
    let (prefix, rest) = (place.put(), &all[operation.taken..]);
    if PUT_PREFIX + rest.len() <= attributes.max_short {
        link.am_short(wire::PUT, token, &[&prefix, rest].concat())?;
        operation.taken += rest.len();
        return Ok(false);
    }
    if rest.len() >= LENT && attributes.max_zcopy >= LENT {
        let length = rest.len().min(PIECE).min(attributes.max_zcopy);
        let payload = RawSlice {
            address: rest.as_ptr(),
            length,
        };
        // SAFETY: bytes of the operation's buffer, which nobody writes, and which it keeps while parts of it are lent.
        let sent = unsafe { link.am_zcopy(wire::PUT, token, &prefix, payload, number) }?;
        operation.taken += length;
        return Ok(sent == Zcopy::Pending);
    }
    let length = rest.len().min(PIECE).min(attributes.max_bcopy - PUT_PREFIX);
    link.am_bcopy(wire::PUT, token, &prefix, &rest[..length])?;
    operation.taken += length;
    Ok(false)
}

/// Has a device move the next part. Whether it tells of `number` when that is done.
fn by_devices(
    operation: &mut Operation,
    link: &mut dyn Link,
    number: u64,
) -> Result<bool, SendError> {
    let unsupported = |text| SendError::Failed(Error::new(ErrorKind::Unsupported, text));
    let one_sided = link
        .one_sided()
        .ok_or_else(|| unsupported("the link has no devices any more"))?;
    let attributes = one_sided.attributes();
    let (taken, rest) = (operation.taken, operation.length - operation.taken);
    let target = &operation.target;
    let remote = RemoteRange {
        address: target.address + taken as u64,
        keys: &target.devices,
    };
    if let Work::Short(bytes) = &operation.work {
        let sent = one_sided.put_short(bytes, remote, number)?;
        operation.taken = operation.length;
        return Ok(sent == Zcopy::Pending);
    }
    let keys = operation
        .keys
        .as_ref()
        .ok_or_else(|| unsupported("the local memory is not registered"))?;
    let local = |address: u64, longest: usize| LocalRange {
        address: address + taken as u64,
        length: rest.min(longest),
        keys: keys.local(),
    };
    let (range, sent) = match &mut operation.work {
        Work::Put(buffer) => {
            let range = local(buffer.address() as u64, attributes.max_put);
            // SAFETY: bytes of the operation's buffer, which it keeps, with the registration, while parts of it are under way.
            (range.length, unsafe {
                one_sided.put(range, remote, number)
            }?)
        }
        Work::Get(buffer) => {
            let range = local(buffer.address() as u64, attributes.max_get);
            // SAFETY: as above; nobody else has the buffer.
            (range.length, unsafe {
                one_sided.get(range, remote, number)
            }?)
        }
        Work::Short(_) | Work::Open(_) => return Err(unsupported("nothing for devices to do")),
    };
    operation.taken += range;
    Ok(sent == Zcopy::Pending)
}
