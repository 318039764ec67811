//! gRPC over wharf: a tonic server and a client of generated code, which calls it over shared memory and then over TCP.
//!
//! `cargo run --release --features tonic --example tonic_greeter`
//!
//! The code is what `tonic-prost-build` has made of `common/greeter.proto`. Of wharf it knows nothing; a handler may ask which peer calls.
#![allow(clippy::print_stdout)]

use std::{error::Error, time::Duration};

use futures::{FutureExt, StreamExt, TryStreamExt, stream, stream::BoxStream};
use tokio::sync::oneshot;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Endpoint, Server},
};
use wharf::{Context, StreamAddr, StreamConnector, StreamListener, Worker};

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
type Replies = BoxStream<'static, Result<HelloReply, Status>>;

struct Greets;

fn hello(name: &str, times: u32) -> HelloRequest {
    let name = name.to_owned();
    HelloRequest { name, times }
}

fn reply(message: String) -> HelloReply {
    HelloReply { message }
}

#[tonic::async_trait]
impl Greeter for Greets {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let caller = request.extensions().get::<StreamAddr>();
        let caller = caller.map(StreamAddr::to_string).unwrap_or_default();
        match request.into_inner().name {
            name if name.is_empty() => Err(Status::invalid_argument("hello whom?")),
            name => Ok(Response::new(reply(format!("hello {name}, by {caller}")))),
        }
    }

    type SayHellosStream = Replies;

    async fn say_hellos(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<Replies>, Status> {
        let HelloRequest { name, times } = request.into_inner();
        let replies = (0..times).map(move |time| Ok(reply(format!("hello {name}, {time}"))));
        Ok(Response::new(stream::iter(replies).boxed()))
    }

    type ChatStream = Replies;

    async fn chat(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Replies>, Status> {
        let names = request.into_inner().map_ok(|request| request.name);
        let replies = names.map_ok(|name| reply(format!("hello {name}")));
        Ok(Response::new(replies.boxed()))
    }
}

/// Serves on one worker and calls from another; what was said.
pub(crate) async fn run(transport: &str) -> Outcome<String> {
    let context = Context::builder().transports(transport)?.build()?;
    let (server, client) = (Worker::new(&context)?, Worker::new(&context)?);

    let listener = StreamListener::new(server.listen("127.0.0.1:0").await?);
    let address = listener.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let serves = Server::builder()
        .add_service(GreeterServer::new(Greets))
        .serve_with_incoming_shutdown(listener, stopped.map(drop));
    let serving = tokio::spawn(serves);

    // The name plays no part: all calls go to this address. It is dialled again when the connection was lost.
    let connector = StreamConnector::to(&client, address);
    let endpoint = Endpoint::from_static("http://greeter");
    let channel = endpoint.connect_with_connector(connector).await?;
    let mut greeter = GreeterClient::new(channel);
    let said = greeter.say_hello(hello("you", 1)).await?.into_inner();
    let many = greeter.say_hellos(hello("all", 1000)).await?.into_inner();
    let many: Vec<_> = many.try_collect().await?;
    let names = stream::iter(["one", "two"].map(|name| hello(name, 1)));
    let chat = greeter.chat(names).await?.into_inner();
    let chat: Vec<_> = chat.map_ok(|reply| reply.message).try_collect().await?;

    drop((greeter, stop));
    serving.await??;
    client.shutdown(Duration::from_secs(5)).await?;
    server.shutdown(Duration::from_secs(5)).await?;
    let (said, many, chat) = (said.message, many.len(), chat.join(", "));
    Ok(format!("{said}; {many} times hello all; {chat}"))
}

#[tokio::main]
async fn main() -> Outcome<()> {
    for transport in ["shm", "tcp"] {
        println!("{transport}: {}", run(transport).await?);
    }
    Ok(())
}
