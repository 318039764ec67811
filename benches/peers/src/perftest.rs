//! UCX by its own program `ucx_perftest`, when it is installed and UCX is not built in.
//!
//! Comes in: a measurement. Goes out: one figure in its unit, read from the program's CSV. It starts its own two pinned processes.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::pair::output_within;
use crate::spec::{Spec, Verb};

/// The version of the `ucx_perftest` in `PATH`, by `ucx_info` beside it.
pub(crate) fn version() -> Option<String> {
    let known = Command::new("ucx_perftest").arg("-h").output().is_ok();
    known.then(|| {
        Command::new("ucx_info")
            .arg("-v")
            .output()
            .ok()
            .and_then(|out| parse_version(&String::from_utf8_lossy(&out.stdout)))
            .unwrap_or_else(|| "of unknown version".to_owned())
    })
}

/// Measures once.
pub(crate) fn run(spec: &Spec, cpus: [usize; 2], environment: &[(String, String)]) -> Outcome<f64> {
    // A first short run says how many iterations fill the time.
    let first = start_and_read(spec, cpus, environment, 200)?;
    let wanted = spec.duration().as_secs_f64() * first.per_second;
    let iterations = (wanted as u64).clamp(200, 20_000_000);
    let line = start_and_read(spec, cpus, environment, iterations)?;
    Ok(match spec.verb {
        Verb::Latency | Verb::AmLatency | Verb::BytesLatency => line.median_us * 1e3,
        Verb::Get | Verb::FetchAdd => line.average_us * 1e3,
        Verb::Rate => line.per_second / 1e6,
        _ => line.per_second * spec.size as f64 / 1e9,
    })
}

/// What is used of one line of figures.
#[derive(Debug, PartialEq)]
struct Line {
    median_us: f64,
    average_us: f64,
    per_second: f64,
}

fn start_and_read(
    spec: &Spec,
    cpus: [usize; 2],
    environment: &[(String, String)],
    iterations: u64,
) -> Outcome<Line> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let outstanding = match spec.verb {
        Verb::Get | Verb::FetchAdd => 1,
        _ => spec.window(),
    };
    let test = match spec.verb {
        Verb::Latency => "tag_lat",
        Verb::Rate | Verb::Stream | Verb::StreamOwned => "tag_bw",
        Verb::Bytes => "stream_bw",
        Verb::BytesLatency => "stream_lat",
        Verb::AmLatency => "ucp_am_lat",
        Verb::AmStream => "ucp_am_bw",
        Verb::Put => "ucp_put_bw",
        Verb::Get => "ucp_get",
        Verb::FetchAdd => "ucp_fadd",
        other => return Err(format!("ucx_perftest has no {other:?}").into()),
    };
    let start = |cpu: usize| {
        let mut command = Command::new("ucx_perftest");
        command
            .args(["-f", "-v", "-p", &port.to_string(), "-c", &cpu.to_string()])
            .envs(environment.iter().cloned())
            .stdin(Stdio::null());
        command
    };
    let mut server = Guard(
        start(cpus[1])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    // The client does not wait for its server; it is started again until the server listens.
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        let client = start(cpus[0])
            .args(["-t", test, "-s", &spec.size.to_string()])
            .args(["-n", &iterations.to_string()])
            .args(["-w", &(iterations / 10).max(10).to_string()])
            .args(["-O", &outstanding.to_string(), "127.0.0.1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let text = output_within(client, limit.saturating_duration_since(Instant::now()))?;
        if let Some(line) = parse_line(&text) {
            let _ = server.0.wait();
            return Ok(line);
        }
        if let Some(status) = server.0.try_wait()? {
            return Err(format!("ucx_perftest gave no figures and ended with {status}").into());
        }
        if Instant::now() >= limit {
            return Err("ucx_perftest gave no figures".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends the server on every path.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last line of figures, its columns found by the names in the header (they changed between versions).
fn parse_line(text: &str) -> Option<Line> {
    let mut lines = text.lines().filter(|line| line.contains(','));
    let header: Vec<&str> = lines
        .by_ref()
        .find(|line| line.contains("iterations"))?
        .split(',')
        .map(str::trim)
        .collect();
    let values: Vec<&str> = lines.next_back()?.split(',').map(str::trim).collect();
    let column = |wanted: &str| -> Option<f64> {
        let at = header.iter().position(|name| name.ends_with(wanted))?;
        values.get(at)?.parse().ok()
    };
    Some(Line {
        median_us: column("percentile_lat")?,
        average_us: column("avg_lat").or_else(|| column("average_lat"))?,
        per_second: column("overall_mr")?,
    })
}

fn parse_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("ersion"))?;
    line.split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_name() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    2000,97.331,117.153,117.153,8535.83,8535.83,8536,8537\n";
        let line = parse_line(text).unwrap();
        assert_eq!(line.median_us, 97.331);
        assert_eq!(line.average_us, 117.153);
        assert_eq!(line.per_second, 8537.0);
        assert_eq!(parse_line("connect failed, refused"), None);
        assert_eq!(parse_line(""), None);
    }

    #[test]
    fn version_is_found() {
        assert_eq!(
            parse_version("# Version 1.13.1\n").as_deref(),
            Some("1.13.1")
        );
        assert_eq!(parse_version("nothing"), None);
    }
}
