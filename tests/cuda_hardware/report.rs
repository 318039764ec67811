//! The report: what ran where, what came of it, with figures. Written anew at each test's end, so that a run which dies leaves what it had.

use std::{
    fs,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// One test's part.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    /// `passed`, `failed`, `not run`.
    pub(crate) result: &'static str,
    pub(crate) reason: String,
    pub(crate) seconds: f64,
    /// Name, number, unit.
    pub(crate) figures: Vec<(String, f64, &'static str)>,
    /// What was seen, in words.
    pub(crate) notes: Vec<(String, String)>,
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Where it is written.
pub(crate) fn path() -> PathBuf {
    std::env::var_os("WHARFTEST_REPORT").map_or_else(
        || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda_hardware.json"),
        PathBuf::from,
    )
}

/// Adds a test's part and writes the whole.
pub(crate) fn add(machine: &Value, entry: Entry) {
    let mut entries = ENTRIES.lock();
    entries.push(entry);
    entries.sort_by_key(|entry| entry.id[1..].parse::<u32>().unwrap_or(u32::MAX));
    let tests: Vec<Value> = entries.iter().map(|entry| show(machine, entry)).collect();
    let whole = json!({ "date": date(), "machine": machine, "tests": tests });
    let text = serde_json::to_string_pretty(&whole).expect("plain values");
    let path = path();
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&path, text + "\n"));
    if let Err(error) = written {
        eprintln!("{}: the report is not written: {error}", path.display());
    }
}

fn show(machine: &Value, entry: &Entry) -> Value {
    let figures: Map<String, Value> = entry
        .figures
        .iter()
        .map(|(name, value, unit)| (name.clone(), json!({ "value": value, "unit": unit })))
        .collect();
    let notes: Map<String, Value> = entry
        .notes
        .iter()
        .map(|(name, text)| (name.clone(), json!(text)))
        .collect();
    let mut shown = json!({
        "id": entry.id,
        "name": entry.name,
        "result": entry.result,
        "reason": entry.reason,
        "seconds": entry.seconds,
        "figures": figures,
        "notes": notes,
    });
    if machine["emulated"] == json!(true) {
        shown["figures_are"] =
            json!("of the emulated driver: they show that the test works, not a device's speed");
    }
    shown
}

/// Now, in UTC: `2026-11-21T16:30:00Z`.
fn date() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    let (mut days, second) = (seconds / 86400, seconds % 86400);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    let long = |month: u64| match month {
        2 => 28 + u64::from(leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    while days >= long(month) {
        days -= long(month);
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{:02}Z",
        days + 1,
        second % 60
    )
}
