//! The crate's functions, between two workers.

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{Error, ErrorKind, Listener, Result};
use wharf_user as user;

fn run(future: impl Future<Output = Result<()>>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    let done = runtime.expect("a runtime").block_on(future);
    done.expect("no error");
}

/// Accepts all who come while something is done.
async fn while_accepting<T>(
    listener: &Listener,
    done: impl Future<Output = Result<T>>,
) -> Result<T> {
    let accepts = async {
        loop {
            listener.accept().await?.accept().await?;
        }
    };
    tokio::select! {
        ended = accepts => ended,
        done = done => done,
    }
}

#[test]
fn addresses() {
    user::words();
    run(async {
        let (here, there) = user::two_workers("tcp")?;
        assert_eq!(user::every_place(&there).await?.len(), 8);
        let listener = there.listen("127.0.0.1:0").await?;
        let dials = user::every_address(&here, listener.local_addr());
        assert_eq!(while_accepting(&listener, dials).await?, 21);
        let ends = user::by_worker(&here, there.address()?).await?;
        assert_eq!(user::distinct(&ends).1, 1, "one worker");
        Ok(())
    });
}

/// What a program awaits becomes part of its own futures, which are moved about.
#[test]
fn futures_are_small() {
    run(async {
        let (here, there) = user::two_workers("tcp")?;
        let listener = there.listen("127.0.0.1:0").await?;
        let address = listener.local_addr();
        let accepts = async {
            let asked = listener.accept().await?;
            let (size, request) = (size_of_val(&asked), asked.accept());
            let sizes = (size, size_of_val(&request));
            request.await.map(|_| sizes)
        };
        let (near, (request, accept)) = tokio::try_join!(here.connect(address), accepts)?;
        let mut sizes = vec![
            ("connect", size_of_val(&here.connect(address))),
            ("connect to a name", size_of_val(&here.connect("host:1"))),
            (
                "connect to a worker",
                size_of_val(&here.connect(there.address()?)),
            ),
            ("listen", size_of_val(&here.listen(address))),
            ("the next request", size_of_val(&listener.accept())),
            ("a request", request),
            ("accept", accept),
            ("close", size_of_val(&near.close())),
            ("flush", size_of_val(&near.flush())),
        ];
        println!("{sizes:?}");
        sizes.retain(|(_, size)| *size > 2048);
        assert_eq!(sizes, []);
        Ok(())
    });
}

#[test]
fn ends_and_messages() {
    for transports in ["tcp", "shm,tcp"] {
        run(async {
            let (here, there) = user::two_workers(transports)?;
            let listener = there.listen("127.0.0.1:0").await?;
            let dials = here.connect(listener.local_addr());
            let (near, (asked, far)) = tokio::try_join!(dials, user::accepted(&listener))?;
            let (own, peer, process) = user::of_endpoint(&near);
            assert_eq!(peer, Some(listener.local_addr()), "{transports}");
            assert_eq!(asked, (peer, own, process), "{transports}");
            assert_eq!(user::of_endpoint(&far), asked);
            assert_eq!(
                user::distinct(&[near.clone(), far.clone(), near.clone()]),
                (2, 2)
            );

            let echoes = async { Ok::<_, Error>(user::echo(far.accept_stream().await?).await?) };
            let asks = async {
                let mut stream = near.stream().await?;
                stream.write_all(b"hello").await?;
                let mut word = [0; 5];
                stream.read_exact(&mut word).await?;
                Ok::<_, Error>(word)
            };
            let both = tokio::try_join!(asks, echoes)?;
            assert_eq!(both, (*b"hello", asked));

            let sends = user::send_all(&near, 7);
            let receives = user::receive(&there, &far, 7);
            let (sent, received) = tokio::try_join!(sends, receives)?;
            assert_eq!(received, vec!["hello"; 5]);
            assert!(sent > received.len());

            let inbox = there.active_messages(3).open()?;
            let call = user::call(&near, 3, Bytes::from_static(b"a payload"));
            let ((), answer) = tokio::try_join!(call, user::answer(inbox))?;
            assert_eq!(answer, (7, Bytes::from_static(b"a payload")));
            Ok(())
        });
    }
}

#[test]
fn errors() {
    let [one, other] = user::errors().expect("an error is what is wanted");
    assert_eq!(
        (one.kind(), one.to_string()),
        (other.kind(), other.to_string())
    );
    assert_eq!("io".parse::<ErrorKind>().expect("a kind"), one.kind());
}

/// A server for HTTP says where the client is.
#[test]
fn who_asks() {
    run(async {
        let (here, there) = user::two_workers("shm,tcp")?;
        let listener = there.listen("127.0.0.1:0").await?;
        let address = listener.local_addr();
        tokio::spawn(user::serve(listener));
        let endpoint = here.connect(address).await?;
        let mut stream = endpoint.stream().await?;
        let request = "GET / HTTP/1.1\r\nhost: there\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let own = format!(
            "Some({})",
            endpoint.local_addr().expect("it dialled an address")
        );
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") && answer.contains(&own),
            "{answer}"
        );
        Ok(())
    });
}
