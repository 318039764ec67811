//! The process at one end of the cable.

use std::{cell::Cell, collections::VecDeque};

use wharf::{
    Access, Context, ContextBuilder, Descriptor, Endpoint, Mask, Region, RemoteRegion, Tag, Worker,
    WorkerAddress,
};

use crate::{
    cable::ADDRESSES,
    support::{LIMIT, Logs, Parent, bytes, watchdog},
};

/// How the one that connects finds the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    HostAndPort,
    WorkerAddress,
}

/// Sizes on both sides of what changes a message's protocol.
const SIZES: [usize; 10] = [
    0, 1, 8, 49, 4_097, 9_000, 70_000, 300_001, 1_048_579, 4_194_309,
];
/// Half of it is put, the other half is got.
const HALF: usize = 300_000;
/// Makes the bytes that are there to be got.
const KNOWN: u64 = 30_000;

const HELLO: Tag = Tag(1 << 40);
const DESCRIPTOR: Tag = Tag(2 << 40);
const DONE: Tag = Tag(3 << 40);

/// A connected end.
pub(crate) struct End {
    pub(crate) endpoint: Endpoint,
    context: Context,
    worker: Worker,
    listens: bool,
}

impl End {
    /// Connects, and tells the parent over what, and what was warned of.
    pub(crate) async fn new(
        parent: &mut Parent,
        builder: ContextBuilder,
        listens: bool,
        meeting: Meeting,
    ) -> Self {
        let logs = Logs::of_process();
        let context = builder.build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let by_address = meeting == Meeting::WorkerAddress;
        let endpoint = if listens && by_address {
            parent.say(worker.address().expect("an address"));
            let hello = watchdog(LIMIT, worker.tag_recv(HELLO, Vec::new())).await;
            let from = hello.expect("a message").from;
            worker.endpoint(from).expect("the endpoint it came from")
        } else if listens {
            let listener = worker.listen(format!("{}:0", ADDRESSES[0])).await;
            let listener = listener.expect("a listener");
            parent.say(listener.local_addr());
            let incoming = watchdog(LIMIT, listener.accept()).await.expect("a request");
            watchdog(LIMIT, incoming.accept())
                .await
                .expect("a connection")
        } else {
            let address = parent.hear().await;
            let endpoint = if by_address {
                let address: WorkerAddress = address.parse().expect("an address");
                watchdog(LIMIT, worker.connect(address)).await
            } else {
                watchdog(LIMIT, worker.connect(address)).await
            };
            let endpoint = endpoint.expect("a connection");
            if by_address {
                endpoint.tag_send(HELLO, Vec::new()).await.expect("a send");
            }
            endpoint
        };
        parent.say(format_args!("{:?}", endpoint.transports()));
        let warnings = logs.warnings();
        parent.say(warnings.len());
        warnings.iter().for_each(|warning| parent.say(warning));
        Self {
            endpoint,
            context,
            worker,
            listens,
        }
    }

    /// Messages, puts and gets, both ways at once. The other end does the same.
    pub(crate) async fn exchange(&self) {
        let (region, remote) = self.expose().await;
        let send = async {
            for (number, size) in (0..).zip(SIZES) {
                let bytes = bytes(self.seed(number), size);
                let send = self.endpoint.tag_send(Tag(number), bytes.to_vec());
                send.await.expect("a send");
            }
        };
        let receive = async {
            for (number, size) in (0..).zip(SIZES) {
                self.receive(number, size).await;
            }
        };
        let one_sided = async {
            for size in [0, 8, 5_000, HALF] {
                self.put_and_get(&remote, size, size as u64).await;
            }
        };
        watchdog(LIMIT, async { tokio::join!(send, receive, one_sided) }).await;
        self.tell_done().await;
        self.hear_done().await;
        self.expect_put(&region, HALF as u64);
    }

    /// The same without end, until the parent says `stop`. It is told how much was received, when it asks.
    pub(crate) async fn stream(&self, parent: &mut Parent) {
        let (region, remote) = self.expose().await;
        let (stopped, received) = (Cell::new(false), Cell::new(0_u64));
        let send = async {
            let mut under_way = VecDeque::new();
            let mut number = 0;
            while !stopped.get() {
                let bytes = bytes(self.seed(number), size(number)).to_vec();
                let send = self.endpoint.tag_send(Tag(number), bytes);
                under_way.push_back(send.post().expect("room for a few"));
                if under_way.len() == 8 {
                    let first = under_way.pop_front().expect("eight");
                    first.await.expect("a send");
                }
                number += 1;
            }
            for send in under_way {
                send.await.expect("a send");
            }
            number
        };
        let one_sided = async {
            let mut seed = 0;
            while !stopped.get() {
                seed += 1;
                self.put_and_get(&remote, HALF, seed).await;
            }
            seed
        };
        let give = async {
            let (messages, puts) = tokio::join!(send, one_sided);
            let end = [messages.to_le_bytes(), puts.to_le_bytes()].concat();
            self.endpoint.tag_send(DONE, end).await.expect("a send");
        };
        let take = async {
            loop {
                let any = self.worker.tag_matched(Tag(0)).mask(Mask(0)).await;
                let any = any.expect("a message");
                let info = any.info();
                let message = any.recv(vec![0; info.len]).await.expect("its bytes");
                if info.tag == DONE {
                    let (messages, puts) = message.buffer.split_at(8);
                    let number =
                        |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight"));
                    assert_eq!(number(messages), received.get(), "as many as were sent");
                    self.expect_put(&region, number(puts));
                    return;
                }
                let number = received.get();
                assert_eq!(info.tag, Tag(number), "in the order of sending");
                expect(self.their_seed(number), size(number), &message.buffer);
                received.set(number + 1);
            }
        };
        let control = async {
            while parent.hear().await == "count" {
                parent.say(received.get());
            }
            stopped.set(true);
        };
        watchdog(2 * LIMIT, async { tokio::join!(give, take, control) }).await;
        parent.say("all received");
    }

    /// Closes the connection, or waits until the other end has.
    pub(crate) async fn part(&self) {
        if self.listens {
            watchdog(LIMIT, self.endpoint.closed()).await;
        } else {
            watchdog(LIMIT, self.endpoint.close())
                .await
                .expect("a quiet end");
        }
    }

    /// Exposes memory with known bytes in its second half, and imports the peer's.
    async fn expose(&self) -> (Region, RemoteRegion) {
        let memory = [vec![0; HALF], bytes(self.seed(KNOWN), HALF).to_vec()].concat();
        let access = Access::READ.union(Access::WRITE);
        let region = self.context.expose(memory, access).await.expect("exposed");
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        let send = self.endpoint.tag_send(DESCRIPTOR, descriptor.to_vec());
        send.await.expect("a send");
        let receive = self.worker.tag_recv(DESCRIPTOR, vec![0; 4096]);
        let theirs = watchdog(LIMIT, receive).await.expect("a message");
        let theirs = Descriptor::from_bytes(&theirs.buffer[..theirs.len]).expect("unaltered");
        (region, self.endpoint.import(&theirs).expect("the peer's"))
    }

    /// Puts into the first half, and gets both halves.
    async fn put_and_get(&self, remote: &RemoteRegion, size: usize, seed: u64) {
        let put = bytes(self.seed(seed), size).to_vec();
        let put = self.endpoint.put(put, remote.slice(..size));
        put.await.expect("put");
        for (start, seed) in [(0, self.seed(seed)), (HALF, self.their_seed(KNOWN))] {
            let get = self
                .endpoint
                .get(remote.slice(start..start + size), vec![0; size]);
            expect(seed, size, &get.await.expect("got"));
        }
    }

    #[track_caller]
    fn expect_put(&self, region: &Region, seed: u64) {
        let mut found = vec![0; 2 * HALF];
        region.read_at(0, &mut found).expect("within");
        expect(self.their_seed(seed), HALF, &found[..HALF]);
        expect(self.seed(KNOWN), HALF, &found[HALF..]);
    }

    async fn receive(&self, number: u64, size: usize) {
        let receive = self.worker.tag_recv(Tag(number), vec![0; size]);
        let received = receive.await.expect("a message");
        assert_eq!(received.from, self.endpoint.id());
        expect(
            self.their_seed(number),
            size,
            &received.buffer[..received.len],
        );
    }

    async fn tell_done(&self) {
        let send = self.endpoint.tag_send(DONE, Vec::new());
        send.await.expect("a send");
    }

    async fn hear_done(&self) {
        let receive = self.worker.tag_recv(DONE, Vec::new());
        watchdog(LIMIT, receive).await.expect("a message");
    }

    /// The two directions carry different bytes.
    fn seed(&self, number: u64) -> u64 {
        2 * number + u64::from(self.listens)
    }

    fn their_seed(&self, number: u64) -> u64 {
        2 * number + u64::from(!self.listens)
    }
}

/// Of the message with this number in a stream.
fn size(number: u64) -> usize {
    SIZES[number as usize % SIZES.len()]
}

/// Demands all of the bytes that `seed` makes.
#[track_caller]
fn expect(seed: u64, length: usize, found: &[u8]) {
    assert_eq!(found.len(), length);
    if found != bytes(seed, length) {
        let mut pairs = found.iter().zip(bytes(seed, length));
        let wrong = pairs.position(|(found, right)| found != right);
        panic!("byte {wrong:?} of {length} (seed {seed}) is wrong");
    }
}

pub(crate) fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

pub(crate) fn multi_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}
