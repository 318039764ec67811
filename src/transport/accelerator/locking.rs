//! Ordinary host memory as an end of copies: registered for the device through a registration cache, by a thread that may block, while the engine goes on.
//!
//! ```text
//! copy ─▶ find ──there──▶ under way
//!           │ not
//!           └▶ begin ─▶ waits ──registered: stirred, bell──▶ take ─▶ under way, or staged
//! ```

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::Bell;
use crate::{
    error::Result,
    memory::{
        AddressRange, GetRegistration, MonitorKind, Registrar, Registration, RegistrationCache,
        RegistrationCacheOptions, WeakRegistrationCache, monitor,
    },
    types::Access,
    util::lock::Mutex,
};

/// How memory is registered for a device's copies: as a context is configured, the last that has this accelerator.
#[derive(Debug, Default)]
pub(in crate::transport) struct CacheOptions(
    Mutex<Option<(RegistrationCacheOptions, MonitorKind)>>,
);

impl CacheOptions {
    pub(in crate::transport) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(in crate::transport) fn set(&self, options: RegistrationCacheOptions, kind: MonitorKind) {
        *self.0.lock() = Some((options, kind));
    }

    /// A cache before `registrar`, with what becomes of the options in `adapt`.
    /// Errors: as of [`RegistrationCache::new`] and [`monitor`].
    pub(in crate::transport) fn cache<R: Registrar>(
        &self,
        registrar: R,
        adapt: impl FnOnce(RegistrationCacheOptions) -> RegistrationCacheOptions,
    ) -> Result<RegistrationCache<R>> {
        let said = *self.0.lock();
        let (options, kind) = said.unwrap_or_default();
        RegistrationCache::new(registrar, monitor(kind)?, adapt(options))
    }
}

/// The cache that all engines of an accelerator share, there as long as one of them has it.
pub(in crate::transport) struct SharedCache<R: Registrar> {
    options: CacheOptions,
    cache: Mutex<WeakRegistrationCache<R>>,
}

impl<R: Registrar> SharedCache<R> {
    pub(in crate::transport) const fn new() -> Self {
        Self {
            options: CacheOptions::new(),
            cache: Mutex::new(WeakRegistrationCache::new()),
        }
    }

    /// For the cache that is made next.
    pub(in crate::transport) fn set(&self, options: RegistrationCacheOptions, kind: MonitorKind) {
        self.options.set(options, kind);
    }

    /// That which is there, else one for a new registrar.
    /// Errors: of `registrar`; as of [`RegistrationCache::new`].
    pub(in crate::transport) fn get(
        &self,
        registrar: impl FnOnce() -> Result<R>,
    ) -> Result<RegistrationCache<R>> {
        let mut shared = self.cache.lock();
        if let Some(cache) = shared.upgrade() {
            return Ok(cache);
        }
        let cache = self.options.cache(registrar()?, |options| options)?;
        *shared = cache.downgrade();
        Ok(cache)
    }
}

impl<R: Registrar> fmt::Debug for SharedCache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedCache")
    }
}

/// Copies, as `T`, of one home that wait for their memory.
pub(in crate::transport) struct Locking<R: Registrar, T> {
    cache: RegistrationCache<R>,
    waiting: Vec<(T, Pin<Box<GetRegistration<R>>>)>,
    stir: Arc<Stir>,
}

/// Whether there is something to look at.
struct Stir {
    yes: AtomicBool,
    bell: Weak<Bell>,
}

impl Wake for Stir {
    fn wake(self: Arc<Self>) {
        self.yes.store(true, SeqCst);
        if let Some(bell) = self.bell.upgrade() {
            bell.ring();
        }
    }
}

/// A device may read and write it.
const ACCESS: Access = Access::READ.union(Access::WRITE);

impl<R: Registrar, T> Locking<R, T> {
    pub(in crate::transport) fn new(cache: &RegistrationCache<R>, bell: &Arc<Bell>) -> Self {
        Self {
            cache: cache.clone(),
            waiting: Vec::new(),
            stir: Arc::new(Stir {
                yes: AtomicBool::new(false),
                bell: Arc::downgrade(bell),
            }),
        }
    }

    /// What is registered already. No lock.
    pub(in crate::transport) fn find(&self, range: AddressRange) -> Option<Registration<R>> {
        self.cache.lookup(range, ACCESS)
    }

    /// Begins to register, with all of `whole` if that is wharf's own memory. [`Locking::take`] gives the copy back.
    pub(in crate::transport) fn begin(
        &mut self,
        copy: T,
        range: AddressRange,
        whole: Option<AddressRange>,
    ) {
        let get = match whole {
            Some(whole) => self.cache.get_owned(range, whole, ACCESS),
            None => self.cache.get(range, ACCESS),
        };
        self.waiting.push((copy, Box::pin(get)));
        // The first look begins it.
        self.stir.yes.store(true, SeqCst);
    }

    /// Whether none waits.
    pub(in crate::transport) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether one of those that wait is such a one.
    pub(in crate::transport) fn any(&self, is: impl Fn(&T) -> bool) -> bool {
        self.waiting.iter().any(|(copy, _)| is(copy))
    }

    /// Whether [`Locking::take`] may have something.
    pub(in crate::transport) fn is_stirred(&self) -> bool {
        !self.waiting.is_empty() && self.stir.yes.load(SeqCst)
    }

    /// Those whose memory is registered, or cannot be.
    pub(in crate::transport) fn take(&mut self) -> Vec<(T, Result<Registration<R>>)> {
        if self.waiting.is_empty() || !self.stir.yes.swap(false, SeqCst) {
            return Vec::new();
        }
        let waker = Waker::from(Arc::clone(&self.stir));
        let mut context = Context::from_waker(&waker);
        let mut over = Vec::new();
        for (copy, mut get) in std::mem::take(&mut self.waiting) {
            match get.as_mut().poll(&mut context) {
                Poll::Pending => self.waiting.push((copy, get)),
                Poll::Ready(result) => over.push((copy, result)),
            }
        }
        over
    }

    /// Gives up all that wait.
    pub(in crate::transport) fn clear(&mut self) -> Vec<T> {
        self.waiting.drain(..).map(|(copy, _)| copy).collect()
    }
}

impl<R: Registrar, T> fmt::Debug for Locking<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Locking({} copies)", self.waiting.len())
    }
}
