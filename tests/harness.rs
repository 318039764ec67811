//! Tests of what the other tests lean on: the watchdog barks, the second process is one, a test that fails in a process of its own fails, the log is
//! heard.

mod support;

use std::{
    future::pending,
    time::{Duration, Instant},
};

use support::{
    Child, LIMIT, Logs, Looks, again, at_rest, block_at_rest, block_until, is_alone, passes,
    patient_watchdog, this_test, until, watchdog,
};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

#[test]
fn watchdog_lets_the_result_through() {
    assert_eq!(runtime().block_on(watchdog(LIMIT, async { 7 })), 7);
}

#[test]
#[should_panic(expected = "still pending")]
fn watchdog_barks() {
    runtime().block_on(watchdog(Duration::from_millis(20), pending::<()>()));
}

#[test]
#[should_panic(expected = "watchdog: the moon never came")]
fn looks_come_to_an_end() {
    let mut looks = Looks::new("the moon").within(Duration::from_millis(20));
    loop {
        looks.block();
    }
}

#[test]
fn waits_end_when_it_is_so() {
    let mut looked = 0;
    block_until("five", || {
        looked += 1;
        looked == 5
    });
    runtime().block_on(until("ten", || {
        looked += 1;
        looked == 10
    }));
    assert_eq!(looked, 10);
}

#[test]
fn at_rest_is_what_has_not_changed_for_so_long() {
    let quiet = Duration::from_millis(30);
    let moves = Duration::from_millis(100);
    let start = Instant::now();
    // Moves every few milliseconds, with a pause in between that is too short.
    let look = || start.elapsed().min(moves).as_millis() / 20;
    assert_eq!(block_at_rest("rest", quiet, look), 5);
    assert!(start.elapsed() >= moves + quiet);
    assert_eq!(runtime().block_on(at_rest("rest", quiet, look)), 5);
    assert!(start.elapsed() >= moves + 2 * quiet);
}

#[test]
fn watchdog_aborts_what_blocks() {
    if support::child("blocker").is_some() {
        // Time enough for its first poll: one that comes after the bark panics.
        let second = Duration::from_secs(1);
        runtime().block_on(patient_watchdog(second, second / 5, async {
            let (_open, never) = std::sync::mpsc::channel::<()>();
            let _ = never.recv_timeout(2 * LIMIT);
        }));
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", this_test!(), "--nocapture"])
        .env("WHARFTEST_PART", "blocker")
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .expect("a second process");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(6),
        "{status}"
    );
}

#[test]
fn what_fails_in_a_process_of_its_own_fails() {
    assert!(!is_alone(), "as it is meant to");
    let failed = std::panic::catch_unwind(|| passes(&mut again(this_test!())));
    let said = failed.expect_err("it failed").downcast::<String>();
    let said = said.expect("a text");
    assert!(said.contains("as it is meant to"), "{said}");
}

#[test]
#[should_panic(expected = "ran no test")]
fn what_is_not_there_does_not_pass() {
    passes(&mut again("no_such_test"));
}

#[test]
fn two_processes_talk() {
    if let Some(mut parent) = support::child("echo") {
        runtime().block_on(async {
            parent.say(std::process::id());
            let line = parent.hear().await;
            parent.say(format_args!(
                "{line} {}",
                std::env::var("MORE").expect("given")
            ));
        });
        return;
    }
    let mut child = Child::start(this_test!(), "echo", &[("MORE", "and more")]);
    runtime().block_on(async {
        assert_eq!(child.hear().await, child.pid().to_string());
        assert_ne!(child.pid(), std::process::id());
        child.say("hello");
        assert_eq!(child.hear().await, "hello and more");
    });
    child.finish();
}

#[test]
fn children_can_be_killed() {
    if let Some(mut parent) = support::child("victim") {
        parent.say("ready");
        runtime().block_on(parent.wait_for_death());
        return;
    }
    let mut child = Child::start(this_test!(), "victim", &[]);
    runtime().block_on(async { assert_eq!(child.hear().await, "ready") });
    child.kill();
}

#[test]
#[should_panic(expected = "the child failed")]
fn a_failing_child_fails_the_test() {
    if support::child("failing").is_some() {
        std::process::exit(1);
    }
    Child::start(this_test!(), "failing", &[]).finish();
}

#[test]
fn logs_are_heard() {
    let logs = Logs::of_this_thread();
    tracing::info!("all is well");
    logs.expect_no_warning();
    tracing::warn!(target: "wharf::test", reason = 5, "took the slow path");
    logs.expect_one_warning(&["wharf::test", "slow path", "reason=5"]);
    assert_eq!(logs.lines().len(), 2);
}

#[test]
fn logs_are_heard_that_another_thread_was_the_first_to_write() {
    fn log() {
        tracing::warn!("it is late");
    }
    let logs = Logs::of_this_thread();
    std::thread::spawn(log).join().expect("it logs");
    logs.expect_no_warning();
    log();
    logs.expect_one_warning(&["it is late"]);
}
