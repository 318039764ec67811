//! How bytes move: what a call checks, and what a stream's thread does later.
//!
//! | source → target | in the call | later |
//! |---|---|---|
//! | pinned, device, managed → the same | queued | source read when its turn comes |
//! | pageable → device | queued; the source is read in the call or later, by the setting `pageable` | |
//! | anything → pageable | queued, and waited for | |

use std::sync::Arc;

use wharf_emulated_common::backing;

use crate::{
    abi::{Outcome, Status},
    device::Engine,
    driver::driver,
    gate::Call,
    memory::{Class, Place, illegal},
    settings,
    stream::{Op, Stream},
};

/// Which sides a copy function demands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    /// Whatever the addresses are.
    Any,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

/// What a copy call queues. `wait`: it returns when the bytes have moved.
pub(crate) fn submit(
    call: &Call,
    stream: &Arc<Stream>,
    direction: Direction,
    (to, from, len): (u64, u64, u64),
    wait: bool,
) -> Outcome {
    if len == 0 {
        return Ok(());
    }
    let (target, source) = {
        let memory = driver().memory.lock();
        (memory.classify(to, len)?, memory.classify(from, len)?)
    };
    let (to_device, from_device) = match direction {
        Direction::Any => (target.is_device(), source.is_device()),
        Direction::HostToDevice => (true, source.is_device()),
        Direction::DeviceToHost => (target.is_device(), true),
        Direction::DeviceToDevice => (true, true),
    };
    if (to_device && !target.is_device() && target != Class::Pinned)
        || (from_device && !source.is_device() && source != Class::Pinned)
    {
        return Err(Status::INVALID_VALUE);
    }
    let mut from = Place::At(from);
    if source == Class::Pageable
        && snapshots()
        && let Place::At(address) = from
    {
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| Status::INVALID_VALUE)?];
        let taken = bytes.as_mut_ptr().expose_provenance() as u64;
        backing::copy_host(taken, address, len).map_err(|_| Status::INVALID_VALUE)?;
        from = Place::Taken(bytes);
    }
    if let Some(status) = call.late {
        stream.push(Op::Break(status))?;
    }
    let to = Place::At(to);
    let place = stream.push(Op::Copy { to, from, len })?;
    if wait || target == Class::Pageable {
        stream.wait(place)?;
    }
    Ok(())
}

/// Whether the next pageable source is read in the call.
fn snapshots() -> bool {
    match settings::PAGEABLE.get() {
        0 => false,
        1 => true,
        _ => driver().number().is_multiple_of(2),
    }
}

/// Moves the bytes. An address that is not good any more is what a device calls an illegal address.
pub(crate) fn execute(to: &Place, from: &Place, len: u64, device: usize) -> Outcome {
    let spans = |place: &Place| match place {
        Place::At(address) => driver().memory.lock().spans(*address, len, device),
        Place::Taken(_) => Ok(None),
    };
    let targets = spans(to)?;
    let sources = spans(from)?;
    let Place::At(to) = *to else {
        return Err(Status::INVALID_VALUE);
    };
    let engine = match (&sources, &targets) {
        (None, Some(_)) => Engine::In,
        (Some(_), None) => Engine::Out,
        _ => Engine::Across,
    };
    driver().devices[device].pass(engine, len);
    let moved = match (sources, targets) {
        (None, Some(targets)) => targets.iter().try_fold(0, |done, span| {
            match from {
                Place::At(from) => span
                    .backing
                    .write_from(span.offset, from + done, span.len)?,
                Place::Taken(bytes) => {
                    let piece = &bytes[done as usize..(done + span.len) as usize];
                    span.backing.write(span.offset, piece)?;
                }
            }
            Ok(done + span.len)
        }),
        (Some(sources), None) => sources.iter().try_fold(0, |done, span| {
            span.backing.read_to(span.offset, to + done, span.len)?;
            Ok(done + span.len)
        }),
        (Some(sources), Some(targets)) => {
            let mut done = 0;
            let mut moved: std::io::Result<u64> = Ok(0);
            while done < len && moved.is_ok() {
                let (source, skipped) = at(&sources, done);
                let (target, passed) = at(&targets, done);
                let count = (source.len - skipped).min(target.len - passed);
                moved = source
                    .backing
                    .copy_to(
                        source.offset + skipped,
                        &target.backing,
                        target.offset + passed,
                        count,
                    )
                    .map(|()| 0);
                done += count;
            }
            moved
        }
        (None, None) => match from {
            Place::At(from) => backing::copy_host(to, *from, len).map(|()| len),
            Place::Taken(bytes) => {
                let from = bytes.as_ptr().expose_provenance() as u64;
                backing::copy_host(to, from, len).map(|()| len)
            }
        },
    };
    moved.map(|_| ()).map_err(|error: std::io::Error| {
        let from = match from {
            Place::At(from) => *from,
            Place::Taken(_) => 0,
        };
        illegal(device, to, len, format_args!("from {from:#x}: {error}"))
    })
}

/// The span that holds byte `index`, and where in it.
fn at(spans: &[crate::memory::Span], index: u64) -> (&crate::memory::Span, u64) {
    let mut start = 0;
    for span in spans {
        if index < start + span.len {
            return (span, index - start);
        }
        start += span.len;
    }
    unreachable!("the spans of a range cover it")
}

/// Writes bytes at an address, device or host.
pub(crate) fn write(to: u64, bytes: &[u8], device: usize) -> Outcome {
    let taken = Place::Taken(bytes.to_vec());
    execute(&Place::At(to), &taken, bytes.len() as u64, device)
}

/// Reads bytes at an address, device or host.
pub(crate) fn read(from: u64, bytes: &mut [u8], device: usize) -> Outcome {
    let to = bytes.as_mut_ptr().expose_provenance() as u64;
    let len = bytes.len() as u64;
    let spans = driver().memory.lock().spans(from, len, device)?;
    let Some(spans) = spans else {
        return backing::copy_host(to, from, len).map_err(|_| Status::ILLEGAL_ADDRESS);
    };
    let mut done = 0;
    for span in spans {
        let piece = &mut bytes[done..done + span.len as usize];
        span.backing
            .read(span.offset, piece)
            .map_err(|_| Status::ILLEGAL_ADDRESS)?;
        done += span.len as usize;
    }
    Ok(())
}
