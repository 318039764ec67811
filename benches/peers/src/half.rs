//! One of the two measured processes: its role, its link to the other one, its clock.
//!
//! # Safety
//!
//! The one unsafe block takes ownership of a descriptor that the kernel has just installed for us.
#![allow(unsafe_code)]

#[cfg(feature = "ucx")]
use std::io::Read;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::Outcome;
use crate::spec::Spec;

/// `A` sends, asks and reports; `B` receives and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    A,
    B,
}

/// What a contestant's two functions get.
pub(crate) struct Half {
    pub(crate) role: Role,
    pub(crate) spec: Spec,
    pub(crate) link: Link,
}

impl Half {
    /// The other end of the link is this process's standard input.
    pub(crate) fn new(role: Role, spec: Spec) -> Outcome<Self> {
        let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self {
            role,
            spec,
            link: Link::new(socket.into())?,
        })
    }

    pub(crate) fn is_a(&self) -> bool {
        self.role == Role::A
    }

    /// Returns when both halves have come here. Blocks without spinning.
    pub(crate) fn barrier(&mut self) -> Outcome<()> {
        self.link.send("barrier")?;
        let got = self.link.receive()?;
        if got == "barrier" {
            Ok(())
        } else {
            Err(format!("the other half said `{got}`").into())
        }
    }

    /// `B` gives what it measured, `A` gets it.
    pub(crate) fn hand_over(&mut self, value: f64) -> Outcome<f64> {
        if self.is_a() {
            Ok(self.link.receive()?.parse()?)
        } else {
            self.link.send(&value.to_string())?;
            Ok(value)
        }
    }
}

/// A blocking socket between the two halves, for words and descriptors, never for what is measured.
pub(crate) struct Link {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Link {
    fn new(socket: UnixStream) -> Outcome<Self> {
        Ok(Self {
            reader: BufReader::new(socket.try_clone()?),
            writer: socket,
        })
    }

    /// One line.
    pub(crate) fn send(&mut self, line: &str) -> Outcome<()> {
        writeln!(self.writer, "{line}")?;
        Ok(())
    }

    /// One line, without its end.
    pub(crate) fn receive(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err("the other half is gone".into());
        }
        Ok(line.trim_end().to_owned())
    }

    #[cfg(feature = "ucx")]
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.send(&bytes.len().to_string())?;
        self.writer.write_all(bytes)?;
        Ok(())
    }

    #[cfg(feature = "ucx")]
    pub(crate) fn receive_bytes(&mut self) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; self.receive()?.parse()?];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn send_fd(&mut self, fd: impl AsFd) -> Outcome<()> {
        let fds = [fd.as_fd().as_raw_fd()];
        sendmsg::<()>(
            self.writer.as_raw_fd(),
            &[IoSlice::new(b"f")],
            &[ControlMessage::ScmRights(&fds)],
            MsgFlags::empty(),
            None,
        )?;
        // The other side reads its next line only after it has the descriptor, so that no line reader swallows it.
        let got = self.receive()?;
        if got == "fd" {
            Ok(())
        } else {
            Err(format!("expected an answer to a descriptor, not `{got}`").into())
        }
    }

    pub(crate) fn receive_fd(&mut self) -> Outcome<OwnedFd> {
        let mut byte = [0_u8];
        let mut bufs = [IoSliceMut::new(&mut byte)];
        let mut space = cmsg_space!([i32; 1]);
        let message = recvmsg::<()>(
            self.writer.as_raw_fd(),
            &mut bufs,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        )?;
        let mut found = None;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                found = fds.first().copied();
            }
        }
        let fd = found.ok_or("no descriptor came over the link")?;
        // SAFETY: the kernel installed this descriptor for this process in the call above, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        self.send("fd")?;
        Ok(fd)
    }
}

/// Times batches of operations: first a warm-up that is not counted, then the timed part.
pub(crate) struct Laps {
    batch: usize,
    warm_until: Instant,
    end: Option<Instant>,
    length: Duration,
    started: Instant,
    last: Instant,
    samples: Vec<f64>,
}

impl Laps {
    pub(crate) fn start(spec: &Spec) -> Self {
        Self::with_batch(spec, spec.batch())
    }

    pub(crate) fn with_batch(spec: &Spec, batch: usize) -> Self {
        let now = Instant::now();
        Self {
            batch,
            warm_until: now + spec.warm_up(),
            end: None,
            length: spec.duration(),
            started: now,
            last: now,
            samples: Vec::with_capacity(1 << 14),
        }
    }

    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    /// To be called after each batch. False when the time is over.
    pub(crate) fn lap(&mut self) -> bool {
        let now = Instant::now();
        let more = match self.end {
            Some(end) => {
                self.samples
                    .push((now - self.last).as_nanos() as f64 / self.batch as f64);
                now < end
            }
            None => {
                if now >= self.warm_until {
                    self.started = now;
                    self.end = Some(now + self.length);
                }
                true
            }
        };
        self.last = now;
        more
    }

    /// Median over the batches of the nanoseconds for one operation.
    pub(crate) fn median(self) -> f64 {
        crate::stats::median(&self.samples)
    }

    /// Mean nanoseconds for one operation, from the end of the warm-up until now: for streams, called when all has arrived.
    pub(crate) fn mean(&self) -> f64 {
        let operations = self.samples.len() * self.batch;
        self.started.elapsed().as_nanos() as f64 / operations as f64
    }
}

/// Nanoseconds of a clock that all processes of a machine share.
pub(crate) fn stamp() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Spins for `gap`: the sender stays awake while the receiver sleeps.
pub(crate) fn spin_for(gap: Duration) {
    let end = Instant::now() + gap;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// The stamp that ends a parked measurement.
pub(crate) const LAST: u64 = u64::MAX;

/// The sender's side of every parked measurement: `send` gets a stamp taken just before.
pub(crate) fn parked_sender(spec: &Spec, mut send: impl FnMut(u64) -> Outcome<()>) -> Outcome<()> {
    let end = Instant::now() + spec.warm_up() + spec.duration();
    while Instant::now() < end {
        spin_for(spec.gap());
        send(stamp())?;
    }
    spin_for(spec.gap());
    send(LAST)
}

/// The receiver's side: stamps that came, until [`LAST`].
#[derive(Default)]
pub(crate) struct Arrivals(Vec<f64>);

impl Arrivals {
    /// Notes the delay of a message that is just here. False for the last one.
    pub(crate) fn note(&mut self, sent: u64) -> bool {
        if sent == LAST {
            return false;
        }
        self.0.push(stamp().saturating_sub(sent) as f64);
        true
    }

    /// The median delay; the first fifth is warm-up.
    pub(crate) fn median(&self) -> f64 {
        crate::stats::median(&self.0[self.0.len() / 5..])
    }
}
