//! Streams and events.

use std::sync::Arc;

use super::{exports, find_event, find_stream, given, none, put};
use crate::{
    abi::Status,
    gate::runtime,
    stream::{Event, Stream},
};

/// `EVENT_COLLECT_TIME`.
const COLLECT_TIME: u32 = 1;

exports! {
    [Device] fn synStreamCreateGeneric(stream: *mut u64, id: u32, flags: u32) |call| {
        let device = call.numbered(id)?;
        none(flags, Status::INVALID_ARGUMENT)?;
        let number = runtime().number();
        let handle = (0x0C02 << 48) | (number << 4);
        put(stream, handle)?;
        device.objects.lock().streams.insert(handle, Stream::new(device, number));
        Ok(())
    }

    [Device] fn synStreamDestroy(stream: u64) |call| {
        let device = call.device()?;
        let gone = find_stream(device, stream)?;
        if !gone.reached(gone.place()) {
            return Err(Status::BUSY);
        }
        device.objects.lock().streams.remove(&stream);
        gone.end();
        Ok(())
    }

    [Device] fn synStreamSynchronize(stream: u64) |call| {
        let stream = find_stream(call.device()?, stream)?;
        stream.wait(stream.place())
    }

    [Device] fn synStreamQuery(stream: u64) |call| {
        let stream = find_stream(call.device()?, stream)?;
        if stream.reached(stream.place()) { call.device()?.check() } else { Err(Status::BUSY) }
    }

    [Device] fn synStreamWaitEvent(stream: u64, event: u64, flags: u32) |call| {
        let device = call.device()?;
        let stream = find_stream(device, stream)?;
        let event = find_event(device, event)?;
        none(flags, Status::INVALID_ARGUMENT)?;
        match event.mark("synStreamWaitEvent") {
            // The header wants an event of another stream's; of its own it is passed anyway, but for the other directions.
            Some(mark) if Arc::ptr_eq(&mark.stream, &stream) => Err(Status::INVALID_ARGUMENT),
            Some(mark) => stream.wait_for(&mark.stream, mark.place),
            None => Ok(()),
        }
    }

    [Device] fn synEventCreate(event: *mut u64, id: u32, flags: u32) |call| {
        let device = call.numbered(id)?;
        none(flags & !COLLECT_TIME, Status::INVALID_ARGUMENT)?;
        let handle = (0x0C03 << 48) | (runtime().number() << 4);
        put(event, handle)?;
        device.objects.lock().events.insert(handle, Event::new(flags & COLLECT_TIME != 0));
        Ok(())
    }

    [Device] fn synEventDestroy(event: u64) |call| {
        let gone = call.device()?.objects.lock().events.remove(&event);
        // A handle that is none is an argument; one that is gone, a failure.
        let refused = if event == 0 { Status::INVALID_ARGUMENT } else { Status::FAIL };
        gone.map(drop).ok_or(refused)
    }

    [Device] fn synEventRecord(event: u64, stream: u64) |call| {
        let device = call.device()?;
        let event = find_event(device, event)?;
        event.record(&find_stream(device, stream)?);
        Ok(())
    }

    [Device] fn synEventQuery(event: u64) |call| {
        let event = find_event(call.device()?, event)?;
        match event.mark("synEventQuery") {
            Some(mark) if !mark.stream.reached(mark.place) => Err(Status::BUSY),
            // What was lost on the way counts as passed.
            _ => call.device()?.check(),
        }
    }

    [Device] fn synEventSynchronize(event: u64) |call| {
        let event = find_event(call.device()?, event)?;
        match event.mark("synEventSynchronize") {
            Some(mark) => mark.stream.wait(mark.place),
            None => Ok(()),
        }
    }

    [Device] fn synEventElapsedTime(nanos: *mut u64, start: u64, end: u64) |call| {
        given(nanos)?;
        let device = call.device()?;
        let find = |event| find_event(device, event).map_err(|_| Status::FAIL);
        let start = find(start)?;
        // Without an end it is the time itself.
        if end == 0 {
            return put(nanos, start.nanos()?);
        }
        let end = find(end)?;
        let (start, end) = (start.nanos()?, end.nanos()?);
        // An end before the start wraps around, as the runtime's subtraction does.
        put(nanos, end.wrapping_sub(start))
    }
}
