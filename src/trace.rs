//! What is said of slower paths, and what single operations do.
//!
//! A slower path than there could be is said at WARN once in a process for each reason, with what mends it; of the rest whoever listens to DEBUG hears.
//!
//! What single operations do, told to whoever asks for it: events of level TRACE, target [`OPERATION`].
//!
//! Nobody asks, as a rule: then each place costs one look at a static word, and nothing is formatted.

use std::{collections::BTreeSet, fmt::Display};

use tracing::{Level, level_filters::LevelFilter};

use crate::util::lock::Mutex;

/// Target of these events.
const OPERATION: &str = "wharf::operation";

/// Whether anybody may be asking: the static word. The events themselves ask who it is.
#[inline(always)]
fn is_asked() -> bool {
    LevelFilter::current() >= Level::TRACE
}

/// Whether this reason is said for the first time. Peers word some: so many are told, and no more.
#[cold]
pub(crate) fn is_first(reason: &str) -> bool {
    const MOST: usize = 64;
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock();
    said.len() < MOST && said.insert(reason.to_owned())
}

/// Says that a slower path is taken: a warning the first time for this `reason`.
macro_rules! slower {
    ($reason:expr, target: $target:literal, $($said:tt)*) => {
        match $crate::trace::is_first(&$reason) {
            true => tracing::warn!(target: $target, $($said)*),
            false => tracing::debug!(target: $target, $($said)*),
        }
    };
}
pub(crate) use slower;

/// Says that an operation of `length` bytes goes this way.
#[inline(always)]
pub(crate) fn operation(what: &'static str, length: usize, way: &'static str) {
    if is_asked() {
        chosen(what, length, way);
    }
}

#[cold]
#[inline(never)]
fn chosen(what: &'static str, length: usize, way: &'static str) {
    tracing::trace!(target: OPERATION, what, length, way, "goes");
}

/// Says that an operation that was entered in the table has ended.
#[inline(always)]
pub(crate) fn ended(what: &'static str, error: Option<&dyn Display>) {
    if is_asked() {
        over(what, error);
    }
}

#[cold]
#[inline(never)]
fn over(what: &'static str, error: Option<&dyn Display>) {
    let error = error.map(tracing::field::display);
    tracing::trace!(target: OPERATION, what, error, "ended");
}
