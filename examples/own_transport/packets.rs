//! A transport of one's own, to be copied: messages are packets of a Unix socket, between two processes of one user. Both have some words in common as well
//! (`words.rs`), so that a long message is copied once, by the kernel, from the one process's memory into the other's.

use std::{
    io::{ErrorKind as Io, IoSlice, Read},
    mem,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed},
};

use async_trait::async_trait;
use mio::{Interest, unix::SourceFd};
use slab::Slab;
use socket2::{Domain, Socket, Type};
use wharf::transport::{
    Connected, Connector, Interface, Link, LinkAttributes, Opened, PeerInfo, Reach, Registry, Role,
    SendError, SharedMemory, Sink, Transport, channel::Channel,
};
use wharf::{Error, ErrorKind, LinkId, Result};

use super::words::Words;

const NAME: &str = "packets";
/// Bytes of a packet before its body: id and header.
const HEAD: usize = 9;
const LONGEST: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Packets;

impl Transport for Packets {
    fn name(&self) -> &'static str {
        NAME
    }
    fn reach(&self) -> Reach {
        Reach::Host
    }
    fn probe(&self) -> Result<()> {
        Ok(())
    }
    fn open(&self) -> Result<Opened> {
        Ok(Opened {
            interface: Box::new(PacketsInterface::default()),
            connector: Arc::new(*self),
        })
    }
}

#[async_trait]
impl Connector for Packets {
    fn can_use(&self, channel: &Channel, _peer: &PeerInfo) -> Result<()> {
        match channel.peer_credentials() {
            Some(peer) if peer.uid == nix::unistd::geteuid().as_raw() => Ok(()),
            _ => Err(Error::new(ErrorKind::Unreachable, "another user").over(NAME)),
        }
    }
    /// The server makes socket and words and passes them; the client says that it has them.
    async fn connect(&self, channel: &mut Channel, role: Role, _: &PeerInfo) -> Result<Connected> {
        let failed = |error| Error::io("setting a link up", error).over(NAME);
        let (socket, words) = if role == Role::Server {
            let pair = Socket::pair(Domain::UNIX, Type::SEQPACKET, None);
            let (near, far) = pair.map_err(failed)?;
            let memory = Words::memory().map_err(failed)?;
            let fds = [far.as_fd(), memory.as_fd()];
            channel.send(b"take these", &fds).await?;
            channel.receive().await?;
            (near, Words::map(&memory, role))
        } else {
            let (_, fds) = channel.receive().await?;
            let [socket, memory] = fds.try_into().map_err(|_| failed(Io::InvalidData.into()))?;
            let words = Words::map(&memory, role).map_err(failed)?;
            channel.send(b"taken", &[]).await?;
            (socket.into(), Ok(words))
        };
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Connected(Box::new(End {
            socket,
            words: Arc::new(words.map_err(failed)?),
            full: AtomicBool::new(false),
        })))
    }
}

/// One end of a connection, as its link and its interface share it.
#[derive(Debug)]
struct End {
    socket: Socket,
    words: Arc<Words>,
    /// The link found no room, and has not been told that there is some again.
    full: AtomicBool,
}

#[derive(Debug, Default)]
struct PacketsInterface {
    registry: Option<Registry>,
    links: Slab<Receiver>,
    packet: Vec<u8>,
}

#[derive(Debug)]
struct Receiver {
    id: LinkId,
    end: Arc<End>,
    /// What the system has said since it was asked last.
    readable: bool,
    writable: bool,
}

impl Interface for PacketsInterface {
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>> {
        let end = Arc::new(*connected.0.downcast::<End>().expect("of this transport"));
        let (readable, writable) = (true, false);
        let token = self.links.insert(Receiver {
            id,
            end: end.clone(),
            readable,
            writable,
        });
        let fd = end.socket.as_raw_fd();
        let both = Interest::READABLE | Interest::WRITABLE;
        let registry = self.registry.as_ref().expect("registered before");
        registry.register(&mut SourceFd(&fd), token, both)?;
        Ok(Box::new(PacketsLink(end)))
    }
    fn detach(&mut self, id: LinkId) {
        self.links.retain(|_, link| link.id != id);
    }
    fn register(&mut self, registry: Registry) -> Result<()> {
        self.registry = Some(registry);
        self.packet = vec![0; HEAD + LONGEST];
        Ok(())
    }
    fn ready(&mut self, token: usize, readable: bool, writable: bool) {
        if let Some(link) = self.links.get_mut(token) {
            link.readable |= readable;
            link.writable |= writable;
        }
    }
    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut happened = 0;
        self.links.retain(|_, link| {
            if mem::take(&mut link.writable) && link.end.full.swap(false, Relaxed) {
                sink.writable(link.id);
                happened += 1;
            }
            let mut left = budget;
            while link.readable && left > 0 {
                left -= 1;
                match (&link.end.socket).read(&mut self.packet) {
                    Ok(length) if length >= HEAD => {
                        happened += 1;
                        let (head, body) = self.packet[..length].split_at(HEAD);
                        let header = u64::from_le_bytes(head[1..].try_into().expect("eight"));
                        if sink.message(link.id, head[0], header, body).is_err() {
                            return false;
                        }
                    }
                    Err(error) if error.kind() == Io::WouldBlock => link.readable = false,
                    // Behind it comes what was sent before the end.
                    Err(error) if error.kind() == Io::ConnectionReset => {}
                    read => {
                        if matches!(read, Ok(0)) {
                            link.end.words.set_peer_gone();
                        }
                        sink.failed(link.id, closed());
                        return false;
                    }
                }
            }
            true
        });
        happened
    }
    fn arm(&mut self) -> bool {
        let mut links = self.links.iter();
        links.all(|(_, link)| !link.readable && !link.writable)
    }
    fn disarm(&mut self) {}
}

fn closed() -> Error {
    Error::new(
        ErrorKind::ConnectionReset,
        "the connection ended without a goodbye",
    )
    .over(NAME)
}

#[derive(Debug)]
struct PacketsLink(Arc<End>);

impl Link for PacketsLink {
    fn attributes(&self) -> LinkAttributes {
        LinkAttributes {
            transport: NAME,
            max_short: 48,
            max_bcopy: LONGEST,
            max_zcopy: 0,
        }
    }
    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        self.am_bcopy(id, header, &[], body)
    }
    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let (id, header) = ([id], header.to_le_bytes());
        let parts = [&id, &header[..], prefix, payload].map(IoSlice::new);
        // A packet is taken whole or not at all.
        match self.0.socket.send_vectored(&parts) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == Io::WouldBlock => {
                self.0.full.store(true, Relaxed);
                Err(SendError::Full)
            }
            Err(error) => {
                if error.kind() == Io::BrokenPipe {
                    self.0.words.set_peer_gone();
                }
                Err(SendError::Failed(closed().with_source(error)))
            }
        }
    }
    fn flush(&mut self, _sink: &mut dyn Sink) {}
    fn is_flushed(&self) -> bool {
        true
    }
    fn shared_memory(&self) -> Option<Arc<dyn SharedMemory>> {
        Some(self.0.words.clone())
    }
}
