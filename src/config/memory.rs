//! Who watches memory, and how much of it stays registered.

use super::{
    environment::Word,
    value::{self, displayed},
};
use crate::memory::MonitorKind;

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

/// A count, or `inf`. UCX's may be 0, which keeps what is in use.
pub(super) fn count(word: &Word<'_>) -> Result<Option<usize>, String> {
    let count = limit(word, value::count)?;
    if word.is_ucx() && count == Some(0) {
        word.leave_out("one is kept");
        return Ok(Some(1));
    }
    Ok(count)
}

/// Bytes, or `inf`.
pub(super) fn size(word: &Word<'_>) -> Result<Option<usize>, String> {
    limit(word, value::bytes)
}

fn limit(
    word: &Word<'_>,
    parse: impl Fn(&str) -> Result<usize, String>,
) -> Result<Option<usize>, String> {
    match word.text.trim().to_ascii_lowercase().as_str() {
        "inf" => Ok(Some(usize::MAX)),
        "auto" if word.is_ucx() => Ok(None),
        _ => parse(word.text)
            .map(Some)
            .map_err(|error| format!("{error} or \"inf\"")),
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

displayed! { MonitorKind }
