//! Why something cannot be used, for people.

use crate::error::Error;

/// Of a transport that this crate knows by name alone, or whose feature was left out.
pub(super) const NOT_BUILT_IN: &str = "not in this build of wharf";

/// An error with its causes, in one line, each said once.
pub(super) fn reason(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}
