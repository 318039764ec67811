//! The suite itself, on the emulated driver: every test runs, passes, is in the report; and fails when it should.

use std::{
    collections::BTreeMap,
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::questions::differences;

/// Runs the suite's tests in a process of their own; what it says, and its report.
fn suite(filter: &str, variables: &[(&str, &str)]) -> (Output, Value) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let report = folder.path().join("new folder/report.json");
    let output = Command::new(std::env::current_exe().expect("this program's path"))
        .args([filter, "--skip", "itself", "--ignored", "--test-threads=1"])
        .env_remove("WHARFTEST_HARDWARE")
        .env_remove("WHARF_LIBCUDA")
        .env("WHARFTEST_REPORT", &report)
        .envs(variables.iter().copied())
        .output()
        .expect("a second process");
    let text = std::fs::read_to_string(report).unwrap_or_default();
    (output, serde_json::from_str(&text).unwrap_or_default())
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]]
        .map(String::from_utf8_lossy)
        .concat()
}

#[test]
fn runs_on_the_emulated_driver() {
    let (output, report) = suite("t", &[("WHARFTEST_HARDWARE", "emulated")]);
    let text = text(&output);
    assert!(output.status.success(), "{text}\n{report:#}");
    assert_eq!(report["machine"]["emulated"], json!(true));
    assert!(
        report["date"]
            .as_str()
            .is_some_and(|date| date.ends_with('Z')),
        "{report:#}"
    );
    assert_eq!(report["machine"]["cuda_version"], json!(13000));
    let tests = report["tests"].as_array().expect("a list");
    let ids: Vec<_> = tests
        .iter()
        .map(|test| test["id"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(ids, crate::ALL);
    for test in tests {
        let id = test["id"].as_str().unwrap_or_default();
        // What an emulated driver cannot have says so, and everything else ran.
        let wanted = match id {
            "T15" => "not run",
            _ => "passed",
        };
        assert_eq!(test["result"], json!(wanted), "{test:#}");
        assert!(test["figures_are"].is_string(), "{test:#}");
        if wanted == "not run" {
            assert!(
                text.contains(&format!("{id} ")),
                "{id} says why on a line:\n{text}"
            );
        }
    }
    for (id, figure) in [
        ("T8", "host to device, 1024 KiB: wharf to driver"),
        ("T9", "query an event"),
        (
            "T10",
            "0 busy threads, 8 bytes to the device: wharf, polling, beyond the driver's",
        ),
        ("T11", "get to a copy within a process, 1048576 B"),
        ("T19", "two to one"),
    ] {
        let test = tests
            .iter()
            .find(|test| test["id"] == json!(id))
            .expect("listed");
        assert!(
            test["figures"][figure]["value"].is_f64(),
            "{id}: {figure}: {test:#}"
        );
    }
}

/// A device may map what this one does not.
#[test]
fn maps_a_dma_buf_where_the_driver_can() {
    let newer = [
        ("WHARFTEST_HARDWARE", "emulated"),
        ("EMULATED_CUDA_VERSION", "13030"),
    ];
    let (output, report) = suite("t20", &newer);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(report["tests"][0]["result"], json!("passed"), "{report:#}");
}

#[test]
fn an_absence_is_one_line_or_a_failure() {
    let nowhere = ("WHARF_LIBCUDA", "/nowhere/libcuda.so.1");
    let (output, report) = suite("t", &[nowhere]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for id in crate::ALL {
        let lines = said.lines().filter(|line| line.contains(&format!("{id} ")));
        let lines: Vec<_> = lines.collect();
        assert!(
            matches!(lines[..], [line] if line.contains("not run: no CUDA driver: /nowhere")),
            "{id}: {lines:?}"
        );
    }
    assert_eq!(
        report["tests"].as_array().map(Vec::len),
        Some(crate::ALL.len())
    );

    let (output, report) = suite("t01", &[nowhere, ("WHARFTEST_HARDWARE", "required")]);
    assert!(!output.status.success(), "an absence that must not be");
    assert_eq!(report["tests"][0]["result"], json!("not run"));
    let (output, _) = suite("t01", &[("WHARFTEST_HARDWARE", "maybe")]);
    assert!(
        !output.status.success() && text(&output).contains("maybe"),
        "a word that nobody knows"
    );
}

/// A driver without devices is an absence too.
#[test]
fn no_device_is_an_absence() {
    let none = [
        ("WHARFTEST_HARDWARE", "emulated"),
        ("CUDA_VISIBLE_DEVICES", ""),
    ];
    let (output, report) = suite("t01", &none);
    assert!(!output.status.success());
    let reason = report["tests"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("CUDA_ERROR_NO_DEVICE"), "{report:#}");
}

/// A driver that goes wrong is found by the tests.
#[test]
fn a_wrong_driver_fails() {
    for (test, fault) in [
        ("t07", "cuMemcpyDtoDAsync_v2@5=skip"),
        ("t05", "cuMemGetAddressRange_v2@1=1"),
        ("t13", "cuPointerSetAttribute@2=801"),
    ] {
        let wrong = [
            ("WHARFTEST_HARDWARE", "emulated"),
            ("EMULATED_CUDA_FAULTS", fault),
        ];
        let (output, report) = suite(test, &wrong);
        assert!(
            !output.status.success(),
            "{test} with {fault}: {}",
            text(&output)
        );
        assert_eq!(report["tests"][0]["result"], json!("failed"), "{report:#}");
        assert_ne!(report["tests"][0]["reason"], json!(""), "{report:#}");
    }
}

#[test]
fn other_answers_are_found() {
    let said = |answers: &[(&str, &str)]| -> BTreeMap<String, String> {
        let own =
            |(question, answer): &(&str, &str)| ((*question).to_owned(), (*answer).to_owned());
        answers.iter().map(own).collect()
    };
    let one = said(&[("same", "0"), ("other", "1"), ("missing", "2")]);
    let other = said(&[("same", "0"), ("other", "3"), ("more", "4")]);
    let found = differences(&one, &other);
    let questions: Vec<_> = found
        .iter()
        .map(|(question, _)| question.as_str())
        .collect();
    assert_eq!(questions, ["missing", "other", "more"]);
    assert_eq!(differences(&one, &one), []);
}
