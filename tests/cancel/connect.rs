//! Connection set-up and its end, dropped at every await point.

use std::task::Poll;

use wharf::{ErrorKind, Worker};

use crate::{
    sides::{Case, Path, Sides, on_every_path, run},
    support::{LIMIT, watchdog},
};

on_every_path!(close);

async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Polls once; where that is not the end of it, comes back when it would be polled again.
async fn woken<F: Future>(mut future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    let mut is_polled = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut is_polled, true) {
            return Poll::Ready(Poll::Pending);
        }
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Poll::Ready(output)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn connects(path: Path) {
    let (a, b) = (
        Worker::new(&path.context()).expect("a worker"),
        Worker::new(&path.context()).expect("a worker"),
    );
    let listener = b.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    let acceptor = tokio::spawn(async move {
        // Whether they stand or not.
        let mut accepted = 0;
        loop {
            match listener.accept().await {
                Ok(incoming) => {
                    if let Ok(endpoint) = incoming.accept().await {
                        accepted += 1;
                        tokio::spawn(async move {
                            let _held = endpoint.clone();
                            endpoint.closed().await;
                        });
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Closed);
                    return accepted;
                }
            }
        }
    });
    for polls in 0..40 {
        let _case = Case(format!("a connect dropped after {polls} polls"));
        let mut connect = Box::pin(a.connect(address));
        for _ in 0..polls {
            if woken(connect.as_mut()).await.is_ready() {
                break;
            }
        }
        drop(connect);
        if polls % 4 == 0 {
            let endpoint = a.connect(address).await.expect("a connection");
            assert!(!endpoint.transports().is_empty());
            endpoint.close().await.expect("closed");
        }
    }
    a.shutdown(LIMIT).await.expect("a quiet end");
    b.shutdown(LIMIT).await.expect("a quiet end");
    assert!(acceptor.await.expect("no panic") >= 10);
}

#[test]
fn connects_over_shm() {
    run(connects(Path::Shm));
}

#[test]
fn connects_over_tcp() {
    run(connects(Path::Tcp));
}

async fn accepts(path: Path) {
    let (a, b) = (
        Worker::new(&path.context()).expect("a worker"),
        Worker::new(&path.context()).expect("a worker"),
    );
    let listener = b.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    for polls in 0..24 {
        let _case = Case(format!("an accept dropped after {polls} polls"));
        let mut connect = {
            let a = a.clone();
            tokio::spawn(async move { a.connect(address).await })
        };
        // The wait for a request may be dropped as well, when it was told of one too: none is lost.
        for _ in 0..polls {
            let mut wait = Box::pin(listener.accept());
            if let Poll::Ready(incoming) = woken(wait.as_mut()).await {
                drop(wait);
                let mut accept = Box::pin(incoming.expect("a request").accept());
                for _ in 0..polls {
                    if futures::poll!(accept.as_mut()).is_ready() {
                        break;
                    }
                    turns(3).await;
                }
                drop(accept);
                break;
            }
            drop(wait);
        }
        // Whoever connects hears of it, whatever became of it.
        let ended = watchdog(LIMIT, async {
            tokio::select! {
                ended = &mut connect => Some(ended),
                incoming = listener.accept() => {
                    incoming.expect("a request").reject("enough").await;
                    None
                }
            }
        });
        let ended = match ended.await {
            Some(ended) => ended,
            None => watchdog(LIMIT, connect).await,
        };
        match ended.expect("no panic") {
            Ok(endpoint) => {
                watchdog(LIMIT, endpoint.closed()).await;
            }
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Rejected | ErrorKind::ConnectionReset
                ),
                "{error:?}"
            ),
        }
        let (accepted, connected) = tokio::join!(
            async { listener.accept().await.expect("a request").accept().await },
            a.connect(address)
        );
        let (accepted, connected) = (accepted.expect("accepted"), connected.expect("connected"));
        connected.close().await.expect("closed");
        accepted.closed().await;
    }
    drop(listener);
    a.shutdown(LIMIT).await.expect("a quiet end");
    b.shutdown(LIMIT).await.expect("a quiet end");
}

#[test]
fn accepts_over_shm() {
    run(accepts(Path::Shm));
}

#[test]
fn accepts_over_tcp() {
    run(accepts(Path::Tcp));
}

/// A close that is dropped goes on; one that was never polled does nothing.
async fn close(path: Path) {
    for polls in 0..6 {
        for (busy, forgotten) in [(false, false), (true, false), (false, true), (true, true)] {
            let _case = Case(format!(
                "a close after {polls} polls, busy: {busy}, forgotten: {forgotten}"
            ));
            let sides = Sides::new(path).await;
            sides.expect_works().await;
            let send = busy.then(|| {
                let send = sides.to_b.tag_send(wharf::Tag(1 << 50), vec![5; 300_000]);
                send.post().expect("room")
            });
            let mut close = Box::pin(sides.to_b.close());
            for _ in 0..polls {
                if futures::poll!(close.as_mut()).is_ready() {
                    break;
                }
                turns(1).await;
            }
            if forgotten {
                #[expect(
                    clippy::disallowed_methods,
                    clippy::mem_forget,
                    reason = "what a program may do"
                )]
                std::mem::forget(close);
            } else {
                drop(close);
            }
            if polls == 0 {
                sides.expect_works().await;
            }
            if let Some(send) = send {
                if path == Path::Own && polls > 0 {
                    // Nobody is left who could receive it.
                    send.await.expect_err("not received before the close");
                    watchdog(LIMIT, sides.shutdown()).await;
                    continue;
                }
                let receive = sides.b.tag_recv(wharf::Tag(1 << 50), vec![0; 300_000]);
                let received = receive.await.expect("sent before the close");
                assert!(received.buffer.iter().all(|&byte| byte == 5));
                send.await.expect("sent before the close");
            }
            if polls > 0 {
                let error = watchdog(LIMIT, sides.to_a.closed()).await;
                assert!(
                    matches!(error.kind(), ErrorKind::ClosedByPeer | ErrorKind::Closed),
                    "{error:?}"
                );
                watchdog(LIMIT, sides.to_b.closed()).await;
            }
            watchdog(LIMIT, sides.shutdown()).await;
        }
    }
}
