//! The handshake: the server makes the segment and passes it with its doorbell, the client answers with its own.
//!
//! ```text
//! server                                         client
//!   offer  [segment, server's bell]      ──▶       checks size and seals, maps
//!   rings the client's bell              ◀──       answer [client's bell]     both say whether they are registered for barriers
//!   verdict                              ──▶
//! ```
//!
//! Each frame is a status byte and, when that is a refusal, the reason as text. Whoever cannot go on says so, so that both
//! fail and the channel stays in step for the next transport. After the verdict the socket belongs to the link.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::AtomicBool},
};

use async_trait::async_trait;

use super::{
    layout::{MAGIC, SEGMENT, VERSION},
    link::Peer,
    options::{NAME, ShmOptions},
    segment::Segment,
};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::{
        bell::{Bell, Ringer},
        fd_passing,
        fd_socket::Socket,
        membarrier,
        memfd::{Mapping, Memfd},
        pidfd::PidFd,
    },
    transport::{
        channel::Channel,
        contract::{Connected, Connector, PeerInfo, Role},
    },
    util::wire::legible,
};

/// A link that both ends agreed on.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) peer: Peer,
    /// Its process, when it is watched.
    pub(crate) process: Option<Arc<PidFd>>,
}

/// The control path of one worker.
#[derive(Debug)]
pub(crate) struct ShmConnector {
    options: ShmOptions,
}

impl ShmConnector {
    pub(crate) fn new(options: ShmOptions) -> Self {
        Self { options }
    }

    async fn serve(channel: &mut Channel) -> Result<(Segment, Bell, Ringer)> {
        let made = make_segment().and_then(|made| Ok((made, make_bell()?)));
        let ((memory, mapping), bell) = give_up_unless(channel, made).await?;
        let mut offer = vec![GO_ON];
        offer.extend_from_slice(&offer_body());
        let own_registered = membarrier::available();
        offer.push(own_registered.into());
        channel
            .send(&offer, &[memory.as_fd(), bell.as_fd()])
            .await?;
        let (body, fds) = receive(channel).await?;
        let answer = take_answer(&body, fds);
        let (ringer, registered) = give_up_unless(channel, answer).await?;
        let segment = Segment::new(mapping, Role::Server, registered && own_registered)?;
        channel.send(&[GO_ON], &[]).await?;
        Ok((segment, bell, ringer))
    }

    async fn dial(channel: &mut Channel) -> Result<(Segment, Bell, Ringer)> {
        let (body, fds) = receive(channel).await?;
        let own_registered = membarrier::available();
        let taken =
            take_offer(&body, fds, own_registered).and_then(|taken| Ok((taken, make_bell()?)));
        let ((segment, ringer), bell) = give_up_unless(channel, taken).await?;
        let answer = [GO_ON, own_registered.into()];
        channel.send(&answer, &[bell.as_fd()]).await?;
        let (_, fds) = receive(channel).await?;
        let [] = exactly(fds)?;
        Ok((segment, bell, ringer))
    }
}

#[async_trait]
impl Connector for ShmConnector {
    fn can_use(&self, channel: &Channel, _peer: &PeerInfo) -> Result<()> {
        if !channel.passes_fds() {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "shared memory needs a Unix socket to the peer",
            )
            .over(NAME));
        }
        same_user(channel)
    }

    fn admits(&self, channel: &Channel) -> Result<()> {
        same_user(channel)
    }

    async fn connect(
        &self,
        channel: &mut Channel,
        role: Role,
        peer: &PeerInfo,
    ) -> Result<Connected> {
        let place = |error: Error| error.over(NAME).with_peer(&peer.name);
        let allowed = self.can_use(channel, peer);
        let (mut segment, bell, ringer) = async {
            give_up_unless(channel, allowed).await?;
            match role {
                Role::Server => Self::serve(channel).await,
                Role::Client => Self::dial(channel).await,
            }
        }
        .await
        .map_err(place)?;
        let socket = Socket::new(channel.take_unix().map_err(place)?);
        // Without a pidfd (an old kernel, another process namespace) the socket alone tells that the peer is gone.
        let process = PidFd::of_peer(socket.as_fd()).ok().map(Arc::new);
        segment.set_peer(process.clone());
        let process = process.filter(|_| self.options.use_pidfd);
        let peer = Peer {
            segment: Arc::new(segment),
            bell,
            ringer,
            socket,
            name: peer.name.clone(),
            closed: AtomicBool::new(false),
            share_waits: AtomicBool::new(false),
        };
        Ok(Connected(Box::new(Established { peer, process })))
    }
}

const GO_ON: u8 = 0;
const REFUSED: u8 = 1;

fn same_user(channel: &Channel) -> Result<()> {
    let Some(peer) = channel.peer_credentials() else {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            "the system does not say which user the peer runs as",
        )
        .over(NAME));
    };
    let user = peer.uid;
    if user != nix::unistd::geteuid().as_raw() {
        let message =
            format!("the peer runs as user {user}: shared memory is for processes of one user");
        return Err(Error::new(ErrorKind::PermissionDenied, message).over(NAME));
    }
    Ok(())
}

fn make_segment() -> Result<(Memfd, Mapping)> {
    Memfd::create(c"wharf-pair", SEGMENT)
        .and_then(|memory| memory.map_sparse().map(|mapping| (memory, mapping)))
        .map_err(|error| Error::io("making the segment to share with the peer", error))
}

/// Magic, version, bytes of the segment: 16 bytes.
fn offer_body() -> Vec<u8> {
    let mut body = MAGIC.to_le_bytes().to_vec();
    body.extend_from_slice(&VERSION.to_le_bytes());
    body.extend_from_slice(&(SEGMENT as u32).to_le_bytes());
    body
}

fn take_offer(body: &[u8], fds: Vec<OwnedFd>, own_registered: bool) -> Result<(Segment, Ringer)> {
    let Some(registered) = body.strip_prefix(&offer_body()[..]) else {
        fd_passing::close_elsewhere(fds);
        return Err(Error::new(
            ErrorKind::VersionMismatch,
            "the peer lays its segment out differently",
        ));
    };
    let registered = match said(registered) {
        Ok(registered) => registered,
        Err(error) => {
            fd_passing::close_elsewhere(fds);
            return Err(error);
        }
    };
    let [memory, ringer] = exactly(fds)?;
    let mapping = match Mapping::of_received(memory.as_fd(), SEGMENT) {
        Ok(mapping) => mapping,
        Err(error) => {
            fd_passing::close_elsewhere(vec![memory, ringer]);
            return Err(Error::io("mapping the peer's segment", error));
        }
    };
    let ringer = take_ringer(ringer)?;
    let segment = Segment::new(mapping, Role::Client, registered && own_registered)?;
    Ok((segment, ringer))
}

fn take_answer(body: &[u8], fds: Vec<OwnedFd>) -> Result<(Ringer, bool)> {
    let [ringer] = exactly(fds)?;
    let ringer = take_ringer(ringer)?;
    Ok((ringer, said(body)?))
}

/// Whether the peer's process has registered for barriers.
fn said(body: &[u8]) -> Result<bool> {
    match body {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "the set-up of a segment does not say whether barriers can be had",
        )),
    }
}

fn make_bell() -> Result<Bell> {
    Bell::new().map_err(|error| Error::io("making a doorbell (a timer)", error))
}

fn take_ringer(fd: OwnedFd) -> Result<Ringer> {
    Ringer::from_received(fd).map_err(|error| Error::io("taking the peer's doorbell", error))
}

fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    fds.try_into().map_err(|fds: Vec<OwnedFd>| {
        let text = format!("{} file descriptors came instead of {N}", fds.len());
        fd_passing::close_elsewhere(fds);
        Error::new(ErrorKind::Protocol, text)
    })
}

/// Passes `outcome` on; a failure is told to the peer first.
async fn give_up_unless<T>(channel: &mut Channel, outcome: Result<T>) -> Result<T> {
    if let Err(error) = &outcome {
        let mut frame = vec![REFUSED];
        frame.extend_from_slice(error.to_string().as_bytes());
        // The peer may be gone already; the first error is the one to report.
        let _ = channel.send(&frame, &[]).await;
    }
    outcome
}

/// The rest of a frame that says "go on".
async fn receive(channel: &mut Channel) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut frame, fds) = channel.receive().await?;
    if frame.first() == Some(&GO_ON) {
        frame.remove(0);
        return Ok((frame, fds));
    }
    fd_passing::close_elsewhere(fds);
    match frame.first() {
        Some(&REFUSED) => Err(refusal(&frame[1..])),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "a frame of the set-up has no known status",
        )),
    }
}

fn refusal(reason: &[u8]) -> Error {
    Error::new(
        ErrorKind::Rejected,
        format!("the peer cannot use it: {}", legible(reason)),
    )
}
