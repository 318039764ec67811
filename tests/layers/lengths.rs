//! No function of the heart is so long that nobody reads it at one go: worker, endpoints, protocol, and the transports that need no other hardware.

use std::path::Path;

use super::circles::{Crate, Module, item_end};

/// Most lines, from that of its name to that of its last brace.
const LONGEST: usize = 80;

/// Rooms of the transports that are no part of it.
const BESIDE: [&str; 8] = [
    "accelerator",
    "conformance",
    "cuda",
    "gaudi",
    "rdmacm",
    "rocm",
    "tls",
    "verbs",
];

fn is_heart(module: &Module) -> bool {
    match module[0].as_str() {
        "worker" | "endpoint" | "protocol" => true,
        "transport" => module
            .get(1)
            .is_none_or(|room| !BESIDE.contains(&room.as_str())),
        _ => false,
    }
}

#[test]
fn functions_of_the_heart_are_short() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let all = Crate::read(&src);
    let heart = all.texts().filter(|(module, _)| is_heart(module));
    let found = heart.flat_map(|(module, text)| {
        let lengths = lengths(text);
        lengths.map(move |(name, lines)| (format!("{}::{name}", module.join("::")), lines))
    });
    let found = Vec::from_iter(found);
    assert!(found.len() > 2000, "src/ was not understood");
    let long = found.iter().filter(|(_, lines)| *lines > LONGEST);
    let long = Vec::from_iter(long);
    assert!(
        long.is_empty(),
        "functions of more than {LONGEST} lines: {long:#?}"
    );
}

/// The functions of a text without comments, and the lines of each that has a body.
fn lengths(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let begins = text.match_indices("fn ").filter(|(at, _)| {
        !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '\'')
    });
    begins.filter_map(|(at, _)| {
        let rest = &text[at + 3..];
        let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        // What stands in brackets of the head, as `[u8; 4]`, ends nothing.
        let mut depth = 0;
        let head = rest.find(|c: char| {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                _ => {}
            }
            depth == 0 && (c == '{' || c == ';')
        })?;
        let has_body = rest[head..].starts_with('{');
        let end = head + item_end(&rest[head..]);
        let lines = 1 + rest[..end].matches('\n').count();
        has_body.then_some((name.into_iter().next().unwrap_or_default(), lines))
    })
}

#[test]
fn lines_are_counted() {
    let text = "
        trait T { fn none(a: [u8; 4]); fn one() {} }
        impl T for fn() {
            fn four(
                a: [u8; { 4 }],
            ) {
            }
        }
        fn four_too() { if x {
            let f = || { fn two() {
            } };
        } }";
    let found = Vec::from_iter(lengths(text));
    assert_eq!(
        found,
        [("one", 1), ("four", 4), ("four_too", 4), ("two", 2)]
    );
}
