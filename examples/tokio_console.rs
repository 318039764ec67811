//! Tasks and their wake-ups in tokio-console, with a worker among them: its reactor is one task, idle while futures drive the worker themselves.
//!
//! ```text
//! cargo install tokio-console
//! RUSTFLAGS="--cfg tokio_unstable" cargo run --release --example tokio_console -- 60    # seconds
//! tokio-console                                                                         # in another terminal
//! ```
//!
//! Tokio tells of its tasks only when it was built with that flag, and the subscriber is a dependency only then: without it this makes the same traffic,
//! prints the worker's own counters, and says how to see more.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    time::{Duration, Instant},
};

use wharf::{Context, Tag, Worker};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    #[cfg(tokio_unstable)]
    console_subscriber::init();
    let seconds = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    println!("{}", run(Duration::from_secs(seconds)).await?);
    if cfg!(not(tokio_unstable)) {
        println!(
            "to see tasks: RUSTFLAGS=\"--cfg tokio_unstable\" cargo run --example tokio_console -- 60"
        );
    }
    Ok(())
}

/// Two tasks that send each other a message, rest for 20 ms, and so on, twice at least; the counters afterwards.
pub(crate) async fn run(time: Duration) -> Outcome<String> {
    let context = Context::builder().transports("shm")?.build()?;
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    let endpoint = here.connect(&there.address()?).await?;
    let other = there.clone();
    let answering = tokio::spawn(async move {
        loop {
            let got = other.tag_recv(Tag(1), vec![0; 8]).await?;
            let Some(back) = other.endpoint(got.from) else {
                return Ok::<_, wharf::Error>(());
            };
            back.tag_send(Tag(2), got.buffer).await?;
        }
    });
    let end = Instant::now() + time;
    let mut rounds = 0;
    while rounds < 2 || Instant::now() < end {
        endpoint.tag_send(Tag(1), vec![0; 8]).await?;
        here.tag_recv(Tag(2), vec![0; 8]).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        rounds += 1;
    }
    answering.abort();
    let done = there.metrics();
    Ok(format!(
        "{rounds} rounds; the answering side slept {} times, was rung {} times, woke {} tasks",
        done.parked, done.doorbells, done.wakes
    ))
}
