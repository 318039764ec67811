//! A test again, alone in a process of its own.

use std::process::Command;

use crate::driver::{cuda, scal, synapse};

/// Runs this program for one test with more variables, and demands success. The variables that name libraries are unset unless given.
pub(crate) fn child_with(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env_remove(cuda::VARIABLE)
        .env_remove(synapse::VARIABLE)
        .env_remove(scal::VARIABLE)
        .env("WHARFTEST_PART", "child")
        .envs(variables.iter().copied())
        .output()
        .expect("a second process");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{test} with {variables:?}:\n{out}\n{err}"
    );
}

/// Whether this is that process.
pub(crate) fn is_child() -> bool {
    std::env::var("WHARFTEST_PART").is_ok_and(|part| part == "child")
}
