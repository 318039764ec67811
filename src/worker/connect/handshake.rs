//! The handshake: who is at the other end, and what both know.

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::{
        handshake::{Client, Greeting, Opening, Server, Verdict},
        hello::{Acceptance, Arrival, Elsewhere, Introduction, Message, Ticket},
        keys::PublicKey,
    },
    sys::identity::identity,
    transport::{
        PeerInfo, Reach, Role,
        channel::{Channel, Origin},
        cma::{self, CmaPeer, Trial},
    },
    types::{EndpointId, LinkId, WorkerId},
    util::wire::Name,
    worker::{
        connect::{
            said::{believed, info, refuse, transports},
            wireup::{Wireup, random},
        },
        shared::Shared,
    },
};

use super::lanes::{attach, connect_by_one, lanes, told};

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
    let bytes = channel.receive_alone().await?;
    if let Some((client, server)) = arrived(shared, channel, &bytes)? {
        lanes(shared, channel, &client.transports, &info(channel, &client))?;
        return Ok((client, server));
    }
    let (medium, secret) = (channel.medium(), shared.context.secret());
    let own = shared.wireup.ephemeral()?;
    let public = shared.key.public();
    let (greeting, hello) = Greeting::new(medium, &public, secret, own, &random()?, &bytes)?;
    channel.send(&hello, &[]).await?;
    let (proved, proof) = greeting.prove(&shared.key)?;
    channel.send(&proof, &[]).await?;
    let introduced = proved.introduced(&channel.receive_alone().await?);
    let (mut server, client) = introduced.proved(&channel.receive_alone().await?)?;
    if let Some(unix_name) = unix_name
        && shared.shares(Reach::Host, &client.transports)
        && !client.stays
        && !channel.passes_fds()
        && client.identity.same_host(identity())
    {
        let elsewhere = Elsewhere {
            unix_name: Name(unix_name),
            transports: transports(shared),
        };
        let elsewhere = server.elsewhere(&elsewhere);
        let _expected = Expected::new(&shared.wireup, &server, &client, channel.origin());
        channel.send(&elsewhere, &[]).await?;
        let bytes = channel.receive_alone().await?;
        Server::stays(&bytes)?;
    }
    // A peer whose better path ends here takes the next; whoever listens hears of the one that works.
    lanes(shared, channel, &client.transports, &info(channel, &client))?;
    Ok((client, server))
}

/// A handshake that may go on at a Unix socket, for as long as its first connection waits for what becomes of that.
struct Expected<'a> {
    wireup: &'a Wireup,
    ticket: Ticket,
}

impl<'a> Expected<'a> {
    fn new(wireup: &'a Wireup, server: &Server, client: &Introduction, met_at: Origin) -> Self {
        let (there, ticket) = server.expect(Channel::UNIX);
        wireup
            .expected
            .lock()
            .insert(ticket, (there, client.clone(), met_at));
        Self { wireup, ticket }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.wireup.expected.lock().remove(&self.ticket);
    }
}

/// Whoever was sent to this socket and says so first. `None`: it says something else.
fn arrived(
    shared: &Shared,
    channel: &mut Channel,
    bytes: &[u8],
) -> Result<Option<(Introduction, Server)>> {
    if channel.medium() != Channel::UNIX {
        return Ok(None);
    }
    let Ok(Message::Arrival { ticket, sealed }) = Message::decode(bytes) else {
        return Ok(None);
    };
    let expected = shared.wireup.expected.lock().remove(&ticket);
    let Some((mut server, mut client, met_at)) = expected else {
        let text = "the handshake that was to go on here is over";
        return Err(Error::new(ErrorKind::Unreachable, text));
    };
    client.memory = server.arrived(&sealed)?.memory;
    channel.met_at(met_at);
    Ok(Some((client, server)))
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

/// Sends something of the client's. Where the listener has closed the connection it may have said why before.
async fn say(channel: &mut Channel, message: &[u8]) -> Result<()> {
    let Err(error) = channel.send(message, &[]).await else {
        return Ok(());
    };
    if error.kind() == ErrorKind::ConnectionReset
        && let Ok(bytes) = channel.receive_alone().await
    {
        Message::unless_rejected(&bytes)?;
    }
    Err(error)
}

/// What answers does not speak as a wharf listener does.
fn no_wharf(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Protocol | ErrorKind::Malformed => {
            let error = error.of_kind(ErrorKind::Protocol);
            error.saying("what answers there is no wharf listener")
        }
        _ => error,
    }
}

/// The client's part, until it is known who answers.
pub(super) async fn greet(shared: &Shared, channel: &mut Channel) -> Result<Client> {
    let own = shared.wireup.ephemeral()?;
    let secret = shared.context.secret();
    let opening = Opening::new(channel.medium(), secret, own, &random()?);
    say(channel, opening.hello()).await?;
    shared.wireup.think_ahead()?;
    let bytes = channel.receive_alone().await.map_err(no_wharf)?;
    let answered = opening.answered(&bytes).map_err(no_wharf)?;
    let bytes = channel.receive_alone().await?;
    answered.proved(&bytes)
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
    trial: Option<&Trial>,
) -> Result<Verdict> {
    let introduction = Introduction {
        key: shared.key.public(),
        identity: identity().clone(),
        transports: transports(shared),
        stays,
        memory: trial.map(Trial::landmark),
    };
    say(channel, &client.introduce(&introduction)).await?;
    say(channel, &client.prove(&shared.key)?).await?;
    let bytes = channel.receive_alone().await?;
    client.verdict(&bytes)
}

/// Goes on at the Unix socket that the server has named; with its verdict.
pub(super) async fn arrive(
    client: &Client,
    channel: &mut Channel,
    trial: Option<&Trial>,
) -> Result<Verdict> {
    let memory = trial.map(Trial::landmark);
    let (mut client, arrival) = client.arrive(channel.medium(), &Arrival { memory });
    say(channel, &arrival).await?;
    let bytes = channel.receive_alone().await?;
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
    trial: Option<Trial>,
) -> Result<(LinkId, EndpointId)> {
    let Acceptance {
        key,
        identity,
        lanes,
        memory,
        reached,
    } = acceptance;
    only(addressed, &key, &name)?;
    let source = channel.source();
    let info = PeerInfo {
        identity: believed(&channel, identity),
        name,
        certificates: channel.certificates(),
        origin: channel.origin(),
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
    let others = lanes.iter().skip(1).map_while(known);
    let mut tried = vec![lane];
    tried.extend(others.filter(|other| other.reach == Reach::Network));
    if tried.len() == 1 {
        // Else its set-up fails at both ends, and the next is taken.
        lane.connector.can_use(&channel, &info)?;
    }
    let cma = match (trial, memory, reached) {
        (Some(_), Some(landmark), Some(theirs)) => {
            let reached = CmaPeer::reach(&channel, &landmark).await;
            let outcome = reached.as_ref().map(|_| ()).map_err(String::as_str);
            channel.send_note(&cma::encode(outcome)).await?;
            told(cma::settled(reached, theirs), &info)
        }
        _ => None,
    };
    let (lane, connected, refused) =
        connect_by_one(&tried, &mut channel, Role::Client, &info).await?;
    let transport = (lane.name, refused);
    let info = (info, source, None);
    attach(shared, transport, connected, key.worker(), info, cma, true)
}
