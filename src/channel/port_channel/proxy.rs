//! The proxy: a task that takes triggers and does them, and sleeps when there are none.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::{Mutex, RwLock};

use crate::{
    channel::{
        RegisteredMemory, RemoteMemory, Semaphore,
        fifo::{Fifo, PushError},
        memory_channel::start_put,
    },
    endpoint::Op,
    error::{Error, ErrorKind, Operation, Result},
    sys::fork,
    util::wake::wake_all,
};

use super::{Trigger, TriggerKind};

/// Puts of one channel that are under way at a time.
const UNDER_WAY: usize = 64;

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
            mark: fork::Mark::here(),
        })
    }

    /// Whether this process may use it.
    ///
    /// # Errors
    /// `Forked`.
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

/// A channel's puts: those under way, and what has failed since the last flush.
#[derive(Default)]
struct Channel {
    puts: Vec<Op<()>>,
    failed: Option<Error>,
}

/// The task. It ends when the ring is closed and empty.
pub(super) async fn run(shared: Arc<Shared>) {
    let ending = Ending(shared);
    let shared = &ending.0;
    let mut channels: HashMap<u16, Channel> = HashMap::new();
    let mut position = 0;
    while let Some(words) = poll_fn(|cx| shared.fifo.poll_pop(cx.waker())).await {
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
        shared.done.store(position + 1, Ordering::Release);
        if let Some(outcome) = flushed
            && let Err(error) = shared.flushed(position, outcome)
        {
            // For the next flush.
            channel.failed = Some(error);
        }
        position += 1;
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
    let semaphore = find(&shared.semaphores, trigger.semaphore, "semaphore");
    if trigger.kind.contains(TriggerKind::DATA) {
        let source = find(&shared.memories, trigger.source, "source memory")?;
        let destination = find(&shared.remotes, trigger.destination, "destination memory")?;
        if signals && !channel.puts.is_empty() || channel.puts.len() >= UNDER_WAY {
            settle(channel).await?;
        }
        let start = || {
            let (to, from) = (trigger.destination_offset, trigger.source_offset);
            let (to, from) = (to as usize, from as usize);
            start_put(&destination, to, &source, from, trigger.size as usize)
        };
        if signals {
            let semaphore = semaphore?;
            return start()?.signal(semaphore.remote()).await;
        }
        match start()?.post() {
            Ok(put) => channel.puts.push(put),
            // The window is full, of this channel's or of others.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                settle(channel).await?;
                start()?.await?;
            }
            Err(error) => return Err(error.into_parts().0),
        }
        return Ok(());
    }
    if signals {
        settle(channel).await?;
        semaphore?.signal().await?;
    }
    Ok(())
}

/// Waits for the puts of a channel.
async fn settle(channel: &mut Channel) -> Result<()> {
    let mut outcome = Ok(());
    for put in channel.puts.drain(..) {
        outcome = outcome.and(put.await);
    }
    outcome
}

async fn flush(shared: &Shared, channel: &mut Channel, trigger: Trigger) -> Result<()> {
    let settled = settle(channel).await;
    let flushed = match find(&shared.semaphores, trigger.semaphore, "semaphore") {
        Ok(semaphore) => semaphore.endpoint().flush().await,
        Err(error) => Err(error),
    };
    match channel.failed.take() {
        Some(error) => Err(error),
        None => settled.and(flushed),
    }
}

fn find<T: Clone>(list: &RwLock<Vec<T>>, number: u16, what: &'static str) -> Result<T> {
    let found = list.read().get(usize::from(number)).cloned();
    found.ok_or_else(|| {
        let text = format!("the proxy has no {what} {number}");
        Error::new(ErrorKind::InvalidArgument, text).during(Operation::Put)
    })
}
