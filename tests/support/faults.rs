//! An error from each call of every function, one at a time: what a run does, and what is asked of it.
//!
//! Used by `#[path = "../support/faults.rs"] mod struck;`, in programs whose `fixture` names the vendor's memory and its emulator.

use std::collections::BTreeSet;

use wharf::{
    MemoryType,
    transport::accelerator::{Accelerator, CopyEnd},
};

use crate::{
    error::{Error, ErrorKind, Result},
    fixture::{Bench, Memory, Parked, Sink, accelerator, control},
    support::Looks,
};

/// One of everything: what failed.
#[derive(Default)]
pub(crate) struct Run {
    pub(crate) errors: Vec<Error>,
    pub(crate) lost: Option<Error>,
    /// Copies that have not ended.
    begun: BTreeSet<u64>,
}

/// What a vendor has beside the rest.
pub(crate) trait Vendor {
    /// Pinned memory, that of a device and another's, and what else there is.
    const KINDS: &[MemoryType];
    /// Between which of these is copied.
    const PAIRS: &[(usize, usize)];
    /// How often each time.
    const COPIES: u64;
    /// The functions of which errors are only told to the log, or have a way round.
    const QUIET: &[&str];
    /// The code that a struck call returns, and how an error shows it.
    const CODE: (&str, &str);

    /// Asks what can be asked of memory, beside what it is.
    fn of_memory(&self, run: &mut Run, accelerator: &dyn Accelerator, memory: &Memory);

    /// More copies, or what is like them.
    fn more(&self, run: &mut Run, bench: &mut Bench, memory: &[Option<Memory>]);

    /// Behind the last copies, which are 2000 to 2002.
    fn last(&self, _run: &mut Run, _bench: &mut Bench) {}

    /// Whether it was refused because what a struck call was to make is not there.
    fn is_refused(text: &str) -> bool;

    /// All of it.
    fn everything(&self) -> Run {
        let mut run = Run::default();
        let accelerator = accelerator();
        let domain = accelerator.domain();
        let mut memory = Vec::new();
        for memory_type in Self::KINDS {
            let made = domain.allocate(*memory_type, 4096).map(Memory);
            memory.push(run.keep(made));
        }
        for memory in memory.iter().flatten() {
            run.keep(domain.detect(memory.0.range()));
            self.of_memory(&mut run, &accelerator, memory);
        }
        if let Some(engine) = run.keep(accelerator.open()) {
            let mut bench = Bench {
                accelerator,
                domain,
                engine,
                sink: Sink::default(),
                unstaged: false,
            };
            self.with_engine(&mut bench, &memory, &mut run);
            run.lost = bench.sink.lost.take();
        }
        run
    }

    fn with_engine(&self, bench: &mut Bench, memory: &[Option<Memory>], run: &mut Run) {
        let mut parked = Parked::new(bench);
        let mut token = 0;
        for (turn, (from, to)) in Self::PAIRS.repeat(2).into_iter().enumerate() {
            let (Some(from), Some(to)) = (&memory[from], &memory[to]) else {
                continue;
            };
            for _ in 0..Self::COPIES {
                token += 1;
                run.begin(bench, from.end(0), to.end(2048), (2048, token));
            }
            bench.engine.flush();
            if !run.begun.is_empty() && turn % 2 == 1 && bench.engine.arm() {
                // Parks once; the rest is polled.
                parked.park(bench);
            }
            run.settle(bench);
        }
        self.more(run, bench, memory);
        // With copies under way to the end.
        if let (Some(from), Some(to)) = (&memory[0], &memory[1]) {
            for token in 2000..2003 {
                run.begin(bench, from.end(0), to.end(0), (64, token));
            }
        }
        self.last(run, bench);
        bench.quiesce();
        run.settle(bench);
    }

    /// Fails each call of one function in turn, `before` each of which something is waited for. Whether anybody was told.
    fn strike(&self, name: &str, count: u64, before: impl Fn()) -> bool {
        let (code, shown) = Self::CODE;
        let mut told = false;
        for nth in 1..=count.min(MOST) {
            before();
            control("reset");
            control(&format!("fault {name}@{nth}={code}"));
            let run = self.everything();
            told |= !run.errors.is_empty();
            assert!(run.lost.is_none(), "{name}@{nth}: lost by {:?}", run.lost);
            // One cause: the call itself, and whatever was refused because what it was to make is not there.
            for error in &run.errors {
                let text = format!("{error:?}");
                let refused = error.kind() == ErrorKind::Unsupported && Self::is_refused(&text);
                let own = text.contains(name) && text.contains(shown);
                assert!(own || refused, "{name}@{nth}: {text}");
                assert_ne!(error.kind(), ErrorKind::DeviceLost, "{name}@{nth}: {text}");
            }
            assert!(run.errors.len() <= 8, "{name}@{nth}: {:?}", run.errors);
        }
        told
    }

    fn is_quiet(name: &str) -> bool {
        Self::QUIET.iter().any(|quiet| name.contains(quiet))
    }
}

/// How many calls of one function are struck, one after the other.
pub(crate) const MOST: u64 = 12;

impl Run {
    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    pub(crate) fn begin(
        &mut self,
        bench: &mut Bench,
        from: CopyEnd,
        to: CopyEnd,
        (length, token): (usize, u64),
    ) {
        let began = bench.begin(from, to, length, token);
        if self.keep(began).is_some() {
            self.begun.insert(token);
        }
    }

    /// Something else that ends under this token.
    #[allow(dead_code, reason = "for who waits for streams as well")]
    pub(crate) fn began(&mut self, token: u64) {
        self.begun.insert(token);
    }

    /// Polls until all that was begun was told, each once.
    pub(crate) fn settle(&mut self, bench: &mut Bench) {
        let mut looks = Looks::new("the end of what was begun");
        let name = bench.accelerator.name();
        while !self.begun.is_empty() {
            bench.engine.progress(16, &mut bench.sink);
            for (token, result) in bench.sink.done.drain(..) {
                assert!(self.begun.remove(&token), "{token} was told twice");
                if let Err(error) = result {
                    assert_eq!(error.transport(), Some(name), "{error}");
                    self.errors.push(error);
                }
            }
            looks.block();
        }
    }
}

/// Calls that were made since the last reset, by name.
pub(crate) fn names() -> Vec<(String, u64)> {
    let counts = control("counts");
    let line = |line: &str| {
        let (name, count) = line.split_once([' ', '='])?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    counts.lines().filter_map(line).collect()
}
