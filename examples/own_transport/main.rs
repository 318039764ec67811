//! A transport of one's own: `packets.rs` has it, `words.rs` what makes long messages one copy. Here two workers use it for everything.
//!
//! `cargo run --release --example own_transport`
//!
//! A transport says which messages it has got, and wharf does the rest. `cargo test --test own_transport` holds it
//! against what every transport must do.
#![allow(clippy::print_stdout)]

pub(crate) mod packets;
mod words;

use std::{error::Error, sync::Arc, time::Duration};

use wharf::{Access, Context, Tag, Worker};

use packets::Packets;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const MEBIBYTE: usize = 1 << 20;

#[tokio::main]
async fn main() -> Outcome<()> {
    run().await
}

pub(crate) async fn run() -> Outcome<()> {
    let builder = Context::builder().transport(Arc::new(Packets));
    // Nothing else, but for the copies that the kernel makes between two processes, where it may.
    let context = builder.transports("packets,cma")?.build()?;
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    let to_there = here.connect(&there.address()?).await?;
    println!("connected by {:?}", to_there.transports());
    assert_eq!(to_there.transports()[0], "packets");

    for length in [8, 10_000, 10 * MEBIBYTE] {
        let (sent, got) = tokio::join!(
            to_there.tag_send(Tag(1), vec![7; length]),
            there.tag_recv(Tag(1), vec![0; length]),
        );
        sent?;
        assert_eq!(got?.buffer, vec![7; length]);
    }

    let memory = context.allocate(MEBIBYTE).await?;
    let region = context.expose(memory, Access::READ | Access::WRITE).await?;
    let remote = to_there.import(&region.descriptor()?)?;
    for round in 1..=3 {
        to_there.put(vec![round; MEBIBYTE], remote.clone()).await?;
        let back = to_there.get(remote.clone(), vec![0; MEBIBYTE]).await?;
        assert_eq!(back, vec![round; MEBIBYTE]);
    }

    let copied: u64 = [&here, &there]
        .map(|worker| worker.metrics().cma.bytes)
        .iter()
        .sum();
    println!("{copied} bytes went straight from memory to memory");
    assert_eq!(copied > 0, to_there.transports().contains(&"cma"));
    to_there.close().await?;
    here.shutdown(Duration::from_secs(5)).await?;
    there.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
