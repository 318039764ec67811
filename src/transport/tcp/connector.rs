//! Turns the channel that a connection was set up over into a link.
//!
//! ```text
//! server   hello {magic, version, flags, CRC-32 of these}  ─▶
//! client   hello, verdict                                  ─▶  then frames on the same socket, from it at once
//! ```
//!
//! The client does not wait for a verdict: what the server could object to is seen by both, except a version older than it speaks. Then the client
//! finds its link at its end.

use async_trait::async_trait;
use socket2::TcpKeepalive;

use super::{
    frame::Format,
    options::{NAME, TcpOptions},
    socket::Socket,
};
use crate::{
    ErrorKind,
    error::{Error, Result},
    sys::identity::identity,
    transport::{Connected, Connector, FRAGMENT, PeerInfo, Role, channel::Channel},
    types::Identity,
};

const MAGIC: &[u8; 4] = b"wtcp";
const VERSION: u8 = 3;
/// A flag: this end wants checksums.
const CHECKSUMS: u8 = 1;
/// Bytes of a fragment between processes of one host, where 1 MiB takes some 200 µs: one call for as much keeps the two processors out of each
/// other's caches, and takes up to a third less time than four (`benches/README.md`, 2026-11-30).
const FRAGMENT_OF_ONE_HOST: usize = 1 << 20;
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;
/// Bytes of a hello.
const HELLO: usize = 10;

#[cold]
fn too_short() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "the peer's offer of a link is too short",
    )
}

/// Bytes of a fragment. What is encrypted takes longer.
pub(super) fn fragment(is_encrypted: bool, peer: &Identity) -> usize {
    match !is_encrypted && peer.same_host(identity()) {
        true => FRAGMENT_OF_ONE_HOST,
        false => FRAGMENT,
    }
}

/// What [`super::iface::TcpInterface`] attaches.
#[derive(Debug)]
pub(super) struct Established {
    /// Options set.
    pub(super) socket: Socket,
    /// How both ends write frames.
    pub(super) format: Format,
    /// See [`Link::fragment`](crate::transport::Link::fragment).
    pub(super) fragment: usize,
}

/// Sets links up.
#[derive(Debug)]
pub(super) struct TcpConnector {
    options: TcpOptions,
}

impl TcpConnector {
    /// With these options.
    pub(super) fn new(options: TcpOptions) -> Self {
        Self { options }
    }

    fn hello(&self) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        hello[..4].copy_from_slice(MAGIC);
        hello[4] = VERSION;
        if self.options.checksums {
            hello[5] |= CHECKSUMS;
        }
        let sum = crc32fast::hash(&hello[..HELLO - 4]);
        hello[HELLO - 4..].copy_from_slice(&sum.to_le_bytes());
        hello
    }

    /// How both write frames, from the peer's hello. Later versions may append to it, the client's behind its verdict.
    pub(super) fn agree(&self, hello: &[u8]) -> Result<Format> {
        let &[m0, m1, m2, m3, version, ..] = hello else {
            return Err(too_short());
        };
        if [m0, m1, m2, m3] != *MAGIC {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the peer's offer is not one of a tcp link",
            ));
        }
        if version < VERSION {
            return Err(Error::new(
                ErrorKind::VersionMismatch,
                format!(
                    "the peer speaks version {version} of the tcp transport, this side {VERSION}"
                ),
            ));
        }
        let &[said @ .., s0, s1, s2, s3] = hello.first_chunk::<HELLO>().ok_or_else(too_short)?;
        if crc32fast::hash(&said) != u32::from_le_bytes([s0, s1, s2, s3]) {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the checksum of the peer's offer of a link is wrong",
            ));
        }
        let [.., flags] = said;
        Ok(Format {
            checksums: self.options.checksums || flags & CHECKSUMS != 0,
        })
    }

    fn prepare(&self, socket: &socket2::Socket, fragment: usize) -> std::io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        // With as much in the kernel that it has not sent yet it takes no more, for which a short message would wait as well.
        socket.set_tcp_notsent_lowat(fragment as u32)?;
        let Some(time) = self.options.keepalive else {
            return Ok(());
        };
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(time).with_interval(time))?;
        // Half a probe before the third: that one finds it over, however the kernel rounds.
        socket.set_tcp_user_timeout(Some(time * 5 / 2))
    }
}

#[async_trait]
impl Connector for TcpConnector {
    fn can_use(&self, channel: &Channel, _peer: &PeerInfo) -> Result<()> {
        let why = match (channel.is_tls(), channel.is_tcp()) {
            (true, _) => return Ok(()),
            (false, true) if !self.options.tls => return Ok(()),
            (false, true) => "TLS is demanded, and the connection has none",
            (false, false) => "the connection was not set up over TCP",
        };
        Err(Error::new(ErrorKind::Unsupported, why).over(NAME))
    }

    async fn connect(
        &self,
        channel: &mut Channel,
        role: Role,
        peer: &PeerInfo,
    ) -> Result<Connected> {
        let named = |error: Error| error.with_peer(&peer.name).over(NAME);
        let agreed = match role {
            Role::Server => {
                channel.send(&self.hello(), &[]).await?;
                let hello = channel.receive_alone().await?;
                let agreed = self.agree(&hello).map_err(named)?;
                if hello.get(HELLO) != Some(&ACCEPTED) {
                    return Err(named(Error::new(
                        ErrorKind::VersionMismatch,
                        "the peer refused this side's offer of a link",
                    )));
                }
                Ok(agreed)
            }
            Role::Client => {
                let hello = channel.receive_alone().await?;
                let agreed = self.agree(&hello).map_err(named);
                let verdict = if agreed.is_ok() { ACCEPTED } else { REFUSED };
                let hello = [&self.hello()[..], &[verdict]].concat();
                channel.send(&hello, &[]).await?;
                agreed
            }
        };
        let mut format = agreed?;
        // TLS finds every changed bit by itself.
        format.checksums &= !channel.is_tls();
        let (socket, session) = channel.take_secured()?;
        let socket = socket2::Socket::from(socket);
        let fragment = fragment(session.is_some(), &peer.identity);
        self.prepare(&socket, fragment)
            .map_err(|error| named(Error::io("setting up the socket", error)))?;
        Ok(Connected(Box::new(Established {
            socket: Socket::new(socket, session, &peer.name),
            format,
            fragment,
        })))
    }
}
