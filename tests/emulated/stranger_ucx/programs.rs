//! Runs a program and waits for it, and reads what the emulated driver wrote down about it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Instant,
};

use super::Ucx;
use crate::support::{LIMIT, Looks, block_until, listens, own_port};

/// What the emulated driver saw of one process.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Calls by name.
    pub(crate) counts: BTreeMap<String, i64>,
    /// What was done that the real driver leaves undefined.
    pub(crate) misuses: Vec<String>,
    /// Processor time in microseconds.
    pub(crate) cpu: i64,
}

impl Journal {
    /// What a process left that ended.
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("no journal, so the driver was not used: {error}"));
        let mut journal = Self::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').expect("a kind and a text");
            match kind {
                "count" => {
                    let (name, count) = rest.split_once(' ').expect("a name and a number");
                    journal
                        .counts
                        .insert(name.to_owned(), count.parse().expect("a number"));
                }
                "cpu" => journal.cpu = rest.parse().expect("a number"),
                _ => journal.misuses.push(rest.to_owned()),
            }
        }
        journal
    }

    /// Calls of all names that `of` accepts.
    pub(crate) fn calls(&self, of: impl Fn(&str) -> bool) -> i64 {
        self.counts
            .iter()
            .filter(|(name, _)| of(name))
            .map(|(_, count)| count)
            .sum()
    }
}

/// A program that runs. Dropping it kills it.
pub(crate) struct Running {
    words: String,
    child: Child,
    output: PathBuf,
    journal: PathBuf,
}

impl Running {
    /// Starts it with these words and variables.
    pub(crate) fn start(ucx: &Ucx, program: &str, words: &str, variables: &[(&str, &str)]) -> Self {
        let (output, journal) = (ucx.file("output"), ucx.file("journal"));
        let file = fs::File::create(&output).expect("a file of ours");
        let mut command: Command = ucx.command(program);
        command
            .args(words.split_ascii_whitespace())
            .env("EMULATED_CUDA_JOURNAL", &journal)
            .envs(variables.iter().copied())
            .stderr(file.try_clone().expect("another descriptor"))
            .stdout(file);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{program} does not start: {error}"));
        let words = format!("{variables:?} {program} {words}");
        Self {
            words,
            child,
            output,
            journal,
        }
    }

    /// Waits for its end, which must be a success; what it printed, and what the driver saw.
    pub(crate) fn end(mut self) -> (String, Journal) {
        let start = Instant::now();
        let mut looks = Looks::new("the program's end").within(2 * LIMIT);
        let status = loop {
            match self.child.try_wait().expect("it is ours") {
                Some(status) => break status,
                None if start.elapsed() > LIMIT => panic!("hangs: {}\n{}", self.words, self.text()),
                None => looks.block(),
            }
        };
        let text = self.text();
        assert!(status.success(), "{status}: {}\n{text}", self.words);
        let journal = Journal::read(&self.journal);
        assert!(
            journal.misuses.is_empty(),
            "{}: {:#?}",
            self.words,
            journal.misuses
        );
        (text, journal)
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ucx_perftest` in two processes with the same words: what each printed and did, the waiting one's first.
pub(crate) fn perftest(
    ucx: &Ucx,
    words: &str,
    variables: &[(&str, &str)],
) -> [(String, Journal); 2] {
    let port = own_port();
    let words = format!("-p {port} {words}");
    let waiting = Running::start(ucx, "ucx_perftest", &words, variables);
    block_until("a listener", || listens(waiting.child.id(), port));
    let calling = Running::start(
        ucx,
        "ucx_perftest",
        &format!("127.0.0.1 {words}"),
        variables,
    );
    let second = calling.end();
    [waiting.end(), second]
}
