//! When a process began, which tells it from another one that got its id, and whether it has ended.

use std::{fs, io};

use nix::{errno::Errno, sys::signal, unistd::Pid};

/// Ticks of the kernel's clock from boot until the process with this id began (`/proc/PID/stat`, field 22).
/// Errors: `NotFound` when there is no such process or no `/proc`.
pub(crate) fn start_time(pid: u32) -> io::Result<u64> {
    field(&fs::read(format!("/proc/{pid}/stat"))?, BEGAN)
}

/// Whether there is no process with this id, or what there is does not run any more. `false` where that is not known.
pub(crate) fn has_ended(pid: u32) -> bool {
    let Ok(id @ 1..) = libc::pid_t::try_from(pid) else {
        return false;
    };
    // One that is waited for between the two has gone from both.
    is_exiting(pid) || signal::kill(Pid::from_raw(id), None) == Err(Errno::ESRCH)
}

/// Whether the kernel is taking the process apart (`PF_EXITING` in the flags of `/proc/PID/stat`, field 9), or has. It marks
/// it before it closes its files, so who saw them closed is told so.
pub(crate) fn is_exiting(pid: u32) -> bool {
    const PF_EXITING: u64 = 4;
    let stat = fs::read(format!("/proc/{pid}/stat"));
    stat.and_then(|stat| field(&stat, 9))
        .is_ok_and(|flags| flags & PF_EXITING != 0)
}

/// The same of this process; 0 when it cannot be read.
pub(crate) fn own_start_time() -> u64 {
    fs::read("/proc/self/stat")
        .and_then(|stat| field(&stat, BEGAN))
        .unwrap_or(0)
}

/// The field of `/proc/PID/stat` that says when it began.
const BEGAN: usize = 22;

/// A field of `/proc/PID/stat`, from the fourth on. The second is the program's name, in brackets, and may hold anything, blanks and brackets too.
fn field(stat: &[u8], number: usize) -> io::Result<u64> {
    let after = stat.iter().rposition(|byte| *byte == b')').map(|at| at + 1);
    after
        .and_then(|at| std::str::from_utf8(&stat[at..]).ok())
        .and_then(|rest| rest.split_ascii_whitespace().nth(number - 3))
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::{
        process::Command,
        time::{Duration, Instant},
    };

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
        assert_eq!(field(fields.as_bytes(), BEGAN).expect("parses"), 4711);
        for bad in [
            "",
            "1 (a",
            "1 (a) S 1 2",
            "1 (a) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 x",
        ] {
            assert!(field(bad.as_bytes(), BEGAN).is_err(), "{bad}");
        }
    }

    /// One that nobody has waited for counts as ended as well, and one that is of another user does not.
    #[test]
    fn ends_are_seen() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("spawn");
        let pid = child.id();
        assert!(!has_ended(pid));
        child.kill().expect("kill");
        let since = Instant::now();
        while !has_ended(pid) {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "the watchdog barked"
            );
        }
        child.wait().expect("wait");
        assert!(has_ended(pid));
        for runs in [1, std::process::id()] {
            assert!(!has_ended(runs), "{runs}");
        }
        for none in [0, u32::MAX] {
            assert!(!has_ended(none), "{none} is no id");
        }
    }
}
