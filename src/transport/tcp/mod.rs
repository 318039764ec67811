//! Messages over TCP: chosen between hosts, and within one where shared memory cannot be had.
//!
//! Comes in: a TCP channel that both ends agreed to turn into a link. Goes out: messages, through `Sink`. Long payloads
//! are written from the sender's memory and read into the receiver's; no copy of ours lies between.
//! Uses `transport::{contract, channel}` and `types`. Limits: a message is at most [`TcpOptions::max_frame`] bytes; no access
//! to remote memory. Dead hosts are found by the kernel's keepalive, dead processes by the reset that the kernel sends.
//! Tests: `transport/conformance.rs`, `tests.rs`, and beside the frame.

mod connector;
mod frame;
mod iface;
mod link;
mod reader;
mod socket;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use crate::{
    error::Result,
    transport::{Opened, Reach, Transport},
};

/// What can be set.
#[derive(Clone, Debug)]
pub(crate) struct TcpOptions {
    /// Silence after which the kernel asks whether the peer is still there.
    pub(crate) keepalive_idle: Duration,
    /// Time between two such questions.
    pub(crate) keepalive_interval: Duration,
    /// How many go unanswered before the link counts as broken.
    pub(crate) keepalive_count: u32,
    /// Time without acknowledgement after which data on their way count as lost. It holds as well for a peer that is
    /// alive and has stopped reading, and where it is set Linux lets it replace `keepalive_count`.
    pub(crate) user_timeout: Option<Duration>,
    /// Longest message, prefix included, in bytes. The smaller of both ends' values is used.
    pub(crate) max_frame: usize,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            keepalive_idle: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(2),
            keepalive_count: 3,
            user_timeout: Some(Duration::from_secs(30)),
            max_frame: 64 << 20,
        }
    }
}

/// The transport `tcp`.
#[derive(Debug)]
pub(crate) struct Tcp {
    options: TcpOptions,
}

impl Tcp {
    /// The name in configuration.
    pub(crate) const NAME: &'static str = "tcp";

    /// With these options.
    pub(crate) fn new(options: TcpOptions) -> Self {
        Self { options }
    }
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn reach(&self) -> Reach {
        Reach::Network
    }

    fn probe(&self) -> Result<()> {
        Ok(())
    }

    fn open(&self) -> Result<Opened> {
        Ok(Opened {
            interface: Box::new(iface::TcpInterface::new()),
            connector: Arc::new(connector::TcpConnector::new(self.options.clone())),
        })
    }
}
