//! Running the program.

use std::{
    io::Read,
    process::{Command, Stdio},
    thread,
};

use crate::support::end_of;

/// What became of it.
pub(crate) struct Ran {
    /// Its exit status; `None`: a signal.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The program with these arguments, in this environment without variables of wharf, UCX or an emulated device.
pub(crate) fn command(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wharf"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = ["WHARF_", "UCX_", "EMULATED_", "RUST_LOG"];
        if ours.iter().any(|ours| text.starts_with(ours)) {
            command.env_remove(&name);
        }
    }
    command
        .args(arguments)
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub(crate) fn wharf(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut child = command(arguments, variables)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program that was built for this test");
    let mut out = child.stdout.take().expect("piped");
    let mut err = child.stderr.take().expect("piped");
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("its output");
        String::from_utf8(bytes).expect("text")
    };
    let out = thread::spawn(move || read(&mut out));
    let err = thread::spawn(move || read(&mut err));
    let status = end_of(&mut child, &format!("the end of wharf {arguments:?}"));
    Ran {
        code: status.code(),
        out: out.join().expect("read"),
        err: err.join().expect("read"),
    }
}

/// What it printed, when it has to go well.
#[track_caller]
pub(crate) fn succeeds(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let ran = wharf(arguments, variables);
    assert_eq!(
        ran.code,
        Some(0),
        "wharf {arguments:?}: {}{}",
        ran.out,
        ran.err
    );
    ran.out
}

/// What it said, when it has to fail with this status: one line on the standard error where it is 1.
#[track_caller]
pub(crate) fn fails(code: i32, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let ran = wharf(arguments, variables);
    assert_eq!(
        ran.code,
        Some(code),
        "wharf {arguments:?}: {}{}",
        ran.out,
        ran.err
    );
    assert_eq!(ran.out, "", "wharf {arguments:?}");
    assert!(!ran.err.is_empty());
    ran.err
}
