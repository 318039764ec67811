//! A device as one engine uses it: its context, its streams, its words.
//!
//! # Safety
//! The words are pinned before a stream gets their address, and unpinned after all streams are done with them, or never.
#![allow(unsafe_code)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    lane::{Asked, Lane, Queued, Reports, Signals},
    words::{Bell, Words, is_end},
};
use crate::{
    driver::cuda::{ContextGuard, CudaContext, Event, Route, Stream, Waiting},
    error::{Error, ErrorKind, Result},
};

/// Streams that copy.
const ROUTES: [Route; 3] = [Route::ToDevice, Route::ToHost, Route::Across];
/// Places in the program's work that can be waited for at once.
const GATES: usize = 4;
/// The program's streams that can be held at once.
const HOLDS: usize = 16;
/// The first word of the holds: the lanes' come before.
const FIRST_HOLD: usize = 16;
/// The word of the test.
const TEST: usize = 63;

/// How long the test of the words may take.
const TEST_TIME: Duration = Duration::from_secs(2);

const _: () = assert!(ROUTES.len() + GATES <= FIRST_HOLD && FIRST_HOLD + HOLDS <= TEST);

/// One device.
#[derive(Debug)]
pub(super) struct Home {
    ordinal: u16,
    /// Streams before the words: they write them.
    lanes: Vec<Lane>,
    holds: [Hold; HOLDS],
    words: Words,
    by_words: bool,
    context: CudaContext,
    lost: Option<Error>,
    /// Whether it was given up with work in its streams.
    stuck: bool,
    bell: Arc<Bell>,
}

/// A word that one of the program's streams waits for.
#[derive(Debug, Default)]
struct Hold {
    value: u64,
    held: bool,
    /// Reached when the stream has passed the wait.
    passed: Option<Event>,
    /// Nobody can tell when the stream has passed it.
    unknown: bool,
}

impl Home {
    /// Opens a device. May take long.
    ///
    /// # Errors
    /// What the driver said.
    pub(super) fn open(context: CudaContext, bell: &Arc<Bell>) -> Result<Self> {
        let guard = context.enter()?;
        let mut words = Words::new()?;
        let pinned = words.pin(&guard);
        let mut lanes = Vec::with_capacity(ROUTES.len() + GATES);
        for route in ROUTES {
            lanes.push(Lane::new(&guard, route, lanes.len(), true)?);
        }
        for _ in 0..GATES {
            lanes.push(Lane::new(&guard, Route::Across, lanes.len(), false)?);
        }
        let by_words = match pinned.and_then(|()| test(&guard, lanes[0].stream(), &words)) {
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
            lanes,
            holds: Default::default(),
            words,
            by_words,
            context,
            lost: None,
            stuck: false,
            bell: Arc::clone(bell),
        })
    }

    pub(super) fn ordinal(&self) -> u16 {
        self.ordinal
    }

    pub(super) fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Why it is lost, if it is.
    pub(super) fn lost(&self) -> Option<&Error> {
        self.lost.as_ref()
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.lanes.iter().all(Lane::is_idle)
    }

    /// Takes a copy, for [`Home::flush`].
    pub(super) fn push(&mut self, route: Route, copy: Queued) {
        let lane = ROUTES.iter().position(|known| *known == route);
        if let Some(lane) = lane.and_then(|index| self.lanes.get_mut(index)) {
            lane.push(copy);
        }
    }

    /// Hands over what is queued.
    pub(super) fn flush(&mut self, reports: &mut Reports) {
        if !self.lanes.iter().any(Lane::has_queued) {
            return;
        }
        self.within(reports, |guard, mut home, reports| {
            for lane in home.lanes.iter_mut().filter(|lane| lane.has_queued()) {
                lane.flush(guard, home.signals.again(), reports)?;
            }
            Ok(())
        });
    }

    /// Reports what the words say to be done.
    #[inline]
    pub(super) fn collect(&mut self, reports: &mut Reports) {
        for lane in &mut self.lanes {
            lane.collect(&self.words, reports);
        }
    }

    /// Whether anything has completed that was not reported.
    pub(super) fn has_done(&self) -> bool {
        self.lanes.iter().any(|lane| lane.has_done(&self.words))
    }

    /// Asks for a ring by the next completion of each stream.
    pub(super) fn ask(&mut self, reports: &mut Reports) -> Asked {
        if !self.lanes.iter().any(Lane::has_flying) {
            return Asked::Rings;
        }
        if self.has_done() {
            return Asked::Done;
        }
        let mut result = Asked::Rings;
        self.within(reports, |guard, mut home, _| {
            for lane in home.lanes.iter_mut().filter(|lane| lane.has_flying()) {
                match lane.ask(guard, home.signals.again())? {
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

    /// Asks the driver about streams whose words do not come.
    pub(super) fn check(&mut self, reports: &mut Reports) {
        if !self.lanes.iter().any(Lane::has_flying) {
            return;
        }
        self.within(reports, |guard, mut home, reports| {
            for lane in home.lanes.iter_mut().filter(|lane| lane.has_flying()) {
                lane.check(guard, home.signals.again(), reports)?;
            }
            Ok(())
        });
    }

    /// Calls of the driver in this context; an error is its end.
    fn within(
        &mut self,
        reports: &mut Reports,
        run: impl FnOnce(&ContextGuard<'_>, Parts<'_>, &mut Reports) -> Result<()>,
    ) {
        let parts = Parts {
            lanes: &mut self.lanes,
            signals: Shared {
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

    /// The device is gone: what was under way is reported.
    pub(super) fn lose(&mut self, error: Error, reports: &mut Reports) {
        let error = lost(&self.context, error);
        tracing::debug!(target: "wharf::cuda", "{error}");
        for lane in &mut self.lanes {
            for token in lane.abandon() {
                reports.push_back((token, Err(error.duplicate())));
            }
        }
        self.lost = Some(error);
    }

    /// The device does not end its work: what is under way is reported, and nothing that the device may still touch is freed.
    pub(super) fn give_up(&mut self, error: Error, reports: &mut Reports) {
        for lane in &mut self.lanes {
            for token in lane.abandon() {
                reports.push_back((token, Err(error.duplicate())));
            }
        }
        self.stuck = true;
    }

    /// Whether [`Home::after`] can be called.
    pub(super) fn has_gate(&self) -> bool {
        self.lanes[ROUTES.len()..].iter().any(Lane::is_idle)
    }

    /// Tells `token` when the event was reached. There has to be a gate.
    ///
    /// # Errors
    /// What the driver said; then nothing is told.
    pub(super) fn after(&mut self, event: &Event, token: u64, reports: &mut Reports) -> Result<()> {
        let mut accepted = false;
        let mut result = Ok(());
        self.within(reports, |guard, mut home, _| {
            let mut gates = home.lanes[ROUTES.len()..].iter_mut();
            let Some(gate) = gates.find(|lane| lane.is_idle()) else {
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
            Some(error) if !accepted => Err(error.duplicate()),
            _ => result,
        }
    }

    /// Makes a stream of the program's wait until [`Home::release`] with the number that this gives.
    ///
    /// # Errors
    /// `Unsupported` without words; `Exhausted`; what the driver said.
    pub(super) fn hold(&mut self, stream: &Stream) -> Result<u64> {
        let guard = stream.context().enter()?;
        let free = |hold: &Hold| {
            let passed = |event: &Event| {
                let guard = event.context().enter();
                guard
                    .and_then(|guard| event.is_done(&guard))
                    .unwrap_or(false)
            };
            !hold.held && !hold.unknown && hold.passed.as_ref().is_none_or(passed)
        };
        let Some(index) = self.holds.iter().position(free) else {
            let text = format!("{HOLDS} streams wait already");
            return Err(Error::new(ErrorKind::Exhausted, text));
        };
        let word = self.words.device_ptr(FIRST_HOLD + index);
        let Some(at) = word.filter(|_| self.by_words) else {
            let text = format!("streams of {:?} wait for no words", self.context);
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let passed = guard.event(Waiting::Spin)?;
        let hold = &mut self.holds[index];
        let value = hold.value + 1;
        // SAFETY: a word of this home's, which is leaked when nobody can tell that the stream has passed the wait.
        unsafe { stream.wait_value(&guard, at, value) }?;
        hold.value = value;
        if let Err(error) = stream.record(&guard, &passed) {
            hold.unknown = true;
            self.words.store(FIRST_HOLD + index, value);
            return Err(error);
        }
        hold.passed = Some(passed);
        hold.held = true;
        Ok(index as u64)
    }

    /// Lets a stream go on.
    pub(super) fn release(&mut self, index: usize) {
        if let Some(hold) = self.holds.get_mut(index)
            && std::mem::take(&mut hold.held)
        {
            self.words.store(FIRST_HOLD + index, hold.value);
        }
    }

    /// Waits until all streams are empty; whether they are.
    fn settle(&self, deadline: Instant) -> bool {
        let Ok(guard) = self.context.enter() else {
            return true; // Nothing of a context that is gone goes on.
        };
        loop {
            let mut streams = self.lanes.iter().flat_map(Lane::streams);
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

    /// Lets all streams that are held go on, and takes the device's things down. What the device may still touch stays for good.
    pub(super) fn close(mut self, deadline: Instant) {
        for index in 0..HOLDS {
            self.release(index);
        }
        let lost = self.lost.is_some();
        // Waits of the side streams end with the words that are there, but not at once.
        let mut quiet = lost || (!self.stuck && self.settle(deadline));
        for hold in &mut self.holds {
            quiet &= lost || !hold.unknown;
            let Some(passed) = hold.passed.take() else {
                continue;
            };
            while quiet && !lost {
                let reached = passed
                    .context()
                    .enter()
                    .and_then(|guard| passed.is_done(&guard));
                match reached {
                    Ok(true) => break,
                    // A stream that is gone waits no more.
                    Err(_) => break,
                    Ok(false) if Instant::now() >= deadline => quiet = false,
                    Ok(false) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        }
        self.lanes.clear();
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
    lanes: &'a mut Vec<Lane>,
    signals: Shared<'a>,
}

/// [`Signals`] for one lane after the other.
struct Shared<'a> {
    words: &'a Words,
    by_words: &'a mut bool,
    bell: &'a Arc<Bell>,
}

impl Shared<'_> {
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
    match crate::driver::cuda::Status::of(&error) {
        Some(status) => lost.with_source(status),
        None => lost,
    }
}
