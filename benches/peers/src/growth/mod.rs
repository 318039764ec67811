//! How the cost of one 8-byte message grows with what else a worker has: connections, posted receives, operations, tasks, threads.
//!
//! Comes in: `--growth` and the options of `main`. Goes out: a table, one line for each number, and with `--figures` an SVG file for each
//! growth. Uses `load`, which sets the numbers up and sends the messages in one fresh process for each measurement, and `figure`.
//!
//! Instructions are counted by callgrind, between the first and the last message; where threads wait for each other they mean nothing and
//! are left out.

mod figure;
mod load;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Options, Outcome, pair, process, stats};
use load::{Cost, Extent};

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Endpoints,
    Posted,
    Masked,
    Outstanding,
    Tasks,
    SharedWorker,
    OwnWorkers,
}

/// One growth: a table and a figure.
struct Growth {
    kind: Kind,
    name: &'static str,
    /// What a number is the number of.
    of: &'static str,
    numbers: &'static [usize],
    transports: &'static [&'static str],
    /// Whether all of it happens on one thread, so that instructions can be counted.
    countable: bool,
}

const TENS: &[usize] = &[10, 100, 1000, 10_000, 100_000];

const GROWTHS: [Growth; 7] = [
    Growth {
        kind: Kind::Endpoints,
        name: "endpoints",
        of: "connected endpoints, all but one idle",
        numbers: &[1, 10, 100, 1000],
        transports: &["shm", "tcp"],
        countable: true,
    },
    Growth {
        kind: Kind::Posted,
        name: "posted",
        of: "posted receives of other tags",
        numbers: TENS,
        transports: &["shm"],
        countable: true,
    },
    Growth {
        kind: Kind::Masked,
        name: "masked",
        of: "posted receives of other tags, each with a mask",
        numbers: TENS,
        transports: &["shm"],
        countable: true,
    },
    Growth {
        kind: Kind::Outstanding,
        name: "outstanding",
        of: "sends of 1 MiB that nobody has received",
        numbers: TENS,
        transports: &["shm"],
        countable: true,
    },
    Growth {
        kind: Kind::Tasks,
        name: "tasks",
        of: "tasks at each of two threads, each with its own tag",
        numbers: &[1, 2, 4, 8, 16, 32, 64],
        transports: &["shm", "tcp"],
        countable: false,
    },
    Growth {
        kind: Kind::SharedWorker,
        name: "threads_shared_worker",
        of: "threads of a runtime, a task for each, on one worker at each end",
        numbers: &[1, 2, 3, 4],
        transports: &["shm"],
        countable: false,
    },
    Growth {
        kind: Kind::OwnWorkers,
        name: "threads_own_workers",
        of: "threads, each with workers of its own",
        numbers: &[1, 2, 3, 4],
        transports: &["shm"],
        countable: false,
    },
];

/// What more than the first number may cost.
const FLAT: f64 = 1.3;
/// Messages of one count of instructions.
const COUNTED: u64 = 5000;
/// What setting up the largest number may take, under callgrind too.
const PATIENCE: Duration = Duration::from_secs(300);

/// One number of one growth over one transport.
#[derive(Clone, Debug)]
struct Point {
    number: usize,
    /// Nanoseconds of the clock and of processors for a message.
    wall: f64,
    cpu: f64,
    instructions: Option<f64>,
}

/// The points of one growth over one transport.
type Line = (&'static str, Vec<Point>);

pub(crate) fn run(options: &Options) -> Outcome<()> {
    let chosen: Vec<&Growth> = GROWTHS
        .iter()
        .filter(|growth| growth.full_name().contains(&options.case))
        .collect();
    if chosen.is_empty() {
        return Err(format!("no growth has `{}` in its name; see --list", options.case).into());
    }
    if options.list {
        chosen
            .iter()
            .for_each(|growth| println!("{}", growth.full_name()));
        return Ok(());
    }
    let counts = match Command::new("valgrind").arg("--version").output() {
        Ok(_) => !options.quick,
        Err(_) => {
            eprintln!("no valgrind here: instructions are not counted");
            false
        }
    };
    let load = process::Load::now();
    let mut measured = Vec::new();
    for growth in chosen {
        let lines: Vec<Line> = growth
            .transports
            .iter()
            .map(|transport| Ok((*transport, growth.points(transport, options)?)))
            .collect::<Outcome<_>>()?;
        measured.push((growth, lines));
    }
    report_load(load);
    for (growth, mut lines) in measured {
        if counts && growth.countable {
            for (transport, points) in &mut lines {
                for point in points {
                    point.instructions = Some(growth.count(transport, point.number)?);
                }
            }
        }
        print!("{}", growth.table(&lines));
        if let Some(folder) = &options.figures {
            let file: PathBuf = folder.join(format!("{}.svg", growth.name));
            std::fs::write(file, figure::draw(growth.of, &lines))?;
        }
    }
    Ok(())
}

/// The process of one measurement: prints nanoseconds of the clock and of processors for a message.
pub(crate) fn one(words: impl Iterator<Item = String>) -> Outcome<()> {
    let words: Vec<String> = words.collect();
    let [name, transport, number, extent] = &words[..] else {
        return Err("--growth-one wants a growth, a transport, a number and an extent".into());
    };
    let growth = GROWTHS
        .iter()
        .find(|growth| growth.name == name)
        .ok_or_else(|| format!("no growth `{name}`"))?;
    pair::raise_limits()?;
    let cost = load::measure(growth.kind, transport, number.parse()?, extent.parse()?)?;
    println!("{} {}", cost.wall, cost.cpu);
    Ok(())
}

impl Growth {
    fn full_name(&self) -> String {
        format!("growth/{}", self.name)
    }

    /// Rounds go over the numbers in turn; medians over the rounds.
    fn points(&self, transport: &str, options: &Options) -> Outcome<Vec<Point>> {
        let mut samples: BTreeMap<usize, Vec<Cost>> = BTreeMap::new();
        let extent = Extent::Millis(options.millis);
        for _ in 0..options.rounds {
            for number in self.numbers {
                let mut command = Command::new("/proc/self/exe");
                command.args(self.words(transport, *number, extent));
                let text = output(command)?;
                let (wall, cpu) = text.trim().split_once(' ').ok_or("no two figures")?;
                let (wall, cpu) = (wall.parse()?, cpu.parse()?);
                samples.entry(*number).or_default().push(Cost { wall, cpu });
            }
        }
        let median = |costs: &[Cost], of: fn(&Cost) -> f64| {
            stats::median(&costs.iter().map(of).collect::<Vec<_>>())
        };
        Ok(samples
            .iter()
            .map(|(number, costs)| Point {
                number: *number,
                wall: median(costs, |cost| cost.wall),
                cpu: median(costs, |cost| cost.cpu),
                instructions: None,
            })
            .collect())
    }

    /// Instructions of one message.
    fn count(&self, transport: &str, number: usize) -> Outcome<f64> {
        let mut command = Command::new("valgrind");
        command
            .args([
                "--tool=callgrind",
                "--callgrind-out-file=/dev/null",
                "--log-fd=1",
            ])
            .args([
                "--collect-atstart=no",
                "--toggle-collect=*growth::load::counted*",
            ])
            // Under valgrind `/proc/self/exe` is another program.
            .arg(std::env::current_exe()?)
            .args(self.words(transport, number, Extent::Messages(COUNTED)));
        let text = output(command)?;
        let collected: f64 = text
            .lines()
            .find_map(|line| line.split_once("Collected :"))
            .ok_or_else(|| format!("callgrind counted nothing: {text}"))?
            .1
            .trim()
            .parse()?;
        Ok(collected / COUNTED as f64)
    }

    fn words(&self, transport: &str, number: usize, extent: Extent) -> [String; 5] {
        [
            "--growth-one".to_owned(),
            self.name.to_owned(),
            transport.to_owned(),
            number.to_string(),
            extent.to_string(),
        ]
    }

    fn table(&self, lines: &[Line]) -> String {
        let mut text = format!(
            "\n{}: {}\n\n| {} | number | ns | CPU ns | ratio | instructions | ratio |\n\
             |---|---:|---:|---:|---:|---:|---:|\n",
            self.full_name(),
            self.of,
            self.name
        );
        for (transport, points) in lines {
            for (at, point) in points.iter().enumerate() {
                let first = &points[0];
                let (instructions, ratio) = match (point.instructions, first.instructions) {
                    (Some(now), Some(first)) => (format!("{now:.0}"), ratio(now / first)),
                    _ => ("-".to_owned(), "-".to_owned()),
                };
                text += &format!(
                    "| {} | {} | {:.0} | {:.0} | {} | {instructions} | {ratio} |\n",
                    if at == 0 { transport } else { "" },
                    point.number,
                    point.wall,
                    point.cpu,
                    ratio_of(point, first),
                );
            }
        }
        text
    }
}

fn ratio_of(point: &Point, first: &Point) -> String {
    ratio(point.cpu / first.cpu)
}

/// What is not flat stands out.
fn ratio(value: f64) -> String {
    match value > FLAT {
        true => format!("**{value:.2}**"),
        false => format!("{value:.2}"),
    }
}

fn output(mut command: Command) -> Outcome<String> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    pair::output_within(child, PATIENCE)
}

fn report_load(load: Outcome<process::Load>) {
    if let Ok((others, stolen)) = load.and_then(process::Load::disturbance) {
        eprintln!("meanwhile others used {others:.2} CPUs and the host took {stolen:.2}");
    }
}
