//! Two processes move a file: by tag message, by put, by get; over shared memory, then over TCP.
//!
//! `cargo run --release --example two_processes -- FILE` (without FILE: `Cargo.lock`). The program starts itself again as
//! the second process, sends the file to it by tag and by put, reads it back by get, and compares digests at both ends.
//! It prints one line for each: transport, verb, bytes, `ok`, GB/s, and the paths in use.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    io::{IsTerminal, Write},
    path::PathBuf,
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use tokio::process::{Child, Command};
use wharf::{Access, Context, Descriptor, Endpoint, MemoryType, Operation, Tag, Worker};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How many bytes will come, and the content's digest.
const HEAD: Tag = Tag(1);
/// The buffers are there; send.
const READY: Tag = Tag(6);
/// A part of the file.
const PART: Tag = Tag(2);
/// What the second process made of it: its digest.
const VERDICT: Tag = Tag(3);
/// The descriptor of the second process's memory.
const DESCRIPTOR: Tag = Tag(4);
/// All has been put; look at it.
const LOOK: Tag = Tag(5);

/// Files are sent in parts of this size, so that a progress bar can move.
const PART_SIZE: usize = 32 << 20;
/// From this size on a progress bar is shown, where the output is a terminal.
const LARGE: usize = 64 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [flag, transport, address] if flag == "--second" => second(transport, address).await,
        [] => first("Cargo.lock".into(), again).await,
        [file] => first(file.into(), again).await,
        _ => Err("usage: two_processes [FILE]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("two_processes: {error}");
            ExitCode::FAILURE
        }
    }
}

/// This program again, as the second process.
fn again(transport: &str, address: &str) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--second", transport, address]);
    Ok(command)
}

/// The first process: has the file. `command` starts the other, which connects to the address.
pub(crate) async fn first(
    file: PathBuf,
    command: impl Fn(&str, &str) -> Outcome<Command>,
) -> Outcome<()> {
    let content = tokio::fs::read(&file)
        .await
        .map_err(|error| format!("{}: {error}", file.display()))?;
    for transport in ["shm", "tcp"] {
        let context = Context::builder().transports(transport)?.build()?;
        let worker = Worker::new(&context)?;
        let listener = worker.listen("127.0.0.1:0").await?;
        let mut child = start_second(command(transport, &listener.local_addr().to_string())?)?;
        let line = child.stdin.take(); // Or waiting for the child would close it.
        let endpoint = tokio::select! {
            incoming = listener.accept() => incoming?.accept().await?,
            status = child.wait() => return Err(format!("the second process ended early: {}", status?).into()),
        };
        send(&context, &worker, &endpoint, transport, &content).await?;
        endpoint.close().await?;
        worker.shutdown(Duration::from_secs(5)).await?;
        let status = child.wait().await?;
        if !status.success() {
            return Err(format!("the second process failed: {status}").into());
        }
        drop(line);
    }
    Ok(())
}

/// Starts the second process. It is killed when this one gives up.
fn start_second(mut command: Command) -> Outcome<Child> {
    // The second process ends when this pipe does.
    command.stdin(Stdio::piped()).kill_on_drop(true);
    Ok(command.spawn()?)
}

/// Sends the file by tag and by put, and reads it back by get.
async fn send(
    context: &Context,
    worker: &Worker,
    endpoint: &Endpoint,
    transport: &str,
    content: &[u8],
) -> Outcome<()> {
    let digest = digest(content);
    let length = content.len();
    let mut file = context.allocate(length).await?;
    file.copy_from_slice(content);
    let file = file.freeze();
    let report = Report {
        transport,
        endpoint,
        length,
    };

    endpoint
        .tag_send(HEAD, [&(length as u64).to_le_bytes()[..], &digest].concat())
        .await?;
    worker.tag_recv(READY, Vec::new()).await?;
    let bar = progress_bar("tag", length);
    for part in parts(length) {
        let bytes = part.len() as u64;
        endpoint.tag_send(PART, file.slice(part)).await?;
        bar.inc(bytes);
    }
    bar.finish_and_clear();
    // A send may be over before its bytes are there, so the time is the receiver's.
    report.line("tag", Operation::TagSend, verdict(worker, &digest).await?);

    let received = worker.tag_recv(DESCRIPTOR, vec![0; 4096]).await?;
    let remote = endpoint.import(&Descriptor::from_bytes(&received.buffer[..received.len])?)?;
    if remote.len() != length {
        return Err(format!("the other end exposes {} bytes, not {length}", remote.len()).into());
    }

    let (start, bar) = (Instant::now(), progress_bar("put", length));
    for part in parts(length) {
        let bytes = part.len() as u64;
        endpoint
            .put(file.slice(part.clone()), remote.slice(part))
            .await?;
        bar.inc(bytes);
    }
    let took = start.elapsed();
    bar.finish_and_clear();
    endpoint.tag_send(LOOK, Vec::new()).await?;
    verdict(worker, &digest).await?;
    report.line("put", Operation::Put, took);

    let mut check = Sha256::new();
    let mut took = Duration::ZERO;
    let bar = progress_bar("get", length);
    let mut buffer = context.allocate(PART_SIZE.min(length)).await?;
    for part in parts(length) {
        if buffer.len() != part.len() {
            buffer = context.allocate(part.len()).await?;
        }
        buffer.fill(0);
        let bytes = part.len() as u64;
        let start = Instant::now();
        buffer = endpoint.get(remote.slice(part), buffer).await?;
        took += start.elapsed();
        check.update(&buffer[..]);
        bar.inc(bytes);
    }
    bar.finish_and_clear();
    if check.finalize()[..] != digest {
        return Err("get: what came back is not what was put".into());
    }
    report.line("get", Operation::Get, took);
    Ok(())
}

/// The second process: receives, checks, and lends its memory.
pub(crate) async fn second(transport: &str, address: &str) -> Outcome<()> {
    // The pipe ends with the first process. When all goes well, this process ends before. A thread, because a runtime
    // waits at its end for a read of the standard input.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        eprintln!("two_processes: the first process is gone");
        std::process::exit(2);
    });
    receive(transport, address).await
}

/// The second process's side of [`send`].
async fn receive(transport: &str, address: &str) -> Outcome<()> {
    let context = Context::builder().transports(transport)?.build()?;
    let worker = Worker::new(&context)?;
    let endpoint = worker.connect(address).await?;

    let received = worker.tag_recv(HEAD, vec![0; 64]).await?;
    let head = &received.buffer[..received.len];
    let (length, expected) = head
        .split_first_chunk::<8>()
        .ok_or("a head that is too short")?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;

    let mut buffers = Vec::new();
    for part in parts(length) {
        let mut buffer = context.allocate(part.len()).await?;
        // Its pages are there before the clock runs.
        buffer.fill(0);
        buffers.push(buffer);
    }
    let start = Instant::now();
    endpoint.tag_send(READY, Vec::new()).await?;
    let mut received = Vec::new();
    for buffer in buffers {
        received.push(worker.tag_recv(PART, buffer).await?);
    }
    let took = start.elapsed();
    let mut check = Sha256::new();
    for part in received {
        check.update(&part.buffer[..part.len]);
    }
    tell(&endpoint, &check.finalize(), expected, took).await?;

    let mut memory = context.allocate(length).await?;
    memory.fill(0);
    let region = context.expose(memory, Access::READ | Access::WRITE).await?;
    endpoint
        .tag_send(DESCRIPTOR, region.descriptor()?.to_bytes())
        .await?;
    worker.tag_recv(LOOK, Vec::new()).await?;
    let mut seen = vec![0; length];
    region.read_at(0, &mut seen)?;
    tell(&endpoint, &digest(&seen), expected, Duration::ZERO).await?;

    // The first process gets until it closes.
    endpoint.closed().await;
    worker.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Tells the first process the digest of what arrived, and how long that took.
async fn tell(to: &Endpoint, digest: &[u8], expected: &[u8], took: Duration) -> Outcome<()> {
    let took = u64::try_from(took.as_nanos())?;
    to.tag_send(VERDICT, [&took.to_le_bytes()[..], digest].concat())
        .await?;
    if digest == expected {
        Ok(())
    } else {
        Err("what arrived is not what was sent".into())
    }
}

/// Waits for the second process's digest, compares it, and gives the time that it took there.
async fn verdict(worker: &Worker, digest: &[u8]) -> Outcome<Duration> {
    let received = worker.tag_recv(VERDICT, vec![0; 64]).await?;
    let verdict = &received.buffer[..received.len];
    let (took, theirs) = verdict
        .split_first_chunk::<8>()
        .ok_or("a verdict that is too short")?;
    if theirs != digest {
        return Err("the digests differ: what arrived is not what was sent".into());
    }
    Ok(Duration::from_nanos(u64::from_le_bytes(*took)))
}

/// The parts of a file; an empty file has one empty part.
fn parts(length: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..length.div_ceil(PART_SIZE).max(1)).map(move |part| {
        let start = part * PART_SIZE;
        start..(start + PART_SIZE).min(length)
    })
}

fn digest(content: &[u8]) -> [u8; 32] {
    Sha256::digest(content).into()
}

/// What the lines have in common.
struct Report<'a> {
    transport: &'a str,
    endpoint: &'a Endpoint,
    length: usize,
}

impl Report<'_> {
    fn line(&self, verb: &str, operation: Operation, took: Duration) {
        let speed = self.length as f64 / took.as_secs_f64().max(1e-9) / 1e9;
        println!(
            "{:<4} {verb:<4} {:>12} bytes  ok  {speed:>7.3} GB/s  {}",
            self.transport,
            self.length,
            self.endpoint
                .explain(
                    operation,
                    MemoryType::Host,
                    MemoryType::Host,
                    self.length.min(PART_SIZE)
                )
                .chosen
        );
        let _ = std::io::stdout().flush();
    }
}

/// A bar for large files where somebody looks.
fn progress_bar(verb: &'static str, length: usize) -> ProgressBar {
    if length <= LARGE || !std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length as u64).with_message(verb);
    if let Ok(style) =
        ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}")
    {
        bar.set_style(style);
    }
    bar
}
