//! wharf itself: the one file that calls its API.
//!
//! Comes in: a half and its measurement. Goes out: nanoseconds, millions a second, GB a second, KiB, or wake-ups.
//! The variant names the progress policy: `busy`, `event` or `adaptive`.
//!
//! Everything runs in a spawned task of a current-thread runtime, as a user's code would. The link blocks the thread, so it is used
//! only between the two tasks of [`run`]: the one that makes the worker, and the one that connects and measures.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{
    Access, AmId, AmInbox, Buffer, BytesInPlace, Context, Descriptor, Endpoint, HostBufferMut,
    Listener, Op, Progress, ReceiveBuffer, Received, RemoteLayout, RemoteRegion, Tag, Tls, Worker,
};

use crate::certificates::Authority;
use crate::half::{Arrivals, Half, LAST, Laps, Role, spin_for, stamp};
use crate::sockets::GO;
use crate::spec::{Spec, Verb};
use crate::{Outcome, process, rdma_core, runtime, sockets};

/// False leaves wharf's column empty.
pub(crate) const READY: bool = true;

const DATA: Tag = Tag(7);
const ACK: Tag = Tag(9);
const MEET: Tag = Tag(10);
const DESCRIPTOR: Tag = Tag(11);
const AM: AmId = AmId(3);

/// A message of this length ends a measurement; none that is measured has it.
const STOP: usize = 1;

pub(crate) fn run(half: &mut Half) -> Outcome<f64> {
    let runtime = runtime()?;
    let (spec, role) = (half.spec.clone(), half.role);
    let mut side = runtime.block_on(runtime.spawn(Side::new(spec, role)))??;
    // What `A` has to know before it can connect, and whom it watches.
    if let Some(listener) = &side.listener {
        let line = format!("{} {}", listener.local_addr(), std::process::id());
        half.link.send(&line)?;
    } else {
        let line = half.link.receive()?;
        let (address, pid) = line.split_once(' ').ok_or("no address and process")?;
        (side.address, side.pid) = (address.to_owned(), pid.parse()?);
    }
    let (side, value) = runtime.block_on(runtime.spawn(side.measure()))??;
    let value = match half.spec.verb {
        Verb::Parked | Verb::Signal => half.hand_over(value)?,
        // The end that grew more.
        Verb::Memory => half.hand_over(value)?.max(value),
        _ => value,
    };
    half.barrier()?;
    drop(side);
    Ok(value)
}

/// All bytes, as the callback of UCX's column adds them.
fn sum(data: &BytesInPlace<'_>) -> u64 {
    let word = |word: &[u8; 8]| u64::from_ne_bytes(*word);
    let (chunks, rest) = data.chunks::<64>();
    let sums = chunks.map(|chunk| {
        let words = chunk.as_chunks().0.iter().map(word);
        words.fold(0, u64::wrapping_add)
    });
    let rest = rest.chunks().0.map(|bytes| word(&bytes));
    sums.chain(rest).fold(0, u64::wrapping_add)
}

/// One end: its worker, and what it needs to reach the other one.
struct Side {
    spec: Spec,
    role: Role,
    context: Context,
    worker: Worker,
    /// `B`'s.
    listener: Option<Listener>,
    /// Where `A` connects to.
    address: String,
    /// `B`'s process.
    pid: u32,
    /// Those beyond the first, which stays with the measurement.
    endpoints: Vec<Endpoint>,
}

impl Side {
    async fn new(spec: Spec, role: Role) -> Outcome<Self> {
        let transports = match spec.transport.as_str() {
            "shm" => "shm,cma",
            "tls" => "tcp",
            other => other,
        };
        let progress = match spec.variant.as_str() {
            // perftest's sleeps as well.
            _ if spec.transport == rdma_core::TRANSPORT
                && role == Role::B
                && matches!(spec.verb, Verb::Put | Verb::Get | Verb::FetchAdd) =>
            {
                Progress::EventDriven
            }
            "busy" => Progress::Busy,
            "event" => Progress::EventDriven,
            "adaptive" => Progress::Adaptive,
            other => return Err(format!("no progress policy `{other}`").into()),
        };
        let context = Context::builder()
            .transports(transports)?
            .progress(progress);
        let context = match spec.transport.as_str() {
            "tls" => {
                let authority = Authority::known();
                let shown = authority.issue(&["127.0.0.1"]);
                let server = authority.server(&shown, false);
                context.tls(Tls::new(authority.client(None), server))
            }
            _ => context,
        };
        let context = context.build()?;
        let worker = Worker::new(&context)?;
        let listener = match role {
            Role::A => None,
            Role::B => Some(worker.listen("127.0.0.1:0").await?),
        };
        Ok(Self {
            spec,
            role,
            context,
            worker,
            listener,
            address: String::new(),
            pid: 0,
            endpoints: Vec::new(),
        })
    }

    /// `A` connects and `B` accepts, once.
    async fn connect(&mut self) -> Outcome<Endpoint> {
        Ok(match &mut self.listener {
            Some(listener) => listener.accept().await?.accept().await?,
            None => self.worker.connect(self.address.as_str()).await?,
        })
    }

    /// As many more as the measurement wants.
    async fn connect_more(&mut self) -> Outcome<()> {
        for _ in 0..self.spec.size {
            let endpoint = self.connect().await?;
            self.endpoints.push(endpoint);
        }
        Ok(())
    }

    async fn measure(mut self) -> Outcome<(Self, f64)> {
        // The first connection is no part of any figure: code and tables are made with it.
        let endpoint = self.connect().await?;
        let inbox = self.worker.active_messages(AM).open()?;
        self.meet(&endpoint).await?;
        let first = match (self.spec.verb, self.role) {
            (Verb::Latency, Role::A) => self.ping(&endpoint).await,
            (Verb::Latency, Role::B) => self.pong(&endpoint).await,
            (Verb::Rate, Role::A) => self.rate(&endpoint).await,
            (Verb::Rate, Role::B) => self.swallow(&endpoint).await,
            (Verb::Stream | Verb::StreamOwned, Role::A) => self.stream(&endpoint).await,
            (Verb::Stream, Role::B) => {
                let buffers = vec![vec![1; self.spec.size]; self.spec.window()];
                self.drain(&endpoint, buffers).await
            }
            (Verb::StreamOwned, Role::B) => {
                let mut buffers = Vec::new();
                for _ in 0..self.spec.window() {
                    buffers.push(self.owned().await?);
                }
                self.drain(&endpoint, buffers).await
            }
            (Verb::AmLatency | Verb::AmReadLatency | Verb::AmKeptLatency, role) => match role {
                Role::A => self.am_ping(&endpoint, inbox).await,
                Role::B => self.am_pong(&endpoint, inbox).await,
            },
            (Verb::AmStream | Verb::AmReadStream | Verb::AmKeptStream, role) => match role {
                Role::A => self.am_stream(&endpoint).await,
                Role::B => self.am_drain(&endpoint, inbox).await,
            },
            (Verb::Put, Role::A) => self.put(&endpoint).await,
            (Verb::PutLatency, _) => self.put_ping(&endpoint).await,
            (Verb::Get, Role::A) => self.get(&endpoint).await,
            (Verb::FetchAdd, Role::A) => self.fetch_add(&endpoint).await,
            (Verb::Put | Verb::Get | Verb::FetchAdd, Role::B) => self.lend(&endpoint).await,
            (Verb::SignalLatency, _) => self.signal_ping(&endpoint).await,
            (Verb::Signal, Role::A) => self.raise(&endpoint).await,
            (Verb::Signal, Role::B) => self.wait(&endpoint).await,
            (Verb::Parked, Role::A) => self.wake(&endpoint).await,
            (Verb::Parked, Role::B) => self.sleep().await,
            (Verb::Idle, _) => self.idle(&endpoint).await,
            (Verb::Memory, _) => self.memory(&endpoint).await,
            (Verb::Many, _) => self.many().await,
            (Verb::BytesOwned, Role::A) => {
                let message = Buffer::from(vec![GO; self.spec.size]);
                self.write_owned(&endpoint, message).await
            }
            (Verb::BytesAllocated, Role::A) => {
                let mut message = self.context.allocate(self.spec.size).await?;
                message.fill(GO);
                self.write_owned(&endpoint, message.freeze()).await
            }
            (Verb::Bytes | Verb::BytesLatency, Role::A) => {
                sockets::bytes(&self.spec, true, endpoint.stream().await?).await
            }
            (
                Verb::Bytes | Verb::BytesOwned | Verb::BytesAllocated | Verb::BytesLatency,
                Role::B,
            ) => sockets::bytes(&self.spec, false, endpoint.accept_stream().await?).await,
        };
        let value = first?;
        self.meet(&endpoint).await?;
        self.endpoints.push(endpoint);
        Ok((self, value))
    }

    /// Both ends come here.
    async fn meet(&self, endpoint: &Endpoint) -> Outcome<()> {
        endpoint.tag_send(MEET, Vec::new()).await?;
        self.worker.tag_recv(MEET, Vec::new()).await?;
        Ok(())
    }

    fn ordinary(&self) -> Buffer {
        vec![1; self.spec.size].into()
    }

    async fn owned(&self) -> Outcome<HostBufferMut> {
        let mut buffer = self.context.allocate(self.spec.size).await?;
        buffer.fill(1);
        Ok(buffer)
    }

    async fn ping(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let (message, mut answer) = (self.ordinary(), vec![0; self.spec.size]);
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                endpoint.tag_send(DATA, &message).await?;
                answer = self.worker.tag_recv(DATA, answer).await?.buffer;
            }
            if !laps.lap() {
                endpoint.tag_send(DATA, message.slice(..STOP)).await?;
                return Ok(laps.median() / 2.0);
            }
        }
    }

    async fn pong(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let (message, mut buffer) = (self.ordinary(), vec![0; self.spec.size]);
        loop {
            let received = self.worker.tag_recv(DATA, buffer).await?;
            if received.len == STOP {
                return Ok(0.0);
            }
            buffer = received.buffer;
            endpoint.tag_send(DATA, &message).await?;
        }
    }

    async fn am_ping(&self, endpoint: &Endpoint, mut inbox: AmInbox) -> Outcome<f64> {
        let message = self.ordinary();
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                endpoint.am_send(AM, Buffer::new(), &message).await?;
                self.am_take(&mut inbox).await?;
            }
            if !laps.lap() {
                let stop = message.slice(..STOP);
                endpoint.am_send(AM, Buffer::new(), stop).await?;
                return Ok(laps.median() / 2.0);
            }
        }
    }

    /// Takes the next message as the measurement says; its length.
    #[inline]
    async fn am_take(&self, inbox: &mut AmInbox) -> Outcome<usize> {
        let taken = match self.spec.verb {
            Verb::AmKeptLatency | Verb::AmKeptStream => {
                inbox.recv().await.map(|message| message.len())
            }
            Verb::AmReadLatency | Verb::AmReadStream => {
                let look = inbox.recv_with(|message| {
                    std::hint::black_box(message.data().map_or(0, |data| sum(&data)));
                    message.len()
                });
                look.await
            }
            _ => inbox.recv_with(|message| message.len()).await,
        };
        Ok(taken.ok_or("no message")?)
    }

    async fn am_pong(&self, endpoint: &Endpoint, mut inbox: AmInbox) -> Outcome<f64> {
        let message = self.ordinary();
        loop {
            if self.am_take(&mut inbox).await? == STOP {
                return Ok(0.0);
            }
            endpoint.am_send(AM, Buffer::new(), &message).await?;
        }
    }

    async fn am_stream(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let message = self.ordinary();
        let mut window = Window::new(&self.spec);
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                let send = endpoint.am_send(AM, Buffer::new(), &message);
                if let Some(oldest) = window.add(send.post()?) {
                    oldest.await?;
                }
            }
            if !laps.lap() {
                break;
            }
        }
        window.finish().await?;
        let stop = message.slice(..STOP);
        endpoint.am_send(AM, Buffer::new(), stop).await?;
        self.worker.tag_recv(ACK, Vec::new()).await?;
        Ok(self.spec.size as f64 / laps.mean())
    }

    async fn am_drain(&self, endpoint: &Endpoint, mut inbox: AmInbox) -> Outcome<f64> {
        while self.am_take(&mut inbox).await? != STOP {}
        endpoint.tag_send(ACK, Vec::new()).await?;
        Ok(0.0)
    }

    /// Short messages; how many are in flight is the transport's affair.
    async fn rate(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let message = self.ordinary();
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                endpoint.tag_send(DATA, &message).await?;
            }
            if !laps.lap() {
                break;
            }
        }
        self.finish(endpoint).await?;
        Ok(1e3 / laps.mean())
    }

    async fn swallow(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let mut buffer = vec![0; self.spec.size];
        loop {
            let received = self.worker.tag_recv(DATA, buffer).await?;
            if received.len == STOP {
                break;
            }
            buffer = received.buffer;
        }
        endpoint.tag_send(ACK, Vec::new()).await?;
        Ok(0.0)
    }

    async fn stream(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let message = match self.spec.verb {
            Verb::StreamOwned => self.owned().await?.freeze(),
            _ => self.ordinary(),
        };
        let mut window = Window::new(&self.spec);
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                if let Some(oldest) = window.add(endpoint.tag_send(DATA, &message).post()?) {
                    oldest.await?;
                }
            }
            if !laps.lap() {
                break;
            }
        }
        window.finish().await?;
        self.finish(endpoint).await?;
        Ok(self.spec.size as f64 / laps.mean())
    }

    /// Says that nothing more comes, and waits until all has come.
    async fn finish(&self, endpoint: &Endpoint) -> Outcome<()> {
        endpoint.tag_send(DATA, vec![0; STOP]).await?;
        self.worker.tag_recv(ACK, Vec::new()).await?;
        Ok(())
    }

    /// A window of posted receives, each posted again with its buffer when it is over.
    async fn drain<B: ReceiveBuffer + Unpin + Sync>(
        &self,
        endpoint: &Endpoint,
        buffers: Vec<B>,
    ) -> Outcome<f64> {
        let post = |buffer| self.worker.tag_recv(DATA, buffer).post();
        let mut posted: VecDeque<Op<Received<B>>> = buffers.into_iter().map(post).collect();
        while let Some(oldest) = posted.pop_front() {
            let received = oldest.await?;
            if received.len == STOP {
                break;
            }
            posted.push_back(post(received.buffer));
        }
        endpoint.tag_send(ACK, Vec::new()).await?;
        Ok(0.0)
    }

    /// Writes buffers that the stream owns, as [`sockets::bytes`] writes slices.
    async fn write_owned(&self, endpoint: &Endpoint, message: Buffer) -> Outcome<f64> {
        let mut stream = endpoint.stream().await?;
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                stream.write_buffer(message.clone()).await?;
            }
            if !laps.lap() {
                break;
            }
        }
        stream
            .write_all(&vec![sockets::STOP; self.spec.size])
            .await?;
        stream.read_u8().await?;
        Ok(self.spec.size as f64 / laps.mean())
    }

    async fn borrow(&self, endpoint: &Endpoint) -> Outcome<RemoteRegion> {
        let space = vec![0; 4096];
        let received = self.worker.tag_recv(DESCRIPTOR, space).await?;
        let bytes = received.buffer.get(..received.len).unwrap_or_default();
        Ok(endpoint.import(&Descriptor::from_bytes(bytes)?)?)
    }

    /// The target of puts and gets: it only waits for the end.
    async fn lend(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let access = match self.spec.verb {
            // As perftest does it: by the device.
            Verb::FetchAdd if self.spec.transport == rdma_core::TRANSPORT => Access::DEVICE_ATOMIC,
            _ => Access::READ | Access::WRITE,
        };
        let region = self.context.expose(self.owned().await?, access).await?;
        let bytes = region.descriptor()?.to_bytes();
        endpoint.tag_send(DESCRIPTOR, bytes).await?;
        self.swallow(endpoint).await
    }

    async fn put(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let remote = RemoteLayout::from(self.borrow(endpoint).await?);
        let message = self.owned().await?.freeze();
        let mut window = Window::new(&self.spec);
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                if let Some(oldest) = window.add(endpoint.put(&message, &remote).post()?) {
                    oldest.await?;
                }
            }
            if !laps.lap() {
                break;
            }
        }
        window.finish().await?;
        endpoint.flush().await?;
        let value = self.spec.size as f64 / laps.mean();
        self.finish(endpoint).await?;
        Ok(value)
    }

    /// Each end puts into the other's memory and looks at its own until the other's put is there.
    async fn put_ping(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let access = Access::READ | Access::WRITE;
        let region = self.context.expose(self.owned().await?, access).await?;
        let bytes = region.descriptor()?.to_bytes();
        endpoint.tag_send(DESCRIPTOR, bytes).await?;
        let remote = self.borrow(endpoint).await?;
        let mut message = self.owned().await?;
        // The last word is written last.
        let last = self.spec.size - 8;
        // Where the target has to take part, it does now and then. A device's needs nobody: as perftest it only looks.
        let looks = match self.spec.transport.as_str() {
            rdma_core::TRANSPORT => 1 << 20,
            _ => 256,
        };
        let seen = async |number: u64| -> Outcome<u64> {
            for look in 1_u64.. {
                let found = region.load::<u64>(last)?;
                if found == number || found == u64::MAX {
                    return Ok(found);
                }
                if look.is_multiple_of(looks) {
                    tokio::task::yield_now().await;
                }
            }
            Ok(0)
        };
        let mut number = 0x1_0000_0000;
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                number += 1;
                if self.role == Role::B && seen(number).await? == u64::MAX {
                    return Ok(0.0);
                }
                message[last..].copy_from_slice(&number.to_le_bytes());
                let put = endpoint.put(message.to_vec(), remote.clone());
                put.local().await?;
                if self.role == Role::A {
                    seen(number).await?;
                }
            }
            if self.role == Role::A && !laps.lap() {
                let end = u64::MAX.to_le_bytes();
                let place = remote.slice(last..);
                endpoint.put(end.to_vec(), place).await?;
                return Ok(laps.median() / 2.0);
            }
        }
    }

    async fn get(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let remote = RemoteLayout::from(self.borrow(endpoint).await?);
        let mut buffer = self.owned().await?;
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                buffer = endpoint.get(&remote, buffer).await?;
            }
            if !laps.lap() {
                break;
            }
        }
        self.finish(endpoint).await?;
        Ok(laps.median())
    }

    async fn fetch_add(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let remote = self.borrow(endpoint).await?;
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                remote.fetch_add(0, 1_u64).await?;
            }
            if !laps.lap() {
                break;
            }
        }
        self.finish(endpoint).await?;
        Ok(laps.median())
    }

    /// Each end raises the other's counter and waits for its own.
    async fn signal_ping(&self, endpoint: &Endpoint) -> Outcome<f64> {
        const END: u64 = 1 << 60;
        let counter = self.worker.counter().await?;
        let bytes = counter.descriptor()?.to_bytes();
        endpoint.tag_send(DESCRIPTOR, bytes).await?;
        let remote = self.borrow(endpoint).await?;
        let mut number = 0;
        let mut laps = Laps::start(&self.spec);
        loop {
            for _ in 0..laps.batch() {
                number += 1;
                if self.role == Role::B && counter.wait(number).await? >= END {
                    return Ok(0.0);
                }
                endpoint.signal(&remote, 1).await?;
                if self.role == Role::A {
                    counter.wait(number).await?;
                }
            }
            if self.role == Role::A && !laps.lap() {
                endpoint.signal(&remote, END).await?;
                return Ok(laps.median() / 2.0);
            }
        }
    }

    /// Puts stamps, each with a signal, and is awake all the time.
    async fn raise(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let remote = self.borrow(endpoint).await?;
        let counter = self.borrow(endpoint).await?;
        let send = |stamp: u64| {
            let bytes = stamp.to_le_bytes().to_vec();
            endpoint.put(bytes, remote.clone()).signal(&counter)
        };
        let end = Instant::now() + self.spec.warm_up() + self.spec.duration();
        while Instant::now() < end {
            spin_for(self.spec.gap());
            send(stamp()).await?;
        }
        spin_for(self.spec.gap());
        send(LAST).await?;
        Ok(0.0)
    }

    async fn wait(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let access = Access::READ | Access::WRITE;
        let region = self.context.expose(self.owned().await?, access).await?;
        let counter = self.worker.counter().await?;
        for descriptor in [region.descriptor()?, counter.descriptor()?] {
            endpoint.tag_send(DESCRIPTOR, descriptor.to_bytes()).await?;
        }
        let mut arrivals = Arrivals::default();
        let mut signals = 0;
        loop {
            signals = counter.wait(signals + 1).await?;
            if !arrivals.note(region.load(0)?) {
                return Ok(arrivals.median());
            }
        }
    }

    /// The sender of a parked measurement, awake all the time.
    async fn wake(&self, endpoint: &Endpoint) -> Outcome<f64> {
        let send = |stamp: u64| endpoint.tag_send(DATA, stamp.to_le_bytes().to_vec());
        let end = Instant::now() + self.spec.warm_up() + self.spec.duration();
        while Instant::now() < end {
            spin_for(self.spec.gap());
            send(stamp()).await?;
        }
        spin_for(self.spec.gap());
        send(LAST).await?;
        Ok(0.0)
    }

    async fn sleep(&self) -> Outcome<f64> {
        let mut arrivals = Arrivals::default();
        let mut buffer = vec![0; 8];
        loop {
            buffer = self.worker.tag_recv(DATA, buffer).await?.buffer;
            let sent = buffer.first_chunk().ok_or("a message without a stamp")?;
            if !arrivals.note(u64::from_le_bytes(*sent)) {
                return Ok(arrivals.median());
            }
        }
    }

    /// `B` waits for a message that does not come, and `A` counts how often it wakes up.
    async fn idle(&mut self, endpoint: &Endpoint) -> Outcome<f64> {
        // The first connection is one of them.
        self.spec.size -= 1;
        self.connect_more().await?;
        if self.role == Role::B {
            return self.swallow(endpoint).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = process::voluntary_switches(self.pid)?;
        tokio::time::sleep(self.spec.duration()).await;
        let after = process::voluntary_switches(self.pid)?;
        self.finish(endpoint).await?;
        Ok(after.saturating_sub(before) as f64)
    }

    /// KiB that this end grew for each connection.
    async fn memory(&mut self, endpoint: &Endpoint) -> Outcome<f64> {
        let before = process::resident_kib()?;
        self.connect_more().await?;
        self.meet(endpoint).await?;
        let growth = process::resident_kib()?.saturating_sub(before);
        Ok(growth as f64 / self.spec.size as f64)
    }

    /// Microseconds for each connection.
    async fn many(&mut self) -> Outcome<f64> {
        let start = Instant::now();
        self.connect_more().await?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / self.spec.size as f64)
    }
}

/// Posted sends or puts, the oldest first.
struct Window {
    posted: VecDeque<Op<()>>,
    limit: usize,
}

impl Window {
    fn new(spec: &Spec) -> Self {
        let limit = spec.window();
        let posted = VecDeque::with_capacity(limit);
        Self { posted, limit }
    }

    /// The one that is to be waited for: this one, if it is over, as UCX tells without a request to wait for; or the oldest, when the window is full.
    fn add(&mut self, operation: Op<()>) -> Option<Op<()>> {
        if operation.is_finished() {
            return Some(operation);
        }
        self.posted.push_back(operation);
        match self.posted.len() >= self.limit {
            true => self.posted.pop_front(),
            false => None,
        }
    }

    async fn finish(mut self) -> Outcome<()> {
        while let Some(oldest) = self.posted.pop_front() {
            oldest.await?;
        }
        Ok(())
    }
}
