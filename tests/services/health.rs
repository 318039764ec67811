//! A well-known service as others wrote it: `grpc.health.v1` of tonic-health, server and client.

use std::time::Duration;

use futures::StreamExt;
use tokio::sync::oneshot;
use tonic::{
    Code,
    transport::{Channel, Endpoint, Server},
};
use tonic_health::{
    ServingStatus,
    pb::{
        HealthCheckRequest, health_check_response::ServingStatus as Status,
        health_client::HealthClient,
    },
    server::HealthReporter,
};
use wharf::StreamConnector;

use crate::{everywhere, listens, worker};

const SERVICE: &str = "example.Greeter";

fn asks(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

async fn client(connector: StreamConnector) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_static("http://health");
    let channel = endpoint.connect_with_connector(connector).await;
    HealthClient::new(channel.expect("a channel"))
}

/// Asked, watched by several clients while it changes, and ended with watches open.
#[test]
fn checked_and_watched() {
    everywhere(|transport| async move {
        let (server, listener, address) = listens(transport).await;
        let (reporter, service) = tonic_health::server::health_reporter();
        let (stop, stopped) = oneshot::channel::<()>();
        let serves = Server::builder()
            .add_service(service)
            .serve_with_incoming_shutdown(listener, async { drop(stopped.await) });
        let serving = tokio::spawn(serves);
        let set = |status| {
            let reporter: HealthReporter = reporter.clone();
            async move { reporter.set_service_status(SERVICE, status).await }
        };

        // Three on streams of one connection, and one of another worker.
        let here = worker(transport);
        let endpoint = here.connect(address).await.expect("connected");
        let other = worker(transport);
        let mut clients = Vec::new();
        for _ in 0..3 {
            let connector = StreamConnector::over(endpoint.clone());
            clients.push(client(connector).await);
        }
        let connector = StreamConnector::to(&other, address);
        clients.push(client(connector).await);

        let error = clients[0].check(asks(SERVICE)).await.expect_err("unknown");
        assert_eq!(error.code(), Code::NotFound);
        set(ServingStatus::NotServing).await;
        let mut watches = Vec::new();
        for client in &mut clients {
            let answer = client.check(asks("")).await.expect("the server's own");
            assert_eq!(answer.into_inner().status(), Status::Serving);
            let answer = client.check(asks(SERVICE)).await.expect("known");
            assert_eq!(answer.into_inner().status(), Status::NotServing);
            let watch = client.watch(asks(SERVICE)).await.expect("a stream");
            watches.push(watch.into_inner());
        }
        let all_see = async |watches: &mut Vec<tonic::Streaming<_>>, status| {
            for watch in watches {
                let answer: tonic_health::pb::HealthCheckResponse =
                    watch.next().await.expect("no end").expect("no error");
                assert_eq!(answer.status(), status);
            }
        };
        all_see(&mut watches, Status::NotServing).await;
        for _ in 0..20 {
            set(ServingStatus::Serving).await;
            all_see(&mut watches, Status::Serving).await;
            set(ServingStatus::NotServing).await;
            all_see(&mut watches, Status::NotServing).await;
        }
        // One watcher goes; the others see what follows.
        drop((watches.pop(), clients.pop()));
        set(ServingStatus::Serving).await;
        all_see(&mut watches, Status::Serving).await;

        // Forgotten, the watches end as they do over a socket; then the server does.
        let mut reporter = reporter;
        reporter.clear_service_status(SERVICE).await;
        for watch in &mut watches {
            assert!(watch.next().await.is_none());
        }
        drop((watches, clients, stop));
        serving.await.expect("to its end").expect("no error");
        server
            .shutdown(Duration::from_secs(5))
            .await
            .expect("shut down");
    });
}
