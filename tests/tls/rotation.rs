//! Certificates that change while a listener runs.

use wharf::{ErrorKind, Tag, Tls};

use crate::{Authority, listening, on_a_runtime, worker};

#[test]
fn a_running_listener_takes_a_new_certificate() {
    on_a_runtime(async {
        let [old, new] = [Authority::new(), Authority::new()];
        let first = old.issue(&["127.0.0.1"]);
        let tls = Tls::server(old.server(&first, false));
        let there = worker(Some(&tls));
        let (listener, address) = listening(&there).await;
        let dials = Tls::client(old.client(None));
        let here = worker(Some(&dials));
        let accept = async { listener.accept().await?.accept().await };
        let (stands, accepted) = tokio::join!(here.connect(address), accept);
        let (stands, _accepted) = (stands.expect("connected"), accepted.expect("accepted"));
        assert_eq!(
            stands.peer_certificates().expect("a chain")[..],
            first.chain[..]
        );

        let second = new.issue(&["127.0.0.1"]);
        tls.replace_server(new.server(&second, false));
        let error = here.connect(address).await.map(drop);
        let error = error.expect_err("another authority");
        assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{error}");
        dials.replace_client(new.client(None));
        let accept = async { listener.accept().await?.accept().await };
        let (again, accepted) = tokio::join!(here.connect(address), accept);
        let (again, _accepted) = (again.expect("connected"), accepted.expect("accepted"));
        assert_eq!(
            again.peer_certificates().expect("a chain")[..],
            second.chain[..]
        );

        // What stood goes on.
        for endpoint in [stands, again] {
            endpoint.tag_send(1u64, "still here").await.expect("sent");
            let received = there.tag_recv(Tag(1), vec![0; 10]).await;
            assert_eq!(received.expect("a message").buffer, b"still here");
        }
    });
}
