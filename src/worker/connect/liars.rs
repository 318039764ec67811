//! Peers on this host that say they are another user than the kernel knows them to be.

use std::{sync::Arc, time::Duration};

use crate::{
    Context,
    error::Result,
    protocol::hello::Introduction,
    sys::{abstract_socket, identity::identity},
    transport::channel::Channel,
    types::{EndpointId, Identity, LinkId, Source},
    util::testing::run,
    worker::{Handle, connect::said::transports, shared::Shared},
};

use super::{
    Destination, connect,
    handshake::{accepted, establish, greet},
    listen::{Place, address},
};

fn worker(transports: &str) -> Arc<Handle> {
    let context = Context::builder()
        .transports(transports)
        .and_then(crate::ContextBuilder::build)
        .expect("a context");
    Handle::start(&context).expect("a worker")
}

/// The client's part of a handshake over a Unix socket, by one who says that it is this user.
async fn dial_as(shared: &Arc<Shared>, name: &[u8], user: u32) -> Result<(LinkId, EndpointId)> {
    let stream = abstract_socket::connect(name).await.expect("a socket");
    let mut channel = Channel::unix(stream);
    let mut client = greet(shared, &mut channel).await?;
    let introduction = Introduction {
        key: shared.key.public(),
        identity: Identity {
            user,
            ..identity().clone()
        },
        transports: transports(shared),
        stays: true,
        memory: None,
    };
    channel.send(&client.introduce(&introduction), &[]).await?;
    channel.send(&client.prove(&shared.key)?, &[]).await?;
    let bytes = channel.receive_alone().await?;
    let acceptance = accepted(client.verdict(&bytes)?)?;
    let name = "a liar".to_owned();
    establish(shared, channel, acceptance, None, name, None).await
}

/// Who each connection of a worker is charged to, and who its peer is taken to be.
fn sources(shared: &Shared) -> Vec<(Source, u32)> {
    shared.with(|engine| {
        let core = &engine.core;
        let peers = core.movers.ctx.connections();
        peers
            .map(|peer| {
                let account = peer.account.expect("it goes on");
                (
                    core.movers.ctx.ledger.source_of(account),
                    peer.info.identity.user,
                )
            })
            .collect()
    })
}

/// What many connections of one user may make a worker hold is bounded together, whoever each of them says it is.
#[test]
fn one_user_is_one_source() {
    run(async {
        let there = worker("shm");
        let address = address(&there.shared).expect("an address");
        let name = address.unix_name().expect("a Unix socket");
        let me = nix::unistd::geteuid().as_raw();
        let liars: Vec<_> = (0..3).map(|_| worker("shm")).collect();
        for (index, liar) in liars.iter().enumerate() {
            let user = me.wrapping_add(index as u32);
            dial_as(&liar.shared, name, user).await.expect("let in");
        }
        while sources(&there.shared).len() < liars.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(sources(&there.shared), [(Source::User(me), me); 3]);
        let held = there.shared.with(|engine| engine.core.movers.ctx.held());
        assert_eq!((held.connections, held.sources), (3, 1));
    });
}

/// Dialled at a network address and met in shared memory, it is the user that is charged, not the address.
#[test]
fn who_is_met_on_this_host_is_a_user() {
    run(async {
        let (here, there) = (worker("shm,tcp"), worker("shm,tcp"));
        let addresses = ["127.0.0.1:0".parse().expect("an address")];
        let place = Place::bind(&there.shared, &addresses).expect("a place");
        let to = place.local_addr().expect("an address");
        let (sender, mut requests) = tokio::sync::mpsc::channel(1);
        let tasks = place.serve(&there.shared, sender, false);
        let destination = Destination::Sockets(vec![to], None);
        let (dialled, accepted) = tokio::join!(connect(&here.shared, destination), async {
            let request = requests.recv().await.expect("a request");
            super::accept(&there.shared, request, true).await
        });
        dialled.expect("dialled");
        accepted.expect("accepted");
        let me = nix::unistd::geteuid().as_raw();
        for shared in [&here.shared, &there.shared] {
            assert_eq!(sources(shared), [(Source::User(me), me)]);
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    });
}
