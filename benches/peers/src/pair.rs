//! Two pinned processes of this program, and the watchdog over them.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::spec::Spec;
use crate::{Outcome, rdma_core};

/// Runs both halves of a measurement, by a build of this program, and gives what `A` printed.
pub(crate) fn run(
    program: &Path,
    spec: &Spec,
    cpus: [usize; 2],
    environment: &[(String, String)],
) -> Outcome<f64> {
    let (a_end, b_end) = UnixStream::pair()?;
    let devices = match spec.transport.as_str() {
        rdma_core::TRANSPORT => Some(rdma_core::devices().ok_or("no two RDMA devices")?),
        _ => None,
    };
    let spawn = |role: &str, cpu: usize, end: UnixStream, output: Stdio| {
        let device = devices
            .as_ref()
            .map(|[a, b]| if role == "a" { a } else { b });
        Command::new(program)
            .envs(device.map(|name| ("WHARF_NET_DEVICES", format!("{name}:1"))))
            .args(["--half", role, &cpu.to_string(), &spec.to_string()])
            // UCX's hooks into mmap serve registration caches, which none of these transports has. They cost half a second at the
            // start of every process that has UCX built in, whoever is measured there.
            .env("UCX_MEM_EVENTS", "n")
            // wharf would take that for its own, and register memory anew for each message.
            .env("WHARF_MEM_MONITOR", "auto")
            .envs(environment.iter().cloned())
            .stdin(OwnedFd::from(end))
            .stdout(output)
            .stderr(Stdio::piped())
            .spawn()
    };
    let mut b = Owned(spawn("b", cpus[1], b_end, Stdio::null())?);
    let a = spawn("a", cpus[0], a_end, Stdio::piped())?;
    // Long enough for the slowest machine, short enough that one stuck peer does not take the whole run.
    let limit = Duration::from_millis(spec.millis * 5) + Duration::from_secs(15);
    let answer = watch(
        a,
        limit,
        &mut || matches!(b.0.try_wait(), Ok(Some(status)) if !status.success()),
    );
    let complaint = b.complaint();
    match answer {
        Ok(text) => match text.trim().parse::<f64>() {
            Ok(value) => Ok(value),
            Err(_) if complaint.is_empty() => Err("no figure".into()),
            Err(_) => Err(complaint.into()),
        },
        Err(failure) if complaint.is_empty() => Err(failure),
        Err(failure) => Err(format!("{failure}; the other half: {complaint}").into()),
    }
}

/// To be called first in a half: one CPU, an end with the coordinator, all descriptors that are allowed.
pub(crate) fn settle(cpu: usize) -> Outcome<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    pin(cpu)?;
    raise_limits()
}

/// The calling thread, and those that it starts from now on, stay on one CPU.
pub(crate) fn pin(cpu: usize) -> Outcome<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}

/// All descriptors that are allowed.
pub(crate) fn raise_limits() -> Outcome<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(())
}

/// Standard output of a child, which is killed when the time is over. The caller sleeps meanwhile.
pub(crate) fn output_within(child: Child, limit: Duration) -> Outcome<String> {
    watch(child, limit, &mut || false)
}

/// The same, given up as well when `lost` says so, which is asked a few times a second.
fn watch(child: Child, limit: Duration, lost: &mut dyn FnMut() -> bool) -> Outcome<String> {
    let mut child = Owned(child);
    let end = Instant::now() + limit;
    let mut out = child.0.stdout.take().ok_or("no output to read")?;
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let ready = poll(
            &mut [PollFd::new(out.as_fd(), PollFlags::POLLIN)],
            PollTimeout::from(250_u16),
        )?;
        if ready == 0 {
            if lost() {
                return Err("one half failed".into());
            }
            if Instant::now() >= end {
                return Err(format!("stuck: no end after {} s", limit.as_secs()).into());
            }
            continue;
        }
        match out.read(&mut chunk)? {
            0 => break,
            n => text.extend_from_slice(&chunk[..n]),
        }
    }
    let status = child.0.wait()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if text.trim().is_empty() && !status.success() {
        let complaint = child.complaint();
        if !complaint.is_empty() {
            return Err(complaint.into());
        }
    }
    Ok(text)
}

/// A child that does not outlive us.
struct Owned(Child);

impl Owned {
    /// Kills it and gives the last line that it wrote to its standard error.
    fn complaint(&mut self) -> String {
        // A moment to end by itself: `B` ends a little after `A`.
        for _ in 0..100 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.0.kill();
        let mut text = String::new();
        if let Some(mut stream) = self.0.stderr.take() {
            let _ = stream.read_to_string(&mut text);
        }
        let _ = self.0.wait();
        text.lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .map_or_else(String::new, str::to_owned)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
