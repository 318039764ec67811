//! How operations, connections and workers end before their time.

use std::time::{Duration, Instant};

use wharf::{Access, ErrorKind, Mask, Operation, Tag};

use crate::{
    fixture::{Way, a_while, pattern, run, run_on_threads, same},
    support::until,
};

/// Always announced: longer than the eager window.
const LONG: usize = (1 << 20) + 3;

scenarios! { everywhere, and without pidfd:
    /// A receive without a message is cancelled and gives its buffer back; the message that comes later is not lost.
    async fn cancelled_receive(way: Way) {
        let pair = way.pair().await;
        let receive = pair.there.worker.tag_recv(1, vec![7; 100]).post();
        let (error, buffer) = receive.cancel().await.expect_err("cancelled").into_parts();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Canceled, Some(Operation::TagRecv)));
        assert_eq!(buffer, Some(vec![7; 100]));
        for size in [8, 5000, LONG] {
            drop(pair.there.worker.tag_recv(1, vec![7; size]).post());
            let (received, ()) = tokio::join!(pair.there.receive(1, size), pair.here.send(1, pattern(size, 1)));
            same(&received, pattern(size, 1), size);
        }
    }

    /// A cancelled receive that has its message says so.
    async fn cancelled_too_late(way: Way) {
        let pair = way.pair().await;
        for size in [8, 5000, LONG] {
            let receive = pair.there.worker.tag_recv(1, vec![7; size]).post();
            pair.here.endpoint.tag_send(1, pattern(size, 1)).sync().await.expect("matched");
            let received = receive.cancel().await.expect("it was here");
            same(&received.buffer, pattern(size, 1), size);
        }
    }

    /// A message that was announced and not matched is withdrawn; the peer sees it no more.
    async fn cancelled_send(way: Way) {
        let pair = way.pair().await;
        for sync in [false, true] {
            let mut send = pair.here.endpoint.tag_send(1, pattern(LONG, 1));
            if sync {
                send = send.sync();
            }
            let send = send.post().expect("room");
            until("the message", || pair.there.worker.tag_probe(1, Mask::ALL).is_some()).await;
            let error = send.cancel().await.expect_err("cancelled");
            assert_eq!((error.kind(), error.operation()), (ErrorKind::Canceled, Some(Operation::TagSend)));
            assert!(pair.there.worker.tag_probe(1, Mask::ALL).is_none(), "withdrawn");
            let (received, ()) = tokio::join!(pair.there.receive(1, LONG), pair.here.send(1, pattern(LONG, 2)));
            same(&received, pattern(LONG, 2), LONG);
        }
    }

    /// A send that is cancelled while it is being matched either happens or does not, and both ends agree.
    async fn cancelled_send_against_its_receive(way: Way) {
        let pair = way.pair().await;
        for round in 0..40 {
            let receive = pair.there.worker.tag_recv(1, vec![0; LONG]).post();
            let send = pair.here.endpoint.tag_send(1, pattern(LONG, round)).post().expect("room");
            if round % 3 == 1 {
                tokio::task::yield_now().await;
            }
            match send.cancel().await {
                Ok(()) => same(&receive.await.expect("it was sent").buffer, pattern(LONG, round), LONG),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Canceled);
                    let error = receive.cancel().await.expect_err("it was not sent");
                    assert_eq!(error.kind(), ErrorKind::Canceled);
                }
            }
        }
    }

    async fn deadlines(way: Way) {
        let pair = way.pair().await;
        let time = Duration::from_millis(20);
        let start = Instant::now();
        let receive = pair.there.worker.tag_recv(1, vec![7; 100]).deadline(time);
        let (error, buffer) = receive.await.expect_err("nothing came").into_parts();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::DeadlineExceeded, Some(Operation::TagRecv)));
        assert_eq!(buffer, Some(vec![7; 100]));
        let receive = pair.there.worker.tag_recv(1, vec![7; 100]).post().deadline(time);
        assert_eq!(receive.await.expect_err("nothing came").kind(), ErrorKind::DeadlineExceeded);
        assert!(start.elapsed() >= 2 * time);

        let send = pair.here.endpoint.tag_send(1, pattern(LONG, 1)).deadline(time);
        let error = send.await.expect_err("nobody receives");
        assert_eq!((error.kind(), error.operation()), (ErrorKind::DeadlineExceeded, Some(Operation::TagSend)));
        let send = pair.here.endpoint.tag_send(1, pattern(LONG, 2)).sync().post().expect("room").deadline(time);
        assert_eq!(send.await.expect_err("nobody receives").kind(), ErrorKind::DeadlineExceeded);
        assert!(start.elapsed() >= 4 * time);
        // Neither is there any more.
        until("the message's end", || pair.there.worker.tag_probe(1, Mask::ALL).is_none()).await;
        // With time enough it is as without.
        let day = Duration::from_secs(86_400);
        let (received, sent) = tokio::join!(
            pair.there.worker.tag_recv(1, vec![7; LONG]).deadline(day),
            pair.here.endpoint.tag_send(1, pattern(LONG, 3)).deadline(day),
        );
        sent.expect("sent");
        same(&received.expect("a message").buffer, pattern(LONG, 3), LONG);
    }

    /// A closed endpoint takes nothing more. Closing it again changes nothing.
    async fn closed(way: Way) {
        let pair = way.pair().await;
        let region = pair.there.context.expose(vec![0; 10], Access::READ | Access::WRITE).await.expect("exposed");
        let remote = pair.here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
        pair.here.endpoint.close().await.expect("closed");
        pair.here.endpoint.close().await.expect("closed");
        let closed = |error: wharf::Error| assert_eq!(error.kind(), ErrorKind::Closed, "{error:?}");
        closed(pair.here.endpoint.closed().await);
        closed(pair.here.endpoint.tag_send(1, vec![0; 8]).await.expect_err("closed"));
        closed(pair.here.endpoint.tag_send(1, vec![0; 8]).post().expect_err("closed").into_parts().0);
        closed(pair.here.endpoint.tag_send(1, vec![0; LONG]).await.expect_err("closed"));
        closed(pair.here.endpoint.am_send(1, "", "").await.expect_err("closed"));
        closed(pair.here.endpoint.put(vec![0; 8], remote.clone()).await.expect_err("closed"));
        closed(pair.here.endpoint.put(vec![0; 8], remote.clone()).post().expect_err("closed").into_parts().0);
        let (error, buffer) = pair.here.endpoint.get(remote.clone(), vec![0; 8]).await.expect_err("closed").into_parts();
        closed(error);
        assert_eq!(buffer, Some(vec![0; 8]));
        closed(pair.here.endpoint.get(remote.clone(), vec![0; 8]).post().expect_err("closed").into_parts().0);
        closed(remote.fetch_add(0, 1_u64).await.expect_err("closed"));
        closed(pair.here.endpoint.flush().await.expect_err("closed"));
        closed(pair.here.endpoint.fence().await.expect_err("closed"));
        closed(pair.here.endpoint.ready().await.expect_err("closed"));
        closed(pair.here.endpoint.stream().await.expect_err("closed"));
        assert!(pair.there.worker.endpoint(pair.there.endpoint.id()).is_none());
    }

    /// A code and words say why: at the other end, or at one's own where both are the same.
    async fn closed_with_a_reason(way: Way) {
        for words in [String::new(), "no more".to_owned(), "long ".repeat(50)] {
            let pair = way.pair().await;
            pair.here.send(1, pattern(5000, 1)).await;
            let receives = async {
                pair.there.receive(1, LONG).await;
                pair.there.endpoint.closed().await
            };
            let (closed, error) = tokio::join!(pair.here.endpoint.close_with(404, &words), receives);
            closed.expect("closed");
            let kind = if way == Way::Own { ErrorKind::Closed } else { ErrorKind::ClosedByPeer };
            let late = pair.there.endpoint.tag_send(1, "late").await.expect_err("closed");
            for error in [error, late] {
                assert_eq!(error.kind(), kind, "{error}");
                let reason = error.close_reason().expect("a reason");
                assert_eq!((reason.code(), reason.text()), (404, &*words));
                assert!(error.to_string().contains("code 404") && error.to_string().contains(&words), "{error}");
            }
        }
    }

    /// A worker that is shut down ends everything.
    async fn shut_down(way: Way) {
        let pair = way.pair().await;
        let worker = pair.here.worker.clone();
        let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        let (begun, have_begun) = tokio::sync::oneshot::channel();
        let waiting = {
            let worker = worker.clone();
            let endpoint = pair.here.endpoint.clone();
            tokio::spawn(async move {
                // Polled after those before it, which have begun then.
                let last = async { begun.send(()).expect("awaited") };
                let receive = worker.tag_recv(9, vec![7; 10]);
                let posted = worker.tag_recv(9, vec![8; 10]).post();
                let send = endpoint.tag_send(8, pattern(LONG, 1));
                let sync = endpoint.tag_send(8, pattern(10, 1)).sync();
                let claim = worker.tag_matched(9);
                tokio::join!(receive, posted, send, sync, claim, listener.accept(), endpoint.closed(), last)
            })
        };
        have_begun.await.expect("it begins");
        // Two sends wait for receives that never come; of its own a worker knows that.
        let ended = worker.shutdown(Duration::from_millis(100)).await.map_err(|error| error.kind());
        assert_eq!(ended, if way == Way::Own { Ok(()) } else { Err(ErrorKind::DeadlineExceeded) });
        let (receive, posted, send, sync, claim, incoming, ..) = waiting.await.expect("all ended");
        let (error, buffer) = receive.expect_err("ended").into_parts();
        assert_eq!((error.kind(), buffer), (ErrorKind::Closed, Some(vec![7; 10])));
        let (error, buffer) = posted.expect_err("ended").into_parts();
        assert_eq!((error.kind(), buffer), (ErrorKind::Closed, Some(vec![8; 10])));
        assert_eq!(send.expect_err("ended").kind(), ErrorKind::Closed);
        assert_eq!(sync.expect_err("ended").kind(), ErrorKind::Closed);
        assert_eq!(claim.expect_err("ended").kind(), ErrorKind::Closed);
        assert_eq!(incoming.expect_err("ended").kind(), ErrorKind::Closed);
        // And everything that comes after.
        assert_eq!(worker.tag_recv(9, vec![0; 10]).await.expect_err("ended").kind(), ErrorKind::Closed);
        assert_eq!(worker.tag_recv(9, vec![0; 10]).post().await.expect_err("ended").kind(), ErrorKind::Closed);
        assert_eq!(worker.tag_matched(9).await.expect_err("ended").kind(), ErrorKind::Closed);
        pair.here.endpoint.tag_send(1, vec![1]).await.expect_err("ended");
        worker.shutdown(Duration::from_secs(60)).await.expect("nothing is left");
    }
}

scenarios! { between workers, and without pidfd:
    /// What was sent before a close arrives, however long the peer takes; then the peer sees the end.
    async fn closing_loses_nothing(way: Way) {
        let pair = way.pair().await;
        let sizes = [10, 5000, 0, 60, 100_000, 9000, LONG];
        for index in 0..140 {
            drop(pair.here.endpoint.tag_send(1, pattern(sizes[index % 7], index)).post().expect("room"));
        }
        let receives = async {
            a_while().await;
            for index in 0..140 {
                same(&pair.there.receive(1, LONG).await, pattern(sizes[index % 7], index), index);
            }
            pair.there.endpoint.closed().await
        };
        let (closed, reason) = tokio::join!(pair.here.endpoint.close(), receives);
        closed.expect("closed");
        assert_eq!(reason.kind(), ErrorKind::ClosedByPeer);
        let error = pair.there.endpoint.tag_send(1, vec![1]).await.expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::ClosedByPeer);
        // Its own end is closed without ado.
        pair.there.endpoint.close().await.expect("closed");
    }

    /// A dropped endpoint closes as well.
    async fn dropped_endpoint(way: Way) {
        let pair = way.pair().await;
        let (here, there) = (pair.here, pair.there);
        for index in 0..20 {
            drop(here.endpoint.tag_send(1, pattern(50_000, index)).post().expect("room"));
        }
        drop(here.endpoint);
        for index in 0..20 {
            same(&there.receive(1, LONG).await, pattern(50_000, index), index);
        }
        assert_eq!(there.endpoint.closed().await.kind(), ErrorKind::ClosedByPeer);
    }

    /// So does the last handle of a worker, in the background.
    async fn dropped_worker(way: Way) {
        let pair = way.pair().await;
        let (here, there) = (pair.here, pair.there);
        for index in 0..20 {
            drop(here.endpoint.tag_send(1, pattern(50_000, index)).post().expect("room"));
        }
        drop(here);
        for index in 0..20 {
            same(&there.receive(1, LONG).await, pattern(50_000, index), index);
        }
        assert_eq!(there.endpoint.closed().await.kind(), ErrorKind::ClosedByPeer);
    }

    async fn both_close(way: Way) {
        for round in 0..10 {
            let pair = way.pair().await;
            if round % 2 == 0 {
                pair.here.send(1, pattern(10, 1)).await;
                pair.there.send(1, pattern(10, 1)).await;
            }
            let (here, there) = tokio::join!(pair.here.endpoint.close(), pair.there.endpoint.close());
            here.expect("closed");
            there.expect("closed");
            if round % 2 == 0 {
                // What came before stays.
                pair.here.receive(1, 10).await;
                pair.there.receive(1, 10).await;
            }
            let (here, there) = tokio::join!(
                pair.here.worker.shutdown(Duration::from_secs(60)),
                pair.there.worker.shutdown(Duration::from_secs(60)),
            );
            here.expect("all closed");
            there.expect("all closed");
        }
    }

    /// Operations that wait for a peer that closes or breaks off end with it; receives from anybody go on.
    async fn the_peer_goes(way: Way) {
        for abort in [false, true] {
            let pair = way.pair().await;
            let other = way.pair().await;
            let endpoint = &pair.here.endpoint;
            let long = endpoint.tag_send(1, pattern(LONG, 1)).post().expect("room");
            let sync = endpoint.tag_send(1, pattern(10, 1)).sync().post().expect("room");
            let mut receive = pair.here.worker.tag_recv(Tag(0), vec![0; 10]).mask(Mask::NONE).post();
            until("the message", || pair.there.worker.tag_probe(1, Mask::ALL).is_some()).await;
            if abort {
                pair.there.endpoint.abort();
                assert_eq!(pair.there.endpoint.closed().await.kind(), ErrorKind::Closed);
            } else {
                pair.there.endpoint.close().await.expect("closed");
            }
            for error in [long.await.expect_err("the peer went"), sync.await.expect_err("the peer went"), endpoint.closed().await] {
                // A goodbye does not look like a failure, nor the other way round.
                assert_eq!(error.is_peer_failure(), abort, "{error:?}");
                let kind = if abort { ErrorKind::AbortedByPeer } else { ErrorKind::ClosedByPeer };
                assert_eq!(error.kind(), kind, "{error:?}");
            }
            // An announced message goes with its sender.
            let announced = || pair.there.worker.tag_probe(1, Mask::ALL).is_some_and(|info| info.len == LONG);
            until("the announced one's end", || !announced()).await;
            tokio::select! {
                biased;
                result = &mut receive => panic!("a receive from anybody ended: {result:?}"),
                () = a_while() => {}
            }
            other.here.send(1, pattern(10, 1)).await;
            other.there.receive(1, 10).await;
        }
    }

    /// Operations of this side end at once when it breaks off itself.
    async fn abort(way: Way) {
        let pair = way.pair().await;
        let endpoint = pair.here.endpoint.clone();
        let long = endpoint.tag_send(1, pattern(LONG, 1)).post().expect("room");
        let sync = endpoint.tag_send(1, pattern(10, 1)).sync().post().expect("room");
        let flush = tokio::spawn({
            let endpoint = endpoint.clone();
            async move { endpoint.flush().await }
        });
        a_while().await;
        endpoint.abort();
        endpoint.abort();
        assert_eq!(long.await.expect_err("broken off").kind(), ErrorKind::Closed);
        assert_eq!(sync.await.expect_err("broken off").kind(), ErrorKind::Closed);
        assert_eq!(flush.await.expect("ended").expect_err("broken off").kind(), ErrorKind::Closed);
        assert_eq!(pair.there.endpoint.closed().await.kind(), ErrorKind::AbortedByPeer);
    }

    /// A shut-down without anything pending is in order, and the peer sees a close.
    async fn orderly_shutdown(way: Way) {
        let pair = way.pair().await;
        pair.here.send(1, pattern(10, 1)).await;
        pair.here.worker.shutdown(Duration::from_secs(60)).await.expect("in order");
        pair.there.receive(1, 10).await;
        assert_eq!(pair.there.endpoint.closed().await.kind(), ErrorKind::ClosedByPeer);
        pair.there.worker.shutdown(Duration::from_secs(60)).await.expect("in order");
    }
}

/// Memory that is used for something else as soon as wharf lets go of it, and stays mapped.
struct Reused(Vec<u8>);

impl AsRef<[u8]> for Reused {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        self.0.fill(0xdd);
        let _kept = std::mem::ManuallyDrop::new(std::mem::take(&mut self.0));
    }
}

scenarios! { between workers, and without pidfd:
    /// A sender that breaks off has its memory back, and may use it: what its peer is copying just then does not arrive as if it were whole.
    async fn sender_breaks_off_while_its_memory_is_copied(way: Way) {
        for (round, size) in [128 << 10, (256 << 10) + 1].into_iter().cycle().take(16).enumerate() {
            let pair = way.pair().await;
            // More than have a word that both ends count chunks in.
            const MESSAGES: usize = 40;
            let mut receives: Vec<_> = (0..MESSAGES)
                .map(|tag| pair.there.worker.tag_recv(tag as u64, vec![0; size]).post())
                .collect();
            let sends: Vec<_> = (0..MESSAGES)
                .map(|tag| {
                    let memory = bytes::Bytes::from_owner(Reused(pattern(size, tag).to_vec()));
                    pair.here.endpoint.tag_send(tag as u64, memory).post().expect("room")
                })
                .collect();
            for receive in receives.iter_mut().take(round % 8) {
                let _ = futures::poll!(receive);
            }
            pair.here.endpoint.abort();
            for send in sends {
                let _ = send.await;
            }
            pair.there.endpoint.closed().await;
            for (tag, receive) in receives.into_iter().enumerate() {
                if let Ok(received) = receive.cancel().await {
                    same(&received.buffer, pattern(size, tag), format!("message {tag} of round {round}"));
                }
            }
        }
    }
}

scenarios! { everywhere, and without pidfd:
    /// A child process holds nothing of a connection or of exposed memory, and everything works on beside it.
    async fn child_processes(way: Way) {
        let pair = way.pair().await;
        let memory = pair.there.context.allocate(LONG).await.expect("memory");
        let region = pair.there.context.expose(memory, Access::READ | Access::WRITE).await.expect("exposed");
        let remote = pair.here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
        pair.here.endpoint.put(pattern(LONG, 1), remote.clone()).await.expect("put");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("a child");
        let open: Vec<_> = std::fs::read_dir(format!("/proc/{}/fd", child.id()))
            .expect("its open files")
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .filter(|path| ["wharf", "eventfd", "eventpoll"].iter().any(|word| path.to_string_lossy().contains(word)))
            .filter(|path| !path.to_string_lossy().ends_with(".log"))
            .collect();
        let got = pair.here.endpoint.get(remote.clone(), vec![0; LONG]).await;
        let put = pair.here.endpoint.put(pattern(LONG, 2), remote).await;
        let memory = region.unexpose().await;
        child.kill().expect("killed");
        child.wait().expect("gone");
        assert!(open.is_empty(), "{open:?}");
        same(&got.expect("got"), pattern(LONG, 1), "got");
        put.expect("put");
        same(memory.as_slice().expect("host memory"), pattern(LONG, 2), "put");
    }
}
