//! Contexts, and the guard that makes one current on this thread.
//!
//! The driver keeps a stack of contexts for each thread, and most calls go to the one on top. A task may go on with another thread after
//! every `await`, so a guard is `!Send`, pushes when it is made and pops when it is dropped: the program's own current context is
//! back afterwards, and a future that held a guard over an `await` would not compile on a runtime of several threads. Hold one for as
//! many calls as belong together, and drop guards in the opposite order of their making.
//!
//! # Safety
//! A [`CudaContext`] of [`Device::primary_context`] holds one reference of the driver's own count, given back when the last clone is dropped; everything
//! made in it holds a clone. An adopted one (`unsafe`) is the program's, who vouches that it outlives this value.
#![allow(unsafe_code)]

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, Weak},
};

use super::{Cuda, Device, RawContext, Status};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// Who a context is: never used again for another, unlike its address. With drivers before CUDA 12 it is the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContextId(pub(crate) u64);

/// A context of a device. A cheap clone; the last one lets a primary context go, which may take milliseconds.
#[derive(Clone)]
pub(crate) struct CudaContext(Arc<Inner>);

struct Inner {
    device: Device,
    raw: RawContext,
    id: ContextId,
    /// Whether a reference of the driver's count belongs to this.
    retained: bool,
}

/// A primary context that somebody may hold.
struct Primary {
    device: Device,
    context: Weak<Inner>,
}

/// Primary contexts that somebody holds, of every driver.
static PRIMARIES: Mutex<Vec<Primary>> = Mutex::new(Vec::new());

impl Device {
    /// Its primary context, the one that the runtime library and all frameworks use. Made if there is none, which takes hundreds of
    /// milliseconds and of megabytes of device memory. Held once however often it is asked for, and let go with the last clone.
    /// Errors: `Exhausted`, `DeviceLost`, `Forked`.
    pub(crate) fn primary_context(&self) -> Result<CudaContext> {
        let cuda = self.cuda;
        cuda.usable()?;
        if let Some(context) = held(self) {
            if context.is_alive()? {
                return Ok(context);
            }
            // The program reset the device: whoever holds the old context has nothing in it any more.
            PRIMARIES
                .lock()
                .retain(|entry| !std::ptr::eq(entry.context.as_ptr(), Arc::as_ptr(&context.0)));
        }
        let mut raw = RawContext::NULL;
        // Slow, so outside the lock: who comes second gives its reference back below.
        // SAFETY: writes one handle.
        let status = unsafe { (cuda.api.cuDevicePrimaryCtxRetain)(&raw mut raw, self.raw) };
        status.check("cuDevicePrimaryCtxRetain")?;
        // From here on a drop releases it.
        let mut inner = Inner {
            device: *self,
            raw,
            id: ContextId(raw.0 as u64),
            retained: true,
        };
        inner.id = id_of(cuda, raw)?;
        let mut primaries = PRIMARIES.lock();
        let other = primaries
            .iter()
            .find(|entry| entry.device == *self)
            .and_then(|entry| entry.context.upgrade());
        if let Some(other) = other {
            drop(primaries);
            return Ok(CudaContext(other));
        }
        let inner = Arc::new(inner);
        primaries.retain(|entry| entry.device != *self);
        primaries.push(Primary {
            device: *self,
            context: Arc::downgrade(&inner),
        });
        Ok(CudaContext(inner))
    }

    /// As [`Device::primary_context`], but only if somebody uses the device already: `None` otherwise.
    /// Errors: as there.
    pub(crate) fn active_context(&self) -> Result<Option<CudaContext>> {
        if self.is_active()? {
            self.primary_context().map(Some)
        } else {
            Ok(None)
        }
    }
}

/// The primary context of a device if somebody holds it.
fn held(device: &Device) -> Option<CudaContext> {
    let primaries = PRIMARIES.lock();
    let entry = primaries.iter().find(|entry| entry.device == *device)?;
    entry.context.upgrade().map(CudaContext)
}

/// Who a context is.
fn id_of(cuda: &Cuda, raw: RawContext) -> Result<ContextId> {
    let Some(call) = cuda.api.cuCtxGetId else {
        return Ok(ContextId(raw.0 as u64));
    };
    let mut id = 0;
    // SAFETY: a context that lives, as the callers see to, and a number to be written.
    let status = unsafe { call(raw, &raw mut id) };
    status.check("cuCtxGetId")?;
    Ok(ContextId(id))
}

impl CudaContext {
    /// A context of the program's own, as an address's attributes or a stream tell it. It is not kept alive.
    /// Errors: `DeviceLost`, `InvalidArgument`: it is a context no longer.
    ///
    /// # Safety
    /// The context lives for as long as this value and its clones.
    pub(crate) unsafe fn adopt(cuda: &'static Cuda, raw: RawContext) -> Result<Self> {
        cuda.usable()?;
        let id = id_of(cuda, raw)?;
        let mut ordinal = 0;
        push(cuda, raw)?;
        // SAFETY: writes one number; the context is current.
        let status = unsafe { (cuda.api.cuCtxGetDevice)(&raw mut ordinal) };
        pop(cuda, raw);
        status.check("cuCtxGetDevice")?;
        Ok(Self(Arc::new(Inner {
            device: Device::new(cuda, ordinal)?,
            raw,
            id,
            retained: false,
        })))
    }

    /// Who it is: the key for whatever belongs to it.
    pub(crate) fn id(&self) -> ContextId {
        self.0.id
    }

    /// Its device.
    pub(crate) fn device(&self) -> Device {
        self.0.device
    }

    /// The driver.
    pub(crate) fn cuda(&self) -> &'static Cuda {
        self.0.device.cuda
    }

    /// The driver's handle of it.
    pub(crate) fn raw(&self) -> RawContext {
        self.0.raw
    }

    /// Makes it the current one of this thread until the guard is dropped. Two cheap calls of the driver.
    /// Errors: `Forked`; `DeviceLost`: it was destroyed.
    pub(crate) fn enter(&self) -> Result<ContextGuard<'_>> {
        let cuda = self.cuda();
        cuda.usable()?;
        push(cuda, self.0.raw)?;
        Ok(ContextGuard {
            context: self,
            thread: PhantomData,
        })
    }

    /// Whether it is the context that it was: the program may have destroyed it, and the driver given its handle to another. A few cheap calls.
    /// Errors: what the driver reports, other than that the context is gone.
    pub(crate) fn is_alive(&self) -> Result<bool> {
        let same = self
            .enter()
            .map(drop)
            .and_then(|()| id_of(self.cuda(), self.0.raw))
            .map(|id| id == self.0.id);
        match same {
            Err(error) if Status::of(&error).is_some_and(Status::is_end) => Ok(false),
            same => same,
        }
    }

    /// What somebody's drop does in the context; what fails is only told. Nothing in a forked child, where the driver cannot be called.
    pub(super) fn on_drop(&self, what: &str, free: impl FnOnce(&ContextGuard<'_>) -> Result<()>) {
        let done = self.enter().and_then(|guard| free(&guard));
        if let Err(error) = done {
            // A context that is lost has freed everything, a process that ends too.
            let expected = matches!(
                error.kind(),
                ErrorKind::Forked | ErrorKind::DeviceLost | ErrorKind::Closed
            );
            if expected {
                tracing::debug!(target: "wharf::cuda", "{what}: {error}");
            } else {
                tracing::warn!(target: "wharf::cuda", "{what}: {error}");
            }
        }
    }
}

impl PartialEq for CudaContext {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id && self.device() == other.device()
    }
}

impl fmt::Debug for CudaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} context {}", self.device(), self.0.id.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let cuda = self.device.cuda;
        if !self.retained || cuda.usable().is_err() {
            return;
        }
        // SAFETY: gives back the one reference that `primary_context` took.
        let status = unsafe { (cuda.api.cuDevicePrimaryCtxRelease_v2)(self.device.raw) };
        if let Err(error) = status.check("cuDevicePrimaryCtxRelease_v2") {
            tracing::debug!(target: "wharf::cuda", "{error}");
        }
    }
}

/// A context that is the current one of this thread. It cannot leave the thread, and so cannot be held over an `await`.
#[must_use = "the context is current only while this lives"]
pub(crate) struct ContextGuard<'a> {
    context: &'a CudaContext,
    thread: PhantomData<*const ()>,
}

impl ContextGuard<'_> {
    /// The context.
    pub(crate) fn context(&self) -> &CudaContext {
        self.context
    }

    /// The driver.
    pub(crate) fn cuda(&self) -> &'static Cuda {
        self.context.cuda()
    }

    /// That `owner`'s streams and events can be used now.
    /// Errors: `InvalidArgument`: they belong to another context.
    pub(super) fn check(&self, owner: &CudaContext) -> Result<()> {
        if self.context.id() == owner.id() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{owner:?} is not the current one: {:?} is", self.context),
        ))
    }

    /// Lets this context reach the memory of another's device. That it can already is no error.
    /// Errors: `Unsupported`: no path between the devices; `Exhausted`: too many peers.
    pub(crate) fn enable_peer(&self, peer: &CudaContext) -> Result<()> {
        let cuda = self.cuda();
        let call = cuda.optional(cuda.api.cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess")?;
        // SAFETY: a context that lives.
        let status = unsafe { call(peer.raw(), 0) };
        if status == Status::PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        status.check("cuCtxEnablePeerAccess")
    }

    /// Has the driver's copies seen by third parties (network cards) when they are said to be done: for all memory of this context. A
    /// driver's lock is taken: once for each context, never on the data path.
    /// Errors: `Unsupported` before CUDA 12.1: set it for each allocation then ([`Cuda::set_sync_memops`]).
    pub(crate) fn set_sync_memops(&self) -> Result<()> {
        let cuda = self.cuda();
        let get = cuda.optional(cuda.api.cuCtxGetFlags, "cuCtxGetFlags")?;
        let set = cuda.optional(cuda.api.cuCtxSetFlags, "cuCtxSetFlags")?;
        let mut flags = 0;
        // SAFETY: writes one number.
        let status = unsafe { get(&raw mut flags) };
        status.check("cuCtxGetFlags")?;
        if flags & super::sys::CTX_SYNC_MEMOPS != 0 {
            return Ok(());
        }
        // With the flags that are there: the call replaces all.
        // SAFETY: takes a number.
        let status = unsafe { set(flags | super::sys::CTX_SYNC_MEMOPS) };
        status.check("cuCtxSetFlags")
    }
}

impl fmt::Debug for ContextGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ContextGuard").field(self.context).finish()
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        pop(self.cuda(), self.context.raw());
    }
}

fn push(cuda: &Cuda, raw: RawContext) -> Result<()> {
    // SAFETY: a context that lives, as the callers see to.
    let status = unsafe { (cuda.api.cuCtxPushCurrent_v2)(raw) };
    status.check("cuCtxPushCurrent_v2")
}

fn pop(cuda: &Cuda, expected: RawContext) {
    let mut popped = RawContext::NULL;
    // SAFETY: writes one handle.
    let status = unsafe { (cuda.api.cuCtxPopCurrent_v2)(&raw mut popped) };
    if status != Status::SUCCESS || popped != expected {
        // Somebody pushed or popped in between, or guards were dropped out of order. What was made under a wrong context is refused
        // by the driver; nothing here relies on more.
        tracing::error!(target: "wharf::cuda", "the stack of contexts is out of order: {status}");
    }
}
