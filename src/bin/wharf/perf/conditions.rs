//! Where and when something was measured, and what else the machine did meanwhile.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// From how many processors' time of others on figures are doubtful.
const BUSY: f64 = 0.2;
/// The kernel counts in ticks of 10 ms: less than this says nothing.
const SHORTEST: Duration = Duration::from_millis(500);

/// What stands beside the figures.
#[derive(Debug)]
pub(super) struct Conditions {
    pub(super) host: String,
    /// When it began, in UTC.
    pub(super) date: String,
    /// The load of the last minute when it began.
    pub(super) load: f64,
    pub(super) processors: usize,
    /// How many processors others kept busy meanwhile, on the average. `None`: it was too short, or the kernel does not say.
    pub(super) others: Option<f64>,
}

/// From the beginning of a measurement to its end.
#[derive(Debug)]
pub(super) struct Meanwhile {
    conditions: Conditions,
    start: Instant,
    machine: Option<Duration>,
    own: Duration,
}

impl Meanwhile {
    pub(super) fn start() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let load = read("/proc/loadavg");
        Self {
            conditions: Conditions {
                host: read("/proc/sys/kernel/hostname").trim().to_owned(),
                date: date(now.map_or(0, |since| since.as_secs())),
                load: load
                    .split(' ')
                    .next()
                    .and_then(|load| load.parse().ok())
                    .unwrap_or(f64::NAN),
                processors: std::thread::available_parallelism().map_or(1, usize::from),
                others: None,
            },
            start: Instant::now(),
            machine: busy(),
            own: own(),
        }
    }

    /// To be called when all processes that were started for it have ended: only then it is known what they used.
    pub(super) fn end(self) -> Conditions {
        let took = self.start.elapsed();
        let own = own().saturating_sub(self.own);
        let machine = self.machine.zip(busy());
        Conditions {
            others: machine.and_then(|(before, after)| others(after - before, own, took)),
            ..self.conditions
        }
    }
}

impl Conditions {
    /// What makes the figures doubtful.
    pub(super) fn warning(&self) -> Option<String> {
        let others = self.others.filter(|others| *others >= BUSY)?;
        Some(format!(
            "the machine was busy: others had {others:.1} of {} processors meanwhile, and figures are worse for it",
            self.processors
        ))
    }

    /// In a line.
    pub(super) fn text(&self) -> String {
        let others = self.others.map_or_else(String::new, |others| {
            format!(", others had {others:.1} of {} processors", self.processors)
        });
        format!(
            "{}, {}, load {:.1} at the start{others}",
            self.host, self.date, self.load
        )
    }
}

/// How many processors others had, of the time that all had and that of our own.
fn others(machine: Duration, own: Duration, took: Duration) -> Option<f64> {
    (took >= SHORTEST).then(|| machine.saturating_sub(own).as_secs_f64() / took.as_secs_f64())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The time of all processors that somebody used, hypervisors and their other guests among them.
fn busy() -> Option<Duration> {
    let text = read("/proc/stat");
    let times = text.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = times
        .split_ascii_whitespace()
        .map_while(|time| time.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; what guests of this machine had is in the first two.
    let used = [0, 1, 2, 5, 6, 7].iter().filter_map(|at| times.get(*at));
    Some(Duration::from_millis(used.sum::<u64>() * 10))
}

/// The time of this process, and of those it started that have ended.
fn own() -> Duration {
    let times = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].map(|who| {
        getrusage(who).map_or(0, |usage| {
            (usage.user_time() + usage.system_time()).num_microseconds()
        })
    });
    Duration::from_micros(u64::try_from(times.iter().sum::<i64>()).unwrap_or(0))
}

/// The minute in UTC, of seconds since 1970.
fn date(seconds: u64) -> String {
    let (mut day, minute) = (seconds / 86_400, seconds / 60 % 1440);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!(
        "{year}-{month:02}-{:02} {:02}:{:02} UTC",
        day + 1,
        minute / 60,
        minute % 60
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (1_795_823_940, "2026-11-27 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn what_is_our_own_is_not_others() {
        let [second, two] = [1, 2].map(Duration::from_secs);
        assert_eq!(others(two, second, second), Some(1.0));
        assert_eq!(others(second, two, second), Some(0.0));
        assert_eq!(others(second, second, SHORTEST / 2), None);

        // That of a process that was started and has ended is our own.
        let before = own();
        let count = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let status = Command::new("sh").args(["-c", count]).status();
        assert!(status.expect("a process").success());
        assert!(own() - before > Duration::from_millis(20));
    }

    #[test]
    fn a_busy_machine_is_told() {
        let meanwhile = Meanwhile::start();
        let mut other = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a process");
        std::thread::sleep(Duration::from_millis(700));
        let conditions = meanwhile.end();
        let _ = other.kill();
        let _ = other.wait();
        let warning = conditions.warning().expect("a busy machine");
        assert!(warning.contains("busy"), "{warning}");
        assert!(conditions.text().contains("others had"), "{conditions:?}");
        let quiet = Conditions {
            others: Some(0.1),
            ..conditions
        };
        assert_eq!(quiet.warning(), None);
    }
}
