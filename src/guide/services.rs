//! Services: axum, tonic and hyper over byte streams. Features `axum`, `tonic`, `hyper`.
//!
//! A [`ByteStream`](crate::ByteStream) is what a `TcpStream` is: `AsyncRead + AsyncWrite`. So whatever runs on sockets runs on it, between processes of a host
//! over shared memory and between hosts over what else both ends have. What a service needs is a place that accepts streams, and a client something that opens them:
//!
//! | | is like | for |
//! |---|---|---|
//! | [`StreamListener`](crate::StreamListener) | a `TcpListener` | `axum::serve` (feature `axum`); tonic's `serve_with_incoming` (feature `tonic`); a loop of your own |
//! | [`StreamAddr`](crate::StreamAddr) | the `SocketAddr` of who connects | `ConnectInfo<StreamAddr>` of axum; the extensions of tonic's requests |
//! | `StreamConnector` (feature `hyper`, which `tonic` brings with it) | hyper-util's `HttpConnector` | tonic's `connect_with_connector`; hyper-util's `legacy::Client` |
//!
//! ```toml
//! [dependencies]
//! wharf = { path = "../wharf", features = ["tonic"] }   # or "axum", "hyper"
//! ```
//!
//! # axum
//!
#![cfg_attr(all(feature = "axum", feature = "hyper"), doc = "```")]
#![cfg_attr(not(all(feature = "axum", feature = "hyper")), doc = "```ignore")]
//! use axum::{Router, body::Body, extract::ConnectInfo, routing::get};
//! use http_body_util::BodyExt;
//! use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//! use wharf::{Context, StreamAddr, StreamConnector, StreamListener, Worker};
//!
//! async fn hello(ConnectInfo(caller): ConnectInfo<StreamAddr>) -> String {
//!     format!("hello, {caller}")
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let context = Context::builder().build()?;
//!     let worker = Worker::new(&context)?;
//!     let listener = StreamListener::new(worker.listen("127.0.0.1:0").await?);
//!     let address = listener.local_addr();
//!     let router = Router::new().route("/", get(hello));
//!     let service = router.into_make_service_with_connect_info::<StreamAddr>();
//!     tokio::spawn(async { axum::serve(listener, service).await });
//!
//!     // Another process has a worker of its own, and nothing else is different.
//!     let client = Worker::new(&context)?;
//!     let http: Client<_, Body> = Client::builder(TokioExecutor::new()).build(StreamConnector::new(&client));
//!     let answer = http.get(format!("http://{address}/").parse()?).await?;
//!     let text = answer.into_body().collect().await?.to_bytes();
//!     assert!(text.starts_with(b"hello, process "));
//!     Ok(())
//! }
//! ```
//!
//! # tonic
//!
//! A service of generated code is what it was; so are interceptors, health checks and reflection. It is served by `serve_with_incoming`, and called over a channel
//! by `connect_with_connector`, which connects again when the connection is lost.
//!
#![cfg_attr(feature = "tonic", doc = "```")]
#![cfg_attr(not(feature = "tonic"), doc = "```ignore")]
//! use tonic::transport::{Endpoint, Server};
//! use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
//! use wharf::{Context, StreamConnector, StreamListener, Worker};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let context = Context::builder().build()?;
//!     let worker = Worker::new(&context)?;
//!     let listener = StreamListener::new(worker.listen("127.0.0.1:0").await?);
//!     let address = listener.local_addr();
//!     let (_reporter, health) = tonic_health::server::health_reporter();
//!     tokio::spawn(Server::builder().add_service(health).serve_with_incoming(listener));
//!
//!     let client = Worker::new(&context)?;
//!     // Whatever the name: all that this connector makes leads to one address.
//!     let endpoint = Endpoint::from_static("http://health");
//!     let channel = endpoint.connect_with_connector(StreamConnector::to(&client, address)).await?;
//!     let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await?;
//!     assert_eq!(answer.into_inner().status, 1);
//!     Ok(())
//! }
//! ```
//!
//! # Who connects, and who is slow
//!
//! Who is let in is the context's to say: a secret, [`admit`](crate::ContextBuilder::admit), [TLS](super::tls) between hosts, and
//! [limits](crate::config::Limits). A peer that is turned away, or breaks off, is no error of `accept`, and one that says nothing holds up nobody. An accepted
//! stream says who opened it by [`StreamAddr`](crate::StreamAddr).
//!
//! # Examples
//!
//! | with | example |
//! |---|---|
//! | axum | `examples/axum_over_wharf.rs` |
//! | tonic (gRPC) | `examples/tonic_greeter.rs` |
//! | tonic, measured beside sockets | `examples/grpc_latency.rs` |
//! | hyper, HTTP/1 and HTTP/2, by hand | `examples/hyper_server.rs` |
//! | tower, over active messages | `examples/tower_rpc.rs` |
//! | a codec of tokio-util | `examples/codec.rs` |
//! | an ordinary Tokio server beside it, on one runtime | `examples/embed_in_server.rs` |
