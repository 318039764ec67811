//! Messages over InfiniBand and RoCE devices, by reliable connections: what `libibverbs` offers, found at run time.
//!
//! Comes in: a channel between two workers. Goes out: messages, through `Sink`, without a system call for each. Uses `driver::verbs`,
//! `transport::{contract, channel}` and `types`. Limits: a message is at most 8 KiB; longer ones are the protocol's affair.
//!
//! ```text
//! Devices (of a context) ── OpenDevice ── Port
//!     │
//!   Room (of a worker) ──── Queues: one completion queue, one shared receive queue, their memory
//!     │                        │
//!   Connector ── Connection ── Rail: queue pair, send ring        control socket: the socket of the set-up
//!                  │      │
//!               Link    Interface
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `options` | its name, and what can be set |
//! | `device` | an open device: its ports, with which address, and what it tells |
//! | `devices` | which devices are used |
//! | `buffers` | memory that the device knows |
//! | `queues` | what the connections of a worker to a device share |
//! | `wire` | what goes over the wire, and over the channel |
//! | `connector` | setting up |
//! | `pairs` | which rails of the two ends belong together |
//! | `connection` | what both halves of a link share: send queue, credits |
//! | `pace` | how fast each rail is, and which one a piece of a transfer goes over |
//! | `rail` | a queue pair with what it sends from, and those that end without a connection |
//! | `room` | what a worker has of the devices |
//! | `served` | queue pairs by which peers reach memory of this side |
//! | `link` | the sending half |
//! | `one_sided` | puts, gets and atomics over a connection |
//! | `domain` | memory in reach of the devices: the host's, and other devices' |
//! | `read_back` | what a device wrote into memory of another, read back so that it is there |
//! | `iface` | the receiving half |
//!
//! # Room at the receiver
//! Receives are posted to a queue that all connections share. Each connection has a *window* of them: a sender has that many credits,
//! spends one for each message and gets them back in the headers of messages of the other direction, or by a message of its own once half the
//! window is owed. So a message always finds a receive.
//!
//! # Life and death
//! The socket that the connection was set up over stays open. Its end says that the peer is gone; a queue pair that fails says that the
//! way to it is. Either way what had arrived is delivered first.
//!
//! # Rails
//! Each pair of ports is a rail: those of one subnet first, then in the devices' order. Messages go over one rail. When it fails,
//! each end gives it up, waits until nothing more comes of it, and tells over the control socket which message it waits for; what the other had
//! sent from there on goes over the next rail. A rail with one-sided operations under way cannot be replaced: nobody knows whether they were done.
//! The control socket has to stay: where it goes over the cable that failed, the connection ends within 10 s.
//! Tests: `transport/conformance/` and `tests/verbs/`, on an emulated library and in a virtual machine with soft-RoCE devices.

mod buffers;
mod connection;
mod connector;
mod device;
mod devices;
mod domain;
mod iface;
mod link;
mod one_sided;
mod options;
mod pace;
mod pairs;
mod queues;
mod rail;
mod read_back;
mod room;
pub(crate) mod served;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use devices::Devices;
pub use options::RelaxedOrdering;
pub(crate) use options::{DeviceChoice, MemoryOptions, RcOptions};

use crate::{
    error::Result,
    transport::{DeviceInfo, DeviceRegistrar, Opened, Reach, Transport},
};

/// The transport `rc_verbs`.
#[derive(Debug)]
pub(crate) struct RcVerbs {
    devices: Arc<Devices>,
}

impl RcVerbs {
    /// The name in configuration.
    pub(crate) const NAME: &'static str = options::NAME;

    /// With these options. Loads nothing yet.
    pub(crate) fn new(options: RcOptions) -> Self {
        Self {
            devices: Arc::new(Devices::new(options)),
        }
    }
}

impl Transport for RcVerbs {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn reach(&self) -> Reach {
        Reach::Network
    }

    fn probe(&self) -> Result<()> {
        self.devices.open().map(drop)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        self.devices.inventory()
    }

    /// Whether connections can be made by IP addresses of the devices.
    fn note(&self) -> Option<String> {
        let libraries = &self.devices.options.libraries;
        libraries.verbs().ok()?;
        Some(match libraries.load() {
            Ok(_) => "librdmacm is here, for connect_rdma and listen_rdma".to_owned(),
            Err(error) => format!("no connect_rdma and listen_rdma: {error}"),
        })
    }

    fn is_one_sided(&self) -> bool {
        true
    }

    fn remote_memory(&self) -> Option<Arc<dyn DeviceRegistrar>> {
        match self.devices.memory() {
            Ok(memory) => Some(memory.clone()),
            Err(error) => {
                tracing::debug!(target: "wharf::verbs", %error, "no memory in reach of devices");
                None
            }
        }
    }

    fn open(&self) -> Result<Opened> {
        let room = Arc::new(room::Room::new(Arc::clone(&self.devices))?);
        Ok(Opened {
            interface: Box::new(iface::RcInterface::new(Arc::clone(&room))),
            connector: Arc::new(connector::RcConnector::new(room)),
        })
    }
}

/// Gives bytes to the decoders of this transport.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some((header, body)) = wire::Header::decode(bytes) {
        assert_eq!(body.len() + wire::HEADER, bytes.len());
        assert_eq!(header.encode()[..], bytes[..wire::HEADER]);
    }
    if let Some(frame) = bytes.first_chunk()
        && let Some(drained) = wire::Drained::decode(frame)
    {
        assert_eq!(wire::Drained::decode(&drained.encode()), Some(drained));
    }
    if let Ok(offer) = wire::Offer::decode(bytes) {
        assert!(offer.rails.len() <= wire::MOST_RAILS);
        assert_eq!(wire::Offer::decode(&offer.encode()).ok(), Some(offer));
    }
    let _ = wire::read_verdict(bytes);
}
