//! Which driver the tests are about, how each runs and what it says.

use std::{
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    sync::OnceLock,
    time::Instant,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    raw::{self, Raw},
    report::{self, Entry},
    support,
};

const VARIABLE: &str = "WHARFTEST_HARDWARE";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A device, if there is one.
    Any,
    /// A device.
    Required,
    /// The emulated driver.
    Emulated,
}

/// What the variable says.
pub(crate) fn wanted() -> Wanted {
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("") => Wanted::Any,
        Ok("required") => Wanted::Required,
        Ok("emulated") => Wanted::Emulated,
        Ok(other) => panic!("{VARIABLE}={other:?} is neither required nor emulated"),
    }
}

/// The driver's file; a name alone is for the loader to find.
pub(crate) fn library() -> PathBuf {
    match wanted() {
        Wanted::Emulated => support::emulated::cuda(),
        _ => std::env::var_os("WHARF_LIBCUDA").map_or_else(|| "libcuda.so.1".into(), PathBuf::from),
    }
}

/// A driver with a device, initialised.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) raw: &'static Raw,
    pub(crate) emulated: bool,
    machine: Value,
}

/// The driver, or why there is none.
pub(crate) fn subject() -> Result<&'static Subject, &'static str> {
    static SUBJECT: OnceLock<Result<Subject, String>> = OnceLock::new();
    SUBJECT.get_or_init(find).as_ref().map_err(String::as_str)
}

/// The driver, which is there: a test runs.
pub(crate) fn raw() -> &'static Raw {
    subject().expect("a test runs").raw
}

fn find() -> Result<Subject, String> {
    let raw = raw::load(&library()).map_err(|error| format!("no CUDA driver: {error}"))?;
    let emulated = raw.has("wharf_emulated_control");
    let refused = |what: &str, code: u32| format!("no CUDA device: {what} says {}", raw.name(code));
    let mut count = 0;
    match (raw.cuInit(0), raw.cuDeviceGetCount(&mut count)) {
        (0, 0) if count > 0 => {}
        (0, 0) => return Err("no CUDA device: the driver shows none".to_owned()),
        (0, code) => return Err(refused("cuDeviceGetCount", code)),
        (code, _) => return Err(refused("cuInit", code)),
    }
    let (mut version, mut memory, mut name) = (0, 0, [0_u8; 256]);
    raw.ok(raw.cuDriverGetVersion(&mut version));
    raw.ok(raw.cuDeviceTotalMem_v2(&mut memory, 0));
    raw.ok(raw.cuDeviceGetName(name.as_mut_ptr(), 255, 0));
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(255);
    let kernel_driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let machine = json!({
        "emulated": emulated,
        "library": library(),
        "device": String::from_utf8_lossy(&name[..end]),
        "devices": count,
        "device_bytes": memory,
        "cuda_version": version,
        "kernel_driver": kernel_driver.lines().next().unwrap_or_default(),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "optimised": !cfg!(debug_assertions),
    });
    Ok(Subject {
        raw,
        emulated,
        machine,
    })
}

/// What came of a test that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All of it, or the parts whose absence is noted.
    Ran,
    /// This machine lacks what it needs.
    NotRun(String),
}

/// A test while it runs.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) emulated: bool,
    /// The test's name, for second processes.
    pub(crate) test: &'static str,
    figures: Vec<(String, f64, &'static str)>,
    notes: Vec<(String, String)>,
}

impl Case {
    /// Records a number.
    pub(crate) fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.figures.push((name.into(), value, unit));
    }

    /// Records what was seen.
    pub(crate) fn note(&mut self, name: impl Into<String>, text: impl ToString) {
        self.notes.push((name.into(), text.to_string()));
    }

    /// Records a part that this machine cannot do; says so.
    pub(crate) fn without(&mut self, part: &str, why: impl ToString) {
        let why = why.to_string();
        say(&format!("{}: without {part}: {why}", self.test));
        self.note(format!("without {part}"), why);
    }

    /// One of two, by what the test runs on: a device, or the emulated driver.
    pub(crate) fn pick<T>(&self, device: T, emulated: T) -> T {
        if self.emulated { emulated } else { device }
    }

    /// A second process of this test for one of its parts.
    pub(crate) fn child(&self, part: &str, variables: &[(&str, &str)]) -> support::Child {
        support::Child::start(self.test, part, variables)
    }
}

/// A line that the harness does not swallow.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush());
    // Nobody reads: nothing to be done about it.
    drop(written);
}

/// Runs a test, or the part of it that this process was started for.
pub(crate) fn run(id: &'static str, test: &'static str, body: fn(&mut Case) -> Verdict) {
    /// The figures are of one test at a time.
    static ALONE: Mutex<()> = Mutex::new(());
    for (part, act) in crate::PARTS {
        if let Some(parent) = support::child(part) {
            return act(parent);
        }
    }
    let _alone = ALONE.lock();
    let mut entry = Entry {
        id,
        name: test,
        result: "not run",
        reason: String::new(),
        seconds: 0.0,
        figures: Vec::new(),
        notes: Vec::new(),
    };
    let subject = match subject() {
        Ok(subject) => subject,
        Err(why) => {
            say(&format!("{id} {test}: not run: {why}"));
            entry.reason = why.to_owned();
            report::add(&json!({ "emulated": false, "reason": why }), entry);
            assert_eq!(wanted(), Wanted::Any, "{id} did not run: {why}");
            return;
        }
    };
    let mut case = Case {
        emulated: subject.emulated,
        test,
        figures: Vec::new(),
        notes: Vec::new(),
    };
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| body(&mut case)));
    entry.seconds = start.elapsed().as_secs_f64();
    (entry.figures, entry.notes) = (case.figures, case.notes);
    match &result {
        Ok(Verdict::Ran) => entry.result = "passed",
        Ok(Verdict::NotRun(why)) => {
            say(&format!("{id} {test}: not run: {why}"));
            entry.reason.clone_from(why);
        }
        Err(panic) => {
            entry.result = "failed";
            entry.reason = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
        }
    }
    report::add(&subject.machine, entry);
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}
