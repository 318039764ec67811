//! Active messages as they arrive: a stream of them, or a callback.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Wake, Waker, ready},
};

use futures::Stream;

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    types::AmId,
    util::{lock::Mutex, tasks::spawn},
    worker::{
        Handle,
        door::Begun,
        engine::Engine,
        inbox::{Arrived, Front},
    },
};

use super::{ActiveMessage, AmArrival, Worker, in_place};

/// Messages of one endpoint that wait in an inbox, unless [`ActiveMessages::capacity`] says otherwise.
const CAPACITY: usize = 256;

/// Messages that a callback takes in one turn before other work of the runtime has its own.
const TURN: usize = 1024;

/// How active messages of one id are received; made by [`Worker::active_messages`].
#[derive(Debug)]
#[must_use = "nothing is received before `open` or `on_message`"]
pub struct ActiveMessages<'a> {
    worker: &'a Worker,
    id: AmId,
    capacity: usize,
}

impl<'a> ActiveMessages<'a> {
    pub(crate) fn new(worker: &'a Worker, id: AmId) -> Self {
        Self {
            worker,
            id,
            capacity: CAPACITY,
        }
    }

    /// How many messages of one endpoint may wait to be taken: 1 at least, 256 unless set. It holds its sender back by credits. The first
    /// 16 of an endpoint come unasked, whatever the capacity.
    pub fn capacity(mut self, messages: usize) -> Self {
        self.capacity = messages;
        self
    }

    /// Receives by a stream. Dropping the stream ends it: what waits in it, and what comes after, is refused.
    ///
    /// # Errors
    /// `InvalidArgument` when the id is received already or the capacity makes no sense, `Closed` when the worker has been shut down.
    pub fn open(self) -> Result<AmInbox> {
        let (id, handle) = (self.id, self.worker.handle().clone());
        let capacity = self.checked()?;
        let begun = handle
            .shared
            .begin(Operation::AmRecv, |engine| open(engine, id, capacity));
        let serial = begun?.0?;
        Ok(AmInbox(Opened { handle, id, serial }))
    }

    /// Calls `act` with each message, in order and one at a time, for the lowest latency: on the thread that drove the worker when the
    /// message arrived, so that no task is switched to, and with the bytes where they arrived ([`AmArrival`]), which are kept only if it says so. It may
    /// use the worker and its endpoints (to post an answer, say), and [`tokio::spawn`]: where a thread of the worker's own or [`Worker::progress`] drives, the worker's runtime is entered for it. It must not block.
    /// Credits return to the sender when a message is handed to it. A panic in it is logged and ends that call alone.
    ///
    /// Dropping the guard ends it as dropping an [`AmInbox`] does; a call that is under way ends by itself.
    ///
    /// # Errors
    /// As [`ActiveMessages::open`].
    #[doc(alias = "ucp_worker_set_am_recv_handler")]
    #[doc(alias(
        "ucp_worker_set_am_handler",
        "ucp_am_handler_param_t",
        "ucp_am_callback_t",
        "ucp_am_recv_callback_t",
        "UCP_AM_FLAG_WHOLE_MSG",
        "UCP_AM_FLAG_PERSISTENT_DATA"
    ))]
    pub fn on_message(self, act: impl FnMut(AmArrival<'_>) + Send + 'static) -> Result<AmHandler> {
        let (id, handle) = (self.id, self.worker.handle().clone());
        let capacity = self.checked()?;
        let weak = Arc::downgrade(&handle);
        let act: Mutex<Act> = Mutex::new(Box::new(act));
        let begun = handle.shared.begin(Operation::AmRecv, |engine| {
            let serial = open(engine, id, capacity)?;
            let runner = Runner {
                handle: weak,
                id,
                serial,
                act,
            };
            engine
                .core
                .am_run_by(id, serial, Waker::from(Arc::new(runner)));
            Ok::<_, Error>(serial)
        });
        let serial = begun?.0?;
        Ok(AmHandler(Opened { handle, id, serial }))
    }

    fn checked(&self) -> Result<u32> {
        u32::try_from(self.capacity)
            .ok()
            .filter(|capacity| (1..=u32::MAX / 4).contains(capacity))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("a capacity of {} messages", self.capacity),
                )
            })
    }
}

fn open(engine: &mut Engine, id: AmId, capacity: u32) -> Result<u64> {
    if engine.closing.is_some() {
        return Err(engine.closed());
    }
    engine.core.am_open(id, capacity)
}

/// An inbox that is open; dropping it closes it.
#[derive(Debug)]
struct Opened {
    handle: Arc<Handle>,
    id: AmId,
    serial: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (id, serial) = (self.id, self.serial);
        // What it owned is dropped without the lock: a callback is user code.
        let runner = self
            .handle
            .shared
            .ask(|engine| engine.core.am_close(id, serial));
        drop(runner);
    }
}

impl Opened {
    /// The next message, if it lies in front of what arrives: for the thread that owns the lock. Who `waits` looks for longer where messages come soon.
    #[inline(always)]
    fn at_once(&self, waits: bool) -> Option<(Front, Begun<'_>)> {
        let mut inside = self.handle.shared.owner_inside()?;
        let looks = if waits { inside.first_looks } else { 0 };
        let front = inside.am_front(self.id, self.serial, looks)?;
        let begun = inside.over();
        if front.owes {
            begun.am_settle(front.link, self.id);
        }
        Some((front, begun))
    }

    /// A message that has arrived; in place, where that is possible, unless it is to be kept.
    fn try_take(&self, keeps: bool) -> Option<Arrived> {
        let shared = &self.handle.shared;
        shared
            .ask(|engine| engine.am_try(self.id, self.serial, keeps))
            .flatten()
    }

    /// The next message; in place, where that is possible, unless it is to be kept.
    fn poll(&self, cx: &mut Context<'_>, keeps: bool) -> Poll<Option<Arrived>> {
        let Ok(begun) = ready!(self.handle.shared.look(Operation::AmRecv, cx)) else {
            return Poll::Ready(None);
        };
        begun.drive(
            cx,
            |engine| match engine.am_now(self.id, self.serial, keeps) {
                Some(arrived) => Some(Some(arrived)),
                None => engine.closing.map(|_| None),
            },
            |engine, waker| {
                let slot = engine.core.am_waker(self.id, self.serial);
                let before = slot.and_then(|slot| slot.leave(waker));
                engine.ctx().drop_later(before);
            },
        )
    }

    #[inline(always)]
    fn poll_kept(&self, cx: &mut Context<'_>) -> Poll<Option<ActiveMessage>> {
        if let Some((front, begun)) = self.at_once(true) {
            begun.count(cx);
            return Poll::Ready(Some(self.keep(front)));
        }
        self.wait_kept(cx)
    }

    #[inline(never)]
    fn wait_kept(&self, cx: &mut Context<'_>) -> Poll<Option<ActiveMessage>> {
        let arrived = ready!(self.poll(cx, true));
        Poll::Ready(arrived.map(|arrived| ActiveMessage::new(&self.handle, self.id, arrived)))
    }

    #[inline(always)]
    fn keep(&self, front: Front) -> ActiveMessage {
        ActiveMessage::of_front(&self.handle, self.id, front)
    }

    /// As [`in_place::lend`].
    #[inline(always)]
    fn lend<R>(&self, arrived: Arrived, look: impl FnOnce(AmArrival<'_>) -> R) -> R {
        in_place::lend(&self.handle, self.id, arrived, look)
    }
}

/// The active messages of one id, as a [`Stream`] in the order in which they arrived; made by [`ActiveMessages::open`].
///
/// The stream ends when the worker is shut down, and in a child made by `fork`.
///
/// # Cancel safety
/// `next().await` and [`AmInbox::recv`] are cancel safe: dropped before they resolve they take no message with them.
#[must_use = "dropping an inbox refuses its messages"]
#[derive(Debug)]
pub struct AmInbox(Opened);

impl AmInbox {
    /// The id that it receives.
    #[must_use]
    pub fn id(&self) -> AmId {
        self.0.id
    }

    /// Waits for the next message. `None` when the worker was shut down.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[inline]
    pub fn recv(&mut self) -> AmRecv<'_> {
        AmRecv { inbox: self }
    }

    /// The next message, if one has arrived.
    pub fn try_recv(&mut self) -> Option<ActiveMessage> {
        if let Some((front, _)) = self.0.at_once(false) {
            return Some(self.0.keep(front));
        }
        let arrived = self.0.try_take(true)?;
        Some(ActiveMessage::new(&self.0.handle, self.0.id, arrived))
    }

    /// Waits for the next message and calls `look` with it where it arrived, without a copy where its transport is `shm`: for the lowest latency, and
    /// for who needs only a part of it, or puts it somewhere by itself. Resolves to what `look` returns; `None`, without calling it, when the
    /// worker was shut down.
    ///
    /// `look` runs in the task that waits. It may use the worker and its endpoints, as a callback may ([`ActiveMessages::on_message`]); its sender gets
    /// the room of the message back when it returns, or panics, so it should not take long.
    ///
    /// ```
    /// # async fn run() -> wharf::Result<()> {
    /// # use wharf::{AmId, Context, Worker};
    /// # let context = Context::builder().transports("self")?.build()?;
    /// # let worker = Worker::new(&context)?;
    /// # let endpoint = worker.connect(&worker.address()?).await?;
    /// let mut inbox = worker.active_messages(AmId(3)).open()?;
    /// endpoint.am_send(AmId(3), 7_u64.to_le_bytes().to_vec(), vec![1; 1000]).await?;
    /// let (number, kept) = inbox
    ///     .recv_with(|message| {
    ///         let number = message.header().read(0).map(u64::from_le_bytes);
    ///         (number, (message.len() < 2000).then(|| message.keep()))
    ///     })
    ///     .await
    ///     .unwrap_or_default();
    /// assert_eq!(number, Some(7));
    /// # assert_eq!(kept.unwrap().bytes().await?[..], [1; 1000]);
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn recv_with<R, F: FnOnce(AmArrival<'_>) -> R>(&mut self, look: F) -> AmRecvWith<'_, F> {
        AmRecvWith {
            inbox: self,
            look: Some(look),
        }
    }

    /// As [`AmInbox::recv_with`], of a message that has arrived; `None`, without calling `look`, when none has.
    pub fn try_recv_with<R>(&mut self, look: impl FnOnce(AmArrival<'_>) -> R) -> Option<R> {
        let arrived = match self.0.at_once(false) {
            Some((front, _)) => front.arrived(),
            None => self.0.try_take(false)?,
        };
        Some(self.0.lend(arrived, look))
    }
}

impl Stream for AmInbox {
    type Item = ActiveMessage;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ActiveMessage>> {
        self.0.poll_kept(cx)
    }
}

/// Waits for the next message of an inbox; made by [`AmInbox::recv`].
///
/// # Completion
/// Resolves to the message, or to `None` when the worker was shut down.
///
/// # Cancel safety
/// Cancel safe: dropped before it resolves it takes no message with it.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct AmRecv<'a> {
    inbox: &'a mut AmInbox,
}

impl Future for AmRecv<'_> {
    type Output = Option<ActiveMessage>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ActiveMessage>> {
        self.inbox.0.poll_kept(cx)
    }
}

/// Waits for the next message of an inbox and looks at it where it arrived; made by [`AmInbox::recv_with`].
///
/// # Completion
/// Resolves to what the closure returns, which was called once, or to `None`, without calling it, when the worker was shut down.
///
/// # Cancel safety
/// Cancel safe: dropped before it resolves it has taken no message.
#[must_use = "futures do nothing unless awaited"]
pub struct AmRecvWith<'a, F> {
    inbox: &'a mut AmInbox,
    look: Option<F>,
}

impl<F> Unpin for AmRecvWith<'_, F> {}

impl<R, F: FnOnce(AmArrival<'_>) -> R> Future for AmRecvWith<'_, F> {
    type Output = Option<R>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<R>> {
        let this = &mut *self;
        if this.look.is_none() {
            // Polled after its end: no message is for it.
            return Poll::Ready(None);
        }
        let opened = &this.inbox.0;
        if let Some((front, begun)) = opened.at_once(true) {
            begun.count(cx);
            let look = this.look.take();
            return Poll::Ready(look.map(|look| opened.lend(front.arrived(), look)));
        }
        this.wait(cx)
    }
}

impl<R, F: FnOnce(AmArrival<'_>) -> R> AmRecvWith<'_, F> {
    #[inline(never)]
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Option<R>> {
        let opened = &self.inbox.0;
        let arrived = ready!(opened.poll(cx, false));
        let look = self.look.take();
        Poll::Ready(
            arrived
                .zip(look)
                .map(|(arrived, look)| opened.lend(arrived, look)),
        )
    }
}

impl<F> fmt::Debug for AmRecvWith<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmRecvWith")
            .field("inbox", &self.inbox)
            .finish_non_exhaustive()
    }
}

/// A callback that receives active messages, until this is dropped; made by [`ActiveMessages::on_message`].
#[must_use = "dropping it ends the callback"]
#[derive(Debug)]
pub struct AmHandler(Opened);

impl AmHandler {
    /// The id that it receives.
    #[must_use]
    pub fn id(&self) -> AmId {
        self.0.id
    }
}

type Act = Box<dyn FnMut(AmArrival<'_>) + Send>;

/// Runs a callback. The inbox wakes it as it would wake a task: by whoever lets go of the worker's lock, after that. While it runs
/// the inbox wakes nobody, so there is one run at a time.
struct Runner {
    /// Not the worker's own life: a callback that is forgotten does not keep it.
    handle: Weak<Handle>,
    id: AmId,
    serial: u64,
    act: Mutex<Act>,
}

impl Runner {
    /// The next message; `None` when there is none, and whoever brings one runs this again.
    #[inline]
    fn next(&self, handle: &Handle) -> Option<Arrived> {
        let (shared, id, serial) = (&handle.shared, self.id, self.serial);
        if let Some((front, begun)) = shared.at_once(|engine| engine.am_front(id, serial, 0)) {
            if front.owes {
                begun.am_settle(front.link, id);
            }
            return Some(front.arrived());
        }
        shared.ask(|engine| engine.am_next(id, serial)).flatten()
    }
}

impl Wake for Runner {
    fn wake(self: Arc<Self>) {
        let Some(handle) = self.handle.upgrade() else {
            return;
        };
        for _ in 0..TURN {
            let Some(arrived) = self.next(&handle) else {
                return;
            };
            // Without the worker's lock; what is held in place ends with this.
            let act = &mut *self.act.lock();
            let called = catch_unwind(AssertUnwindSafe(|| {
                in_place::lend(&handle, self.id, arrived, act);
            }));
            if called.is_err() {
                tracing::error!(target: "wharf::worker", id = self.id.0, "a callback for active messages panicked; it goes on with the next message");
            }
        }
        // Still marked as running.
        spawn(&handle.shared.runtime, async move { self.wake() });
    }
}

impl Worker {
    /// Receives active messages of an id: by a [`Stream`] ([`ActiveMessages::open`]) or a callback ([`ActiveMessages::on_message`]). One
    /// receiver for each id; ids that nobody receives are refused at their senders, until somebody does. So open what peers may send to before
    /// they can connect.
    ///
    /// ```
    /// # async fn run() -> wharf::Result<()> {
    /// # use wharf::{AmId, Context, Worker};
    /// # let context = Context::builder().transports("self")?.build()?;
    /// # let worker = Worker::new(&context)?;
    /// # let endpoint = worker.connect(&worker.address()?).await?;
    /// let mut inbox = worker.active_messages(AmId(3)).capacity(64).open()?;
    /// endpoint.am_send(AmId(3), "header", vec![7; 1000]).await?;
    /// if let Some(message) = inbox.recv().await {
    ///     assert_eq!(message.header(), b"header");
    ///     assert_eq!(message.bytes().await?[..], [7; 1000]);
    /// }
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    #[doc(alias = "ucp_worker_set_am_recv_handler")]
    pub fn active_messages(&self, id: impl Into<AmId>) -> ActiveMessages<'_> {
        ActiveMessages::new(self, id.into())
    }
}
