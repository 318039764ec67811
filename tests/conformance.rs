//! Holds `tests/CONFORMANCE.md` against the sources: every test that it names exists, and every row says something.

use std::{fs, path::Path};

#[test]
fn every_test_that_is_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("tests/CONFORMANCE.md")).expect("the map");
    let mut faults = Vec::new();
    let mut named = 0;
    for (number, line) in text.lines().enumerate() {
        for name in names(line) {
            named += 1;
            if let Err(fault) = find(root, name) {
                faults.push(format!("line {}: {fault}", number + 1));
            }
        }
        if is_row(line) && !is_answered(line) {
            faults.push(format!(
                "line {}: names no test and gives no reason",
                number + 1
            ));
        }
    }
    assert!(named > 100, "the map was not understood");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn faults_are_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(
        names("| a | b | `api/tag::expected`, `Worker`, `x::y` |"),
        ["api/tag::expected", "x::y"]
    );
    for good in [
        "api/tag::expected",
        "conformance::faults_are_found",
        "src/worker/stream/tests::too_many",
        "process/death::while_idle",
    ] {
        find(root, good).expect(good);
    }
    for bad in [
        "api/tag::expecte",
        "api/tag::pair",
        "api/nothing::expected",
        "x::y",
    ] {
        find(root, bad).expect_err(bad);
    }
    assert!(!is_answered("| group | behaviour | by and by |"));
    assert!(!is_answered("| group | behaviour | does not apply |"));
    assert!(is_answered(
        "| group | behaviour | does not apply: it cannot be said |"
    ));
    assert!(is_answered("| group | behaviour | `api/tag::expected` |"));
}

/// The `file::scenario`s of a line.
fn names(line: &str) -> Vec<&str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| span.contains("::")).collect()
}

/// Whether the file that a name means has a scenario, a module or a test of that name.
fn find(root: &Path, name: &str) -> Result<(), String> {
    let (file, scenario) = name.split_once("::").ok_or(name)?;
    let path = match file.strip_prefix("src/") {
        Some(file) => root.join("src").join(file),
        None => root.join("tests").join(file),
    };
    let path = path.with_extension("rs");
    let text = fs::read_to_string(&path).map_err(|error| format!("`{name}`: {error}"))?;
    let is_here = text.lines().any(|line| {
        let line = line
            .trim_start()
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub ");
        let line = line.trim_start_matches("async ");
        [
            ("fn ", '('),
            ("mod ", ' '),
            // In `breaches!`.
            ("", ':'),
        ]
        .iter()
        .any(|(before, behind)| {
            line.strip_prefix(before)
                .and_then(|line| line.strip_prefix(scenario))
                .is_some_and(|rest| rest.starts_with(*behind) && !rest.starts_with("::"))
        })
    });
    if is_here {
        Ok(())
    } else {
        Err(format!("`{name}` is not in {}", path.display()))
    }
}

/// A row of a table, other than its head.
fn is_row(line: &str) -> bool {
    line.starts_with("| ") && !line.starts_with("| group")
}

/// Whether the last cell of a row names a test, or gives a reason for there being none.
fn is_answered(line: &str) -> bool {
    let cell = line.trim_end().trim_end_matches('|').rsplit('|').next();
    let cell = cell.unwrap_or_default().trim();
    !names(cell).is_empty() || cell.starts_with("does not apply: ") || cell.starts_with("open: ")
}
