//! What the kernel says about a process: how often it slept, how much memory it holds.

use std::fs;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::Outcome;

/// How often the threads of a process gave up their CPU to wait, all together.
pub(crate) fn voluntary_switches(pid: u32) -> Outcome<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended since the folder was read.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else {
            continue;
        };
        total += field(&status, "voluntary_ctxt_switches:")?;
    }
    Ok(total)
}

/// Resident memory of this process in KiB; shared pages count in full.
pub(crate) fn resident_kib() -> Outcome<u64> {
    field(&fs::read_to_string("/proc/self/smaps_rollup")?, "Rss:")
}

/// Processor time of the whole machine, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    busy: f64,
    stolen: f64,
    ours: f64,
    at: Instant,
}

impl Load {
    pub(crate) fn now() -> Outcome<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let ticks: Vec<f64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let tick = |at: usize| ticks.get(at).copied().unwrap_or(0.0) / TICKS_A_SECOND;
        let used = |who| -> Outcome<f64> {
            let usage = getrusage(who)?;
            let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
            Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
        };
        Ok(Self {
            // user, nice, system, irq, softirq; idle and iowait are 3 and 4.
            busy: tick(0) + tick(1) + tick(2) + tick(5) + tick(6),
            stolen: tick(7),
            ours: used(UsageWho::RUSAGE_SELF)? + used(UsageWho::RUSAGE_CHILDREN)?,
            at: Instant::now(),
        })
    }

    /// What everybody else used since `self`, and what the host took away: in CPUs, not per cent.
    pub(crate) fn disturbance(self) -> Outcome<(f64, f64)> {
        let now = Self::now()?;
        let seconds = (now.at - self.at).as_secs_f64();
        let others = (now.busy - self.busy) - (now.ours - self.ours);
        Ok((
            (others / seconds).max(0.0),
            (now.stolen - self.stolen) / seconds,
        ))
    }
}

/// `USER_HZ`, which is the same on every Linux that Rust runs on.
const TICKS_A_SECOND: f64 = 100.0;

fn field(text: &str, name: &str) -> Outcome<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or_else(|| format!("no {name} in what the kernel says"))?
        .parse()
        .map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers() {
        assert!(voluntary_switches(std::process::id()).is_ok());
        assert!(resident_kib().unwrap() > 100);
        assert!(field("nothing", "Rss:").is_err());
    }
}
