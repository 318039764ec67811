//! `wharf info`: what this process can reach, why the rest is not there, and how it was configured.
//!
//! What is found becomes JSON first, under keys that stay; the text for people is made from that, so both say the same.
//!
//! | file | holds |
//! |---|---|
//! | `build` | this program and the system that it runs on |
//! | `devices` | transports with their devices, and where they are |
//! | `memory` | domains, monitors, caches |
//! | `configuration` | variables, with their documentation |
//! | `protocols` | how operations go between two memories |
//! | `text` | JSON as lines for people |

mod build;
mod configuration;
mod devices;
mod memory;
mod protocols;
mod text;

use std::io::{self, Write};

use serde_json::{Map, Value};
use wharf::Context;

use crate::Failure;

/// What is asked of `wharf info`. Without a choice of sections, all of them.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    question: Option<Question>,

    /// Version, build and system: limits and permissions that transports depend on.
    #[arg(short, long)]
    build: bool,

    /// Transports and their devices, and why others are not there.
    #[arg(short, long)]
    devices: bool,

    /// Memory: domains, monitors of memory that goes away, caches.
    #[arg(short, long)]
    memory: bool,

    /// Every variable: its documentation, its value, and where that came from. In the whole report only what was set is shown as text.
    #[arg(short, long)]
    config: bool,

    /// NUMA nodes.
    #[arg(short, long)]
    topology: bool,

    /// Print JSON, for programs: the same content under keys that stay.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Question {
    /// How operations go between two memories, by size.
    Protocols(protocols::Args),
}

impl Args {
    fn is_all(&self) -> bool {
        !(self.build || self.devices || self.memory || self.config || self.topology)
    }
}

/// Prints it.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if let Some(Question::Protocols(question)) = &args.question {
        let table = protocols::table(question)?;
        return match args.json {
            true => print_json(&table),
            false => print(&text::protocols(&table)),
        };
    }
    let all = args.is_all();
    let mut report = Map::new();
    let mut put = |name: &str, value: Value| report.insert(name.to_owned(), value);
    if all || args.build {
        put("build", build::build());
        put("system", build::system());
    }
    if all || args.devices || args.memory || args.config || args.topology {
        let context = Context::builder().build()?;
        if all || args.devices || args.topology || args.memory {
            let found = context.report();
            if all || args.devices {
                put("transports", devices::transports(&found));
            }
            if all || args.memory {
                put("memory_domains", memory::domains(&context));
                put("memory_monitors", memory::monitors(&context)?);
                put("caches", memory::caches(&context, &found));
            }
            if all || args.topology {
                put("topology", devices::topology(&found));
            }
        }
        if all || args.config {
            put("configuration", configuration::variables(&context));
            put("unknown_variables", configuration::unknown(&context));
        }
    }
    let report = Value::Object(report);
    match args.json {
        true => print_json(&report),
        false => print(&text::report(&report, args.config)),
    }
}

fn print_json(value: &Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
