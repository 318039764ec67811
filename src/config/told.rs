//! What is told once in a process.

use crate::trace;

/// Warns of something in the environment, once in a process.
pub(super) fn warn_once(text: &str) {
    if trace::is_first(text) {
        tracing::warn!(target: "wharf::config", "{text}");
    }
}
