//! The program `wharf`: `info` tells what this process can reach and why, `perf` how fast it is. It uses the crate's public API alone.
//! Tests: `tests/tools`.

mod info;
mod perf;

use std::error::Error as StdError;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// What ends a command: an error of wharf, of the system, or a sentence.
pub(crate) type Failure = Box<dyn StdError + Send + Sync>;

/// Communication between the memories of a program, of two processes and of two hosts: what is here, and how fast it is.
#[derive(Debug, Parser)]
#[command(name = "wharf", version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What this process can reach, why the rest is not there, and how it was configured.
    Info(info::Args),
    /// How fast it is.
    Perf(Box<perf::Args>),
}

/// Exits with 1 where the command failed, with 2 where it was not understood.
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log();
    let done = match arguments.command {
        Command::Info(args) => info::run(args),
        Command::Perf(args) => perf::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// What the library has to tell goes to the standard error: warnings, or what `RUST_LOG` says.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}

/// A runtime of one thread, as a worker needs it.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// An error and what it came from, each said once.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}

/// The reader of the output has gone, as `head` does: no fault of anyone.
fn is_closed_pipe(error: &(dyn StdError + 'static)) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
