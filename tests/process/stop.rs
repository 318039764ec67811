//! A peer that stops reading, by `SIGSTOP`.

use std::time::Duration;

use nix::sys::signal::Signal;
use wharf::{ErrorKind, Tag, Worker};

use crate::{
    common::{First, Second, bytes, expect_bytes, on_every_path, signal},
    support::{LIMIT, at_rest, watchdog},
};

const DONE: u64 = 1 << 40;

/// More than a socket and the window hold, in messages of all kinds.
const COUNT: u64 = 3_000;

fn length(number: u64) -> usize {
    [5, 49, 800, 4_097, 9_000, 70_000][number as usize % 6]
}

/// Waits until no more goes out: the peer, or what is between, takes no more.
async fn stands_still(worker: &Worker) {
    let gone = || worker.metrics().transports;
    let gone = at_rest("the flow", Duration::from_millis(20), gone).await;
    assert!(gone.iter().any(|one| one.sent.count > 0), "{gone:?}");
}

mod and_goes_on {
    use super::*;

    on_every_path!();

    async fn first(mut first: First) {
        let (child, endpoint) = first.second().await;
        signal(&child, Signal::SIGSTOP);
        let mut sends = Vec::new();
        for number in 0..COUNT {
            let send = endpoint.tag_send(Tag(number), bytes(number, length(number)));
            sends.push(send.post().expect("a place in the window"));
        }
        stands_still(&first.worker).await;
        signal(&child, Signal::SIGCONT);
        for send in sends {
            watchdog(LIMIT, send).await.expect("a send");
        }
        first.receive(DONE, 0).await;
        watchdog(LIMIT, endpoint.close()).await.expect("closed");
        child.finish();
        first.finish().await;
    }

    async fn second(second: Second) {
        for number in 0..COUNT {
            let received = second.receive(number, length(number)).await;
            assert_eq!(received.len(), length(number));
            expect_bytes(number, &received);
        }
        second
            .endpoint
            .tag_send(Tag(DONE), Vec::new())
            .await
            .expect("a send");
        watchdog(LIMIT, second.endpoint.closed()).await;
    }
}

mod for_ever {
    use super::*;

    on_every_path!();

    async fn first(mut first: First) {
        // The connection is cut.
        let (mut child, endpoint) = first.second().await;
        signal(&child, Signal::SIGSTOP);
        let mut sends = Vec::new();
        for number in 0..COUNT {
            let send = endpoint.tag_send(Tag(number), bytes(number, length(number)));
            sends.push(send.post().expect("a place in the window"));
        }
        stands_still(&first.worker).await;
        endpoint.abort();
        let mut errors = 0;
        for send in sends {
            if let Err(error) = watchdog(LIMIT, send).await {
                assert_eq!(error.kind(), ErrorKind::Closed);
                errors += 1;
            }
        }
        assert!(errors > 0, "the peer took everything, stopped as it is");
        let error = watchdog(LIMIT, endpoint.closed()).await;
        assert_eq!(error.kind(), ErrorKind::Closed);
        drop(endpoint);
        // It learns of it when it goes on.
        signal(&child, Signal::SIGCONT);
        assert_eq!(child.hear().await, "ended");
        child.kill();
        first.expect_works().await;

        // The worker is shut down.
        let (child, endpoint) = first.second().await;
        signal(&child, Signal::SIGSTOP);
        let mut sends = Vec::new();
        for number in 0..COUNT {
            let send = endpoint.tag_send(Tag(number), bytes(number, length(number)));
            sends.push(send.post().expect("a place in the window"));
        }
        let end = watchdog(LIMIT, first.worker.shutdown(Duration::from_millis(100))).await;
        let error = end.expect_err("the peer says no goodbye");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        for send in sends {
            if let Err(error) = watchdog(LIMIT, send).await {
                assert_eq!(error.kind(), ErrorKind::Closed);
            }
        }
        signal(&child, Signal::SIGCONT);
        let mut child = child;
        assert_eq!(child.hear().await, "ended");
        child.kill();
    }

    async fn second(mut second: Second) {
        watchdog(LIMIT, second.endpoint.closed()).await;
        second.parent.say("ended");
        second.parent.wait_for_death().await;
    }
}

mod in_the_handshake {
    use super::*;
    use wharf::{Context, Worker};

    #[test]
    fn connect_ends_at_its_limit() {
        if let Some(mut parent) = crate::support::child("stopped") {
            crate::common::multi_thread().block_on(async {
                let worker =
                    Worker::new(&Context::builder().build().expect("a context")).expect("a worker");
                let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
                parent.say(listener.local_addr());
                parent.wait_for_death().await;
            });
            return;
        }
        let mut child = crate::support::Child::start(crate::support::this_test!(), "stopped", &[]);
        crate::common::current_thread().block_on(async {
            let address = child.hear().await;
            signal(&child, Signal::SIGSTOP);
            let context = Context::builder()
                .connect_timeout(Duration::from_millis(100))
                .build()
                .expect("a context");
            let worker = Worker::new(&context).expect("a worker");
            let error = watchdog(LIMIT, worker.connect(address)).await;
            let error = error.expect_err("it does not answer");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
            child.kill();
        });
    }
}
