//! A listener, and a connection, against those who do not keep to the protocol.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{io::AsyncWriteExt, net::TcpStream};
use wharf::{ErrorKind, Listener, Worker};

use crate::{
    fixture::{Way, pattern, run, run_on_threads},
    stranger::{Key, Stranger, VERSION, hear, hear_hello, say, until_the_end},
    support::emulated::in_machine,
};

/// A good client gets in.
async fn good_client(way: Way, listener: &Listener, there: &Worker) {
    let here = way.worker();
    let address = listener.local_addr();
    let dial = async {
        let mut tries = 1;
        loop {
            let start = Instant::now();
            match here.connect(address).await {
                Ok(dialled) => return dialled,
                // On a machine that is busy elsewhere it may come too late. Nothing but the limit turns it away.
                Err(error) if tries < 5 && start.elapsed() >= limit() => {
                    eprintln!("try {tries}: {error}");
                    tries += 1;
                }
                Err(error) => panic!("try {tries}, after {:?}: {error:?}", start.elapsed()),
            }
        }
    };
    let (dialled, accepted) = tokio::join!(dial, async {
        // A request of one before it, which is gone, may come first.
        loop {
            if let Ok(accepted) = listener.accept().await.expect("a request").await {
                return accepted;
            }
        }
    });
    dialled.tag_send(1, pattern(3000, 1)).await.expect("sent");
    let received = there.tag_recv(1, vec![0; 3000]).await.expect("a message");
    assert_eq!(received.from, accepted.id());
}

/// What a handshake may take here. For good ones it has to be enough, to whom queue pairs are made meanwhile.
fn limit() -> Duration {
    match in_machine() {
        true => Duration::from_secs(3),
        false => Duration::from_millis(500),
    }
}

async fn open(way: Way) -> (Worker, Listener, SocketAddr) {
    let context = way
        .builder()
        .handshake_timeout(limit())
        .build()
        .expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    (worker, listener, address)
}

scenarios! { between workers:
    /// Garbage, huge and impossible lengths, truncated hellos: that connection ends, nothing else.
    async fn garbage(way: Way) {
        let (worker, listener, address) = open(way).await;
        let bad: [&[u8]; 8] = [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            &[0xff; 5000],
            &[0; 5000],
            &0xffff_ffff_u32.to_le_bytes(),
            &(65u32 << 10).to_le_bytes(),
            b"\x64\0\0\0WHARF\0C\x01",
            b"\x0c\0\0\0WHARF\0C\x01\x0c\0\0\0",
            b"\x10\0\0\0WHARF\0C\x01\x10\0\0\0\x01\0\xff\xff",
        ];
        let key = Key::new([0x42; 32]);
        let honest = Stranger::honest(way.medium(), &key);
        for (index, bytes) in bad.into_iter().enumerate() {
            for shut in [false, true] {
                let mut stream = way.stranger(address).await;
                if index % 2 == 0 {
                    say(&mut stream, &honest.client_hello()).await;
                    hear(&mut stream).await;
                }
                // It may be closed already.
                let _ = stream.write_all(bytes).await;
                if shut {
                    let _ = stream.shutdown().await;
                }
                until_the_end(&mut stream).await;
            }
        }
        good_client(way, &listener, &worker).await;
    }

    /// A hello with any byte altered, or cut short, is refused or harmless.
    async fn altered_hello(way: Way) {
        let (worker, listener, address) = open(way).await;
        let key = Key::new([0x42; 32]);
        let honest = Stranger::honest(way.medium(), &key);
        let alter = |message: &mut Vec<u8>, at: usize| {
            if at.is_multiple_of(2) {
                message[at] ^= 0x81;
            } else {
                message.truncate(at);
            }
        };
        let mut hello = honest.client_hello();
        for at in (0..hello.len()).step_by(3) {
            let mut stream = way.stranger(address).await;
            alter(&mut hello, at);
            say(&mut stream, &hello).await;
            hello = honest.client_hello();
        }
        let (mut at, mut length) = (0, 1);
        while at < length {
            let mut stream = way.stranger(address).await;
            say(&mut stream, &hello).await;
            let [mut introduction, mut proof] = honest.introduction(&hear_hello(&mut stream).await);
            length = introduction.len() + proof.len();
            match at.checked_sub(introduction.len()) {
                None => alter(&mut introduction, at),
                Some(at) => alter(&mut proof, at),
            }
            say(&mut stream, &introduction).await;
            say(&mut stream, &proof).await;
            at += 3;
        }
        // Those that were harmless ask to be let in, and are gone.
        while let Ok(Ok(incoming)) = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await {
            assert!(incoming.accept().await.is_err());
        }
        good_client(way, &listener, &worker).await;
    }

    /// A client of another version is told so.
    async fn another_version(way: Way) {
        let (worker, listener, address) = open(way).await;
        for version in [0, VERSION - 1, VERSION + 1, 999] {
            let mut stream = way.stranger(address).await;
            let key = Key::new([0x42; 32]);
            let another = Stranger { version, ..Stranger::honest(way.medium(), &key) };
            say(&mut stream, &another.client_hello()).await;
            let verdict = hear(&mut stream).await;
            let text = String::from_utf8_lossy(&verdict);
            assert!(text.contains("version"), "{text:?}");
            until_the_end(&mut stream).await;
        }
        good_client(way, &listener, &worker).await;
    }

    /// More silent and slow clients than there are handshakes at a time: a good one gets in all the same.
    async fn slow_loris(way: Way) {
        let (worker, listener, address) = open(way).await;
        let mut slow = Vec::new();
        for index in 0..200 {
            let mut stream = TcpStream::connect(address).await.expect("the listener");
            if index % 2 == 0 {
                stream.write_all(&[100]).await.expect("the listener reads");
            }
            slow.push(stream);
        }
        good_client(way, &listener, &worker).await;
        for mut stream in slow {
            until_the_end(&mut stream).await;
        }
    }
}

/// A frame of a tcp link.
fn frame(id: u8, header: u64, prefix: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&[id, prefix, 0x01, 0x57]);
    bytes.extend_from_slice(&header.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// A peer that connected well and then sends what no peer sends loses its connection with `Protocol`; others live on.
#[test]
fn bad_frames() {
    run(async {
        let (worker, listener, address) = open(Way::Tcp).await;
        let flood: Vec<u8> = (0..20_000)
            .flat_map(|_| frame(1, 5, 0, &[0; 100]))
            .collect();
        let mut bad_mark = frame(1, 5, 0, &[]);
        bad_mark[6] = 0;
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("no frame", vec![0xff; 100]),
            ("a bad mark", bad_mark),
            (
                "a huge length",
                frame(1, 5, 0, &[])[4..]
                    .iter()
                    .fold(vec![0xff; 4], |mut all, byte| {
                        all.push(*byte);
                        all
                    }),
            ),
            ("a prefix longer than the frame", frame(1, 5, 9, &[0; 8])),
            ("an unknown message", frame(200, 5, 0, &[0; 8])),
            ("a short announcement", frame(3, 5, 0, &[0; 8])),
            ("a short lent message", frame(45, 5, 0, &[0; 8])),
            (
                "a lent message that the window never holds",
                frame(45, 5, 0, &[0xff; 44]),
            ),
            ("a short get", frame(11, 5, 0, &[0; 8])),
            ("a short put", frame(10, 5, 0, &[0; 8])),
            ("a short synchronous send", frame(2, 5, 0, &[0; 4])),
            ("more than the window holds", flood),
        ];
        for (what, bytes) in cases {
            let mut stream = TcpStream::connect(address).await.expect("the listener");
            let key = Key::new([0x42; 32]);
            let honest = Stranger::honest("tcp", &key);
            say(&mut stream, &honest.client_hello()).await;
            let hello = hear_hello(&mut stream).await;
            honest.introduce(&mut stream, &hello).await;
            let link = async {
                hear(&mut stream).await;
                let mut offer = b"wtcp\x03\0".to_vec();
                offer.extend_from_slice(&crc32fast::hash(&offer).to_le_bytes());
                // And the verdict.
                offer.push(1);
                hear(&mut stream).await;
                say(&mut stream, &offer).await;
            };
            let (accepted, ()) = tokio::join!(
                async { listener.accept().await.expect("a request").await },
                link
            );
            let endpoint = accepted.expect("accepted");
            // A good message first: the connection works.
            stream
                .write_all(&frame(1, 7, 0, b"good"))
                .await
                .expect("written");
            let received = worker.tag_recv(7, vec![0; 4]).await.expect("a message");
            assert_eq!(
                (&received.buffer[..], received.from),
                (&b"good"[..], endpoint.id())
            );
            // Echoes of operations that are over change nothing.
            for id in [4, 5, 6, 7, 8, 9, 14] {
                let body: &[u8] = if id == 4 { &[0; 36] } else { &[0; 2] };
                stream
                    .write_all(&frame(id, 0xdead_beef_0000, 0, body))
                    .await
                    .expect("written");
            }
            stream
                .write_all(&frame(1, 7, 0, b"good"))
                .await
                .expect("written");
            worker
                .tag_recv(7, vec![0; 4])
                .await
                .unwrap_or_else(|error| panic!("{what}: {error:?}"));

            // It may be closed before all is written.
            let (_, reason) = tokio::join!(
                async {
                    let _ = stream.write_all(&bytes).await;
                    until_the_end(&mut stream).await;
                },
                endpoint.closed(),
            );
            assert_eq!(reason.kind(), ErrorKind::Protocol, "{what}: {reason:?}");
            good_client(Way::Tcp, &listener, &worker).await;
        }
    });
}
