//! What the way between two ends sees, and what happens when it changes a bit or cuts it off.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    time::timeout,
};
use wharf::{Endpoint, ErrorKind, Tag, Worker};

use crate::{Authority, mutual, on_a_runtime, pattern, worker};

const LONG: usize = 300_000;
/// Time in which an end that was told nothing would wait for ever.
const SOON: Duration = Duration::from_secs(20);

/// What happens on the way, to what goes from who dials to who listens.
#[derive(Default)]
struct Way {
    plan: Mutex<Option<Plan>>,
    /// All that was seen, in both directions.
    seen: Mutex<Vec<u8>>,
    done: Mutex<usize>,
    /// What went from who dials to who listens since there is a plan, before it was changed.
    sent: Mutex<Vec<u8>>,
}

#[derive(Clone, Copy)]
enum Plan {
    /// This bit of the byte that comes after so many.
    Flip(usize, u32),
    /// The end, in order, after so many bytes.
    Cut(usize),
}

impl Way {
    async fn pass(&self, forward: bool, mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf) {
        let mut bytes = vec![0; 16 << 10];
        let mut passed = 0;
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            let mut bytes = &mut bytes[..count];
            self.seen.lock().extend_from_slice(bytes);
            let plan = *self.plan.lock();
            let mut cut = false;
            if let Some(plan) = plan.filter(|_| forward) {
                self.sent.lock().extend_from_slice(bytes);
                let within = |at| (passed..passed + count).contains(&at);
                match plan {
                    Plan::Flip(at, bit) if within(at) => bytes[at - passed] ^= 1 << bit,
                    Plan::Cut(at) if within(at) => {
                        bytes = &mut bytes[..at - passed];
                        cut = true;
                    }
                    _ => {}
                }
                let (Plan::Flip(at, _) | Plan::Cut(at)) = plan;
                *self.done.lock() += usize::from(within(at));
                passed += count;
            }
            if to.write_all(bytes).await.is_err() {
                return;
            }
            if cut {
                let _ = to.shutdown().await;
                return;
            }
        }
    }
}

/// Where whoever connects is led to `target`.
async fn lead(target: SocketAddr, way: Arc<Way>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.expect("a client");
        let far = TcpStream::connect(target).await.expect("the target");
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        tokio::join!(
            way.pass(true, near_in, far_out),
            way.pass(false, far_in, near_out)
        );
    });
    address
}

async fn ends(authority: &Authority, way: &Arc<Way>) -> ([Worker; 2], [Endpoint; 2]) {
    let tls = mutual(authority);
    let workers = [(); 2].map(|()| worker(Some(&tls)));
    let listener = workers[1].listen("127.0.0.1:0").await.expect("listens");
    let address = lead(listener.local_addr(), way.clone()).await;
    let accept = async { listener.accept().await?.accept().await };
    let (dialled, accepted) = tokio::join!(workers[0].connect(address), accept);
    let endpoints = [dialled.expect("connected"), accepted.expect("accepted")];
    (workers, endpoints)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// From the first byte on the way sees nothing of wharf's.
#[test]
fn nothing_is_seen() {
    on_a_runtime(async {
        let way = Arc::new(Way::default());
        let (workers, [here, there]) = ends(&Authority::new(), &way).await;
        let long = pattern(LONG);
        let receive = |tag, length| workers[1].tag_recv(Tag(tag), vec![0; length]);
        let (sent, received) =
            tokio::join!(here.tag_send(1u64, &b"a short secret"[..]), receive(1, 14));
        sent.expect("sent");
        assert_eq!(received.expect("received").buffer, b"a short secret");
        let (sent, received) = tokio::join!(here.tag_send(2u64, long.clone()), receive(2, LONG));
        sent.expect("sent");
        assert!(received.expect("received").buffer == long);
        stream(&[here, there], &long).await.expect("streamed");

        let seen = way.seen.lock();
        assert!(seen.len() > 2 * LONG);
        for part in [
            &b"WHARF"[..],
            b"wtcp",
            b"a short secret",
            &long[..16],
            &long[LONG - 16..],
        ] {
            assert!(!contains(&seen, part), "{part:?} was seen");
        }
    });
}

/// Sends a long stream, whose end comes only where all of it did.
async fn stream([here, there]: &[Endpoint; 2], long: &[u8]) -> std::io::Result<()> {
    let send = async {
        let mut stream = here.stream().await.map_err(std::io::Error::from)?;
        stream.write_all(long).await?;
        stream.shutdown().await
    };
    let receive = async {
        let mut stream = there.accept_stream().await.map_err(std::io::Error::from)?;
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await?;
        assert!(read == long, "what came is not what was sent");
        std::io::Result::Ok(())
    };
    let (sent, received) = tokio::join!(send, receive);
    received.and(sent)
}

/// Where in its record byte `at` is of what began with one.
fn place_in_record(sent: &[u8], at: usize) -> usize {
    let mut start = 0;
    loop {
        let length = usize::from(sent[start + 3]) << 8 | usize::from(sent[start + 4]);
        let next = start + 5 + length;
        if at < next {
            return at - start;
        }
        start = next;
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let places = (0..70).chain([1000, 16_300, 16_500, 100_001, 250_000]);
    for at in places {
        on_a_runtime(async {
            let way = Arc::new(Way::default());
            let (_workers, endpoints) = ends(&Authority::new(), &way).await;
            *way.plan.lock() = Some(Plan::Flip(at, at as u32 * 3 % 8));
            let long = pattern(LONG);
            let streamed = timeout(SOON, stream(&endpoints, &long)).await;
            let streamed = streamed.unwrap_or_else(|_| panic!("byte {at}: not noticed"));
            assert_eq!(*way.done.lock(), 1, "byte {at}");
            if streamed.is_ok() {
                // A record's outer type and version mean nothing to TLS 1.3: all of it came, and as it was sent.
                let place = place_in_record(&way.sent.lock(), at);
                assert!(place < 3, "byte {at}: the stream came whole");
                return;
            }
            let error = endpoints[1].closed().await;
            assert_eq!(error.kind(), ErrorKind::Protocol, "byte {at}: {error}");
            assert!(error.to_string().contains("TLS"), "byte {at}: {error}");
        });
    }
}

/// An end that TLS was not told of is no end of a stream, and none of a message.
#[test]
fn what_is_cut_off_is_an_error() {
    for at in [0, 3, 60, 5000, 16_406, 100_000, 200_000] {
        on_a_runtime(async {
            let way = Arc::new(Way::default());
            let (workers, endpoints) = ends(&Authority::new(), &way).await;
            *way.plan.lock() = Some(Plan::Cut(at));
            let long = pattern(LONG);
            let receive = workers[1].tag_recv(Tag(1), vec![0; LONG]).post();
            let sent = endpoints[0]
                .tag_send(1u64, long.clone())
                .post()
                .expect("room");
            let both = async { tokio::join!(stream(&endpoints, &long), endpoints[1].closed()) };
            let ended = timeout(SOON, both).await;
            let (streamed, error) = ended.unwrap_or_else(|_| panic!("byte {at}: not noticed"));
            assert!(
                streamed.is_err(),
                "byte {at}: a stream that was cut off ended"
            );
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionReset,
                "byte {at}: {error}"
            );
            assert!(error.to_string().contains("cut off"), "byte {at}: {error}");
            drop((sent, receive));
        });
    }
}
