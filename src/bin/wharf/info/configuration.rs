//! The configuration in force.

use serde_json::{Value, json};
use wharf::{Context, config::Source};

/// Every variable.
pub(super) fn variables(context: &Context) -> Value {
    let entries = context.configuration().into_iter();
    entries
        .map(|entry| {
            let source = match entry.source {
                Source::Default => "default",
                Source::Builder => "program",
                Source::Env(name) => name,
                _ => "unknown",
            };
            json!({
                "name": entry.variable.name,
                "ucx": entry.variable.ucx,
                "value": entry.value,
                "source": source,
                "takes": entry.variable.value,
                "default": entry.variable.default,
                "doc": entry.variable.doc,
            })
        })
        .collect()
}

/// Misspellings.
pub(super) fn unknown(context: &Context) -> Value {
    let unknown = context.unknown_variables().iter();
    unknown
        .map(|variable| {
            json!({
                "name": variable.name,
                "nearest": variable.nearest.map(|nearest| nearest.name),
            })
        })
        .collect()
}
