//! What the crate logged, for tests that demand or forbid a warning.

use std::{
    io,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tracing::{Dispatch, subscriber::DefaultGuard};

/// The lines that were logged since it was made, as `LEVEL target: message`.
#[derive(Default)]
pub(crate) struct Logs {
    text: Arc<Mutex<Vec<u8>>>,
    guard: Option<DefaultGuard>,
}

/// While there is one subscriber alone, what a thread without one is the first to log is taken for what nobody wants, on any thread, until another subscriber
/// comes (`tracing-core` 0.1.36, `Rebuilder::JustOne`). So there are two.
static NEVER_ALONE: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(Logs::default().subscriber()));

impl Logs {
    /// Captures what this thread logs, until it is dropped. With a `current_thread` runtime that is all that a test does.
    pub(crate) fn of_this_thread() -> Self {
        LazyLock::force(&NEVER_ALONE);
        let mut logs = Self::default();
        logs.guard = Some(tracing::subscriber::set_default(logs.subscriber()));
        logs
    }

    /// Captures what all threads log, for good. Once in a process: for child processes.
    pub(crate) fn of_process() -> Self {
        let logs = Self::default();
        tracing::subscriber::set_global_default(logs.subscriber())
            .expect("the first of this process");
        logs
    }

    /// Every line.
    pub(crate) fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.text.lock())
            .lines()
            .map(|line| line.trim().to_owned())
            .collect()
    }

    /// The lines of warnings and errors.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| line.starts_with("WARN") || line.starts_with("ERROR"));
        lines
    }

    /// Demands exactly one warning, and in it all of `parts`.
    #[track_caller]
    pub(crate) fn expect_one_warning(&self, parts: &[&str]) {
        let warnings = self.warnings();
        assert!(
            warnings.len() == 1 && parts.iter().all(|part| warnings[0].contains(part)),
            "expected one warning with {parts:?}, found {warnings:#?}"
        );
    }

    /// Demands that there is no warning and no error.
    #[track_caller]
    pub(crate) fn expect_no_warning(&self) {
        assert!(
            self.warnings().is_empty(),
            "unexpected: {:#?}",
            self.warnings()
        );
    }

    fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + use<> {
        let text = Arc::clone(&self.text);
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .without_time()
            .with_writer(move || Writer(Arc::clone(&text)))
            .finish()
    }
}

struct Writer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
