//! What single operations do, told to whoever asks for it: events of level TRACE, target [`OPERATION`].
//!
//! Nobody asks, as a rule: then each place costs one look at a static word, and nothing is formatted.

use std::fmt::Display;

use tracing::{Level, level_filters::LevelFilter};

/// Target of these events.
const OPERATION: &str = "wharf::operation";

/// Whether anybody may be asking: the static word. The events themselves ask who it is.
#[inline(always)]
fn is_asked() -> bool {
    LevelFilter::current() >= Level::TRACE
}

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
