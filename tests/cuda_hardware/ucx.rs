//! T15: UCX's own benchmark on the same machine, to be put beside wharf's figures.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use crate::{
    suite::{Case, Verdict},
    support::{LIMIT, Looks, block_until, listens},
};

const WHEEL: &str = "UCX_WHEEL";

/// Test, memory of the two ends, bytes, rounds.
const RUNS: &[(&str, &str, u64, u32)] = &[
    ("tag_lat", "host,cuda", 8, 2000),
    ("tag_lat", "cuda", 8, 2000),
    ("tag_bw", "host,cuda", 64 << 20, 50),
    ("tag_bw", "cuda", 1 << 20, 500),
    ("tag_bw", "cuda", 64 << 20, 50),
    ("ucp_put_lat", "cuda", 8, 2000),
    ("ucp_put_bw", "cuda", 1 << 20, 500),
    ("ucp_put_bw", "cuda", 64 << 20, 50),
];

pub(crate) fn baseline(case: &mut Case) -> Verdict {
    if case.emulated {
        // `tests/emulated/stranger_ucx` runs it there.
        return Verdict::NotRun("on the emulated driver UCX's speed means nothing".to_owned());
    }
    let Some(wheel) = std::env::var_os(WHEEL).map(PathBuf::from) else {
        return Verdict::NotRun(format!(
            "{WHEEL} names no folder with the package libucx-cu12"
        ));
    };
    for (test, memory, len, rounds) in RUNS {
        let words = format!("-t {test} -m {memory} -s {len} -n {rounds} -w 10 -f");
        match pair(&wheel, &words) {
            Ok(text) => {
                case.note(&words, text.trim());
                // The last line ends with the figures: latency or overhead, and rates.
                let numbers = text.lines().last().unwrap_or_default().split_whitespace();
                let numbers: Vec<f64> = numbers.filter_map(|word| word.parse().ok()).collect();
                assert!(!numbers.is_empty(), "{words}: no figures in\n{text}");
                for (at, number) in numbers.iter().enumerate() {
                    case.figure(
                        format!("{test} {memory} {len} B, column {at}"),
                        *number,
                        "as UCX prints it",
                    );
                }
            }
            Err(why) => case.without(&words, why),
        }
    }
    Verdict::Ran
}

fn start(wheel: &Path, words: &str, peer: Option<&str>, port: u16) -> std::io::Result<Child> {
    let folder = wheel.join("libucx");
    let mut libraries = folder.join("lib").into_os_string();
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
        libraries.push(":");
        libraries.push(others);
    }
    Command::new(folder.join("bin/ucx_perftest"))
        .args(words.split(' '))
        .args(["-p", &port.to_string()])
        .args(peer)
        .env("LD_LIBRARY_PATH", libraries)
        .env("UCX_WARN_UNUSED_ENV_VARS", "n")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// Runs both ends; what the one that connects prints.
fn pair(wheel: &Path, words: &str) -> Result<String, String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = listener
        .local_addr()
        .map_err(|error| error.to_string())?
        .port();
    drop(listener);
    let begin = |peer| start(wheel, words, peer, port).map_err(|error| error.to_string());
    let mut server = begin(None)?;
    block_until("a listener", || {
        listens(server.id(), port) || !matches!(server.try_wait(), Ok(None))
    });
    let mut client = match begin(Some("127.0.0.1")) {
        Ok(client) => client,
        Err(error) => {
            end(&mut server);
            return Err(error);
        }
    };
    let begun = Instant::now();
    let mut looks = Looks::new("its end").within(5 * LIMIT);
    let status = loop {
        match client.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if begun.elapsed() < 4 * LIMIT => looks.block(),
            Ok(None) => break Err("it does not end".to_owned()),
            Err(error) => break Err(error.to_string()),
        }
    };
    end(&mut server);
    end(&mut client);
    let mut text = String::new();
    if let Some(mut out) = client.stdout.take() {
        out.read_to_string(&mut text)
            .map_err(|error| error.to_string())?;
    }
    match status? {
        status if status.success() => Ok(text),
        status => Err(format!("{status}: {text}")),
    }
}

fn end(process: &mut Child) {
    // Both fail only when it has ended and was waited for.
    let _ = process.kill();
    let _ = process.wait();
}
