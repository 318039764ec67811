//! A stream of an engine with the copies that are in it.
//!
//! # Safety
//! Ends of copies are vouched for by whoever submitted them. The word of a queue outlives its stream's writes: the home that owns both sees to it.
#![allow(unsafe_code)]

use std::{collections::VecDeque, mem::ManuallyDrop, sync::Arc};

use super::{
    pageable::Pinner,
    words::{Ring, Words, Written},
};
use crate::{
    driver::cuda::{ContextGuard, DevicePtr, Event, Route, Stream, Waiting},
    error::Result,
    memory::Registration,
    transport::accelerator::{Asked, Bell, Queued, Reports},
};

/// What keeps ordinary memory registered that a copy has.
pub(super) type Registered = Option<Registration<Pinner>>;

/// A copy in the stream, or a place that the stream waits for, done when the word has come to `number`.
#[derive(Debug)]
struct Flying {
    token: u64,
    number: u64,
    registered: Registered,
}

/// One stream.
#[derive(Debug)]
pub(super) struct CopyQueue {
    stream: Stream,
    /// Where a host function waits for the word without holding up the copies; without it, in the stream itself.
    side: Option<Stream>,
    route: Route,
    /// Its word.
    index: usize,
    queued: VecDeque<(Queued, Registered)>,
    flying: VecDeque<Flying>,
    /// The last number whose writing is in the stream.
    number: u64,
    /// Whether there is more in the stream behind it.
    unsigned: bool,
    /// The number for which a host function is in the stream.
    asked: u64,
    /// Numbers from this one on are written by host functions, which ring by themselves.
    rings_from: u64,
    /// Queries in a row that failed.
    failures: u32,
}

/// After so many queries in a row that fail, the device counts as lost.
const FAILURES: u32 = 20;

impl CopyQueue {
    /// A queue for copies, or, with no side, for waiting.
    pub(super) fn new(
        guard: &ContextGuard<'_>,
        route: Route,
        index: usize,
        with_side: bool,
    ) -> Result<Self> {
        Ok(Self {
            stream: guard.stream(false)?,
            side: with_side.then(|| guard.stream(false)).transpose()?,
            route,
            index,
            queued: VecDeque::new(),
            flying: VecDeque::new(),
            number: 0,
            unsigned: false,
            asked: 0,
            rings_from: u64::MAX,
            failures: 0,
        })
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// All its streams.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Stream> {
        std::iter::once(&self.stream).chain(&self.side)
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.flying.is_empty() && !self.unsigned
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    pub(super) fn has_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    pub(super) fn push(&mut self, copy: Queued, registered: Registered) {
        self.queued.push_back((copy, registered));
    }

    /// Hands over what is queued, with one signal behind it. What the driver refuses is reported; an error is the end of the context.
    pub(super) fn flush(
        &mut self,
        guard: &ContextGuard<'_>,
        signals: Signals<'_>,
        reports: &mut Reports,
    ) -> Result<()> {
        while let Some((copy, _)) = self.queued.front() {
            let token = copy.token;
            // SAFETY: whoever submitted it vouches for both ends.
            let enqueued = unsafe {
                self.stream.copy_between(
                    guard,
                    self.route,
                    DevicePtr(copy.to),
                    DevicePtr(copy.from),
                    copy.length,
                )
            };
            if let Err(error) = &enqueued
                && super::words::is_end(error)
            {
                return enqueued;
            }
            let registered = self
                .queued
                .pop_front()
                .and_then(|(_, registered)| registered);
            match enqueued {
                Ok(()) => self.fly(token, registered),
                Err(error) => reports.push_back((token, Err(error))),
            }
        }
        self.sign(guard, signals)
    }

    /// Notes that something with this token is in the stream.
    fn fly(&mut self, token: u64, registered: Registered) {
        self.flying.push_back(Flying {
            token,
            number: self.number + 1,
            registered,
        });
        self.unsigned = true;
    }

    /// Has the stream wait for an event, and then tell. The queue has to be idle.
    pub(super) fn wait_for(
        &mut self,
        guard: &ContextGuard<'_>,
        signals: Signals<'_>,
        event: &Event,
        token: u64,
    ) -> Result<()> {
        self.stream.wait(guard, event)?;
        self.fly(token, None);
        self.sign(guard, signals)
    }

    /// An event behind all that is in the stream, if one of these is.
    pub(super) fn mark(&self, guard: &ContextGuard<'_>, tokens: &[u64]) -> Result<Option<Event>> {
        if !self
            .flying
            .iter()
            .any(|flying| tokens.contains(&flying.token))
        {
            return Ok(None);
        }
        let event = guard.event(Waiting::Spin)?;
        self.stream.record(guard, &event)?;
        Ok(Some(event))
    }

    /// Has the word written behind all that is in the stream. When neither way works the copies are told by [`CopyQueue::check`]; an error is the end
    /// of the context.
    fn sign(&mut self, guard: &ContextGuard<'_>, signals: Signals<'_>) -> Result<()> {
        if !self.unsigned {
            return Ok(());
        }
        let number = self.number + 1;
        let by_word = |at| {
            // SAFETY: a word of the home's, which lives until its streams are done.
            unsafe { self.stream.write_value(guard, at, number) }
        };
        let mut result = match signals.words.device_ptr(self.index) {
            Some(at) if *signals.by_words => by_word(at),
            _ => {
                *signals.by_words = false;
                self.sign_by_function(guard, &signals, number)
            }
        };
        if let Err(error) = &result
            && *signals.by_words
            && !super::words::is_end(error)
        {
            tracing::debug!(target: "wharf::cuda", "host functions tell of copies from now on: {error}");
            *signals.by_words = false;
            result = self.sign_by_function(guard, &signals, number);
        }
        match result {
            Ok(()) => {
                self.number = number;
                self.unsigned = false;
                if !*signals.by_words {
                    self.rings_from = self.rings_from.min(number);
                }
                Ok(())
            }
            Err(error) if super::words::is_end(&error) => Err(error),
            Err(error) => {
                tracing::debug!(target: "wharf::cuda", "nothing tells of these copies yet: {error}");
                Ok(())
            }
        }
    }

    fn sign_by_function(
        &self,
        guard: &ContextGuard<'_>,
        signals: &Signals<'_>,
        number: u64,
    ) -> Result<()> {
        let written = Written {
            page: signals.words.page(),
            index: self.index,
            value: number,
            bell: Arc::clone(signals.bell),
        };
        self.stream.notify(guard, Arc::new(written))
    }

    /// Whether anything has completed that was not reported.
    #[inline]
    pub(super) fn has_done(&self, words: &Words) -> bool {
        self.flying
            .front()
            .is_some_and(|first| words.load(self.index) >= first.number)
    }

    /// Reports what the word says to be done.
    #[inline]
    pub(super) fn collect(&mut self, words: &Words, reports: &mut Reports) {
        if self.flying.is_empty() {
            return;
        }
        let done = words.load(self.index);
        while let Some(first) = self.flying.front()
            && first.number <= done
        {
            reports.push_back((first.token, Ok(())));
            self.flying.pop_front();
        }
    }

    /// Whether [`CopyQueue::ask`] has to call the driver: nobody rings yet for the first of what is under way.
    pub(super) fn is_unasked(&self) -> bool {
        self.flying.front().is_some_and(|first| {
            let rings = self.asked >= first.number || first.number >= self.rings_from;
            self.unsigned || !rings
        })
    }

    /// Asks for a ring when the first of what is under way is done: at most one host function for each such first. An error is the end of the
    /// context.
    pub(super) fn ask(&mut self, guard: &ContextGuard<'_>, signals: Signals<'_>) -> Result<Asked> {
        let Some(first) = self.flying.front().map(|first| first.number) else {
            return Ok(Asked::Rings);
        };
        if self.has_done(signals.words) {
            return Ok(Asked::Done);
        }
        let (words, bell) = (signals.words, signals.bell);
        self.sign(guard, signals)?;
        if first > self.number {
            return Ok(Asked::Silent);
        }
        if self.asked >= first || first >= self.rings_from {
            return Ok(Asked::Rings);
        }
        let Some(at) = words.device_ptr(self.index) else {
            return Ok(Asked::Silent);
        };
        let ring = Arc::new(Ring(Arc::clone(bell)));
        let asked = match &self.side {
            Some(side) => {
                // SAFETY: a word of the home's, which lives until its streams are done.
                let waits = unsafe { side.wait_value(guard, at, first) };
                waits.and_then(|()| side.notify(guard, ring))
            }
            None => self.stream.notify(guard, ring),
        };
        match asked {
            Ok(()) => {
                self.asked = first;
                Ok(Asked::Rings)
            }
            Err(error) if super::words::is_end(&error) => Err(error),
            Err(error) => {
                tracing::debug!(target: "wharf::cuda", "no host function rings: {error}");
                Ok(Asked::Silent)
            }
        }
    }

    /// Asks the driver how the stream is: for words that never come. An error is the end of the context.
    pub(super) fn check(
        &mut self,
        guard: &ContextGuard<'_>,
        signals: Signals<'_>,
        reports: &mut Reports,
    ) -> Result<()> {
        self.collect(signals.words, reports);
        if self.flying.is_empty() {
            return Ok(());
        }
        self.sign(guard, signals)?;
        match self.stream.is_idle(guard) {
            Ok(idle) => {
                self.failures = 0;
                if idle {
                    // All was done, whatever became of the word.
                    self.number += u64::from(std::mem::take(&mut self.unsigned));
                    for done in self.flying.drain(..) {
                        reports.push_back((done.token, Ok(())));
                    }
                }
                Ok(())
            }
            Err(error) if super::words::is_end(&error) => Err(error),
            Err(error) => {
                self.failures += 1;
                tracing::debug!(target: "wharf::cuda", "a stream does not say how it is: {error}");
                if self.failures < FAILURES {
                    Ok(())
                } else {
                    Err(error)
                }
            }
        }
    }

    /// Takes everything out: the tokens of what was under way. `goes_on`: the device may still touch it, and what is registered stays so.
    pub(super) fn abandon(&mut self, goes_on: bool) -> impl Iterator<Item = u64> {
        self.unsigned = false;
        let queued = self.queued.drain(..).map(|(copy, _)| copy.token);
        let flying = self.flying.drain(..).map(|copy| {
            if goes_on {
                let _ = ManuallyDrop::new(copy.registered);
            }
            copy.token
        });
        flying.chain(queued).collect::<Vec<_>>().into_iter()
    }
}

/// How queues of a home tell.
pub(super) struct Signals<'a> {
    pub(super) words: &'a Words,
    /// Whether streams write the words themselves.
    pub(super) by_words: &'a mut bool,
    pub(super) bell: &'a Arc<Bell>,
}
