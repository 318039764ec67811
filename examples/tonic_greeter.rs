//! gRPC over wharf: a tonic server in a second process, unary calls and streaming, and their rates beside a plain Unix socket and plain TCP.
//!
//! `cargo run --release --example tonic_greeter` prints a line for each kind of connection, and how wharf's shared memory compares with the
//! Unix socket. The program starts itself again as the server. Both run on one thread each, or on as many as the variable `THREADS` says. Rates mean
//! something on a machine with two processors to spare only.
//!
//! The messages are derived and the service is written by hand, so no `protoc` is needed; generated code is served the same way. What tonic
//! needs of wharf: a connector that opens a stream (client), and a stream of accepted ones (server).
#![allow(clippy::print_stdout)]

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    io,
    path::PathBuf,
    pin::Pin,
    process::Stdio,
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use futures::{
    FutureExt, Stream, StreamExt, TryFutureExt, TryStreamExt,
    future::{BoxFuture, try_join_all},
    stream::{self, BoxStream},
};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    process::{Child, Command},
};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client::Grpc,
    server::NamedService,
    transport::{Channel, Endpoint, Server, server::Connected},
};
use tonic_prost::ProstCodec;
use tower::service_fn;
use wharf::{ByteStream, Context, Worker};

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
            _ => Err("usage: tonic_greeter".into()),
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

#[derive(Clone, PartialEq, prost::Message)]
struct HelloRequest {
    #[prost(string, tag = "1")]
    name: String,
    /// How many answers, where there may be several.
    #[prost(uint32, tag = "2")]
    times: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HelloReply {
    #[prost(string, tag = "1")]
    message: String,
}

/// What `protoc` would have made, and what one would have written for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "example.Greeter";
}

type Replies = BoxStream<'static, Result<HelloReply, Status>>;

async fn say_hello(request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
    let request = request.into_inner();
    if request.name.is_empty() {
        return Err(Status::invalid_argument("hello whom?"));
    }
    Ok(Response::new(reply(&request.name)))
}

/// As many answers as were asked for.
async fn say_hellos(request: Request<HelloRequest>) -> Result<Response<Replies>, Status> {
    let HelloRequest { name, times } = request.into_inner();
    let replies = (0..times).map(move |_| Ok(reply(&name)));
    Ok(Response::new(stream::iter(replies).boxed()))
}

/// An answer for each message, while they come.
async fn chat(request: Request<Streaming<HelloRequest>>) -> Result<Response<Replies>, Status> {
    let replies = request.into_inner().map_ok(|request| reply(&request.name));
    Ok(Response::new(replies.boxed()))
}

fn reply(name: &str) -> HelloReply {
    HelloReply {
        message: format!("Hello, {name}!"),
    }
}

impl tower::Service<hyper::Request<Body>> for Greeter {
    type Response = hyper::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(match request.uri().path() {
                "/example.Greeter/SayHello" => grpc.unary(service_fn(say_hello), request).await,
                "/example.Greeter/SayHellos" => {
                    grpc.server_streaming(service_fn(say_hellos), request).await
                }
                "/example.Greeter/Chat" => grpc.streaming(service_fn(chat), request).await,
                path => Status::unimplemented(format!("no method {path}")).into_http(),
            })
        }
        .boxed()
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
                .serve_with_incoming(Greeter, streams)
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
                .serve_with_incoming(Greeter, streams)
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
    let streams = accepted(listener).map(Ok::<_, io::Error>);
    Ok(Server::builder()
        .serve_with_incoming(Greeter, streams)
        .await?)
}

/// Every stream that any peer opens.
fn accepted(listener: wharf::Listener) -> impl Stream<Item = Accepted> {
    let endpoints = listener.filter_map(|request| async { request.ok()?.await.ok() });
    endpoints.flat_map_unordered(None, |endpoint| {
        Box::pin(stream::unfold(endpoint, |endpoint| async {
            // An error is the end of the connection.
            let stream = endpoint.accept_stream().await.ok()?;
            Some((Accepted(stream), endpoint))
        }))
    })
}

/// A stream as tonic wants it: able to say who is at the other end, which a handler finds in the request's extensions.
struct Accepted(ByteStream);

impl Connected for Accepted {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    // hyper then hands over a frame's head and payload at once.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

// --- The client.

type Greetings = BoxStream<'static, Result<String, Status>>;

/// A channel, and the connection that it goes over.
pub(crate) struct Client {
    grpc: Grpc<Channel>,
    wharf: Option<(Worker, wharf::Endpoint)>,
}

impl Client {
    /// Connects to a server of this kind.
    pub(crate) async fn connect(kind: &str, address: &str) -> Outcome<Self> {
        // The name of the host plays no part: the connector knows where to go.
        let channel = Endpoint::from_static("http://greeter");
        let address = address.to_owned();
        match kind {
            "unix" => {
                let connector =
                    service_fn(move |_| UnixStream::connect(address.clone()).map_ok(TokioIo::new));
                Ok(Self::over(channel.connect_with_connector(connector).await?))
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
                Ok(Self::over(channel.connect_with_connector(connector).await?))
            }
            transport => {
                let context = Context::builder().transports(transport)?.build()?;
                let worker = Worker::new(&context)?;
                let endpoint = worker.connect(address).await?;
                let mut client = Self::on(&endpoint).await?;
                client.wharf = Some((worker, endpoint));
                Ok(client)
            }
        }
    }

    /// A channel over a stream of this endpoint's. tonic calls the connector again when the stream broke.
    pub(crate) async fn on(endpoint: &wharf::Endpoint) -> Outcome<Self> {
        let endpoint = endpoint.clone();
        let connector = service_fn(move |_| {
            let endpoint = endpoint.clone();
            async move { Ok::<_, wharf::Error>(TokioIo::new(endpoint.stream().await?)) }
        });
        let channel = Endpoint::from_static("http://greeter");
        Ok(Self::over(channel.connect_with_connector(connector).await?))
    }

    fn over(channel: Channel) -> Self {
        Self {
            grpc: Grpc::new(channel),
            wharf: None,
        }
    }

    pub(crate) async fn close(self) -> Outcome<()> {
        drop(self.grpc);
        if let Some((worker, endpoint)) = self.wharf {
            endpoint.close().await?;
            worker.shutdown(Duration::from_secs(5)).await?;
        }
        Ok(())
    }

    /// One unary call; its answer.
    pub(crate) async fn say_hello(&self, name: &str) -> Result<String, Status> {
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static("/example.Greeter/SayHello");
        let response = grpc.unary(hello(name, 1), path, ProstCodec::default());
        let reply: HelloReply = response.await?.into_inner();
        Ok(reply.message)
    }

    /// One call with many answers.
    pub(crate) async fn say_hellos(&self, name: &str, times: u32) -> Result<Greetings, Status> {
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static("/example.Greeter/SayHellos");
        let response = grpc.server_streaming(hello(name, times), path, ProstCodec::default());
        let replies: Streaming<HelloReply> = response.await?.into_inner();
        Ok(replies.map_ok(|reply| reply.message).boxed())
    }

    /// One call with many messages both ways.
    pub(crate) async fn chat(
        &self,
        names: impl Stream<Item = String> + Send + 'static,
    ) -> Result<Greetings, Status> {
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static("/example.Greeter/Chat");
        let requests = Request::new(names.map(|name| HelloRequest { name, times: 1 }));
        let replies = grpc.streaming(requests, path, ProstCodec::default());
        let replies: Streaming<HelloReply> = replies.await?.into_inner();
        Ok(replies.map_ok(|reply| reply.message).boxed())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
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

fn hello(name: &str, times: u32) -> Request<HelloRequest> {
    Request::new(HelloRequest {
        name: name.to_owned(),
        times,
    })
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
