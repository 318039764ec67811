//! The progress engine: one for each worker, behind its one lock. Moves what can be moved, arms, and says when it may sleep.
//!
//! # Safety
//! The fd of the poll is borrowed while the poll is alive. Memory that a message is wanted in is the affair of who wants it.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use crate::{
    error::{Error, ErrorKind, Result},
    sys::fork,
    transport::{Connected, InPlace, Interface, Link, Registry, Taken, Wanted},
    types::LinkId,
    worker::{
        Traffic, TransportMetrics, core::Core, ctx::Ctx, device::Open, movers::Movers, watch::Watch,
    },
};

/// Messages taken in one pass, when nobody waits for one in particular, and when nobody waits for any.
const BATCH: usize = 64;
const UNASKED: usize = 4;

/// Events taken from the system at a time.
const EVENTS: usize = 256;
/// Where the fds of engines that copy for devices begin, among those of interfaces.
const ENGINES: usize = 1 << 12;
/// Passes of one lap.
const PEEKS: usize = 8;

struct Installed {
    interface: Box<dyn Interface>,
    /// What links that are gone had taken, and what all of them brought.
    counts: TransportMetrics,
}

pub(crate) struct Engine {
    /// Dropped before the interfaces: messages in it may lie with them still.
    pub(crate) core: Core,
    interfaces: Vec<Installed>,
    poll: mio::Poll,
    events: mio::Events,
    armed: bool,
    /// Links of all interfaces.
    links: usize,
    /// Whether the reactor has been asked to look after what is pending.
    pub(crate) reactor_due: bool,
    /// Whether it was asked since its last turn.
    pub(crate) reactor_called: bool,
    /// Laps of futures, so that the reactor sees whether somebody else drives.
    pub(crate) laps: u64,
    /// Why nothing begins any more, once that is so.
    pub(crate) closing: Option<&'static str>,
    /// For how long the reactor is to look before it arms, because somebody began to wait.
    pub(crate) linger: Option<Duration>,
    /// Things that passes have moved, and wakes.
    pub(crate) happened: u64,
    /// The interface that brought something last.
    latest: usize,
    /// What was looked for was there at the first look: what is looked for next may be as well.
    runs: bool,
    /// How often it was not, and came within the lap.
    pub(crate) late: u64,
    /// How many times the first poll of a receive looks for its message: more than once while that comes within a lap.
    pub(crate) first_looks: u32,
    /// Receives in a row that looked for a message and found none.
    pub(in crate::worker) in_vain: u32,
    /// Laps of receives.
    pub(super) waits: u32,
    /// Tasks that were woken, less the times that a future has given way to them since.
    pub(crate) woken: usize,
    /// For loops that are not Tokio's.
    pub(crate) watch: Watch,
}

impl Engine {
    /// Counts what a future has found, in its first look or after more.
    #[inline]
    pub(super) fn found(&mut self, has_spun: bool) {
        let counts = &mut self.core.movers.ctx.counts;
        if has_spun {
            counts.found_spinning += 1;
            return;
        }
        counts.found_at_once += 1;
        // Most likely one of those that were woken.
        self.woken = self.woken.saturating_sub(1);
    }

    #[inline(always)]
    pub(crate) fn ctx(&mut self) -> &mut Ctx {
        &mut self.core.movers.ctx
    }

    #[inline(always)]
    pub(crate) fn movers(&mut self) -> &mut Movers {
        &mut self.core.movers
    }

    pub(crate) fn new(core: Core) -> Result<Self> {
        let poll = mio::Poll::new().map_err(|error| Error::io("the worker's poll", error))?;
        Ok(Self {
            happened: 0,
            latest: 0,
            runs: false,
            late: 0,
            first_looks: 0,
            in_vain: 0,
            waits: 0,
            woken: 0,
            watch: Watch::new(&poll)?,
            core,
            interfaces: Vec::new(),
            poll,
            events: mio::Events::with_capacity(EVENTS),
            armed: false,
            links: 0,
            reactor_due: false,
            reactor_called: false,
            laps: 0,
            closing: None,
            linger: None,
        })
    }

    /// That nothing begins any more, and why.
    #[cold]
    pub(crate) fn closed(&self) -> Error {
        let why = self.closing.unwrap_or("the worker has ended");
        Error::new(ErrorKind::Closed, why)
    }

    /// Takes what was found out on another thread.
    pub(crate) fn told(&mut self, act: impl FnOnce(&mut Movers)) {
        self.disarm();
        act(&mut self.core.movers);
        self.core.act();
    }

    /// Takes an engine that was opened, or why it was not. What is left over is to be dropped outside the lock.
    pub(crate) fn opened(&mut self, slot: usize, opened: Result<Box<Open>>) -> Option<Box<Open>> {
        self.disarm();
        let mut open = match opened {
            Ok(open) => open,
            Err(error) => return self.core.movers.engine_opened(slot, Err(error)),
        };
        let registry = self.registry(ENGINES + slot);
        match registry.and_then(|registry| open.register(registry)) {
            Ok(()) => self.core.movers.engine_opened(slot, Ok(open)),
            Err(error) => {
                self.core.movers.engine_opened(slot, Err(error));
                Some(open)
            }
        }
    }

    /// Where the interface or engine of this number registers fds.
    fn registry(&self, number: usize) -> Result<Registry> {
        let registry = self.poll.registry().try_clone();
        Ok(Registry {
            registry: registry.map_err(|error| Error::io("the worker's poll", error))?,
            base: number << Registry::TOKEN_BITS,
        })
    }

    /// A duplicate of the poll's fd, for the reactor: the same object under a number of its own.
    pub(crate) fn poll_fd(&self) -> Result<OwnedFd> {
        // SAFETY: the poll is open while it is borrowed here.
        let fd = unsafe { BorrowedFd::borrow_raw(self.poll.as_raw_fd()) };
        fd.try_clone_to_owned()
            .map_err(|error| Error::io("the worker's fd", error))
    }

    /// Takes the data path of an opened transport.
    pub(crate) fn install(
        &mut self,
        name: &'static str,
        mut interface: Box<dyn Interface>,
    ) -> Result<()> {
        interface.register(self.registry(self.interfaces.len())?)?;
        self.interfaces.push(Installed {
            interface,
            counts: TransportMetrics {
                transport: name,
                ..TransportMetrics::default()
            },
        });
        Ok(())
    }

    pub(crate) fn doorbell(&self) -> Option<OwnedFd> {
        self.interfaces
            .iter()
            .find_map(|installed| installed.interface.doorbell()?.try_clone_to_owned().ok())
    }

    /// Attaches a link that both ends agreed on.
    pub(crate) fn attach(
        &mut self,
        transport: &'static str,
        id: LinkId,
        connected: Connected,
    ) -> Result<(usize, Box<dyn Link>)> {
        let (index, installed) = self
            .interfaces
            .iter_mut()
            .enumerate()
            .find(|(_, installed)| installed.counts.transport == transport)
            .ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, "no such transport on this worker")
            })?;
        let link = installed.interface.attach(id, connected)?;
        installed.counts.connections += 1;
        self.links += 1;
        self.disarm();
        Ok((index, link))
    }

    /// Ends a connection.
    pub(crate) fn fail(&mut self, link: LinkId, error: Error) {
        if let Some(peer) = self.core.movers.ctx.peer(link)
            && peer.is_alive()
        {
            let index = peer.interface;
            let sent = peer
                .link
                .as_ref()
                .map_or_else(Traffic::default, |link| link.sent);
            if let Some(installed) = self.interfaces.get_mut(index) {
                installed.interface.detach(link);
                installed.counts.connections = installed.counts.connections.saturating_sub(1);
                installed.counts.sent.join(sent);
                self.links = self.links.saturating_sub(1);
            }
            self.core.fail(link, error);
        }
    }

    /// Ends all connections.
    pub(crate) fn fail_all(&mut self, why: &'static str) {
        let links: Vec<_> = self.ctx().connections().map(|peer| peer.slot).collect();
        for link in links {
            self.fail(link, Error::new(ErrorKind::Closed, why));
        }
    }

    /// One pass over everything that may have something.
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        // No more messages than there are receives for: the next ones find theirs if they wait where they are, and are
        // copied once. Where nobody receives, some are taken to reach what is behind them.
        let budget = match self.core.posted.len() {
            _ if self.core.direct.is_some() || self.core.inboxes.is_awaited() => 1,
            0 => UNASKED,
            posted => posted.min(BATCH),
        };
        let mut moved = 0;
        for (index, installed) in self.interfaces.iter_mut().enumerate() {
            if installed.counts.connections > 0 {
                let taken = installed.interface.progress(budget, &mut self.core);
                if taken > 0 {
                    moved += taken;
                    let received = std::mem::take(&mut self.core.movers.ctx.received);
                    installed.counts.received.join(received);
                    self.latest = index;
                }
            }
        }
        if self.core.movers.has_followup() {
            moved += self.follow_up();
        }
        if moved > 0 {
            self.moved(moved);
        }
        moved
    }

    #[inline(always)]
    fn moved(&mut self, things: usize) {
        self.happened = self.happened.wrapping_add(things as u64);
        self.watch.tell();
        if self.armed {
            // What woke this side has been taken, and may not be all there is: whoever leaves now has somebody look again.
            self.disarm();
        }
    }

    /// Takes the next message of the link that brought the last one, which is the likeliest to have another, without all that a pass looks
    /// after. Whether there was one: where there was none, or too many were taken so, a pass is to follow.
    #[inline(always)]
    pub(super) fn glance(&mut self) -> bool {
        let Some(installed) = self.interfaces.get_mut(self.latest) else {
            return false;
        };
        if !installed.interface.glance(&mut self.core) {
            return false;
        }
        let received = std::mem::take(&mut self.core.movers.ctx.received);
        installed.counts.received.join(received);
        self.moved(1);
        true
    }

    /// Takes the next message of the link that brought the last one, if it is wanted: from where, and how long it is. For an engine that is not armed.
    ///
    /// # Safety
    /// As for [`Interface::take`].
    #[inline(always)]
    pub(crate) unsafe fn take(&mut self, wanted: &mut Wanted) -> Option<(LinkId, usize)> {
        let installed = self.interfaces.get_mut(self.latest)?;
        // SAFETY: the caller's promise.
        let taken = unsafe { installed.interface.take(wanted) };
        let Taken::Message { from, length } = taken else {
            return None;
        };
        let length = length as usize;
        installed.counts.received.add(length);
        // As a lap: who takes one message after the other drives. Not armed, as the caller has seen.
        self.laps = self.laps.wrapping_add(1);
        self.happened = self.happened.wrapping_add(1);
        self.watch.tell();
        Some((from, length))
    }

    /// The same of one that stays where it lies. For an engine that is not armed, too.
    ///
    /// # Safety
    /// As for [`Interface::take_in_place`].
    #[inline(always)]
    pub(crate) unsafe fn take_in_place(
        &mut self,
        id: u8,
        header: u64,
        mask: u64,
        looks: u32,
    ) -> Option<InPlace> {
        let installed = self.interfaces.get_mut(self.latest)?;
        // SAFETY: the caller's promise.
        let message = unsafe { installed.interface.take_in_place(id, header, mask, looks) }?;
        installed.counts.received.add(message.held.length());
        // As in `take`.
        self.laps = self.laps.wrapping_add(1);
        self.happened = self.happened.wrapping_add(1);
        self.watch.tell();
        Some(message)
    }

    /// A few passes in a row, until `done`; a glance before them where messages come in a run. The lock is held for some 100 ns at most, which is
    /// less than letting go of it and taking it again as often would add to the time in which an arrival is noticed.
    #[inline(always)]
    pub(crate) fn peek(&mut self, mut done: impl FnMut(&mut Core) -> bool) {
        if !(self.runs && self.glance() && done(&mut self.core)) {
            self.passes(done);
        }
    }

    #[inline(never)]
    fn passes(&mut self, mut done: impl FnMut(&mut Core) -> bool) {
        let mut waited = false;
        for pass in 0..PEEKS {
            let moved = self.progress();
            if done(&mut self.core) {
                self.runs = pass == 0;
                self.late += u64::from(waited);
                return;
            }
            if self.core.inboxes.has_held() {
                return;
            }
            if moved == 0 {
                if self.looks_cost() {
                    break;
                }
                waited = true;
            }
            std::hint::spin_loop();
        }
        self.runs = false;
    }

    /// Whether another pass is a system call: who wants one may as well look at the clock between, or let others run.
    #[cold]
    pub(in crate::worker) fn looks_cost(&self) -> bool {
        let mut interfaces = self.interfaces.iter();
        interfaces
            .any(|installed| installed.counts.connections > 0 && installed.interface.looks_cost())
    }

    fn follow_up(&mut self) -> usize {
        let mut moved = 0;
        // First, so that no memory of a peer whose link is shut is touched any more.
        for (link, error) in std::mem::take(&mut self.core.movers.ctx.failures) {
            moved += 1;
            self.fail(link, error);
        }
        moved += self.core.movers.step_transfers();
        moved += self.core.movers.end_leaving(false);
        self.core.act();
        if self.core.movers.devices.is_live() {
            moved += self.core.movers.progress_devices();
            self.core.act();
        }
        for link in std::mem::take(&mut self.core.movers.ctx.writable) {
            moved += 1;
            let Some(mut sender) = self
                .core
                .movers
                .ctx
                .peer(link)
                .and_then(|peer| peer.link.take())
            else {
                continue;
            };
            sender.flush(&mut self.core);
            if let Some(peer) = self.core.movers.ctx.peer(link) {
                peer.link = Some(sender);
            }
            self.core.pump(link);
        }
        for _ in 0..self.core.movers.ctx.runnable.len() {
            if let Some(link) = self.core.movers.ctx.runnable.pop_front() {
                moved += 1;
                self.core.pump(link);
            }
        }
        while let Some(link) = self.ctx().operations.epochs.next_due() {
            moved += 1;
            self.core.movers.ctx.check_flushes(link);
        }
        self.core.act();
        moved += self.core.give_back_owed();
        if self.ctx().unmatched.len() > 0 {
            moved += self.core.take_in_lent();
        }
        self.core.movers.release_lingering();
        moved
    }

    /// Asks the system which fds have something; the next pass takes it.
    pub(crate) fn poll_fds(&mut self) {
        // All of them: the poll's own fd is watched by edges, and makes none for what is left behind. Each event is told once.
        loop {
            match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(target: "wharf::worker", %error, "the worker's poll");
                    return;
                }
            }
            let mut count = 0;
            for event in &self.events {
                count += 1;
                let token = event.token().0;
                let index = token >> Registry::TOKEN_BITS;
                let own = token & ((1 << Registry::TOKEN_BITS) - 1);
                if index >= ENGINES {
                    self.core.movers.devices.ready(index - ENGINES, own);
                } else if let Some(installed) = self.interfaces.get_mut(index) {
                    let readable =
                        event.is_readable() || event.is_read_closed() || event.is_error();
                    installed.interface.ready(
                        own,
                        readable,
                        event.is_writable() || event.is_error(),
                    );
                }
            }
            if count < EVENTS {
                return;
            }
        }
    }

    /// Asks every interface to wake the worker at the next arrival. `false`: something is here already.
    pub(crate) fn arm(&mut self) -> bool {
        if self.armed {
            return true;
        }
        self.armed = true;
        self.core.movers.ctx.counts.arms += 1;
        if self.core.movers.has_work()
            || !self
                .interfaces
                .iter_mut()
                .filter(|installed| installed.counts.connections > 0)
                .all(|installed| installed.interface.arm())
            || !self.core.movers.devices.arm()
        {
            self.disarm();
            return false;
        }
        true
    }

    /// As [`Engine::arm`], for all but the reactor: while a message is read where it lies, or a peer stays in memory, it is the reactor that looks for
    /// the end of that.
    pub(crate) fn arm_or_leave(&mut self) -> bool {
        if self.armed || !self.is_held() && !self.core.movers.linger_new {
            return self.arm();
        }
        self.reactor_due = false;
        true
    }

    /// How long the reactor may sleep at most, where something ends of which no arrival tells: a message is read where it lies, or a peer stays in
    /// memory.
    pub(in crate::worker) fn longest_sleep(&mut self, nap: Duration) -> Option<Duration> {
        match self.is_held() {
            true => Some(nap),
            false => Some(self.core.movers.until_lingering()?.max(nap)),
        }
    }

    /// Whether a message is read where it lies: who sleeps must not sleep for long.
    pub(crate) fn is_held(&self) -> bool {
        let mut interfaces = self.interfaces.iter();
        interfaces
            .any(|installed| installed.counts.connections > 0 && installed.interface.is_held())
    }

    /// Whether who sends next has to ring.
    #[inline(always)]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Whether the reactor has to be asked. Unarmed, the links can bring something of which nobody is told; armed, what can move without
    /// an arrival is left to do.
    #[inline]
    pub(crate) fn needs_reactor(&self) -> bool {
        !self.reactor_due && (self.core.movers.has_work() || !self.armed && self.has_links())
    }

    /// The transports, with what they brought, and what links that are gone had taken.
    pub(crate) fn transports(&self) -> Vec<TransportMetrics> {
        let transports = self.interfaces.iter();
        transports
            .map(|installed| installed.counts.clone())
            .collect()
    }

    /// The doorbell was rung.
    pub(crate) fn rung(&mut self) {
        for installed in &mut self.interfaces {
            installed.interface.rung();
        }
    }

    /// Whether something may come of which the worker is told through fds.
    pub(crate) fn has_links(&self) -> bool {
        self.links > 0 || self.core.movers.devices.is_live()
    }

    /// This side polls again: nobody needs to ring.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            for installed in &mut self.interfaces {
                if installed.counts.connections > 0 {
                    installed.interface.disarm();
                }
            }
            self.core.movers.devices.disarm();
        }
    }
}

impl Drop for Engine {
    /// Also where nobody could end the connections before: on a runtime that was shut down.
    fn drop(&mut self) {
        if fork::forked() {
            // They are the parent's, and so is what peers reach. The drop of a link would shut sockets down that the parent has too.
            for peer in self.core.movers.ctx.peers.iter_mut().flatten() {
                let _kept = std::mem::ManuallyDrop::new(peer.link.take());
            }
            return;
        }
        self.fail_all("the worker is gone");
        self.core.movers.ctx.end_writers();
        self.core.movers.outlive();
    }
}

impl Movers {
    /// Whether a pass has more to do than to take what arrived.
    #[inline]
    fn has_followup(&self) -> bool {
        self.has_work() || !self.lingering.is_empty() || self.devices.is_live()
    }

    /// Whether the next pass moves something by itself.
    #[inline]
    fn has_work(&self) -> bool {
        self.transfers.len()
            + self.leaving.len()
            + self.ctx.writable.len()
            + self.ctx.runnable.len()
            + self.ctx.failures.len()
            + self.ctx.owing.len()
            + self.ctx.unmatched.len()
            > 0
            || self.ctx.is_eventful()
            || self.ctx.operations.epochs.is_due()
            || self.devices.has_work()
    }
}
