//! What both sides of a handshake do.

use std::time::Duration;

use tokio::time::timeout;

use crate::{
    error::{Error, Result},
    protocol::hello::{Introduction, Message},
    sys::identity::identity,
    transport::{
        PeerInfo,
        channel::Channel,
        cma::{self, Trial},
    },
    types::Identity,
    worker::shared::Shared,
};

pub(in crate::worker) fn info(channel: &Channel, client: &Introduction) -> PeerInfo {
    PeerInfo {
        identity: believed(channel, client.identity.clone()),
        name: channel.peer_name(),
        certificates: channel.certificates(),
        origin: channel.origin(),
    }
}

/// Where a peer says that it lives, but for its user and its process, of which the kernel tells where it can. Who was another user when it began says so
/// in good faith, and so does who lives in another user namespace: what it says of that is put right, and not held against it. Who says that it is this
/// very process would have addresses taken for this process's own.
pub(in crate::worker) fn believed(channel: &Channel, said: Identity) -> Identity {
    let Some(known) = channel.peer_credentials() else {
        return said;
    };
    if known.uid != said.user {
        tracing::debug!(target: "wharf::wireup", peer = %channel.peer_name(), says = said.user, "the peer says that it is another user");
    }
    let own = identity();
    let is_near = (&said.boot, said.pid_namespace) == (&own.boot, own.pid_namespace);
    Identity {
        user: known.uid,
        pid: if is_near { known.pid } else { said.pid },
        ..said
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

/// What this end has for the other to read of its memory, where that may come about over this channel.
pub(in crate::worker) fn trial(shared: &Shared, channel: &Channel) -> Result<Option<Trial>> {
    let may = channel.passes_fds() && shared.context.can_use(cma::NAME);
    may.then(Trial::new).transpose()
}

pub(in crate::worker) fn transports(shared: &Shared) -> Vec<String> {
    shared.context.transports().map(str::to_owned).collect()
}
