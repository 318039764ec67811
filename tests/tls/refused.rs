//! Who is refused: both ends hear why, and nobody falls back to plain text.

use wharf::{ErrorKind, Tls, Worker};

use crate::{
    support::Looks,
    {Authority, listening, on_a_runtime, support::Logs, worker},
};

/// Dials `host`, in vain; both ends must have heard of all `reasons`, the first for who dials and the second for who listens.
async fn in_vain(workers: [&Worker; 2], host: &str, logs: &Logs, reasons: [&str; 2]) {
    let (listener, address) = listening(workers[1]).await;
    let error = tokio::select! {
        dialled = workers[0].connect(format!("{host}:{}", address.port())) => {
            dialled.map(drop).expect_err("refused")
        }
        _ = listener.accept() => panic!("it came to the listener"),
    };
    let lines = logs.lines();
    assert_eq!(
        error.kind(),
        ErrorKind::AuthenticationFailed,
        "{error}: {lines:#?}"
    );
    assert!(error.to_string().contains(reasons[0]), "{error}");
    // The listener's task has its own time.
    let mut looks = Looks::new("the warning");
    loop {
        let lines = logs.lines();
        let mut turned_down = lines.iter().filter(|line| line.contains("turned down"));
        if let Some(line) = turned_down.next() {
            assert!(line.contains(reasons[1]), "{line}");
            return;
        }
        looks.again().await;
    }
}

fn server(authority: &Authority, names: &[&str]) -> Worker {
    let shown = authority.issue(names);
    worker(Some(&Tls::server(authority.server(&shown, false))))
}

fn client(authority: &Authority) -> Worker {
    worker(Some(&Tls::client(authority.client(None))))
}

#[test]
fn another_name() {
    on_a_runtime(async {
        let logs = Logs::of_this_thread();
        let authority = Authority::new();
        let there = server(&authority, &["other.example", "127.0.0.1"]);
        let reasons = ["not valid for name", "alert"];
        in_vain([&client(&authority), &there], "localhost", &logs, reasons).await;
    });
}

#[test]
fn another_address() {
    on_a_runtime(async {
        let logs = Logs::of_this_thread();
        let authority = Authority::new();
        let there = server(&authority, &["localhost", "127.0.0.2"]);
        let reasons = ["not valid for name", "alert"];
        in_vain([&client(&authority), &there], "127.0.0.1", &logs, reasons).await;
    });
}

#[test]
fn expired() {
    on_a_runtime(async {
        let logs = Logs::of_this_thread();
        let authority = Authority::new();
        let old = authority.expired(&["localhost"]);
        let there = worker(Some(&Tls::server(authority.server(&old, false))));
        let reasons = ["expired", "alert"];
        in_vain([&client(&authority), &there], "localhost", &logs, reasons).await;
    });
}

#[test]
fn another_authority() {
    on_a_runtime(async {
        let logs = Logs::of_this_thread();
        let there = server(&Authority::new(), &["localhost"]);
        let reasons = ["UnknownIssuer", "alert"];
        in_vain(
            [&client(&Authority::new()), &there],
            "localhost",
            &logs,
            reasons,
        )
        .await;
    });
}

#[test]
fn no_certificate_of_the_client() {
    on_a_runtime(async {
        let logs = Logs::of_this_thread();
        let authority = Authority::new();
        let shown = authority.issue(&["localhost"]);
        let there = worker(Some(&Tls::server(authority.server(&shown, true))));
        let reasons = ["CertificateRequired", "peer sent no certificates"];
        in_vain([&client(&authority), &there], "localhost", &logs, reasons).await;
    });
}

#[test]
fn a_certificate_of_the_client_by_another_authority() {
    on_a_runtime(async {
        let logs = Logs::of_this_thread();
        let (authority, other) = (Authority::new(), Authority::new());
        let shown = authority.issue(&["localhost"]);
        let there = worker(Some(&Tls::server(authority.server(&shown, true))));
        let stranger = other.issue(&["localhost"]);
        let tls = Tls::client(authority.client(Some(&stranger)));
        let reasons = ["UnknownCA", "UnknownIssuer"];
        in_vain([&worker(Some(&tls)), &there], "localhost", &logs, reasons).await;
    });
}

#[test]
fn a_client_without_tls() {
    on_a_runtime(async {
        let logs = Logs::of_this_thread();
        let there = server(&Authority::new(), &["localhost"]);
        let reasons = ["the listener demands TLS", "the listener demands TLS"];
        in_vain([&worker(None), &there], "localhost", &logs, reasons).await;
    });
}

#[test]
fn a_listener_without_tls() {
    on_a_runtime(async {
        let logs = Logs::of_this_thread();
        let reasons = ["this side demands TLS", "the peer speaks TLS"];
        let here = client(&Authority::new());
        in_vain([&here, &worker(None)], "localhost", &logs, reasons).await;
    });
}

/// What has only one half of TLS does not do the other half in plain text.
#[test]
fn halves() {
    on_a_runtime(async {
        let authority = Authority::new();
        let shown = authority.issue(&["localhost"]);
        let listens = worker(Some(&Tls::server(authority.server(&shown, false))));
        let (_listener, address) = listening(&worker(None)).await;
        let error = listens.connect(address).await.map(drop);
        let error = error.expect_err("no client's configuration");
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    });
}
