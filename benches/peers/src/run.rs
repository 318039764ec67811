//! The coordinator: rounds over cases over contestants, so that each is measured beside its floor again and again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cases::{Case, Peer};
use crate::line::Line;
use crate::report::Row;
use crate::spec::{Spec, Verb};
use crate::{Options, Outcome, pair, perftest, process, rdma_core, stats, wharf_side};

/// How UCX is reached in this run.
#[derive(Debug)]
enum Ucx {
    /// Inside the measured processes.
    BuiltIn,
    /// By `ucx_perftest`, of this version.
    Perftest(String),
    Absent,
}

/// This program.
const OWN: &str = "/proc/self/exe";

/// A contestant of one case: its measurement, its surroundings, and by which program.
#[derive(Clone, Debug)]
struct Contestant {
    spec: Spec,
    environment: Vec<(String, String)>,
    by: Program,
}

/// What measures.
#[derive(Clone, Debug)]
enum Program {
    /// Two processes of this one.
    Own,
    /// Of another build of it.
    Before(PathBuf),
    UcxPerftest,
    RdmaCore,
}

impl Contestant {
    fn key(&self) -> String {
        format!("{} {:?} {:?}", self.spec, self.environment, self.by)
    }
}

pub(crate) fn all(options: &Options, cases: &[&Case]) -> Vec<Row> {
    let ucx = find_ucx();
    let started = Instant::now();
    let load = process::Load::now();
    let mut line = Line::new(options.cpus, options.line.clone());
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut failed: BTreeMap<String, String> = BTreeMap::new();
    let mut done = 0;
    for round in 0..options.rounds {
        for case in cases {
            let mut contestants = contestants(case, &ucx, options);
            // Each is first once: who comes after whom has been seen to matter.
            let first = round % contestants.len().max(1);
            contestants.rotate_left(first);
            for contestant in contestants {
                let key = contestant.key();
                let once = matches!(case.verb, Verb::Idle | Verb::Memory | Verb::Many);
                let late = options.limit.is_some_and(|limit| started.elapsed() > limit);
                let again = samples.contains_key(&key);
                if failed.contains_key(&key)
                    || (again && (once || late || seen_in(&samples, &key, round)))
                {
                    continue;
                }
                match line.beside(|| measure(&contestant, options)) {
                    Ok(value) => samples.entry(key).or_default().push(value),
                    Err(failure) => {
                        eprintln!("{}: {failure}", contestant.spec);
                        failed.insert(key, failure.to_string());
                    }
                }
                done += 1;
                options.progress(round, done, started.elapsed());
            }
        }
    }
    eprintln!(
        "\r{done} measurements in {:.0} s",
        started.elapsed().as_secs_f64()
    );
    if let Ok((others, stolen)) = load.and_then(process::Load::disturbance) {
        eprintln!(
            "meanwhile others used {others:.2} CPUs and the host took {stolen:.2}{}",
            if others + stolen > 0.15 {
                ": too much, do not trust these figures"
            } else {
                ""
            }
        );
    }
    if let Some([least, most]) = line.seen() {
        eprintln!("a cache line took {least:.0} to {most:.0} ns from one CPU to the other");
    }
    let value = |contestant: &Contestant| {
        let key = contestant.key();
        samples.get(&key).map(|values| stats::median(values))
    };
    rows(cases, &ucx, options, &value)
}

/// A floor that two cases share is measured once a round.
fn seen_in(samples: &BTreeMap<String, Vec<f64>>, key: &str, round: usize) -> bool {
    samples.get(key).is_some_and(|values| values.len() > round)
}

fn rows(
    cases: &[&Case],
    ucx: &Ucx,
    options: &Options,
    value: &dyn Fn(&Contestant) -> Option<f64>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in cases {
        let wharf = wharf_side::READY
            .then(|| value(&wharf_of(case, options)))
            .flatten();
        let row = |peer, peer_name| Row {
            case: case.name,
            transport: case.transport,
            mode: case.mode,
            size: case.size,
            wharf,
            peer,
            peer_name,
            unit: case.unit.word(),
            ratio: case.unit.ratio(wharf, peer),
        };
        if let Some(before) = before_of(case, options) {
            rows.push(row(value(&before), "before".to_owned()));
        }
        for peer in case.peers {
            let known = match peer {
                Peer::Limit(limit) => Some(*limit),
                _ => contestant_of(case, *peer, ucx, options).and_then(|c| value(&c)),
            };
            if known.is_none() && (wharf.is_none() || !matches!(peer, Peer::Alone)) {
                continue;
            }
            rows.push(row(known, name_of(*peer, case, ucx)));
        }
    }
    rows
}

fn measure(contestant: &Contestant, options: &Options) -> Outcome<f64> {
    let (spec, environment) = (&contestant.spec, &contestant.environment);
    match &contestant.by {
        Program::Own => pair::run(Path::new(OWN), spec, options.cpus, environment),
        Program::Before(program) => pair::run(program, spec, options.cpus, environment),
        Program::UcxPerftest => perftest::run(spec, options.cpus, environment),
        Program::RdmaCore => rdma_core::run(spec, options.cpus),
    }
}

fn contestants(case: &Case, ucx: &Ucx, options: &Options) -> Vec<Contestant> {
    let wharf = wharf_side::READY.then(|| wharf_of(case, options));
    let peers = case
        .peers
        .iter()
        .filter_map(|peer| contestant_of(case, *peer, ucx, options));
    let before = before_of(case, options);
    wharf.into_iter().chain(before).chain(peers).collect()
}

fn before_of(case: &Case, options: &Options) -> Option<Contestant> {
    let program = options.before.clone()?;
    Some(Contestant {
        by: Program::Before(program),
        ..wharf_of(case, options)
    })
}

fn wharf_of(case: &Case, options: &Options) -> Contestant {
    Contestant {
        spec: spec(case, "wharf", case.wharf, options),
        environment: Vec::new(),
        by: Program::Own,
    }
}

fn contestant_of(case: &Case, peer: Peer, ucx: &Ucx, options: &Options) -> Option<Contestant> {
    let plain = |family: &str, variant: &str| Contestant {
        spec: spec(case, family, variant, options),
        environment: Vec::new(),
        by: Program::Own,
    };
    let with_ucx = |variant: &str, transports: &str, by: Program| Contestant {
        spec: spec(case, "ucx", variant, options),
        environment: ucx_environment(transports),
        by,
    };
    match (peer, ucx) {
        (Peer::Floor(variant, _), _) => Some(plain("floor", variant)),
        (Peer::Tokio, _) => Some(plain("tokio", "event")),
        (Peer::Raw, _) => Some(plain("raw", "busy")),
        (Peer::Iceoryx2, _) => Some(plain("iceoryx2", "copy")),
        (Peer::RdmaCore(variant), _) => Some(Contestant {
            by: Program::RdmaCore,
            ..plain("rdma-core", variant)
        }),
        // Streams are measured by UCX's own program alone.
        (Peer::Ucx(_), Ucx::BuiltIn)
            if matches!(
                case.verb,
                Verb::Bytes | Verb::BytesOwned | Verb::BytesAllocated | Verb::BytesLatency
            ) =>
        {
            None
        }
        (Peer::Ucx(transports), Ucx::BuiltIn) => Some(with_ucx("poll", transports, Program::Own)),
        (Peer::Ucx(transports), Ucx::Perftest(_)) => {
            Some(with_ucx("poll", transports, Program::UcxPerftest))
        }
        (Peer::UcxTokio(variant), Ucx::BuiltIn) => {
            let transports = if case.transport == "tcp" {
                "tcp,self"
            } else {
                "posix,cma,self"
            };
            Some(with_ucx(variant, transports, Program::Own))
        }
        (Peer::Ucx(_), Ucx::Absent)
        | (Peer::UcxTokio(_), _)
        | (Peer::Limit(_) | Peer::Alone, _) => None,
    }
}

fn name_of(peer: Peer, case: &Case, ucx: &Ucx) -> String {
    let version = match ucx {
        Ucx::BuiltIn => crate::ucx_version().to_owned(),
        Ucx::Perftest(version) => format!("{version} perftest"),
        Ucx::Absent => String::new(),
    };
    match peer {
        Peer::Floor(_, name) => name.to_owned(),
        Peer::Ucx(transports) => {
            format!("UCX {version} ({})", transports.trim_end_matches(",self"))
        }
        Peer::UcxTokio("yield") => format!("UCX {version} under Tokio, yield_now"),
        Peer::UcxTokio(_) => format!("UCX {version} under Tokio, AsyncFd"),
        Peer::Tokio if case.transport == "tls" => "tokio-rustls TlsStream".to_owned(),
        Peer::Tokio if case.transport == "tcp" => "Tokio TcpStream".to_owned(),
        Peer::Tokio => "Tokio UnixStream".to_owned(),
        Peer::Raw => "raw busy socket".to_owned(),
        Peer::Iceoryx2 => "iceoryx2".to_owned(),
        Peer::RdmaCore("event") => format!("{} -e", rdma_core::program(case.verb)),
        Peer::RdmaCore(_) => rdma_core::program(case.verb).to_owned(),
        Peer::Limit(_) => "limit".to_owned(),
        Peer::Alone => "none".to_owned(),
    }
}

fn spec(case: &Case, family: &str, variant: &str, options: &Options) -> Spec {
    let millis = match case.verb {
        Verb::Idle => options.idle_millis,
        _ => options.millis,
    };
    Spec {
        family: family.to_owned(),
        variant: variant.to_owned(),
        verb: case.verb,
        transport: case.transport.to_owned(),
        size: case.size,
        millis,
        gap_us: if matches!(case.verb, Verb::Parked | Verb::Signal) {
            1500
        } else {
            0
        },
    }
}

fn ucx_environment(transports: &str) -> Vec<(String, String)> {
    let mut environment = vec![
        ("UCX_TLS".to_owned(), transports.to_owned()),
        ("UCX_LOG_LEVEL".to_owned(), "error".to_owned()),
        ("UCX_WARN_UNUSED_ENV_VARS".to_owned(), "n".to_owned()),
    ];
    if transports.contains("tcp") {
        environment.push(("UCX_NET_DEVICES".to_owned(), "lo".to_owned()));
    }
    environment
}

fn find_ucx() -> Ucx {
    if cfg!(feature = "ucx") {
        return Ucx::BuiltIn;
    }
    if let Some(version) = perftest::version() {
        eprintln!(
            "UCX {version}, by ucx_perftest; `--features ucx` measures UCX {} inside the same processes, and under Tokio",
            crate::ucx_version()
        );
        return Ucx::Perftest(version);
    }
    eprintln!("UCX is absent: no ucx_perftest in PATH, and not built with `--features ucx`");
    Ucx::Absent
}

/// When a quick run stops adding rounds.
pub(crate) const QUICK_LIMIT: Duration = Duration::from_secs(40);
