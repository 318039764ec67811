//! The same verbs on the emulated CUDA driver, in a process of their own.

use std::process::Command;

use crate::common::{CUDA, OWN};

#[test]
fn every_verb() {
    passes(&["verbs::", "blocks::"], &[CUDA]);
}

/// With memory that the program allocated by the driver's own functions. What moves blocks does not ask who allocated them.
#[test]
fn every_verb_on_the_programs_own_memory() {
    passes(&["verbs::", "blocks::lists"], &[CUDA, OWN]);
}

/// Over each carrier. The same carrier with a facility taken away or under TLS, and with its tasks on other threads, is for the fake device, in this process.
fn passes(tests: &[&str], variables: &[&str]) {
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new(this);
    child.args(tests).args([
        "--skip",
        "faults::",
        "--skip",
        "on_threads",
        "--skip",
        "shm_without_cma",
        "--skip",
        "tls",
        "--test-threads=4",
    ]);
    child.envs(variables.iter().map(|variable| (variable, "1")));
    // Each test ends itself when something does not come.
    let output = child.output().expect("started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!said.contains("running 0 tests"), "{said}");
}
