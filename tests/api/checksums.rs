//! Bits that change on the way: what checksums of frames over TCP find, and that nothing does without them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    time::timeout,
};
use wharf::{ContextBuilder, Endpoint, ErrorKind, Region, RemoteRegion, Tag, Worker};

use crate::{
    fixture::{Way, pattern, run, same},
    rma::{BOTH, content},
};

/// Longer than a fragment.
const LONG: usize = 700_000;
/// Time in which an end that was told nothing would wait for ever.
const SOON: Duration = Duration::from_secs(20);

/// One bit that the way between two ends flips, once it is armed.
#[derive(Default)]
struct Flip {
    armed: AtomicBool,
    /// Towards who listens; else towards who dialled.
    forward: bool,
    /// The byte, of those that pass once it is armed.
    at: usize,
    bit: u32,
    done: AtomicUsize,
}

impl Flip {
    async fn pass(&self, forward: bool, mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf) {
        let mut bytes = vec![0; 16 << 10];
        let mut passed = 0;
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            let bytes = &mut bytes[..count];
            if forward == self.forward && self.armed.load(SeqCst) {
                if (passed..passed + count).contains(&self.at) {
                    bytes[self.at - passed] ^= 1 << self.bit;
                    self.done.fetch_add(1, SeqCst);
                }
                passed += count;
            }
            if to.write_all(bytes).await.is_err() {
                return;
            }
        }
    }
}

/// Where whoever connects is led to `target`, through `flip`.
async fn way(target: SocketAddr, flip: Arc<Flip>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.expect("a client");
        let far = TcpStream::connect(target).await.expect("the target");
        for stream in [&near, &far] {
            stream.set_nodelay(true).expect("a socket");
        }
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        tokio::join!(
            flip.pass(true, near_in, far_out),
            flip.pass(false, far_in, near_out)
        );
    });
    address
}

struct Ends {
    workers: [Worker; 2],
    /// Of who dialled, and of who listened.
    endpoints: [Endpoint; 2],
}

async fn ends(builders: [ContextBuilder; 2], flip: &Arc<Flip>) -> Ends {
    let workers = builders.map(|builder| {
        let context = builder.build().expect("a context");
        Worker::new(&context).expect("a worker")
    });
    let listener = workers[1].listen("127.0.0.1:0").await.expect("listens");
    let address = way(listener.local_addr(), flip.clone()).await;
    let (dialled, accepted) = tokio::join!(workers[0].connect(address), async {
        listener.accept().await?.accept().await
    });
    let endpoints = [dialled.expect("connected"), accepted.expect("accepted")];
    Ends { workers, endpoints }
}

/// What goes over the way.
#[derive(Clone, Copy, Debug)]
enum Traffic {
    /// A short message.
    Eager,
    /// A long message of which the receive is posted: fragments into its buffer.
    Fragments,
    Stream,
    /// The answers to gets.
    Get,
    Put,
}

/// Does it; an error of any operation is one of the connection that must end. Whatever is said to have arrived has arrived as it was sent.
async fn exchange(traffic: Traffic, ends: &Ends) {
    let [here, there] = &ends.endpoints;
    let receiver = &ends.workers[1];
    match traffic {
        Traffic::Eager => {
            let sent = pattern(100, 1);
            let (_, received) = tokio::join!(
                here.tag_send(1u64, sent),
                receiver.tag_recv(Tag(1), vec![0; 100])
            );
            if let Ok(received) = received {
                same(&received.buffer, sent, "an eager message");
            }
        }
        Traffic::Fragments => {
            let sent = pattern(LONG, 2);
            let (_, received) = tokio::join!(
                here.tag_send(2u64, sent),
                receiver.tag_recv(Tag(2), vec![0; LONG])
            );
            if let Ok(received) = received {
                same(&received.buffer, sent, "a long message");
            }
        }
        Traffic::Stream => {
            let sent = pattern(LONG, 3);
            let send = async {
                let mut stream = here.stream().await.map_err(std::io::Error::from)?;
                stream.write_all(sent).await?;
                stream.shutdown().await
            };
            let receive = async {
                let stream = there.accept_stream().await;
                let mut stream = stream.map_err(std::io::Error::from)?;
                let mut received = vec![0; LONG];
                stream.read_exact(&mut received).await?;
                same(&received, sent, "a stream");
                std::io::Result::Ok(())
            };
            let _ = tokio::join!(send, receive);
        }
        Traffic::Get => {
            let held = pattern(LONG, 4);
            let (_region, remote) = exposed(ends, held).await;
            if let Ok(got) = here.get(remote, vec![0; LONG]).await {
                same(&got, held, "what was got");
            }
        }
        Traffic::Put => {
            let (region, remote) = exposed(ends, pattern(LONG, 5)).await;
            let sent = pattern(LONG, 6);
            if here.put(sent, remote).await.is_ok() {
                same(&content(&region), sent, "what was put");
            }
        }
    }
}

/// Memory of who listened, as who dialled sees it.
async fn exposed(ends: &Ends, held: &[u8]) -> (Region, RemoteRegion) {
    let context = ends.workers[1].context();
    let region = context.expose(held.to_vec(), BOTH).await.expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor");
    let remote = ends.endpoints[0].import(&descriptor).expect("the peer's");
    (region, remote)
}

/// The bytes of the way at which a bit is flipped: all of the first frames' headers, and places in payloads.
fn places(traffic: Traffic) -> Vec<usize> {
    match traffic {
        Traffic::Eager => (0..28 + 100).collect(),
        _ => {
            let far = [1000, 4500, 70_000, 300_001, 650_000];
            (0..90).step_by(2).chain(far).collect()
        }
    }
}

fn builder(checksums: bool) -> ContextBuilder {
    Way::Tcp.builder().tcp_checksums(checksums)
}

fn every_flip_is_noticed(traffic: Traffic, asking: [bool; 2]) {
    run(async {
        for at in places(traffic) {
            let flip = Arc::new(Flip {
                forward: !matches!(traffic, Traffic::Get),
                at,
                bit: at as u32 * 5 % 8,
                ..Flip::default()
            });
            let ends = ends(asking.map(builder), &flip).await;
            flip.armed.store(true, SeqCst);
            let victim = &ends.endpoints[usize::from(flip.forward)];
            // A receive of the worker's own goes on without the connection.
            let ended = async {
                tokio::select! {
                    () = exchange(traffic, &ends) => victim.closed().await,
                    error = victim.closed() => error,
                }
            };
            let error = timeout(SOON, ended)
                .await
                .unwrap_or_else(|_| panic!("{traffic:?}: a flip at byte {at} was not noticed"));
            assert_eq!(
                flip.done.load(SeqCst),
                1,
                "{traffic:?}: nothing was at byte {at}"
            );
            assert_eq!(
                error.kind(),
                ErrorKind::Protocol,
                "{traffic:?}: byte {at}: {error}"
            );
            assert!(
                error.to_string().contains("checksum"),
                "{traffic:?}: byte {at}: {error}"
            );
        }
    });
}

#[test]
fn eager_messages() {
    every_flip_is_noticed(Traffic::Eager, [true, true]);
}

#[test]
fn fragments() {
    every_flip_is_noticed(Traffic::Fragments, [true, false]);
}

#[test]
fn streams() {
    every_flip_is_noticed(Traffic::Stream, [false, true]);
}

#[test]
fn answers_to_gets() {
    every_flip_is_noticed(Traffic::Get, [true, false]);
}

#[test]
fn puts() {
    every_flip_is_noticed(Traffic::Put, [true, true]);
}

/// What holds where nobody asks: the payload arrives as the way left it.
#[test]
fn without_checksums_a_changed_payload_arrives() {
    run(async {
        let flip = Arc::new(Flip {
            forward: true,
            at: 16 + 50,
            ..Flip::default()
        });
        let ends = ends([false, false].map(builder), &flip).await;
        flip.armed.store(true, SeqCst);
        let sent = pattern(100, 1);
        ends.endpoints[0].tag_send(1u64, sent).await.expect("sent");
        let receive = ends.workers[1].tag_recv(Tag(1), vec![0; 100]);
        let received = receive.await.expect("received").buffer;
        let differ = received.iter().zip(sent).filter(|(a, b)| a != b).count();
        assert_eq!((flip.done.load(SeqCst), differ), (1, 1));
    });
}
