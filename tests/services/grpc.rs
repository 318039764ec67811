//! gRPC whose ends go in the middle.

use futures::StreamExt;

use crate::{everywhere, grpc_latency, worker};

/// A server that goes in the middle of its stream of answers, and a client that does.
#[test]
fn grpc_breaks_off() {
    everywhere(|transport| async move {
        let server = worker(transport);
        let listener = server.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().to_string();
        let serving = tokio::spawn(grpc_latency::serve_wharf(listener));
        let connect = || async {
            grpc_latency::Client::connect(transport, &address)
                .await
                .expect("a channel")
        };
        // A client that goes does not touch another.
        let (gone, client) = (connect().await, connect().await);
        let mut replies = gone.say_hellos("all", u32::MAX).await.expect("a stream");
        replies.next().await.expect("one").expect("a reply");
        drop((replies, gone));
        client.check().await.expect("answers");

        let mut replies = client.say_hellos("all", u32::MAX).await.expect("a stream");
        replies.next().await.expect("one").expect("a reply");
        // tonic's tasks go on until their streams end, so the worker is what goes.
        let reading = tokio::spawn(async move {
            loop {
                match replies.next().await {
                    Some(Ok(_)) => {}
                    Some(Err(status)) => break status,
                    None => panic!("a stream that was cut off ended as if it were whole"),
                }
            }
        });
        let _ = server.shutdown(std::time::Duration::from_secs(5)).await;
        let status = reading.await.expect("an error");
        assert_ne!(status.code(), tonic::Code::Ok);
        let status = client.say_hello("you").await.expect_err("nobody answers");
        assert_ne!(status.code(), tonic::Code::Ok, "{status}");
        // The listener has ended with its worker, and the server with the listener.
        serving.await.expect("to its end").expect("no error");
    });
}
