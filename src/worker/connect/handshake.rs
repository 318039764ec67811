//! The handshake: who is at the other end, and what both know.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    lanes::{attach, connect_by_one, lane, probe_cma},
    random, transports,
};
use crate::{
    error::{Error, ErrorKind, Result},
    protocol::{
        handshake::{Client, Opening, Server, Verdict},
        hello::{Acceptance, Elsewhere, Introduction, Message},
        keys::PublicKey,
    },
    sys::identity::identity,
    transport::{PeerInfo, Reach, Role, channel::Channel},
    types::{EndpointId, LinkId, WorkerId},
    worker::shared::Shared,
};

/// The server's part, until it is known who asks. `None`: they went, perhaps to the Unix socket.
pub(super) async fn handshake(
    shared: &Shared,
    channel: &mut Channel,
    unix_name: Option<Vec<u8>>,
) -> Result<Option<(Introduction, Server)>> {
    match introduced(shared, channel, unix_name).await {
        Ok(introduced) => Ok(Some(introduced)),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        Err(error) => {
            refuse(channel, &error).await;
            Err(error)
        }
    }
}

async fn introduced(
    shared: &Shared,
    channel: &mut Channel,
    unix_name: Option<Vec<u8>>,
) -> Result<(Introduction, Server)> {
    secure(shared, channel).await?;
    let (bytes, _) = channel.receive().await?;
    let (medium, secret) = (channel.medium(), shared.context.secret());
    let (mut server, hello) = Server::greet(medium, &shared.key, secret, &random()?, &bytes)?;
    channel.send(&hello, &[]).await?;
    let (bytes, _) = channel.receive().await?;
    let client = server.introduced(&bytes)?;
    let can_share = shared.transports.iter().any(|transport| {
        transport.reach == Reach::Host
            && client
                .transports
                .iter()
                .any(|offered| offered == transport.name)
    });
    if let Some(unix_name) = unix_name
        && can_share
        && !client.stays
        && !channel.passes_fds()
        && client.identity.same_host(identity())
    {
        let elsewhere = Elsewhere {
            unix_name,
            transports: transports(shared),
        };
        channel.send(&server.elsewhere(&elsewhere), &[]).await?;
        let (bytes, _) = channel.receive().await?;
        Server::stays(&bytes)?;
    }
    // A peer whose better path ends here takes the next; whoever listens hears of the one that works.
    lane(shared, channel, &client.transports, &info(channel, &client))?;
    Ok((client, server))
}

/// The server's part of TLS, where this context has it.
async fn secure(shared: &Shared, channel: &mut Channel) -> Result<()> {
    let Some(tls) = shared.context.tls() else {
        return Ok(());
    };
    if !channel.is_tcp() {
        return Ok(());
    }
    if channel.begins_with_tls().await? {
        return channel.secure(tls.accept()?).await;
    }
    let why = "the listener demands TLS, and the one that dials has none";
    Err(Error::new(ErrorKind::AuthenticationFailed, why))
}

pub(super) fn info(channel: &Channel, client: &Introduction) -> PeerInfo {
    PeerInfo {
        identity: client.identity.clone(),
        name: channel.peer_name(),
        certificates: channel.certificates(),
    }
}

/// Tells the client why not. It may be gone; that changes nothing.
pub(crate) async fn refuse(channel: &mut Channel, error: &Error) {
    let _ = timeout(
        Duration::from_secs(1),
        channel.send(&Message::reject(error).encode(), &[]),
    )
    .await;
}

/// The client's part, until it is known who answers.
pub(super) async fn greet(shared: &Shared, channel: &mut Channel) -> Result<Client> {
    let opening = Opening::new(channel.medium(), shared.context.secret(), &random()?);
    channel.send(opening.hello(), &[]).await?;
    let (bytes, _) = channel.receive().await?;
    opening.answered(&bytes)
}

/// Where a worker was `addressed`, no other will do.
pub(super) fn only(addressed: Option<WorkerId>, key: &PublicKey, name: &str) -> Result<()> {
    match addressed {
        Some(worker) if worker != key.worker() => {
            let text = "another worker answers there: the one that was addressed is gone";
            Err(Error::new(ErrorKind::Unreachable, text).with_peer(name))
        }
        _ => Ok(()),
    }
}

/// Tells the server who this is. Where the client `stays`, it is not sent elsewhere.
pub(super) async fn introduce(
    shared: &Shared,
    channel: &mut Channel,
    client: &mut Client,
    stays: bool,
) -> Result<Verdict> {
    let introduction = Introduction {
        key: shared.key.public(),
        identity: identity().clone(),
        transports: transports(shared),
        stays,
    };
    let introduction = client.introduce(&shared.key, &introduction)?;
    channel.send(&introduction, &[]).await?;
    let (bytes, _) = channel.receive().await?;
    client.verdict(&bytes)
}

/// A yes; for a client that does not go elsewhere.
pub(super) fn accepted(verdict: Verdict) -> Result<Acceptance> {
    match verdict {
        Verdict::Accept(acceptance) => Ok(acceptance),
        Verdict::Elsewhere(_) => Err(Error::new(
            ErrorKind::Protocol,
            "the peer names a Unix socket to one who does not go there",
        )),
    }
}

/// The client's part once it has been accepted: the lanes.
pub(super) async fn establish(
    shared: &Arc<Shared>,
    mut channel: Channel,
    acceptance: Acceptance,
    addressed: Option<WorkerId>,
    name: String,
) -> Result<(LinkId, EndpointId)> {
    let Acceptance {
        key,
        identity,
        lanes,
    } = acceptance;
    only(addressed, &key, &name)?;
    let info = PeerInfo {
        identity,
        name,
        certificates: channel.certificates(),
    };
    // The first, and those to be tried should it not come about.
    let known = |name: &String| {
        let mut transports = shared.transports.iter();
        transports.find(|transport| transport.name == name)
    };
    let lane = lanes.first().and_then(known).ok_or_else(|| {
        Error::new(
            ErrorKind::Protocol,
            "the peer chose a transport that was not offered",
        )
    })?;
    let mut tried = vec![lane];
    let others = lanes.iter().skip(1).filter(|name| *name != "cma");
    tried.extend(
        others
            .map_while(known)
            .filter(|other| other.reach == Reach::Network),
    );
    if tried.len() == 1 {
        // Else its set-up fails at both ends, and the next is taken.
        lane.connector.can_use(&channel, &info)?;
    }
    let cma = if lanes.iter().any(|lane| lane == "cma") {
        probe_cma(&mut channel, &info).await?
    } else {
        None
    };
    let (lane, connected, refused) =
        connect_by_one(&tried, &mut channel, Role::Client, &info).await?;
    let transport = (lane.name, refused);
    attach(shared, transport, connected, key.worker(), info, cma, true)
}
