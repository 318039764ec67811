//! How far an operation is.

use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _};
use tokio::runtime::{Handle, RuntimeFlavor};
use wharf::{BufferList, BufferMut, OpProgress, Transferred};

use crate::{
    fixture::{Pair, Way, run, run_on_threads},
    rma::{BOTH, exposed},
    support::{LIMIT, all_are, until},
};

const LENGTH: usize = 24 << 20;

/// Moves what can be moved, pass by pass, and looks between them, until all of it is told.
async fn watch(pair: &Pair, watches: &[OpProgress]) -> Vec<Vec<Transferred>> {
    let mut told = vec![Vec::new(); watches.len()];
    let mut is_over = false;
    while !is_over {
        is_over = true;
        for (watch, told) in watches.iter().zip(&mut told) {
            if let Some(now) = watch.now() {
                is_over &= Some(now.done) == now.total;
                told.push(now);
            }
        }
        // Devices take their time; what waits for the runtime (memory that is being registered) has its turn when they have had theirs.
        let before = Instant::now();
        while pair.here.worker.progress() + pair.there.worker.progress() == 0 {
            if before.elapsed() > Duration::from_millis(5) {
                tokio::task::yield_now().await;
                break;
            }
        }
    }
    for told in &told {
        assert!(
            told.windows(2).all(|two| two[0].done <= two[1].done),
            "it goes back: {told:?}"
        );
        let is_total = |now: &Transferred| now.total.is_none_or(|total| total == LENGTH as u64);
        assert!(told.iter().all(is_total), "{told:?}");
    }
    told
}

/// Whether something was told between nothing and all. Threads of a runtime's move all of it between two looks, if they like, and so do network devices.
fn is_partial(way: Way, told: &[Transferred]) -> bool {
    let on_threads = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    let by_device = way == Way::RcVerbs;
    let mut told = told.iter();
    on_threads || by_device || told.any(|now| (1..LENGTH as u64).contains(&now.done))
}

scenarios! { between workers:
    async fn what_is_finished_is_told_without_waiting(way: Way) {
        let pair = way.pair().await;
        let (here, there) = (&pair.here, &pair.there);
        for limited in [false, true] {
            let mut receive = there.worker.tag_recv(1, vec![0; 100]).post();
            if limited {
                receive = receive.deadline(LIMIT);
            }
            assert!(!receive.is_finished(), "no message has come");
            let send = here.endpoint.tag_send(1, vec![7; 100]).post().expect("posted");
            until("the message", || send.is_finished() && receive.is_finished()).await;
            send.now_or_never().expect("at once").expect("sent");
            let received = receive.now_or_never().expect("at once").expect("received");
            assert!(all_are(&received.buffer, 7));
        }
        let (_region, remote) = exposed(&pair, vec![0; LENGTH], BOTH).await;
        let put = here.endpoint.put(vec![7; LENGTH], remote.clone()).post().expect("posted");
        until("the put", || put.is_finished()).await;
        put.now_or_never().expect("at once").expect("written");
        // What fails has ended as well.
        let receive = here.endpoint.tag_recv(2, vec![0; 1]).post();
        assert!(!receive.is_finished(), "no message has come");
        there.endpoint.abort();
        until("the end", || receive.is_finished()).await;
        receive.now_or_never().expect("at once").expect_err("aborted");
    }

    async fn of_puts_and_gets(way: Way) {
        let pair = way.pair().await;
        let (_region, remote) = exposed(&pair, vec![0; LENGTH], BOTH).await;
        for _ in 0..2 {
            let put = pair.here.endpoint.put(vec![7; LENGTH], remote.clone()).post().expect("posted");
            let told = watch(&pair, &[put.progress()]).await;
            put.await.expect("written");
            assert!(is_partial(way, &told[0]), "{told:?}");
            let get = pair.here.endpoint.get(remote.clone(), vec![0; LENGTH]).post().expect("posted");
            let told = watch(&pair, &[get.progress()]).await;
            assert!(all_are(&get.await.expect("read"), 7));
            assert!(is_partial(way, &told[0]), "{told:?}");
        }
    }

    async fn of_messages(way: Way) {
        let pair = way.pair().await;
        for _ in 0..2 {
            let receive = pair.there.worker.tag_recv(1, vec![0; LENGTH]).post();
            let waits = receive.progress();
            assert_eq!(waits.now(), Some(Transferred { done: 0, total: None }), "no message has come");
            assert_eq!(waits.now().expect("it waits").to_string(), "not matched");
            let send = pair.here.endpoint.tag_send(1, vec![7; LENGTH]).post().expect("posted");
            let told = watch(&pair, &[waits, send.progress()]).await;
            send.await.expect("sent");
            assert_eq!(receive.await.expect("received").len, LENGTH);
            // Whoever moves them, both know.
            assert!(is_partial(way, &told[0]) && is_partial(way, &told[1]), "{told:?}");
        }
        // From memory that the receiver maps, and in pieces: the receiver copies alone.
        let mut mapped = pair.here.context.allocate(LENGTH).await.expect("memory");
        mapped.fill(7);
        let pieces: BufferList = (0..3).map(|_| vec![7; LENGTH / 3]).collect();
        for buffer in [BufferMut::from(mapped).freeze(), pieces.into()] {
            let receive = pair.there.worker.tag_recv(1, vec![0; LENGTH]).post();
            let send = pair.here.endpoint.tag_send(1, buffer).post().expect("posted");
            let told = watch(&pair, &[receive.progress(), send.progress()]).await;
            send.await.expect("sent");
            assert!(all_are(&receive.await.expect("received").buffer, 7));
            assert!(is_partial(way, &told[0]) && is_partial(way, &told[1]), "{told:?}");
        }
        // From one peer as from any.
        let receive = pair.there.endpoint.tag_recv(1, vec![0; 8]).post();
        let progress = receive.progress();
        assert_eq!(progress.now(), Some(Transferred { done: 0, total: None }));
        pair.here.send(1, vec![1; 8]).await;
        assert_eq!(receive.await.expect("received").len, 8);
        assert_eq!(progress.now(), None);
    }
}

#[test]
fn of_copies_and_of_what_is_over() {
    run(async {
        let pair = Way::Own.pair().await;
        let copy = pair
            .here
            .worker
            .copy(vec![7; LENGTH], vec![0; LENGTH])
            .post();
        let told = watch(&pair, &[copy.progress()]).await;
        copy.await.expect("copied");
        assert!(is_partial(Way::Own, &told[0]), "{told:?}");
        // A stream of it ends with it, and says nothing twice.
        let copy = pair
            .here
            .worker
            .copy(vec![7; LENGTH], vec![0; LENGTH])
            .post();
        let news = copy.progress().every(Duration::ZERO).collect::<Vec<_>>();
        let (news, copy) = tokio::join!(news, copy);
        copy.expect("copied");
        assert_eq!(news[0].total, Some(LENGTH as u64));
        assert!(
            news.windows(2).all(|two| two[0].done < two[1].done),
            "{news:?}"
        );
        // In one step.
        let sent = pair
            .here
            .endpoint
            .tag_send(1, *b"short")
            .post()
            .expect("posted");
        let progress: OpProgress = sent.progress();
        assert_eq!(progress.now(), None);
        assert_eq!(progress.clone().every(Duration::ZERO).next().await, None);
        sent.await.expect("sent");
        // It has come, and nobody has asked for it.
        let receive = pair.here.worker.tag_recv(2, vec![0; 9]).post();
        let progress = receive.progress();
        pair.here.send(2, vec![1; 5]).await;
        while progress.now().is_some_and(|now| now.total.is_none()) {
            pair.here.worker.progress();
        }
        assert!(
            progress
                .now()
                .is_none_or(|now| (now.done, now.total) == (5, Some(5)))
        );
        assert_eq!(
            receive
                .now_or_never()
                .expect("it is here")
                .expect("received")
                .len,
            5
        );
        assert_eq!(progress.now(), None);
        let text = Transferred {
            done: 3,
            total: Some(9),
        }
        .to_string();
        assert_eq!(text, "3 of 9 bytes");
    });
}
