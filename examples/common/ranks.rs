//! A group of processes on this machine: this program, started again for each rank but the first.

use std::{
    error::Error,
    io::{BufRead, Read},
    process::Stdio,
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, Command},
};
use wharf::{
    Worker,
    channel::{
        Communicator,
        bootstrap::{BootstrapOptions, TcpBootstrap, TcpRoot, UniqueId},
    },
};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The processes of the other ranks. They end with this one.
pub(crate) struct Others(Vec<(Child, ChildStdin)>);

impl Others {
    /// Waits for their ends, which are to be good.
    pub(crate) async fn end(self) -> Outcome<()> {
        for (rank, (mut child, line)) in (1..).zip(self.0) {
            let status = child.wait().await?;
            drop(line);
            if !status.success() {
                return Err(format!("rank {rank} failed: {status}").into());
            }
        }
        Ok(())
    }
}

/// Starts the other ranks by `command`, and becomes rank 0. The group's id, which is secret, goes through their standard inputs.
pub(crate) async fn lead(
    worker: &Worker,
    size: usize,
    command: impl Fn(usize) -> Outcome<Command>,
) -> Outcome<(Communicator, Others)> {
    let root = TcpRoot::bind("127.0.0.1:0").await?;
    let id = format!("{}\n", root.unique_id());
    let mut others = Vec::new();
    for rank in 1..size {
        let mut command = command(rank)?;
        let mut child = command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
        let mut line = child.stdin.take().ok_or("a standard input")?;
        line.write_all(id.as_bytes()).await?;
        others.push((child, line));
    }
    let bootstrap = root.join(size, &options()).await?;
    let communicator = Communicator::new(Arc::new(bootstrap), worker).await?;
    Ok((communicator, Others(others)))
}

/// Becomes one of the other ranks.
pub(crate) async fn follow(worker: &Worker, rank: usize, size: usize) -> Outcome<Communicator> {
    let (told, tells) = tokio::sync::oneshot::channel();
    // A thread, because a runtime waits at its end for a read of the standard input.
    thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut line = String::new();
        let _ = input.read_line(&mut line);
        let _ = told.send(line);
        // When all goes well, this process ends before its input does.
        let _ = input.read_to_end(&mut Vec::new());
        eprintln!("rank 0 is gone");
        std::process::exit(2);
    });
    let id: UniqueId = tells.await?.trim().parse()?;
    let bootstrap = TcpBootstrap::join(id, rank, size, &options()).await?;
    Ok(Communicator::new(Arc::new(bootstrap), worker).await?)
}

fn options() -> BootstrapOptions {
    BootstrapOptions::new().deadline(Duration::from_secs(30))
}

pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build()
}
