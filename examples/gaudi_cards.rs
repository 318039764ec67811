//! The Gaudi cards of this machine: what they are, the mapping table, their memory, and how bytes go between each two and the host.
//!
//! `cargo run --release --example gaudi_cards`. Looking takes no card from anybody. Then it opens the cards that it can have, copies 8 MiB from each to each through all of them, and
//! checks the bytes: what the driver allows between cards is known after that. A card that another process has is named and left alone. Where there is no card it takes an
//! emulated library, and says so.
//!
//! `GAUDI_MAPPING_TABLE` orders the cards; the table that is printed is one that does what is done without.

use std::process::ExitCode;

use wharf::{Context, MemoryType, Worker, transport::gaudi::GaudiCopy};

#[allow(dead_code, reason = "the other examples use all of it")]
#[path = "common/accelerator.rs"]
mod accelerator;

use accelerator::{Outcome, Vendor, compare, digest, find, say};

/// Bytes of a copy: enough for the driver to be asked whether cards reach each other.
const LENGTH: usize = 8 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gaudi_cards: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn run() -> Outcome<()> {
    // Before there is a runtime, as the program may start anew in it.
    let found = find(Vendor::Gaudi)?;
    found.introduce();
    let gaudi = GaudiCopy::new();
    let cards = gaudi.cards()?;
    let mut rows = Vec::new();
    for card in &cards {
        let state = match card.is_operational() {
            true => "in operation",
            false => "not in operation",
        };
        let gib = card.memory() as f64 / f64::from(1 << 30);
        say(format_args!(
            "{}: {} {:?} at {}, module {}, node {}, {gib:.1} GiB, {state}",
            card.memory_type(),
            card.generation(),
            card.name(),
            card.pci(),
            card.module_id(),
            card.node(),
        ));
        let (index, module, place) = (card.number(), card.module_id(), card.pci());
        rows.push(format!(
            r#"{{"index":{index},"module_id":{module},"bus_id":"{place}"}}"#
        ));
    }
    say(format_args!("GAUDI_MAPPING_TABLE='[{}]'", rows.join(",")));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(copies(&gaudi))
}

/// Through all cards that can be had, each to each.
async fn copies(gaudi: &GaudiCopy) -> Outcome<()> {
    let context = Context::builder()
        .transports("self")?
        .accelerator(std::sync::Arc::new(gaudi.clone()))
        .build()?;
    let worker = Worker::new(&context)?;
    let content: Vec<u8> = (0..LENGTH).map(|at| (at * 7 + at / 4093) as u8).collect();
    let mut had = Vec::new();
    for card in gaudi.cards()? {
        let memory_type = card.memory_type();
        match context.allocate_on(memory_type, LENGTH).await {
            // Held, so that the card stays open.
            Ok(memory) => had.push((memory_type, memory)),
            Err(error) => say(format_args!("{memory_type} is left alone: {error}")),
        }
    }
    let sent = digest(&content);
    for (from, _) in &had {
        for (to, _) in &had {
            let here = context.allocate_on(*from, LENGTH).await?;
            let there = context.allocate_on(*to, LENGTH).await?;
            let here = worker.copy(content.clone(), here).await?;
            let there = worker.copy(here.freeze(), there).await?;
            let back = worker.copy(there.freeze(), vec![0; LENGTH]).await?;
            compare(&format!("{from} to {to}"), &sent, &digest(&back))?;
        }
    }
    let host = [MemoryType::Host].into_iter();
    let all: Vec<MemoryType> = host.chain(had.iter().map(|(card, _)| *card)).collect();
    for from in &all {
        for to in all
            .iter()
            .filter(|to| *to != from || **to != MemoryType::Host)
        {
            say(format_args!("{from} to {to}: {}", gaudi.path(*from, *to)?));
        }
    }
    Ok(worker.shutdown(std::time::Duration::from_secs(5)).await?)
}
