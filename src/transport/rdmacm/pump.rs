//! The task that carries bytes between a channel's socket and the queue pair.
//!
//! It ends when the channel is dropped and all it had sent has arrived, or when the connection does. What had arrived by then is handed over
//! first; then the socket's end tells the channel, and [`Ending`] tells why if it was no plain end.

use std::{collections::VecDeque, io, ops::Range, time::Duration};

use tokio::{
    io::unix::AsyncFd,
    net::UnixStream,
    time::{Instant, sleep_until, timeout},
};

use super::{
    events::Events,
    greeting::Greeting,
    pair::{Done, Pair, SENDS, SLOT},
    watch,
    window::{HEADER, Window},
};
use crate::{
    driver::{rdmacm::Id, verbs::CompletionChannel},
    error::{Error, ErrorKind, Result},
    sys::blocking::Offloaded,
    transport::channel::{Channel, Ending},
};

/// What the end of a channel waits for what it has sent.
const LINGER: Duration = Duration::from_secs(5);

/// How long a peer may take no message.
const STALL: Duration = Duration::from_secs(20);

/// A peer that has been silent for so many intervals is gone.
const SILENT: u32 = 3;

/// One end of a connection that stands. To be dropped where it may block.
#[derive(Debug)]
pub(super) struct End {
    pub(super) pair: Pair,
    pub(super) id: Id,
}

/// Starts the task on the current runtime.
/// Errors: what the system said.
pub(super) fn start(
    end: Offloaded<End>,
    events: Events,
    completions: CompletionChannel,
    theirs: Greeting,
    peer: String,
    keepalive: Option<Duration>,
) -> Result<Channel> {
    let completions = watch::completions(completions)?;
    let (ours, socket) =
        UnixStream::pair().map_err(|error| Error::io("a pair of sockets", error))?;
    let ending = Ending::default();
    let pump = Pump {
        completions,
        events,
        socket,
        window: Window::new(usize::from(theirs.receives)),
        room: usize::from(theirs.bytes).min(SLOT) - HEADER,
        free: Pair::send_slots(),
        arrived: VecDeque::new(),
        done: Vec::new(),
        hung_up: false,
        deaf: false,
        armed: false,
        since: None,
        keepalive,
        heard: Instant::now(),
        asked: Instant::now(),
        silent: 0,
    };
    tokio::spawn(pump.run(end, ending.clone()));
    Ok(Channel::rdma(ours, peer, ending))
}

struct Pump {
    // Before what they watch.
    completions: AsyncFd<CompletionChannel>,
    events: Events,
    socket: UnixStream,
    window: Window,
    /// Bytes that go into a message.
    room: usize,
    /// Slots to send from.
    free: Vec<usize>,
    /// What was received and not handed over: slots, and what of each.
    arrived: VecDeque<(usize, Range<usize>)>,
    done: Vec<Done>,
    /// The channel was dropped: nothing more is to be sent.
    hung_up: bool,
    /// The channel was dropped: what arrives is for nobody.
    deaf: bool,
    /// The next completion will be told.
    armed: bool,
    /// Since when there is something that the peer must do.
    since: Option<Instant>,
    /// Silence after which the peer's device is asked whether it is still there, each time.
    keepalive: Option<Duration>,
    /// When something was last received, or acknowledged by the peer's device.
    heard: Instant,
    /// When it was last asked.
    asked: Instant,
    /// Intervals that have gone by since.
    silent: u32,
}

impl Pump {
    async fn run(mut self, mut held: Offloaded<End>, ending: Ending) {
        if let Err(error) = self.carry(&mut held).await {
            tracing::debug!(target: "wharf::wireup", %error, "a channel over RDMA ended");
            // What came before is the channel's still.
            let _ = timeout(LINGER, self.hand_over_all(&mut held)).await;
            if error.kind() != ErrorKind::ConnectionReset {
                ending.set(error);
            }
        }
        // The socket first: the channel is not to wait for the rest.
        drop(self);
        let ended = held.then(|end| {
            // The other side may have ended it before.
            let _ = end.id.disconnect();
            drop(end);
            Ok(((), ()))
        });
        if let Err(error) = ended.await {
            tracing::debug!(target: "wharf::wireup", %error, "ending a channel over RDMA");
        }
    }

    /// Carries bytes until one side ends. `Ok`: the channel was dropped, and all is sent.
    async fn carry(&mut self, end: &mut End) -> Result<()> {
        loop {
            let mut busy = self.complete(end)?;
            busy |= self.hand_over(end)?;
            busy |= self.take(end)?;
            if busy {
                continue;
            }
            if self.hung_up && self.free.len() == SENDS {
                return Ok(());
            }
            if !self.armed {
                // What came before the arming tells nothing: once more.
                end.pair.arm()?;
                self.armed = true;
                continue;
            }
            self.wait(end).await?;
        }
    }

    /// The peer has been silent for another interval: a message that says nothing has its device answer.
    fn probe(&mut self, end: &mut End) -> Result<()> {
        self.silent += 1;
        self.asked = Instant::now();
        if self.silent >= SILENT {
            let text = format!(
                "the peer's host has been silent for {:?}",
                self.heard.elapsed()
            );
            return Err(Error::new(ErrorKind::Unreachable, text));
        }
        // One that is under way does as well.
        if self.free.len() == SENDS
            && let Some(slot) = self.free.pop()
        {
            end.pair.send(slot, self.window.send(), 0)?;
        }
        Ok(())
    }

    fn may_send(&self) -> bool {
        !self.free.is_empty() && self.window.is_open()
    }

    /// What the device has done.
    fn complete(&mut self, end: &mut End) -> Result<bool> {
        let mut done = std::mem::take(&mut self.done);
        let polled = end.pair.poll(&mut done);
        let any = !done.is_empty();
        if any {
            (self.heard, self.silent) = (Instant::now(), 0);
        }
        for one in &done {
            match *one {
                Done::Sent { slot } => self.free.push(slot),
                Done::Received { slot, length } => {
                    self.window.receive(end.pair.bytes(slot, length)?)?;
                    self.arrived.push_back((slot, HEADER..length));
                }
            }
        }
        self.done = done;
        polled.map(|()| any)
    }

    /// Hands over what has arrived, as far as the socket takes it.
    fn hand_over(&mut self, end: &mut End) -> Result<bool> {
        let mut any = false;
        while let Some((slot, range)) = self.arrived.front_mut() {
            let bytes = &end.pair.bytes(*slot, range.end)?[range.start..];
            if !bytes.is_empty() && !self.deaf {
                match self.socket.try_write(bytes) {
                    Ok(count) => range.start += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => self.deaf = true,
                }
                any = true;
                if range.start < range.end && !self.deaf {
                    continue;
                }
            }
            let slot = *slot;
            self.arrived.pop_front();
            end.pair.receive(slot)?;
            self.window.posted();
            any = true;
        }
        Ok(any)
    }

    /// At the connection's end: all that has arrived.
    async fn hand_over_all(&mut self, end: &mut End) -> Result<()> {
        let _ = self.complete(end);
        loop {
            // Posting anew fails by now; what was handed over is out of the list before.
            let _ = self.hand_over(end);
            if self.arrived.is_empty() || self.deaf {
                return Ok(());
            }
            self.socket
                .writable()
                .await
                .map_err(|error| Error::io("a channel's socket", error))?;
        }
    }

    /// Takes from the channel what may be sent, and sends it.
    fn take(&mut self, end: &mut End) -> Result<bool> {
        let mut any = false;
        while !self.hung_up && self.may_send() {
            let Some(slot) = self.free.last().copied() else {
                break;
            };
            let body = &mut end.pair.body(slot)?[..self.room];
            match self.socket.try_read(body) {
                Ok(0) => self.hung_up = true,
                Ok(length) => {
                    self.free.pop();
                    end.pair.send(slot, self.window.send(), length)?;
                    any = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Reset: dropped with something unread.
                Err(_) => self.hung_up = true,
            }
        }
        if self.window.is_notice_due()
            && let Some(slot) = self.free.pop()
        {
            end.pair.send(slot, self.window.send(), 0)?;
            any = true;
        }
        Ok(any)
    }

    /// When the peer is to be asked: an interval after it was, so that one whose host was stopped has time to find the answers. One that has something
    /// to do has a limit for that; one whose task does not run is left alone.
    fn silence_ends(&self) -> Option<Instant> {
        match self.keepalive {
            Some(time) if !self.hung_up && self.may_send() && self.window.may_ask() => {
                Some(self.heard.max(self.asked) + time)
            }
            _ => None,
        }
    }

    /// Waits until there is something to do.
    async fn wait(&mut self, end: &mut End) -> Result<()> {
        let limit = if self.hung_up {
            Some(LINGER)
        } else if !self.may_send() {
            Some(STALL)
        } else {
            self.since = None;
            None
        };
        let deadline = limit.map(|limit| *self.since.get_or_insert_with(Instant::now) + limit);
        let silence = self.silence_ends();
        tokio::select! {
            event = self.events.next() => {
                if let Some(error) = event?.error() {
                    return Err(error);
                }
            }
            ready = self.completions.readable() => {
                let mut ready = ready.map_err(|error| Error::io("awaiting completions", error))?;
                ready.get_inner().drain(|_| ())?;
                ready.clear_ready();
                self.armed = false;
            }
            ready = self.socket.readable(), if !self.hung_up && self.may_send() => {
                ready.map_err(|error| Error::io("a channel's socket", error))?;
            }
            ready = self.socket.writable(), if !self.arrived.is_empty() && !self.deaf => {
                ready.map_err(|error| Error::io("a channel's socket", error))?;
            }
            () = sleep_until(silence.unwrap_or_else(Instant::now)), if silence.is_some() => {
                self.probe(end)?;
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                return Err(Error::new(
                    ErrorKind::DeadlineExceeded,
                    format!("the peer took no message for {:?}", limit.unwrap_or_default()),
                ));
            }
        }
        Ok(())
    }
}
