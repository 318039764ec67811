//! When a process began: what tells it from another one that got its id.

use std::{fs, io};

/// Ticks of the kernel's clock from boot until the process with this id began (`/proc/PID/stat`, field 22).
///
/// # Errors
/// `NotFound` when there is no such process or no `/proc`.
pub(crate) fn start_time(pid: u32) -> io::Result<u64> {
    parse(&fs::read(format!("/proc/{pid}/stat"))?)
}

/// The same of this process; 0 when it cannot be read.
pub(crate) fn own_start_time() -> u64 {
    fs::read("/proc/self/stat")
        .and_then(|stat| parse(&stat))
        .unwrap_or(0)
}

/// The second field is the program's name, in brackets, and may hold anything, blanks and brackets too.
fn parse(stat: &[u8]) -> io::Result<u64> {
    let after = stat.iter().rposition(|byte| *byte == b')').map(|at| at + 1);
    after
        .and_then(|at| std::str::from_utf8(&stat[at..]).ok())
        .and_then(|rest| rest.split_ascii_whitespace().nth(19))
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_begun_once() {
        let began = start_time(std::process::id()).expect("this process");
        assert!(began > 0);
        assert_eq!(began, own_start_time());
        assert!(start_time(u32::MAX).is_err());
    }

    #[test]
    fn names_do_not_confuse() {
        let fields = "1 (a) b) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 4711 0 0";
        assert_eq!(parse(fields.as_bytes()).expect("parses"), 4711);
        for bad in [
            "",
            "1 (a",
            "1 (a) S 1 2",
            "1 (a) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 x",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
