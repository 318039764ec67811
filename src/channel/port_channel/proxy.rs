//! The proxy: a task that takes triggers and does them, and sleeps when there are none.
//!
//! Its own ring wakes it. Those of devices do not: where there are some, it looks at them all the time for a while, and then by the clock.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crate::{
    channel::{
        RegisteredMemory, RemoteMemory, Semaphore,
        fifo::{Fifo, PushError},
        memory_channel::start_put,
    },
    endpoint::Op,
    error::{Error, ErrorKind, Operation, Result},
    sys::{blocking::Offloaded, fork},
    util::{
        lock::{Mutex, RwLock},
        wake::wake_all,
    },
};

use super::{
    Trigger, TriggerKind,
    ring::{Reader, Ring},
};

/// Puts of one channel that are under way at a time.
const UNDER_WAY: usize = 64;
/// For so long after a device's trigger, or when some are expected, the proxy looks all the time.
const EAGER: Duration = Duration::from_millis(1);
/// For so long after that it looks often.
const LIVELY: Duration = Duration::from_secs(1);
/// Between two looks then, and later. A runtime's timers are no finer.
const OFTEN: Duration = Duration::from_millis(1);
const SELDOM: Duration = Duration::from_millis(10);

/// What producers and the proxy share.
///
/// A child made by `fork` has a copy of all of it, the ring among it, which no proxy empties, and locks as they were: it is refused before it touches any.
pub(super) struct Shared {
    fifo: Fifo,
    pub(super) memories: RwLock<Vec<RegisteredMemory>>,
    pub(super) remotes: RwLock<Vec<RemoteMemory>>,
    pub(super) semaphores: RwLock<Vec<Semaphore>>,
    flushes: Mutex<Flushes>,
    /// Triggers that were done.
    done: AtomicU64,
    /// Rings of devices that the proxy has not seen yet.
    rings: Mutex<Vec<Arc<Ring>>>,
    /// There are some, or triggers are expected.
    is_called: AtomicBool,
    /// The process that it is of.
    mark: fork::Mark,
}

#[derive(Default)]
struct Flushes {
    /// By the position of the trigger. As many as there are futures that wait for one.
    wanted: HashMap<u64, Wanted>,
    over: bool,
}

/// A flush whose outcome a future waits for.
#[derive(Default)]
struct Wanted {
    outcome: Option<Result<()>>,
    waker: Option<Waker>,
}

impl Shared {
    pub(super) fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            fifo: Fifo::new(slots),
            memories: RwLock::default(),
            remotes: RwLock::default(),
            semaphores: RwLock::default(),
            flushes: Mutex::default(),
            done: AtomicU64::new(0),
            rings: Mutex::default(),
            is_called: AtomicBool::new(false),
            mark: fork::Mark::here(),
        })
    }

    /// Whether this process may use it.
    /// Errors: `Forked`.
    #[inline]
    pub(super) fn admits(&self, operation: Operation) -> Result<()> {
        self.mark.check(operation)
    }

    /// Takes no more triggers.
    pub(super) fn close(&self) {
        if !self.mark.is_child() {
            self.fifo.close();
        }
    }

    /// One more ring of a device's.
    pub(super) fn add_ring(&self, ring: Arc<Ring>) {
        self.rings.lock().push(ring);
        self.expect_triggers();
    }

    /// Makes the proxy look at the rings of devices.
    pub(super) fn expect_triggers(&self) {
        if !self.mark.is_child() {
            self.is_called.store(true, Ordering::Release);
            self.fifo.wake();
        }
    }

    /// Triggers that wait in the ring.
    pub(super) fn waiting(&self) -> usize {
        self.fifo.len()
    }

    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    pub(super) async fn push(&self, trigger: Trigger) -> Result<u64> {
        self.push_noted(trigger, |_| ()).await
    }

    /// The same with a flush whose outcome is wanted, until [`Shared::forget_flush`].
    pub(super) async fn push_wanted(&self, trigger: Trigger) -> Result<u64> {
        let want = |position| {
            let mut flushes = self.flushes.lock();
            flushes.wanted.insert(position, Wanted::default());
        };
        self.push_noted(trigger, want).await
    }

    async fn push_noted(&self, trigger: Trigger, note: impl Fn(u64)) -> Result<u64> {
        let mut pushed = pin!(self.fifo.push_when_room(trigger.to_words()?, note));
        // Also what waited for room when its process was copied.
        poll_fn(|cx| match self.admits(Operation::Put) {
            Ok(()) => pushed.as_mut().poll(cx).map_err(refusal),
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }

    pub(super) fn try_push(&self, trigger: Trigger) -> Result<u64> {
        self.admits(Operation::Put)?;
        self.fifo.push(trigger.to_words()?).map_err(refusal)
    }

    /// The outcome of a flush that is wanted, by its position.
    pub(super) fn poll_flush(&self, position: u64, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.admits(Operation::Flush)?;
        let mut flushes = self.flushes.lock();
        let over = flushes.over;
        if let Some(wanted) = flushes.wanted.get_mut(&position) {
            if let Some(outcome) = wanted.outcome.take() {
                return Poll::Ready(outcome);
            }
            if !over {
                match &mut wanted.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => wanted.waker = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(Err(refusal(PushError::Closed)))
    }

    pub(super) fn forget_flush(&self, position: u64) {
        if self.mark.is_child() {
            return;
        }
        let forgotten = self.flushes.lock().wanted.remove(&position);
        drop(forgotten);
    }

    /// Tells the outcome of a flush; gives an error back that nobody waits for.
    fn flushed(&self, position: u64, outcome: Result<()>) -> Result<()> {
        let waker = {
            let mut flushes = self.flushes.lock();
            let Some(wanted) = flushes.wanted.get_mut(&position) else {
                return outcome;
            };
            wanted.outcome = Some(outcome);
            wanted.waker.take()
        };
        wake_all(waker);
        Ok(())
    }

    fn end(&self) {
        if self.mark.is_child() {
            return;
        }
        self.fifo.close();
        let woken: Vec<Waker> = {
            let mut flushes = self.flushes.lock();
            flushes.over = true;
            let waiting = flushes.wanted.values_mut();
            waiting.filter_map(|wanted| wanted.waker.take()).collect()
        };
        wake_all(woken);
    }
}

/// What a trigger that was not taken tells its producer.
fn refusal(error: PushError) -> Error {
    let (kind, text) = match error {
        PushError::Full => (ErrorKind::WouldBlock, "the proxy's ring is full"),
        PushError::Closed => (ErrorKind::Closed, "the proxy has ended"),
    };
    Error::new(kind, text).during(Operation::Put)
}

/// Ends the service's waits when the task ends, however it does.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Rings of devices, and when to look at them next.
struct Devices {
    readers: Vec<Reader>,
    /// Who is looked at first: the proxy's own ring is behind all of them.
    turn: usize,
    /// Of the last trigger, or when some were expected.
    since: Instant,
    has_found: bool,
    nap: Option<Pin<Box<tokio::time::Sleep>>>,
}

/// What there is to do.
enum Found {
    Own([u64; 2]),
    /// Of the device's ring with this number.
    Device(usize, [u64; 2]),
    /// Nothing will come any more.
    Over,
}

impl Devices {
    fn new() -> Self {
        Self {
            readers: Vec::new(),
            turn: 0,
            since: Instant::now(),
            has_found: false,
            nap: None,
        }
    }

    fn poll(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<Found> {
        // Looked at before it is changed: it seldom is so.
        if shared.is_called.load(Ordering::Acquire) {
            shared.is_called.store(false, Ordering::Relaxed);
            let mut fresh = shared.rings.lock();
            self.readers.extend(fresh.drain(..).map(Reader::new));
            (self.since, self.nap) = (Instant::now(), None);
        }
        if let Some(found) = self.pop(shared) {
            return Poll::Ready(found);
        }
        match shared.fifo.poll_pop(cx.waker()) {
            Poll::Ready(Some(words)) => return Poll::Ready(Found::Own(words)),
            // Nobody holds the service: no kernel can push any more.
            Poll::Ready(None) => return Poll::Ready(self.pop(shared).unwrap_or(Found::Over)),
            // A ring that came since the look above was told of to nobody: the waker is there only now.
            Poll::Pending if shared.is_called.load(Ordering::Acquire) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Pending if self.readers.is_empty() => return Poll::Pending,
            Poll::Pending => {}
        }
        if std::mem::take(&mut self.has_found) {
            (self.since, self.nap) = (Instant::now(), None);
        }
        self.let_go();
        loop {
            let idle = self.since.elapsed();
            if idle < EAGER {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let time = if idle < LIVELY { OFTEN } else { SELDOM };
            let nap = self
                .nap
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
            if nap.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.nap = None;
            if let Some(found) = self.pop(shared) {
                return Poll::Ready(found);
            }
        }
    }

    /// A trigger of any ring, each in its turn.
    fn pop(&mut self, shared: &Shared) -> Option<Found> {
        let rings = self.readers.len();
        if rings == 0 {
            return None;
        }
        let found = (0..=rings).find_map(|step| {
            let at = (self.turn + step) % (rings + 1);
            let found = match self.readers.get_mut(at) {
                Some(reader) => reader.pop().map(|words| Found::Device(at, words)),
                None => shared.fifo.pop().map(Found::Own),
            };
            found.inspect(|_| self.turn = at + 1)
        });
        self.has_found |= matches!(found, Some(Found::Device(..)));
        found
    }

    /// Drops rings that are empty for good. To be called when none has a trigger.
    fn let_go(&mut self) {
        for at in (0..self.readers.len()).rev() {
            // Gone before it is looked at once more: what was pushed before is there then.
            if self.readers[at].is_gone() && self.readers[at].is_empty() {
                let reader = self.readers.swap_remove(at);
                // Its memory is freed by calls that may block.
                drop(Offloaded::new(reader));
            }
        }
    }
}

/// A channel's puts: those under way, and what has failed since the last flush.
#[derive(Default)]
struct Channel {
    puts: Vec<Op<()>>,
    failed: Option<Error>,
    known: Known,
}

/// What a channel's last trigger has named: who names the same takes no lock. What has a number keeps it.
#[derive(Default)]
struct Known {
    source: Option<(u16, RegisteredMemory)>,
    destination: Option<(u16, RemoteMemory)>,
    semaphore: Option<(u16, Semaphore)>,
}

/// The task. It ends when the ring is closed and empty.
pub(super) async fn run(shared: Arc<Shared>) {
    let ending = Ending(shared);
    let shared = &ending.0;
    let mut channels: HashMap<u16, Channel> = HashMap::new();
    let mut devices = Devices::new();
    let mut position = 0;
    loop {
        let (device, words) = match poll_fn(|cx| devices.poll(shared, cx)).await {
            Found::Own(words) => (None, words),
            Found::Device(device, words) => (Some(device), words),
            Found::Over => return,
        };
        let trigger = Trigger::from_words(words);
        let channel = channels.entry(trigger.semaphore).or_default();
        let outcome = act(shared, channel, trigger).await;
        if let Err(error) = outcome {
            tracing::debug!(target: "wharf::channel", %error, "a trigger of a port channel failed");
            channel.failed.get_or_insert(error);
        }
        let flushed = match trigger.kind.contains(TriggerKind::FLUSH) {
            true => Some(flush(shared, channel, trigger).await),
            false => None,
        };
        if let Some(reader) = device.and_then(|device| devices.readers.get_mut(device)) {
            reader.finish(flushed);
        } else {
            shared.done.store(position + 1, Ordering::Release);
            if let Some(outcome) = flushed
                && let Err(error) = shared.flushed(position, outcome)
            {
                // For the next flush.
                channel.failed = Some(error);
            }
            position += 1;
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// Puts and signals.
async fn act(shared: &Shared, channel: &mut Channel, trigger: Trigger) -> Result<()> {
    if channel.failed.is_some() {
        // What follows a failure would tell the peer of bytes that are not there.
        return Ok(());
    }
    let signals = trigger.kind.contains(TriggerKind::SIGNAL);
    let Channel { puts, known, .. } = channel;
    let (number, list) = (trigger.semaphore, &shared.semaphores);
    let semaphore = find(&mut known.semaphore, list, number, "semaphore");
    if trigger.kind.contains(TriggerKind::DATA) {
        let (number, list) = (trigger.source, &shared.memories);
        let source = find(&mut known.source, list, number, "source memory")?;
        let (number, list) = (trigger.destination, &shared.remotes);
        let destination = find(&mut known.destination, list, number, "destination memory")?;
        if signals && !puts.is_empty() || puts.len() >= UNDER_WAY {
            settle(puts).await?;
        }
        let start = || {
            let (to, from) = (trigger.destination_offset, trigger.source_offset);
            let (to, from) = (to as usize, from as usize);
            start_put(destination, to, source, from, trigger.size as usize)
        };
        if signals {
            let semaphore = semaphore?;
            return start()?.signal(semaphore.remote()).await;
        }
        match start()?.post() {
            Ok(put) => puts.push(put),
            // The window is full, of this channel's or of others.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                settle(puts).await?;
                start()?.await?;
            }
            Err(error) => return Err(error.into_parts().0),
        }
        return Ok(());
    }
    if signals {
        settle(puts).await?;
        semaphore?.signal().await?;
    }
    Ok(())
}

/// Waits for the puts of a channel.
async fn settle(puts: &mut Vec<Op<()>>) -> Result<()> {
    let mut outcome = Ok(());
    for put in puts.drain(..) {
        outcome = outcome.and(put.await);
    }
    outcome
}

async fn flush(shared: &Shared, channel: &mut Channel, trigger: Trigger) -> Result<()> {
    let settled = settle(&mut channel.puts).await;
    let (number, list) = (trigger.semaphore, &shared.semaphores);
    let flushed = match find(&mut channel.known.semaphore, list, number, "semaphore") {
        Ok(semaphore) => semaphore.endpoint().flush().await,
        Err(error) => Err(error),
    };
    match channel.failed.take() {
        Some(error) => Err(error),
        None => settled.and(flushed),
    }
}

fn find<'a, T: Clone>(
    known: &'a mut Option<(u16, T)>,
    list: &RwLock<Vec<T>>,
    number: u16,
    what: &'static str,
) -> Result<&'a T> {
    let found = match known.take().filter(|(known, _)| *known == number) {
        Some((_, found)) => Some(found),
        None => list.read().get(usize::from(number)).cloned(),
    };
    let found = found.ok_or_else(|| {
        let text = format!("the proxy has no {what} {number}");
        Error::new(ErrorKind::InvalidArgument, text).during(Operation::Put)
    })?;
    Ok(&known.insert((number, found)).1)
}
