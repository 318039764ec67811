//! What is measured: the table of tests, and one point of a measurement.

use std::str::FromStr;
use std::time::Duration;

use wharf::Progress;

use super::Outcome;
use super::memory::Memory;

/// One row of the table of tests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// The name, that of `ucx_perftest` where it has the test.
    pub(super) name: &'static str,
    pub(super) verb: Verb,
    /// Half a round trip is reported.
    pub(super) is_ping_pong: bool,
    /// What the first figures are: `latency` of an operation, or its `overhead` where many are in flight.
    pub(super) figure: &'static str,
    /// Operations in flight, unless asked otherwise; the same as in `ucx_perftest`.
    pub(super) window: usize,
    pub(super) about: &'static str,
}

/// What the two ends do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Tag,
    TagSync,
    TagFlood,
    TagSyncFlood,
    Am,
    AmFlood,
    Put,
    PutFlood,
    Get,
    Stream,
    StreamFlood,
    Add,
    FetchAdd,
    Swap,
    CompareSwap,
    Signal,
    Parked,
    Idle,
    RegisterCold,
    RegisterCached,
}

const fn test(
    name: &'static str,
    verb: Verb,
    is_ping_pong: bool,
    window: usize,
    about: &'static str,
) -> Test {
    let figure = match verb {
        Verb::TagFlood
        | Verb::TagSyncFlood
        | Verb::AmFlood
        | Verb::PutFlood
        | Verb::StreamFlood
        | Verb::Add => "overhead",
        _ => "latency",
    };
    Test {
        name,
        verb,
        is_ping_pong,
        figure,
        window,
        about,
    }
}

/// All tests.
#[rustfmt::skip]
pub(super) const TESTS: [Test; 20] = [
    test("tag_lat", Verb::Tag, true, 1, "tagged message there and back"),
    test("tag_bw", Verb::TagFlood, false, 32, "tagged messages one way"),
    test("tag_sync_lat", Verb::TagSync, true, 1, "synchronous tagged message there and back"),
    test("tag_sync_bw", Verb::TagSyncFlood, false, 32, "synchronous tagged messages one way"),
    test("am_lat", Verb::Am, true, 1, "active message there and back"),
    test("am_bw", Verb::AmFlood, false, 32, "active messages one way"),
    test("put_lat", Verb::Put, true, 1, "puts there and back, seen by looking at memory"),
    test("put_bw", Verb::PutFlood, false, 32, "puts one way, flushed at the end"),
    test("get", Verb::Get, false, 1, "one-sided reads"),
    test("stream_lat", Verb::Stream, true, 1, "bytes there and back on a stream"),
    test("stream_bw", Verb::StreamFlood, false, 1, "bytes one way on a stream"),
    test("add", Verb::Add, false, 1, "atomic add, not fetching"),
    test("fadd", Verb::FetchAdd, false, 1, "atomic fetch-and-add"),
    test("swap", Verb::Swap, false, 1, "atomic swap"),
    test("cswap", Verb::CompareSwap, false, 1, "atomic compare-and-swap"),
    test("signal_lat", Verb::Signal, true, 1, "put with a signal to the task that waits for it, and back"),
    test("parked_lat", Verb::Parked, false, 1, "message to a task that has slept for 1.5 ms; both ends on one host"),
    test("idle", Verb::Idle, false, 1, "wake-ups a second of the peer's process while it waits for a message"),
    test("reg_cold", Verb::RegisterCold, false, 1, "pinning memory that the registration cache does not know"),
    test("reg_cached", Verb::RegisterCached, false, 1, "the same, found in the cache"),
];

impl Test {
    /// The test with this name; `ucp_`, as `ucx_perftest` has it before some, may be left in.
    pub(super) fn find(name: &str) -> Outcome<&'static Self> {
        let bare = match name.strip_prefix("ucp_").unwrap_or(name) {
            "add_lat" | "add_mr" => "add",
            bare => bare,
        };
        TESTS.iter().find(|test| test.name == bare).ok_or_else(|| {
            let near = TESTS
                .iter()
                .map(|test| (strsim::jaro(bare, test.name), test.name))
                .max_by(|one, other| one.0.total_cmp(&other.0))
                .filter(|(likeness, _)| *likeness > 0.7)
                .map_or_else(String::new, |(_, near)| {
                    format!("; did you mean \"{near}\"?")
                });
            let names: Vec<&str> = TESTS.iter().map(|test| test.name).collect();
            format!("no test \"{name}\"{near} (there are {})", names.join(", ")).into()
        })
    }

    /// Whether all of it happens at this end.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.verb, Verb::RegisterCold | Verb::RegisterCached)
    }

    /// Whether it moves bytes at a rate worth a figure.
    pub(super) fn has_bandwidth(&self) -> bool {
        !self.is_alone() && !matches!(self.verb, Verb::Idle | Verb::Parked)
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(
            self.verb,
            Verb::Add | Verb::FetchAdd | Verb::Swap | Verb::CompareSwap
        )
    }

    pub(super) fn is_one_sided(&self) -> bool {
        self.is_atomic()
            || matches!(
                self.verb,
                Verb::Put | Verb::PutFlood | Verb::Get | Verb::Signal
            )
    }

    /// Why it cannot be measured with this size.
    pub(super) fn refuses(&self, size: usize) -> Option<&'static str> {
        match self.verb {
            _ if self.is_atomic() && size != 4 && size != 8 => Some("a word has 4 or 8 bytes"),
            Verb::Put if size < 8 => Some("its last word of 8 bytes says which put it is"),
            Verb::Parked | Verb::Idle if size != 8 => Some("it has 8 bytes"),
            Verb::Tag
            | Verb::TagSync
            | Verb::TagFlood
            | Verb::TagSyncFlood
            | Verb::Am
            | Verb::AmFlood => None,
            _ if size == 0 => Some("it needs a byte at least"),
            _ => None,
        }
    }

    /// Whether a worker's connection to itself cannot show it.
    pub(super) fn needs_two(&self) -> bool {
        matches!(self.verb, Verb::Parked | Verb::Idle)
    }

    /// The size where none is asked for.
    pub(super) fn usual_size(&self) -> usize {
        if self.is_alone() { 1 << 20 } else { 8 }
    }

    /// Whether it can be done in device memory at the end that sends (0) or the one that is written to (1).
    pub(super) fn takes_device(&self, end: usize) -> bool {
        match self.verb {
            Verb::Tag
            | Verb::TagSync
            | Verb::TagFlood
            | Verb::TagSyncFlood
            | Verb::Am
            | Verb::AmFlood => true,
            Verb::PutFlood | Verb::Get => true,
            Verb::Signal => end == 0,
            _ => false,
        }
    }
}

/// One point of a measurement, as both ends know it.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) test: &'static Test,
    /// Bytes of a message.
    pub(super) size: usize,
    /// Operations to measure; by time when `None`.
    pub(super) iterations: Option<u64>,
    pub(super) time: Duration,
    /// Operations before that; by time when `None`.
    pub(super) warm_up: Option<u64>,
    /// Operations in flight.
    pub(super) window: usize,
    /// Tasks on each connection.
    pub(super) tasks: usize,
    /// Memory of this end and of the peer.
    pub(super) memory: [Memory; 2],
    pub(super) progress: Progress,
    pub(super) validate: bool,
    /// What the configuration in force takes when `None`.
    pub(super) transport: Option<String>,
}

impl Spec {
    pub(super) fn is_self(&self) -> bool {
        self.transport.as_deref() == Some("self")
    }

    /// For how long to measure before it counts.
    pub(super) fn warm_time(&self) -> Duration {
        (self.time / 5).clamp(Duration::from_millis(2), Duration::from_millis(50))
    }

    /// What a context is told; devices' transports come by themselves where their memory is asked for.
    pub(super) fn transports(&self) -> Option<String> {
        let mut names = self.transport.as_deref()?.replace('+', ",");
        for memory in &self.memory {
            if let Some(family) = memory.family() {
                names.push(',');
                names.push_str(family);
            }
        }
        Some(names)
    }

    /// What this test cannot do, on as many connections.
    pub(super) fn check(&self, connections: usize) -> Outcome<()> {
        let name = self.test.name;
        if let Some(why) = self.test.refuses(self.size) {
            return Err(
                format!("{name} cannot be measured with {} bytes: {why}", self.size).into(),
            );
        }
        for (end, memory) in self.memory.iter().enumerate() {
            if !memory.is_host() && !self.test.takes_device(end) {
                return Err(format!(
                    "{name} cannot be measured with {memory} memory at the {} end: it looks at the bytes",
                    ["sending", "receiving"][end]
                )
                .into());
            }
        }
        if self.test.verb == Verb::Parked && self.progress == Progress::Busy {
            return Err(format!(
                "{name} measures a peer that sleeps, and with --progress polling it never does"
            )
            .into());
        }
        if self.is_self() && self.test.needs_two() {
            return Err(format!("{name} needs two processes, and self has one").into());
        }
        let operations = self
            .window
            .saturating_mul(self.tasks)
            .saturating_mul(connections);
        let total = self
            .size
            .saturating_add(OPERATION)
            .saturating_mul(operations);
        if self.test.needs_two() && self.tasks > 1 {
            return Err(format!("{name} has one task").into());
        }
        if total > MOST_BYTES {
            return Err(format!(
                "{} bytes in {operations} operations at once are more than {MOST_BYTES} bytes",
                self.size,
            )
            .into());
        }
        // What is sent, what it is compared with, and both again on their way.
        if total > LITTLE && total.saturating_mul(4) > available() {
            return Err(format!("this host has no memory for {total} bytes at once").into());
        }
        Ok(())
    }
}

/// Bytes that one under way takes besides its message, about.
const OPERATION: usize = 512;
/// Bytes that any host has.
const LITTLE: usize = 256 << 20;

/// Bytes of memory that can be had without swapping; a great many where the system does not say.
fn available() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok())
        .map_or(usize::MAX, |kib| kib.saturating_mul(1024))
}

/// Bytes in flight.
const MOST_BYTES: usize = 64 << 30;

/// How an end waits, as it is written everywhere ([`Progress`]); a spin of ten seconds at the most.
pub(super) fn parse_progress(text: &str) -> Result<Progress, String> {
    match text.parse() {
        Ok(Progress::Spin(window)) if window > Duration::from_secs(10) => {
            Err("a window of 10 s at the most".to_owned())
        }
        Ok(progress) => Ok(progress),
        Err(error) => Err(error.to_string()),
    }
}

/// Sizes: one (`8`), several (`8,4K`), or a range by powers of two (`8:1M`) or of another factor (`8:1M:8`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes(pub(super) Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            let words: Vec<&str> = part.split(':').collect();
            match words[..] {
                [one] => sizes.push(bytes(one)?),
                [low, high] => range(bytes(low)?, bytes(high)?, 2, &mut sizes)?,
                [low, high, factor] => {
                    let factor = factor.parse().ok().filter(|factor| *factor >= 2);
                    let factor = factor.ok_or_else(|| {
                        format!("\"{part}\": the factor is a number of 2 and more")
                    })?;
                    range(bytes(low)?, bytes(high)?, factor, &mut sizes)?;
                }
                _ => {
                    return Err(format!(
                        "\"{part}\" is no size and no range LOW:HIGH[:FACTOR]"
                    ));
                }
            }
        }
        Ok(Self(sizes))
    }
}

fn range(low: usize, high: usize, factor: usize, sizes: &mut Vec<usize>) -> Result<(), String> {
    if low > high {
        return Err(format!(
            "the range from {low} to {high} bytes goes backwards"
        ));
    }
    let mut size = low;
    while size <= high {
        sizes.push(size);
        size = size.saturating_mul(factor).max(1);
    }
    Ok(())
}

/// A number of bytes, with `K`, `M` or `G` for powers of 1024.
fn bytes(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1 << 10),
        Some('m' | 'M') => (&text[..text.len() - 1], 1 << 20),
        Some('g' | 'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1_usize),
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|size| *size <= MOST_BYTES)
        .ok_or_else(|| format!("\"{text}\" is no number of bytes up to 64G, such as 8, 4K or 1M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!("8".parse(), Ok(Sizes(vec![8])));
        assert_eq!("8:64,1K".parse(), Ok(Sizes(vec![8, 16, 32, 64, 1024])));
        assert_eq!("1:600:8".parse(), Ok(Sizes(vec![1, 8, 64, 512])));
        assert_eq!("0:4".parse(), Ok(Sizes(vec![0, 1, 2, 4])));
        for bad in [
            "",
            "x",
            "8:",
            "64:8",
            "8:64:1",
            "8:64:2:2",
            "99999999G",
            "-1",
            "1.5K",
        ] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn waits_have_one_name() {
        for name in ["adaptive", "busy", "event", "thread", "spin:50us"] {
            let parsed = parse_progress(name).map(|progress| progress.to_string());
            assert_eq!(parsed.as_deref(), Ok(name));
        }
        for wrong in ["spin:", "fast", "polling", "spin:11s"] {
            assert!(parse_progress(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_found() {
        assert_eq!(Test::find("ucp_am_lat").unwrap().name, "am_lat");
        let error = Test::find("tag_lot").unwrap_err().to_string();
        assert!(error.contains("did you mean \"tag_lat\"?"), "{error}");
    }
}
