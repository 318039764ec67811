//! Messages over TCP: chosen between hosts, and within one where shared memory cannot be had.
//!
//! Comes in: a TCP channel that both ends agreed to turn into a link. Goes out: messages, through `Sink`. Long payloads
//! are written from the sender's memory and read into the receiver's; no copy of ours lies between.
//! Uses `transport::{contract, channel}` and `types`. Limits: a message is at most 64 MiB; no access
//! to remote memory. Dead hosts are found by the kernel's keepalive, dead processes by the reset that the kernel sends.
//!
//! # Silence
//! With keepalive every `t` (whole seconds, 10 s by default) a link whose other end has gone silent is over after `3 t`, idle or not,
//! without a timer of ours. Idle, the kernel asks after `t`, `2 t`, and gives up at `3 t`; with data on their way it gives up `2.5 t` after the
//! last acknowledgement (`TCP_USER_TIMEOUT`, which on Linux replaces the count of keepalive probes). A host that is alive and whose process
//! is stopped (`SIGSTOP`, a debugger) or never polls its runtime answers the probes and is kept, unless data wait for it: once its socket
//! buffers are full, which takes some megabytes, it has `2.5 t` to read on.
//!
//! # Fairness
//! A socket is one queue. What is in front of a short message: the rest of one fragment in the link (256 KiB; 1 MiB between processes of one
//! host), as much in the kernel that has not been sent, and what is on its way or in the receiver's buffer.
//!
//! # Changed bytes
//! TCP's own checksum has 16 bits, and is often made anew on the way. Where either end asks for it, every frame carries CRC-32 sums of its header,
//! its prefix and its payload; a wrong one ends the link before what it covers is delivered or said to be complete. They find accidents, no attacker.
//!
//! # TLS
//! Where the channel is under TLS when a link is made of it, all that the link writes is encrypted and all that it reads decrypted, between it and the
//! socket. What TLS has taken and the socket has not counts as unsent; what it has decrypted is delivered before the socket is said to be drained.
//! Tests: `tests/tls/`, `transport/conformance/`, `tests.rs`, and beside the frame.

mod connector;
mod frame;
mod iface;
mod link;
mod options;
mod reader;
mod socket;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use options::TcpOptions;

use crate::{
    error::{Error, Result},
    sys::interfaces::interfaces,
    transport::{DeviceInfo, Opened, Reach, Transport},
};

/// The transport `tcp`.
#[derive(Debug)]
pub(crate) struct Tcp {
    options: TcpOptions,
}

impl Tcp {
    /// The name in configuration.
    pub(crate) const NAME: &'static str = options::NAME;

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

    /// The network interfaces that have addresses.
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let list =
            interfaces().map_err(|error| Error::io("listing the network interfaces", error))?;
        let mut found: Vec<DeviceInfo> = Vec::new();
        for interface in list {
            let name = interface.name;
            let Some(ip) = interface.ip else { continue };
            if let Some(known) = found.iter_mut().find(|known| known.name == name) {
                known.details.push(("address", ip.to_string()));
                continue;
            }
            let mut info = DeviceInfo::new(name.as_str()).of_class("net", &name);
            if !interface.is_up {
                info.unused = Some("it is down".to_owned());
            }
            if let Some(speed) = crate::sys::topology::interface_speed(&name) {
                info = info.detail("speed", format_args!("{speed} Mb/s"));
            }
            found.push(info.detail("address", ip));
        }
        Ok(found)
    }

    fn open(&self) -> Result<Opened> {
        Ok(Opened {
            interface: Box::new(iface::TcpInterface::new()),
            connector: Arc::new(connector::TcpConnector::new(self.options.clone())),
        })
    }
}

/// Gives bytes to the decoders of this transport.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    for checksums in [false, true] {
        let format = frame::Format { checksums };
        if let Ok(Some(frame)) = frame::Frame::decode(bytes, format) {
            assert!(frame.prefix <= frame.length && frame.length <= frame::LIMIT);
            let mut again = [0; frame::SUMMED];
            let length = frame.encode(&mut again);
            assert_eq!(again[..length], bytes[..format.header()]);
        }
    }
    let _ = connector::TcpConnector::new(TcpOptions::default()).agree(bytes);
}
