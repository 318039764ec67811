//! A file to a device, from there to another place on a device, and back: the digests must agree.
//!
//! `cargo run --release --example host_to_device -- [--device cuda|gaudi|rocm] [--layer endpoint|transport] [--memory wharf|program] [FILE]` (without FILE: `Cargo.lock`). It takes the accelerator of this
//! machine, and where there is none an emulated one, and says which. The paths and rates are printed, and the exit code tells whether the bytes that
//! came back are those that went.
//!
//! * `--layer endpoint`, the default: a context, a worker that is connected to itself, and `put` and `get`, which own their buffers. The
//!   worker knows whose memory is where, brings the bytes through pinned fragments and waits for the device.
//! * `--layer transport`: the same without a worker, by what the worker uses: the memory domain allocates, the copy engine copies, its fds wake. Here the
//!   program keeps the promises: what is being copied stays where it is, and nobody else touches it.
//!
//! Device memory is allocated by wharf; with `--memory program`, at the first layer, by the vendor's own calls (`common/own_memory.rs`), as in a program that has its
//! memory from a framework. wharf finds out by the address whose it is, and nothing else is different. Of a Gaudi the program acquires the first card by Synapse.
//!
//! # Safety
//! Only the second layer needs it: each copy's ends belong to this program until it was reported, and the engine is brought to rest, whatever
//! happens, before their memory goes ([`Engine`], which is made after them and so dropped before).
#![allow(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use tokio::io::{Interest, unix::AsyncFd};
use wharf::{
    Access, BufferMut, Context, MemoryType, Operation, Worker,
    memory::{DomainMemory, MemoryDomain},
    transport::{Accelerator, CopyEnd, CopyEngine, CopyRequest, CopySink, Registry, SendError},
};

#[path = "common/accelerator.rs"]
mod accelerator;
#[path = "common/own_memory.rs"]
mod own_memory;

use accelerator::{Found, Outcome, compare, digest, find, read, say, vendor};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("host_to_device: {error}");
            ExitCode::FAILURE
        }
    }
}

/// All of it, by what the command line says.
pub(crate) fn run(arguments: &[String]) -> Outcome<()> {
    let usage = "usage: host_to_device [--device cuda|gaudi|rocm] [--layer endpoint|transport] [--memory wharf|program] [FILE]";
    let (device, arguments) = vendor(arguments)?;
    let (layer, rest) = match arguments {
        [flag, layer, rest @ ..] if flag == "--layer" => (layer.as_str(), rest),
        rest => ("endpoint", rest),
    };
    let (memory, rest) = match rest {
        [flag, memory, rest @ ..] if flag == "--memory" => (memory.as_str(), rest),
        rest => ("wharf", rest),
    };
    let file = match rest {
        [] => PathBuf::from("Cargo.lock"),
        [file] if !file.starts_with('-') => PathBuf::from(file),
        _ => return Err(usage.into()),
    };
    let is_known = match layer {
        "endpoint" => ["wharf", "program"].contains(&memory),
        "transport" => memory == "wharf",
        _ => false,
    };
    if !is_known {
        return Err(usage.into());
    }
    let content = read(Path::new(&file))?;
    let found = find(device)?;
    found.introduce();
    say(format_args!("{}: {} bytes", file.display(), content.len()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let sent = digest(&content);
    let got = match layer {
        "endpoint" => runtime.block_on(by_endpoint(
            &found,
            device.name(),
            memory == "program",
            content,
        ))?,
        _ => runtime.block_on(by_transport(&found, &content))?,
    };
    compare(layer, &sent, &digest(&got))
}

/// By a context, a worker and an endpoint.
async fn by_endpoint(
    found: &Found,
    device: &str,
    is_own: bool,
    content: Vec<u8>,
) -> Outcome<Vec<u8>> {
    let (here, mut there) = (found.first(), found.second());
    if is_own && matches!(here, MemoryType::Gaudi(_)) {
        // A process has one card of Synapse's.
        there = here;
    }
    let length = content.len();
    let context = Context::builder()
        .transports(&format!("self,{device}"))?
        .build()?;
    let worker = Worker::new(&context)?;
    let endpoint = worker.connect(&worker.address()?).await?;
    let report = |verb, operation, from, to, took| {
        let way = endpoint.explain(operation, from, to, length);
        let rate = found.rate(length, took);
        say(format_args!("{verb} {from} to {to}: {rate}\n  {way}"));
    };

    let allocate = async |device| -> Outcome<BufferMut> {
        let memory = match is_own {
            true => own_memory::allocate(&context, device, length)?,
            false => context.allocate_on(device, length).await?,
        };
        let found = memory.memory_type();
        let who = match is_own {
            true => "the program",
            false => "wharf",
        };
        say(format_args!("memory of {found}, allocated by {who}"));
        Ok(memory)
    };

    // Memory of a device is a buffer like any other, and can be exposed to peers: here to ourselves.
    let access = Access::READ | Access::WRITE;
    let memory = allocate(here).await?;
    let region = context.expose(memory, access).await?;
    let remote = endpoint.import(&region.descriptor()?)?;
    // The first transfer opens the device. That is not what is measured.
    endpoint.put(vec![0; 1], remote.slice(..1)).await?;

    let start = Instant::now();
    endpoint.put(content, remote.clone()).await?;
    report(
        "put",
        Operation::Put,
        MemoryType::Host,
        here,
        start.elapsed(),
    );

    let other = allocate(there).await?;
    let start = Instant::now();
    let other = endpoint.get(remote, other).await?;
    report("get", Operation::Get, here, there, start.elapsed());

    let region = context.expose(other, access).await?;
    let remote = endpoint.import(&region.descriptor()?)?;
    let start = Instant::now();
    let back = endpoint.get(remote, vec![0; length]).await?;
    report(
        "get",
        Operation::Get,
        there,
        MemoryType::Host,
        start.elapsed(),
    );

    endpoint.close().await?;
    worker.shutdown(Duration::from_secs(5)).await?;
    Ok(back)
}

/// By the accelerator's memory domain and copy engine.
async fn by_transport(found: &Found, content: &[u8]) -> Outcome<Vec<u8>> {
    let (here, there) = (found.first(), found.second());
    let length = content.len();
    let accelerator = &*found.accelerator;
    let domain = accelerator.domain();
    say(format_args!(
        "{}: memory by the domain {}, copies by its engine",
        accelerator.name(),
        domain.name()
    ));

    // First the memory, so that it goes after the engine: a program that stops in the middle must not free what a device still reads.
    let first = domain.allocate(here, length)?;
    let second = domain.allocate(there, length)?;
    let mut back = vec![0; length];
    let mut fragments = Vec::new();
    let mut engine = Engine::open(accelerator)?;
    let (fragment, longest) = (engine.fragment(), engine.longest());
    for _ in 0..FRAGMENTS.min(length.div_ceil(fragment)) {
        fragments.push(Fragment::new(&*domain, fragment.min(length))?);
    }
    // The first copy opens the device, too.
    let (from, to) = (fragments[0].end(), at(&*first, 0));
    engine.copy(from, to, 1, 0).await?;
    engine.settle(0).await?;
    let count = fragments.len();
    let report = |what, from, to, way: &str, took| {
        let rate = found.rate(length, took);
        say(format_args!("{what} {from} to {to}: {rate}\n  {way}"));
    };

    let way = format!("through pinned fragments of {fragment} bytes, {count} in turn");
    let start = Instant::now();
    engine.store(content, &*first, &mut fragments).await?;
    report("copy", MemoryType::Host, here, &way, start.elapsed());

    let start = Instant::now();
    for offset in (0..length).step_by(longest) {
        let (from, to) = (at(&*first, offset), at(&*second, offset));
        engine
            .copy(from, to, longest.min(length - offset), 0)
            .await?;
        engine.settle(0).await?;
    }
    report("copy", here, there, "by the engine alone", start.elapsed());

    let start = Instant::now();
    engine.load(&*second, &mut back, &mut fragments).await?;
    report("copy", there, MemoryType::Host, &way, start.elapsed());
    drop(engine);
    Ok(back)
}

/// So many fragments are filled, copied and emptied at the same time.
const FRAGMENTS: usize = 4;

/// Pinned host memory, which the device reads and writes by itself.
struct Fragment(BufferMut);

impl Fragment {
    fn new(domain: &dyn MemoryDomain, length: usize) -> Outcome<Self> {
        let memory = domain.allocate(MemoryType::HostPinned, length)?;
        Ok(Self(memory.into()))
    }

    fn bytes(&mut self) -> Outcome<&mut [u8]> {
        let bytes = self.0.as_mut_slice();
        bytes.ok_or_else(|| "pinned memory that the host does not reach".into())
    }

    fn end(&mut self) -> CopyEnd {
        CopyEnd::Host {
            address: self.0.address(),
            pinned: true,
        }
    }
}

/// The end of a copy at a place in a device's memory.
fn at(memory: &dyn DomainMemory, offset: usize) -> CopyEnd {
    CopyEnd::Device {
        address: memory.range().start() + offset as u64,
        memory_type: memory.memory_type(),
    }
}

/// A copy engine, with the poll that its fds are registered with.
struct Engine {
    engine: Box<dyn CopyEngine>,
    poll: AsyncFd<mio::Poll>,
    events: mio::Events,
    reports: Reports,
}

/// What was reported and nobody has asked for yet, by token.
#[derive(Default)]
struct Reports {
    copied: Vec<(u64, wharf::Result<()>)>,
    lost: Option<wharf::Error>,
}

impl CopySink for Reports {
    fn copied(&mut self, token: u64, result: wharf::Result<()>) {
        self.copied.push((token, result));
    }

    fn lost(&mut self, error: wharf::Error) {
        self.lost = Some(error);
    }
}

impl Engine {
    fn open(accelerator: &dyn Accelerator) -> Outcome<Self> {
        let mut engine = accelerator.open()?;
        let poll = mio::Poll::new()?;
        engine.register(Registry::new(poll.registry().try_clone()?, 0))?;
        // SAFETY: a poll has one fd, from when it is made until it is dropped, and nothing here takes it out.
        let poll = unsafe { AsyncFd::register_with_interest(poll, Interest::READABLE)? };
        Ok(Self {
            engine,
            poll,
            events: mio::Events::with_capacity(16),
            reports: Reports::default(),
        })
    }

    fn fragment(&self) -> usize {
        let attributes = self.engine.attributes();
        attributes.fragment.min(attributes.max_copy)
    }

    fn longest(&self) -> usize {
        self.engine.attributes().max_copy
    }

    /// Begins a copy. Who calls keeps both ends until [`settle`](Self::settle) has told of the token, or this engine has gone.
    async fn copy(&mut self, from: CopyEnd, to: CopyEnd, length: usize, token: u64) -> Outcome<()> {
        let request = CopyRequest {
            from,
            to,
            length,
            token,
            unstaged: false,
        };
        loop {
            // SAFETY: the callers are in this file: the ends are memory that lives longer than this engine (`by_transport` makes them first),
            // and a fragment is touched again only after its copy was reported.
            match unsafe { self.engine.copy(request) } {
                Ok(()) => break,
                Err(SendError::Full) => self.turn().await?,
                Err(SendError::Failed(error)) => return Err(error.into()),
            }
        }
        self.engine.flush();
        Ok(())
    }

    /// Waits until the copy with this token is over.
    async fn settle(&mut self, token: u64) -> Outcome<()> {
        loop {
            let mut reports = self.reports.copied.iter();
            if let Some(place) = reports.position(|(other, _)| *other == token) {
                return Ok(self.reports.copied.swap_remove(place).1?);
            }
            self.turn().await?;
        }
    }

    /// Looks for reports; sleeps when there is none.
    async fn turn(&mut self) -> Outcome<()> {
        if self.engine.progress(64, &mut self.reports) > 0 {
            return Ok(());
        }
        if let Some(error) = self.reports.lost.take() {
            return Err(error.into());
        }
        // Arm, then look again, then sleep: what completes in between is not missed.
        if self.engine.arm() {
            let mut ready = self.poll.readable_mut().await?;
            let poll = ready.get_inner_mut();
            poll.poll(&mut self.events, Some(Duration::ZERO))?;
            ready.clear_ready();
            for event in &self.events {
                self.engine.ready(event.token().0);
            }
        }
        self.engine.disarm();
        Ok(())
    }

    /// Host memory to a device: a fragment is filled while the device copies the others.
    async fn store(
        &mut self,
        content: &[u8],
        to: &dyn DomainMemory,
        fragments: &mut [Fragment],
    ) -> Outcome<()> {
        let (size, count) = (self.fragment(), fragments.len());
        for (index, part) in content.chunks(size).enumerate() {
            let fragment = &mut fragments[index % count];
            if index >= count {
                self.settle((index - count) as u64).await?;
            }
            fragment.bytes()?[..part.len()].copy_from_slice(part);
            let (from, to) = (fragment.end(), at(to, index * size));
            self.copy(from, to, part.len(), index as u64).await?;
        }
        let parts = content.len().div_ceil(size);
        for index in parts.saturating_sub(count)..parts {
            self.settle(index as u64).await?;
        }
        Ok(())
    }

    /// A device's memory to the host's: a fragment is emptied while the device copies into the others.
    async fn load(
        &mut self,
        from: &dyn DomainMemory,
        content: &mut [u8],
        fragments: &mut [Fragment],
    ) -> Outcome<()> {
        let (size, count, length) = (self.fragment(), fragments.len(), content.len());
        let parts = length.div_ceil(size);
        for index in 0..parts + count {
            let fragment = &mut fragments[index % count];
            // What was copied into it last goes on to its place.
            if let Some(before) = index.checked_sub(count) {
                self.settle(before as u64).await?;
                let place = before * size..length.min((before + 1) * size);
                let part = &fragment.bytes()?[..place.len()];
                content[place].copy_from_slice(part);
            }
            if index < parts {
                let (from, to) = (at(from, index * size), fragment.end());
                let part = size.min(length - index * size);
                self.copy(from, to, part, index as u64).await?;
            }
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // From here on the device touches nothing of what was copied.
        self.engine.quiesce(Instant::now() + Duration::from_secs(5));
    }
}
