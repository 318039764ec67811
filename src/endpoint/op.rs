//! An operation that has begun, as its future holds it, whether it was posted or polled: two words, which functions take and give back in registers. What is stored in parts and moved as
//! a whole right then waits until all that was stored before it, a copy of kilobytes too, has left the processor.
//!
//! ```text
//! no handle:  a value                                it was over when it was posted
//! a handle:   generation:32  what:8  slot:24         in the table, a receive that was posted, or its end has been told
//!             index:32       ASIDE   0               all of it is with the handle: `worker::aside`
//! ```

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem::ManuallyDrop,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use crate::{
    error::{Error, ErrorKind, Operation},
    memory::BufferMut,
    types::OpKey,
    worker::{
        Handle,
        aside::{Deadline, Rare},
        door::Begun,
        operations::{Arrival, Outcome, wrong},
        shared::Shared,
        turn,
    },
};

use super::operation::{Completion, Front, Settled, poll_place};

/// An operation that was posted: it is on its way whether or not this is polled.
///
/// # Cancel safety
/// Dropping it detaches a send, put or get: it still happens. A receive that has not matched is withdrawn; one that matched puts its message back
/// in its place, so nothing is lost. [`Op::cancel`] ends it and says what happened.
#[must_use = "an operation that is dropped detaches; await it to learn how it ended"]
#[doc(alias(
    "ucp_request_param_t",
    "ucp_request_test",
    "ucp_request_free",
    "ucp_request_release",
    "ucp_request_alloc",
    "ucs_status_ptr_t",
    "ucp_send_nbx_callback_t",
    "ucp_send_callback_t",
    "ucp_tag_recv_nbx_callback_t",
    "ucp_stream_recv_nbx_callback_t",
    "ucp_am_recv_data_nbx_callback_t",
    "ucp_op_attr_t",
    "UCP_OP_ATTR_FLAG_NO_IMM_CMPL",
    "UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL",
    "UCP_OP_ATTR_FLAG_MULTI_SEND"
))]
pub struct Op<T: Completion> {
    /// A value, or a [`Place`].
    word: u64,
    /// `None`: it was over when it was posted.
    handle: ManuallyDrop<Option<Arc<Handle>>>,
    kind: PhantomData<fn() -> T>,
}

const _: () = assert!(size_of::<Op<()>>() == 16);

/// Where an operation is whose future has a handle.
#[derive(Clone, Copy)]
enum Place {
    Table(OpKey, Operation),
    Aside(usize),
    /// Its end has been told.
    Over,
}

/// Of `what`; less is an operation, by its place in [`Operation::ALL`].
const POSTED: u8 = 0xfd;
const ASIDE: u8 = 0xfe;
const OVER: u8 = 0xff;
const SLOTS: u32 = 1 << 24;
/// [`Place::Over`].
const OVER_WORD: u64 = (OVER as u64) << 24;

impl Place {
    /// `None`: there are no bits for it.
    #[inline(always)]
    fn pack(self) -> Option<u64> {
        let (slot, generation, what) = match self {
            Self::Table(key, operation) => match key.as_posted() {
                Some((slot, generation)) => (slot, generation, POSTED),
                None => {
                    // One that the list has not could not be told again.
                    Operation::ALL.get(operation as usize)?;
                    (key.0 as u32, key.generation(), operation as u8)
                }
            },
            Self::Aside(index) => (0, u32::try_from(index).ok()?, ASIDE),
            Self::Over => (0, 0, OVER),
        };
        let low = slot | u32::from(what) << 24;
        (slot < SLOTS).then_some(u64::from(low) | u64::from(generation) << 32)
    }

    /// A receive that was posted.
    #[inline(always)]
    fn posted(word: u64) -> Option<OpKey> {
        let low = word as u32;
        ((low >> 24) as u8 == POSTED).then(|| OpKey::posted(low % SLOTS, (word >> 32) as u32))
    }

    #[inline(always)]
    fn unpack(word: u64) -> Self {
        let (low, high) = (word as u32, (word >> 32) as u32);
        let (slot, what) = (low % SLOTS, (low >> 24) as u8);
        match (what, Operation::ALL.get(usize::from(what))) {
            (_, Some(operation)) => Self::Table(OpKey::new(slot, high), *operation),
            (POSTED, _) => Self::Table(OpKey::posted(slot, high), Operation::TagRecv),
            (ASIDE, _) => Self::Aside(high as usize),
            _ => Self::Over,
        }
    }
}

/// Looks for the message of a posted receive, in one of the places where it may be.
type Take = for<'a> fn(&'a Shared, OpKey) -> Option<(Arrival, BufferMut, Begun<'a>)>;

impl<T: Completion> Op<T> {
    /// One that was over when it was posted.
    #[inline(always)]
    pub(super) fn value(value: u64) -> Self {
        Self {
            word: value,
            handle: ManuallyDrop::new(None),
            kind: PhantomData,
        }
    }

    #[inline(always)]
    fn at(handle: &Arc<Handle>, word: u64) -> Self {
        Self {
            word,
            handle: ManuallyDrop::new(Some(handle.clone())),
            kind: PhantomData,
        }
    }

    /// One in the table, or a receive that was posted.
    #[inline(always)]
    pub(super) fn waiting(
        handle: &Arc<Handle>,
        key: OpKey,
        deadline: Deadline,
        operation: Operation,
    ) -> Self {
        match (deadline, Place::Table(key, operation).pack()) {
            (Deadline::None, Some(word)) => Self::at(handle, word),
            (deadline, _) => Self::aside(handle, Some(key), None, deadline, operation),
        }
    }

    /// One that has begun, or ended before it was in the table.
    pub(super) fn new(
        handle: &Arc<Handle>,
        begun: Result<OpKey, Box<Outcome>>,
        deadline: Deadline,
        operation: Operation,
    ) -> Self {
        match begun {
            Ok(key) => Self::waiting(handle, key, deadline, operation),
            Err(outcome) => Self::aside(handle, None, Some(outcome), deadline, operation),
        }
    }

    /// The same, whose end is told in another form.
    pub(super) fn told_as<U: Completion>(mut self) -> Op<U> {
        Op {
            word: self.word,
            handle: ManuallyDrop::new(self.handle.take()),
            kind: PhantomData,
        }
    }

    #[cold]
    fn aside(
        handle: &Arc<Handle>,
        key: Option<OpKey>,
        ended: Option<Box<Outcome>>,
        deadline: Deadline,
        operation: Operation,
    ) -> Self {
        let rare = Rare {
            key,
            ended,
            deadline,
            operation,
        };
        let index = handle.aside.lock().insert(Some(rare));
        let word = Place::Aside(index).pack();
        Self::at(handle, word.expect("memory for fewer than 2^32"))
    }

    /// Where it is in the table, while it is there.
    pub(super) fn place(&self) -> Option<(&Arc<Handle>, OpKey, Operation)> {
        let handle = self.handle.as_ref()?;
        let (key, operation) = match Place::unpack(self.word) {
            Place::Table(key, operation) => (key, operation),
            Place::Aside(index) => {
                let aside = handle.aside.lock();
                let rare = aside.get(index)?.as_ref()?;
                (rare.key?, rare.operation)
            }
            Place::Over => return None,
        };
        Some((handle, key, operation))
    }

    /// Ends the operation with `DeadlineExceeded` when it lasts longer than this, from the first poll on.
    pub fn deadline(mut self, after: Duration) -> Self {
        let deadline = Deadline::After(after);
        let Some(handle) = &*self.handle else {
            return self;
        };
        match Place::unpack(self.word) {
            Place::Table(key, operation) => {
                let aside = Self::aside(handle, Some(key), None, deadline, operation);
                self.over();
                return aside;
            }
            Place::Aside(index) => {
                if let Some(Some(rare)) = handle.aside.lock().get_mut(index) {
                    rare.deadline = deadline;
                }
            }
            Place::Over => {}
        }
        self
    }

    /// Whether it has ended, so that awaiting it waits for nothing but a turn of other tasks. What went into a ring
    /// or into mapped memory often has when it is posted. It is a look, and moves nothing along.
    ///
    /// ```
    /// # async fn run() -> wharf::Result<()> {
    /// # use std::collections::VecDeque;
    /// # use wharf::Tag;
    /// # let worker = wharf::Worker::new(&wharf::Context::builder().transports("self")?.build()?)?;
    /// # let endpoint = worker.connect(&worker.address()?).await?;
    /// # let receive = worker.tag_recv(Tag(1), vec![0; 6]).post();
    /// let mut under_way = VecDeque::new();
    /// let op = endpoint.tag_send(Tag(1), "hello").post()?;
    /// if !op.is_finished() {
    ///     under_way.push_back(op); // to be awaited when as many are under way as shall be
    /// } else {
    ///     op.await?;
    /// }
    /// # for op in under_way { op.await?; }
    /// # receive.await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    #[inline]
    #[must_use]
    #[doc(alias("ucp_request_is_completed", "ucp_request_check_status"))]
    pub fn is_finished(&self) -> bool {
        self.handle.is_none() || self.has_ended()
    }

    #[inline(never)]
    fn has_ended(&self) -> bool {
        let Some((handle, key, _)) = self.place() else {
            return true;
        };
        let is_over = handle.shared.ask(|engine| engine.core.is_over(key));
        // In a child made by `fork` none waits.
        is_over.unwrap_or(true)
    }

    /// Stops the operation if it can still be stopped, and resolves to what happened: its result, or an error of kind `Canceled`.
    ///
    /// A receive can be stopped until it matched, a send until it left or, when it was announced, until it matched at the peer. What cannot be
    /// stopped any more is awaited.
    ///
    /// # Cancel safety
    /// As for the operation itself.
    #[doc(alias = "ucp_request_cancel")]
    pub async fn cancel(self) -> T::Output {
        if let Some((handle, key, operation)) = self.place() {
            let error = Error::new(ErrorKind::Canceled, "cancelled").during(operation);
            handle.shared.ask(|engine| {
                engine.progress();
                engine.core.cancel(key, error)
            });
        }
        self.await
    }

    /// Its end has been told.
    #[inline(always)]
    fn over(&mut self) {
        self.word = OVER_WORD;
    }

    /// A posted receive whose message is here, if `take` finds it.
    #[inline(always)]
    fn take_posted(&mut self, cx: &mut Context<'_>, take: Take) -> Option<Front> {
        let handle = self.handle.as_ref()?;
        let (arrival, buffer, begun) = take(&handle.shared, Place::posted(self.word)?)?;
        begun.count(cx);
        self.over();
        Some(Front(arrival, buffer))
    }

    /// Waits for one that is in the table, or gives the end that it had.
    #[inline(never)]
    fn settle(&mut self, cx: &mut Context<'_>, settled: &mut Poll<T::Output>) {
        if let Some(output) = T::front(|| self.take_posted(cx, Shared::take_arrived)) {
            *settled = Poll::Ready(output);
            return;
        }
        let place = self
            .handle
            .as_ref()
            .map(|handle| (handle, Place::unpack(self.word)));
        let polled = match place {
            Some((handle, Place::Table(key, operation))) => poll_place(
                &handle.shared,
                &mut Some(key),
                cx,
                &mut Deadline::None,
                operation,
            ),
            Some((handle, Place::Aside(index))) => poll_aside(handle, index, cx),
            Some((_, Place::Over)) | None => Poll::Ready(Outcome::Done(Err(wrong()))),
        };
        if let Poll::Ready(outcome) = polled {
            self.over();
            *settled = Poll::Ready(T::settle(Settled(outcome)));
        }
    }
}

/// Gives a future its deadline, which may have begun.
pub(super) fn set_deadline<T: Completion>(
    begun: &mut Option<Op<T>>,
    deadline: &mut Deadline,
    after: Duration,
) {
    match begun.take() {
        Some(op) => *begun = Some(op.deadline(after)),
        None => *deadline = Deadline::After(after),
    }
}

/// Polled without the lock of what is aside.
fn poll_aside(handle: &Handle, index: usize, cx: &mut Context<'_>) -> Poll<Outcome> {
    let rare = handle.aside.lock().get_mut(index).and_then(Option::take);
    let Some(mut rare) = rare else {
        return Poll::Ready(Outcome::Done(Err(wrong())));
    };
    let polled = match &rare.ended {
        Some(_) if turn::may_be_told(cx).is_pending() => Poll::Pending,
        Some(_) => {
            let mut outcome = rare
                .ended
                .take()
                .map_or_else(|| Outcome::Done(Err(wrong())), |outcome| *outcome);
            outcome.during(rare.operation);
            Poll::Ready(outcome)
        }
        None => poll_place(
            &handle.shared,
            &mut rare.key,
            cx,
            &mut rare.deadline,
            rare.operation,
        ),
    };
    let mut aside = handle.aside.lock();
    match polled {
        Poll::Ready(_) => drop(aside.remove(index)),
        Poll::Pending => aside[index] = Some(rare),
    }
    polled
}

impl<T: Completion> Future for Op<T> {
    type Output = T::Output;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        let this = &mut *self;
        if this.handle.is_none() {
            // Operations that are over when they are posted must not keep others from running.
            ready!(turn::may_be_told(cx));
            return Poll::Ready(T::of_value(this.word));
        }
        if let Some(output) = T::front(|| this.take_posted(cx, Shared::take_posted)) {
            return Poll::Ready(output);
        }
        // In a place of its own: see `TagRecv::poll`.
        let mut settled = Poll::Pending;
        this.settle(cx, &mut settled);
        settled
    }
}

/// Most own nothing: one look and no call.
impl<T: Completion> Drop for Op<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.handle.is_none() {
            return;
        }
        match self.word == OVER_WORD {
            true => drop(self.handle.take()),
            false => detach(&mut self.handle, self.word),
        }
    }
}

#[inline(never)]
fn detach(handle: &mut Option<Arc<Handle>>, word: u64) {
    let Some(handle) = handle.take() else {
        return;
    };
    let key = match Place::unpack(word) {
        Place::Table(key, _) => Some(key),
        Place::Aside(index) => {
            let rare = handle.aside.lock().try_remove(index);
            rare.flatten().and_then(|rare| rare.key)
        }
        Place::Over => None,
    };
    if let Some(key) = key {
        handle.shared.drop_future(key);
    }
}

impl<T: Completion> fmt::Debug for Op<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.place().map(|(_, key, operation)| (operation, key));
        f.debug_struct("Op").field("waiting", &waiting).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_packed_into_a_word() {
        for operation in Operation::ALL {
            for (slot, generation) in [(0, 0), (SLOTS - 1, u32::MAX), (7, 1)] {
                let key = OpKey::new(slot, generation);
                let word = Place::Table(key, operation).pack().expect("room");
                let Place::Table(found, of) = Place::unpack(word) else {
                    panic!("{operation}");
                };
                assert_eq!((found, of), (key, operation));
            }
        }
        let posted = OpKey::posted(SLOTS - 1, 3);
        let word = Place::Table(posted, Operation::TagRecv)
            .pack()
            .expect("room");
        assert!(matches!(Place::unpack(word), Place::Table(key, _) if key == posted));
        let word = Place::Aside(9).pack().expect("room");
        assert!(matches!(Place::unpack(word), Place::Aside(9)));
        let word = Place::Over.pack().expect("room");
        assert!(matches!(Place::unpack(word), Place::Over));
        for far in [OpKey::new(SLOTS, 0), OpKey::posted(SLOTS, 0)] {
            assert!(Place::Table(far, Operation::TagRecv).pack().is_none());
        }
    }
}
