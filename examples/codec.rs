//! Messages of any length over a byte stream, cut by a codec of `tokio-util`: what works on a `TcpStream` works on a `ByteStream`.
//!
//! ```sh
//! cargo run --release --example codec
//! ```
#![allow(clippy::print_stdout)] // a program for a terminal

use std::time::Instant;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use wharf::{ByteStream, Context, Endpoint, Worker};

const MESSAGES: u32 = 10_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn framed(stream: ByteStream) -> Framed<ByteStream, LengthDelimitedCodec> {
    LengthDelimitedCodec::builder()
        .max_frame_length(1 << 20)
        .new_framed(stream)
}

/// Answers every message with the same one, on every stream.
async fn serve(endpoint: Endpoint) {
    while let Ok(stream) = endpoint.accept_stream().await {
        tokio::spawn(async move {
            let mut framed = framed(stream);
            while let Some(Ok(message)) = framed.next().await {
                if framed.send(message.freeze()).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Sends messages on a stream of its own, in one direction as fast as they go, and checks the answers.
async fn ask(endpoint: Endpoint) -> Result<usize, Failure> {
    let (mut sink, mut answers) = framed(endpoint.stream().await?).split();
    let message = |number: u32| Bytes::from(vec![number as u8; number as usize % 500]);
    let send = async {
        for number in 0..MESSAGES {
            sink.feed(message(number)).await?;
        }
        // Hands everything to the link, and ends this direction.
        sink.close().await
    };
    let receive = async {
        let mut bytes = 0;
        for number in 0..MESSAGES {
            let answer = answers.next().await.ok_or("an answer is missing")??;
            assert_eq!(answer, message(number), "answers come in order");
            bytes += answer.len();
        }
        Ok::<_, Failure>(bytes)
    };
    let (sent, received) = tokio::join!(send, receive);
    sent?;
    received
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    run("shm").await?;
    run("tcp").await
}

/// Both ends in one process, for the sake of one file.
pub(crate) async fn run(transport: &str) -> Result<(), Failure> {
    let context = Context::builder().transports(transport)?.build()?;
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    let listener = there.listen("127.0.0.1:0").await?;
    let address = listener.local_addr();
    let (client, server) = tokio::try_join!(here.connect(address), async {
        listener.accept().await?.accept().await
    })?;
    let serving = tokio::spawn(serve(server));

    let start = Instant::now();
    // Two streams share one connection.
    let (one, two) = tokio::join!(ask(client.clone()), ask(client.clone()));
    let bytes = one? + two?;
    println!(
        "{} messages, {bytes} bytes, there and back over {} in {:.1?}",
        2 * MESSAGES,
        client.transports().join("+"),
        start.elapsed()
    );

    client.close().await?;
    serving.await?;
    Ok(())
}
