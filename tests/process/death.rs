//! `kill -9` of the peer, at every moment.

use std::time::Duration;

use wharf::{Access, Descriptor, Error, ErrorKind, OpError, Tag};

use crate::{
    common::{
        First, Path, Second, bytes, expect_bytes, expect_bytes_from, kill_after, on_every_path,
    },
    paths::SHORTER,
    support::{Child, LIMIT, at_rest, watchdog},
};

/// When to kill, counted from the beginning of the transfers. The last is late enough for all to be under way on a busy machine.
const ALL: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_micros(300),
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(40),
];
/// The last two where all would take minutes.
const DELAYS: &[Duration] = ALL.split_at(if SHORTER == 1 { 0 } else { 3 }).1;

const LONG: usize = (24 << 20) / SHORTER;

/// A tag that nobody receives.
const NEVER: u64 = 1 << 40;
const DESCRIPTOR: u64 = 2 << 40;
const READY: u64 = 3 << 40;

/// Ends of operations of a connection whose peer died.
struct Ends {
    path: Path,
    errors: usize,
}

impl Ends {
    #[track_caller]
    fn error(&mut self, error: &Error) {
        // What is begun after the end of the connection was noticed fails in the same way.
        self.path.expect_death(error.kind());
        self.errors += 1;
    }

    #[track_caller]
    fn error_with<B>(&mut self, error: OpError<B>) -> Option<B> {
        let (error, buffer) = error.into_parts();
        self.error(&error);
        buffer
    }

    /// The buffer comes back, unless the peer may still be writing into it: a killed process may show before it is gone.
    #[track_caller]
    fn expect_buffer(&mut self, error: OpError<Vec<u8>>, length: usize) {
        match self.error_with(error) {
            Some(buffer) => assert_eq!(buffer.len(), length),
            None => assert!(self.path.transports().contains(&"cma"), "it was kept"),
        }
    }
}

impl First {
    /// After the death: the end shows everywhere, and the worker works on.
    async fn expect_end(&mut self, mut child: Child, endpoint: wharf::Endpoint) {
        let error = watchdog(LIMIT, endpoint.closed()).await;
        self.path.expect_death(error.kind());
        child.kill();
        let mut ends = Ends {
            path: self.path,
            errors: 0,
        };
        let late = watchdog(LIMIT, endpoint.tag_send(Tag(1), "late")).await;
        ends.error(&late.expect_err("the peer is dead"));
        let flush = watchdog(LIMIT, endpoint.flush()).await;
        ends.error(&flush.expect_err("the peer is dead"));
        drop(endpoint);
        self.expect_works().await;
    }
}

async fn live_on(mut second: Second) {
    second.parent.wait_for_death().await;
}

mod while_idle {
    use super::*;

    on_every_path!();

    async fn first(mut first: First) {
        let (mut child, endpoint) = first.second().await;
        // Who waits already learns it as well as who asks later.
        let mut waits = Box::pin({
            let endpoint = endpoint.clone();
            async move { endpoint.closed().await }
        });
        assert!(futures::poll!(&mut waits).is_pending());
        let waits = tokio::spawn(waits);
        child.kill();
        let error = watchdog(LIMIT, waits).await.expect("no panic");
        first.path.expect_death(error.kind());
        assert!(error.is_peer_failure());
        let error = watchdog(LIMIT, endpoint.closed()).await;
        first.path.expect_death(error.kind());
        drop(endpoint);
        first.expect_works().await;
        first.finish().await;
    }

    async fn second(second: Second) {
        live_on(second).await;
    }
}

mod of_the_sender_of_a_long_message {
    use super::*;

    on_every_path!();

    async fn first(mut first: First) {
        for delay in DELAYS.iter().copied() {
            let (child, endpoint) = first.second().await;
            let killer = kill_after(&child, delay);
            let mut ends = Ends {
                path: first.path,
                errors: 0,
            };
            for number in 0.. {
                let receive = first.worker.tag_recv(Tag(number), vec![0; LONG]);
                let mut receive = receive.post();
                let received = tokio::select! {
                    biased;
                    received = watchdog(LIMIT, &mut receive) => received,
                    _ = endpoint.closed() => {
                        // One that had not matched waits for other peers; one that had has ended.
                        watchdog(LIMIT, receive.cancel()).await
                    }
                };
                match received {
                    Ok(received) => {
                        assert_eq!(received.len, LONG);
                        expect_bytes(number, &received.buffer);
                    }
                    Err(error) if error.kind() == ErrorKind::Canceled => {
                        let (_, buffer) = error.into_parts();
                        assert_eq!(buffer.expect("the buffer").len(), LONG);
                        break;
                    }
                    Err(error) => ends.expect_buffer(error, LONG),
                }
            }
            killer.join().expect("killed");
            assert!(ends.errors <= 1, "{} for one receive", ends.errors);
            first.expect_end(child, endpoint).await;
        }
        first.finish().await;
    }

    async fn second(second: Second) {
        for number in 0.. {
            let send = second.endpoint.tag_send(Tag(number), bytes(number, LONG));
            send.await.expect("the first process lives");
        }
    }
}

mod of_the_receiver_of_a_long_message {
    use super::*;

    on_every_path!();

    async fn first(mut first: First) {
        for delay in DELAYS.iter().copied() {
            let (child, endpoint) = first.second().await;
            let killer = kill_after(&child, delay);
            let mut ends = Ends {
                path: first.path,
                errors: 0,
            };
            for number in 0.. {
                let send = endpoint.tag_send(Tag(number), bytes(number, LONG));
                match watchdog(LIMIT, send).await {
                    Ok(()) => {}
                    Err(error) => {
                        ends.error(&error);
                        break;
                    }
                }
            }
            killer.join().expect("killed");
            first.expect_end(child, endpoint).await;
        }
        first.finish().await;
    }

    async fn second(second: Second) {
        for number in 0.. {
            let received = second.receive(number, LONG).await;
            assert_eq!(received.len(), LONG);
        }
    }
}

mod of_the_target_of_puts_and_gets {
    use super::*;

    on_every_path!();

    async fn first(mut first: First) {
        for (round, delay) in DELAYS.iter().copied().enumerate() {
            let (child, endpoint) = first.second().await;
            let descriptor = first.receive(DESCRIPTOR, 4096).await;
            let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
            let remote = endpoint.import(&descriptor).expect("its memory");
            let killer = kill_after(&child, delay);
            let mut ends = Ends {
                path: first.path,
                errors: 0,
            };
            let source = wharf::Buffer::from(bytes(1, LONG));
            loop {
                // Several at a time, of lengths on both sides of what is done at once.
                let mut puts = Vec::new();
                let mut gets = Vec::new();
                for length in [100, 10_000, 300_000, LONG] {
                    if round % 2 == 0 {
                        match endpoint.put(source.slice(..length), remote.clone()).post() {
                            Ok(put) => puts.push(put),
                            Err(error) => drop(ends.error_with(error)),
                        }
                    } else {
                        match endpoint.get(remote.slice(..length), vec![0; length]).post() {
                            Ok(get) => gets.push((length, get)),
                            Err(error) => drop(ends.error_with(error).expect("the buffer")),
                        }
                    }
                }
                for put in puts {
                    if let Err(error) = watchdog(LIMIT, put).await {
                        ends.error(&error);
                    }
                }
                for (length, get) in gets {
                    match watchdog(LIMIT, get).await {
                        Ok(buffer) => expect_bytes(7, &buffer),
                        Err(error) => ends.expect_buffer(error, length),
                    }
                }
                if ends.errors > 0 {
                    break;
                }
            }
            killer.join().expect("killed");
            first.expect_end(child, endpoint).await;
        }
        first.finish().await;
    }

    async fn second(mut second: Second) {
        let access = Access::READ | Access::WRITE;
        let region = second.context.expose(bytes(7, LONG), access).await;
        let region = region.expect("a region");
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        second
            .endpoint
            .tag_send(Tag(DESCRIPTOR), descriptor)
            .await
            .expect("a send");
        second.parent.wait_for_death().await;
    }
}

mod of_who_puts_and_gets {
    use super::*;

    on_every_path!();

    /// Killed while it is inside this process's memory: the memory comes back even so.
    async fn first(mut first: First) {
        for delay in DELAYS.iter().copied() {
            let access = Access::READ | Access::WRITE;
            let region = first.context.expose(bytes(7, LONG), access).await;
            let region = region.expect("a region");
            let (child, endpoint) = first.second().await;
            let descriptor = region.descriptor().expect("a descriptor").to_bytes();
            endpoint
                .tag_send(Tag(DESCRIPTOR), descriptor)
                .await
                .expect("a send");
            first.receive(READY, 0).await;
            let killer = kill_after(&child, delay);
            let error = watchdog(LIMIT, endpoint.closed()).await;
            first.path.expect_death(error.kind());
            let memory = watchdog(LIMIT, region.unexpose()).await;
            assert_eq!(memory.len(), LONG);
            killer.join().expect("killed");
            first.expect_end(child, endpoint).await;
        }
        first.finish().await;
    }

    async fn second(second: Second) {
        let descriptor = second.receive(DESCRIPTOR, 4096).await;
        let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
        let remote = second.endpoint.import(&descriptor).expect("its memory");
        let endpoint = &second.endpoint;
        endpoint
            .tag_send(Tag(READY), Vec::new())
            .await
            .expect("a send");
        let source = wharf::Buffer::from(bytes(8, LONG));
        for length in [LONG, 40_000, 400_000].into_iter().cycle() {
            let (put, get) = tokio::join!(
                endpoint.put(source.slice(..length), remote.slice(..length)),
                endpoint.get(remote.slice(..length), vec![0; length]),
            );
            put.expect("the first process lives");
            get.expect("the first process lives");
        }
    }
}

mod while_much_is_pending {
    use super::*;

    on_every_path!();

    async fn first(mut first: First) {
        let (mut child, endpoint) = first.second().await;
        let descriptor = first.receive(DESCRIPTOR, 4096).await;
        let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
        let remote = endpoint.import(&descriptor).expect("its memory");
        // Receives of messages that never come, of announced ones, sends that nobody receives.
        let mut receives: Vec<_> = (0..200)
            .map(|number| {
                let tag = Tag(NEVER + number);
                first.worker.tag_recv(tag, vec![0; 1000]).post()
            })
            .collect();
        let mut sends = Vec::new();
        for number in 0..200 {
            let length = [10, 300_000][number as usize % 2];
            let send = endpoint.tag_send(Tag(NEVER + number), bytes(number, length));
            sends.push(send.sync().post().expect("a place in the window"));
        }
        for number in 0..50 {
            let put = endpoint.put(bytes(number, 200_000), remote.clone());
            sends.push(put.post().expect("a place in the window"));
        }
        let mut flush = std::pin::pin!(endpoint.flush());
        assert!(futures::poll!(&mut flush).is_pending(), "sends are pending");
        // All that goes without the peer's doing has gone.
        let gone = || first.worker.metrics().transports;
        at_rest("the flow", Duration::from_millis(5), gone).await;
        child.kill();

        let mut ends = Ends {
            path: first.path,
            errors: 0,
        };
        for send in sends {
            if let Err(error) = watchdog(LIMIT, send).await {
                ends.error(&error);
            }
        }
        assert!(ends.errors >= 200, "the sends: {} errors", ends.errors);
        let flush = watchdog(LIMIT, flush).await;
        ends.error(&flush.expect_err("the peer is dead"));
        // Those of no peer in particular wait for another one.
        let late = receives.split_off(100);
        for receive in receives {
            let error = watchdog(LIMIT, receive.cancel())
                .await
                .expect_err("nothing came");
            assert_eq!(error.kind(), ErrorKind::Canceled);
            let (_, buffer) = error.into_parts();
            assert_eq!(buffer.expect("the buffer").len(), 1000);
        }
        first.expect_end(child, endpoint).await;
        watchdog(LIMIT, first.worker.shutdown(Duration::from_secs(5)))
            .await
            .expect("a quiet end");
        for receive in late {
            let error = watchdog(LIMIT, receive).await.expect_err("nothing came");
            assert_eq!(error.kind(), ErrorKind::Closed);
            let (_, buffer) = error.into_parts();
            assert_eq!(buffer.expect("the buffer").len(), 1000);
        }
    }

    async fn second(mut second: Second) {
        let region = second.context.expose(vec![0; 200_000], Access::WRITE).await;
        let region = region.expect("a region");
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        second
            .endpoint
            .tag_send(Tag(DESCRIPTOR), descriptor)
            .await
            .expect("a send");
        second.parent.wait_for_death().await;
    }
}

mod of_who_connects {
    use super::*;

    on_every_path!();

    /// Killed at any moment of the handshake.
    async fn first(mut first: First) {
        for delay in DELAYS.iter().copied() {
            let child = first.start("second");
            let mut killer = Some(kill_after(&child, Duration::from_millis(5) + delay));
            let over = tokio::task::spawn_blocking(move || {
                killer.take().map(std::thread::JoinHandle::join)
            });
            let mut over = std::pin::pin!(over);
            loop {
                tokio::select! {
                    incoming = first.listener.accept() => {
                        // Either it stands, and ends by and by, or it does not; it always says so.
                        if let Ok(endpoint) = watchdog(LIMIT, incoming.expect("a request").accept()).await {
                            drop(endpoint);
                        }
                    }
                    _ = &mut over => break,
                }
            }
            let mut child = child;
            child.kill();
        }
        // What is left in the queue of the listener has nobody behind it.
        while let Ok(incoming) =
            tokio::time::timeout(Duration::from_millis(50), first.listener.accept()).await
        {
            let ended = watchdog(LIMIT, incoming.expect("a request").accept()).await;
            if let Ok(endpoint) = ended {
                watchdog(LIMIT, endpoint.closed()).await;
            }
        }
        first.expect_works().await;
        first.finish().await;
    }

    async fn second(second: Second) {
        live_on(second).await;
    }
}

mod of_who_listens {
    use super::*;

    on_every_path!();

    /// Killed while a connect waits for its answer.
    async fn first(mut first: First) {
        let (mut child, endpoint) = first.second().await;
        let address = child.hear().await;
        let worker = first.worker.clone();
        let connects = tokio::spawn(async move { worker.connect(address).await });
        assert_eq!(child.hear().await, "asked");
        assert!(!connects.is_finished(), "nobody has accepted it");
        child.kill();
        let error = watchdog(LIMIT, connects)
            .await
            .expect("no panic")
            .expect_err("the listener is dead");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        let error = watchdog(LIMIT, endpoint.closed()).await;
        first.path.expect_death(error.kind());
        drop(endpoint);
        first.expect_works().await;
        first.finish().await;
    }

    async fn second(mut second: Second) {
        let listener = second.worker.listen("127.0.0.1:0").await;
        let listener = listener.expect("a listener");
        second.parent.say(listener.local_addr());
        let _asks = watchdog(LIMIT, listener.accept()).await.expect("a request");
        second.parent.say("asked");
        second.parent.wait_for_death().await;
    }
}

mod leaves_nothing {
    use super::*;

    on_every_path!();

    /// No file has a name that could stay behind.
    async fn first(mut first: First) {
        let (mut child, endpoint) = first.second().await;
        first.receive(READY, 0).await;
        for pid in [child.pid(), std::process::id()] {
            let own = std::env::current_exe().expect("this program");
            let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its open files");
            let open = open
                .flatten()
                .filter_map(|entry| std::fs::read_link(entry.path()).ok());
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its memory");
            let mapped = maps
                .lines()
                .filter_map(|line| line.find('/').map(|place| line[place..].into()));
            for path in open.chain(mapped) {
                let text = path.to_string_lossy();
                let left = ["/dev/shm/", "/tmp/", "/run/", "/var/tmp/"]
                    .iter()
                    .any(|place| text.starts_with(place));
                // Standard output may be anywhere.
                let ours = text.contains("wharf") && !text.ends_with(".log");
                assert!(
                    !(left && ours) || path == own || text.ends_with("(deleted)"),
                    "{text} would be left behind"
                );
            }
        }
        child.kill();
        for place in ["/dev/shm", "/tmp"] {
            let found: Vec<_> = std::fs::read_dir(place)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.file_name())
                .filter(|name| {
                    let name = name.to_string_lossy();
                    name.contains("wharf-") && name.contains(&child.pid().to_string())
                })
                .collect();
            assert!(found.is_empty(), "{found:?} in {place}");
        }
        let error = watchdog(LIMIT, endpoint.closed()).await;
        first.path.expect_death(error.kind());
        drop(endpoint);
        first.finish().await;
    }

    async fn second(second: Second) {
        let memory = second.context.allocate(1 << 20).await.expect("memory");
        let region = second.context.expose(memory, Access::READ).await;
        let _region = region.expect("a region");
        second
            .endpoint
            .tag_send(Tag(READY), Vec::new())
            .await
            .expect("a send");
        live_on(second).await;
    }
}

mod of_either_end_of_a_stream {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    on_every_path!();

    const STREAMS: u64 = 4;

    /// One end writes and reads several streams; the other dies. What arrived is right, and every task ends with an error.
    async fn first(mut first: First) {
        for delay in DELAYS.iter().copied() {
            let (child, endpoint) = first.second().await;
            let killer = kill_after(&child, delay);
            let mut tasks = Vec::new();
            for number in 0..STREAMS {
                let endpoint = endpoint.clone();
                tasks.push(tokio::spawn(async move {
                    let stream = endpoint.stream().await.map_err(std::io::Error::from)?;
                    let (mut reader, mut writer) = stream.into_split();
                    let source = bytes(number, LONG);
                    let write = async {
                        loop {
                            writer.write_all(&source).await?;
                        }
                    };
                    let read = async {
                        let mut place = 0;
                        let mut piece = vec![0; 100_000];
                        loop {
                            let count = reader.read(&mut piece).await?;
                            if count == 0 {
                                return Err(std::io::Error::other("a dead process ends no stream"));
                            }
                            let whole = count.min(LONG - place);
                            expect_bytes_from(number, place, &piece[..whole]);
                            expect_bytes_from(number, 0, &piece[whole..count]);
                            place = (place + count) % LONG;
                        }
                    };
                    // Each of them ends by itself.
                    let (write, read): (std::io::Result<()>, std::io::Result<()>) =
                        tokio::join!(write, read);
                    write?;
                    read
                }));
            }
            for task in tasks {
                let error = watchdog(LIMIT, task)
                    .await
                    .expect("no panic")
                    .expect_err("the peer is dead");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            }
            killer.join().expect("killed");
            first.expect_end(child, endpoint).await;
        }
        first.finish().await;
    }

    async fn second(second: Second) {
        while let Ok(stream) = second.endpoint.accept_stream().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.into_split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    }
}

mod of_either_end_of_a_stream_of_long_buffers {
    use tokio::io::AsyncReadExt;
    use wharf::Buffer;

    use super::*;

    on_every_path!();

    /// Lengths that are announced, over shared memory, and one that is not.
    const BUFFERS: [usize; 4] = [128 << 10, 1 << 20, 100_000, 16 << 20];

    /// One end writes buffers of ordinary memory and of memory that both map, and reads what comes back; the other dies, in the middle of copying
    /// or of being copied from. What arrived is right, every task ends with an error, and the memory comes back.
    async fn first(mut first: First) {
        for delay in DELAYS.iter().copied() {
            let (child, endpoint) = first.second().await;
            let killer = kill_after(&child, delay);
            let mut tasks = Vec::new();
            for own in [false, true] {
                let number = u64::from(own);
                let source = bytes(number, LONG);
                let source: Buffer = if own {
                    let mut memory = first.context.allocate(LONG).await.expect("memory");
                    memory.copy_from_slice(&source);
                    memory.freeze()
                } else {
                    source.into()
                };
                let endpoint = endpoint.clone();
                tasks.push(tokio::spawn(async move {
                    let stream = endpoint.stream().await.map_err(std::io::Error::from)?;
                    let (mut reader, mut writer) = stream.into_split();
                    let write = async {
                        let mut place = 0;
                        for length in BUFFERS.into_iter().cycle() {
                            let length = length.min(LONG - place);
                            let buffer = source.slice(place..place + length);
                            place = (place + length) % LONG;
                            writer.write_buffer(buffer).await?;
                        }
                        Ok(())
                    };
                    let read = async {
                        let mut place = 0;
                        let mut piece = vec![0; 300_000];
                        loop {
                            let count = reader.read(&mut piece).await?;
                            if count == 0 {
                                return Err(std::io::Error::other("a dead process ends no stream"));
                            }
                            let whole = count.min(LONG - place);
                            expect_bytes_from(number, place, &piece[..whole]);
                            expect_bytes_from(number, 0, &piece[whole..count]);
                            place = (place + count) % LONG;
                        }
                    };
                    // Each of them ends by itself.
                    let (write, read): (wharf::Result<()>, std::io::Result<()>) =
                        tokio::join!(write, read);
                    write?;
                    read
                }));
            }
            for task in tasks {
                let error = watchdog(LIMIT, task)
                    .await
                    .expect("no panic")
                    .expect_err("the peer is dead");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            }
            killer.join().expect("killed");
            first.expect_end(child, endpoint).await;
        }
        first.finish().await;
    }

    async fn second(second: Second) {
        while let Ok(stream) = second.endpoint.accept_stream().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.into_split();
                while let Ok(Some(chunk)) = reader.read_chunk().await {
                    if writer.write_buffer(chunk).await.is_err() {
                        return;
                    }
                }
            });
        }
    }
}

mod of_the_target_of_active_messages_and_atomics {
    use super::*;

    on_every_path!();

    const ID: u16 = 7;

    async fn first(mut first: First) {
        for delay in DELAYS.iter().copied() {
            let (child, endpoint) = first.second().await;
            let descriptor = first.receive(DESCRIPTOR, 4096).await;
            let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
            let remote = endpoint.import(&descriptor).expect("its memory");
            let counter = remote.slice(16..);
            let killer = kill_after(&child, delay);
            let mut ends = Ends {
                path: first.path,
                errors: 0,
            };
            while ends.errors == 0 {
                let mut messages = Vec::new();
                for length in [8, 10_000, 300_000, LONG] {
                    match endpoint.am_send(ID, "head", bytes(1, length)).post() {
                        Ok(send) => messages.push(send),
                        Err(error) => drop(ends.error_with(error)),
                    }
                }
                let mut words = Vec::new();
                for _ in 0..50 {
                    let posted = [
                        remote.add(0, 1_u64).post(),
                        remote.xor(8, 1_u32).post(),
                        endpoint.signal(&counter, 1).post(),
                    ];
                    for posted in posted {
                        match posted {
                            Ok(op) => words.push(op),
                            Err(error) => ends.error(&error),
                        }
                    }
                }
                let fetched = watchdog(LIMIT, remote.fetch_add(0, 0_u64)).await;
                for op in messages.into_iter().chain(words) {
                    if let Err(error) = watchdog(LIMIT, op).await {
                        ends.error(&error);
                    }
                }
                if let Err(error) = fetched {
                    ends.error(&error);
                }
            }
            killer.join().expect("killed");
            first.expect_end(child, endpoint).await;
        }
        first.finish().await;
    }

    async fn second(second: Second) {
        let mut inbox = second.worker.active_messages(ID).open().expect("an inbox");
        let access = Access::READ | Access::WRITE;
        let memory = second.context.allocate(24).await.expect("memory");
        let region = second.context.expose(memory, access).await;
        let region = region.expect("a region");
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        second
            .endpoint
            .tag_send(Tag(DESCRIPTOR), descriptor)
            .await
            .expect("a send");
        while let Some(message) = inbox.recv().await {
            let payload = message.bytes().await.expect("the first process lives");
            expect_bytes(1, &payload);
        }
    }
}
