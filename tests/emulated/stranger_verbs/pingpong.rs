//! `ibv_rc_pingpong` and `ibv_srq_pingpong`, as their authors built them, between two processes on one network.

use std::fs;

use super::{Network, Running};
use crate::support::{block_until, listens, own_port};

/// Starts the one that waits, then the one that calls.
fn pair(
    network: &Network,
    words: &str,
    waiting: &[(&str, &str)],
    calling: &[(&str, &str)],
) -> [Running; 2] {
    let port = own_port();
    let (program, rest) = words.split_once(' ').unwrap_or((words, ""));
    let words = |device, peer| format!("{program} -d {device} -g 0 -p {port} {rest} {peer}");
    let waiting = network.start(&words("emu0", ""), waiting);
    block_until("a listener", || listens(waiting.pid(), port));
    [waiting, network.start(&words("emu1", "127.0.0.1"), calling)]
}

/// That both ended well after so many round trips.
#[track_caller]
fn well(ends: [Running; 2], count: u32) {
    for end in ends {
        let (status, text) = end.end();
        assert!(status.success(), "{status}: {text}");
        assert!(text.contains(&format!("\n{count} iters in ")), "{text}");
        assert!(!text.contains("invalid data"), "{text}");
    }
}

const RUNS: [(&str, u32); 10] = [
    ("ibv_rc_pingpong", 1000),
    ("ibv_rc_pingpong -c", 100),
    ("ibv_rc_pingpong -e", 100),
    ("ibv_rc_pingpong -c -e -s 1", 100),
    ("ibv_rc_pingpong -c -e -s 65536", 100),
    ("ibv_rc_pingpong -c -e -s 3000001", 10),
    ("ibv_rc_pingpong -N -s 64", 100),
    ("ibv_rc_pingpong -N -c -e -s 100000", 50),
    ("ibv_srq_pingpong", 1000),
    ("ibv_srq_pingpong -q 5 -e -s 10000", 200),
];

#[test]
#[ignore = "needs the package ibverbs-utils"]
fn two_processes_play() {
    let network = Network::new();
    for (words, count) in RUNS {
        let words = format!("{words} -n {count}");
        well(pair(&network, &words, &[], &[]), count);
    }
}

/// On tables as of old libraries.
#[test]
#[ignore = "needs the package ibverbs-utils"]
fn two_processes_play_on_an_old_library() {
    let network = Network::new();
    let old = &[("EMULATED_VERBS_OLD", "1")];
    for words in ["ibv_rc_pingpong -n 50 -c", "ibv_srq_pingpong -n 50 -e"] {
        well(pair(&network, words, old, old), 50);
    }
    // What only the newer table has is refused.
    let [_, calling] = pair(&network, "ibv_rc_pingpong -n 50 -N", &[], old);
    let (status, text) = calling.end();
    assert!(!status.success(), "{text}");
}

/// Several pairs on one network do not disturb each other.
#[test]
#[ignore = "needs the package ibverbs-utils"]
fn six_processes_play() {
    let network = Network::new();
    let pairs = [(); 3].map(|()| pair(&network, "ibv_rc_pingpong -n 200 -c -e", &[], &[]));
    for ends in pairs {
        well(ends, 200);
    }
}

/// Waits until one has asked the other for something.
fn asked(network: &Network) {
    let folder = network.folder();
    let folder = folder.to_str().expect("UTF-8");
    block_until("a connection", || {
        let table = fs::read_to_string("/proc/net/unix").expect("a table of sockets");
        // 03: connected.
        table
            .lines()
            .any(|line| line.contains(folder) && line.split_whitespace().nth(5) == Some("03"))
    });
}

/// The one that calls ends by itself, and says with which status.
#[track_caller]
fn ends_with(calling: Running, number: u32) {
    let (status, text) = calling.end();
    assert!(!status.success(), "{text}");
    assert!(
        text.contains("Failed status ") && text.contains(&format!("({number}) for wr_id")),
        "{text}"
    );
}

const RETRY_EXC: u32 = 12;

/// `kill -9` of a peer that has not answered.
#[test]
#[ignore = "needs the package ibverbs-utils"]
fn a_peer_that_is_killed_ends_requests_after_all_tries() {
    for (words, plan) in [
        ("ibv_rc_pingpong -n 1000", ("EMULATED_VERBS_LOST", "1")),
        ("ibv_rc_pingpong -n 1000 -e", ("EMULATED_VERBS_LOST", "1")),
        ("ibv_srq_pingpong -n 1000 -e", ("EMULATED_VERBS_LOST", "1")),
        // Its receives are none: the request waits for one for ever, but not for the dead.
        (
            "ibv_rc_pingpong -n 1000 -e",
            ("EMULATED_VERBS_FAULTS", "ibv_post_recv@1+=skip"),
        ),
    ] {
        let network = Network::new();
        let [mut waiting, calling] = pair(&network, words, &[plan], &[]);
        asked(&network);
        waiting.kill();
        ends_with(calling, RETRY_EXC);
        // Its slot is free for another, whose socket takes the place of what the dead one left.
        well(pair(&network, "ibv_rc_pingpong -n 20", &[], &[]), 20);
    }
}

/// A peer whose queue pair never came to where it receives.
#[test]
#[ignore = "needs the package ibverbs-utils"]
fn a_peer_that_is_not_ready_answers_nothing() {
    let network = Network::new();
    for words in ["ibv_rc_pingpong -n 10", "ibv_srq_pingpong -n 10 -e"] {
        // The first of each queue pair's three changes is made, the others are only said to be.
        let first = if words.contains("srq") { 17 } else { 2 };
        let plan = format!("ibv_modify_qp@{first}+=skip");
        let plan = [("EMULATED_VERBS_FAULTS", plan.as_str())];
        let [_waiting, calling] = pair(&network, words, &plan, &[]);
        ends_with(calling, RETRY_EXC);
    }
}

/// Without a folder each process has a network of its own.
#[test]
#[ignore = "needs the package ibverbs-utils"]
fn processes_of_different_networks_do_not_meet() {
    let network = Network::new();
    let other = Network::new();
    let folder = other.folder();
    let folder = folder.to_str().expect("UTF-8");
    let apart = &[("EMULATED_VERBS_FOLDER", folder)];
    let [_waiting, calling] = pair(&network, "ibv_rc_pingpong -n 10", &[], apart);
    ends_with(calling, RETRY_EXC);
}

/// What fails at one side is said there, and ends the other.
#[test]
#[ignore = "needs the package ibverbs-utils"]
fn what_fails_is_said() {
    let network = Network::new();
    for (plan, words) in [
        ("ibv_alloc_pd@1=12", "Couldn't allocate PD"),
        ("ibv_reg_mr_iova2@1=14", "Couldn't register MR"),
        ("ibv_create_cq@1=12", "Couldn't create CQ"),
        ("ibv_create_qp@1=12", "Couldn't create QP"),
        ("ibv_modify_qp@1=22", "Failed to modify QP to INIT"),
        ("ibv_modify_qp@2=22", "Failed to modify QP to RTR"),
        ("ibv_modify_qp@3=22", "Failed to modify QP to RTS"),
        ("ibv_post_send@1=12", "Couldn't post send"),
        ("completion@1=10", "(10) for wr_id"),
    ] {
        let plan = &[("EMULATED_VERBS_FAULTS", plan)];
        let [_waiting, calling] = pair(&network, "ibv_rc_pingpong -n 10", &[], plan);
        let (status, text) = calling.end();
        assert!(
            !status.success() && text.contains(words),
            "{plan:?}: {text}"
        );
    }
    // No GID, on Ethernet: neither side can be connected. An index that is not there is found out before anybody is asked.
    let ends = pair(&network, "ibv_rc_pingpong -n 10 -g -1", &[], &[]);
    for end in ends {
        let (status, text) = end.end();
        let said = text.contains("Failed to modify QP to RTR") || text.contains("remote address");
        assert!(!status.success() && said, "{text}");
    }
    let (status, text) = network.start("ibv_rc_pingpong -g 1", &[]).end();
    let said = text.contains("can't read sgid of index 1");
    assert!(!status.success() && said, "{text}");
}
