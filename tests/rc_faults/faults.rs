//! Devices that fail under `rc_verbs`: a clear error at both ends, in bounded time; nothing is left, and the next attempt goes well.

use std::{task::Poll, time::Duration};

use wharf::{Access, Error, ErrorKind, MemoryType, Operation, Tag, Worker};

use crate::{
    bench::{Two, context, control, gone, one_device, run},
    support::{LIMIT, at_rest, on_a_runtime, until},
};

/// Error numbers that calls fail with.
const ERRNOS: [i32; 4] = [libc::ENOMEM, libc::EIO, libc::EINVAL, libc::EPERM];

/// What an error that a call ended with is.
fn kind_of(errno: i32) -> ErrorKind {
    match errno {
        libc::ENOMEM => ErrorKind::Exhausted,
        libc::EIO => ErrorKind::DeviceLost,
        libc::EPERM => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidArgument,
    }
}

/// What a connection that such a call has ended says.
fn end_of(errno: i32) -> ErrorKind {
    match kind_of(errno) {
        ErrorKind::DeviceLost => ErrorKind::Unreachable,
        kind => kind,
    }
}

/// Has a call fail, and with it the newer one that is asked first.
fn fail(call: &str, nth: &str, errno: i32) {
    control(&format!("fault {call}@{nth}={errno}"));
    if call == "ibv_query_device" {
        control(&format!("fault ibv_query_device_ex@{nth}={errno}"));
    }
}

/// A context's build is told which call failed.
#[test]
fn a_device_that_cannot_be_opened_is_told_when_the_context_is_built() {
    alone!();
    run(async {
        for call in [
            "ibv_get_device_list",
            "ibv_open_device",
            "ibv_query_device",
            "ibv_query_port",
            "ibv_alloc_pd",
        ] {
            for errno in ERRNOS {
                control("clear");
                fail(call, "1+", errno);
                let error = context("rc_verbs").map(drop).expect_err(call);
                let text = error.to_string();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}");
                assert!(text.contains("rc_verbs: ") && text.contains(call), "{text}");
                // Beside another it is only not available.
                let with_tcp = context("rc_verbs,tcp").expect("tcp works");
                let [(name, why)] = with_tcp.unavailable() else {
                    panic!("{:?}", with_tcp.unavailable());
                };
                assert!(name == "rc_verbs" && why.contains(call), "{why}");
                drop(with_tcp);
                gone().await;
                if call != "ibv_get_device_list" {
                    // One device of two: the other is used.
                    control("clear");
                    fail(call, "1", errno);
                    let context = context("rc_verbs").expect("one is left");
                    let two = Two::over_tcp(context).await.expect("connects");
                    two.talk(100_000).await.expect("talks");
                    two.end().await;
                    gone().await;
                }
            }
        }
    });
}

/// Set-up fails at either end, which both are told; the workers connect once the device works again.
#[test]
fn a_call_that_fails_in_the_set_up_ends_it() {
    alone!();
    run(async {
        for call in [
            "ibv_create_comp_channel",
            "ibv_create_cq",
            "ibv_create_srq",
            "ibv_reg_mr_iova2",
            "ibv_create_qp",
            "ibv_modify_qp",
            "ibv_post_recv",
        ] {
            for errno in ERRNOS {
                // From the first on: both ends. From a later one on: the other end, or a later step.
                for nth in 1..=if errno == libc::EIO { 6 } else { 1 } {
                    control("clear");
                    let context = one_device().expect("a context");
                    let workers = [
                        Worker::new(&context).expect("a worker"),
                        Worker::new(&context).expect("a worker"),
                    ];
                    control(&format!("fault {call}@{nth}+={errno}"));
                    let met = Two::connect(&workers).await;
                    let what = format!("{call}@{nth}+={errno}");
                    if let Err(error) = &met {
                        let text = error.to_string();
                        let name = match call {
                            "ibv_post_recv" => "ibv_post_srq_recv",
                            other => other.trim_end_matches("_iova2"),
                        };
                        assert!(text.contains(name), "{what}: {error:?}");
                        // The peer's failure comes as its words.
                        let kinds = [kind_of(errno), ErrorKind::Unreachable];
                        assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
                    } else {
                        assert!(nth > 1, "{what} was not met");
                    }
                    drop(met);
                    control("clear");
                    let (here, there) = Two::connect(&workers).await.expect("works again");
                    let two = Two {
                        here,
                        there,
                        workers,
                        context,
                    };
                    two.talk(1000).await.expect("talks");
                    two.end().await;
                    gone().await;
                }
            }
        }
    });
}

/// Breaks a connection that stands, and says how both ends heard of it. The workers then connect anew.
async fn broken(what: &str, break_it: impl FnOnce()) -> [Error; 2] {
    control("clear");
    let two = Two::over_tcp(one_device().expect("a context"))
        .await
        .expect("connects");
    two.talk(1000).await.expect("talks");
    break_it();
    let errors = two.ended().await;
    for error in &errors {
        assert_eq!(error.transport(), Some("rc_verbs"), "{what}: {error:?}");
        assert!(error.peer().is_some(), "{what}: {error:?}");
    }
    control("clear");
    let two = two.again().await.expect(what);
    two.talk(100_000).await.expect("talks");
    two.end().await;
    gone().await;
    errors
}

/// One of the errors says so.
#[track_caller]
fn one_says(errors: &[Error; 2], kind: ErrorKind, words: &str) {
    let says = |error: &Error| error.kind() == kind && error.to_string().contains(words);
    assert!(errors.iter().any(says), "{kind:?}, {words:?}: {errors:?}");
}

#[test]
fn every_status_ends_the_connection_with_its_name() {
    alone!();
    run(async {
        for status in (1..=22).chain([99]) {
            let errors = broken(&format!("status {status}"), || {
                control(&format!("fault completion@1={status}"));
            })
            .await;
            let said = errors.iter().any(|error| {
                let text = error.to_string();
                text.contains(&format!("{status})")) || text.contains(&format!("status {status}"))
            });
            assert!(said, "{status}: {errors:?}");
            for error in &errors {
                assert!(error.kind() != ErrorKind::Closed, "{status}: {error:?}");
            }
        }
    });
}

#[test]
fn a_post_that_is_refused_ends_the_connection() {
    alone!();
    run(async {
        // No room where there should be is no reason to wait either.
        for errno in ERRNOS {
            // Later ones are credits and marks, too.
            for nth in 1..=8 {
                let errors = broken(&format!("post {nth} {errno}"), || {
                    control(&format!("fault ibv_post_send@{nth}+={errno}"));
                })
                .await;
                one_says(&errors, end_of(errno), "ibv_post_send");
            }
        }
    });
}

#[test]
fn a_receive_that_cannot_be_posted_ends_the_connection() {
    alone!();
    run(async {
        for errno in [libc::EINVAL, libc::EIO] {
            let errors = broken(&format!("receive {errno}"), || {
                control(&format!("fault ibv_post_recv@1+={errno}"));
            })
            .await;
            one_says(&errors, end_of(errno), "ibv_post");
        }
    });
}

#[test]
fn a_completion_queue_that_fails_ends_its_connections() {
    alone!();
    run(async {
        let errors = broken("CQ_ERR", || {
            assert_ne!(control("break 0 cq"), "0");
        })
        .await;
        assert!(
            errors
                .iter()
                .all(|error| error.kind() == ErrorKind::Unreachable
                    || error.kind() == ErrorKind::ConnectionReset
                    || error.kind() == ErrorKind::Io),
            "{errors:?}"
        );
        for (fault, words) in [
            ("ibv_poll_cq@1+=5", "ibv_poll_cq"),
            ("ibv_req_notify_cq@1+=5", "ibv_req_notify_cq"),
            ("ibv_get_cq_event@1+=5", "ibv_get_cq_event"),
        ] {
            let errors = broken(fault, || {
                control(&format!("fault {fault}"));
            })
            .await;
            one_says(&errors, ErrorKind::Unreachable, words);
        }
    });
}

#[test]
fn a_queue_pair_that_fails_ends_its_connection() {
    alone!();
    run(async {
        let errors = broken("QP_FATAL", || {
            assert_ne!(control("break 0 qp"), "0");
        })
        .await;
        one_says(&errors, ErrorKind::ConnectionReset, "queue pair");
        let errors = broken("SRQ_ERR", || {
            assert_ne!(control("break 0 srq"), "0");
        })
        .await;
        assert!(
            errors.iter().all(|error| error.kind() != ErrorKind::Closed),
            "{errors:?}"
        );
    });
}

/// The device ends: its connections end, and with no other left new ones are refused.
#[test]
fn a_device_that_ends_ends_its_connections() {
    alone!();
    run(async {
        for how in ["event", "events fail"] {
            control("clear");
            let two = Two::over_tcp(one_device().expect("a context"))
                .await
                .expect("connects");
            two.talk(1000).await.expect("talks");
            if how == "events fail" {
                control("fault ibv_get_async_event@1=5");
            }
            // DEVICE_FATAL.
            assert_eq!(control("event 0 8 0"), "1");
            one_says(&two.ended().await, ErrorKind::Unreachable, "emu0");
            let error = Two::connect(&two.workers).await.map(drop);
            let error = error.expect_err("none is left");
            assert!(
                error.to_string().contains("all devices have failed"),
                "{error}"
            );
            two.end().await;
            gone().await;
        }
    });
}

/// With another device a connection goes on, and loses nothing of what was on its way; with none left it is said.
#[test]
fn a_device_that_ends_is_replaced_by_another() {
    alone!();
    run(async {
        for pause in 0..8 {
            control("clear");
            let two = Two::over_tcp(context("rc_verbs").expect("a context"))
                .await
                .expect("connects");
            two.talk(1000).await.expect("talks");
            let talk = async {
                for _ in 0..20 {
                    // More than one pass takes.
                    let mut talks: Vec<_> = (0..100).map(|_| Box::pin(two.talk(1000))).collect();
                    std::future::poll_fn(|context| {
                        talks.retain_mut(|talk| match talk.as_mut().poll(context) {
                            Poll::Ready(met) => {
                                met.expect("goes on");
                                false
                            }
                            Poll::Pending => true,
                        });
                        match talks.is_empty() {
                            true => Poll::Ready(()),
                            false => Poll::Pending,
                        }
                    })
                    .await;
                }
            };
            let breaks = async {
                for _ in 0..pause * 7 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(control("event 0 8 0"), "1");
            };
            tokio::join!(talk, breaks);
            two.talk(100_000).await.expect("goes on");
            let two = two.again().await.expect("by the other");
            two.talk(100_000).await.expect("talks");
            assert_eq!(control("event 1 8 0"), "1");
            one_says(&two.ended().await, ErrorKind::Unreachable, "emu1");
            let error = Two::connect(&two.workers).await.map(drop);
            assert!(error.is_err());
            two.end().await;
            gone().await;
        }
    });
}

/// What has failed goes with its connections, not with the workers.
#[test]
fn queues_that_failed_go_with_their_connections() {
    alone!();
    run(async {
        let mut two = Two::over_tcp(one_device().expect("a context"))
            .await
            .expect("connects");
        two.talk(1000).await.expect("talks");
        let before = control("live");
        for _ in 0..4 {
            control("fault ibv_poll_cq@1+=5");
            two.ended().await;
            control("clear");
            two = two.again().await.expect("works again");
            two.talk(1000).await.expect("talks");
            while control("live") != before {
                let gone = until("the end of what was made", || control("live") == before);
                // Shown where the test fails.
                if tokio::time::timeout(LIMIT / 6, gone).await.is_err() {
                    eprintln!("{before} before, now: {}", control("left"));
                }
            }
        }
        two.end().await;
    });
}

/// What a port says of itself breaks nothing that goes well.
#[test]
fn a_port_that_goes_and_comes_leaves_the_connection() {
    alone!();
    run(async {
        let two = Two::over_tcp(context("rc_verbs").expect("a context"))
            .await
            .expect("connects");
        for state in [1, 4] {
            assert_eq!(control(&format!("port 0 {state}")), "1");
            two.talk(1000).await.expect("talks");
        }
        // GID, LID, partition keys, subnet manager, client; one that comes with a newer library.
        for kind in [18, 11, 12, 13, 17, 77] {
            assert_eq!(control(&format!("event 0 {kind} 1")), "1");
            two.talk(1000).await.expect("talks");
        }
        two.end().await;
    });
}

/// The address that a device had when it was opened is none any more: connections are made by the one that it has.
#[test]
fn a_device_that_has_another_address_is_reached_there() {
    alone!();
    run(async {
        let two = Two::over_tcp(one_device().expect("a context"))
            .await
            .expect("connects");
        two.talk(1000).await.expect("talks");
        assert_eq!(control("gid 0 7"), "1");
        two.talk(1000).await.expect("what stands goes on");
        let two = two.again().await.expect("connects there");
        two.talk(100_000).await.expect("talks");
        two.end().await;
    });
}

/// Asked while the other is dying: neither hangs.
#[test]
fn a_device_that_dies_in_the_set_up_ends_it() {
    alone!();
    run(async {
        for pause in [0_u64, 1, 2, 5] {
            control("clear");
            let context = context("rc_verbs").expect("a context");
            let workers = [
                Worker::new(&context).expect("a worker"),
                Worker::new(&context).expect("a worker"),
            ];
            let dies = async {
                // At another step of the set-up each time.
                tokio::time::sleep(Duration::from_millis(pause)).await;
                control("event 0 8 0");
                control("event 1 8 0");
            };
            let (met, ()) = tokio::join!(Two::connect(&workers), dies);
            if let Ok((here, there)) = met {
                let (one, other) = tokio::join!(here.closed(), there.closed());
                assert!(one.kind() != ErrorKind::Closed, "{one} {other}");
            }
            drop((workers, context));
            gone().await;
        }
    });
}

/// Connections end with messages that nobody has taken. Providers forget these with the queue pair; the receives that they lie in must come back, or
/// the queue that all share runs dry.
#[test]
fn receives_of_connections_that_end_are_posted_again() {
    alone!();
    run(async {
        let mut two = Two::over_tcp(one_device().expect("a context"))
            .await
            .expect("connects");
        for _ in 0..20 {
            for _ in 0..100 {
                let send = two.here.tag_send(Tag(0), vec![1; 100]).post();
                drop(send.expect("room"));
            }
            // Before its worker has looked.
            two.there.abort();
            two = two.again().await.expect("connects");
        }
        for _ in 0..30 {
            two.talk(100_000).await.expect("talks");
            two.talk(100).await.expect("talks");
        }
        two.end().await;
        gone().await;
    });
}

/// A registration that cannot be ended: the memory goes back to its owner, and no peer reaches it there.
#[test]
fn peers_reach_no_memory_whose_registration_cannot_be_ended() {
    alone!();
    on_a_runtime(async {
        let two = Two::over_tcp(one_device().expect("a context"))
            .await
            .expect("connects");
        let region = two.context.expose(vec![0; 4096], Access::WRITE).await;
        let region = region.expect("exposed");
        two.talk(1000).await.expect("talks");
        assert_ne!(control("writable"), "0");
        control(&format!("fault ibv_dereg_mr@1={}", libc::EBUSY));
        drop(region.unexpose().await);
        assert_eq!(control("count ibv_dereg_mr"), "1");
        assert_eq!(control("writable"), "0");
        // Messages go on, and so does what went by devices.
        two.talk(1000).await.expect("talks");
        let two = two.again().await.expect("connects");
        two.talk(4 << 20).await.expect("talks");
        assert_eq!(control("writable"), "0");
        two.end().await;
    });
}

/// The same of wharf's own memory, which is freed by no one then.
#[test]
fn buffers_whose_registration_cannot_be_ended_stay() {
    alone!();
    on_a_runtime(async {
        let two = Two::over_tcp(one_device().expect("a context"))
            .await
            .expect("connects");
        two.talk(1000).await.expect("talks");
        control(&format!("fault ibv_dereg_mr@1+={}", libc::EBUSY));
        two.end().await;
        until("the end of all else", || {
            let left = control("left");
            let kinds = ["qps", "srqs", "cqs", "channels"];
            !kinds.iter().any(|kind| left.contains(kind))
        })
        .await;
        until("an attempt", || control("count ibv_dereg_mr") != "0").await;
        let all = || ["left", "unmapped", "count ibv_dereg_mr"].map(control);
        at_rest("what is left", Duration::from_millis(100), all).await;
        assert_eq!(control("unmapped"), "0");
    });
}

/// Virtual functions may have no node GUID, or all the same: each rail uses the keys of its own devices all the same.
#[test]
fn devices_with_the_same_guid_are_told_apart() {
    alone!();
    run(async {
        for guid in [0, 7] {
            control("clear");
            control(&format!("fault ibv_get_device_guid@1+={guid}"));
            let two = Two::over_tcp(context("rc_verbs").expect("a context"))
                .await
                .expect("connects");
            let region = two.context.expose(vec![0; 8 << 20], Access::WRITE).await;
            let region = region.expect("exposed");
            let remote = two
                .here
                .import(&region.descriptor().expect("one"))
                .expect("the peer's");
            for round in 1..=3_u8 {
                let put = two.here.put(vec![round; 8 << 20], remote.clone()).await;
                put.expect("put");
                // Messages too, with registered buffers.
                two.talk(8 << 20).await.expect("talks");
            }
            drop(remote);
            let memory = region.unexpose().await;
            assert!(
                memory
                    .as_slice()
                    .is_some_and(|bytes| bytes.iter().all(|byte| *byte == 3))
            );
            two.end().await;
            gone().await;
        }
    });
}

/// Where the devices' ports do not reach each other, for one, the next transport that both have is set up; it is told why.
#[test]
fn what_cannot_be_joined_goes_over_the_next_transport() {
    alone!();
    run(async {
        // Neither end makes a queue pair; one makes none; then eight are made, and moving them further fails, of the first, or halfway.
        for (call, over_tcp) in [
            ("ibv_create_qp@1+", true),
            ("ibv_modify_qp@5+", true),
            ("ibv_modify_qp@9+", true),
            ("ibv_modify_qp@10+", true),
            ("ibv_modify_qp@13+", false),
            ("ibv_modify_qp@9", false),
        ] {
            control("clear");
            let both = context("rc_verbs,tcp").expect("a context");
            let workers = [
                Worker::new(&both).expect("a worker"),
                Worker::new(&both).expect("a worker"),
            ];
            control(&format!("fault {call}={}", libc::ETIMEDOUT));
            let (here, there) = Two::connect(&workers).await.expect(call);
            control("clear");
            let two = Two {
                here,
                there,
                workers,
                context: both,
            };
            two.talk(100_000).await.expect("talks");
            for end in [&two.here, &two.there] {
                let host = MemoryType::Host;
                let text = end.explain(Operation::TagSend, host, host, 100).to_string();
                let told = text.contains("not rc_verbs: it could not be set up: ");
                let expected = end.transports() == ["tcp"];
                assert!(
                    told == expected && (expected || !over_tcp),
                    "{call}: {text}"
                );
            }
            // With the devices as they are it is the first again.
            let two = two.again().await.expect("connects");
            assert_eq!(two.here.transports(), ["rc_verbs"]);
            two.talk(1000).await.expect("talks");
            two.end().await;
            gone().await;
        }
    });
}
