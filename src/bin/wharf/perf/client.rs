//! The end that asks: which points there are, and the measurement of each.
//!
//! A point has a thread for each connection, with a runtime of its own; this thread sleeps meanwhile on the control connection, so that a peer
//! that fails, dies or stops is noticed while the others measure.

use std::io::{BufRead, BufReader, IsTerminal};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use wharf::{Context, Progress, Worker, WorkerId};

use super::args::{Args, Run, pin};
use super::conditions::Meanwhile;
use super::control::{self, Control};
use super::laps::{Figures, Laps};
use super::report::{Report, Row};
use super::side::{Role, Side};
use super::spec::{Sizes, Spec, TESTS, Test};
use super::{Outcome, memory::Memory, plot, server, wake};

/// How long the other end may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long an end that fails may take to say why, once the other one has failed.
const REASON: Duration = Duration::from_secs(1);
/// Transports that carry messages, in the order in which they are measured.
const CARRIERS: [&str; 4] = ["self", "shm", "rc_verbs", "tcp"];

/// Sizes of a plot, unless others are asked for.
const PLOTTED: &str = "8:512:8,4K:1M:4";

/// One point, and against whom.
struct Point {
    spec: Spec,
    threads: usize,
    /// `None`: a process that is started for it.
    address: Option<String>,
    /// Its failure is told, and fails nothing else.
    may_fail: bool,
}

/// Measures all that the command line asks for.
pub(super) fn run(args: &Args) -> Outcome<()> {
    let points = plan(args)?;
    let cpus = args.both_cpus()?;
    if let Some(file) = &args.plot {
        // Rather now than after all has been measured.
        std::fs::File::create(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let bar = bar(points.len() as u64);
    let mut report = Report::new(args.format);
    let mut client = Client {
        cpus,
        timeout: Duration::from_secs(args.timeout),
        peers: Vec::new(),
    };
    let mut rows = Vec::new();
    let mut failures = 0;
    let meanwhile = Meanwhile::start();
    // Its runtime has to outlive the peers' connections.
    let runtime = crate::runtime()?;
    let done = runtime.block_on(async {
        for point in &points {
            bar.set_message(format!(
                "{} {} {} B",
                point.spec.test.name,
                point.spec.transport.as_deref().unwrap_or_default(),
                point.spec.size
            ));
            match client.point(point).await {
                Ok(row) => {
                    bar.suspend(|| report.row(&row))?;
                    rows.push(row);
                }
                Err(error) if args.all => {
                    let (name, size) = (point.spec.test.name, point.spec.size);
                    let transport = point.spec.transport.as_deref().unwrap_or("any transport");
                    bar.suspend(|| {
                        eprintln!("not measured: {name} over {transport}, {size} bytes: {error}")
                    });
                    failures += usize::from(!point.may_fail);
                }
                Err(error) => return Err(error),
            }
            bar.inc(1);
        }
        Outcome::Ok(())
    });
    bar.finish_and_clear();
    drop(client);
    let conditions = meanwhile.end();
    if let (Err(_), Some(file)) = (&done, &args.plot) {
        let _ = std::fs::remove_file(file);
    }
    done?;
    report.end()?;
    if let Some(file) = &args.plot {
        let floor = plot::draw(file, &rows, cpus, &conditions)?;
        report.floor(&floor, &conditions)?;
    }
    if let Some(warning) = conditions.warning() {
        eprintln!("warning: {warning}");
    }
    match failures {
        0 => Ok(()),
        _ => Err(format!("{failures} of {} points were not measured", points.len()).into()),
    }
}

fn bar(points: u64) -> ProgressBar {
    if points < 2 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}");
    let bar = ProgressBar::new(points);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The points, in order.
fn plan(args: &Args) -> Outcome<Vec<Point>> {
    let mut points = Vec::new();
    let Some(file) = &args.batch else {
        plan_run(args, &args.run, &mut points)?;
        return Ok(points);
    };
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    for (number, line) in text.lines().enumerate() {
        let at = |error| format!("{}, line {}: {error}", file.display(), number + 1);
        let Some(run) = Run::parse_line(line).map_err(at)? else {
            continue;
        };
        let mut base = args.run.clone();
        // The address goes before the line's tests.
        let address = base
            .words
            .first()
            .filter(|word| word.contains(':'))
            .cloned();
        let mut run = run;
        if let Some(address) = address
            && !run.words.first().is_some_and(|word| word.contains(':'))
            && !run.words.is_empty()
        {
            run.words.insert(0, address);
        }
        base.words.retain(|word| !word.is_empty());
        plan_run(args, &run.over(&base), &mut points).map_err(at)?;
    }
    if points.is_empty() {
        return Err(format!("{}: nothing to measure", file.display()).into());
    }
    Ok(points)
}

fn plan_run(args: &Args, run: &Run, points: &mut Vec<Point>) -> Outcome<()> {
    let mut words = &run.words[..];
    let address = match words.first() {
        Some(word) if word.contains(':') => {
            words = &words[1..];
            Some(word.clone())
        }
        _ => None,
    };
    match (&address, args.local) {
        (Some(address), true) => return Err(format!("--local and {address} are two peers").into()),
        (None, false) => {
            return Err(
                "against whom? --local, or HOST:PORT where `wharf perf --listen` runs".into(),
            );
        }
        _ => {}
    }
    let tests: Vec<&'static Test> = match (words, args.all) {
        ([], true) => {
            // Those with the same figures one after the other.
            let mut tests: Vec<_> = TESTS.iter().collect();
            tests.sort_by_key(|test| test.figure == "overhead");
            tests
        }
        ([], false) => {
            let names: Vec<&str> = TESTS.iter().map(|test| test.name).collect();
            return Err(format!("which test? {}", names.join(", ")).into());
        }
        (names, _) => names
            .iter()
            .map(|name| Test::find(name))
            .collect::<Outcome<_>>()?,
    };
    let transports: Vec<Option<String>> = match &run.transport[..] {
        [] if args.all && args.local => carriers()?.into_iter().map(Some).collect(),
        [] => vec![None],
        names => names.iter().cloned().map(Some).collect(),
    };
    for transport in transports.iter().flatten() {
        // A name that nobody knows is an error of this line, not of a point.
        let _ = Context::builder().transports(&transport.replace('+', ","))?;
    }
    if address.is_some() && transports.iter().flatten().any(|name| name == "self") {
        return Err("self leads to this process, not to another one".into());
    }
    for test in tests {
        if test.is_alone() {
            let own = transports
                .first()
                .cloned()
                .into_iter()
                .map(|_| None::<String>);
            plan_test(args, run, test, own, address.as_ref(), points)?;
        } else {
            plan_test(
                args,
                run,
                test,
                transports.iter().cloned(),
                address.as_ref(),
                points,
            )?;
        }
    }
    Ok(())
}

fn plan_test(
    args: &Args,
    run: &Run,
    test: &'static Test,
    transports: impl Iterator<Item = Option<String>>,
    address: Option<&String>,
    points: &mut Vec<Point>,
) -> Outcome<()> {
    let many = args.all || args.plot.is_some();
    let wanted = match &run.size {
        Some(sizes) => sizes.clone(),
        None if args.plot.is_some() && !test.is_alone() => PLOTTED.parse::<Sizes>()?,
        None => Sizes(vec![test.usual_size()]),
    };
    let mut sizes: Vec<usize> = wanted
        .0
        .iter()
        .copied()
        .filter(|size| test.refuses(*size).is_none())
        .collect();
    if sizes.is_empty() {
        // One that was asked for is refused below; that of many tests is not meant for all of them.
        sizes = match wanted.0.first() {
            Some(first) if !many && run.size.is_some() => vec![*first],
            _ => vec![test.usual_size()],
        };
    }
    let usual = if test.is_one_sided() {
        Memory::Allocated
    } else {
        Memory::Host
    };
    let memory = match run.memory[..] {
        [] => [usual; 2],
        [one] => [one; 2],
        [one, other] => [one, other],
        _ => return Err("there are two ends, so one or two memory types".into()),
    };
    for transport in transports {
        for size in &sizes {
            let spec = Spec {
                test,
                size: *size,
                iterations: run.iterations,
                time: Duration::from_secs_f64(run.duration.unwrap_or(if many {
                    0.05
                } else {
                    0.5
                })),
                warm_up: run.warm_up,
                window: usize::try_from(run.window.unwrap_or(test.window as u64))?,
                tasks: if test.is_alone() {
                    1
                } else {
                    usize::try_from(run.tasks.unwrap_or(1))?
                },
                memory,
                progress: run.progress.unwrap_or_default(),
                validate: run.validate,
                transport: transport.clone(),
            };
            // Both ends of a worker's connection to itself are on its thread.
            let threads = if test.is_alone() || spec.is_self() {
                1
            } else {
                usize::try_from(run.threads.unwrap_or(1))?
            };
            match spec.check(threads) {
                Ok(()) => points.push(Point {
                    spec,
                    threads,
                    address: address.cloned(),
                    may_fail: test.is_alone(),
                }),
                Err(_) if args.all => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The transports of this machine that carry messages.
fn carriers() -> Outcome<Vec<String>> {
    let context = Context::builder().build()?;
    let found: Vec<&str> = context.transports().collect();
    let missing = context.unavailable();
    let there =
        |name: &&str| found.contains(name) && !missing.iter().any(|(other, _)| other == name);
    Ok(CARRIERS
        .iter()
        .copied()
        .filter(there)
        .map(str::to_owned)
        .collect())
}

/// What measures.
struct Client {
    cpus: Option<[usize; 2]>,
    timeout: Duration,
    peers: Vec<Peer>,
}

/// The other end.
struct Peer {
    /// As it was asked for.
    asked: Option<String>,
    address: String,
    control: Control,
    child: Option<Local>,
}

/// A process of its own, for as long as this one wants it.
struct Local(Child);

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the thread of a connection tells.
enum Event {
    Worker(WorkerId),
    Done(Outcome<(Figures, Vec<String>)>),
}

impl Client {
    async fn point(&mut self, point: &Point) -> Outcome<Row> {
        let beat = Arc::new(AtomicU64::new(0));
        let spec = &point.spec;
        if spec.test.is_alone() || spec.is_self() {
            let (spec, cpus) = (spec.clone(), self.cpus);
            let (events, mut heard) = mpsc::unbounded_channel();
            let own = beat.clone();
            std::thread::spawn(move || {
                let _ = events.send(Event::Done(alone(spec, cpus.map(|cpus| cpus[0]), own)));
            });
            let watch = Watch::new(beat, self.timeout);
            let (figures, in_use) = tokio::select! {
                event = heard.recv() => match event {
                    Some(Event::Done(done)) => done?,
                    _ => return Err("the measurement ended without a result".into()),
                },
                error = watch.stall() => return Err(error),
            };
            return Ok(Row::new(
                &point.spec,
                point.threads,
                figures,
                in_use,
                [point.spec.memory[0].label(), point.spec.memory[1].label()],
            ));
        }
        let at = match self
            .peers
            .iter()
            .position(|peer| peer.asked == point.address)
        {
            Some(at) => at,
            None => {
                self.peers.push(self.meet(point.address.clone()).await?);
                self.peers.len() - 1
            }
        };
        let result = self.measure(&self.peers[at], point, beat).await;
        result.map_err(|error| {
            // Whatever is left of that measurement is not to meet the next one.
            let mut peer = self.peers.swap_remove(at);
            let ended = peer
                .child
                .as_mut()
                .and_then(|child| child.0.try_wait().ok().flatten());
            match ended {
                Some(status) => format!("{error} (the peer's process has ended: {status})").into(),
                None => error,
            }
        })
    }

    /// Finds the peer, or starts it.
    async fn meet(&self, asked: Option<String>) -> Outcome<Peer> {
        let (address, child) = match &asked {
            Some(address) => (address.clone(), None),
            None => {
                let (address, child) = start(self.cpus.map(|cpus| cpus[1]))?;
                (address, Some(child))
            }
        };
        let context = Context::builder()
            .progress(Progress::EventDriven)
            .connect_timeout(ANSWER)
            .build()?;
        let worker = Worker::new(&context)?;
        let endpoint = worker.connect(address.as_str()).await?;
        let control = Control { worker, endpoint };
        Ok(Peer {
            asked,
            address,
            control,
            child,
        })
    }

    async fn measure(&self, peer: &Peer, point: &Point, beat: Arc<AtomicU64>) -> Outcome<Row> {
        let (spec, threads) = (&point.spec, point.threads);
        let (events, mut heard) = mpsc::unbounded_channel();
        let met = Arc::new(AtomicUsize::new(0));
        let mut gates = Vec::new();
        for _ in 0..threads {
            let (gate, opened) = oneshot::channel();
            gates.push(gate);
            let flow = Flow {
                spec: spec.clone(),
                address: peer.address.clone(),
                cpu: self.cpus.map(|cpus| cpus[0]),
                beat: beat.clone(),
                met: met.clone(),
                threads,
            };
            let events = events.clone();
            std::thread::spawn(move || {
                let done = flow.run(&events, opened);
                let _ = events.send(Event::Done(done));
            });
        }
        let mut workers = Vec::new();
        while workers.len() < threads {
            match heard.recv().await {
                Some(Event::Worker(id)) => workers.push(id),
                Some(Event::Done(Err(error))) => return Err(error),
                _ => return Err("a thread ended without a result".into()),
            }
        }
        peer.control
            .send("measure", control::write(spec, &workers))
            .await?;
        let (word, body) = peer.control.receive_within(ANSWER).await?;
        let labels = ready(spec, &word, &body)?;
        for gate in gates {
            let _ = gate.send(());
        }
        let (mut all, mut in_use) = (Vec::new(), Vec::new());
        let mut peer_done = false;
        let idle = if matches!(spec.test.verb, super::spec::Verb::Idle) {
            spec.time
        } else {
            Duration::ZERO
        };
        let watch = Watch::new(beat, self.timeout + idle);
        let mut stall = std::pin::pin!(watch.stall());
        while all.len() < threads || !peer_done {
            tokio::select! {
                event = heard.recv() => match event {
                    Some(Event::Done(Ok((figures, used)))) => {
                        all.push(figures);
                        in_use = used;
                    }
                    Some(Event::Done(Err(error))) => return Err(reason(peer, error).await),
                    _ => return Err("a thread ended without a result".into()),
                },
                said = peer.control.receive(), if !peer_done => {
                    let (_, body) = said?;
                    match control::quoted(&body["errors"][0]) {
                        Some(theirs) => return Err(both(&mut heard, &theirs).await),
                        None => peer_done = true,
                    }
                }
                error = &mut stall => return Err(error),
            }
        }
        Ok(Row::new(
            spec,
            threads,
            Figures::merge(all)?,
            in_use,
            labels,
        ))
    }
}

/// The error of the other end, and this one's when it failed too: a connection that breaks there may have broken for a reason here, and the
/// news of it may come first.
async fn both(heard: &mut mpsc::UnboundedReceiver<Event>, theirs: &str) -> crate::Failure {
    let ours = async {
        loop {
            match heard.recv().await {
                Some(Event::Done(Err(error))) => return Some(error),
                Some(_) => {}
                None => return None,
            }
        }
    };
    match tokio::time::timeout(REASON, ours).await {
        Ok(Some(ours)) => format!("{ours}; at the other end: {theirs}").into(),
        _ => format!("at the other end: {theirs}").into(),
    }
}

/// The error of this end, and the other one's when it says more: a connection that breaks here broke for a reason there.
async fn reason(peer: &Peer, error: crate::Failure) -> crate::Failure {
    match peer.control.receive_within(REASON).await {
        Ok((_, body)) => match control::quoted(&body["errors"][0]) {
            Some(theirs) => format!("{error}; at the other end: {theirs}").into(),
            None => error,
        },
        Err(_) => error,
    }
}

/// What the other end answered: its and this end's memory, by name.
fn ready(spec: &Spec, word: &str, body: &Value) -> Outcome<[String; 2]> {
    if word != "ready" {
        let why = control::quoted(&body["why"]).unwrap_or_else(|| "without a reason".to_owned());
        return Err(format!("the other end refuses: {why}").into());
    }
    let shares_clock = body["host"].as_str() == Some(server::host().as_str());
    if spec.test.verb == super::spec::Verb::Parked && !shares_clock {
        return Err("parked_lat needs both ends on one host: they read one clock".into());
    }
    let theirs = body["memory"].as_str().unwrap_or_default();
    let theirs: String = theirs
        .chars()
        .filter(|letter| !letter.is_control())
        .take(40)
        .collect();
    Ok([spec.memory[0].label(), theirs])
}

/// Starts the peer: this program.
fn start(cpu: Option<usize>) -> Outcome<(String, Local)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "perf",
        "--child",
        "--listen",
        &format!("{}:0", Ipv4Addr::LOCALHOST),
    ]);
    if let Some(cpu) = cpu {
        command.args(["--cpus", &cpu.to_string()]);
    }
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child =
        Local(child.map_err(|error| format!("the peer's process cannot be started: {error}"))?);
    let out = child
        .0
        .stdout
        .take()
        .ok_or("the peer's output is not there")?;
    let (lines, line) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(out).read_line(&mut line);
        let _ = lines.send(line);
    });
    let line = line
        .recv_timeout(ANSWER)
        .map_err(|_| "the peer's process does not answer")?;
    let address = line.trim().strip_prefix("listening on ");
    let address = address.ok_or("the peer's process could not listen")?;
    Ok((address.to_owned(), child))
}

/// Sees that something goes on.
struct Watch {
    beat: Arc<AtomicU64>,
    limit: Duration,
}

impl Watch {
    fn new(beat: Arc<AtomicU64>, limit: Duration) -> Self {
        Self { beat, limit }
    }

    /// Resolves when nothing has moved for too long.
    async fn stall(self) -> crate::Failure {
        let mut last = (self.beat.load(Ordering::Relaxed), Instant::now());
        loop {
            tokio::time::sleep((self.limit / 4).min(Duration::from_secs(1))).await;
            let now = self.beat.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() >= self.limit {
                return format!("nothing moved for {} s", self.limit.as_secs()).into();
            }
        }
    }
}

/// What one thread measures.
struct Flow {
    spec: Spec,
    address: String,
    cpu: Option<usize>,
    beat: Arc<AtomicU64>,
    /// How many have connected, of how many.
    met: Arc<AtomicUsize>,
    threads: usize,
}

impl Flow {
    fn run(
        self,
        events: &mpsc::UnboundedSender<Event>,
        opened: oneshot::Receiver<()>,
    ) -> Outcome<(Figures, Vec<String>)> {
        pin(self.cpu)?;
        let runtime = crate::runtime()?;
        let events = events.clone();
        let task = runtime.spawn(async move {
            let context = Side::context(&self.spec)?;
            let worker = Worker::new(&context)?;
            let _ = events.send(Event::Worker(worker.id()));
            opened.await?;
            let endpoint = worker.connect(self.address.as_str()).await?;
            self.met.fetch_add(1, Ordering::Relaxed);
            for _ in 0..ANSWER.as_millis() {
                if self.met.load(Ordering::Relaxed) >= self.threads {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let in_use = endpoint
                .transports()
                .into_iter()
                .map(str::to_owned)
                .collect();
            let side = Side {
                role: Role::Asker,
                spec: self.spec,
                task: 0,
                context,
                worker,
                endpoint,
                beat: self.beat,
            };
            let figures = measure(&side).await?;
            side.part().await;
            Ok((figures.ok_or("no figures")?, in_use))
        });
        runtime.block_on(task)?
    }
}

/// The part of one end, with all its tasks, for as long as the connection lives: a receive takes from anyone, and puts are only looked for, so
/// neither ends with it.
pub(super) async fn measure(side: &Side) -> Outcome<Option<Figures>> {
    tokio::select! {
        biased;
        done = measure_tasks(side) => done,
        why = side.endpoint.closed() => Err(format!("the connection has ended: {why}").into()),
    }
}

async fn measure_tasks(side: &Side) -> Outcome<Option<Figures>> {
    if side.spec.tasks == 1 {
        return side.clone().measure().await;
    }
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..u16::try_from(side.spec.tasks)? {
        let side = Side {
            task,
            ..side.clone()
        };
        tasks.spawn(side.measure());
    }
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        all.extend(ended??);
    }
    if all.is_empty() {
        return Ok(None);
    }
    Figures::merge(all).map(Some)
}

/// What needs no other process.
fn alone(spec: Spec, cpu: Option<usize>, beat: Arc<AtomicU64>) -> Outcome<(Figures, Vec<String>)> {
    pin(cpu)?;
    let runtime = crate::runtime()?;
    let task = runtime.spawn(async move {
        if spec.test.is_alone() {
            let laps = Laps::new(&spec, beat)?;
            return Ok((wake::register(&spec, laps).await?, Vec::new()));
        }
        let context = Side::context(&spec)?;
        let worker = Worker::new(&context)?;
        let address = worker.address()?;
        let endpoint = worker.connect(&address).await?;
        let in_use = endpoint.transports().into_iter().map(str::to_owned).collect();
        let side = |role| Side {
            role,
            spec: spec.clone(),
            task: 0,
            context: context.clone(),
            worker: worker.clone(),
            endpoint: endpoint.clone(),
            beat: beat.clone(),
        };
        let (asker, answerer) = (side(Role::Asker), side(Role::Answerer));
        let there = tokio::spawn(async move { measure(&answerer).await });
        let mut there = there;
        let figures = tokio::select! {
            biased;
            // An end that fails leaves the other one waiting.
            Err(error) = async { (&mut there).await.map_err(Into::into).and_then(|done| done) } => Err(error),
            figures = measure(&asker) => figures,
        };
        Ok((figures?.ok_or("no figures")?, in_use))
    });
    runtime.block_on(task)?
}
