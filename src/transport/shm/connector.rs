//! The handshake: the server makes the segment and passes it with its doorbell, the client answers with its own.
//!
//! ```text
//! server                                         client
//!   offer  [segment, server's eventfd]   ──▶       checks size and seals, maps
//!   maps, keeps the client's eventfd     ◀──       answer [client's eventfd]
//!   verdict                              ──▶
//! ```
//!
//! Each frame is a status byte and, when that is a refusal, the reason as text. Whoever cannot go on says so, so that both
//! fail and the channel stays in step for the next transport. After the verdict the socket belongs to the link.

use std::{
    fmt,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use async_trait::async_trait;

use super::{
    NAME, ShmOptions,
    layout::{MAGIC, SEGMENT, VERSION},
    pair::Pair,
};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::{
        eventfd::EventFd,
        memfd::{Mapping, Memfd},
        pidfd::PidFd,
    },
    transport::{
        channel::Channel,
        contract::{Connected, Connector, PeerInfo, Role},
    },
};

/// A link that both ends agreed on.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) pair: Pair,
    /// The peer's doorbell.
    pub(crate) bell: EventFd,
    pub(crate) socket: UnixStream,
    /// The peer's process, when it is watched.
    pub(crate) process: Option<PidFd>,
    pub(crate) name: String,
}

/// The control path of one worker.
#[derive(Debug)]
pub(crate) struct ShmConnector {
    bell: Arc<EventFd>,
    options: ShmOptions,
}

impl ShmConnector {
    pub(crate) fn new(bell: Arc<EventFd>, options: ShmOptions) -> Self {
        Self { bell, options }
    }

    async fn serve(&self, channel: &mut Channel) -> Result<(Pair, EventFd)> {
        let made = make_segment();
        let (segment, pair) = give_up_unless(channel, made).await?;
        let mut offer = vec![GO_ON];
        offer.extend_from_slice(&offer_body());
        send(channel, &offer, &[segment.as_fd(), self.bell.as_fd()]).await?;
        let (body, fds) = receive(channel).await?;
        let answer = one_bell(&body, fds);
        let bell = give_up_unless(channel, answer).await?;
        send(channel, &[GO_ON], &[]).await?;
        Ok((pair, bell))
    }

    async fn dial(&self, channel: &mut Channel) -> Result<(Pair, EventFd)> {
        let (body, fds) = receive(channel).await?;
        let taken = take_offer(&body, fds);
        let parts = give_up_unless(channel, taken).await?;
        send(channel, &[GO_ON], &[self.bell.as_fd()]).await?;
        receive(channel).await?;
        Ok(parts)
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

    async fn connect(
        &self,
        channel: &mut Channel,
        role: Role,
        peer: &PeerInfo,
    ) -> Result<Connected> {
        let place = |error: Error| error.over(NAME).with_peer(&peer.name);
        let allowed = self.can_use(channel, peer);
        let (pair, bell) = async {
            give_up_unless(channel, allowed).await?;
            match role {
                Role::Server => self.serve(channel).await,
                Role::Client => self.dial(channel).await,
            }
        }
        .await
        .map_err(place)?;
        let socket = channel.take_unix().map_err(place)?;
        // Without a pidfd (an old kernel, another process namespace) the socket alone tells that the peer is gone.
        let process = if self.options.use_pidfd {
            PidFd::of_peer(socket.as_fd()).ok()
        } else {
            None
        };
        Ok(Connected(Box::new(Established {
            pair,
            bell,
            socket,
            process,
            name: peer.name.clone(),
        })))
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

fn make_segment() -> Result<(Memfd, Pair)> {
    let made =
        Memfd::create(c"wharf-pair", SEGMENT).and_then(|segment| Ok((segment.map()?, segment)));
    let (mapping, segment) =
        made.map_err(|error| Error::io("making the segment to share with the peer", error))?;
    let pair = Pair::new(mapping, Role::Server)?;
    Ok((segment, pair))
}

/// Magic, version, bytes of the segment: 16 bytes.
fn offer_body() -> Vec<u8> {
    let mut body = MAGIC.to_le_bytes().to_vec();
    body.extend_from_slice(&VERSION.to_le_bytes());
    body.extend_from_slice(&(SEGMENT as u32).to_le_bytes());
    body
}

fn take_offer(body: &[u8], fds: Vec<OwnedFd>) -> Result<(Pair, EventFd)> {
    if body != offer_body() {
        return Err(Error::new(
            ErrorKind::VersionMismatch,
            "the peer lays its segment out differently",
        ));
    }
    let [segment, bell] = exactly(fds)?;
    let mapping = Mapping::of_received(segment.as_fd(), SEGMENT)
        .map_err(|error| Error::io("mapping the peer's segment", error))?;
    Ok((Pair::new(mapping, Role::Client)?, own_bell(bell)?))
}

fn one_bell(body: &[u8], fds: Vec<OwnedFd>) -> Result<EventFd> {
    let [bell] = exactly(fds)?;
    if !body.is_empty() {
        return Err(Error::new(
            ErrorKind::Protocol,
            "the answer to the offer of a segment has a body",
        ));
    }
    own_bell(bell)
}

fn own_bell(fd: OwnedFd) -> Result<EventFd> {
    EventFd::from_owned(fd).map_err(|error| Error::io("taking the peer's doorbell", error))
}

fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    fds.try_into().map_err(|fds: Vec<OwnedFd>| {
        Error::new(
            ErrorKind::Protocol,
            format!("{} file descriptors came instead of {N}", fds.len()),
        )
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

async fn send(channel: &mut Channel, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    channel.send(frame, fds).await
}

/// The rest of a frame that says "go on".
async fn receive(channel: &mut Channel) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut frame, fds) = channel.receive().await?;
    match frame.first() {
        Some(&GO_ON) => {
            frame.remove(0);
            Ok((frame, fds))
        }
        Some(&REFUSED) => Err(refusal(&frame[1..])),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "a frame of the set-up has no known status",
        )),
    }
}

fn refusal(reason: impl AsRef<[u8]>) -> Error {
    struct Printable<'a>(&'a [u8]);
    impl fmt::Display for Printable<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let text = String::from_utf8_lossy(self.0);
            text.chars()
                .take(300)
                .filter(|c| !c.is_control())
                .try_for_each(|c| write!(f, "{c}"))
        }
    }
    Error::new(
        ErrorKind::Rejected,
        format!("the peer cannot use it: {}", Printable(reason.as_ref())),
    )
}
