//! Each example's own run, on each transport and runtime.

use crate::{
    cancel_safely, codec, embed_in_server, hyper_server, on_each_runtime, to_oneself, tower_rpc,
};

fn hyper(transport: &'static str) {
    on_each_runtime(move || async move {
        hyper_server::run(transport)
            .await
            .expect("an example that works");
    });
}

#[test]
fn hyper_over_shm() {
    hyper("shm");
}

#[test]
fn hyper_over_tcp() {
    hyper("tcp");
}

/// One endpoint, and a hyper at each end of its streams.
#[test]
fn hyper_over_self() {
    on_each_runtime(|| async {
        let endpoint = to_oneself().await;
        let serving = tokio::spawn(hyper_server::serve_streams(endpoint.clone()));
        hyper_server::call(&endpoint).await.expect("answers");
        endpoint.close().await.expect("closed");
        serving.await.expect("the server ends with the connection");
    });
}

fn cancel(transport: &'static str) {
    on_each_runtime(move || async move {
        cancel_safely::run(transport)
            .await
            .expect("an example that works");
    });
}

#[test]
fn cancel_safely_over_shm() {
    cancel("shm");
}

#[test]
fn cancel_safely_over_tcp() {
    cancel("tcp");
}

fn embed(transport: &'static str) {
    on_each_runtime(move || async move {
        embed_in_server::serve(transport, async |address| {
            embed_in_server::store(transport, &address).await
        })
        .await
        .expect("an example that works");
    });
}

#[test]
fn embed_in_server_over_shm() {
    embed("shm");
}

#[test]
fn embed_in_server_over_tcp() {
    embed("tcp");
}

fn messages(transport: &'static str) {
    on_each_runtime(move || async move {
        codec::run(transport).await.expect("an example that works");
    });
}

#[test]
fn codec_over_shm() {
    messages("shm");
}

#[test]
fn codec_over_tcp() {
    messages("tcp");
}

fn calls(transport: &'static str) {
    on_each_runtime(move || async move {
        tower_rpc::run(transport)
            .await
            .expect("an example that works");
    });
}

#[test]
fn tower_over_shm() {
    calls("shm");
}

#[test]
fn tower_over_tcp() {
    calls("tcp");
}
