//! Where there is no RDMA device: it is said, with what to do about it, and nothing else changes.

use wharf::{Context, ErrorKind, MemoryType, Operation, Worker};

use crate::{
    bench::{Two, context, control},
    support::on_a_runtime as run,
};

fn how(two: &Two) -> wharf::Explanation {
    let explain = |length| {
        two.here.explain(
            Operation::TagSend,
            MemoryType::Host,
            MemoryType::Host,
            length,
        )
    };
    explain(100)
}

/// That `rc_verbs` is not available for a reason that has these words, wherever somebody could look for it.
async fn not_available(words: &[&str]) {
    let all = |text: &str| {
        for word in words {
            assert!(text.contains(word), "{word:?}: {text}");
        }
    };
    // Alone it leaves nothing.
    let error = context("rc_verbs").map(drop).expect_err("nothing works");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("rc_verbs: "), "{error}");
    all(&error.to_string());
    // Beside another it is left out.
    let both = context("rc_verbs,tcp").expect("tcp works");
    assert_eq!(both.transports().collect::<Vec<_>>(), ["tcp"]);
    let [(name, why)] = both.unavailable() else {
        panic!("{:?}", both.unavailable());
    };
    assert_eq!(name, "rc_verbs");
    all(why);
    let two = Two::over_tcp(both).await.expect("connects");
    two.talk(100_000).await.expect("talks");
    let explained = how(&two);
    let text = explained.to_string();
    assert!(text.contains("rc_verbs: not available: "), "{text}");
    all(&text);
    two.end().await;
    // Who does not want it hears nothing of it, and goes the same way.
    let two = Two::over_tcp(context("tcp").expect("tcp works")).await;
    let two = two.expect("connects");
    let without = how(&two);
    assert!(!without.to_string().contains("rc_verbs"), "{without}");
    assert_eq!(without.chosen, explained.chosen);
    assert_eq!(without.rejected.len() + 1, explained.rejected.len());
    two.end().await;
    // A context of which nothing was said is the one that there would be without it.
    let plain = Context::builder().build().expect("a context");
    assert!(plain.transports().all(|name| name != "rc_verbs"));
}

async fn no_connections_by_address(words: &str) {
    let context = context("tcp").expect("tcp works");
    let worker = Worker::new(&context).expect("a worker");
    let listens = worker.listen_rdma("127.0.0.1:0").await.map(drop);
    let dials = worker.connect_rdma("127.0.0.1:1").await.map(drop);
    for result in [listens, dials] {
        let error = result.expect_err("not available");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("connections by RDMA address are not available"),
            "{text}"
        );
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn without_the_library() {
    alone!("/nonexistent/libibverbs.so.1");
    run(async {
        let loader = "libibverbs is not here: /nonexistent/libibverbs.so.1";
        not_available(&[loader, "install rdma-core"]).await;
        no_connections_by_address(loader).await;
    });
}

#[test]
fn without_support_in_the_kernel() {
    alone!();
    run(async {
        for errno in [libc::ENOSYS, libc::ENODEV] {
            control("clear");
            control(&format!("fault ibv_get_device_list@1+={errno}"));
            not_available(&["the kernel has no InfiniBand support"]).await;
        }
        control("clear");
        control("fault rdma_create_event_channel@1+=19");
        no_connections_by_address("modprobe rdma_ucm").await;
    });
}

#[test]
fn without_a_device() {
    alone!();
    run(async {
        control("fault ibv_get_device_list@1+=0");
        not_available(&["there is no InfiniBand or RoCE device"]).await;
    });
}

#[test]
fn without_an_active_port() {
    alone!();
    run(async {
        for device in 0..2 {
            control(&format!("port {device} 1"));
        }
        not_available(&["emu0: no active port (port 1: ", "emu1: no active port"]).await;
    });
}

/// The library as it is installed, whether the kernel has devices for it or not.
#[test]
fn with_the_library_of_this_machine() {
    alone!("");
    run(async {
        match context("rc_verbs") {
            Ok(context) => {
                let list: Vec<_> = context.transports().collect();
                assert_eq!(list, ["rc_verbs"], "its devices work");
            }
            Err(error) if error.to_string().contains("is not here") => {
                not_available(&["libibverbs is not here"]).await;
            }
            Err(_) => not_available(&[]).await,
        }
    });
}
