#![allow(unsafe_code)]
//! Events.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::sync::Arc;

use parking_lot::Mutex;
use wharf_emulated_common::backing::Backing;

use crate::{
    abi::{Opaque, Out, Outcome, Status},
    driver::driver,
    event::{DISABLE_TIMING, Event, INTERPROCESS},
    gate::{Call, exports},
    ipc::{self, Of, Token},
    objects,
};

exports! {
    ["cuEventCreate", 2000, Context]
    fn cuEventCreate(event: Out<u64>, flags: u32) |call| {
        if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(Status::INVALID_VALUE);
        }
        event.set(0)?;
        let shared = (flags & INTERPROCESS != 0)
            .then(|| Backing::new("emulated-cuda-event", 4096).map(Arc::new))
            .transpose()
            .map_err(|_| Status::OUT_OF_MEMORY)?;
        event.set(add(call, flags, shared)?)
    }

    ["cuEventDestroy", 4000, Context]
    fn cuEventDestroy_v2(event: u64) |_call| {
        let gone = driver().objects.lock().events.remove(&event);
        gone.map(drop).ok_or(Status::INVALID_HANDLE)
    }

    ["cuEventRecord", 2000, Context]
    fn cuEventRecord(event: u64, stream: u64) |call| {
        let stream = objects::stream(stream, call.context()?)?;
        objects::event(event)?.record(&stream)
    }

    ["cuEventRecordWithFlags", 11010, Context]
    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) |call| {
        if flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        let stream = objects::stream(stream, call.context()?)?;
        objects::event(event)?.record(&stream)
    }

    ["cuEventQuery", 2000, Context]
    fn cuEventQuery(event: u64) |_call| {
        if objects::event(event)?.is_done()? { Ok(()) } else { Err(Status::NOT_READY) }
    }

    ["cuEventSynchronize", 2000, Context]
    fn cuEventSynchronize(event: u64) |_call| {
        objects::event(event)?.wait()
    }

    ["cuEventElapsedTime", 2000, Context]
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) |_call| {
        milliseconds.set(objects::event(start)?.until(&*objects::event(end)?)?)
    }

    ["cuEventElapsedTime", 12080, Context]
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) |_call| {
        milliseconds.set(objects::event(start)?.until(&*objects::event(end)?)?)
    }

    ["cuIpcGetEventHandle", 4010, Context]
    fn cuIpcGetEventHandle(handle: Out<Opaque>, event: u64) |call| {
        let event = objects::event(event)?;
        let words = event.shared.as_ref().ok_or(Status::INVALID_HANDLE)?;
        let token = Token::new(Of::Event, words, 0, 4096, call.context()?.device);
        handle.set(token.bytes())
    }

    ["cuIpcOpenEventHandle", 4010, Context]
    fn cuIpcOpenEventHandle(event: Out<u64>, handle: Opaque) |call| {
        event.set(0)?;
        let words = ipc::open_event(&handle)?;
        event.set(add(call, DISABLE_TIMING | INTERPROCESS, Some(words))?)
    }
}

fn add(call: &Call, flags: u32, shared: Option<Arc<Backing>>) -> Outcome<u64> {
    let handle = objects::event_handle();
    let event = Event {
        context: call.context()?.id,
        flags,
        mark: Mutex::new(None),
        shared,
    };
    driver()
        .objects
        .lock()
        .events
        .insert(handle, Arc::new(event));
    Ok(handle)
}
