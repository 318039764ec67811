//! A communicator over a bootstrap: one identity, a connection to each, serialised things apart from all others.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use tokio::time::Instant;
use wharf::{
    Context, ErrorKind, Result, Tag, Worker,
    channel::{
        Communicator,
        bootstrap::{Bootstrap, BootstrapOptions, MemoryBootstrap, UnixBootstrap},
    },
};

use crate::{
    bootstrap::{Group, runtime},
    support::{self, Child, LIMIT, child, this_test},
};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    support::block_on(&runtime(), LIMIT, future)
}

fn memory(size: usize) -> Group {
    let group = MemoryBootstrap::group(size).expect("a group");
    let group = group.into_iter();
    group
        .map(|rank| Arc::new(rank) as Arc<dyn Bootstrap>)
        .collect()
}

fn worker() -> Worker {
    let context = Context::builder().build().expect("a context");
    Worker::new(&context).expect("a worker")
}

async fn communicators(group: &Group) -> Vec<Communicator> {
    let made = group.iter().map(|rank| async {
        let worker = worker();
        Communicator::new(rank.clone(), &worker).await
    });
    try_join_all(made).await.expect("communicators")
}

#[test]
fn each_reaches_each() {
    block_on(async {
        let all = communicators(&memory(3)).await;
        for (rank, here) in all.iter().enumerate() {
            assert_eq!(
                (here.rank(), here.size(), here.id()),
                (rank, 3, all[0].id())
            );
            here.connect_all().await.expect("connected");
            for (to, there) in all.iter().enumerate() {
                let endpoint = here.endpoint(to).await.expect("an endpoint");
                assert_eq!(endpoint.peer(), Some(there.worker().id()));
                // The same one every time.
                assert_eq!(here.endpoint(to).await.expect("it").id(), endpoint.id());
                let tag = Tag((rank * 10 + to) as u64);
                let text = format!("{rank} to {to}");
                endpoint.tag_send(tag, text.clone()).await.expect("sent");
                let got = there
                    .worker()
                    .tag_recv(tag, vec![0; 32])
                    .await
                    .expect("received");
                assert_eq!(&got.buffer[..got.len], text.as_bytes());
            }
            let error = here.endpoint(3).await.expect_err("there is none");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let barriers = all.iter().map(Communicator::barrier);
        try_join_all(barriers).await.expect("all are there");
    });
}

/// Two communicators on one bootstrap, and the bootstrap itself, do not see each other's.
#[test]
fn tags_are_apart() {
    block_on(async {
        let group = memory(2);
        let (first, second) = (communicators(&group).await, communicators(&group).await);
        assert_ne!(first[0].id(), second[0].id());
        assert_eq!(first[0].id().to_string().len(), 32);
        group[0].send(1, 5, "bootstrap".into()).await.expect("sent");
        first[0].send(1, 5, "first").await.expect("sent");
        second[0].send(1, 5, "second").await.expect("sent");
        assert_eq!(second[1].receive(0, 5).await.expect("it"), "second");
        assert_eq!(first[1].receive(0, 5).await.expect("it"), "first");
        assert_eq!(group[1].receive(0, 5).await.expect("it"), "bootstrap");
        let soon = Instant::now() + Duration::from_millis(20);
        let error = first[1].receive_until(0, 5, soon).await;
        assert_eq!(
            error.expect_err("nothing more").kind(),
            ErrorKind::DeadlineExceeded
        );
    });
}

/// Some ranks meet, and the others go on; one that does not come is named to those that have.
#[test]
fn groups_of_ranks() {
    block_on(async {
        let group = memory(4);
        for _ in 0..3 {
            let some = [3, 0, 2].map(|rank: usize| group[rank].group_barrier(&[0, 2, 3]));
            let others = [1, 3].map(|rank: usize| group[rank].group_barrier(&[1, 3]));
            let (some, others) = tokio::join!(try_join_all(some), try_join_all(others));
            some.and(others).expect("all are there");
        }
        for wrong in [&[0, 2][..], &[], &[1, 4]] {
            let error = group[1].group_barrier(wrong).await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let soon = Instant::now() + Duration::from_millis(100);
        let (one, two) = tokio::join!(
            group[1].group_barrier_until(&[1, 2, 3], soon),
            group[2].group_barrier(&[1, 2, 3]),
        );
        for error in [one, two] {
            let error = error.expect_err("rank 3 is missing");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            assert!(error.to_string().contains("rank 3 of 3"), "{error}");
        }
        // One that leaves is named to all.
        let mut group = memory(3);
        drop(group.pop());
        let all = [0, 1].map(|rank: usize| group[rank].group_barrier(&[0, 1, 2]));
        for error in futures::future::join_all(all).await {
            let error = error.expect_err("rank 2 has left");
            assert_eq!(error.kind(), ErrorKind::Closed);
            assert!(error.to_string().contains("rank 2 has left"), "{error}");
        }
    });
}

/// A bootstrap whose other rank says something else than an introduction.
#[derive(Debug)]
struct Liar(MemoryBootstrap, Bytes);

#[async_trait]
impl Bootstrap for Liar {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        2
    }
    fn deadline(&self) -> Duration {
        self.0.deadline()
    }
    async fn send_until(&self, to: usize, tag: u64, bytes: Bytes, deadline: Instant) -> Result<()> {
        self.0.send_until(to, tag, bytes, deadline).await
    }
    async fn receive_until(&self, from: usize, tag: u64, deadline: Instant) -> Result<Bytes> {
        self.0.receive_until(from, tag, deadline).await
    }
    async fn all_gather_until(&self, bytes: Bytes, _: Instant) -> Result<Vec<Bytes>> {
        let mut second = bytes.to_vec();
        match self.1.first() {
            // One bit of the address.
            Some(1) => second[60] ^= 1,
            Some(2) => second[0] = 9,
            _ => second.truncate(self.1.len()),
        }
        Ok(vec![bytes, second.into()])
    }
}

#[test]
fn introductions_that_are_none() {
    block_on(async {
        for (lie, kind) in [
            (vec![1], ErrorKind::Malformed),
            (vec![2], ErrorKind::VersionMismatch),
            (vec![], ErrorKind::Malformed),
            (vec![0; 10], ErrorKind::Malformed),
            (vec![0; 18], ErrorKind::Malformed),
        ] {
            let own = MemoryBootstrap::group(1).expect("a group").remove(0);
            let liar = Arc::new(Liar(own, lie.into()));
            let error = Communicator::new(liar, &worker())
                .await
                .expect_err("no introduction");
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.peer(), Some("rank 1"));
        }
    });
}

/// Two processes.
#[test]
fn two_processes() {
    let options = BootstrapOptions::new();
    if let Some(parent) = child("second") {
        runtime().block_on(async {
            let name = std::env::var("WHARFTEST_PLACE").expect("set by the parent");
            let bootstrap = UnixBootstrap::join(&name, 1, 2, &options).await;
            let bootstrap = Arc::new(bootstrap.expect("joined"));
            let communicator = Communicator::new(bootstrap, &worker()).await.expect("made");
            let got = communicator
                .worker()
                .tag_recv(Tag(1), vec![0; 32])
                .await
                .expect("received");
            let zero = communicator.endpoint(0).await.expect("connected");
            zero.tag_send(Tag(2), got.buffer[..got.len].to_vec())
                .await
                .expect("sent");
            parent.say(communicator.id());
            communicator.barrier().await.expect("both");
        });
        return;
    }
    let name = format!("two-processes-{}", std::process::id());
    let mut second = Child::start(this_test!(), "second", &[("WHARFTEST_PLACE", &name)]);
    block_on(async {
        let bootstrap = UnixBootstrap::join(&name, 0, 2, &options).await;
        let bootstrap = Arc::new(bootstrap.expect("joined"));
        let communicator = Communicator::new(bootstrap, &worker()).await.expect("made");
        let one = communicator.endpoint(1).await.expect("connected");
        one.tag_send(Tag(1), "round").await.expect("sent");
        let got = communicator
            .worker()
            .tag_recv(Tag(2), vec![0; 32])
            .await
            .expect("received");
        assert_eq!(&got.buffer[..got.len], b"round");
        assert_eq!(second.hear().await, communicator.id().to_string());
        communicator.barrier().await.expect("both");
    });
    second.finish();
}
