//! Two processes with device memory each: a file goes from one's to the other's by tag and by put, and back by get, with its digest. With
//! `--direct` an operation fails where its bytes would stop in host memory between the two.

use std::{
    path::Path,
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use tokio::process::{Child, Command};
use wharf::{Access, Buffer, Context, Descriptor, Endpoint, Operation, Tag, Worker};

use super::accelerator::{Found, Outcome, Vendor, compare, digest, find, read, say, vendor};

/// How many bytes will come, and their digest.
const HEAD: Tag = Tag(1);
/// The buffer is there; send.
const READY: Tag = Tag(2);
/// The file.
const FILE: Tag = Tag(3);
/// The descriptor of the second process's device memory.
const DESCRIPTOR: Tag = Tag(4);
/// All was put and got; look at it.
const LOOK: Tag = Tag(5);
/// The digest of what is in the second process's device memory.
const VERDICT: Tag = Tag(6);

/// The whole program: `NAME [--device cuda|gaudi|rocm] [--direct] [FILE]`, or `NAME --device … --second ADDRESS` for the process that it starts.
pub(crate) fn main(name: &str, transports: &str) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = vendor(&arguments).and_then(|(device, rest)| match rest {
        [flag, address] if flag == "--second" => {
            end_with_the_first(name);
            second(device, transports, address)
        }
        _ => {
            let (file, direct) = file(name, rest)?;
            let over = Over {
                device,
                transports,
                direct,
            };
            first(over, file, |address| again(device, address))
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What goes, and whether it may stop: the rest of the command line.
pub(crate) fn file<'a>(name: &str, rest: &'a [String]) -> Outcome<(&'a Path, bool)> {
    let (rest, direct) = match rest {
        [flag, rest @ ..] if flag == "--direct" => (rest, true),
        rest => (rest, false),
    };
    match rest {
        [] => Ok(("Cargo.lock".as_ref(), direct)),
        [file] if !file.starts_with('-') => Ok((file.as_ref(), direct)),
        _ => Err(format!("usage: {name} [--device cuda|gaudi|rocm] [--direct] [FILE]").into()),
    }
}

/// How it goes.
#[derive(Clone, Copy)]
pub(crate) struct Over<'a> {
    pub(crate) device: Vendor,
    pub(crate) transports: &'a str,
    /// Nothing may stop in host memory between two devices.
    pub(crate) direct: bool,
}

/// This program again, as the second process.
fn again(device: Vendor, address: &str) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--device", device.name(), "--second", address]);
    Ok(command)
}

/// The process that has the file. `command` starts the other, which connects to the address.
pub(crate) fn first(
    over: Over<'_>,
    file: &Path,
    command: impl FnOnce(&str) -> Outcome<Command>,
) -> Outcome<()> {
    meet(over, file, |address| {
        let (mut child, line) = start(command(address)?)?;
        Ok(async move {
            let status = child.wait().await?;
            drop(line);
            match status.success() {
                true => Ok(()),
                false => Err(format!("the second process failed: {status}").into()),
            }
        })
    })
}

/// Both ends in this process, the second on a thread of its own.
#[allow(dead_code, reason = "not every example does")]
pub(crate) fn alone(over: Over<'_>, file: &Path) -> Outcome<()> {
    let (device, there) = (over.device, over.transports.to_owned());
    meet(over, file, |address| {
        let address = address.to_owned();
        let end = tokio::task::spawn_blocking(move || second(device, &there, &address));
        Ok(async move { end.await? })
    })
}

/// The end that has the file. `begin` starts the other, which connects to the address; its future is how that ended.
fn meet<F: Future<Output = Outcome<()>>>(
    over: Over<'_>,
    file: &Path,
    begin: impl FnOnce(&str) -> Outcome<F>,
) -> Outcome<()> {
    let content = read(file)?;
    let device = over.device;
    let transports = &format!("{},{}", over.transports, device.name());
    // Before there is a runtime, as the program may start anew in it.
    let found = find(device)?;
    found.introduce();
    say(format_args!(
        "{}: {} bytes over {transports}",
        file.display(),
        content.len()
    ));
    runtime()?.block_on(async {
        let context = Context::builder().transports(transports)?.build()?;
        let worker = Worker::new(&context)?;
        let listener = worker.listen("127.0.0.1:0").await?;
        let mut other = std::pin::pin!(begin(&listener.local_addr().to_string())?);
        let endpoint = tokio::select! {
            incoming = listener.accept() => incoming?.accept().await?,
            end = &mut other => return end.and(Err("the second end ended early".into())),
        };
        send(&found, over.direct, &worker, &endpoint, content).await?;
        endpoint.close().await?;
        worker.shutdown(Duration::from_secs(5)).await?;
        other.await
    })
}

/// Starts the second process: it ends when its standard input does, and is killed when this process gives up.
fn start(mut command: Command) -> Outcome<(Child, Option<tokio::process::ChildStdin>)> {
    let mut child = command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
    let line = child.stdin.take(); // Or waiting for the child would close it.
    Ok((child, line))
}

async fn send(
    found: &Found,
    direct: bool,
    worker: &Worker,
    endpoint: &Endpoint,
    content: Vec<u8>,
) -> Outcome<()> {
    let context = worker.context();
    let (length, sent) = (content.len(), digest(&content));
    let (here, there) = (found.first(), found.second());
    let report = |verb: &str, operation, from, to, took| {
        let way = endpoint.explain(operation, from, to, length);
        let rate = found.rate(length, took);
        say(format_args!("{verb}: {rate}\n  {way}"));
    };
    let memory = context.allocate_on(here, length).await?;
    let file: Buffer = worker.copy(content, memory).await?.freeze();

    let head = [&(length as u64).to_le_bytes()[..], &sent].concat();
    endpoint.tag_send(HEAD, head).await?;
    worker.tag_recv(READY, Vec::new()).await?;
    let start = Instant::now();
    let send = endpoint.tag_send(FILE, file.clone());
    match direct {
        true => send.forbid_staging().await?,
        false => send.await?,
    }
    report(
        "tag to the other process",
        Operation::TagSend,
        here,
        there,
        start.elapsed(),
    );
    compare("tag, in the other process", &sent, &verdict(worker).await?)?;

    let received = worker.tag_recv(DESCRIPTOR, vec![0; 4096]).await?;
    let remote = endpoint.import(&Descriptor::from_bytes(&received.buffer[..received.len])?)?;
    if remote.len() != length {
        return Err(format!(
            "the other process exposes {} bytes, not {length}",
            remote.len()
        )
        .into());
    }
    let start = Instant::now();
    let put = endpoint.put(file, remote.clone());
    match direct {
        true => put.forbid_staging().await?,
        false => put.await?,
    }
    report(
        "put into the other process",
        Operation::Put,
        here,
        there,
        start.elapsed(),
    );

    let memory = context.allocate_on(here, length).await?;
    let start = Instant::now();
    let get = endpoint.get(remote, memory);
    let got = match direct {
        true => get.forbid_staging().await?,
        false => get.await?,
    };
    report(
        "get from the other process",
        Operation::Get,
        there,
        here,
        start.elapsed(),
    );
    let got = worker.copy(got.freeze(), vec![0; length]).await?;
    compare("get, back in this process", &sent, &digest(&got))?;

    endpoint.tag_send(LOOK, Vec::new()).await?;
    compare("put, in the other process", &sent, &verdict(worker).await?)
}

async fn verdict(worker: &Worker) -> Outcome<Vec<u8>> {
    let mut received = worker.tag_recv(VERDICT, vec![0; 64]).await?;
    received.buffer.truncate(received.len);
    Ok(received.buffer)
}

/// The process that connects to `address`.
pub(crate) fn second(device: Vendor, transports: &str, address: &str) -> Outcome<()> {
    let found = find(device)?;
    let transports = format!("{transports},{}", device.name());
    runtime()?.block_on(receive(&found, &transports, address))
}

async fn receive(found: &Found, transports: &str, address: &str) -> Outcome<()> {
    let context = Context::builder().transports(transports)?.build()?;
    let worker = Worker::new(&context)?;
    let endpoint = worker.connect(address).await?;
    let received = worker.tag_recv(HEAD, vec![0; 64]).await?;
    let head = &received.buffer[..received.len];
    let (length, sent) = head
        .split_first_chunk::<8>()
        .ok_or("a head that is too short")?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;

    let memory = context.allocate_on(found.second(), length).await?;
    endpoint.tag_send(READY, Vec::new()).await?;
    let received = worker.tag_recv(FILE, memory).await?;
    if received.len != length {
        return Err(format!("{} bytes came, not {length}", received.len).into());
    }
    tell(&worker, &endpoint, received.buffer.freeze(), sent).await?;

    let memory = context.allocate_on(found.second(), length).await?;
    let region = context.expose(memory, Access::READ | Access::WRITE).await?;
    let descriptor = region.descriptor()?.to_bytes();
    endpoint.tag_send(DESCRIPTOR, descriptor).await?;
    worker.tag_recv(LOOK, Vec::new()).await?;
    tell(&worker, &endpoint, region.unexpose().await.freeze(), sent).await?;

    // The first process gets until it closes.
    endpoint.closed().await;
    worker.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Tells the first process the digest of what is in device memory here.
async fn tell(worker: &Worker, to: &Endpoint, memory: Buffer, expected: &[u8]) -> Outcome<()> {
    let room = vec![0; memory.len()];
    let seen = digest(&worker.copy(memory, room).await?);
    to.tag_send(VERDICT, seen.to_vec()).await?;
    match seen == expected {
        true => Ok(()),
        false => Err("what arrived is not what was sent".into()),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build()
}

/// The pipe from the first process ends with it; when all goes well, this process ends before. A thread, because a runtime waits at its end
/// for a read of the standard input.
pub(crate) fn end_with_the_first(name: &str) {
    let name = name.to_owned();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        eprintln!("{name}: the first process is gone");
        std::process::exit(2);
    });
}
