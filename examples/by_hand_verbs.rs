//! Puts and gets by RDMA by hand, without a worker: devices move the bytes, and the passive end's processor takes no part. Without an RDMA device it says why;
//! `WHARF_LIBIBVERBS` may name the emulated library of the tests. `cargo run --release --example by_hand_verbs`
#![allow(clippy::print_stdout)]

use tokio::net::{TcpListener, TcpStream};
use wharf::{
    Access, Context, Mover,
    transport::{Role, by_hand::Driver, channel::Channel},
};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Outcome<()> {
    let context = match Context::builder().transports("rc_verbs")?.build() {
        Ok(context) => context,
        Err(error) => {
            println!("no RDMA device here: {error}");
            return Ok(());
        }
    };
    let transport = context.transport("rc_verbs")?;
    let (mut here, mut there) = (Driver::open(&transport)?, Driver::open(&transport)?);

    // The two ends agree on their queue pairs over a socket.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let (far, _) = listener.accept().await?;
    let (peer, _) = tokio::try_join!(
        here.connect(Channel::tcp(near), Role::Client),
        there.connect(Channel::tcp(far), Role::Server),
    )?;

    // Registered with the devices there; the key names the registrations.
    let region = there.expose(vec![0; 1 << 20], Access::all()).await?;
    let key = there.pack(&region);
    assert_eq!(here.way(peer, &key)?, Mover::NetworkDevices);

    // From here on nobody drives the other end.
    let short = here.put_short(peer, b"a few bytes", &key, 0)?;
    here.wait(short).await?;
    let source = vec![7; 1 << 19];
    let long = here.put_zcopy(peer, source, &key, 1 << 19).await?;
    here.wait(long).await?;
    let get = here.get_zcopy(peer, vec![0; 1 << 20], &key, 0).await?;
    let got = here.wait(get).await?;
    let got = got.as_slice().ok_or("host memory")?;
    assert!(got.starts_with(b"a few bytes\0") && got[1 << 19..].iter().all(|byte| *byte == 7));

    let mut start = [0; 11];
    region.read_at(0, &mut start)?;
    assert_eq!(start, *b"a few bytes");
    let way = here.way(peer, &key)?;
    println!("verbs by hand: {} bytes came back, by {way:?}", got.len());
    Ok(())
}
