//! Flushes and fences: each waits for exactly what was begun before it.

use futures::{future::join_all, poll};
use wharf::ErrorKind;

use crate::{
    fixture::{Way, a_while, connect, pattern, run, run_on_threads},
    rma::{BOTH, exposed, memory},
};

/// Longer than the eager window.
const LONG: usize = (1 << 20) + 3;

scenarios! { everywhere:
    async fn what_was_begun_before(way: Way) {
        let pair = way.pair().await;
        let (endpoint, worker) = (&pair.here.endpoint, &pair.here.worker);
        let (region, remote) = exposed(&pair, memory(&pair.there, false, 8).await, BOTH).await;
        let first = endpoint.tag_send(1, pattern(5, 1)).sync().post().expect("room");
        let mut one = Box::pin(endpoint.flush());
        assert!(poll!(&mut one).is_pending());
        let second = endpoint.tag_send(2, pattern(LONG, 2)).post().expect("room");
        let (mut two, mut all) = (Box::pin(endpoint.flush()), Box::pin(worker.flush()));
        assert!(poll!(&mut two).is_pending() && poll!(&mut all).is_pending());
        // A fence does not wait for messages, nor a put for a flush.
        for round in 1..=10_u64 {
            drop(remote.add(0, 1_u64).post().expect("room"));
            endpoint.fence().await.expect("fenced");
            assert_eq!(region.load::<u64>(0).expect("a word"), round);
        }
        a_while().await;
        assert!(poll!(&mut one).is_pending(), "the first is not received");
        pair.there.receive(1, 5).await;
        one.await.expect("flushed");
        first.await.expect("sent");
        a_while().await;
        assert!(poll!(&mut two).is_pending() && poll!(&mut all).is_pending(), "the second is not received");
        pair.there.receive(2, LONG).await;
        two.await.expect("flushed");
        all.await.expect("flushed");
        second.await.expect("sent");
    }

    /// Messages that are cancelled, or whose futures are dropped.
    async fn what_is_given_up(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        for _ in 0..3 {
            let canceled = endpoint.tag_send(1, pattern(LONG, 1)).post().expect("room");
            let mut flush = Box::pin(endpoint.flush());
            assert!(poll!(&mut flush).is_pending());
            a_while().await;
            assert!(poll!(&mut flush).is_pending());
            assert_eq!(canceled.cancel().await.expect_err("cancelled").kind(), ErrorKind::Canceled);
            flush.await.expect("nothing is left");

            drop(endpoint.tag_send(2, pattern(LONG, 2)).post().expect("room"));
            let mut flush = Box::pin(endpoint.flush());
            for _ in 0..3 {
                assert!(poll!(&mut flush).is_pending(), "it goes on");
                a_while().await;
            }
            pair.there.receive(2, LONG).await;
            flush.await.expect("flushed");
        }
    }

    /// Many at once, some of which are dropped, among puts and messages.
    async fn many_at_once(way: Way) {
        let pair = way.pair().await;
        let (endpoint, worker) = (&pair.here.endpoint, &pair.here.worker);
        let (region, remote) = exposed(&pair, memory(&pair.there, false, 8).await, BOTH).await;
        let (mut flushes, mut fences, mut messages) = (Vec::new(), Vec::new(), Vec::new());
        for round in 1..=30_u64 {
            drop(remote.add(0, 1_u64).post().expect("room"));
            messages.push(endpoint.tag_send(round, pattern(8, 1)).sync().post().expect("room"));
            let (mut flush, mut all) = (Box::pin(endpoint.flush()), Box::pin(worker.flush()));
            assert!(poll!(&mut flush).is_pending() && poll!(&mut all).is_pending());
            let (mut fence, mut dropped) = (Box::pin(endpoint.fence()), Box::pin(endpoint.flush()));
            let is_over = poll!(&mut fence).is_ready();
            assert!(poll!(&mut dropped).is_pending());
            if !is_over {
                fences.push(fence);
            }
            flushes.push((round, flush, all));
        }
        for fence in join_all(fences).await {
            fence.expect("fenced");
        }
        assert_eq!(region.load::<u64>(0).expect("a word"), 30);
        for (round, flush, mut all) in flushes {
            assert!(poll!(&mut all).is_pending(), "{round} is not received");
            pair.there.receive(round, 8).await;
            flush.await.expect("flushed");
            all.await.expect("flushed");
        }
        for message in messages {
            message.await.expect("sent");
        }
    }
}

scenarios! { between workers:
    /// The worker's waits for all connections, another endpoint's for its own.
    async fn of_the_worker(way: Way) {
        let pair = way.pair().await;
        let (other, _accepted) = connect(&pair.here.worker, &pair.there.worker).await;
        let message = other.tag_send(1, pattern(8, 1)).sync().post().expect("room");
        let mut all = Box::pin(pair.here.worker.flush());
        assert!(poll!(&mut all).is_pending());
        for _ in 0..3 {
            pair.here.endpoint.flush().await.expect("nothing is under way");
            pair.here.worker.fence().await.expect("nothing is under way");
            a_while().await;
            assert!(poll!(&mut all).is_pending());
        }
        let received = pair.there.worker.tag_recv(1, vec![0; 8]).await;
        assert_eq!(received.expect("a message").len, 8);
        all.await.expect("flushed");
        message.await.expect("sent");
    }

    /// It ends with the connection, and the next connection has nothing of it.
    async fn the_connection_ends(way: Way) {
        let pair = way.pair().await;
        for _ in 0..3 {
            let (endpoint, accepted) = connect(&pair.here.worker, &pair.there.worker).await;
            let message = endpoint.tag_send(1, pattern(LONG, 1)).post().expect("room");
            let mut flush = Box::pin(endpoint.flush());
            assert!(poll!(&mut flush).is_pending());
            accepted.abort();
            flush.await.expect_err("the connection has ended");
            // Its future, and so the operation, is still there.
            let (next, _accepted) = connect(&pair.here.worker, &pair.there.worker).await;
            next.flush().await.expect("nothing is under way");
            pair.here.worker.flush().await.expect("nothing is under way");
            message.await.expect_err("the connection has ended");
        }
    }
}
