//! rdma-core's `perftest` (`ib_send_lat` and its siblings), between the two RDMA devices of this machine.
//!
//! Comes in: a measurement; the variant says how it waits: `poll`, or `event` (`-e`, by the completion channel). Goes out: one figure in its unit, read
//! from the program's table. It is two processes on two devices, like wharf's.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::pair::output_within;
use crate::spec::{Spec, Verb};

/// The name of wharf's transport.
pub(crate) const TRANSPORT: &str = "rc_verbs";

/// The two devices, the first process's first; nothing where there are fewer.
pub(crate) fn devices() -> Option<[String; 2]> {
    let entries = std::fs::read_dir("/sys/class/infiniband").ok()?;
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut names = names.into_iter();
    Some([names.next()?, names.next()?])
}

/// Which of its programs measures this.
pub(crate) fn program(verb: Verb) -> &'static str {
    match verb {
        Verb::PutLatency => "ib_write_lat",
        Verb::Put => "ib_write_bw",
        Verb::Get => "ib_read_lat",
        Verb::FetchAdd => "ib_atomic_lat",
        Verb::Rate | Verb::Stream | Verb::StreamOwned | Verb::AmStream => "ib_send_bw",
        _ => "ib_send_lat",
    }
}

/// Measures once.
pub(crate) fn run(spec: &Spec, cpus: [usize; 2]) -> Outcome<f64> {
    let devices = devices().ok_or("no two RDMA devices")?;
    // A first short run says how many iterations fill the time.
    let line = start_and_read(spec, cpus, &devices, 200)?;
    let wanted = spec.duration().as_secs_f64() / line.seconds(spec);
    let iterations = (wanted as u64).clamp(200, 1_000_000);
    Ok(start_and_read(spec, cpus, &devices, iterations)?.figure(spec))
}

/// What is used of one line of figures.
#[derive(Debug, PartialEq)]
enum Line {
    /// The median of half a ping-pong, or of a whole read or atomic.
    Micros(f64),
    /// The mean over all iterations, in MiB a second.
    Mebibytes(f64),
}

impl Line {
    /// The last line of the table. In the header some names hold blanks, so the order of columns is taken as known.
    fn parse(text: &str) -> Option<Self> {
        let header = text.lines().find(|line| line.contains("#bytes"))?;
        let (_, rest) = text.split_once(header)?;
        let numbers = |line: &str| {
            let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
            numbers.ok().filter(|numbers: &Vec<f64>| numbers.len() >= 5)
        };
        let values = rest.lines().rev().find_map(numbers)?;
        if header.contains("t_typical") {
            Some(Self::Micros(values[4]))
        } else {
            Some(Self::Mebibytes(values[3]))
        }
    }

    /// What one operation took, nearly.
    fn seconds(&self, spec: &Spec) -> f64 {
        match self {
            Self::Micros(micros) => 2e-6 * micros,
            Self::Mebibytes(rate) => spec.size as f64 / (rate * MEBIBYTE).max(1.0),
        }
    }

    fn figure(&self, spec: &Spec) -> f64 {
        match self {
            Self::Micros(micros) => micros * 1e3,
            // Millions a second.
            Self::Mebibytes(rate) if spec.verb == Verb::Rate => {
                rate * MEBIBYTE / spec.size as f64 / 1e6
            }
            Self::Mebibytes(rate) => rate * MEBIBYTE / 1e9,
        }
    }
}

const MEBIBYTE: f64 = 1_048_576.0;

fn start_and_read(
    spec: &Spec,
    cpus: [usize; 2],
    devices: &[String; 2],
    iterations: u64,
) -> Outcome<Line> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let start = |end: usize| {
        let mut command = Command::new("taskset");
        command
            .args(["-c", &cpus[end].to_string(), program(spec.verb)])
            // `-F`: a processor whose speed changes is not refused. Index 1 is the IPv4 address over RoCE v2.
            .args(["-F", "-d", &devices[end], "-x", "1"])
            .args(["-p", &port.to_string(), "-s", &spec.size.to_string()])
            .args(["-n", &iterations.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        if spec.variant == "event" {
            command.arg("-e");
        }
        command
    };
    let mut server = Guard(start(1).stdout(Stdio::null()).spawn()?);
    let limit = Instant::now() + Duration::from_secs(60);
    // The client does not wait for its server; it is started again until the server listens.
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let client = start(0).arg("127.0.0.1").stdout(Stdio::piped()).spawn()?;
        let text = output_within(client, limit.saturating_duration_since(Instant::now()))?;
        if let Some(line) = Line::parse(&text) {
            return Ok(line);
        }
        if let Some(status) = server.0.try_wait()? {
            let name = program(spec.verb);
            return Err(format!("{name} gave no figures and ended with {status}").into());
        }
        if Instant::now() >= limit {
            return Err(format!("{} gave no figures", program(spec.verb)).into());
        }
    }
}

/// Ends the server on every path.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It ends by itself a little after its client.
        for _ in 0..200 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found() {
        let text = " local address: LID 0000\n-----\n \
                    #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
                    64      1000          80.10          900.00       89.25              91.00          3.00            120.00                 700.00\n-----\n";
        assert_eq!(Line::parse(text), Some(Line::Micros(89.25)));
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    65536      300              12.10              11.50              0.000184\n-----\n";
        assert_eq!(Line::parse(text), Some(Line::Mebibytes(11.5)));
        assert_eq!(Line::parse("Couldn't connect"), None);
    }
}
