//! Four things about `src/`: what rooms use of each other (here), that files do not use each other in circles (`circles`), that functions of
//! the heart are short (`lengths`), and that no two types of the interface have one name (`names`).
//!
//! Holds the table of rooms against `src/`: a room may use itself and rooms on lower floors, never one above or beside it.
//!
//! The files are read as text: every path that begins with `crate::` or leaves the room by `super::` counts, in imports
//! and in code alike. Comments and strings do not.

mod circles;
mod lengths;
mod names;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Rooms and their floors.
const FLOORS: [(&str, u32); 18] = [
    ("error", 0),
    ("types", 0),
    ("util", 0),
    ("trace", 0),
    ("sys", 1),
    ("driver", 1),
    ("memory", 2),
    ("transport", 3),
    ("protocol", 3),
    ("config", 4),
    ("context", 4),
    ("worker", 5),
    ("endpoint", 6),
    ("listener", 6),
    ("channel", 7),
    ("bin", 8),
    ("guide", 8),
    ("fuzz", 8),
];

/// Rooms of one floor that may use each other all the same: user, used.
const BESIDE: [(&str, &str); 8] = [
    ("types", "error"),        // parsing a word can fail,
    ("util", "error"),         // and so can a small part
    ("util", "types"),         // parts are made of words,
    ("trace", "types"),        // and so is what is logged,
    ("trace", "util"),         // once each, which is kept under a lock
    ("context", "config"),     // a context is built from its options
    ("protocol", "transport"), // only the attributes below
    ("listener", "endpoint"),  // an accepted connection becomes an endpoint
];

/// What of `transport` the protocol may name: what a path can do, as plain values.
const ATTRIBUTES: [&str; 5] = ["LinkAttributes", "Reach", "Zcopy", "RawSlice", "Place"];

#[test]
fn no_import_runs_upward() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&src, &mut files);
    assert!(files.len() > 10, "src/ was not found");
    let lib = fs::read_to_string(src.join("lib.rs")).expect("readable lib.rs");
    let exports = exports(&lib);
    assert_eq!(
        exports.get("Error").map(String::as_str),
        Some("error"),
        "lib.rs was not understood"
    );
    let mut report = String::new();
    for file in files {
        let relative = file.strip_prefix(&src).expect("under src");
        let text = fs::read_to_string(&file).expect("readable source");
        for violation in check(relative, &text, &exports) {
            writeln!(report, "src/{}: {violation}", relative.display()).expect("a string takes it");
        }
    }
    assert!(
        report.is_empty(),
        "imports against the table of rooms:\n{report}"
    );
}

/// What a made-up `lib.rs` re-exports.
fn some_exports() -> BTreeMap<String, String> {
    exports(
        "pub mod error;\npub use error::{Error, Result};\npub use types::Tag;\npub use worker::Worker as W;",
    )
}

#[test]
fn upward_imports_are_found() {
    for (file, text) in [
        ("protocol/tag.rs", "use crate::worker::Shared;"),
        (
            "transport/tcp/mod.rs",
            "use crate::{error::Result, protocol::wire::Header};",
        ),
        ("types/ids.rs", "use crate::{\n    sys,\n};"),
        ("worker/shared.rs", "fn f(e: &crate::endpoint::Endpoint) {}"),
        ("protocol/tag.rs", "use crate::transport::tcp::Tcp;"),
        (
            "protocol/tag.rs",
            "use crate::transport::{LinkAttributes, Link};",
        ),
        ("memory/mod.rs", "use super::context::Context;"),
        ("memory/region/mod.rs", "use super::super::worker::Worker;"),
        (
            "memory/region.rs",
            "fn f() { let _ = \"'\\\"\"; crate::worker::x(); }",
        ),
        ("endpoint/mod.rs", "use crate::listener::Listener;"),
        ("context/mod.rs", "use crate::W;"),
        ("sys/fd.rs", "use crate::Unheard;"),
        ("cellar/mod.rs", "use crate::error::Result;"),
    ] {
        assert_eq!(
            check(Path::new(file), text, &some_exports()).len(),
            1,
            "{file}: {text}"
        );
    }
}

#[test]
fn downward_imports_pass() {
    for (file, text) in [
        (
            "worker/shared.rs",
            "use crate::{context::Context, protocol::{tag, wire::*}, transport::Sink, Error, Tag};",
        ),
        (
            "protocol/plan.rs",
            "use crate::transport::{LinkAttributes, Reach};\nuse crate::transport::LinkAttributes as A;",
        ),
        (
            "protocol/mod.rs",
            "//! See [`crate::worker`].\n/* crate::endpoint */ const S: &str = \"crate::worker::X\";",
        ),
        (
            "endpoint/tag.rs",
            "use super::Endpoint; use crate::{endpoint::put, Result};",
        ),
        (
            "memory/region/mod.rs",
            "use super::buffer::Buffer; use super::super::error::Result;",
        ),
        (
            "memory/mod.rs",
            "mod tests { use super::*; use super::buffer; }",
        ),
        (
            "context/mod.rs",
            "use crate::config::Config; pub(crate) struct X; pub(in crate::context) struct Y;",
        ),
        (
            "util/mod.rs",
            "macro_rules! m { () => { $crate::error::Error } }",
        ),
        ("bin/wharf/main.rs", "fn main() {}"),
        ("lib.rs", "pub use crate::worker::Worker;"),
    ] {
        assert_eq!(
            check(Path::new(file), text, &some_exports()),
            Vec::<String>::new(),
            "{file}: {text}"
        );
    }
}

/// Rust files under a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("readable folder") {
        let path = entry.expect("readable entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// What `lib.rs` re-exports at the root, and the room of each.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let lib = without_comments(lib);
    let mut found = Vec::new();
    for (start, keyword) in lib.match_indices("pub use ") {
        let path = &lib[start + keyword.len()..];
        let path = path
            .trim_start_matches("self::")
            .trim_start_matches("crate::");
        let end = path.find(';').unwrap_or(path.len());
        // `as` gives the name at the root; elsewhere the last part does.
        for item in expand(&path[..end], true) {
            let room = item.split("::").next().unwrap_or_default().to_owned();
            let name = item
                .rsplit([':', ' '])
                .next()
                .unwrap_or_default()
                .to_owned();
            found.push((name, room));
        }
    }
    found.into_iter().collect()
}

/// What a file of `src/` uses against the table.
fn check(file: &Path, text: &str, exports: &BTreeMap<String, String>) -> Vec<String> {
    let floors: BTreeMap<&str, u32> = FLOORS.into();
    let parts: Vec<&str> = file
        .iter()
        .map(|part| part.to_str().expect("ASCII names"))
        .collect();
    let room = parts[0].trim_end_matches(".rs");
    // A program is a crate of its own: what it has of the library is public, as the compiler sees to.
    if room == "lib" || room == "bin" {
        return Vec::new();
    }
    let Some(&floor) = floors.get(room) else {
        return vec![format!("the room `{room}` has no floor in the table")];
    };
    // How many `super` lead from this file's module to the root.
    let depth = parts.len() - usize::from(parts.last() == Some(&"mod.rs"));
    let mut violations = Vec::new();
    for used in uses(&without_comments(text), depth) {
        let head = used.split("::").next().unwrap_or_default();
        let other = exports.get(head).map_or(head, String::as_str);
        let Some(&other_floor) = floors.get(other) else {
            violations.push(format!("`{used}` is in no room of the table"));
            continue;
        };
        let beside = BESIDE.contains(&(room, other));
        let attribute =
            other != "transport" || used.split("::").any(|part| ATTRIBUTES.contains(&part));
        if other != room && other_floor >= floor && !(beside && attribute) {
            violations.push(format!(
                "`{room}` (floor {floor}) uses `{used}` (floor {other_floor})"
            ));
        }
    }
    violations
}

/// The paths from the root that a text without comments names, groups in braces taken apart, each once.
fn uses(text: &str, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for (start, _) in text
        .match_indices("crate::")
        .chain(text.match_indices("super::"))
    {
        if is_within(&text[..start]) {
            continue;
        }
        let path = text[start..].trim_start_matches("super::");
        let supers = (text.len() - start - path.len()) / "super::".len();
        let rooted = match path.strip_prefix("crate::") {
            Some(rooted) => rooted,
            // An inner module, as of tests, uses up one `super`: then a path is taken to leave the room only when it
            // goes on with the name of another.
            None if supers >= depth && begins_with_room(path) => path,
            None => continue,
        };
        let end = rooted.find(';').unwrap_or(rooted.len());
        found.extend(expand(&rooted[..end], false));
    }
    found.sort();
    found.dedup();
    found
}

/// Whether what follows such a text is in the middle of a path or of a word.
fn is_within(before: &str) -> bool {
    before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
}

/// Whether the first part of a path is a room.
fn begins_with_room(path: &str) -> bool {
    FLOORS.iter().any(|(room, _)| {
        path.strip_prefix(room)
            .is_some_and(|rest| rest.starts_with("::"))
    })
}

/// Takes `a::{b, c::d as e}` apart into `a::b` and `a::c::d` (with ` as e` if asked). What follows the path is left out.
fn expand(text: &str, aliases: bool) -> Vec<String> {
    let mut found = Vec::new();
    expand_under("", text, aliases, &mut found);
    found
}

/// The work of [`expand`]; returns what follows the path.
fn expand_under<'a>(
    prefix: &str,
    text: &'a str,
    aliases: bool,
    found: &mut Vec<String>,
) -> &'a str {
    let text = text.trim_start();
    if let Some(mut inner) = text.strip_prefix('{') {
        loop {
            inner = inner.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            if inner.is_empty() || inner.starts_with('}') {
                return inner.strip_prefix('}').unwrap_or(inner);
            }
            let after = expand_under(prefix, inner, aliases, found);
            // Something that is no list of paths: leave it.
            if after.len() == inner.len() {
                return "";
            }
            inner = after;
        }
    }
    let end = text
        .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*'))
        .unwrap_or(text.len());
    let (part, rest) = text.split_at(end);
    match rest.strip_prefix("::") {
        Some(inner) if !inner.starts_with('<') => {
            expand_under(&format!("{prefix}{part}::"), inner, aliases, found)
        }
        _ => {
            let mut path = format!("{prefix}{part}");
            let mut rest = rest;
            if let Some(alias) = rest.strip_prefix(" as ") {
                let end = alias
                    .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .unwrap_or(alias.len());
                if aliases {
                    path = format!("{path} as {}", &alias[..end]);
                }
                rest = &alias[end..];
            }
            if !part.is_empty() {
                found.push(path);
            }
            rest
        }
    }
}

/// The text with comments and strings blanked, and all its lines.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if c == '"' {
            string_end(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("'\\\"'") {
            4
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.push(' ');
        out.extend(rest[..skip].matches('\n'));
        rest = &rest[skip..];
    }
    out
}

/// Length of the string literal that `text` begins with.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}
