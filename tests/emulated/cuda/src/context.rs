//! Contexts: each thread's stack of them, a device's primary one, and what happens when one breaks.
//!
//! ```text
//! whole ──fail(700, 719, …)──► broken: every call answers the same code
//!   └──────destroy───────────► destroyed: 709
//! ```

use std::{
    cell::RefCell,
    collections::HashSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;

use wharf_emulated_common::pace::takes;

use crate::{
    abi::{Outcome, Status},
    driver::driver,
    settings,
    stream::Stream,
};

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    /// Its handle: may be used again.
    pub(crate) handle: u64,
    /// Its number: is not.
    pub(crate) id: u64,
    /// Ordinal of its device.
    pub(crate) device: usize,
    /// Whether it is the device's primary one.
    pub(crate) primary: bool,
    /// `CUctx_flags`.
    pub(crate) flags: AtomicU32,
    /// Ordinals of devices whose memory it may reach.
    pub(crate) peers: Mutex<HashSet<usize>>,
    error: AtomicU32,
    default: OnceLock<Arc<Stream>>,
}

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    fn create(device: usize, flags: u32, primary: bool) -> Arc<Self> {
        let mut objects = driver().objects.lock();
        let context = Arc::new(Self {
            handle: objects.context_handle(primary.then_some(device)),
            id: driver().number(),
            device,
            primary,
            flags: AtomicU32::new(flags),
            peers: Mutex::default(),
            error: AtomicU32::new(0),
            default: OnceLock::new(),
        });
        objects
            .contexts
            .insert(context.handle, Arc::clone(&context));
        context
    }

    /// Its default stream.
    pub(crate) fn default_stream(self: &Arc<Self>) -> &Arc<Stream> {
        self.default.get_or_init(|| Stream::new(0, self, true, 0))
    }

    /// Its default stream, if it was ever used.
    pub(crate) fn used_default_stream(&self) -> Option<&Arc<Stream>> {
        self.default.get()
    }

    /// Whether it is whole.
    pub(crate) fn check(&self) -> Outcome {
        match self.error.load(SeqCst) {
            0 => Ok(()),
            error => Err(Status(error)),
        }
    }

    /// Breaks it for good. The first reason stays.
    pub(crate) fn fail(&self, status: Status) {
        let _ = self.error.compare_exchange(0, status.0, SeqCst, SeqCst);
        for stream in self.streams() {
            stream.wake();
        }
    }

    /// Its streams, the default one among them if it was used.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<_> = {
            let objects = driver().objects.lock();
            let all = objects.streams.values();
            all.filter(|stream| stream.context.id == self.id)
                .cloned()
                .collect()
        };
        streams.extend(self.default.get().cloned());
        streams
    }

    /// Waits until everything queued so far is done.
    pub(crate) fn synchronize(&self) -> Outcome {
        for stream in self.streams() {
            stream.wait_all()?;
        }
        self.check()
    }

    /// Ends it: its streams, events and memory go with it.
    pub(crate) fn destroy(&self) {
        // What is queued is let finish, as the driver does, unless it cannot.
        let _ = self.synchronize();
        self.error.store(Status::CONTEXT_IS_DESTROYED.0, SeqCst);
        for stream in self.streams() {
            stream.end();
        }
        {
            let mut objects = driver().objects.lock();
            // The handle may be another's by now.
            let own = objects.contexts.get(&self.handle);
            if own.is_some_and(|context| context.id == self.id) {
                objects.contexts.remove(&self.handle);
            }
            objects
                .streams
                .retain(|_, stream| stream.context.id != self.id);
            objects.events.retain(|_, event| event.context != self.id);
            objects
                .modules
                .retain(|_, module| module.context != self.id);
        }
        let gone = driver().memory.lock().drop_context(self.id);
        drop(gone);
    }
}

/// The context on top of this thread's stack.
pub(crate) fn current() -> Option<Arc<Context>> {
    // A thread that ends has no stack any more.
    STACK
        .try_with(|stack| stack.borrow().last().cloned())
        .ok()
        .flatten()
}

/// The context of a handle.
pub(crate) fn find(handle: u64) -> Outcome<Arc<Context>> {
    let objects = driver().objects.lock();
    objects
        .contexts
        .get(&handle)
        .cloned()
        .ok_or(Status::INVALID_CONTEXT)
}

/// Pushes.
pub(crate) fn push(handle: u64) -> Outcome {
    let context = find(handle)?;
    STACK.with_borrow_mut(|stack| stack.push(context));
    Ok(())
}

/// Pops.
pub(crate) fn pop() -> Outcome<Arc<Context>> {
    STACK.with_borrow_mut(|stack| stack.pop().ok_or(Status::INVALID_CONTEXT))
}

/// Puts one in the place of the top; 0 takes the top away.
pub(crate) fn set(handle: u64) -> Outcome {
    let context = match handle {
        0 => None,
        handle => Some(find(handle)?),
    };
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(context);
    });
    Ok(())
}

/// A new context, current on this thread.
pub(crate) fn create(device: usize, flags: u32) -> Arc<Context> {
    let context = Context::create(device, flags, false);
    STACK.with_borrow_mut(|stack| stack.push(Arc::clone(&context)));
    context
}

/// Ends one that is not primary.
pub(crate) fn destroy(handle: u64) -> Outcome {
    let context = find(handle)?;
    if context.primary {
        return Err(Status::INVALID_CONTEXT);
    }
    STACK.with_borrow_mut(|stack| {
        if stack.last().is_some_and(|top| top.id == context.id) {
            stack.pop();
        }
    });
    context.destroy();
    Ok(())
}

/// Retains a device's primary context; the first time makes it.
pub(crate) fn retain_primary(device: usize) -> Arc<Context> {
    let mut primary = driver().devices[device].primary.lock();
    primary.retained += 1;
    if let Some(context) = &primary.context {
        return Arc::clone(context);
    }
    takes(Duration::from_micros(settings::RETAIN_US.get()));
    let context = Context::create(device, primary.flags, true);
    primary.context = Some(Arc::clone(&context));
    context
}

/// Releases it; the last time ends it. Who retains it meanwhile waits until the old one is gone, as with the driver.
pub(crate) fn release_primary(device: usize) -> Outcome {
    let mut primary = driver().devices[device].primary.lock();
    primary.retained = primary
        .retained
        .checked_sub(1)
        .ok_or(Status::INVALID_CONTEXT)?;
    if primary.retained == 0
        && let Some(context) = primary.context.take()
    {
        context.destroy();
    }
    Ok(())
}

/// Ends it whoever retains it; the retain count stays, and the next retain makes another.
pub(crate) fn reset_primary(device: usize) {
    let mut primary = driver().devices[device].primary.lock();
    if let Some(context) = primary.context.take() {
        context.destroy();
    }
}
