//! What the kernel says about a process: how often it slept, how much memory it holds.

use std::fs;

use crate::Outcome;

/// How often the threads of a process gave up their CPU to wait, all together.
pub(crate) fn voluntary_switches(pid: u32) -> Outcome<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        total += field(&status, "voluntary_ctxt_switches:")?;
    }
    Ok(total)
}

/// Resident memory of this process in KiB; shared pages count in full.
pub(crate) fn resident_kib() -> Outcome<u64> {
    field(&fs::read_to_string("/proc/self/smaps_rollup")?, "Rss:")
}

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
