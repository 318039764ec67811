//! Operations that are polled once while Tokio's budget is spent, and dropped then: all of them happen.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context as TaskContext, Poll},
};

use tokio::task::coop;
use wharf::{Access, AmId, Tag, channel::Semaphore};

use crate::sides::{Case, Path, Sides, on_every_path};

/// More than the budget of one poll lets through.
const TIMES: u64 = 6000;

/// They take longer than one task's turn, a millisecond.
const LONG: u64 = if cfg!(debug_assertions) { 3000 } else { 12_000 };

on_every_path!(dropped_after_one_poll);
on_every_path!(others_have_their_turn);

/// Takes all of the budget that this task has.
fn spend(cx: &mut TaskContext<'_>) {
    while coop::has_budget_remaining() {
        if let Poll::Ready(taken) = coop::poll_proceed(cx) {
            taken.made_progress();
        }
    }
}

/// Polls each of so many futures once, without budget, and drops it. How many of them were over.
async fn poll_each_once<F: Future>(times: u64, mut make: impl FnMut(u64) -> F) -> u64 {
    poll_fn(|cx| {
        spend(cx);
        let mut over = 0;
        for number in 0..times {
            over += u64::from(pin!(make(number)).poll(cx).is_ready());
        }
        Poll::Ready(over)
    })
    .await
}

async fn dropped_after_one_poll(path: Path) {
    let sides = Sides::new(path).await;
    let region = sides
        .b_context()
        .expose(vec![0; TIMES as usize], Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    let remote = sides
        .to_b
        .import(&region.descriptor().expect("a descriptor"))
        .expect("imported");
    let word = sides
        .b_context()
        .expose(vec![0; 64], Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    let remote_word = sides
        .to_b
        .import(&word.descriptor().expect("a descriptor"))
        .expect("imported");
    let read_word = || {
        let mut bytes = [0; 8];
        word.read_at(0, &mut bytes).expect("in bounds");
        u64::from_le_bytes(bytes)
    };

    {
        let _case = Case("put".into());
        poll_each_once(TIMES, |number| {
            let at = number as usize;
            sides.to_b.put(vec![7], remote.slice(at..=at))
        })
        .await;
        sides.to_b.flush().await.expect("flushed");
        let mut bytes = vec![0; TIMES as usize];
        region.read_at(0, &mut bytes).expect("in bounds");
        assert_eq!(bytes.iter().filter(|byte| **byte == 7).count(), bytes.len());
    }
    {
        let _case = Case("atomic add, and one that fetches".into());
        poll_each_once(TIMES, |_| remote_word.add(0, 1_u64)).await;
        sides.to_b.flush().await.expect("flushed");
        assert_eq!(read_word(), TIMES);
        poll_each_once(TIMES, |_| remote_word.fetch_add(0, 1_u64)).await;
        sides.to_b.flush().await.expect("flushed");
        assert_eq!(read_word(), 2 * TIMES);
    }
    {
        let _case = Case("signal, alone and of a semaphore".into());
        let counter = sides.b.counter().await.expect("a counter");
        let there = sides
            .to_b
            .import(&counter.descriptor().expect("a descriptor"))
            .expect("imported");
        poll_each_once(TIMES, |_| sides.to_b.signal(&there, 1)).await;
        sides.to_b.flush().await.expect("flushed");
        counter.wait(TIMES).await.expect("raised");
        let own = sides.a.counter().await.expect("a counter");
        let semaphore = Semaphore::new(own, sides.to_b.clone(), there).expect("a semaphore");
        poll_each_once(TIMES, |_| semaphore.signal()).await;
        sides.to_b.flush().await.expect("flushed");
        let value = counter.wait(2 * TIMES).await.expect("raised");
        assert_eq!(value, 2 * TIMES);
    }
    {
        let _case = Case("tagged send".into());
        poll_each_once(TIMES, |number| {
            sides.to_b.tag_send(Tag(1), number.to_le_bytes().to_vec())
        })
        .await;
        let receive = async {
            for number in 0..TIMES {
                let buffer = vec![0; 8];
                let received = sides.b.tag_recv(Tag(1), buffer).await;
                assert_eq!(received.expect("a message").buffer, number.to_le_bytes());
            }
        };
        let (flushed, ()) = tokio::join!(sides.to_b.flush(), receive);
        flushed.expect("flushed");
    }
    {
        let _case = Case("active message".into());
        let id = AmId(9);
        let mut inbox = sides.b.active_messages(id).open().expect("an inbox");
        poll_each_once(TIMES, |number| {
            sides
                .to_b
                .am_send(id, number.to_le_bytes().to_vec(), Vec::new())
        })
        .await;
        for number in 0..TIMES {
            let message = inbox.recv().await.expect("a message");
            assert_eq!(message.header(), number.to_le_bytes());
        }
    }
    {
        let _case = Case("long ones".into());
        let times = 40;
        let length = 100_000;
        poll_each_once(times, |number| {
            sides.to_b.tag_send(Tag(2), vec![number as u8; length])
        })
        .await;
        for number in 0..times {
            let buffer = vec![0; length];
            let received = sides.b.tag_recv(Tag(2), buffer).await;
            assert_eq!(
                received.expect("a message").buffer,
                vec![number as u8; length]
            );
        }
    }
    {
        let _case = Case("written buffer of a stream".into());
        let (here, there) = tokio::join!(sides.to_b.stream(), sides.to_a.accept_stream());
        let (mut here, mut there) = (here.expect("opened"), there.expect("accepted"));
        let times = 100;
        poll_fn(|cx| {
            spend(cx);
            for _ in 0..times {
                let _ = pin!(here.write_buffer(vec![3; 100])).poll(cx);
            }
            Poll::Ready(())
        })
        .await;
        let mut left = times * 100;
        while left > 0 {
            let chunk = there.read_chunk().await.expect("bytes").expect("no end");
            left -= chunk.len();
        }
    }
    sides.shutdown().await;
}

/// A loop of operations that are over at once, and a task beside it.
async fn others_have_their_turn(path: Path) {
    let sides = Sides::new(path).await;
    let region = sides
        .b_context()
        .expose(vec![0; 64], Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    let remote = sides
        .to_b
        .import(&region.descriptor().expect("a descriptor"))
        .expect("imported");
    let turns = std::rc::Rc::new(std::cell::Cell::new(0_u64));
    let local = tokio::task::LocalSet::new();
    let counted = turns.clone();
    local.spawn_local(async move {
        loop {
            counted.set(counted.get() + 1);
            tokio::task::yield_now().await;
        }
    });
    local
        .run_until(async {
            tokio::task::yield_now().await;
            let mut before = turns.get();
            let mut had_its_turn = |what: &str| {
                assert!(turns.get() > before, "nobody else ran beside {what}");
                before = turns.get();
            };
            for _ in 0..LONG {
                sides.to_b.put(vec![1], remote.clone()).await.expect("put");
            }
            had_its_turn("puts");
            for _ in 0..LONG {
                sides
                    .to_b
                    .get(remote.clone(), vec![0; 8])
                    .await
                    .expect("got");
            }
            had_its_turn("gets");
            for _ in 0..LONG {
                remote.add(0, 1_u64).await.expect("added");
            }
            had_its_turn("atomic operations");
        })
        .await;
    sides.shutdown().await;
}
