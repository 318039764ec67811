//! Listeners that have no place for who dials.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::{TcpListener, TcpStream};

use crate::{
    Context,
    error::{Error, ErrorKind},
    protocol::hello::Message,
    transport::channel::Channel,
    util::testing::run,
    worker::Handle,
};

use super::{Destination, connect, listen::Place};

fn worker(limit: Duration) -> Arc<Handle> {
    let context = Context::builder()
        .transports("tcp")
        .and_then(|context| context.connect_timeout(limit).build())
        .expect("a context");
    Handle::start(&context).expect("a worker")
}

async fn front() -> (TcpListener, SocketAddr) {
    let front = TcpListener::bind("127.0.0.1:0").await.expect("a place");
    let address = front.local_addr().expect("an address");
    (front, address)
}

fn crowd() -> Vec<u8> {
    Message::reject(&Error::new(ErrorKind::WouldBlock, "no place")).encode()
}

/// Sends one that dials away: after the hello, or in the middle of what it has to say, by an end that its next write runs into.
async fn send_away(front: &TcpListener, to: SocketAddr, when_it_writes: bool) {
    let (stream, _) = front.accept().await.expect("somebody");
    stream.set_zero_linger().expect("a socket");
    let mut channel = Channel::tcp(stream);
    let hello = channel.receive_alone().await.expect("a hello");
    if when_it_writes {
        let mut behind = Channel::tcp(TcpStream::connect(to).await.expect("the listener"));
        behind.send(&hello, &[]).await.expect("said");
        for _ in 0..2 {
            let answer = behind.receive_alone().await.expect("an answer");
            channel.send(&answer, &[]).await.expect("passed on");
        }
    }
    channel.send(&crowd(), &[]).await.expect("said");
}

/// Whoever was sent away for want of a place dials again, at once and then less and less often, and is let in.
#[test]
fn who_is_sent_away_dials_again() {
    run(async {
        let (here, there) = (
            worker(Duration::from_secs(30)),
            worker(Duration::from_secs(30)),
        );
        let addresses = ["127.0.0.1:0".parse().expect("an address")];
        let place = Place::bind(&there.shared, &addresses).expect("a place");
        let to = place.local_addr().expect("an address");
        let (sender, mut requests) = tokio::sync::mpsc::channel(1);
        let tasks = place.serve(&there.shared, sender, false);
        let (front, address) = front().await;
        let destination = Destination::Sockets(vec![address], None);
        let served = async {
            for when_it_writes in [false, true, true, false] {
                send_away(&front, to, when_it_writes).await;
            }
            let (mut stream, _) = front.accept().await.expect("once more");
            let mut behind = TcpStream::connect(to).await.expect("the listener");
            tokio::spawn(async move {
                // Until one of the two ends.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
            });
            let request = requests.recv().await.expect("a request");
            super::accept(&there.shared, request, true).await
        };
        let (dialled, accepted) = tokio::join!(connect(&here.shared, destination), served);
        dialled.expect("dialled");
        accepted.expect("accepted");
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

/// It gives up when its time is over, and says what it heard.
#[test]
fn who_is_always_sent_away_says_why() {
    run(async {
        let here = worker(Duration::from_millis(300));
        let (front, address) = front().await;
        let destination = Destination::Sockets(vec![address], None);
        let mut times = 0;
        let error = tokio::select! {
            dialled = connect(&here.shared, destination) => dialled.expect_err("nobody let it in"),
            () = async {
                loop {
                    send_away(&front, address, false).await;
                    times += 1;
                }
            } => unreachable!("it goes on"),
        };
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        let text = format!("{error:?}");
        assert!(text.contains("no place"), "{text}");
        assert!((2..=10).contains(&times), "{times}");
    });
}
