#![allow(unsafe_code)]
//! Streams, words in streams, host functions.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::{ffi::c_void, sync::Arc};

use crate::{
    abi::{BatchMemOp, HostFn, In, Out, Outcome, Status, StreamCallback},
    context,
    driver::driver,
    gate::{Call, exports},
    objects,
    stream::{Data, Op, Stream, push_word},
};

exports! {
    ["cuStreamCreate", 2000, Context]
    fn cuStreamCreate(stream: Out<u64>, flags: u32) |call| {
        create(call, &stream, flags, 0)
    }

    ["cuStreamCreateWithPriority", 5050, Context]
    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) |call| {
        create(call, &stream, flags, priority.clamp(-5, 0))
    }

    ["cuStreamDestroy", 4000, Context]
    fn cuStreamDestroy_v2(stream: u64) |call| {
        if stream <= 2 {
            return Err(Status::INVALID_HANDLE);
        }
        // What is queued goes on.
        let found = objects::stream(stream, call.context()?)?;
        driver().objects.lock().streams.remove(&stream);
        found.end();
        Ok(())
    }

    ["cuStreamQuery", 2000, Context]
    fn cuStreamQuery(stream: u64) |call| {
        let stream = objects::stream(stream, call.context()?)?;
        if stream.is_idle() { Ok(()) } else { Err(Status::NOT_READY) }
    }

    ["cuStreamSynchronize", 2000, Context]
    fn cuStreamSynchronize(stream: u64) |call| {
        objects::stream(stream, call.context()?)?.wait_all()
    }

    ["cuStreamWaitEvent", 3020, Context]
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) |call| {
        if flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        let stream = objects::stream(stream, call.context()?)?;
        objects::event(event)?.hold_up(&stream)
    }

    ["cuStreamGetCtx", 9020, Init]
    fn cuStreamGetCtx(stream: u64, handle: Out<u64>) |_call| {
        if stream <= 2 {
            let context = context::current().ok_or(Status::INVALID_CONTEXT)?;
            return handle.set(context.handle);
        }
        let found = driver().objects.lock().streams.get(&stream).cloned();
        handle.set(found.ok_or(Status::INVALID_HANDLE)?.context.handle)
    }

    ["cuStreamGetId", 12000, Context]
    fn cuStreamGetId(stream: u64, id: Out<u64>) |call| {
        id.set(objects::stream(stream, call.context()?)?.id)
    }

    ["cuStreamGetFlags", 5050, Context]
    fn cuStreamGetFlags(stream: u64, flags: Out<u32>) |call| {
        let stream = objects::stream(stream, call.context()?)?;
        flags.set(u32::from(!stream.blocking))
    }

    ["cuStreamGetPriority", 5050, Context]
    fn cuStreamGetPriority(stream: u64, priority: Out<i32>) |call| {
        priority.set(objects::stream(stream, call.context()?)?.priority)
    }

    ["cuStreamIsCapturing", 10000, Context]
    fn cuStreamIsCapturing(stream: u64, status: Out<u32>) |call| {
        objects::stream(stream, call.context()?)?;
        status.set(0)
    }

    ["cuLaunchHostFunc", 10000, Context]
    fn cuLaunchHostFunc(stream: u64, function: HostFn, data: *mut c_void) |call| {
        let stream = objects::stream(stream, call.context()?)?;
        let function = function.ok_or(Status::INVALID_VALUE)?;
        queue(call, &stream, Op::Host(function, Data(data)))
    }

    // From 13.1 the same base name means a function of four arguments.
    ["cuLaunchHostFunc", 13010, Context]
    fn cuLaunchHostFunc_v2(stream: u64, function: HostFn, data: *mut c_void, _mode: u32) |call| {
        let stream = objects::stream(stream, call.context()?)?;
        let function = function.ok_or(Status::INVALID_VALUE)?;
        queue(call, &stream, Op::Host(function, Data(data)))
    }

    ["cuStreamAddCallback", 5000, Context]
    fn cuStreamAddCallback(stream: u64, function: StreamCallback, data: *mut c_void, flags: u32) |call| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let stream = objects::stream(stream, call.context()?)?;
        let function = function.ok_or(Status::INVALID_VALUE)?;
        queue(call, &stream, Op::Callback(function, Data(data)))
    }

    ["cuStreamWriteValue32", 11070, Context]
    fn cuStreamWriteValue32_v2(stream: u64, to: u64, value: u32, flags: u32) |call| {
        write(call, stream, to, u64::from(value), 4, flags)
    }

    ["cuStreamWriteValue64", 11070, Context]
    fn cuStreamWriteValue64_v2(stream: u64, to: u64, value: u64, flags: u32) |call| {
        write(call, stream, to, value, 8, flags)
    }

    ["cuStreamWaitValue32", 11070, Context]
    fn cuStreamWaitValue32_v2(stream: u64, at: u64, value: u32, flags: u32) |call| {
        wait(call, stream, at, u64::from(value), 4, flags)
    }

    ["cuStreamWaitValue64", 11070, Context]
    fn cuStreamWaitValue64_v2(stream: u64, at: u64, value: u64, flags: u32) |call| {
        wait(call, stream, at, value, 8, flags)
    }

    // The first ABI: the same arguments. The driver still has them.
    ["cuStreamWriteValue32", 8000, Context]
    fn cuStreamWriteValue32(stream: u64, to: u64, value: u32, flags: u32) |call| {
        write(call, stream, to, u64::from(value), 4, flags)
    }

    ["cuStreamWriteValue64", 9000, Context]
    fn cuStreamWriteValue64(stream: u64, to: u64, value: u64, flags: u32) |call| {
        write(call, stream, to, value, 8, flags)
    }

    ["cuStreamWaitValue32", 8000, Context]
    fn cuStreamWaitValue32(stream: u64, at: u64, value: u32, flags: u32) |call| {
        wait(call, stream, at, u64::from(value), 4, flags)
    }

    ["cuStreamWaitValue64", 9000, Context]
    fn cuStreamWaitValue64(stream: u64, at: u64, value: u64, flags: u32) |call| {
        wait(call, stream, at, value, 8, flags)
    }

    ["cuStreamBatchMemOp", 11070, Context]
    fn cuStreamBatchMemOp_v2(stream: u64, count: u32, ops: In<BatchMemOp>, flags: u32) |call| {
        // The header's bound.
        if flags != 0 || count > 256 {
            return Err(Status::INVALID_VALUE);
        }
        for op in ops.list(count as usize)? {
            match op.operation {
                1 => wait(call, stream, op.address, op.value & 0xFFFF_FFFF, 4, op.flags)?,
                2 => write(call, stream, op.address, op.value & 0xFFFF_FFFF, 4, op.flags)?,
                4 => wait(call, stream, op.address, op.value, 8, op.flags)?,
                5 => write(call, stream, op.address, op.value, 8, op.flags)?,
                // A flush of remote writes, and a barrier: there is nothing to order here.
                3 | 6 => {}
                _ => return Err(Status::INVALID_VALUE),
            }
        }
        Ok(())
    }
}

fn create(call: &Call, stream: &Out<u64>, flags: u32, priority: i32) -> Outcome {
    if flags > 1 {
        return Err(Status::INVALID_VALUE);
    }
    stream.set(0)?;
    let handle = objects::stream_handle();
    let made = Stream::new(handle, call.context()?, flags == 0, priority);
    driver().objects.lock().streams.insert(handle, made);
    stream.set(handle)
}

fn queue(call: &Call, stream: &Arc<Stream>, op: Op) -> Outcome {
    if let Some(status) = call.late {
        stream.push(Op::Break(status))?;
    }
    stream.push(op).map(|_| ())
}

fn write(call: &Call, stream: u64, to: u64, value: u64, width: u64, flags: u32) -> Outcome {
    // 0 with a memory barrier before the write, 1 without.
    if flags > 1 {
        return Err(Status::INVALID_VALUE);
    }
    let stream = objects::stream(stream, call.context()?)?;
    if let Some(status) = call.late {
        stream.push(Op::Break(status))?;
    }
    push_word(&stream, Op::Write { to, value, width }).map(|_| ())
}

fn wait(call: &Call, stream: u64, at: u64, value: u64, width: u64, flags: u32) -> Outcome {
    // Bit 30 asks for a flush of remote writes, which attribute 98 says is there.
    if flags & !(3 | 1 << 30) != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let stream = objects::stream(stream, call.context()?)?;
    if let Some(status) = call.late {
        stream.push(Op::Break(status))?;
    }
    let op = Op::Wait {
        at,
        value,
        width,
        how: flags & 3,
    };
    push_word(&stream, op).map(|_| ())
}
