//! A second process: the test program again, for one test, in the part of the child.
//!
//! ```ignore
//! #[test]
//! fn greets() {
//!     if let Some(mut parent) = support::child("greeter") {
//!         parent.say("hello");                       // this is the second process
//!         return;
//!     }
//!     let mut child = Child::start(this_test!(), "greeter", &[]);
//!     runtime().block_on(async { assert_eq!(child.hear().await, "hello") });
//!     child.finish();
//! }
//! ```
//!
//! Or the test again, in a process that it has to itself:
//!
//! ```ignore
//! #[test]
//! fn leaves_no_descriptor() {
//!     if !is_alone() {
//!         return passes(&mut again(this_test!()));
//!     }
//!     ...                                            // this is the second process
//! }
//! ```

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{LIMIT, block_until, watchdog};

/// The variable that tells a child its part. Not `WHARF_…`: wharf warns of those that it does not know.
const PART: &str = "WHARFTEST_PART";
/// The variable that tells a process that it runs one test alone.
const ALONE: &str = "WHARFTEST_ALONE";
/// Begins every line of the child's that is for the parent: the test harness writes to the same output.
const MARK: &str = "@@ ";

/// The full name of the test in whose function it stands, as `--exact` takes it.
macro_rules! this_test {
    () => {{
        fn here() {}
        let name = ::std::any::type_name_of_val(&here).trim_end_matches("::here");
        let name = name.trim_end_matches("::{{closure}}");
        name.split_once("::").map_or(name, |(_program, test)| test)
    }};
}
pub(crate) use this_test;

/// The line to the parent, when this process is the child for `part`.
///
/// The process ends when its parent does.
pub(crate) fn child(part: &str) -> Option<Parent> {
    if std::env::var(PART).as_deref() != Ok(part) {
        return None;
    }
    let (lines, heard) = unbounded_channel();
    thread::spawn(move || {
        forward(std::io::stdin().lock(), "", &lines);
        // The parent closed the line or is gone: nobody waits for this process any more. What is under way has time to end.
        nix::unistd::alarm::set(20);
    });
    Some(Parent { heard })
}

/// Whether this process was started by a test.
pub(crate) fn is_child() -> bool {
    std::env::var_os(PART).is_some()
}

/// Whether this process runs one test alone, as [`again`] starts it.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// This program once more, for the test `test` ([`this_test`]) alone.
pub(crate) fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    command
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(ALONE, "1");
    command
}

/// Waits for such a process, and demands that its test ran and passed.
pub(crate) fn passes(command: &mut Command) {
    let output = command.output().expect("a second process");
    let [said, complained] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}\n{complained}",
        output.status
    );
    // Not by the last line, which one that ends its process itself has not.
    assert!(
        said.contains("running 1 test\n"),
        "{command:?} ran no test:\n{said}"
    );
}

/// A child's line to the test that started it.
pub(crate) struct Parent {
    heard: UnboundedReceiver<String>,
}

impl Parent {
    /// Sends a line.
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        // One write, so that nothing comes between; the line break first, because the harness leaves its line open.
        let text = format!("\n{MARK}{line}\n");
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .expect("the parent listens");
    }

    /// Waits for a line.
    pub(crate) async fn hear(&mut self) -> String {
        watchdog(LIMIT, self.heard.recv())
            .await
            .expect("the parent speaks")
    }

    /// Waits for ever, to be killed.
    pub(crate) async fn wait_for_death(&mut self) {
        while self.heard.recv().await.is_some() {}
        std::process::exit(0);
    }
}

/// A second process. Dropping it kills it.
pub(crate) struct Child {
    process: std::process::Child,
    line: Option<ChildStdin>,
    heard: UnboundedReceiver<String>,
}

impl Child {
    /// Starts this program again for the test `test` ([`this_test`]) and its `part`, with more variables.
    pub(crate) fn start(test: &str, part: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_by(&[], test, part, variables)
    }

    /// The same, by a command that ends up as what its last arguments say: `ip netns exec NAME`.
    pub(crate) fn start_by(
        command: &[&str],
        test: &str,
        part: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        assert!(
            std::env::var_os(PART).is_none(),
            "a child that starts children: `child(\"…\")` was not asked first"
        );
        let this = std::env::current_exe().expect("this program's path");
        let mut words = command.iter().map(OsStr::new).chain([this.as_os_str()]);
        let mut process = Command::new(words.next().expect("this program, at least"))
            .args(words)
            .args([
                "--exact",
                test,
                "--nocapture",
                "--include-ignored",
                "--test-threads=1",
            ])
            .env(PART, part)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let out = process.stdout.take().expect("piped");
        let (lines, heard) = unbounded_channel();
        thread::spawn(move || forward(BufReader::new(out), MARK, &lines));
        Self {
            line: process.stdin.take(),
            process,
            heard,
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, line: impl std::fmt::Display) {
        let out = self.line.as_mut().expect("the line is open until the end");
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .expect("the child listens");
    }

    /// Waits for a line.
    pub(crate) async fn hear(&mut self) -> String {
        watchdog(LIMIT, self.heard.recv())
            .await
            .expect("the child speaks (did its part run, and not fail?)")
    }

    /// `kill -9`, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.process
            .kill()
            .expect("the child is there to be killed");
        let status = self.wait();
        assert_eq!(
            status.signal(),
            Some(9),
            "the child had ended by itself: {status}"
        );
    }

    /// Waits until it ended, and demands success.
    pub(crate) fn finish(mut self) {
        let status = self.wait();
        assert!(status.success(), "the child failed: {status}");
    }

    fn wait(&mut self) -> ExitStatus {
        end_of(&mut self.process, "the child's end")
    }
}

/// Waits until a process has ended. One that does not is killed when the watchdog has lost its patience.
#[track_caller]
pub(crate) fn end_of(process: &mut std::process::Child, what: &str) -> ExitStatus {
    struct Kills<'a>(&'a mut std::process::Child);
    impl Drop for Kills<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }
    }
    let process = Kills(process);
    let mut status = None;
    block_until(what, || {
        status = process.0.try_wait().expect("the process is ours");
        status.is_some()
    });
    status.expect("it has ended")
}

/// Whether a process listens at a port. Looks without connecting: a program may take the first connection for its other end.
pub(crate) fn listens(process: u32, port: u16) -> bool {
    let at = format!(":{port:04X}");
    let own: Vec<PathBuf> = fs::read_dir(format!("/proc/{process}/fd"))
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|entry| fs::read_link(entry.path()).ok())
                .collect()
        })
        .unwrap_or_default();
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            // Column 1 is the local address, 3 the state, in which 0A listens, 9 the socket's inode.
            let [_, local, _, "0A", _, _, _, _, _, inode, ..] = words[..] else {
                return false;
            };
            let socket = PathBuf::from(format!("socket:[{inode}]"));
            local.ends_with(&at) && own.contains(&socket)
        })
    })
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only when it has been waited for already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Passes lines that begin with `mark` on, without it, until the input ends or nobody listens.
fn forward(input: impl BufRead, mark: &str, lines: &UnboundedSender<String>) {
    for line in input.lines().map_while(Result::ok) {
        if let Some(line) = line.strip_prefix(mark)
            && lines.send(line.to_owned()).is_err()
        {
            return;
        }
    }
}
