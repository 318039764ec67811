//! Who watches memory, and how much of it stays registered.

use super::{
    environment::Word,
    value::{self, Text},
};
use crate::{memory::MonitorKind, transport::verbs::RelaxedOrdering};

/// The monitor: by its own name, or by UCX's `y` or `n`.
pub(super) fn monitor(word: &Word<'_>) -> Result<MonitorKind, String> {
    match word.name {
        "UCX_MEM_EVENTS" => events(word.text),
        _ => named(word.text),
    }
}

fn named(text: &str) -> Result<MonitorKind, String> {
    text.trim()
        .to_ascii_lowercase()
        .parse()
        .map_err(|error: crate::error::Error| error.to_string())
}

fn events(text: &str) -> Result<MonitorKind, String> {
    Ok(match value::yes_no(text)? {
        true => MonitorKind::Auto,
        false => MonitorKind::None,
    })
}

/// `y`, `n`, or `try`, which is `y`: without a cache everything works, slower.
pub(super) fn enable(text: &str) -> Result<bool, String> {
    match text.trim().eq_ignore_ascii_case("try") {
        true => Ok(true),
        false => value::yes_no(text).map_err(|_| "expected y, n or try".to_owned()),
    }
}

/// A count, or `inf`.
pub(super) fn count(text: &str) -> Result<Option<usize>, String> {
    limit(text, value::count)
}

/// Bytes, or `inf`.
pub(super) fn size(text: &str) -> Result<Option<usize>, String> {
    limit(text, value::bytes)
}

fn limit(
    text: &str,
    parse: impl Fn(&str) -> Result<usize, String>,
) -> Result<Option<usize>, String> {
    match text.trim().eq_ignore_ascii_case("inf") {
        true => Ok(Some(usize::MAX)),
        false => parse(text)
            .map(Some)
            .map_err(|error| format!("{error} or \"inf\"")),
    }
}

/// `auto`, also as `try`; or yes or no.
pub(super) fn relaxed_ordering(text: &str) -> Result<RelaxedOrdering, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "auto" | "try" => Ok(RelaxedOrdering::Auto),
        _ => match value::yes_no(text) {
            Ok(true) => Ok(RelaxedOrdering::On),
            Ok(false) => Ok(RelaxedOrdering::Off),
            Err(_) => Err("expected auto, y or n".to_owned()),
        },
    }
}

/// Such a limit as its variable takes it; where nothing was set, what the cache takes then.
pub(super) fn told(limit: Option<usize>, default: u64) -> String {
    match limit {
        Some(usize::MAX) => "inf".to_owned(),
        Some(count) => count.to_string(),
        None => default.to_string(),
    }
}

impl Text for RelaxedOrdering {
    fn text(&self) -> String {
        let text = match self {
            Self::Auto => "auto",
            Self::On => "y",
            Self::Off => "n",
        };
        text.to_owned()
    }
}

impl Text for MonitorKind {
    fn text(&self) -> String {
        self.name().to_owned()
    }
}
