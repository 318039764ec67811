//! Buffers that stay registered, to be leased.
//!
//! # Safety
//! A slab is one allocation of the host, cut into places of equal length. A place is in the list of the free, or belongs to one lease: so a lease
//! is the only way to its bytes. The slab lives until the pool and all leases are gone.
#![allow(unsafe_code)]

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    future::Future,
    ops::{Deref, DerefMut},
    pin::Pin,
    slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use super::{AddressRange, Buffer, BufferMut, HostBufferMut, Registrar};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    sys::{fork, pages},
    types::Access,
    util::{lock::Mutex, wake::wake_all},
};

/// Host buffers of one size that are registered once, all together, and leased one by one.
///
/// Memory that is leased from here needs no memory events and no registration cache: the pool owns it as long as it is registered. It has as
/// many buffers as it was made with, and never more. A cheap clone.
///
/// ```
/// # use wharf::{Access, memory::{BufferPool, MlockRegistrar}};
/// # async fn run() -> wharf::Result<()> {
/// let pool = BufferPool::new(MlockRegistrar::new(), Access::READ, 4096, 16)?;
/// let mut lease = pool.lease().await;
/// lease[..5].copy_from_slice(b"hello");
/// let buffer: wharf::Buffer = lease.into(); // goes back to the pool when the last clone is dropped
/// assert_eq!(pool.stats().leased, 1);
/// drop(buffer);
/// assert_eq!(pool.stats().leased, 0);
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run()).unwrap();
/// ```
pub struct BufferPool<R: Registrar> {
    inner: Arc<Inner<R>>,
}

/// What a [`BufferPool`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Buffers that there are.
    pub buffers: usize,
    /// Buffers that are leased now.
    pub leased: usize,
    /// Futures that wait for one now.
    pub waiting: usize,
    /// Leases that were ever given.
    pub leases: u64,
    /// Of those, the ones that had to wait.
    pub waited: u64,
}

struct Inner<R: Registrar> {
    registrar: R,
    /// Taken by `drop` alone.
    handle: Option<R::Handle>,
    slab: HostBufferMut,
    range: AddressRange,
    /// Bytes of a buffer, and from one to the next.
    size: usize,
    stride: usize,
    free: Mutex<Free>,
    leases: AtomicU64,
    waited: AtomicU64,
}

struct Free {
    places: Vec<usize>,
    buffers: usize,
    /// Who waits, by its ticket: who came first is served first.
    waiting: BTreeMap<u64, Waker>,
    /// Places to be fetched by the next poll of who waited.
    served: HashMap<u64, usize>,
    tickets: u64,
}

impl<R: Registrar> BufferPool<R> {
    /// Allocates `buffers` buffers of `size` bytes in one run, each aligned to 64 bytes, and registers the run for `access`. That may take
    /// long, as the pages are made: 64 MiB about 10 ms.
    ///
    /// # Errors
    /// `Forked` in a child made by `fork`. `InvalidArgument`: no buffers, no bytes, more bytes than a run can have, or a registrar that wants memory
    /// aligned to more than a page. What the allocation and the registrar say.
    pub fn new(registrar: R, access: Access, size: usize, buffers: usize) -> Result<Self> {
        fork::check(Operation::Memory)?;
        let attributes = registrar.attributes();
        let stride = size.checked_next_multiple_of(64);
        let length = stride.and_then(|stride| stride.checked_mul(buffers));
        let (Some(stride), Some(length)) = (stride, length) else {
            return Err(refused(format!("{buffers} buffers of {size} bytes")));
        };
        if length == 0 || length as u64 > attributes.max_length {
            return Err(refused(format!(
                "{length} bytes; a registration by {} has 1 to {}",
                registrar.name(),
                attributes.max_length
            )));
        }
        // The run is page aligned, so its ends may be rounded to pages only where the mapping has them.
        let align = attributes.alignment.max(1);
        let unaligned = || {
            refused(format!(
                "{} wants memory aligned to {align} bytes",
                registrar.name()
            ))
        };
        // Before it is allocated: address space of that size may be there, and what is freed is invalidated in every cache of the process.
        if align > pages::page_size() as u64 {
            return Err(unaligned());
        }
        let padded = usize::try_from(align)
            .ok()
            .and_then(|align| length.checked_next_multiple_of(align))
            .ok_or_else(|| refused(format!("an alignment of {align} bytes")))?;
        let slab = HostBufferMut::allocate(padded.max(length))?;
        let range = AddressRange::of(&slab);
        if !range.start().is_multiple_of(align) {
            return Err(unaligned());
        }
        let handle = registrar.register(range, access)?;
        Ok(Self {
            inner: Arc::new(Inner {
                registrar,
                handle: Some(handle),
                slab,
                range,
                size,
                stride,
                free: Mutex::new(Free {
                    // The first place is leased first.
                    places: (0..buffers).rev().collect(),
                    buffers,
                    waiting: BTreeMap::new(),
                    served: HashMap::new(),
                    tickets: 0,
                }),
                leases: AtomicU64::new(0),
                waited: AtomicU64::new(0),
            }),
        })
    }

    /// Bytes of each buffer.
    #[must_use]
    pub fn buffer_size(&self) -> usize {
        self.inner.size
    }

    /// What the registrar gave for all of the pool's memory, which begins at [`range`](Self::range)'s start.
    #[must_use]
    pub fn handle(&self) -> &R::Handle {
        self.inner.handle()
    }

    /// All of the pool's memory.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.inner.range
    }

    /// Leases a buffer if one is free and nobody waits for it. None in a child made by `fork`: the memory is its parent's.
    #[must_use]
    pub fn try_lease(&self) -> Option<PoolLease<R>> {
        if fork::forked() {
            return None;
        }
        let place = self.inner.free.lock().places.pop()?;
        Some(self.inner.lease(place))
    }

    /// Leases a buffer, as soon as one is free. Who was polled first gets one first. It never resolves in a child made by `fork`.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped, it leaves its place, and a buffer that had been kept for it goes to the next.
    pub fn lease(&self) -> Leasing<'_, R> {
        Leasing {
            pool: self,
            ticket: None,
        }
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let free = self.inner.free.lock();
        PoolStats {
            buffers: free.buffers,
            leased: free.buffers - free.places.len() - free.served.len(),
            waiting: free.waiting.len(),
            leases: self.inner.leases.load(Relaxed),
            waited: self.inner.waited.load(Relaxed),
        }
    }
}

impl<R: Registrar> Clone for BufferPool<R> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<R: Registrar> fmt::Debug for BufferPool<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("registrar", &self.inner.registrar.name())
            .field("buffer_size", &self.inner.size)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cold]
fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, why).during(Operation::Memory)
}

impl<R: Registrar> Inner<R> {
    fn handle(&self) -> &R::Handle {
        self.handle
            .as_ref()
            .expect("a pool holds its registration until it is dropped")
    }

    fn lease(self: &Arc<Self>, place: usize) -> PoolLease<R> {
        self.leases.fetch_add(1, Relaxed);
        PoolLease {
            inner: Arc::clone(self),
            place,
        }
    }

    fn address(&self, place: usize) -> *mut u8 {
        self.slab.address().wrapping_add(place * self.stride)
    }

    /// Gives a place to who waits longest, or back to the free ones.
    fn release(&self, place: usize) {
        let wake = {
            let mut free = self.free.lock();
            match free.waiting.pop_first() {
                Some((ticket, waker)) => {
                    free.served.insert(ticket, place);
                    Some(waker)
                }
                None => {
                    free.places.push(place);
                    None
                }
            }
        };
        wake_all(wake);
    }
}

impl<R: Registrar> Drop for Inner<R> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        // In a child the registration is the parent's still.
        if fork::forked() {
            let _kept = std::mem::ManuallyDrop::new(handle);
            return;
        }
        if let Err(error) = self.registrar.deregister(handle, self.range) {
            tracing::warn!(target: "wharf::memory", %error, "a pool could not be deregistered");
        }
    }
}

/// Waits for a buffer; made by [`BufferPool::lease`].
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "futures do nothing unless awaited"]
pub struct Leasing<'a, R: Registrar> {
    pool: &'a BufferPool<R>,
    ticket: Option<u64>,
}

impl<R: Registrar> Future for Leasing<'_, R> {
    type Output = PoolLease<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PoolLease<R>> {
        let this = &mut *self;
        if fork::forked() {
            return Poll::Pending;
        }
        let inner = &this.pool.inner;
        // Wakers are the user's code: not under the lock.
        let mut waker = Some(cx.waker().clone());
        let place = {
            let mut free = inner.free.lock();
            let place = match this.ticket {
                None => free.places.pop(),
                Some(ticket) => free.served.remove(&ticket),
            };
            match (place, this.ticket) {
                (Some(_), Some(_)) => {
                    this.ticket = None;
                    inner.waited.fetch_add(1, Relaxed);
                }
                (Some(_), None) => {}
                (None, before) => {
                    let ticket = before.unwrap_or_else(|| {
                        free.tickets += 1;
                        free.tickets
                    });
                    this.ticket = Some(ticket);
                    waker = waker.and_then(|new| free.waiting.insert(ticket, new));
                }
            }
            place
        };
        drop(waker);
        match place {
            Some(place) => Poll::Ready(inner.lease(place)),
            None => Poll::Pending,
        }
    }
}

impl<R: Registrar> Drop for Leasing<'_, R> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        if fork::forked() {
            return;
        }
        let (waker, place) = {
            let mut free = self.pool.inner.free.lock();
            (free.waiting.remove(&ticket), free.served.remove(&ticket))
        };
        drop(waker);
        if let Some(place) = place {
            self.pool.inner.release(place);
        }
    }
}

impl<R: Registrar> fmt::Debug for Leasing<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leasing").finish_non_exhaustive()
    }
}

/// A buffer of a [`BufferPool`], unique, with what it held before. Goes back when it is dropped, or when the [`BufferMut`] or [`Buffer`] is that it
/// was made into.
pub struct PoolLease<R: Registrar> {
    inner: Arc<Inner<R>>,
    place: usize,
}

impl<R: Registrar> PoolLease<R> {
    /// What the registrar gave for all of the pool's memory.
    #[must_use]
    pub fn handle(&self) -> &R::Handle {
        self.inner.handle()
    }

    /// Where it begins in the registration, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.place * self.inner.stride
    }
}

impl<R: Registrar> Deref for PoolLease<R> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the place is within the slab and this lease's alone, which is borrowed; `Inner` keeps the slab and never slices it.
        unsafe { slice::from_raw_parts(self.inner.address(self.place), self.inner.size) }
    }
}

impl<R: Registrar> DerefMut for PoolLease<R> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow is unique.
        unsafe { slice::from_raw_parts_mut(self.inner.address(self.place), self.inner.size) }
    }
}

impl<R: Registrar> Drop for PoolLease<R> {
    fn drop(&mut self) {
        // In a child it is the parent's still.
        if !fork::forked() {
            self.inner.release(self.place);
        }
    }
}

impl<R: Registrar> fmt::Debug for PoolLease<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolLease({} bytes)", self.inner.size)
    }
}

impl<R: Registrar> From<PoolLease<R>> for BufferMut {
    fn from(lease: PoolLease<R>) -> Self {
        let (address, len) = (lease.inner.address(lease.place), lease.inner.size);
        // SAFETY: initialised by the kernel, within the slab, and this lease's alone, which rides along as the owner and is reached by nobody.
        unsafe { Self::from_raw(address, len, lease) }
    }
}

impl<R: Registrar> From<PoolLease<R>> for Buffer {
    fn from(lease: PoolLease<R>) -> Self {
        BufferMut::from(lease).freeze()
    }
}

#[cfg(all(test, not(wharf_loom)))]
mod tests {
    use std::{
        pin::pin,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::memory::MlockRegistrar;

    /// However many wait, a buffer that comes back is the next one's at once, and each has it in its turn.
    #[test]
    fn a_buffer_is_handed_on_at_once() {
        let made = BufferPool::new(MlockRegistrar::new(), Access::READ, 64, 1);
        let pool = made.expect("a page that is locked");
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = pool.try_lease();
        let mut waiting: Vec<_> = (0..40_000).map(|_| Box::pin(pool.lease())).collect();
        for one in &mut waiting {
            assert!(one.as_mut().poll(&mut cx).is_pending());
        }
        let begin = Instant::now();
        for one in &mut waiting {
            assert!(one.as_mut().poll(&mut cx).is_pending(), "before its turn");
            drop(first.take());
            let Poll::Ready(lease) = one.as_mut().poll(&mut cx) else {
                panic!("passed over");
            };
            first = Some(lease);
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!((pool.stats().waiting, pool.stats().waited), (0, 40_000));
        // One that was served and goes gives its place to the next.
        let (mut served, mut next) = (pin!(pool.lease()), Box::pin(pool.lease()));
        assert!(served.as_mut().poll(&mut cx).is_pending());
        assert!(next.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert_eq!((pool.stats().waiting, pool.stats().leased), (1, 0));
        served.set(pool.lease());
        assert!(next.as_mut().poll(&mut cx).is_ready());
    }
}
