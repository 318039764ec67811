//! What streams are given to do: copies and fills.

use std::sync::Arc;

use super::{exports, find_stream, given, take};
use crate::{
    abi::{Outcome, Status},
    device::Device,
    gate::Call,
    stream::{Direction, Op, Stream},
};

/// The most bytes of one copy.
const MAX_COPY: u64 = (4 << 30) - 1;

/// Source, length and target.
type Copied = (u64, u64, u64);

exports! {
    [Device] fn synMemCopyAsync(stream: u64, from: u64, len: u64, to: u64, direction: u32) |call| {
        copy(call, stream, direction, &[(from, len, to)])
    }

    [Device] fn synMemCopyAsyncMultiple(
        stream: u64, from: *const u64, len: *const u64, to: *const u64, direction: u32, count: u64,
    ) |call| {
        given(from)?;
        given(len)?;
        given(to)?;
        let copies: Outcome<Vec<Copied>> = (0..count as usize)
            .map(|index| Ok((take(from, index)?, take(len, index)?, take(to, index)?)))
            .collect();
        copy(call, stream, direction, &copies?)
    }

    [Device] fn synMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) |call| {
        fill(call, to, [value; 4], count, 1, stream)
    }

    [Device] fn synMemsetD16Async(to: u64, value: u16, count: usize, stream: u64) |call| {
        let [low, high] = value.to_le_bytes();
        fill(call, to, [low, high, low, high], count, 2, stream)
    }

    [Device] fn synMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) |call| {
        fill(call, to, value.to_le_bytes(), count, 4, stream)
    }
}

/// Queues copies: all, or none when one of them is refused.
fn copy(call: &Call, stream: u64, direction: u32, copies: &[Copied]) -> Outcome {
    let device = call.device()?;
    let stream = find_stream(device, stream)?;
    let direction = Direction::of(direction).ok_or(Status::INVALID_ARGUMENT)?;
    for copy in copies {
        check(device, direction, *copy)?;
    }
    spoilt(call, &stream, direction)?;
    for (from, len, to) in copies.iter().copied().filter(|(_, len, _)| *len > 0) {
        stream.push(direction, Op::Copy { from, len, to })?;
    }
    Ok(())
}

/// What a copy call checks at once: lengths, and that host memory is mapped.
fn check(device: &Device, direction: Direction, (from, len, to): Copied) -> Outcome {
    // Nothing is copied, wherever that may be.
    if len == 0 {
        return Ok(());
    }
    if len > MAX_COPY || from == 0 || to == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let host = match direction {
        Direction::ToDevice => from,
        Direction::ToHost => to,
        Direction::Within => return Ok(()),
    };
    if !device.memory.lock().is_mapped(host, len) {
        return Err(Status::MAPPING_NOT_FOUND);
    }
    Ok(())
}

/// Queues that a value of so many bytes is written `count` times.
fn fill(call: &Call, to: u64, value: [u8; 4], count: usize, width: u64, stream: u64) -> Outcome {
    let stream = find_stream(call.device()?, stream)?;
    let len = (count as u64)
        .checked_mul(width)
        .filter(|len| *len <= MAX_COPY);
    let len = len.filter(|len| *len == 0 || to != 0);
    let len = len.ok_or(Status::INVALID_ARGUMENT)?;
    spoilt(call, &stream, Direction::Within)?;
    match len {
        0 => Ok(()),
        _ => stream.push(Direction::Within, Op::Fill { to, len, value }),
    }
}

/// A fault that a test has planned for what this call queues.
fn spoilt(call: &Call, stream: &Arc<Stream>, direction: Direction) -> Outcome {
    match call.late {
        Some(status) => stream.push(direction, Op::Break(status)),
        None => Ok(()),
    }
}
