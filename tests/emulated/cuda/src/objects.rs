//! Everything that has a handle. Handles of streams, events and pools are never used again, so that a stale one is told
//! from a new one; those of contexts are, as the driver's are.
//!
//! A handle is no canonical address: whoever takes it for a pointer faults.

use std::{collections::HashMap, sync::Arc};

use wharf_emulated_ptx::Program;

use crate::{
    abi::{Outcome, Status},
    context::Context,
    driver::driver,
    event::Event,
    pool::Pool,
    stream::Stream,
};

const CONTEXT: u64 = 0x0C01 << 48;
const STREAM: u64 = 0x0C02 << 48;
const EVENT: u64 = 0x0C03 << 48;
const POOL: u64 = 0x0C04 << 48;
const MODULE: u64 = 0x0C05 << 48;
const FUNCTION: u64 = 0x0C06 << 48;

/// The tables.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) contexts: HashMap<u64, Arc<Context>>,
    pub(crate) streams: HashMap<u64, Arc<Stream>>,
    pub(crate) events: HashMap<u64, Arc<Event>>,
    pub(crate) pools: HashMap<u64, Arc<Pool>>,
    pub(crate) modules: HashMap<u64, Module>,
}

/// A module that was read.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    /// The number of its context.
    pub(crate) context: u64,
    pub(crate) program: Arc<Program>,
}

impl Objects {
    /// A handle for a context: a primary one's is the device's own, else the lowest that is free.
    pub(crate) fn context_handle(&self, primary_of: Option<usize>) -> u64 {
        match primary_of {
            Some(device) => CONTEXT | ((device as u64 + 1) << 8),
            None => (0x1000_u64..)
                .map(|slot| CONTEXT | (slot << 8))
                .find(|handle| !self.contexts.contains_key(handle))
                .unwrap_or(CONTEXT),
        }
    }
}

/// A handle for a new stream.
pub(crate) fn stream_handle() -> u64 {
    STREAM | (driver().number() << 4)
}

/// A handle for a new event.
pub(crate) fn event_handle() -> u64 {
    EVENT | (driver().number() << 4)
}

/// A handle for a new module.
pub(crate) fn module_handle() -> u64 {
    MODULE | (driver().number() << 8)
}

/// The handle of a module's kernel.
pub(crate) fn function_handle(module: u64, index: usize) -> u64 {
    FUNCTION | (module & !(0xFFFF << 48)) | (index as u64 & 255)
}

/// The module of a kernel, and which one it is.
pub(crate) fn function(handle: u64) -> Option<(u64, usize)> {
    let known = handle >> 48 == FUNCTION >> 48;
    let index = (handle & 255) as usize;
    known.then_some((MODULE | (handle & !(0xFFFF << 48) & !255), index))
}

/// A handle for a new pool.
pub(crate) fn pool_handle() -> u64 {
    POOL | (driver().number() << 4)
}

/// The event of a handle.
pub(crate) fn event(handle: u64) -> Outcome<Arc<Event>> {
    let objects = driver().objects.lock();
    objects
        .events
        .get(&handle)
        .cloned()
        .ok_or(Status::INVALID_HANDLE)
}

/// The pool of a handle.
pub(crate) fn pool(handle: u64) -> Outcome<Arc<Pool>> {
    let objects = driver().objects.lock();
    objects
        .pools
        .get(&handle)
        .cloned()
        .ok_or(Status::INVALID_VALUE)
}

/// The stream of a handle, for a call with `context` current; 0 and 1 are the context's default stream.
pub(crate) fn stream(handle: u64, context: &Arc<Context>) -> Outcome<Arc<Stream>> {
    // 2 is the per-thread default stream: one for all threads here.
    if handle <= 2 {
        return Ok(Arc::clone(context.default_stream()));
    }
    let found = driver().objects.lock().streams.get(&handle).cloned();
    let stream = found.ok_or(Status::INVALID_HANDLE)?;
    if stream.context.id != context.id {
        driver().journal.misuse(format!(
            "stream {handle:#x} of context {} was used with context {} current",
            stream.context.id, context.id
        ));
        return Err(Status::INVALID_HANDLE);
    }
    Ok(stream)
}
