//! Measures wharf beside its peers and the machine's floor, in one run, by two pinned processes.
//!
//! ```text
//! coordinator (this)  --half a-->  A on one CPU  <- what is measured ->  B on another CPU  <--half b--
//! ```
//!
//! Each measurement has two fresh processes; rounds go over all contestants of a case in turn; medians over the rounds are reported.
//! `benches/README.md` says what each row means.

mod cases;
#[path = "../../../tests/tls/certificates.rs"]
mod certificates;
mod floor;
mod growth;
mod half;
mod iox;
mod line;
mod pair;
mod perftest;
mod process;
mod rdma_core;
mod report;
mod run;
mod shared;
mod sockets;
mod spec;
mod stats;
#[cfg(feature = "ucx")]
mod ucx;
mod wharf_side;

use std::io::IsTerminal;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::half::{Half, Role};
use crate::spec::Spec;

/// Whatever went wrong, for a person to read.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Outcome<T> = Result<T, Failure>;

const USAGE: &str = "wharf-peers [--quick] [--json] [--case SUBSTRING] [--rounds N] [--millis N] [--cpus A,B]
            [--line LEAST,MOST] [--before PROGRAM] [--list]
wharf-peers --growth [--quick] [--case SUBSTRING] [--rounds N] [--millis N] [--figures FOLDER] [--list]

  --quick          three short rounds at most, within 60 s
  --json           one object a line instead of the table
  --case SUBSTRING only the cases whose name contains it; a name is like shm/tag_latency/hot/8
  --rounds N       how often everything is measured (7; 3 with --quick)
  --millis N       how long each measurement lasts (300; 60 with --quick)
  --cpus A,B       where the two processes run (0,1)
  --line LEAST,MOST
                   only what is measured while a cache line takes so many nanoseconds from one CPU to the other counts
  --before PROGRAM another build of this program: its wharf is measured in turn with this one's
  --list           the names of the cases
  --growth         what a message costs with more and more connections, receives, operations, tasks and threads beside it, in time and,
                   where valgrind is and without --quick, in instructions
  --figures FOLDER an SVG file for each growth";

/// How the run goes.
pub(crate) struct Options {
    json: bool,
    list: bool,
    quick: bool,
    growth: bool,
    figures: Option<PathBuf>,
    case: String,
    rounds: usize,
    millis: u64,
    idle_millis: u64,
    limit: Option<Duration>,
    cpus: [usize; 2],
    line: Option<RangeInclusive<f64>>,
    before: Option<PathBuf>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut options = Self {
            json: false,
            list: false,
            quick: false,
            growth: false,
            figures: None,
            case: String::new(),
            rounds: 7,
            millis: 300,
            idle_millis: 10_000,
            limit: None,
            cpus: [0, 1],
            line: None,
            before: None,
        };
        let (mut rounds, mut millis) = (None, None);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
            match word.as_str() {
                "--quick" => {
                    options.quick = true;
                    options.rounds = 3;
                    options.millis = 60;
                    options.idle_millis = 2_000;
                    options.limit = Some(run::QUICK_LIMIT);
                }
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--growth" => options.growth = true,
                "--figures" => options.figures = Some(value()?.into()),
                "--case" => options.case = value()?,
                "--rounds" => rounds = Some(value()?.parse()?),
                "--millis" => millis = Some(value()?.parse()?),
                "--cpus" => {
                    let text = value()?;
                    let (a, b) = text.split_once(',').ok_or("--cpus wants two numbers")?;
                    options.cpus = [a.parse()?, b.parse()?];
                }
                "--line" => {
                    let text = value()?;
                    let (least, most) = text.split_once(',').ok_or("--line wants two numbers")?;
                    options.line = Some(least.parse()?..=most.parse()?);
                }
                "--before" => options.before = Some(value()?.into()),
                _ => return Err(format!("what is `{word}`?\n\n{USAGE}").into()),
            }
        }
        options.rounds = rounds.unwrap_or(options.rounds);
        options.millis = millis.unwrap_or(options.millis);
        Ok(options)
    }

    /// Where the run is, on a terminal alone.
    pub(crate) fn progress(&self, round: usize, done: usize, elapsed: Duration) {
        if std::io::stderr().is_terminal() {
            eprint!(
                "\rround {} of {}, {done} measurements, {:.0} s ",
                round + 1,
                self.rounds,
                elapsed.as_secs_f64()
            );
        }
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    let result = match words.peek().map(String::as_str) {
        Some("--half") => one_half(words.skip(1)),
        Some("--growth-one") => growth::one(words.skip(1)),
        _ => coordinate(words),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn coordinate(words: impl Iterator<Item = String>) -> Outcome<()> {
    let options = Options::parse(words)?;
    if options.growth {
        return growth::run(&options);
    }
    let full_name = |case: &cases::Case| {
        format!(
            "{}/{}/{}/{}",
            case.transport, case.name, case.mode, case.size
        )
    };
    let chosen: Vec<&cases::Case> = cases::CASES
        .iter()
        .filter(|case| full_name(case).contains(&options.case))
        .collect();
    if chosen.is_empty() {
        return Err(format!("no case has `{}` in its name; see --list", options.case).into());
    }
    let chosen: Vec<&cases::Case> = match rdma_core::devices() {
        Some(_) => chosen,
        None => {
            eprintln!("no two RDMA devices here: their cases are left out");
            let is_rdma = |case: &&cases::Case| case.transport == rdma_core::TRANSPORT;
            chosen
                .into_iter()
                .filter(|case| options.list || !is_rdma(case))
                .collect()
        }
    };
    if options.list {
        for case in chosen {
            println!("{}", full_name(case));
        }
        return Ok(());
    }
    let rows = run::all(&options, &chosen);
    if options.json {
        for row in &rows {
            println!("{}", row.json());
        }
    } else {
        print!("{}", report::table(&rows));
    }
    Ok(())
}

fn one_half(mut words: impl Iterator<Item = String>) -> Outcome<()> {
    let mut word = || {
        words
            .next()
            .ok_or("--half wants a role, a CPU and a measurement")
    };
    let role = match word()?.as_str() {
        "a" => Role::A,
        "b" => Role::B,
        other => return Err(format!("no role `{other}`").into()),
    };
    pair::settle(word()?.parse()?)?;
    let spec: Spec = word()?.parse()?;
    let mut half = Half::new(role, spec)?;
    let value = match half.spec.family.as_str() {
        "wharf" => wharf_side::run(&mut half),
        "floor" => floor::run(&mut half),
        "raw" => sockets::raw(&mut half),
        "tokio" => sockets::tokio(&mut half),
        "iceoryx2" => iox::run(&mut half),
        #[cfg(feature = "ucx")]
        "ucx" => ucx::run(&mut half),
        other => Err(format!("nobody here is called `{other}`").into()),
    }?;
    if role == Role::A {
        println!("{value}");
    }
    Ok(())
}

/// A runtime on the calling thread, which is pinned.
pub(crate) fn runtime() -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// The UCX that the feature `ucx` builds in.
pub(crate) fn ucx_version() -> &'static str {
    "1.22.0"
}
