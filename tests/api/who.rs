//! Who is at the other end, and where. Nobody is taken for somebody else: an id belongs to who can
//! prove it.

use std::{collections::HashSet, os::linux::net::SocketAddrExt, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use wharf::{Context, ErrorKind, Tag, Worker, WorkerAddress};

use crate::{
    fixture::{Way, run},
    stranger::{
        Key, Stranger, arrival, bytes_of, field, fields, hear, hear_hello, hear_introduction, list,
        say, share, shared, unix_part, until_the_end, worker,
    },
    support::Looks,
};

const SECRETS: [Option<&str>; 2] = [None, Some("open sesame")];

fn context(way: Way, secret: Option<&str>) -> Context {
    let builder = way.builder();
    match secret {
        Some(secret) => builder.secret(secret).build(),
        None => builder.build(),
    }
    .expect("a context")
}

fn medium(way: Way) -> &'static str {
    match way {
        Way::Tcp => "tcp",
        _ => "unix",
    }
}

fn abstract_address(name: &[u8]) -> std::os::unix::net::SocketAddr {
    std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name")
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A socket to where a worker's address leads.
async fn open(way: Way, address: &WorkerAddress) -> Box<dyn Stream> {
    if way == Way::Tcp {
        let stream = TcpStream::connect(address.sockets()).await;
        return Box::new(stream.expect("it listens"));
    }
    let name = abstract_address(&unix_part(address).0);
    let stream = std::os::unix::net::UnixStream::connect_addr(&name).expect("it listens");
    stream.set_nonblocking(true).expect("a socket");
    Box::new(UnixStream::from_std(stream).expect("a socket"))
}

/// What is said in the place of a verdict: whether it is a yes, and all of it as text.
fn verdict(message: &[u8]) -> (bool, String) {
    let text = String::from_utf8_lossy(message).into_owned();
    (message.get(6) == Some(&b'A'), text)
}

/// The key that a worker shows to whoever asks.
async fn key_at(way: Way, address: &WorkerAddress, secret: Option<&str>) -> [u8; 32] {
    let own = Key::new([0x11; 32]);
    let stranger = Stranger {
        secret,
        ..Stranger::honest(medium(way), &own)
    };
    let mut stream = open(way, address).await;
    say(&mut stream, &stranger.client_hello()).await;
    bytes_of(&fields(b'S', &hear(&mut stream).await), field::KEY)
}

/// A stranger dials and says it is X. It is turned away, and what is sent to X goes to X.
#[test]
fn nobody_dials_as_somebody_else() {
    run(async {
        for (way, secret) in [Way::Tcp, Way::Shm]
            .into_iter()
            .flat_map(|way| SECRETS.map(|secret| (way, secret)))
        {
            let context = context(way, secret);
            let (x, y) = (
                Worker::new(&context).expect("a worker"),
                Worker::new(&context).expect("a worker"),
            );
            let (to_x, to_y) = (
                x.address().expect("an address"),
                y.address().expect("an address"),
            );
            // The key of X is no secret.
            let claims = key_at(way, &to_x, secret).await;
            assert_eq!(worker(&claims), x.id(), "an id is made of its key");

            let own = Key::new([0x42; 32]);
            let mut stranger = Stranger {
                secret,
                claims,
                ..Stranger::honest(medium(way), &own)
            };
            let mut stream = open(way, &to_y).await;
            let (yes, text) = verdict(&stranger.dial(&mut stream).await);
            assert!(!yes && text.contains("who it says"), "{way:?}: {text:?}");
            until_the_end(&mut stream).await;

            // As itself it may.
            stranger.claims = own.public;
            let (yes, text) = verdict(&stranger.dial(&mut open(way, &to_y).await).await);
            assert!(yes, "{way:?}: {text:?}");

            let endpoint = y.connect(&to_x).await.expect("X is there");
            assert_eq!(endpoint.peer(), Some(x.id()));
            endpoint.tag_send(7, b"for X".to_vec()).await.expect("sent");
            let received = x.tag_recv(7, vec![0; 5]).await.expect("a message");
            assert_eq!(&received.buffer[..], b"for X");
        }
    });
}

/// X is gone; a stranger has its place, and says that it is X. Who dials X's address hears that this is somebody else.
#[test]
fn nobody_answers_for_somebody_else() {
    run(async {
        for (way, secret) in [Way::Tcp, Way::Shm]
            .into_iter()
            .flat_map(|way| SECRETS.map(|secret| (way, secret)))
        {
            let context = context(way, secret);
            let x = Worker::new(&context).expect("a worker");
            let to_x = x.address().expect("an address");
            let claims = key_at(way, &to_x, secret).await;
            x.shutdown(Duration::from_secs(60)).await.expect("in order");
            drop(x);

            let here = Worker::new(&context).expect("a worker");
            let own = Key::new([0x42; 32]);
            let liar = Stranger {
                secret,
                claims,
                ..Stranger::honest(medium(way), &own)
            };
            let honest = Stranger {
                secret,
                ..Stranger::honest(medium(way), &own)
            };
            for (greets, kind) in [
                (&liar, ErrorKind::AuthenticationFailed),
                (&honest, ErrorKind::Unreachable),
            ] {
                let mut listening = Listening::at(way, &to_x).await;
                // An address may have several sockets, which are dialled in turn.
                let serve = async {
                    loop {
                        let mut stream = listening.accept().await;
                        let client = hear(&mut stream).await;
                        greets.greet(&mut stream, &client).await;
                        let mut rest = Vec::new();
                        let _ = stream.read_to_end(&mut rest).await;
                        assert!(rest.is_empty(), "said to who is not X: {rest:?}");
                    }
                };
                let result = tokio::select! {
                    result = here.connect(&to_x) => result,
                    never = serve => never,
                };
                let error = result.expect_err("nobody proved to be X");
                assert_eq!(error.kind(), kind, "{way:?}: {error}");
                drop(listening);
            }
        }
    });
}

/// A place that was a worker's.
enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listening {
    async fn at(way: Way, address: &WorkerAddress) -> Self {
        // Its connections may linger.
        let mut looks = Looks::new("the place of a worker that is gone");
        loop {
            if way == Way::Tcp {
                if let Ok(listener) = TcpListener::bind(address.sockets()[0]).await {
                    return Self::Tcp(listener);
                }
            } else {
                let name = abstract_address(&unix_part(address).0);
                if let Ok(listener) = std::os::unix::net::UnixListener::bind_addr(&name) {
                    listener.set_nonblocking(true).expect("a socket");
                    return Self::Unix(UnixListener::from_std(listener).expect("a socket"));
                }
            }
            looks.again().await;
        }
    }

    async fn accept(&mut self) -> Box<dyn Stream> {
        match self {
            Self::Tcp(listener) => Box::new(listener.accept().await.expect("a connection").0),
            Self::Unix(listener) => Box::new(listener.accept().await.expect("a connection").0),
        }
    }
}

/// Everything that goes from one socket to another.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> Vec<u8> {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        all.extend_from_slice(&bytes[..count]);
        if to.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
    all
}

/// Carries the bytes of one connection on to another; what either end has said, at the end.
async fn relay(from: TcpListener, to: impl AsyncRead + AsyncWrite) -> (Vec<u8>, Vec<u8>) {
    let (client, _) = from.accept().await.expect("a client");
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = tokio::io::split(to);
    tokio::join!(carry(from_client, to_server), carry(from_server, to_client))
}

/// Somebody has recorded a connection from its first byte on. Played again to either end, it is refused.
#[test]
fn a_recorded_handshake_proves_nothing() {
    run(async {
        for secret in SECRETS {
            let context = context(Way::Tcp, secret);
            let new = || Worker::new(&context).expect("a worker");
            let (here, there) = (new(), new());
            let listener = there.listen("127.0.0.1:0").await.expect("a listener");
            let between = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let place = between.local_addr().expect("an address");
            let server = TcpStream::connect(listener.local_addr()).await;
            let recorder = tokio::spawn(relay(between, server.expect("it listens")));
            let (dialled, accepted) = tokio::join!(here.connect(place), async {
                listener.accept().await.expect("a request").await
            });
            let (dialled, accepted) = (dialled.expect("connected"), accepted.expect("accepted"));
            assert_eq!(dialled.peer(), Some(there.id()));
            assert_eq!(accepted.peer(), Some(here.id()));
            dialled.close().await.expect("in order");
            accepted.closed().await;
            drop((dialled, accepted));
            let (by_client, by_server) = recorder.await.expect("to its end");

            // Its hello, its introduction, and its proof.
            let address = listener.local_addr();
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            let mut rest = &by_client[..];
            let mut said = Vec::new();
            for answers in [2, 0, 1] {
                let (length, bytes) = rest.split_first_chunk().expect("a length");
                let (message, bytes) = bytes.split_at(u32::from_le_bytes(*length) as usize);
                say(&mut stream, message).await;
                for _ in 0..answers {
                    said = hear(&mut stream).await;
                }
                rest = bytes;
            }
            let (yes, text) = verdict(&said);
            assert!(!yes && text.contains("altered on its way"), "{text:?}");

            let between = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let place = between.local_addr().expect("an address");
            let (result, ()) = tokio::join!(here.connect(place), async {
                let (mut stream, _) = between.accept().await.expect("a client");
                stream.write_all(&by_server).await.expect("it reads");
                until_the_end(&mut stream).await;
            });
            let error = result.expect_err("a recording");
            assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{error}");
        }
    });
}

/// Who is dialled cannot pass for who dials: neither by carrying a handshake on to a socket of another kind, nor by putting its own key in it.
#[test]
fn a_handshake_cannot_be_handed_on() {
    run(async {
        for secret in SECRETS {
            let builder = Context::builder().transports("tcp,shm").expect("known");
            let context = match secret {
                Some(secret) => builder.secret(secret).build(),
                None => builder.build(),
            }
            .expect("a context");
            let new = || Worker::new(&context).expect("a worker");
            let (here, there) = (new(), new());
            let to_there = there.address().expect("an address");

            let between = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let place = between.local_addr().expect("an address");
            let relay = tokio::spawn(relay(between, open(Way::Shm, &to_there).await));
            let error = here.connect(place).await.expect_err("over another socket");
            assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{error}");
            relay.await.expect("to its end");

            // Hands the hello on with its own key in it, and what `here` says to that.
            let own = Key::new([0x42; 32]);
            let stranger = Stranger {
                secret,
                ..Stranger::honest("tcp", &own)
            };
            let between = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let place = between.local_addr().expect("an address");
            let (result, ()) = tokio::join!(here.connect(place), async {
                let (mut client, _) = between.accept().await.expect("a client");
                let mut server = open(Way::Tcp, &to_there).await;
                let hello = hear(&mut client).await;
                say(&mut server, &hello).await;
                hear_hello(&mut server).await;
                stranger.greet(&mut client, &hello).await;
                // Who it is, and the proof of it.
                say(&mut server, &hear(&mut client).await).await;
                say(&mut server, &hear(&mut client).await).await;
                let answer = hear(&mut server).await;
                let (yes, text) = verdict(&answer);
                assert!(!yes && text.contains("altered on its way"), "{text:?}");
                say(&mut client, &answer).await;
            });
            let error = result.expect_err("no worker");
            assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{error}");
        }
    });
}

/// A handshake goes on at a Unix socket for who has begun it, with who has begun it: a guess is refused, and the socket of another worker is no
/// place for it.
#[test]
fn a_handshake_goes_on_nowhere_else() {
    run(async {
        for secret in SECRETS {
            let builder = Context::builder().transports("tcp,shm").expect("known");
            let context = match secret {
                Some(secret) => builder.secret(secret).build(),
                None => builder.build(),
            }
            .expect("a context");
            let new = || Worker::new(&context).expect("a worker");
            let (here, there) = (new(), new());
            let to_there = there.address().expect("an address");
            for way in [Way::Tcp, Way::Shm] {
                let mut stream = open(way, &to_there).await;
                say(&mut stream, &arrival()).await;
                let answer = hear(&mut stream).await;
                let (yes, text) = verdict(&answer);
                assert!(!yes && answer[6] == b'R', "{way:?}: {text:?}");
                assert_eq!(text.contains("is over"), way == Way::Shm, "{text:?}");
                tells_nothing(&answer);
                until_the_end(&mut stream).await;
            }

            let own = Key::new([0x42; 32]);
            let stranger = Stranger {
                secret,
                ..Stranger::honest("tcp", &own)
            };
            let between = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let place = between.local_addr().expect("an address");
            let (result, ()) = tokio::join!(here.connect(place), async {
                let (mut client, _) = between.accept().await.expect("a client");
                let hello = hear(&mut client).await;
                let both = stranger.greet(&mut client, &hello).await;
                let introduction = hear_introduction(&mut client).await;
                let (name, _) = unix_part(&to_there);
                say(&mut client, &stranger.elsewhere(both, &introduction, &name)).await;
                until_the_end(&mut client).await;
            });
            let error = result.expect_err("another worker");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert!(error.to_string().contains("another worker"), "{error}");
        }
    });
}

/// What tells where a process is, of all that is said of one: its host, its namespaces, itself.
fn traces() -> Vec<Vec<u8>> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
    let boot: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    let boot = (0..16).map(|at| u8::from_str_radix(&boot[2 * at..2 * at + 2], 16).expect("hex"));
    let mut traces = vec![boot.collect(), b"wharf-".to_vec()];
    for namespace in ["net", "pid", "user"] {
        use std::os::unix::fs::MetadataExt;
        let inode = std::fs::metadata(format!("/proc/self/ns/{namespace}"))
            .expect("Linux")
            .ino();
        traces.push(inode.to_le_bytes().to_vec());
    }
    let (user, pid) = (nix::unistd::geteuid().as_raw(), std::process::id());
    traces.push([user.to_le_bytes(), pid.to_le_bytes()].concat());
    traces
}

/// Nothing in it tells where somebody is.
fn tells_nothing(bytes: &[u8]) {
    for trace in traces() {
        let found = bytes.windows(trace.len()).any(|window| window == trace);
        assert!(!found, "{trace:?} in {bytes:?}");
    }
}

/// Whoever connects is told a version and the worker's key, byte for byte; and no more until they have proved a key of their own, and that they
/// know the secret.
#[test]
fn strangers_learn_a_key_and_no_more() {
    run(async {
        for secret in SECRETS {
            let builder = Context::builder().transports("tcp,shm").expect("known");
            let context = match secret {
                Some(secret) => builder.secret(secret).build(),
                None => builder.build(),
            }
            .expect("a context");
            let there = Worker::new(&context).expect("a worker");
            let listener = there.listen("127.0.0.1:0").await.expect("a listener");
            let own = Key::new([0x42; 32]);
            // Without the secret it has to guess.
            let stranger = Stranger {
                secret: secret.map(|_| "a guess"),
                ..Stranger::honest("tcp", &own)
            };
            let mut stream = TcpStream::connect(listener.local_addr())
                .await
                .expect("it listens");
            let mut byte = [0];
            let early = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut byte));
            assert!(early.await.is_err(), "said before anything was asked");
            say(&mut stream, &stranger.client_hello()).await;
            let messages = hear_hello(&mut stream).await;
            let [hello, proof] = &messages;
            let told: Vec<_> = [list(12, hello), list(12, proof)]
                .concat()
                .into_iter()
                .map(|(id, bytes)| (id, bytes.len()))
                .collect();
            let mut expected = vec![
                (field::VERSIONS, 4),
                (field::KEY, 32),
                (field::EPHEMERAL, 32),
            ];
            expected.extend(secret.map(|_| (field::SHARE, 32)));
            expected.push((field::PROOF, 32));
            assert_eq!(told, expected);
            assert_eq!(
                worker(&bytes_of(&fields(b'S', hello), field::KEY)),
                there.id()
            );
            tells_nothing(&messages.concat());

            // With a key that is not its own, and with the wrong secret: why not, and the end.
            let liar = Stranger {
                claims: [0x99; 32],
                ..stranger.clone()
            };
            let who = if secret.is_some() { &stranger } else { &liar };
            who.introduce(&mut stream, &messages).await;
            let answer = hear(&mut stream).await;
            let (yes, text) = verdict(&answer);
            let why = match secret {
                Some(_) => "the shared secret is wrong",
                None => "who it says",
            };
            assert!(!yes && text.contains(why), "{text:?}");
            tells_nothing(&answer);
            until_the_end(&mut stream).await;

            // The other way round: who is dialled is told nothing, then what it cannot open.
            let between = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let place = between.local_addr().expect("an address");
            let (result, ()) = tokio::join!(there.connect(place), async {
                let (mut stream, _) = between.accept().await.expect("a client");
                let hello = hear(&mut stream).await;
                let told: Vec<_> = list(12, &hello)
                    .into_iter()
                    .map(|(id, bytes)| (id, bytes.len()))
                    .collect();
                let mut expected = vec![(field::VERSIONS, 4), (field::EPHEMERAL, 32)];
                expected.extend(secret.map(|_| (field::SHARE, 32)));
                assert_eq!(told, expected);
                let both = stranger.greet(&mut stream, &hello).await;
                let introduction = hear_introduction(&mut stream).await;
                tells_nothing(&[hello, introduction.clone()].concat());
                // Who has proved its key is told, where no secret is asked for.
                assert_eq!(both.open(&introduction).is_some(), secret.is_none());
            });
            result.expect_err("it went");
        }
    });
}

/// Who takes part in a handshake, at either end, has one guess of the secret, and learns nothing to try others on. Both ends hear that it was wrong.
#[test]
fn a_secret_cannot_be_guessed_at_home() {
    const SECRET: &str = "4711";
    run(async {
        let context = context(Way::Tcp, Some(SECRET));
        let here = Worker::new(&context).expect("a worker");
        let own = Key::new([0x42; 32]);
        for guess in ["1234", SECRET] {
            let stranger = Stranger {
                secret: Some(guess),
                ..Stranger::honest("tcp", &own)
            };
            let between = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let place = between.local_addr().expect("an address");
            let dial = here.connect(place);
            let (result, (client, introduction)) = tokio::join!(dial, async {
                let (mut stream, _) = between.accept().await.expect("a client");
                let client = hear(&mut stream).await;
                let both = stranger.greet(&mut stream, &client).await;
                let introduction = hear_introduction(&mut stream).await;
                let right = both.open(&introduction).is_some();
                assert_eq!(
                    right,
                    guess == SECRET,
                    "one guess is there for who takes part"
                );
                if right {
                    let yes = stranger.acceptance(both, &introduction);
                    say(&mut stream, &yes).await;
                }
                (client, introduction)
            });
            result.expect_err("it went");
            if guess == SECRET {
                continue;
            }
            // All that it has, tried on every secret there is, the right one among them.
            let client_fields = fields(b'C', &client);
            let client_key = bytes_of(&client_fields, field::EPHEMERAL);
            let theirs = bytes_of(&client_fields, field::SHARE);
            let scalar = Stranger::scalar();
            let (_, both) = stranger.server_hello(&client);
            for candidate in 4000..5000 {
                // As though this had been its guess from the first.
                let claimed = share(&candidate.to_string(), &client_key, &scalar);
                let both = both.with_secret(shared(&scalar, theirs, &theirs, &claimed));
                assert!(both.open(&introduction).is_none(), "{candidate}");
            }
        }
    });
}

/// Two ends with different secrets, or one with none: both hear why.
#[test]
fn both_ends_hear_of_a_wrong_secret() {
    run(async {
        for (one, other) in [
            (Some("open sesame"), Some("open barley")),
            (Some("open sesame"), None),
            (None, Some("open sesame")),
        ] {
            let there = Worker::new(&context(Way::Tcp, one)).expect("a worker");
            let here = Worker::new(&context(Way::Tcp, other)).expect("a worker");
            let listener = there.listen("127.0.0.1:0").await.expect("a listener");
            let error = here
                .connect(listener.local_addr())
                .await
                .expect_err("no common secret");
            assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{error}");
            assert!(error.to_string().contains("secret"), "{error}");
        }
    });
}

/// Where both ends of something are, as each of its handles says: this one, the other, and the
/// other's process.
macro_rules! ends {
    ($of:expr) => {{
        let of = &$of;
        let process = of.peer_credentials().map(|peer| peer.pid);
        (of.local_addr(), of.peer_addr(), process)
    }};
}

/// Who dials an address has one, and the other end has it too, whatever carries the messages; one's
/// own is the other's peer's. Requests, endpoints, streams and their halves say the same.
#[test]
#[allow(
    clippy::mutable_key_type,
    reason = "which endpoint it is never changes"
)]
fn both_ends_know_where_they_are() {
    run(async {
        for way in [Way::Tcp, Way::Shm] {
            let (here, there) = (way.worker(), way.worker());
            let listener = there.listen("127.0.0.1:0").await.expect("a listener");
            let process = (!way.is_network()).then(std::process::id);

            let (near, (asks, far)) = tokio::join!(here.connect(listener.local_addr()), async {
                let incoming = listener.accept().await.expect("a request");
                assert_eq!(
                    ends!(incoming),
                    ends!(incoming.info().expect("not answered yet"))
                );
                (ends!(incoming), incoming.accept().await.expect("accepted"))
            });
            let near = near.expect("connected");
            let (own, peer) = (near.local_addr(), near.peer_addr());
            assert_eq!(peer, Some(listener.local_addr()), "{way:?}");
            assert_ne!(own, peer, "{way:?}");
            assert!(own.is_some_and(|own| own.ip().is_loopback() && own.port() != 0));
            assert_eq!(ends!(near), (own, peer, process), "{way:?}");
            assert_eq!(ends!(far), (peer, own, process), "{way:?}");
            assert_eq!(asks, ends!(far), "{way:?}");

            let (stream, other) = tokio::join!(
                async {
                    let mut stream = near.stream().await.expect("a stream");
                    stream.write_all(b"hello").await.expect("written");
                    stream
                },
                async { far.accept_stream().await.expect("a stream") }
            );
            assert_eq!((ends!(stream), ends!(other)), (ends!(near), ends!(far)));
            let (reader, writer) = other.into_split();
            assert_eq!((ends!(reader), ends!(writer)), (ends!(far), ends!(far)));

            // By the worker's address, which leads to a Unix socket where there is one.
            let address = there.address().expect("an address");
            let by_address = way.worker();
            let near = by_address.connect(&address).await.expect("connected");
            near.tag_send(Tag(1), [7]).await.expect("sent");
            let from = there
                .tag_recv(Tag(1), vec![0])
                .await
                .expect("a message")
                .from;
            let far = there.endpoint(from).expect("connected");
            let known = HashSet::from([far.clone()]);
            assert!(
                known.contains(&there.endpoint(from).expect("connected")),
                "one end"
            );
            assert!(!known.contains(&near), "the other end");
            let (own, peer) = (near.local_addr(), near.peer_addr());
            assert_eq!(ends!(near), (own, peer, process), "{way:?}");
            assert_eq!(ends!(far), (peer, own, process), "{way:?}");
            match way.is_network() {
                true => assert!(address.sockets().contains(&peer.expect("over TCP"))),
                false => assert_eq!((own, peer), (None, None)),
            }
        }
    });
}
