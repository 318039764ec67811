//! What a worker has done, counted: under its lock, by additions to memory that is its own, and without a look at a clock.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::transport::{Link, RawSlice, SendError, Zcopy};

/// Messages, transfers or copies, and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// How many.
    pub count: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl Traffic {
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes as u64;
    }

    #[inline]
    pub(crate) fn join(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// What went over one transport of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportMetrics {
    /// Its name: `self`, `shm`, `tcp`, `rc_verbs`.
    pub transport: &'static str,
    /// Connections over it, now.
    pub connections: usize,
    /// Messages that it took, those of the protocol among them, and the bytes in them. A fragment of a long message is one.
    pub sent: Traffic,
    /// Messages that it brought.
    pub received: Traffic,
}

/// What a worker holds for its peers at this moment, until somebody asks for it; within [`Limits`](crate::config::Limits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Bytes of memory in messages that nobody has received and streams that nobody has accepted, and what else counts as
    /// [such](crate::config::Quota::unexpected_bytes). Messages of a connection that is over are among them, until they are received.
    pub unexpected_bytes: u64,
    /// Such messages, those that are only announced among them.
    pub unexpected_messages: u64,
    /// Streams that nobody has accepted.
    pub unaccepted_streams: u64,
    /// Requests that are being served.
    pub requests: u64,
    /// Connections that there are.
    pub connections: u64,
    /// Where they come from, or something that earlier ones left: addresses of other hosts, users of this one.
    pub sources: usize,
    /// How often something was refused, or a connection ended, because of a limit on these, all limits together:
    /// [`WorkerMetrics::refused`] tells them apart. This only grows.
    pub refused: u64,
}

/// How often each limit was met ([`Limits`](crate::config::Limits)): something was refused, or a connection ended. Each limit has a
/// counter of its name: what `source.requests` turned away is in `refused.source.requests`.
///
/// A refusal is counted once. Where several limits leave no room it is that of the connection before that of the source, and that of the source
/// before the worker's, in the order in which a [`Quota`](crate::config::Quota) names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// By what a single connection may hold.
    pub connection: RefusalCounts,
    /// By what all connections from one source may hold together.
    pub source: RefusalCounts,
    /// By what all connections of the worker may hold together.
    pub worker: RefusalCounts,
    /// Answers, windows and ends of streams beyond 32,768 that a peer had left unread, which no configuration changes. Its connection ended.
    pub unread_answers: u64,
}

impl Refusals {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, _, count)| count).sum()
    }

    /// Each counter, with whose limit and which it is, as `WHARF_LIMITS` names them: `("source", "requests", 3)`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let scopes = [
            ("connection", self.connection),
            ("source", self.source),
            ("worker", self.worker),
        ];
        let limits = scopes.into_iter().flat_map(|(whose, counts)| {
            [
                (whose, "unexpected_bytes", counts.unexpected_bytes),
                (whose, "unexpected_messages", counts.unexpected_messages),
                (whose, "unaccepted_streams", counts.unaccepted_streams),
                (whose, "requests", counts.requests),
                (whose, "connections", counts.connections),
            ]
        });
        limits.chain([("connection", "unread_answers", self.unread_answers)])
    }
}

/// How often the limits of one connection, one source or a worker were met, each by the name that it has in a
/// [`Quota`](crate::config::Quota).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusalCounts {
    /// There was no room for the bytes of a message or an answer, which ended its connection, or for those of a stream or a request, which alone was
    /// refused.
    pub unexpected_bytes: u64,
    /// There was no place for a message, which ended its connection.
    pub unexpected_messages: u64,
    /// There was no place for a stream, which alone was refused.
    pub unaccepted_streams: u64,
    /// There was no place for a request, which alone was refused.
    pub requests: u64,
    /// There was no place for a connection, which was turned down. Of a single connection always 0.
    pub connections: u64,
}

/// What a [`Worker`](crate::Worker) has done since it was made; a snapshot, by [`Worker::metrics`](crate::Worker::metrics).
///
/// All but [`connections`](TransportMetrics::connections), [`in_flight`](Self::in_flight), [`held`](Self::held) and [`mean_wait`](Self::mean_wait) only grow. Counting costs the
/// worker an addition or two for each message, in memory that it has at hand, and no clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// The transports, the preferred first.
    pub transports: Vec<TransportMetrics>,
    /// Copies straight between the memories of two processes through memory that is mapped in both.
    pub mapped: Traffic,
    /// The same by the kernel.
    pub cma: Traffic,
    /// Puts and gets that network devices of this side made; the pieces of a long one count each.
    pub one_sided: Traffic,
    /// Copies that the engines of devices were given.
    pub device_copies: Traffic,
    /// Stops in host memory between two memories of which a device has one: parts of transfers in the worker's own pinned fragments, each counted once at each
    /// end that they stop at, and copies that an engine made through memory of its own. 0 under
    /// [`forbid_staging`](crate::ContextBuilder::forbid_staging).
    pub staged: Traffic,
    /// Operations that did not end in their first look and were entered in the worker's table.
    pub operations: u64,
    /// Operations under way, now.
    pub in_flight: usize,
    /// What is held for peers, now.
    pub held: Held,
    /// What was refused, or ended, because of a limit: which limit, and whose.
    pub refused: Refusals,
    /// Waits that found what they waited for at the first look of a poll. One of a task that was woken is among them.
    pub found_at_once: u64,
    /// Waits that found it while they looked, before they slept.
    pub found_spinning: u64,
    /// Waits that slept.
    pub parked: u64,
    /// Tasks that were woken.
    pub wakes: u64,
    /// Times that peers in shared memory rang this worker's doorbell.
    pub doorbells: u64,
    /// Times that a socket, a completion channel or a timer woke the worker's reactor.
    pub fd_wakeups: u64,
    /// Times that the worker armed its transports, to sleep.
    pub arms: u64,
    /// Connections that this side dialled with success.
    pub connects: u64,
    /// The time that they took together, from the call to the endpoint.
    pub connect_time: Duration,
    /// Connections that this side dialled in vain.
    pub connects_failed: u64,
    /// Connections that peers made to this worker.
    pub accepted: u64,
    /// Connections of peers that were turned down because of a limit ([`Limits`](crate::config::Limits)): of a source or of the worker, which
    /// [`refused`](Self::refused) tells apart.
    pub refused_over_limit: u64,
    /// Connections of peers that the program's check turned down ([`ContextBuilder::admit`](crate::ContextBuilder::admit)).
    pub refused_by_check: u64,
    /// Connections of peers that did not say who they are in time, or made way for others while they said nothing.
    pub refused_silent: u64,
    /// The mean of the last waits that were looked after, 80 µs for one in vain; zero unless the worker is [adaptive](crate::Progress::Adaptive).
    pub mean_wait: Duration,
}

impl WorkerMetrics {
    /// A copy straight from or to a peer's memory.
    #[inline]
    pub(crate) fn copied(&mut self, is_mapped: bool, bytes: usize) {
        match is_mapped {
            true => self.mapped.add(bytes),
            false => self.cma.add(bytes),
        }
    }
}

/// What is counted without the lock, rarely.
#[derive(Debug, Default)]
pub(crate) struct Dialling {
    pub(in crate::worker) made: AtomicU64,
    pub(in crate::worker) failed: AtomicU64,
    pub(in crate::worker) nanoseconds: AtomicU64,
}

impl Dialling {
    pub(crate) fn made(&self, took: Duration) {
        self.made.fetch_add(1, Relaxed);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(took, Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }
}

/// A link, and what it took.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(in crate::worker) link: Box<dyn Link>,
    pub(crate) sent: Traffic,
}

impl Counted {
    pub(crate) fn new(link: Box<dyn Link>) -> Self {
        Self {
            link,
            sent: Traffic::default(),
        }
    }

    #[inline]
    pub(crate) fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        self.link.am_short(id, header, body)?;
        self.sent.add(body.len());
        Ok(())
    }

    #[inline]
    pub(crate) fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.link.am_bcopy(id, header, prefix, payload)?;
        self.sent.add(prefix.len() + payload.len());
        Ok(())
    }

    /// # Safety
    /// As [`Link::am_zcopy`].
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn am_zcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: RawSlice,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        // SAFETY: the caller's promise.
        let sent = unsafe { self.link.am_zcopy(id, header, prefix, payload, token) }?;
        self.sent.add(prefix.len() + payload.length);
        Ok(sent)
    }
}

impl Deref for Counted {
    type Target = dyn Link;

    fn deref(&self) -> &Self::Target {
        &*self.link
    }
}

impl DerefMut for Counted {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.link
    }
}
