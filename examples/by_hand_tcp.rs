//! Puts and gets over TCP by hand, without a worker: the passive end exposes memory, packs its key and serves; the other puts some bytes, then a buffer, and
//! reads all of it back. `cargo run --release --example by_hand_tcp`
#![allow(clippy::print_stdout)]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wharf::transport::by_hand::{Driver, RemoteKey};
use wharf::transport::{Role, channel::Channel};
use wharf::{Access, Context};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The end that exposes memory and serves, until its peer is gone. Its key goes to the peer in the program's own way: in front of all else.
async fn passive(context: &Context, mut stream: TcpStream) -> Outcome<()> {
    let mut driver = Driver::open(&context.transport("tcp")?)?;
    let region = driver.expose(vec![0; 1 << 20], Access::all()).await?;
    let key = driver.pack(&region).to_bytes();
    stream.write_u8(key.len() as u8).await?;
    stream.write_all(&key).await?;
    let peer = driver.connect(Channel::tcp(stream), Role::Server).await?;
    while driver.failure(peer).is_none() {
        driver.turn().await?;
    }
    let memory = region.unexpose().await;
    assert!(memory.as_slice().is_some_and(|all| all.ends_with(&[7; 99])));
    Ok(())
}

/// The end that puts and gets.
async fn active(context: &Context, mut stream: TcpStream) -> Outcome<()> {
    let mut key = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut key).await?;
    let key = RemoteKey::from_bytes(&key)?;
    let mut driver = Driver::open(&context.transport("tcp")?)?;
    let peer = driver.connect(Channel::tcp(stream), Role::Client).await?;
    let short = driver.put_short(peer, b"a few bytes", &key, 0)?;
    driver.wait(short).await?;
    let source = vec![7; 1 << 19];
    let long = driver.put_zcopy(peer, source, &key, 1 << 19).await?;
    driver.wait(long).await?;
    let get = driver.get_zcopy(peer, vec![0; 1 << 20], &key, 0).await?;
    let got = driver.wait(get).await?;
    let got = got.as_slice().ok_or("host memory")?;
    assert!(got.starts_with(b"a few bytes\0") && got[1 << 19..].iter().all(|byte| *byte == 7));
    let way = driver.way(peer, &key)?;
    println!("tcp by hand: {} bytes came back, by {way:?}", got.len());
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Outcome<()> {
    let context = Context::builder().transports("tcp")?.build()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let (far, _) = listener.accept().await?;
    tokio::try_join!(passive(&context, far), active(&context, near))?;
    Ok(())
}
