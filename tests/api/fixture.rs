//! Two ends of a connection, made in any of the ways it can be.

#[cfg(feature = "tls")]
use std::sync::Arc;
use std::{collections::VecDeque, net::SocketAddr, sync::OnceLock, time::Duration};

use futures::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use wharf::{Context, ContextBuilder, Endpoint, ErrorKind, Tag, Worker};

use crate::support::{all_are, emulated};
pub(crate) use crate::support::{on_a_runtime as run, on_threads as run_on_threads};

/// Bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// How the two ends are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// An endpoint to oneself.
    Own,
    Shm,
    /// Shared memory alone: nothing is copied by the kernel.
    ShmWithoutCma,
    /// A peer's death is seen by its socket only.
    ShmWithoutPidfd,
    Tcp,
    /// TCP under TLS.
    #[cfg(feature = "tls")]
    Tls,
    /// RDMA devices: of the virtual machine, or emulated.
    RcVerbs,
}

impl Way {
    /// Options that leave this way only.
    pub(crate) fn builder(self) -> ContextBuilder {
        let builder = Context::builder();
        let named = |list| builder.transports(list).expect("transports of this build");
        match self {
            Self::Own => named("self"),
            Self::Shm => named("shm"),
            Self::ShmWithoutCma => named("shm").cma(false),
            Self::ShmWithoutPidfd => named("shm").pidfd(false),
            Self::Tcp => named("tcp"),
            #[cfg(feature = "tls")]
            Self::Tls => named("tcp").tls(tls().1.clone()),
            Self::RcVerbs => {
                emulated::find_rdma_devices();
                named("rc_verbs")
            }
        }
    }

    pub(crate) fn context(self) -> Context {
        self.builder().build().expect("a context")
    }

    pub(crate) fn worker(self) -> Worker {
        Worker::new(&self.context()).expect("a worker")
    }

    /// Two connected ends.
    pub(crate) async fn pair(self) -> Pair {
        Pair::of(&self.builder().build().expect("a context"), self).await
    }

    /// A listener's socket, as somebody gets it who has come over this way and is not wharf.
    pub(crate) async fn stranger(self, address: SocketAddr) -> Box<dyn Stream> {
        let stream = TcpStream::connect(address).await.expect("the listener");
        #[cfg(feature = "tls")]
        if self == Self::Tls {
            let connector = tokio_rustls::TlsConnector::from(tls().0.clone());
            let stream = connector.connect(address.ip().into(), stream).await;
            return Box::new(stream.expect("TLS"));
        }
        Box::new(stream)
    }

    /// The kind of connection that both ends' proofs name, where they share no memory.
    pub(crate) fn medium(self) -> &'static str {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls => "tls",
            _ => "tcp",
        }
    }

    /// What [`Endpoint::transports`] says.
    pub(crate) fn transports(self) -> &'static [&'static str] {
        match self {
            Self::Own => &["self"],
            Self::Shm | Self::ShmWithoutPidfd => &["shm", "cma"],
            Self::ShmWithoutCma => &["shm"],
            Self::Tcp => &["tcp"],
            #[cfg(feature = "tls")]
            Self::Tls => &["tcp"],
            Self::RcVerbs => &["rc_verbs"],
        }
    }

    /// The ends share no memory.
    pub(crate) fn is_network(self) -> bool {
        match self {
            Self::Tcp | Self::RcVerbs => true,
            #[cfg(feature = "tls")]
            Self::Tls => true,
            Self::Own | Self::Shm | Self::ShmWithoutCma | Self::ShmWithoutPidfd => false,
        }
    }
}

#[cfg(feature = "tls")]
#[path = "../tls/certificates.rs"]
mod certificates;

/// One authority for all tests, and a certificate of both ends demanded; how one dials, and all of it for a context.
#[cfg(feature = "tls")]
fn tls() -> &'static (Arc<rustls::ClientConfig>, wharf::Tls) {
    static TLS: OnceLock<(Arc<rustls::ClientConfig>, wharf::Tls)> = OnceLock::new();
    TLS.get_or_init(|| {
        let authority = certificates::Authority::new();
        let shown = authority.issue(&["127.0.0.1", "::1", "localhost", "worker.example"]);
        let client = authority.client(Some(&shown));
        let tls = wharf::Tls::new(client.clone(), authority.server(&shown, true));
        let tls = tls.worker_name("worker.example").expect("a name");
        (client, tls)
    })
}

/// One end.
#[derive(Clone)]
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) worker: Worker,
    pub(crate) endpoint: Endpoint,
}

/// Both ends. With [`Way::Own`] they are the same.
pub(crate) struct Pair {
    pub(crate) here: Side,
    pub(crate) there: Side,
}

impl Pair {
    /// Two workers of one context, connected by a listener; or one worker, connected to itself.
    pub(crate) async fn of(context: &Context, way: Way) -> Self {
        let here = Worker::new(context).expect("a worker");
        if way == Way::Own {
            let address = here.address().expect("an address");
            let endpoint = here.connect(&address).await.expect("oneself");
            let side = Side {
                context: context.clone(),
                worker: here,
                endpoint,
            };
            return Self {
                here: side.clone(),
                there: side,
            };
        }
        let there = Worker::new(context).expect("a worker");
        let (dialled, accepted) = connect(&here, &there).await;
        assert_eq!(dialled.transports(), way.transports(), "of {way:?}");
        assert_eq!(accepted.transports(), way.transports(), "of {way:?}");
        let side = |worker, endpoint| Side {
            context: context.clone(),
            worker,
            endpoint,
        };
        Self {
            here: side(here, dialled),
            there: side(there, accepted),
        }
    }
}

/// Connects `here` to `there`, which listens; the endpoints of both.
pub(crate) async fn connect(here: &Worker, there: &Worker) -> (Endpoint, Endpoint) {
    let listener = there.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    let (dialled, accepted) = tokio::join!(here.connect(address), async {
        listener.accept().await?.accept().await
    });
    (dialled.expect("connected"), accepted.expect("accepted"))
}

impl Side {
    /// Receives the next message under exactly this tag.
    pub(crate) async fn receive(&self, tag: u64, room: usize) -> Vec<u8> {
        let received = self
            .worker
            .tag_recv(Tag(tag), vec![0xee; room])
            .await
            .expect("a message");
        assert_eq!(received.tag, Tag(tag));
        assert_eq!(received.from, self.endpoint.id());
        let mut buffer = received.buffer;
        assert!(
            all_are(&buffer[received.len..], 0xee),
            "bytes behind the message were touched"
        );
        buffer.truncate(received.len);
        buffer
    }

    /// Sends messages in this order, with as many under way as there is room for.
    pub(crate) fn send_in_order(
        &self,
        messages: impl IntoIterator<Item = (u64, &'static [u8])>,
    ) -> BoxFuture<'_, ()> {
        let messages: Vec<_> = messages.into_iter().collect();
        Box::pin(async move {
            let mut under_way = VecDeque::new();
            for (tag, bytes) in messages {
                loop {
                    match self.endpoint.tag_send(tag, bytes).post() {
                        Ok(send) => break under_way.push_back(send),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            let first = under_way.pop_front().expect("the window is full");
                            first.await.expect("sent");
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
            for send in under_way {
                send.await.expect("sent");
            }
        })
    }

    pub(crate) async fn send(&self, tag: u64, bytes: impl Into<wharf::Buffer>) {
        self.endpoint.tag_send(Tag(tag), bytes).await.expect("sent");
    }
}

/// Sizes on both sides of every threshold.
pub(crate) const SIZES: [usize; 31] = [
    0,
    1,
    7,
    8,
    47,
    48,
    49,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    (32 << 10) - 1,
    32 << 10,
    (32 << 10) + 1,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    (66 << 10) - 9,
    66 << 10,
    (66 << 10) + 1,
    (128 << 10) - 1,
    128 << 10,
    (128 << 10) + 1,
    (256 << 10) - 1,
    256 << 10,
    (256 << 10) + 1,
    (1 << 20) - 1,
    (1 << 20) + 3,
    (8 << 20) + 5,
];

/// `length` bytes that are different for every `seed` and at every place.
pub(crate) fn pattern(length: usize, seed: usize) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut bytes = Vec::with_capacity(9 << 20);
        while bytes.len() < 9 << 20 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        bytes
    });
    let start = (seed * 101) % (bytes.len() - length);
    &bytes[start..start + length]
}

/// Demands equal bytes without printing megabytes.
#[track_caller]
pub(crate) fn same(found: &[u8], wanted: &[u8], what: impl std::fmt::Display) {
    assert_eq!(found.len(), wanted.len(), "length of {what}");
    if found != wanted {
        let at = found.iter().zip(wanted).position(|(a, b)| a != b);
        panic!("{what} differs at byte {at:?} of {}", wanted.len());
    }
}

/// Time for others to run until nothing moves; where a test must show that something does *not* happen.
pub(crate) async fn a_while() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}
