//! Two processes greet each other: the program of the README.
//!
//! `cargo run --example hello` in one terminal, `cargo run --example hello -- 127.0.0.1:7471` in another.
#![allow(clippy::print_stdout)] // a program for a terminal

use wharf::{Context, Result, Tag, Worker};

const GREETING: Tag = Tag(1);
const ANSWER: Tag = Tag(2);

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::args().nth(1) {
        None => listen("127.0.0.1:7471").await,
        Some(address) => greet(&address).await,
    }
}

/// The first process: waits for one peer, takes its greeting and answers.
pub(crate) async fn listen(address: &str) -> Result<()> {
    let worker = Worker::new(&Context::builder().build()?)?;
    let listener = worker.listen(address).await?;
    println!("listening at {}", listener.local_addr());
    let endpoint = listener.accept().await?.accept().await?;
    let greeting = endpoint.tag_recv_bytes(GREETING, 1024).await?;
    println!("{:?} over {:?}", greeting.buffer, endpoint.transports());
    endpoint.tag_send(ANSWER, "hello, you").await?;
    endpoint.close().await // once all has arrived
}

/// The second process.
pub(crate) async fn greet(address: &str) -> Result<()> {
    let worker = Worker::new(&Context::builder().build()?)?;
    let endpoint = worker.connect(address).await?;
    endpoint.tag_send(GREETING, "hello, there").await?;
    let answer = endpoint.tag_recv_bytes(ANSWER, 1024).await?;
    println!("{:?} over {:?}", answer.buffer, endpoint.transports());
    endpoint.close().await
}
