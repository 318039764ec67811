//! Port channels: what is asked of a proxy is done, in order, and what is wrong is told.

use wharf::{
    ErrorKind,
    channel::{PortChannel, ProxyService, Trigger, TriggerKind},
};

use crate::{
    group::{Carrier, Place, channels, content, pattern, run},
    support::{LIMIT, block_on},
};

async fn port(carrier: Carrier, place: Place) -> (Ends, PortChannel, ProxyService) {
    let ranks = carrier.ranks_of(place.context(carrier)).await;
    let one = place.memory(&ranks[0], pattern(100_000, 1)).await;
    let two = match carrier {
        Carrier::Own => one.clone(),
        _ => place.memory(&ranks[1], pattern(100_000, 2)).await,
    };
    let [here, there] = channels(&ranks, carrier.peers(), [&one, &two]).await;
    let proxy = ProxyService::new().expect("a proxy");
    let (semaphore, remote) = (here.semaphore().clone(), here.remote().clone());
    let channel = proxy.channel(semaphore, remote, one.clone());
    let ends = Ends {
        ranks,
        one,
        two,
        there,
    };
    (ends, channel.expect("a channel"), proxy)
}

struct Ends {
    ranks: [wharf::channel::Communicator; 2],
    one: wharf::channel::RegisteredMemory,
    two: wharf::channel::RegisteredMemory,
    there: wharf::channel::MemoryChannel,
}

#[test]
fn puts_signals_and_flushes() {
    for carrier in Carrier::ALL {
        for place in Place::ALL {
            eprintln!("{carrier:?} {place:?}");
            run(async move {
                let (ends, channel, proxy) = port(carrier, place).await;
                let source = content(&ends.ranks[0], &ends.one).await;
                // Many puts, then a signal: it comes behind all of them.
                for part in 0..100 {
                    let at = part * 400;
                    channel.put(at, 50_000 + at, 400).await.expect("asked");
                }
                channel.signal().await.expect("asked");
                ends.there.wait().await.expect("signalled");
                let target = content(&ends.ranks[1], &ends.two).await;
                assert!(target[..40_000] == source[50_000..90_000]);
                channel.put_with_signal(1, 60_001, 33).await.expect("asked");
                ends.there.wait().await.expect("signalled");
                let flushed = channel.put_with_signal_and_flush(41_000, 60_000, 3);
                flushed.await.expect("flushed");
                ends.there.wait().await.expect("signalled");
                let target = content(&ends.ranks[1], &ends.two).await;
                assert!(target[1..34] == source[60_001..60_034]);
                assert!(target[41_000..41_003] == source[60_000..60_003]);
                channel.flush().await.expect("nothing left");
                assert_eq!(proxy.done(), 104);
            });
        }
    }
}

#[test]
fn signals_come_behind_every_put_before_them() {
    for carrier in [Carrier::Shm, Carrier::Tcp, Carrier::RcVerbs] {
        run(async move {
            let (ends, channel, _proxy) = port(carrier, Place::Own).await;
            let asking = tokio::spawn(async move {
                for round in 0..2000_usize {
                    channel.put(8, 50_000 + round, 1).await.expect("asked");
                    channel.put(0, 50_000 + round, 8).await.expect("asked");
                    channel
                        .put_with_signal(9, 50_000 + round, 1)
                        .await
                        .expect("asked");
                    // The source is read later: the next round waits for it.
                    channel.wait().await.expect("answered");
                }
            });
            let source = content(&ends.ranks[0], &ends.one).await;
            for round in 0..2000_usize {
                ends.there.wait().await.expect("signalled");
                let mut target = [0; 10];
                ends.two.read_at(0, &mut target).expect("within");
                let at = 50_000 + round;
                assert_eq!(target[..8], source[at..at + 8]);
                assert_eq!(target[8..], [source[at], source[at]]);
                ends.there.signal().await.expect("answered");
            }
            asking.await.expect("ends");
        });
    }
}

#[test]
fn what_is_wrong_the_flush_says() {
    run(async {
        let (ends, channel, proxy) = port(Carrier::Shm, Place::Own).await;
        let error = channel.put(0, 0, 5 << 30).await.expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        channel.put(99_999, 0, 2).await.expect("asked");
        channel.signal().await.expect("asked");
        let error = channel.flush().await.expect_err("outside");
        assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
        assert_eq!(
            ends.there.semaphore().pending(),
            0,
            "no signal behind a failed put"
        );
        // It goes on after that.
        let flushed = channel.put_with_signal_and_flush(0, 0, 2).await;
        flushed.expect("put");
        ends.there.wait().await.expect("signalled");
        // Numbers that nobody has.
        let kinds = [TriggerKind::DATA, TriggerKind::DATA | TriggerKind::SIGNAL];
        for (kind, change) in kinds.into_iter().zip([0, 1]) {
            let mut trigger = Trigger {
                kind,
                size: 1,
                ..channel.trigger()
            };
            match change {
                0 => trigger.source = 7,
                _ => trigger.destination = 8,
            }
            proxy.push(trigger).expect("room");
            let error = channel.flush().await.expect_err("no such memory");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let stranger = Trigger {
            kind: TriggerKind::SIGNAL,
            semaphore: 9,
            ..channel.trigger()
        };
        proxy.push(stranger).expect("room");
        channel.flush().await.expect("another channel's");
        let wide = Trigger {
            source: 512,
            ..stranger
        };
        let error = proxy.push(wide).expect_err("no bits");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    });
}

/// On one thread: the proxy does nothing while a future is polled.
fn alone<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    block_on(&runtime.expect("a runtime"), 3 * LIMIT, future)
}

/// Whoever asked for a flush hears of it, however many others were done meanwhile.
#[test]
fn many_flushes_are_fetched_late() {
    alone(async {
        let (_ends, channel, proxy) = port(Carrier::Shm, Place::Own).await;
        let mut flushes: Vec<_> = (0..6000).map(|_| Box::pin(channel.flush())).collect();
        let mut asked = 0;
        for some in flushes.chunks_mut(200) {
            for flush in some {
                assert!(futures::poll!(flush).is_pending(), "nobody has done it");
                asked += 1;
            }
            while proxy.done() < asked {
                tokio::task::yield_now().await;
            }
        }
        for flush in flushes {
            flush.await.expect("flushed");
        }
    });
}

/// A failure is told to the next who waits for a flush: one that nobody waits for does not take it away.
#[test]
fn a_flush_that_nobody_waits_for_hides_no_error() {
    alone(async {
        let (_ends, channel, proxy) = port(Carrier::Shm, Place::Own).await;
        for dropped in [false, true] {
            channel.put(99_999, 0, 2).await.expect("asked");
            if dropped {
                let mut flush = Box::pin(channel.flush());
                assert!(futures::poll!(&mut flush).is_pending());
            } else {
                let trigger = Trigger {
                    kind: TriggerKind::FLUSH,
                    ..channel.trigger()
                };
                proxy.push(trigger).expect("room");
            }
            let error = channel.flush().await.expect_err("outside");
            assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
            channel.flush().await.expect("told once");
        }
    });
}

#[test]
fn numbers_run_out() {
    run(async {
        let (ends, channel, proxy) = port(Carrier::Own, Place::Own).await;
        let mut added = 1;
        let error = loop {
            match proxy.add_memory(ends.one.clone()) {
                Ok(number) => assert_eq!(usize::from(number), added),
                Err(error) => break error,
            }
            added += 1;
        };
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert_eq!(added, wharf::channel::MAX_MEMORIES);
        channel.flush().await.expect("stands");
    });
}

/// A proxy whose handles are gone does what is in its ring.
#[test]
fn what_was_asked_is_done_though_the_channel_is_dropped() {
    run(async {
        let (ends, channel, proxy) = port(Carrier::Shm, Place::Own).await;
        for _ in 0..50 {
            channel.put_with_signal(0, 0, 100).await.expect("asked");
        }
        drop((channel, proxy));
        for _ in 0..50 {
            ends.there.wait().await.expect("signalled");
        }
    });
}

#[test]
fn another_connection_is_refused() {
    run(async {
        let (ends, _channel, proxy) = port(Carrier::Shm, Place::Own).await;
        let other = Carrier::Tcp.ranks().await;
        let memories = [
            Place::Vec.memory(&other[0], vec![0; 10]).await,
            Place::Vec.memory(&other[1], vec![0; 10]).await,
        ];
        let [stranger, _] = channels(&other, [1, 0], memories.each_ref()).await;
        let (semaphore, remote) = (stranger.semaphore().clone(), ends.there.remote().clone());
        let error = proxy.channel(semaphore, remote, ends.one.clone());
        assert_eq!(error.expect_err("mixed").kind(), ErrorKind::InvalidArgument);
    });
}
