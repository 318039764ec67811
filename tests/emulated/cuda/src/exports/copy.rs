#![allow(unsafe_code)]
//! Copies and fills.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::sync::Arc;

use crate::{
    abi::{CopyAttributes, In, Out, Outcome, Status},
    copy::{Direction, submit},
    driver::driver,
    gate::{Call, exports},
    objects,
    stream::{Op, Stream},
};

exports! {
    ["cuMemcpy", 4000, Context]
    fn cuMemcpy(to: u64, from: u64, len: usize) |call| {
        now(call, Direction::Any, to, from, len)
    }

    ["cuMemcpyHtoD", 3020, Context]
    fn cuMemcpyHtoD_v2(to: u64, from: u64, len: usize) |call| {
        now(call, Direction::HostToDevice, to, from, len)
    }

    ["cuMemcpyDtoH", 3020, Context]
    fn cuMemcpyDtoH_v2(to: u64, from: u64, len: usize) |call| {
        now(call, Direction::DeviceToHost, to, from, len)
    }

    ["cuMemcpyDtoD", 3020, Context]
    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) |call| {
        now(call, Direction::DeviceToDevice, to, from, len)
    }

    ["cuMemcpyAsync", 4000, Context]
    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: u64) |call| {
        later(call, stream, Direction::Any, to, from, len)
    }

    ["cuMemcpyHtoDAsync", 3020, Context]
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) |call| {
        later(call, stream, Direction::HostToDevice, to, from, len)
    }

    ["cuMemcpyDtoHAsync", 3020, Context]
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, len: usize, stream: u64) |call| {
        later(call, stream, Direction::DeviceToHost, to, from, len)
    }

    ["cuMemcpyDtoDAsync", 3020, Context]
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) |call| {
        later(call, stream, Direction::DeviceToDevice, to, from, len)
    }

    ["cuMemcpyPeerAsync", 4000, Context]
    fn cuMemcpyPeerAsync(
        to: u64, to_context: u64, from: u64, from_context: u64, len: usize, stream: u64,
    ) |call| {
        crate::context::find(to_context)?.check()?;
        crate::context::find(from_context)?.check()?;
        later(call, stream, Direction::DeviceToDevice, to, from, len)
    }

    ["cuMemcpyBatchAsync", 12080, Context]
    fn cuMemcpyBatchAsync(
        to: In<u64>, from: In<u64>, lens: In<usize>, count: usize,
        attributes: In<CopyAttributes>, indices: In<usize>, kinds: usize,
        failed: Out<usize>, stream: u64,
    ) |call| {
        failed.offer(usize::MAX);
        batch(call, (&to, &from, &lens, count), (&attributes, &indices, kinds), stream, |index| {
            failed.offer(index);
        })
    }

    ["cuMemcpyBatchAsync", 13000, Context]
    fn cuMemcpyBatchAsync_v2(
        to: In<u64>, from: In<u64>, lens: In<usize>, count: usize,
        attributes: In<CopyAttributes>, indices: In<usize>, kinds: usize, stream: u64,
    ) |call| {
        batch(call, (&to, &from, &lens, count), (&attributes, &indices, kinds), stream, |_| {})
    }

    ["cuMemsetD8", 3020, Context]
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) |call| {
        fill(call, 0, to, u32::from(value), 1, count, true)
    }

    ["cuMemsetD32", 3020, Context]
    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) |call| {
        fill(call, 0, to, value, 4, count, true)
    }

    ["cuMemsetD8Async", 3020, Context]
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) |call| {
        fill(call, stream, to, u32::from(value), 1, count, false)
    }

    ["cuMemsetD16Async", 3020, Context]
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: u64) |call| {
        fill(call, stream, to, u32::from(value), 2, count, false)
    }

    ["cuMemsetD32Async", 3020, Context]
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) |call| {
        fill(call, stream, to, value, 4, count, false)
    }
}

fn now(call: &Call, direction: Direction, to: u64, from: u64, len: usize) -> Outcome {
    let stream = Arc::clone(call.context()?.default_stream());
    submit(call, &stream, direction, (to, from, len as u64), true)
}

fn later(
    call: &Call,
    stream: u64,
    direction: Direction,
    to: u64,
    from: u64,
    len: usize,
) -> Outcome {
    let stream = objects::stream(stream, call.context()?)?;
    submit(call, &stream, direction, (to, from, len as u64), false)
}

type Lists<'a> = (&'a In<u64>, &'a In<u64>, &'a In<usize>, usize);
type Kinds<'a> = (&'a In<CopyAttributes>, &'a In<usize>, usize);

fn batch(
    call: &Call,
    (to, from, lens, count): Lists<'_>,
    (attributes, indices, kinds): Kinds<'_>,
    stream: u64,
    failed: impl Fn(usize),
) -> Outcome {
    // The default streams cannot be used for it.
    if stream <= 2 || count == 0 || kinds == 0 || kinds > count {
        return Err(Status::INVALID_VALUE);
    }
    let stream = objects::stream(stream, call.context()?)?;
    let indices = indices.list(kinds)?;
    let rising = indices.windows(2).all(|pair| pair[0] < pair[1]);
    if indices.first() != Some(&0) || !rising || indices.last() >= Some(&count) {
        return Err(Status::INVALID_VALUE);
    }
    for attributes in attributes.list(kinds)? {
        if !(1..=3).contains(&attributes.source_order) {
            return Err(Status::INVALID_VALUE);
        }
    }
    let (to, from, lens) = (to.list(count)?, from.list(count)?, lens.list(count)?);
    for (index, ((to, from), len)) in to.into_iter().zip(from).zip(lens).enumerate() {
        let copy = (to, from, len as u64);
        if len == 0 {
            failed(index);
            return Err(Status::INVALID_VALUE);
        }
        submit(call, &stream, Direction::Any, copy, false).inspect_err(|_| failed(index))?;
    }
    Ok(())
}

fn fill(
    call: &Call,
    stream: u64,
    to: u64,
    value: u32,
    width: u64,
    count: usize,
    wait: bool,
) -> Outcome {
    let stream: Arc<Stream> = objects::stream(stream, call.context()?)?;
    let len = (count as u64)
        .checked_mul(width)
        .ok_or(Status::INVALID_VALUE)?;
    if len == 0 {
        return Ok(());
    }
    let class = driver().memory.lock().classify(to, len)?;
    if !to.is_multiple_of(width) || class == crate::memory::Class::Pageable {
        return Err(Status::INVALID_VALUE);
    }
    if let Some(status) = call.late {
        stream.push(Op::Break(status))?;
    }
    let place = stream.push(Op::Fill {
        to,
        value,
        width,
        len,
    })?;
    if wait { stream.wait(place) } else { Ok(()) }
}
