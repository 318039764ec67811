//! Puts and gets in shared memory by hand, without a worker: once its key is opened, a peer's memory of `Context::allocate` is mapped, and other memory is
//! copied by the kernel, where the system allows it. `cargo run --release --example by_hand_shm`
#![allow(clippy::print_stdout)]

use tokio::net::UnixStream;
use wharf::transport::by_hand::{Driver, RemoteKey};
use wharf::transport::{Role, channel::Channel};
use wharf::{Access, BufferMut, Context};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Serves until its peer is gone: that is, lets it at its memory once. After that the peer needs nobody here.
async fn serve(driver: &mut Driver, stream: UnixStream) -> Outcome<()> {
    let peer = driver.connect(Channel::unix(stream), Role::Server).await?;
    while driver.failure(peer).is_none() {
        driver.turn().await?;
    }
    Ok(())
}

/// Puts and gets, of all that the key is for. Between processes it goes as bytes: `to_bytes`, `from_bytes`.
async fn work(mut driver: Driver, stream: UnixStream, key: RemoteKey) -> Outcome<()> {
    let peer = driver.connect(Channel::unix(stream), Role::Client).await?;
    driver.open_key(peer, &key).await?;
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
    println!("shm by hand: {} bytes came back, by {way:?}", got.len());
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Outcome<()> {
    let context = Context::builder().transports("shm")?.build()?;
    let transport = context.transport("shm")?;
    let memories: [BufferMut; 2] = [
        context.allocate(1 << 20).await?.into(),
        vec![0; 1 << 20].into(),
    ];
    for memory in memories {
        let (here, mut there) = (Driver::open(&transport)?, Driver::open(&transport)?);
        let (near, far) = UnixStream::pair()?;
        let region = there.expose(memory, Access::all()).await?;
        let key = there.pack(&region);
        tokio::try_join!(work(here, near, key), serve(&mut there, far))?;
    }
    Ok(())
}
