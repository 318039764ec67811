//! How fast gRPC is over wharf: a tonic server in a second process, unary calls and streaming, and their rates beside a plain Unix socket and plain TCP.
//!
//! `cargo run --release --features tonic --example grpc_latency` prints a line for each kind of connection, and how wharf's shared memory compares with the
//! Unix socket. The program starts itself again as the server. Both run on one thread each, or on as many as the variable `THREADS` says. Rates mean
//! something on a machine with two processors to spare only.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    future::Future,
    io,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use futures::{
    Stream, StreamExt, TryFutureExt, TryStreamExt,
    future::try_join_all,
    stream::{self, BoxStream},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    process::{Child, Command},
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Endpoint, Server},
};
use tower::service_fn;
use wharf::{Context, StreamConnector, StreamListener, Worker};

use greeter::{
    HelloReply, HelloRequest,
    greeter_client::GreeterClient,
    greeter_server::{Greeter, GreeterServer},
};

#[allow(unreachable_pub, unused_qualifications, reason = "generated")]
mod greeter {
    include!("common/greeter.rs");
}

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What carries the calls: wharf over shared memory and over TCP, and sockets without wharf.
const KINDS: [&str; 4] = ["shm", "tcp", "unix", "plain-tcp"];
/// How long each rate is measured, and how often. The median counts.
const TIME: Duration = Duration::from_millis(200);
const ROUNDS: usize = 5;
/// Callers at once, beside a lone one.
const CALLERS: usize = 16;
/// Messages in one streaming call.
const MESSAGES: u32 = 5000;

fn main() -> Outcome<()> {
    // The same runtime for both ends and for every kind.
    let threads = std::env::var("THREADS").map_or(Ok(1), |threads| threads.parse())?;
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(threads).enable_all().build()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    runtime.block_on(async {
        match arguments.as_slice() {
            [] => compare().await,
            [flag, kind, place] if flag == "--server" => {
                // The server ends with this pipe, that is with the client's process.
                std::thread::spawn(|| {
                    let _ = io::copy(&mut io::stdin(), &mut io::sink());
                    std::process::exit(0);
                });
                serve(kind, place, |address| println!("{address}")).await
            }
            _ => Err("usage: grpc_latency".into()),
        }
    })
}

/// Measures every kind in turns, so that what else the machine does meets all alike.
async fn compare() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let mut servers = Vec::new();
    for kind in KINDS {
        let (child, address) = start(kind, folder.path().join(kind)).await?;
        let client = Client::connect(kind, &address).await?;
        client.check().await?;
        servers.push((kind, child, client, Vec::new()));
    }
    for _ in 0..ROUNDS {
        for (_, _, client, rates) in &mut servers {
            rates.push(client.rates().await?);
        }
    }
    println!(
        "{:<10} {:>14} {:>14} {:>16} {:>16}",
        "",
        "unary, 1",
        format!("unary, {CALLERS}"),
        "from server",
        "both ways"
    );
    let mut medians = Vec::new();
    for (kind, mut child, client, rates) in servers {
        let [one, many, down, both] = [0, 1, 2, 3].map(|column| {
            let mut column: Vec<f64> = rates.iter().map(|rates| rates[column]).collect();
            column.sort_by(f64::total_cmp);
            column[column.len() / 2]
        });
        let name = if ["shm", "tcp"].contains(&kind) {
            format!("wharf {kind}")
        } else {
            kind.to_owned()
        };
        println!(
            "{name:<10} {one:>8.0} calls/s {many:>6.0} calls/s {down:>7.0} messages/s {both:>5.0} messages/s"
        );
        medians.push([one, many, down, both]);
        client.close().await?;
        drop(child.stdin.take());
        child.wait().await?;
    }
    let ratio = |column: usize| medians[0][column] / medians[2][column];
    println!(
        "wharf shm / unix: unary {:.2} with 1 caller, {:.2} with {CALLERS}; streaming {:.2} from the server, {:.2} both ways",
        ratio(0),
        ratio(1),
        ratio(2),
        ratio(3),
    );
    Ok(())
}

/// Starts this program again as the server; where it listens.
async fn start(kind: &str, socket: PathBuf) -> Outcome<(Child, String)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--server", kind])
        .arg(socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let address = BufReader::new(output).lines().next_line().await?;
    Ok((child, address.ok_or("the server ended early")?))
}

// --- The service.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Greets;

type Replies = BoxStream<'static, Result<HelloReply, Status>>;

#[tonic::async_trait]
impl Greeter for Greets {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let request = request.into_inner();
        if request.name.is_empty() {
            return Err(Status::invalid_argument("hello whom?"));
        }
        Ok(Response::new(reply(&request.name)))
    }

    type SayHellosStream = Replies;

    async fn say_hellos(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<Replies>, Status> {
        let HelloRequest { name, times } = request.into_inner();
        let replies = (0..times).map(move |_| Ok(reply(&name)));
        Ok(Response::new(stream::iter(replies).boxed()))
    }

    type ChatStream = Replies;

    async fn chat(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Replies>, Status> {
        let replies = request.into_inner().map_ok(|request| reply(&request.name));
        Ok(Response::new(replies.boxed()))
    }
}

fn reply(name: &str) -> HelloReply {
    HelloReply {
        message: format!("Hello, {name}!"),
    }
}

// --- The server: what it listens on.

/// Serves until it is dropped. Says where it listens.
pub(crate) async fn serve(kind: &str, place: &str, say: impl FnOnce(String)) -> Outcome<()> {
    match kind {
        "unix" => {
            let listener = UnixListener::bind(place)?;
            say(place.to_owned());
            let streams = stream::poll_fn(|cx| {
                listener
                    .poll_accept(cx)
                    .map(|accepted| Some(accepted.map(|(stream, _)| stream)))
            });
            Ok(Server::builder()
                .serve_with_incoming(GreeterServer::new(Greets), streams)
                .await?)
        }
        "plain-tcp" => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            say(listener.local_addr()?.to_string());
            let streams = stream::poll_fn(|cx| {
                listener.poll_accept(cx).map(|accepted| {
                    Some(accepted.and_then(|(stream, _)| {
                        stream.set_nodelay(true)?;
                        Ok(stream)
                    }))
                })
            });
            Ok(Server::builder()
                .serve_with_incoming(GreeterServer::new(Greets), streams)
                .await?)
        }
        transport => {
            let context = Context::builder().transports(transport)?.build()?;
            let listener = Worker::new(&context)?.listen("127.0.0.1:0").await?;
            say(listener.local_addr().to_string());
            serve_wharf(listener).await
        }
    }
}

/// Serves whoever connects to this listener.
pub(crate) async fn serve_wharf(listener: wharf::Listener) -> Outcome<()> {
    Ok(Server::builder()
        .serve_with_incoming(GreeterServer::new(Greets), StreamListener::new(listener))
        .await?)
}

// --- The client.

type Greetings = BoxStream<'static, Result<String, Status>>;

/// A client, and the worker that its connection is one of.
pub(crate) struct Client {
    greeter: GreeterClient<Channel>,
    worker: Option<Worker>,
}

impl Client {
    /// Connects to a server of this kind.
    pub(crate) async fn connect(kind: &str, address: &str) -> Outcome<Self> {
        // The name of the host plays no part: the connector knows where to go.
        let channel = Endpoint::from_static("http://greeter");
        let address = address.to_owned();
        let mut worker = None;
        let channel = match kind {
            "unix" => {
                let connector =
                    service_fn(move |_| UnixStream::connect(address.clone()).map_ok(TokioIo::new));
                channel.connect_with_connector(connector).await?
            }
            "plain-tcp" => {
                let connector = service_fn(move |_| {
                    let address = address.clone();
                    async {
                        let stream = TcpStream::connect(address).await?;
                        stream.set_nodelay(true)?;
                        Ok::<_, io::Error>(TokioIo::new(stream))
                    }
                });
                channel.connect_with_connector(connector).await?
            }
            transport => {
                let context = Context::builder().transports(transport)?.build()?;
                let worker = worker.insert(Worker::new(&context)?);
                let connector = StreamConnector::to(worker, address);
                channel.connect_with_connector(connector).await?
            }
        };
        Ok(Self {
            greeter: GreeterClient::new(channel),
            worker,
        })
    }

    pub(crate) async fn close(self) -> Outcome<()> {
        drop(self.greeter);
        if let Some(worker) = self.worker {
            worker.shutdown(Duration::from_secs(5)).await?;
        }
        Ok(())
    }

    /// One unary call; its answer.
    pub(crate) async fn say_hello(&self, name: &str) -> Result<String, Status> {
        let response = self.greeter.clone().say_hello(hello(name, 1)).await?;
        Ok(response.into_inner().message)
    }

    /// One call with many answers.
    pub(crate) async fn say_hellos(&self, name: &str, times: u32) -> Result<Greetings, Status> {
        let replies = self.greeter.clone().say_hellos(hello(name, times)).await?;
        let replies = replies.into_inner();
        Ok(replies.map_ok(|reply| reply.message).boxed())
    }

    /// One call with many messages both ways.
    pub(crate) async fn chat(
        &self,
        names: impl Stream<Item = String> + Send + 'static,
    ) -> Result<Greetings, Status> {
        let requests = names.map(|name| HelloRequest { name, times: 1 });
        let replies = self.greeter.clone().chat(requests).await?.into_inner();
        Ok(replies.map_ok(|reply| reply.message).boxed())
    }

    /// Every kind of call once, and an error that must come as it was sent.
    pub(crate) async fn check(&self) -> Outcome<()> {
        same(&self.say_hello("wharf").await?, "Hello, wharf!")?;
        let long = "o".repeat(1 << 20);
        same(&self.say_hello(&long).await?, &format!("Hello, {long}!"))?;
        match self.say_hello("").await {
            Err(status) if status.code() == tonic::Code::InvalidArgument => {}
            other => return Err(format!("nobody was greeted: {other:?}").into()),
        }
        let replies: Vec<_> = self.say_hellos("many", 1000).await?.try_collect().await?;
        same(&replies.len().to_string(), "1000")?;
        let names = stream::iter(0..1000).map(|number| number.to_string());
        let replies: Vec<_> = self.chat(names).await?.try_collect().await?;
        same(&replies.len().to_string(), "1000")?;
        for (number, reply) in replies.iter().enumerate() {
            same(reply, &format!("Hello, {number}!"))?;
        }
        Ok(())
    }

    /// Unary calls a second with one caller and with many, messages a second from the server and both ways.
    async fn rates(&self) -> Outcome<[f64; 4]> {
        let unary = async |deadline: Instant| {
            let mut calls = 0_u32;
            while Instant::now() < deadline {
                same(&self.say_hello("wharf").await?, "Hello, wharf!")?;
                calls += 1;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(calls)
        };
        let one = rate(async |deadline| unary(deadline).await).await?;
        let many = rate(async |deadline| {
            let calls = try_join_all((0..CALLERS).map(|_| unary(deadline))).await?;
            Ok(calls.iter().sum())
        })
        .await?;
        let down = rate(async |deadline| {
            let mut messages = 0;
            while Instant::now() < deadline {
                messages += count(self.say_hellos("wharf", MESSAGES).await?).await?;
            }
            Ok(messages)
        })
        .await?;
        let both = rate(async |deadline| {
            let mut messages = 0;
            while Instant::now() < deadline {
                let names = stream::iter(0..MESSAGES).map(|_| "wharf".to_owned());
                messages += count(self.chat(names).await?).await?;
            }
            Ok(messages)
        })
        .await?;
        Ok([one, many, down, both])
    }
}

fn hello(name: &str, times: u32) -> HelloRequest {
    HelloRequest {
        name: name.to_owned(),
        times,
    }
}

/// Counts the replies, each of which must be right.
async fn count(replies: impl Stream<Item = Result<String, Status>>) -> Outcome<u32> {
    let count = replies
        .map_err(Into::into)
        .try_fold(0, async |count, reply| {
            same(&reply, "Hello, wharf!").map(|()| count + 1)
        })
        .await?;
    same(&count.to_string(), &MESSAGES.to_string())?;
    Ok(count)
}

/// How many things a second.
async fn rate<F: Future<Output = Outcome<u32>>>(act: impl FnOnce(Instant) -> F) -> Outcome<f64> {
    let start = Instant::now();
    let count = act(start + TIME).await?;
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

fn same(found: &str, wanted: &str) -> Outcome<()> {
    if found == wanted {
        return Ok(());
    }
    let start: String = found.chars().take(80).collect();
    Err(format!("{start:?} ({} bytes) came back", found.len()).into())
}
