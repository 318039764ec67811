//! Futures, polled by hand: each is polled once to begin, and again only when its waker was called.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use wharf::{BufferMut, Error, Op, OpError, Received, Result};

/// Whether a task was woken, and how often.
#[derive(Debug, Default)]
pub(crate) struct Flag {
    woken: AtomicBool,
    times: AtomicU32,
}

impl Flag {
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Relaxed)
    }

    pub(crate) fn take(&self) {
        self.woken.store(false, Relaxed);
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Relaxed);
        self.times.fetch_add(1, Relaxed);
    }
}

/// How a task ended.
#[derive(Debug)]
pub(crate) enum End {
    Unit(Result<()>),
    Word(Result<u64>),
    Got(Result<Received<BufferMut>, OpError<BufferMut>>),
    Buffer(Result<BufferMut, OpError<BufferMut>>),
    /// What a task of several operations did it has told itself.
    Over(Option<Error>),
}

pub(crate) type Boxed = Pin<Box<dyn Future<Output = End>>>;

pub(crate) enum Fut {
    Boxed(Boxed),
    Send(Op<()>),
    Recv(Op<Received<BufferMut>>),
    Word(Op<u64>),
}

/// What a task is, and where its part of the books is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Send(usize),
    Recv(usize),
    Claim(usize),
    Put(usize),
    Get(usize),
    Atomic(usize),
    /// With the end that it is of.
    Flush(usize, usize, usize),
    Am(usize),
    Inbox,
    Write(usize),
    Read,
    Signal(usize),
    Wait,
    Ready,
    Close,
    Shutdown,
}

pub(crate) struct Task {
    pub(crate) what: What,
    pub(crate) node: usize,
    pub(crate) conn: Option<usize>,
    pub(crate) flag: Arc<Flag>,
    pub(crate) fut: Fut,
    pub(crate) has_begun: bool,
    pub(crate) is_called_off: bool,
}

impl Task {
    pub(crate) fn new(what: What, node: usize, conn: Option<usize>, fut: Fut) -> Self {
        Self {
            what,
            node,
            conn,
            flag: Arc::default(),
            // What is posted has begun.
            has_begun: !matches!(fut, Fut::Boxed(_)),
            is_called_off: false,
            fut,
        }
    }

    pub(crate) fn boxed(
        what: What,
        node: usize,
        conn: Option<usize>,
        future: impl Future<Output = End> + 'static,
    ) -> Self {
        Self::new(what, node, conn, Fut::Boxed(Box::pin(future)))
    }

    /// A task that is posted is polled for the first time whenever it likes.
    pub(crate) fn wake(&self) {
        self.flag.wake_by_ref();
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.flag.is_woken()
    }

    pub(crate) fn wakes(&self) -> u32 {
        self.flag.times.load(Relaxed)
    }

    pub(crate) fn poll(&mut self) -> Poll<End> {
        self.flag.take();
        self.has_begun = true;
        let waker = Waker::from(self.flag.clone());
        let mut cx = Context::from_waker(&waker);
        match &mut self.fut {
            Fut::Boxed(future) => future.as_mut().poll(&mut cx),
            Fut::Send(op) => Pin::new(op).poll(&mut cx).map(End::Unit),
            Fut::Recv(op) => Pin::new(op).poll(&mut cx).map(End::Got),
            Fut::Word(op) => Pin::new(op).poll(&mut cx).map(End::Word),
        }
    }

    pub(crate) fn was_posted(&self) -> bool {
        !matches!(self.fut, Fut::Boxed(_))
    }

    /// It is called off, if it was posted: it still ends, and says how.
    pub(crate) fn call_off(self) -> Self {
        let fut: Boxed = match self.fut {
            Fut::Send(op) => Box::pin(async { End::Unit(op.cancel().await) }),
            Fut::Recv(op) => Box::pin(async { End::Got(op.cancel().await) }),
            Fut::Word(op) => Box::pin(async { End::Word(op.cancel().await) }),
            Fut::Boxed(future) => future,
        };
        let mut task = Self::new(self.what, self.node, self.conn, Fut::Boxed(fut));
        (task.has_begun, task.is_called_off) = (true, true);
        task.wake();
        task
    }
}
