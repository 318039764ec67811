//! Processes that end, stop, or are others by now.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use crate::{
    agent::{self, Agent, BLOCK, Far, exported, imported, is, runtime, unhex, who},
    error::ErrorKind,
    support::{LIMIT, are_all, block_until, child, this_test, threads, watchdog},
    sys::identity::identity,
};

const KINDS: [&str; 3] = ["device", "virtual", "pool"];

#[test]
fn an_exporter_that_is_killed_harms_nobody() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    for kind in KINDS {
        let mut near = Agent::new();
        let mut far = Far::start(this_test!(), &[]);
        let at = far.number(format_args!("allocate {kind} {BLOCK} 0"));
        let other = far.number(format_args!("allocate {kind} {BLOCK} 0"));
        let open = far.ask(format_args!("export {at} {BLOCK}"));
        let unopened = far.ask(format_args!("export {other} {BLOCK}"));
        let there = imported(&near.import(exported(&open), &far.who));
        near.write(there, BLOCK, 3);
        far.child.kill();
        // What is open stays what it was.
        assert_eq!(near.read(there, BLOCK, 3), "same", "{kind}");
        // What is not open is open no more.
        let answer = near.import(exported(&unopened), &far.who);
        assert!(is(&answer, ErrorKind::PeerDied), "{kind}: {answer}");
        // That attempt closed nothing, since it was in use; the next one does.
        assert_eq!(near.ipc.counts().live, 1, "{kind}");
        near.release(None);
        let answer = near.import(exported(&unopened), &far.who);
        assert!(is(&answer, ErrorKind::PeerDied), "{kind}: {answer}");
        assert_eq!(near.ipc.counts().live, 0, "{kind}");
    }
}

/// It stops, an opening waits for its answer, it is killed.
#[test]
fn an_exporter_that_is_killed_in_the_middle_of_an_opening() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let at = far.number(format_args!("allocate virtual {BLOCK} 0"));
    let answer = far.ask(format_args!("export {at} {BLOCK}"));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(far.child.pid()).expect("a pid"));
    kill(pid, Signal::SIGSTOP).expect("it is there");
    wait_until_stopped(far.child.pid());
    let import = near.ipc.import(&unhex(exported(&answer)), &far.who);
    let ended = runtime().block_on(watchdog(LIMIT, async {
        let mut import = std::pin::pin!(import);
        let early = tokio::time::timeout(Duration::from_millis(100), &mut import).await;
        assert!(early.is_err(), "nobody answers");
        kill(pid, Signal::SIGKILL).expect("it is there");
        import.await
    }));
    let error = ended.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::PeerDied, "{error:?}");
    assert_eq!(near.ipc.counts().live, 0);
}

/// A signal that stops a process takes some time to reach all its threads.
fn wait_until_stopped(pid: u32) {
    block_until("its stop", || are_all(&threads(pid), 'T'));
}

/// One that never answers is given up.
#[test]
fn an_exporter_that_does_not_answer_is_given_up() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut near = Agent::new();
    near.limit(8, Duration::from_millis(500));
    let mut far = Far::start(this_test!(), &[]);
    let at = far.number(format_args!("allocate pool {BLOCK} 0"));
    let answer = far.ask(format_args!("export {at} {BLOCK}"));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(far.child.pid()).expect("a pid"));
    kill(pid, Signal::SIGSTOP).expect("it is there");
    wait_until_stopped(far.child.pid());
    let answer = near.import(exported(&answer), &far.who);
    assert!(is(&answer, ErrorKind::Unreachable), "{answer}");
    kill(pid, Signal::SIGCONT).expect("it is there");
    far.finish();
}

/// A process that closed its context hands nothing over any more.
#[test]
fn an_exporter_that_is_closed_answers_no_more() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut far = Far::start(this_test!(), &[]);
    let near = Agent::new();
    let at = near.allocate("virtual", BLOCK, 0);
    let answer = near.export(at, 4096);
    drop(near);
    let line = format!("import {} {}", exported(&answer), who(identity()));
    // Its thread may be on its way still.
    let start = std::time::Instant::now();
    loop {
        let answer = far.ask(&line);
        if is(&answer, ErrorKind::PeerDied) {
            break;
        }
        imported(&answer);
        far.ask("release");
        far.ask("close");
        assert!(start.elapsed() < LIMIT, "it answers on");
    }
    far.finish();
}

/// A process with the same id and another beginning is another process.
#[test]
fn an_id_that_is_anothers_by_now_is_told() {
    if let Some(parent) = child("agent") {
        return agent::serve(parent);
    }
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let at = far.number("allocate device 4096 0");
    let answer = far.ask(format_args!("export {at} 4096"));
    let mut bytes = unhex(exported(&answer));
    // The start time.
    bytes[56] ^= 1;
    crate::hostile::seal(&mut bytes);
    let answer = near.import(&agent::hex(&bytes), &far.who);
    assert!(is(&answer, ErrorKind::PeerDied), "{answer}");
    far.finish();
}
