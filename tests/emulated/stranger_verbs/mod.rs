//! The emulated RDMA devices under strangers: rdma-core's own programs, unchanged, and a program made from the vendor's headers alone.
//!
//! * `devices`: what `ibv_devices` and `ibv_devinfo` list.
//! * `pingpong`: `ibv_rc_pingpong` and `ibv_srq_pingpong` between two processes, and how they end where a fault is planned or the peer dies.
//! * `strict`: what the library refuses.
//! * `wire`: what a process answers to one that sends it anything.
//!
//! The programs are in the package `ibverbs-utils` of Debian and Ubuntu, which `.ci/run` installs:
//!
//! ```sh
//! cargo test --test emulated stranger_verbs -- --include-ignored
//! ```

mod devices;
mod pingpong;
mod raw;
mod strict;
mod wire;

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::support::{emulated, end_of};

/// A folder in which the library has the name that programs ask for, and one by which processes have one network.
pub(crate) struct Network(tempfile::TempDir);

impl Network {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let path = folder.path();
        fs::create_dir(path.join("net")).expect("a folder");
        symlink(emulated::verbs(), path.join("libibverbs.so.1")).expect("a link");
        Self(folder)
    }

    /// What processes name to be on it.
    pub(crate) fn folder(&self) -> PathBuf {
        self.0.path().join("net")
    }

    /// A new file for what a program leaves.
    fn file(&self, name: &str) -> PathBuf {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        self.0.path().join(format!("{name}.{number}"))
    }

    /// Starts a program of rdma-core's, with these words and variables.
    pub(crate) fn start(&self, words: &str, variables: &[(&str, &str)]) -> Running {
        let mut parts = words.split_ascii_whitespace();
        let program = parts.next().expect("a program");
        let (output, journal) = (self.file("output"), self.file("journal"));
        let file = fs::File::create(&output).expect("a file of ours");
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("EMULATED_VERBS_") {
                command.env_remove(name);
            }
        }
        command
            .args(parts)
            .env("LD_LIBRARY_PATH", self.0.path())
            .env("EMULATED_VERBS_FOLDER", self.folder())
            .env("EMULATED_VERBS_JOURNAL", &journal)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(file.try_clone().expect("another descriptor"))
            .stdout(file);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{program} does not start (package ibverbs-utils): {error}")
        });
        Running {
            words: format!("{variables:?} {words}"),
            child,
            output,
            journal,
        }
    }

    /// What a program printed that ran to its end well.
    pub(crate) fn run(&self, words: &str, variables: &[(&str, &str)]) -> String {
        let (status, text) = self.start(words, variables).end();
        assert!(status.success(), "{variables:?} {words}: {status}\n{text}");
        text
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
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended by itself, and what it printed. It misused nothing, and destroyed all that it made if it ended well.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = end_of(&mut self.child, &self.words);
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        assert!(
            !text.contains("no version information"),
            "{}: {text}",
            self.words
        );
        let journal = fs::read_to_string(&self.journal).unwrap_or_else(|error| {
            panic!(
                "{}: no journal, so the library was not used: {error}\n{text}",
                self.words
            )
        });
        assert!(!journal.contains("misuse "), "{}: {journal}", self.words);
        if status.success() {
            assert!(journal.starts_with("live 0\n"), "{}: {journal}", self.words);
        }
        (status, text)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is there to be killed");
        let status = end_of(&mut self.child, "the end of what was killed");
        assert!(status.code().is_none(), "had ended by itself: {status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
