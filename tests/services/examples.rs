//! Each example's own run.

use crate::{axum_over_wharf, everywhere, grpc_latency, on_each_runtime, tonic_greeter};

#[test]
fn axum() {
    everywhere(|transport| async move {
        let said = axum_over_wharf::run(transport).await.expect("it works");
        assert!(said.starts_with("hello you, by "), "{said}");
        let by = match transport {
            "shm" => format!("process {} (worker ", std::process::id()),
            _ => "127.0.0.1:".to_owned(),
        };
        assert!(said.contains(&by), "{said}");
    });
}

#[test]
fn tonic() {
    everywhere(|transport| async move {
        let said = tonic_greeter::run(transport).await.expect("it works");
        assert!(said.starts_with("hello you, by "), "{said}");
        assert!(said.contains(" (worker "), "{said}");
        assert!(
            said.ends_with("; 1000 times hello all; hello one, hello two"),
            "{said}"
        );
    });
}

/// What measures works, and so does what wharf is compared with.
#[test]
fn grpc_latency_checks_every_kind() {
    for kind in ["shm", "tcp", "unix", "plain-tcp"] {
        on_each_runtime(move || async move {
            let folder = tempfile::tempdir().expect("a folder");
            let place = folder.path().join("socket").display().to_string();
            let (say, heard) = tokio::sync::oneshot::channel();
            let serving = tokio::spawn(async move {
                grpc_latency::serve(kind, &place, |address| say.send(address).expect("heard")).await
            });
            let address = heard.await.expect("an address");
            let client = grpc_latency::Client::connect(kind, &address)
                .await
                .expect("a channel");
            client.check().await.expect("answers");
            client.close().await.expect("closed");
            serving.abort();
        });
    }
}
