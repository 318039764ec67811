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
    util::wire::printable,
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
        // 0: a process that is not seen from here.
        pid: match known.pid {
            pid if is_near && pid != 0 => pid,
            _ => said.pid,
        },
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

/// Names that a stranger gives, for errors and logs: the first of them.
pub(in crate::worker) fn named(names: &[String]) -> String {
    const MOST: usize = 16;
    let shown = names.iter().take(MOST).map(|name| printable(name));
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if names.len() > MOST {
        text += &format!(" and {} more", names.len() - MOST);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_strangers_are_few_and_one_line() {
        let names = vec!["shm\n\u{1b}[2J".to_owned(); 64];
        let text = named(&names);
        assert!(!text.contains(['\n', '\u{1b}']), "{text}");
        assert!(text.ends_with(" and 48 more"), "{text}");
        assert_eq!(named(&["shm".to_owned(), "tcp".to_owned()]), "shm, tcp");
    }
}
