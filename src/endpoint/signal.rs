//! Counters that peers raise and tasks wait for.

use std::{
    cell::Cell,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    error::{Operation, Result},
    memory::{Region, atomic::COUNTER_SIZE, waiters::reached},
    protocol::{Descriptor, control::Signal},
    types::{Access, AtomicOp, AtomicRequest, Width},
    worker::atomic::MappedCounter,
};

use super::{Atomic, Endpoint, RemoteRegion, Worker, atomic::Way};

/// Eight bytes of exposed memory that peers raise by signals, and that tasks wait for. A cheap clone; the memory is exposed until the last one is
/// dropped.
///
/// A peer imports its [`descriptor`](Counter::descriptor), and raises it behind a put ([`Put::signal`](crate::Put::signal)), or alone
/// ([`Endpoint::signal`]). A signal wakes whoever waits, however deeply its worker sleeps: where the counter is mapped at the peer (shared memory) it is
/// an atomic addition, and a message only when somebody sleeps here; else it is a message.
///
/// ```
/// # async fn run() -> wharf::Result<()> {
/// # use wharf::{Access, Context, Worker};
/// # let context = Context::builder().transports("self")?.build()?;
/// # let worker = Worker::new(&context)?;
/// # let endpoint = worker.connect(&worker.address()?).await?;
/// # let region = context.expose(vec![0; 100], Access::WRITE).await?;
/// # let remote = endpoint.import(&region.descriptor()?)?;
/// let counter = worker.counter().await?;
/// let there = endpoint.import(&counter.descriptor()?)?;
/// endpoint.put(vec![7; 100], remote).signal(&there).await?;
/// counter.wait(1).await?;
/// # let mut bytes = [0; 100];
/// # region.read_at(0, &mut bytes)?;
/// assert_eq!(bytes, [7; 100]); // whoever is woken sees the bytes of the put
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
/// ```
#[derive(Clone)]
pub struct Counter {
    inner: Arc<Inner>,
}

struct Inner {
    region: Region,
    worker: Worker,
}

impl Worker {
    /// Makes a counter of value 0, whose waits drive this worker. Peers of any worker of the context may raise it.
    ///
    /// It is a mapping and a file descriptor of its own: for long use, not for one signal.
    ///
    /// # Errors
    /// `Exhausted` when memory or descriptors ran out.
    ///
    /// # Cancel safety
    /// Dropping the future frees what it had allocated.
    pub async fn counter(&self) -> Result<Counter> {
        let context = &self.shared().context;
        let memory = context.allocate(COUNTER_SIZE).await?;
        let region = context.expose(memory, Access::READ | Access::WRITE).await?;
        Ok(Counter {
            inner: Arc::new(Inner {
                region,
                worker: self.clone(),
            }),
        })
    }
}

impl Counter {
    /// The value now.
    #[must_use]
    pub fn value(&self) -> u64 {
        // A counter's memory is always a word.
        self.inner.region.exposed().value().unwrap_or(0)
    }

    /// Adds to it here, wrapping around, and wakes who waits for that; returns the old value.
    pub fn add(&self, n: u64) -> u64 {
        self.inner.region.fetch_add(0, n).unwrap_or(0)
    }

    /// What a peer needs to raise it, to be sent to it by any means.
    ///
    /// # Errors
    /// As [`Region::descriptor`].
    pub fn descriptor(&self) -> Result<Descriptor> {
        self.inner.region.descriptor()
    }

    /// Waits until the value is `at_least` or more; resolves to the value.
    ///
    /// Values wrap around: one counts as more if it is less than 2^63 steps ahead. So a loop may wait for `last.wrapping_add(1)` for ever.
    ///
    /// A peer that adds to the counter by [`RemoteRegion::add`] in mapped memory wakes nobody who sleeps; the next signal does.
    ///
    /// # Errors
    /// `Closed` when the worker is shut down. The end of a connection ends no wait: anybody may raise a counter. Wait for
    /// [`Endpoint::closed`] beside it.
    pub fn wait(&self, at_least: u64) -> Wait<'_> {
        Wait {
            counter: self,
            at_least,
            waiting: Waiting::default(),
        }
    }

    /// Looks so many times whether the value is there, without driving the worker: for values that peers raise in memory.
    #[inline]
    pub(crate) fn look(&self, at_least: u64, looks: u32) -> bool {
        self.inner
            .region
            .exposed()
            .comes(|value| reached(value, at_least), looks)
    }

    #[inline]
    pub(crate) fn worker(&self) -> &Worker {
        &self.inner.worker
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter")
            .field("value", &self.value())
            .finish_non_exhaustive()
    }
}

/// Waits for a counter; made by [`Counter::wait`].
///
/// # Completion
/// Resolves to the value, once it is as high as was asked for. All that was put before the signals that raised it is visible then.
///
/// # Cancel safety
/// Cancel safe: it only reads.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Wait<'a> {
    counter: &'a Counter,
    at_least: u64,
    waiting: Waiting,
}

impl Future for Wait<'_> {
    type Output = Result<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<u64>> {
        let this = &mut *self;
        this.waiting.poll(this.counter, this.at_least, cx)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waiting.end(self.counter);
    }
}

/// What a wait for a counter remembers. To be ended before it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Its place among those who wait at the region.
    key: Option<usize>,
}

impl Waiting {
    /// As [`Counter::wait`]. The value may be another at each poll.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        counter: &Counter,
        at_least: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<u64>> {
        let inner = &*counter.inner;
        let shared = inner.worker.shared();
        let begun = ready!(shared.look(Operation::Signal, cx))?;
        let exposed = inner.region.exposed();
        let arrived = || exposed.value().filter(|value| reached(*value, at_least));
        if let Some(value) = arrived() {
            begun.count(cx);
            return Poll::Ready(Ok(value));
        }
        let key = Cell::new(self.key);
        let result = begun.drive(
            cx,
            |engine| {
                if let Some(key) = key.get() {
                    // Its own progress must not wake it.
                    exposed.waiters.take(key);
                }
                if arrived().is_none() {
                    engine.peek(|_| arrived().is_some());
                }
                match arrived() {
                    Some(value) => Some(Ok(value)),
                    None => {
                        let closing = engine.closing;
                        closing.map(|_| Err(engine.closed().during(Operation::Signal)))
                    }
                }
            },
            |engine, waker| {
                key.set(Some(exposed.leave_waiter(key.get(), at_least, waker)));
                if arrived().is_some() {
                    // Raised by another worker, or in memory, which may not have seen the waker.
                    engine.ctx().wakes.push(waker.clone());
                }
            },
        );
        self.key = key.get();
        result
    }

    /// Waits no longer.
    pub(crate) fn end(&mut self, counter: &Counter) {
        if let Some(key) = self.key.take() {
            counter.inner.region.exposed().remove_waiter(key);
        }
    }
}

impl RemoteRegion {
    /// A counter that is mapped here, if it is.
    pub(crate) fn mapped_counter(&self) -> Option<MappedCounter> {
        let (link, _) = self.endpoint().place();
        let shared = self.endpoint().shared();
        shared
            .ask(|engine| engine.ctx().mapped_counter(link, &self.target()))
            .flatten()
    }
}

impl Endpoint {
    /// Adds `n` to a counter of the peer, or to any eight aligned bytes at the beginning of exposed memory, and wakes who waits for it.
    ///
    /// It comes behind the puts that have ended; [`Put::signal`](crate::Put::signal) orders itself behind its own.
    ///
    /// # Errors
    /// As for an atomic operation.
    pub fn signal<'a>(&'a self, counter: &'a RemoteRegion, n: u64) -> Atomic<'a, ()> {
        let request = AtomicRequest::new(AtomicOp::Add, n);
        Atomic::new(self, counter, 0, request, Way::Signal)
    }

    /// Wakes who waits for a counter that was raised in memory.
    pub(crate) fn wake<'a>(&'a self, counter: &'a RemoteRegion) -> Atomic<'a, ()> {
        let request = AtomicRequest::new(AtomicOp::Add, 0_u64);
        Atomic::new(self, counter, 0, request, Way::Wake)
    }

    /// A signal to go behind a put of this endpoint.
    pub(super) fn signal_for_put(&self, counter: &RemoteRegion, n: u64) -> Result<Signal> {
        let target = counter
            .word(self, 0, Width::Eight, Access::WRITE)
            .map_err(|error| error.during(Operation::Signal))?;
        Ok(target.signal(n))
    }
}
