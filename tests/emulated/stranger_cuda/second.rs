//! A second process: this program again, for one test, with a part to play. Lines go both ways.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
};

use crate::support::end_of;

const PART: &str = "EMULATEDTEST_PART";
const MARK: &str = "@@ ";

/// Whether this process plays `part`.
pub(crate) fn plays(part: &str) -> bool {
    let plays = std::env::var(PART).as_deref() == Ok(part);
    if plays {
        // Nobody waits for this process after so long.
        nix::unistd::alarm::set(60);
    }
    plays
}

/// A line to the other process, from the second one.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{MARK}{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .expect("the parent listens");
}

/// A line from the other process, in the second one.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .expect("the parent speaks");
    line.trim_end().to_owned()
}

/// The second process. Dropping it kills it.
pub(crate) struct Second {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Second {
    /// Starts it for the test of that name.
    pub(crate) fn start(test: &str, part: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program's path"))
            .args(["--exact", &format!("stranger_cuda::{test}")])
            .args(["--nocapture", "--test-threads=1"])
            .env(PART, part)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            input,
            output,
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the child listens");
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let count = self
                .output
                .read_line(&mut line)
                .expect("the child's output");
            assert!(count > 0, "the child ended without a word");
            if let Some(said) = line.strip_prefix(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is there");
        self.child.wait().expect("it is ours");
    }

    /// How it ended.
    pub(crate) fn end(mut self) -> ExitStatus {
        end_of(&mut self.child, "the child's end")
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // Both fail only when it has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// And back.
pub(crate) fn unhex(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (index, place) in bytes.iter_mut().enumerate() {
        *place = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("hexadecimal");
    }
    bytes
}
