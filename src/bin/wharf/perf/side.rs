//! One end of a measurement: its worker and connection, and which of the two it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use wharf::{
    Access, AmId, Buffer, BufferMut, Completion, Context, Descriptor, Endpoint, Error, ErrorKind,
    Op, Region, RemoteRegion, Tag, Worker,
};

use super::Outcome;
use super::laps::{Figures, Laps};
use super::memory::{self, Memory, pattern, verify};
use super::spec::{Spec, Verb};
use super::{messages, one_sided, wake};

/// The longest list of values that the peer hands over.
pub(super) const MOST_VALUES: usize = 1 << 20;

/// Who does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Asks, sends, measures.
    Asker,
    /// Answers; the memory of one-sided operations is its.
    Answerer,
}

/// What a tag is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use {
    Data = 1,
    Acknowledge,
    Meet,
    Descriptor,
    Values,
}

/// One end. With the transport `self` both ends have the same worker.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) role: Role,
    pub(super) spec: Spec,
    /// Number of the task on this connection.
    pub(super) task: u16,
    pub(super) context: Context,
    pub(super) worker: Worker,
    pub(super) endpoint: Endpoint,
    /// Rises while something goes on.
    pub(super) beat: Arc<AtomicU64>,
}

impl Side {
    /// A context as the measurement wants it.
    pub(super) fn context(spec: &Spec) -> Outcome<Context> {
        // On the way to itself a worker waits for nobody who runs elsewhere.
        let progress = if spec.is_self() {
            wharf::Progress::EventDriven
        } else {
            spec.progress
        };
        let mut builder = Context::builder().progress(progress);
        if let Some(list) = spec.transports() {
            builder = builder.transports(&list)?;
        }
        Ok(builder.build()?)
    }

    /// Does this end's part. The answerer has no figures of its own.
    pub(super) async fn measure(self) -> Outcome<Option<Figures>> {
        // Those of all tasks are there before the first message is.
        let inbox = match self.spec.test.verb {
            Verb::Am | Verb::AmFlood => Some(self.worker.active_messages(self.am(false)).open()?),
            _ => None,
        };
        self.meet().await?;
        let figures = match (self.spec.test.verb, inbox) {
            (Verb::Tag | Verb::TagSync, _) => messages::tag(&self).await,
            (Verb::TagFlood | Verb::TagSyncFlood, _) => messages::tag_flood(&self).await,
            (Verb::Am, Some(inbox)) => messages::am(&self, inbox).await,
            (Verb::AmFlood, Some(inbox)) => messages::am_flood(&self, inbox).await,
            (Verb::Stream, _) => messages::stream(&self).await,
            (Verb::StreamFlood, _) => messages::stream_flood(&self).await,
            (Verb::Put, _) => one_sided::put(&self).await,
            (Verb::PutFlood, _) => one_sided::put_flood(&self).await,
            (Verb::Get, _) => one_sided::get(&self).await,
            (Verb::Add | Verb::FetchAdd | Verb::Swap | Verb::CompareSwap, _) => {
                one_sided::atomic(&self).await
            }
            (Verb::Signal, _) => wake::signal(&self).await,
            (Verb::Parked, _) => wake::parked(&self).await,
            (Verb::Idle, _) => wake::idle(&self).await,
            (verb, _) => Err(format!("{verb:?} has one end").into()),
        }?;
        self.meet().await?;
        Ok(figures)
    }

    pub(super) fn is_asker(&self) -> bool {
        self.role == Role::Asker
    }

    pub(super) fn laps(&self) -> Outcome<Laps> {
        Laps::new(&self.spec, self.beat.clone())
    }

    /// 0 for what the asker sends, 1 for what the answerer sends.
    fn direction(&self, outgoing: bool) -> u8 {
        u8::from(self.is_asker() != outgoing)
    }

    fn tag(&self, purpose: Use, outgoing: bool) -> Tag {
        let direction = u64::from(self.direction(outgoing));
        Tag((purpose as u64) << 32 | direction << 16 | u64::from(self.task))
    }

    /// The tag under which this end sends.
    pub(super) fn to(&self, purpose: Use) -> Tag {
        self.tag(purpose, true)
    }

    /// The tag under which this end receives.
    pub(super) fn from(&self, purpose: Use) -> Tag {
        self.tag(purpose, false)
    }

    /// The id of active messages.
    pub(super) fn am(&self, outgoing: bool) -> AmId {
        AmId(0x4000 | self.task << 1 | u16::from(self.direction(outgoing)))
    }

    /// Both ends come here.
    pub(super) async fn meet(&self) -> Outcome<()> {
        self.say(Use::Meet).await?;
        self.hear(Use::Meet).await
    }

    /// An empty message.
    pub(super) async fn say(&self, purpose: Use) -> Outcome<()> {
        Ok(self.endpoint.tag_send(self.to(purpose), Vec::new()).await?)
    }

    /// Waits for an empty message.
    pub(super) async fn hear(&self, purpose: Use) -> Outcome<()> {
        let tag = self.from(purpose);
        self.worker.tag_recv(tag, Vec::new()).await?;
        Ok(())
    }

    /// Hands values over to the other end.
    pub(super) async fn give(&self, values: &[f64]) -> Outcome<()> {
        let values = &values[..values.len().min(MOST_VALUES)];
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        Ok(self.endpoint.tag_send(self.to(Use::Values), bytes).await?)
    }

    /// See [`Side::give`].
    pub(super) async fn take(&self) -> Outcome<Vec<f64>> {
        let space = vec![0; MOST_VALUES * 8];
        let tag = self.from(Use::Values);
        let received = self.worker.tag_recv(tag, space).await?;
        let bytes = received.buffer.get(..received.len).unwrap_or_default();
        let (values, _) = bytes.as_chunks::<8>();
        Ok(values
            .iter()
            .map(|bytes| f64::from_le_bytes(*bytes))
            .collect())
    }

    /// The memory of this end.
    pub(super) fn memory(&self) -> Memory {
        self.spec.memory[usize::from(!self.is_asker())]
    }

    /// Length of the message that ends a measurement; none that is measured has it.
    pub(super) fn stop_len(&self) -> usize {
        if self.spec.size == 1 { 2 } else { 1 }
    }

    /// The message that ends a measurement.
    pub(super) fn stop(&self) -> Buffer {
        vec![0; self.stop_len()].into()
    }

    /// What this end sends, when nobody looks at it.
    pub(super) async fn message(&self) -> Outcome<Buffer> {
        self.fresh(0).await
    }

    /// What this end sends as message `number`, when the other end looks at it.
    pub(super) async fn fresh(&self, number: u64) -> Outcome<Buffer> {
        let bytes = pattern(self.direction(true), number, self.spec.size);
        let buffer = self
            .memory()
            .filled(&self.context, &self.worker, &bytes)
            .await?;
        Ok(buffer.freeze())
    }

    /// Room for a message.
    pub(super) async fn space(&self) -> Outcome<BufferMut> {
        let len = self.spec.size.max(self.stop_len());
        self.memory().allocate(&self.context, len).await
    }

    /// Looks at message `number`, when that is wanted.
    pub(super) async fn inspect(
        &self,
        number: u64,
        buffer: BufferMut,
        len: usize,
    ) -> Outcome<BufferMut> {
        let (buffer, found) = memory::look(&self.worker, buffer, len).await?;
        self.compare("message", number, &found)?;
        Ok(buffer)
    }

    /// Whether this is message `number` of the other end.
    pub(super) fn compare(&self, what: &str, number: u64, found: &[u8]) -> Outcome<()> {
        let wanted = pattern(self.direction(false), number, self.spec.size);
        verify(what, number, found, &wanted)
    }

    /// Shows memory to the other end.
    pub(super) async fn expose(&self, buffer: BufferMut) -> Outcome<Region> {
        let region = self
            .context
            .expose(buffer, Access::READ | Access::WRITE)
            .await?;
        self.send_descriptor(&region.descriptor()?).await?;
        Ok(region)
    }

    pub(super) async fn send_descriptor(&self, descriptor: &Descriptor) -> Outcome<()> {
        let tag = self.to(Use::Descriptor);
        Ok(self.endpoint.tag_send(tag, descriptor.to_bytes()).await?)
    }

    /// What the other end shows.
    pub(super) async fn import(&self) -> Outcome<RemoteRegion> {
        let tag = self.from(Use::Descriptor);
        let received = self.worker.tag_recv(tag, vec![0; 4096]).await?;
        let bytes = received.buffer.get(..received.len).unwrap_or_default();
        Ok(self.endpoint.import(&Descriptor::from_bytes(bytes)?)?)
    }

    /// Lets the other end go first, when it is closed in order.
    pub(super) async fn part(self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        let done = async {
            if self.is_asker() {
                let _ = self.endpoint.close().await;
            } else {
                let _ = self.endpoint.closed().await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, done).await;
    }
}

/// Operations under way, the oldest first.
pub(super) struct Window<T: Completion> {
    posted: VecDeque<Op<T>>,
    limit: usize,
}

impl<T: Completion> Window<T> {
    pub(super) fn new(limit: usize) -> Self {
        let posted = VecDeque::with_capacity(limit.min(1 << 16));
        Self { posted, limit }
    }

    pub(super) fn is_full(&self) -> bool {
        self.posted.len() >= self.limit
    }

    pub(super) fn add(&mut self, operation: Op<T>) {
        self.posted.push_back(operation);
    }

    pub(super) fn oldest(&mut self) -> Option<Op<T>> {
        self.posted.pop_front()
    }
}

impl Window<()> {
    /// Posts one more, after the oldest when there is no room.
    pub(super) async fn post(
        &mut self,
        mut start: impl FnMut() -> Result<Op<()>, Error>,
        endpoint: &Endpoint,
    ) -> Outcome<()> {
        if self.is_full()
            && let Some(oldest) = self.oldest()
        {
            oldest.await?;
        }
        loop {
            match start() {
                Ok(operation) => {
                    self.add(operation);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => match self.oldest() {
                    Some(oldest) => oldest.await?,
                    None => endpoint.ready().await?,
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) async fn finish(&mut self) -> Outcome<()> {
        while let Some(oldest) = self.oldest() {
            oldest.await?;
        }
        Ok(())
    }
}
