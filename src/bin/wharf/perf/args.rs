//! The command line of `wharf perf`, and of a line of a batch file.

use std::path::PathBuf;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use wharf::Progress;

use super::Outcome;
use super::control::{MOST_TASKS, MOST_THREADS};
use super::memory::Memory;
use super::spec::{Sizes, TESTS, parse_progress};

/// What is asked of `wharf perf`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = tests())]
pub(crate) struct Args {
    /// Measure against a process on this host that is started for it
    #[arg(short, long, conflicts_with = "listen")]
    pub(super) local: bool,
    /// Be the other end, for clients that connect to HOST:PORT (port 0 for any); whoever reaches it can have it take memory and time
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["words", "batch", "all"])]
    pub(super) listen: Option<String>,
    /// Every test over every transport that there is
    #[arg(short, long)]
    pub(super) all: bool,
    /// Measure what each line of a file asks for: tests and options as here; the line's options go before those here. `#` begins a comment
    #[arg(short, long, value_name = "FILE")]
    pub(super) batch: Option<PathBuf>,
    /// text is a table for people; csv and json (an object a line) are for programs
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// Draw latency and bandwidth by size, a line for each transport, with the machine's floor, into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
    /// CPU of this end's threads, and of the other end's with --local
    #[arg(short, long, value_name = "CPU[,CPU]", value_delimiter = ',')]
    pub(super) cpus: Vec<usize>,
    /// Give up when nothing moves for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) timeout: u64,
    /// Ends with its parent
    #[arg(long, hide = true, requires = "listen")]
    pub(super) child: bool,
    #[command(flatten)]
    pub(super) run: Run,
}

/// What a line of a batch file may say.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Run {
    /// HOST:PORT of a `wharf perf --listen`, unless --local; then the tests
    #[arg(value_name = "HOST:PORT | TEST")]
    pub(super) words: Vec<String>,
    /// The transports to measure, each by itself; joined by `+` those that are allowed together. What the configuration in force takes, unless given
    #[arg(short = 'x', long, value_name = "NAME,…", value_delimiter = ',')]
    pub(super) transport: Vec<String>,
    /// Bytes of a message: 8, 8,4K, 8:1M (by powers of two) or 8:1M:8 (by powers of eight)
    #[arg(short, long)]
    pub(super) size: Option<Sizes>,
    /// Operations to measure, in place of a time
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) iterations: Option<u64>,
    /// How long to measure each point, in seconds (0.5; 0.05 with --all)
    #[arg(short, long, value_parser = seconds)]
    pub(super) duration: Option<f64>,
    /// Operations before that which do not count (a tenth, at most 10,000; by time a fifth of it, at most 50 ms)
    #[arg(short, long, value_name = "NUMBER")]
    pub(super) warm_up: Option<u64>,
    /// Operations in flight (32 for tag_bw, am_bw and put_bw, 1 for the others)
    #[arg(short = 'W', long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(super) window: Option<u64>,
    /// Threads, each with a worker and a connection of its own
    #[arg(short = 'T', long, value_parser = clap::value_parser!(u64).range(1..=MOST_THREADS as u64))]
    pub(super) threads: Option<u64>,
    /// Tasks on each connection
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=MOST_TASKS as u64))]
    pub(super) tasks: Option<u64>,
    /// Memory of this end and of the other: host, allocated (by the library), host-pinned, cuda[:N], cuda-managed, rocm[:N], rocm-managed, gaudi[:N]
    #[arg(short, long, value_name = "TYPE[,TYPE]", value_delimiter = ',')]
    pub(super) memory: Vec<Memory>,
    /// How both ends wait, as in WHARF_PROGRESS: adaptive (unless given), spin:TIME, busy, event, thread
    #[arg(short, long, value_parser = parse_progress)]
    pub(super) progress: Option<Progress>,
    /// Look at the content at both ends; the figures then hold that work
    #[arg(long)]
    pub(super) validate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    Text,
    Csv,
    Json,
}

/// A line of a batch file, for clap.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    run: Run,
}

impl Run {
    /// Parses a line of a batch file; `None`: there is nothing in it.
    pub(super) fn parse_line(line: &str) -> Outcome<Option<Self>> {
        use clap::Parser;
        let words: Vec<&str> = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        if words.is_empty() {
            return Ok(None);
        }
        match Line::try_parse_from(words) {
            Ok(line) => Ok(Some(line.run)),
            Err(error) => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                Err(first.trim_start_matches("error: ").to_owned().into())
            }
        }
    }

    /// This, and what it leaves open as `base` has it.
    pub(super) fn over(self, base: &Self) -> Self {
        let list = |mine: Vec<_>, theirs: &Vec<_>| {
            if mine.is_empty() {
                theirs.clone()
            } else {
                mine
            }
        };
        Self {
            words: list(self.words, &base.words),
            transport: list(self.transport, &base.transport),
            memory: if self.memory.is_empty() {
                base.memory.clone()
            } else {
                self.memory
            },
            size: self.size.or_else(|| base.size.clone()),
            // A time on the line goes before a number for all, and the other way round.
            iterations: self
                .iterations
                .or_else(|| base.iterations.filter(|_| self.duration.is_none())),
            duration: self.duration.or(base.duration),
            warm_up: self.warm_up.or(base.warm_up),
            window: self.window.or(base.window),
            threads: self.threads.or(base.threads),
            tasks: self.tasks.or(base.tasks),
            progress: self.progress.or(base.progress),
            validate: self.validate || base.validate,
        }
    }
}

impl Args {
    /// CPUs of the two ends, where they were asked for.
    pub(super) fn both_cpus(&self) -> Outcome<Option<[usize; 2]>> {
        match self.cpus[..] {
            [] => Ok(None),
            [one] => Ok(Some([one, one])),
            [one, other] => Ok(Some([one, other])),
            _ => Err("there are two ends, so one or two CPUs".into()),
        }
    }

    /// The CPU of this process's ends.
    pub(super) fn peer_cpu(&self) -> Outcome<Option<usize>> {
        Ok(self.both_cpus()?.map(|cpus| cpus[0]))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.001..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "a number of seconds from 0.001 to 86400".to_owned())
}

fn tests() -> String {
    let mut text = "Tests:\n".to_owned();
    for test in &TESTS {
        text.push_str(&format!("  {:13} {}\n", test.name, test.about));
    }
    text.push_str(
        "\nLatency is half a round trip where there is one; MB are 2^20 bytes. Average: of the middle one of the batches of some 20 us, or of ten parts where operations are long.\n\
         \nExamples:\n  wharf perf --local tag_lat -x shm,tcp -s 8:1M --plot tag.svg\n  wharf perf --local --all\n  wharf perf --listen 0.0.0.0:13337      # there\n  wharf perf HOST:13337 tag_bw -s 64K    # here",
    );
    text
}

/// Keeps the calling thread on a CPU.
pub(super) fn pin(cpu: Option<usize>) -> Outcome<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let failed = |error| format!("this thread cannot be put on CPU {cpu}: {error}");
    let mut set = CpuSet::new();
    set.set(cpu).map_err(failed)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set).map_err(failed)?)
}
