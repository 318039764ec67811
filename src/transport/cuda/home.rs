//! A device as one engine uses it: its context, its streams, its words.
//!
//! # Safety
//! The words are pinned before a stream gets their address, and unpinned after all streams are done with them, or never.
#![allow(unsafe_code)]

use std::{
    sync::{Arc, atomic::Ordering::Release},
    time::{Duration, Instant},
};

use super::{
    copy_queue::{CopyQueue, Registered, Signals},
    order::Mark,
    pageable::{Pinner, is_pinned},
    shared::Shared,
    words::{Words, is_end},
};
use crate::{
    driver::cuda::{self, ContextGuard, CudaContext, Event, Stream},
    error::{Error, ErrorKind, Result},
    memory::AddressRange,
    transport::accelerator::{
        self, Asked, Bell, Locking, Queued, Reports, Route, staging::forbidden,
    },
};

/// Streams that copy.
const ROUTES: [(Route, cuda::Route); 3] = [
    (Route::ToDevice, cuda::Route::ToDevice),
    (Route::ToHost, cuda::Route::ToHost),
    (Route::Across, cuda::Route::Across),
];
/// Places in the program's work that streams wait for at once. Few: such a stream may hold up others that share a queue of the device with it.
const GATES: usize = 4;
/// The word of the test.
const TEST: usize = 63;

/// How long the test of the words may take.
const TEST_TIME: Duration = Duration::from_secs(2);

const _: () = assert!(ROUTES.len() + GATES <= TEST);

/// One device.
#[derive(Debug)]
pub(super) struct Home {
    ordinal: u16,
    /// Streams before the words: they write them.
    queues: Vec<CopyQueue>,
    words: Words,
    by_words: bool,
    context: CudaContext,
    shared: Arc<Shared>,
    /// Copies that wait for their ordinary memory to be registered; made for the first of them.
    pageable: Option<Locking<Pinner, (Route, Queued)>>,
    /// Those whose memory cannot be registered, to be reported.
    refused: Vec<(Queued, Error)>,
    lost: Option<Error>,
    /// Whether it was given up, or lost, with work in its streams that may go on.
    stuck: bool,
    bell: Arc<Bell>,
}

impl Home {
    /// Opens a device. May take long.
    /// Errors: what the driver said.
    pub(super) fn open(
        shared: &Arc<Shared>,
        context: CudaContext,
        bell: &Arc<Bell>,
    ) -> Result<Self> {
        let guard = context.enter()?;
        let mut words = Words::new()?;
        let pinned = words.pin(&guard);
        let mut queues = Vec::with_capacity(ROUTES.len() + GATES);
        for (_, route) in ROUTES {
            queues.push(CopyQueue::new(&guard, route, queues.len(), true)?);
        }
        for _ in 0..GATES {
            queues.push(CopyQueue::new(
                &guard,
                cuda::Route::Across,
                queues.len(),
                false,
            )?);
        }
        let by_words = match pinned.and_then(|()| test(&guard, queues[0].stream(), &words)) {
            Ok(works) => works,
            Err(error) if is_end(&error) => return Err(error),
            Err(error) => {
                tracing::debug!(target: "wharf::cuda", "streams write no words: {error}");
                false
            }
        };
        drop(guard);
        Ok(Self {
            ordinal: context.device().ordinal(),
            queues,
            words,
            by_words,
            context,
            shared: Arc::clone(shared),
            pageable: None,
            refused: Vec::new(),
            lost: None,
            stuck: false,
            bell: Arc::clone(bell),
        })
    }

    /// Calls of the driver in this context; an error is its end.
    fn within(
        &mut self,
        reports: &mut Reports,
        run: impl FnOnce(&ContextGuard<'_>, Parts<'_>, &mut Reports) -> Result<()>,
    ) {
        let parts = Parts {
            queues: &mut self.queues,
            signals: Lent {
                words: &self.words,
                by_words: &mut self.by_words,
                bell: &self.bell,
            },
        };
        let done = self
            .context
            .enter()
            .and_then(|guard| run(&guard, parts, reports));
        if let Err(error) = done {
            self.lose(error, reports);
        }
    }

    /// The device is gone: what was under way is reported. After an error that does not end the context it may go on all the same.
    pub(super) fn lose(&mut self, error: Error, reports: &mut Reports) {
        let is_end = is_end(&error);
        let busy = |queues: &[CopyQueue]| !is_end && queues.iter().any(CopyQueue::has_flying);
        let (goes_on, copies) = (busy(&self.queues), busy(&self.queues[..ROUTES.len()]));
        let error = lost(&self.context, error);
        tracing::debug!(target: "wharf::cuda", "{error}");
        self.abandon(goes_on, &error, reports);
        self.lost = Some(error);
        self.stuck |= goes_on;
        if copies {
            self.shared.given_up.store(true, Release);
        }
    }

    /// Reports everything. `goes_on`: the device may still touch what is in its streams.
    fn abandon(&mut self, goes_on: bool, error: &Error, reports: &mut Reports) {
        let queues = self.queues.iter_mut();
        let mut tokens: Vec<u64> = queues.flat_map(|queue| queue.abandon(goes_on)).collect();
        if let Some(pageable) = &mut self.pageable {
            let waiting = pageable.clear().into_iter();
            tokens.extend(waiting.map(|(_, copy)| copy.token));
        }
        tokens.extend(self.refused.drain(..).map(|(copy, _)| copy.token));
        let ends = tokens.into_iter();
        reports.extend(ends.map(|token| (token, Err(error.clone()))));
    }

    /// Gives a copy to its queue, with what keeps its memory registered.
    fn queue(&mut self, route: Route, copy: Queued, kept: Registered) {
        let queue = ROUTES.iter().position(|(known, _)| *known == route);
        if let Some(queue) = queue.and_then(|index| self.queues.get_mut(index)) {
            queue.push(copy, kept);
        }
    }

    /// Has the memory of a copy registered, if it is not.
    ///
    /// # Errors
    /// There is no cache, or no such memory.
    fn register(&mut self, route: Route, copy: Queued) -> Result<()> {
        let host = match route {
            Route::ToDevice => copy.from,
            Route::ToHost | Route::Across => copy.to,
        };
        let range = AddressRange::new(host, copy.length as u64)?;
        let pageable = match &mut self.pageable {
            Some(pageable) => pageable,
            None => {
                let cache = self.shared.pageable(&self.context)?;
                self.pageable.insert(Locking::new(&cache, &self.bell))
            }
        };
        match pageable.find(range) {
            Some(kept) => self.queue(route, copy, Some(kept)),
            None if is_pinned(&self.context, range) => self.queue(route, copy, None),
            None => pageable.begin((route, copy), range, None),
        }
        Ok(())
    }

    /// Takes those whose memory is registered, or cannot be.
    fn take_registered(&mut self, reports: &mut Reports) {
        let over = self.pageable.as_mut().map(Locking::take);
        for ((route, copy), result) in over.into_iter().flatten() {
            match result {
                Ok(kept) => self.queue(route, copy, Some(kept)),
                Err(error) => self.refused.push((copy, error)),
            }
        }
        for (copy, error) in self.refused.drain(..) {
            let error = match error.kind() {
                ErrorKind::DeviceLost | ErrorKind::Closed | ErrorKind::Forked => error,
                _ if copy.unstaged => forbidden(),
                _ => {
                    let text = "ordinary memory that the driver does not register";
                    Error::new(ErrorKind::WouldBlock, text).with_source(error)
                }
            };
            reports.push_back((copy.token, Err(error)));
        }
    }

    /// Whether copies wait for their memory.
    fn has_pageable(&self) -> bool {
        let waiting = self.pageable.as_ref();
        waiting.is_some_and(|pageable| !pageable.is_empty()) || !self.refused.is_empty()
    }

    /// Waits until all streams are empty; whether they are.
    fn settle(&self, deadline: Instant) -> bool {
        let guard = match self.context.enter() {
            Ok(guard) => guard,
            // Nothing of a context that is gone goes on.
            Err(error) => return is_end(&error),
        };
        loop {
            let mut streams = self.queues.iter().flat_map(CopyQueue::streams);
            let busy = streams.any(|stream| match stream.is_idle(&guard) {
                Ok(idle) => !idle,
                Err(error) => !is_end(&error),
            });
            if !busy || Instant::now() >= deadline {
                return !busy;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl accelerator::Home for Home {
    type Mark = Mark;
    type Stream = Stream;

    fn ordinal(&self) -> u16 {
        self.ordinal
    }

    fn lost(&self) -> Option<&Error> {
        self.lost.as_ref()
    }

    fn is_idle(&self) -> bool {
        self.queues.iter().all(CopyQueue::is_idle) && !self.has_pageable()
    }

    fn has_copies(&self) -> bool {
        !self.queues[..ROUTES.len()].iter().all(CopyQueue::is_idle) || self.has_pageable()
    }

    fn push(&mut self, route: Route, copy: Queued) {
        if !copy.pageable {
            return self.queue(route, copy, None);
        }
        if let Err(error) = self.register(route, copy) {
            self.refused.push((copy, error));
        }
    }

    fn holds(&self, token: u64) -> bool {
        let waiting = self.pageable.as_ref();
        waiting.is_some_and(|pageable| pageable.any(|(_, copy)| copy.token == token))
            || self.refused.iter().any(|(copy, _)| copy.token == token)
    }

    fn goes_on(&self) -> bool {
        let waiting = self.pageable.as_ref();
        waiting.is_some_and(Locking::is_stirred) || !self.refused.is_empty()
    }

    fn flush(&mut self, reports: &mut Reports) {
        // The first look begins what has to be registered; it may be over at once.
        self.take_registered(reports);
        if !self.queues.iter().any(CopyQueue::has_queued) {
            return;
        }
        self.within(reports, |guard, mut home, reports| {
            for queue in home.queues.iter_mut().filter(|queue| queue.has_queued()) {
                queue.flush(guard, home.signals.again(), reports)?;
            }
            Ok(())
        });
    }

    #[inline]
    fn collect(&mut self, reports: &mut Reports) {
        for queue in &mut self.queues {
            queue.collect(&self.words, reports);
        }
    }

    fn has_done(&self) -> bool {
        self.goes_on() || self.queues.iter().any(|queue| queue.has_done(&self.words))
    }

    fn ask(&mut self, reports: &mut Reports) -> Asked {
        if self.has_done() {
            return Asked::Done;
        }
        if !self.queues.iter().any(CopyQueue::is_unasked) {
            return Asked::Rings;
        }
        let mut result = Asked::Rings;
        self.within(reports, |guard, mut home, _| {
            for queue in home.queues.iter_mut().filter(|queue| queue.is_unasked()) {
                match queue.ask(guard, home.signals.again())? {
                    Asked::Rings => {}
                    other => result = other,
                }
                if result == Asked::Done {
                    break;
                }
            }
            Ok(())
        });
        // What was lost is to be reported.
        if self.lost.is_some() {
            Asked::Done
        } else {
            result
        }
    }

    fn check(&mut self, reports: &mut Reports) {
        if !self.queues.iter().any(CopyQueue::has_flying) {
            return;
        }
        self.within(reports, |guard, mut home, reports| {
            for queue in home.queues.iter_mut().filter(|queue| queue.has_flying()) {
                queue.check(guard, home.signals.again(), reports)?;
            }
            Ok(())
        });
    }

    fn give_up(&mut self, error: Error, reports: &mut Reports) {
        self.abandon(true, &error, reports);
        self.stuck = true;
    }

    fn has_gate(&self, mark: &Mark) -> bool {
        let gates = self.queues[ROUTES.len()..].iter();
        let least = match mark {
            // The last is left for those that can wait in no other way.
            Mark::Ours(_) => 2,
            Mark::Theirs(_) => 1,
        };
        gates.filter(|queue| queue.is_idle()).count() >= least
    }

    fn can_ask(&self, mark: &Mark) -> bool {
        matches!(mark, Mark::Ours(_)) && self.lost.is_none()
    }

    fn reached(&mut self, mark: &Mark, reports: &mut Reports) -> Option<Result<bool>> {
        let Mark::Ours(event) = mark else {
            // The program may record it elsewhere meanwhile: then the answer would be that of another place.
            return None;
        };
        // In the event's own context, which may be another of the device's.
        let asked = event.context().enter();
        let asked = asked.and_then(|guard| event.is_done(&guard));
        let ended = asked.as_ref().err().filter(|error| is_end(error));
        if let Some(error) = ended.filter(|_| *event.context() == self.context) {
            self.lose(error.clone(), reports);
        }
        Some(match &self.lost {
            Some(error) => Err(error.clone()),
            None => asked,
        })
    }

    fn after(&mut self, mark: &Mark, token: u64, reports: &mut Reports) -> Result<()> {
        let theirs;
        let event = match mark {
            Mark::Ours(event) => event,
            Mark::Theirs(raw) => {
                // SAFETY: whoever made the handle vouches for it; only its place is waited for, which any context may do.
                theirs = unsafe { Event::adopt(&self.context, *raw) };
                &theirs
            }
        };
        let mut accepted = false;
        let mut result = Ok(());
        self.within(reports, |guard, mut home, _| {
            let mut gates = home.queues[ROUTES.len()..].iter_mut();
            let Some(gate) = gates.find(|queue| queue.is_idle()) else {
                let text = "too many streams are waited for";
                result = Err(Error::new(ErrorKind::WouldBlock, text));
                return Ok(());
            };
            let waited = gate.wait_for(guard, home.signals.again(), event, token);
            accepted = !gate.is_idle();
            match waited {
                Err(error) if !is_end(&error) => {
                    result = Err(error);
                    Ok(())
                }
                waited => waited,
            }
        });
        match &self.lost {
            // What was accepted is among what was reported.
            Some(error) if !accepted => Err(error.clone()),
            _ => result,
        }
    }

    fn then(&mut self, stream: &Stream, tokens: &[u64]) -> Result<()> {
        for queue in self.queues.iter().filter(|queue| queue.has_flying()) {
            let mark = {
                let guard = self.context.enter()?;
                queue.mark(&guard, tokens)?
            };
            // An event may be dropped while it is waited for: the stream keeps what it needs.
            if let Some(event) = mark {
                stream.wait(&stream.context().enter()?, &event)?;
            }
        }
        Ok(())
    }

    fn close(mut self, deadline: Instant) {
        // Waits of the side streams end with the words that are there, but not at once.
        let quiet = !self.stuck && self.settle(deadline);
        self.queues.clear();
        if !quiet {
            tracing::warn!(
                target: "wharf::cuda",
                "{:?} has work that does not end; a page stays pinned",
                self.context
            );
            self.words.leak();
        }
    }
}

/// What [`Home::within`] lends.
struct Parts<'a> {
    queues: &'a mut Vec<CopyQueue>,
    signals: Lent<'a>,
}

/// [`Signals`] for one queue after the other.
struct Lent<'a> {
    words: &'a Words,
    by_words: &'a mut bool,
    bell: &'a Arc<Bell>,
}

impl Lent<'_> {
    fn again(&mut self) -> Signals<'_> {
        Signals {
            words: self.words,
            by_words: self.by_words,
            bell: self.bell,
        }
    }
}

/// Whether streams can write words that the host reads, and wait for them: what the device says of itself is tried.
fn test(guard: &ContextGuard<'_>, stream: &Stream, words: &Words) -> Result<bool> {
    let Some(at) = words.device_ptr(TEST) else {
        return Ok(false);
    };
    if !stream.has_words()? {
        return Ok(false);
    }
    let start = Instant::now();
    let until = |done: &dyn Fn() -> Result<bool>| {
        while !done()? {
            if start.elapsed() > TEST_TIME {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(true)
    };
    // SAFETY: the words live until the streams are done with them.
    unsafe { stream.write_value(guard, at, 1) }?;
    if !until(&|| Ok(words.load(TEST) == 1))? {
        return Ok(false);
    }
    // It waits for what is there already: a stream that cannot be let go on would be stuck.
    // SAFETY: as above.
    unsafe { stream.wait_value(guard, at, 1) }?;
    until(&|| stream.is_idle(guard))
}

/// The error that ends everything on a device.
fn lost(context: &CudaContext, error: Error) -> Error {
    let text = format!("{:?} is lost: {error}", context.device());
    let lost = Error::new(ErrorKind::DeviceLost, text);
    match cuda::Status::of(&error) {
        Some(status) => lost.with_source(status),
        None => lost,
    }
}
