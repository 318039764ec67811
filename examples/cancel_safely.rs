//! What dropping an operation means: `select!`, timeouts, deadlines, `op.cancel().await`, each with a check.
//!
//! `cargo run --release --example cancel_safely` goes through them over shared memory and then over TCP, and prints what it saw.
//!
//! The rule: an operation under way owns its buffer, so dropping its future is always safe. What else it does depends on the operation. A receive
//! that is dropped takes no message with it. A send, put or get that was begun goes on without its future; one that was not begun never happens.
#![allow(clippy::print_stdout)]

use std::{error::Error, time::Duration};

use tokio::time::{MissedTickBehavior, timeout};
use wharf::{Access, Context, Endpoint, ErrorKind, Mask, Tag, Worker};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const SHORT: Duration = Duration::from_millis(20);
const MEBIBYTE: usize = 1 << 20;

#[tokio::main]
async fn main() -> Outcome<()> {
    for transport in ["shm", "tcp"] {
        println!("{transport}:");
        run(transport).await?;
    }
    Ok(())
}

/// Every case, between two workers.
pub(crate) async fn run(transport: &str) -> Outcome<()> {
    let context = Context::builder().transports(transport)?.build()?;
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    let listener = there.listen("127.0.0.1:0").await?;
    let address = listener.local_addr();
    let (to_there, to_here) = tokio::try_join!(here.connect(address), async {
        listener.accept().await?.await
    })?;

    select_loses_nothing(&here, &to_here).await?;
    a_timeout_takes_no_message(&here, &to_here).await?;
    a_send_that_was_begun_arrives(&to_there, &there).await?;
    cancel_says_what_happened(&here, &to_here).await?;
    a_long_send_is_withdrawn(&to_there, &there).await?;
    a_deadline_gives_the_buffer_back(&here).await?;
    a_dropped_get_harms_nobody(&context, &to_there).await?;

    to_there.close().await?;
    here.shutdown(Duration::from_secs(5)).await?;
    there.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// A receive in a `select!` loop is dropped and made anew in every round that another branch wins. Each message still comes once, in order.
async fn select_loses_nothing(worker: &Worker, peer: &Endpoint) -> Outcome<()> {
    const MESSAGES: u64 = 2000;
    let tag = Tag(1);
    let peer = peer.clone();
    let sending = tokio::spawn(async move {
        for number in 0..MESSAGES {
            // Short ones, and some that are announced first and fetched when they match.
            let length = if number % 100 == 0 { MEBIBYTE } else { 8 };
            let mut message = vec![0; length];
            message[..8].copy_from_slice(&number.to_le_bytes());
            peer.tag_send(tag, message).await?;
        }
        Outcome::Ok(())
    });
    let mut tick = tokio::time::interval(Duration::from_micros(50));
    // Ticks that were missed are not made up for: on a machine where a round takes longer than a tick one would always be ready, and as it is asked
    // first no receive would ever be polled.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut expected, mut dropped) = (0, 0);
    while expected < MESSAGES {
        tokio::select! {
            biased;
            // Often ready at the same time, and then it wins.
            _ = tick.tick() => dropped += 1,
            received = worker.tag_recv(tag, vec![0; MEBIBYTE]) => {
                let received = received?;
                let number = received.buffer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                check(number == Some(expected), "the messages come once and in order")?;
                expected += 1;
            }
        }
        // The same for a receive that was polled and had no time to end.
        if timeout(Duration::ZERO, worker.tag_matched(tag))
            .await
            .is_err()
        {
            dropped += 1;
        }
    }
    sending.await??;
    println!("  select!: {MESSAGES} messages, each once and in order, {dropped} receives dropped");
    Ok(())
}

/// `tokio::time::timeout` drops the receive. What comes later is for the next one.
async fn a_timeout_takes_no_message(worker: &Worker, peer: &Endpoint) -> Outcome<()> {
    let tag = Tag(2);
    let late = timeout(SHORT, worker.tag_recv(tag, vec![0; 16])).await;
    check(late.is_err(), "nothing was sent yet")?;
    peer.tag_send(tag, "late").await?;
    let received = worker.tag_recv(tag, vec![0; 16]).await?;
    check(&received.buffer[..received.len] == b"late", "it is there")?;
    println!("  timeout: the message that came too late is received by the next receive");
    Ok(())
}

/// A send that is dropped before its first poll never happens; after it, it happens without its future. `flush` waits for it.
async fn a_send_that_was_begun_arrives(endpoint: &Endpoint, peer: &Worker) -> Outcome<()> {
    let tag = Tag(3);
    drop(endpoint.tag_send(tag, "never begun"));
    // `post` begins it without waiting for it. So does a first poll.
    drop(endpoint.tag_send(tag, vec![7; MEBIBYTE]).post()?);
    let received = peer.tag_recv(tag, vec![0; MEBIBYTE]).await?;
    check(
        received.len == MEBIBYTE && received.buffer.iter().all(|byte| *byte == 7),
        "what arrives is the send that was begun",
    )?;
    endpoint.flush().await?;
    check(
        peer.tag_probe(tag, Mask::ALL).is_none(),
        "there is no other",
    )?;
    println!("  drop: a send that was begun arrives, one that was not does not");
    Ok(())
}

/// `cancel` ends an operation and resolves to how it ended: stopped, or over before it could be.
async fn cancel_says_what_happened(worker: &Worker, peer: &Endpoint) -> Outcome<()> {
    let tag = Tag(4);
    let receive = worker.tag_recv(tag, vec![0; 16]).post();
    let (error, buffer) = match receive.cancel().await {
        Err(stopped) => stopped.into_parts(),
        Ok(_) => return Err("there was nothing to receive".into()),
    };
    check(error.kind() == ErrorKind::Canceled, "it says so")?;
    check(
        buffer.is_some_and(|buffer| buffer.len() == 16),
        "the buffer comes back",
    )?;

    let receive = worker.tag_recv(tag, vec![0; 16]).post();
    peer.tag_send(tag, "in time").sync().await?; // until it matched
    let received = receive.cancel().await?;
    check(
        &received.buffer[..received.len] == b"in time",
        "too late to cancel",
    )?;
    println!("  cancel: `Canceled` with the buffer, or the result where it was too late");
    Ok(())
}

/// A long message is announced first. Until the other end matches it, it can be taken back, and the other end never sees it.
async fn a_long_send_is_withdrawn(endpoint: &Endpoint, peer: &Worker) -> Outcome<()> {
    let tag = Tag(5);
    let send = endpoint.tag_send(tag, vec![1; 16 * MEBIBYTE]).post()?;
    match send.cancel().await {
        Err(error) => check(error.kind() == ErrorKind::Canceled, "it says so")?,
        Ok(()) => return Err("nobody received it".into()),
    }
    endpoint.tag_send(tag, "instead").await?;
    let received = peer.tag_recv(tag, vec![0; 16]).await?;
    check(
        &received.buffer[..received.len] == b"instead",
        "what was sent instead",
    )?;
    println!("  cancel: a long send that nobody received yet is taken back");
    Ok(())
}

/// A deadline is a cancel by the clock, and unlike `timeout` gives the buffer back.
async fn a_deadline_gives_the_buffer_back(worker: &Worker) -> Outcome<()> {
    let receive = worker.tag_recv(Tag(6), vec![0; 64]).deadline(SHORT);
    let (error, buffer) = match receive.await {
        Err(late) => late.into_parts(),
        Ok(_) => return Err("there was nothing to receive".into()),
    };
    check(error.kind() == ErrorKind::DeadlineExceeded, "it says so")?;
    check(
        buffer.is_some_and(|buffer| buffer.len() == 64),
        "the buffer comes back",
    )?;
    println!("  deadline: `DeadlineExceeded`, and the buffer comes back");
    Ok(())
}

/// A get that is dropped runs to its end into the buffer that it owns. The memory that it reads may go as it pleases its owner.
async fn a_dropped_get_harms_nobody(context: &Context, endpoint: &Endpoint) -> Outcome<()> {
    let mut memory = context.allocate(16 * MEBIBYTE).await?;
    memory.fill(9);
    let region = context.expose(memory, Access::READ).await?;
    let remote = endpoint.import(&region.descriptor()?)?;
    for _ in 0..10 {
        drop(
            endpoint
                .get(remote.clone(), vec![0; 16 * MEBIBYTE])
                .post()?,
        );
    }
    let buffer = endpoint.get(remote.slice(..8), vec![0; 8]).await?;
    check(buffer == [9; 8], "a get that is awaited has its bytes")?;
    endpoint.flush().await?;
    // Waits until nobody reads it any more, and hands the memory back.
    drop(region.unexpose().await);
    match endpoint.get(remote.slice(..8), vec![0; 8]).await {
        Err(error) => check(
            error.kind() == ErrorKind::StaleKey,
            "it is not exposed any more",
        )?,
        Ok(_) => return Err("memory was read that is not exposed any more".into()),
    }
    println!("  drop: gets go on without their futures, and the memory is freed after them");
    Ok(())
}

fn check(is_so: bool, what: &str) -> Outcome<()> {
    if is_so {
        Ok(())
    } else {
        Err(format!("not so: {what}").into())
    }
}
