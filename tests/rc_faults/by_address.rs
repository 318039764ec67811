//! Connections by RDMA address.

use std::time::Duration;

use wharf::{Context, Error, ErrorKind, Worker};

use crate::{
    bench::{Two, context, control, gone, meet, run},
    support::{LIMIT, until, watchdog},
};

/// Connects by the address of a device.
async fn two(transports: &str) -> Result<Two, Error> {
    two_at("10.99.0.1:0", context(transports)?).await
}

async fn two_at(address: &str, context: Context) -> Result<Two, Error> {
    let workers = [Worker::new(&context)?, Worker::new(&context)?];
    let listener = workers[1].listen_rdma(address).await?;
    let address = listener.local_addr().to_string();
    let (here, there) = meet(workers[0].connect_rdma(&address), async {
        listener.accept().await?.accept().await
    })
    .await?;
    Ok(Two {
        here,
        there,
        workers,
        context,
    })
}

#[test]
fn workers_meet() {
    alone!();
    run(async {
        // The other is reached over the address first, and then by what is preferred.
        for transports in ["rc_verbs", "shm", "shm,rc_verbs,tcp"] {
            let two = two(transports).await.expect("connects");
            let first = transports.split(',').next().expect("one");
            assert_eq!(two.here.transports()[0], first);
            two.talk(10).await.expect("talks");
            two.talk(1 << 20).await.expect("talks");
            two.end().await;
        }
        // One that goes over TCP alone is not met this way.
        let error = two("tcp").await.map(drop).expect_err("no path");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    });
}

#[test]
fn every_call_of_the_connection_manager_may_fail() {
    alone!();
    let calls = [
        "rdma_create_event_channel@1",
        "rdma_create_event_channel@2",
        "rdma_create_event_channel@3",
        "rdma_create_id@1",
        "rdma_create_id@2",
        "rdma_bind_addr@1",
        "rdma_listen@1",
        "rdma_resolve_addr@1",
        "rdma_resolve_route@1",
        "rdma_connect@1",
        "rdma_migrate_id@1",
        "rdma_init_qp_attr@1",
        "rdma_init_qp_attr@2",
        "rdma_init_qp_attr@4",
        "rdma_init_qp_attr@5",
        "rdma_accept@1",
        "rdma_establish@1",
        "rdma_get_cm_event@1",
        "rdma_get_cm_event@3",
        "rdma_get_cm_event@6",
    ];
    fail(&calls);
}

#[test]
fn every_call_of_the_device_may_fail() {
    alone!();
    let calls = [
        "ibv_get_device_list@1",
        "ibv_get_device_list@2",
        "ibv_open_device@1",
        "ibv_alloc_pd@2",
        "ibv_create_comp_channel@1",
        "ibv_create_cq@2",
        "ibv_reg_mr_iova2@1",
        "ibv_create_qp@2",
        "ibv_modify_qp@1",
        "ibv_modify_qp@3",
        "ibv_modify_qp@5",
        "ibv_post_recv@1",
        "ibv_post_recv@9",
    ];
    fail(&calls);
}

/// Connects while each of the calls fails, in every way: a clear error, nothing left, and the next attempt goes well.
fn fail(calls: &[&str]) {
    run(async {
        for call in calls {
            for errno in [libc::ENOMEM, libc::EIO, libc::EINVAL] {
                control("clear");
                control(&format!("fault {call}={errno}"));
                let name = call.split('@').next().expect("a name");
                match two("shm").await {
                    Ok(two) => {
                        // One that only the other side met may have been followed by another attempt.
                        eprintln!("{call}={errno}: connected all the same");
                        two.end().await;
                    }
                    Err(error) => {
                        let text = error.to_string();
                        let named = name.trim_end_matches("_iova2");
                        let told = text.contains(named)
                            || matches!(
                                error.kind(),
                                ErrorKind::Rejected
                                    | ErrorKind::ConnectionReset
                                    | ErrorKind::ConnectionRefused
                                    | ErrorKind::Closed
                            );
                        assert!(told, "{call}={errno}: {error:?}");
                    }
                }
                gone().await;
                assert_ne!(control(&format!("count {name}")), "0", "{call} was not met");
            }
        }
        control("clear");
        two("shm").await.expect("connects").end().await;
    });
}

#[test]
fn a_channel_that_breaks_ends_the_set_up() {
    alone!();
    run(async {
        for fault in [
            "ibv_post_send@1=5",
            "ibv_post_send@1=22",
            "ibv_poll_cq@1+=5",
            "ibv_req_notify_cq@1+=5",
            "ibv_get_cq_event@1+=5",
            "completion@1=12",
            "completion@1=19",
            "completion@1=99",
            "completion@2=13",
        ] {
            control("clear");
            control(&format!("fault {fault}"));
            if let Ok(two) = two("shm").await {
                // The channel may have done its work before.
                two.talk(100).await.expect("talks");
                two.end().await;
            }
            gone().await;
        }
    });
}

#[test]
fn a_device_that_is_removed_ends_its_listener() {
    alone!();
    run(async {
        let context = context("shm").expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let listener = worker.listen_rdma("10.99.0.1:0").await.expect("listens");
        assert_eq!(control("cm 11"), "1");
        let error = listener.accept().await.expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        let error = worker
            .listen_rdma("192.0.2.1:0")
            .await
            .expect_err("nobody's");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let error = worker
            .connect_rdma("192.0.2.1:1")
            .await
            .expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let error = worker
            .connect_rdma("10.99.0.1:1")
            .await
            .expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        let error = worker.connect_rdma("what").await.expect_err("no address");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        drop((listener, worker, context));
    });
}

/// An idle channel asks whether the peer's host is still there, and is given up when nothing answers; the control channel goes with it.
#[test]
fn a_host_that_vanishes_is_noticed() {
    alone!();
    run(async {
        let context = Context::builder()
            .transports("rc_verbs")
            .expect("transports")
            .keepalive(Duration::from_millis(100))
            .build()
            .expect("a context");
        let two = two_at("10.99.0.1:0", context).await.expect("connects");
        two.talk(1000).await.expect("talks");
        // Idle, but there: each end is asked more often than the eight times for which there is room when nobody makes place.
        let asked = || control("count ibv_post_send").parse::<u32>();
        let enough = asked().expect("a number") + 2 * 9;
        until("the questions", || asked().expect("a number") > enough).await;
        two.talk(1000).await.expect("talks");
        control("lost 1");
        let (here, there) = tokio::join!(two.here.closed(), two.there.closed());
        control("lost 0");
        for error in [here, there] {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        two.end().await;
    });
}

/// On the soft-RoCE devices of the virtual machine.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn workers_meet_over_soft_roce() {
    assert!(
        std::env::var_os("RDMA_VM").is_some(),
        "no RDMA devices; run in tests/rdma-vm/rdma-vm"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(watchdog(LIMIT, async {
        for transports in ["rc_verbs", "shm,rc_verbs,tcp"] {
            // The machine is slow.
            let context = Context::builder()
                .transports(transports)
                .expect("transports")
                .connect_timeout(LIMIT)
                .handshake_timeout(LIMIT)
                .build()
                .expect("a context");
            let two = two_at("10.77.0.1:0", context).await.expect("connects");
            let first = transports.split(',').next().expect("one");
            assert_eq!(two.here.transports()[0], first);
            two.talk(10).await.expect("talks");
            two.talk(100_000).await.expect("talks");
            // The control channel goes with the peer.
            two.there.abort();
            let error = two.here.closed().await;
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::AbortedByPeer
                        | ErrorKind::ConnectionReset
                        | ErrorKind::Closed
                        | ErrorKind::PeerDied
                ),
                "{error}"
            );
            two.end().await;
        }
    }));
}
