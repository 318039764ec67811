//! A link that goes down while much is under way: everything ends, memory comes back, and later connections work.

use std::{cell::Cell, collections::BTreeSet};

use wharf::{Access, Descriptor, Error, Tag};

use crate::{
    common::{First, Path, Second, bytes, play},
    machine::{Down, needs_machine},
    support::{LIMIT, until, watchdog},
};

const DESCRIPTOR: u64 = 1 << 40;
const SIZE: usize = 300_000;

/// Both the device and the socket of the handshake have lost their cable.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn with_the_handshake_over_it() {
    needs_machine!();
    play!(Path::RcVerbs)
}

/// The socket of the handshake goes on: the device alone can tell.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn with_the_handshake_elsewhere() {
    needs_machine!();
    play!(
        Path::RcVerbs,
        Path::context,
        Path::told,
        second,
        |mut end: First| async move {
            let listener = end.worker.listen("127.0.0.1:0").await;
            end.listener = listener.expect("a listener");
            first(end).await
        }
    )
}

/// That it tells of a connection that is gone, and that the buffer comes back where one is owed.
#[derive(Default)]
struct Ends {
    count: usize,
    said: BTreeSet<String>,
}

impl Ends {
    #[track_caller]
    fn add(&mut self, error: &Error) {
        assert!(error.is_peer_failure(), "{error:?}");
        self.count += 1;
        self.said.insert(error.to_string());
    }
}

async fn first(mut first: First) {
    let (child, endpoint) = first.second().await;
    let descriptor = first.receive(DESCRIPTOR, 4096).await;
    let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("its memory");
    let own = first.context.expose(bytes(1, SIZE), Access::READ).await;
    let own = own.expect("a region");
    let begun = Cell::new(0);
    let stream = async {
        let mut ends = Ends::default();
        for number in 0.. {
            begun.set(number);
            let (mut sends, mut gets) = (Vec::new(), Vec::new());
            for length in [8, 5_000, SIZE] {
                let send = endpoint.tag_send(Tag(number), bytes(number, length));
                let put = endpoint.put(bytes(number, length), remote.slice(..length));
                for post in [send.post(), put.post()] {
                    match post {
                        Ok(op) => sends.push(op),
                        Err(error) => ends.add(&error.into_parts().0),
                    }
                }
                match endpoint.get(remote.slice(..length), vec![0; length]).post() {
                    Ok(get) => gets.push((length, get)),
                    Err(error) => ends.add(&error.into_parts().0),
                }
            }
            for send in sends {
                if let Err(error) = watchdog(LIMIT, send).await {
                    ends.add(&error);
                }
            }
            for (length, get) in gets {
                if let Err(error) = watchdog(LIMIT, get).await {
                    let (error, buffer) = error.into_parts();
                    ends.add(&error);
                    assert_eq!(buffer.expect("the buffer").len(), length);
                }
            }
            if ends.count > 0 {
                return (number, ends);
            }
        }
        unreachable!("numbers do not end")
    };
    let pull = async {
        until("some rounds", || begun.get() >= 20).await;
        let pulled = tokio::task::spawn_blocking(Down::new);
        pulled.await.expect("the link is down")
    };
    let ((rounds, ends), down) = tokio::join!(stream, pull);
    eprintln!(
        "after {rounds} rounds: {} errors: {:?}",
        ends.count, ends.said
    );
    assert!(rounds > 0, "it was not in the middle");
    let error = watchdog(LIMIT, endpoint.closed()).await;
    assert!(error.is_peer_failure(), "{error:?}");
    let late = watchdog(LIMIT, endpoint.flush()).await;
    Ends::default().add(&late.expect_err("the connection is gone"));
    assert_eq!(watchdog(LIMIT, own.unexpose()).await.len(), SIZE);
    // The other end learns of it by itself.
    child.finish();
    drop(endpoint);
    tokio::task::spawn_blocking(|| drop(down))
        .await
        .expect("the link is up again");
    first.expect_works().await;
    first.finish().await;
}

async fn second(second: Second) {
    let access = Access::READ | Access::WRITE;
    let region = second.context.expose(vec![0; SIZE], access).await;
    let region = region.expect("a region");
    let descriptor = region.descriptor().expect("a descriptor").to_bytes();
    let send = second.endpoint.tag_send(Tag(DESCRIPTOR), descriptor);
    send.await.expect("a send");
    // Takes what comes, and has something of its own under way.
    let take = async {
        for number in 0.. {
            for length in [8, 5_000, SIZE] {
                let receive = second.worker.tag_recv(Tag(number), vec![0; length]);
                let mut receive = receive.post();
                tokio::select! {
                    received = &mut receive => match received {
                        Ok(received) => assert_eq!(received.len, length),
                        Err(error) => return Some(error.into_parts().0),
                    },
                    _ = second.endpoint.closed() => {
                        let ended = watchdog(LIMIT, receive.cancel()).await;
                        return ended.err().map(|error| error.into_parts().0);
                    }
                }
            }
        }
        None
    };
    let error = watchdog(2 * LIMIT, take).await;
    eprintln!("the receive that was under way: {error:?}");
    let error = watchdog(LIMIT, second.endpoint.closed()).await;
    assert!(error.is_peer_failure(), "{error:?}");
    assert_eq!(watchdog(LIMIT, region.unexpose()).await.len(), SIZE);
}
