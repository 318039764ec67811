//! The functions that a driver's table asks a vendor's library for, read from its text.

use std::{fs, path::Path};

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// As the library exports it.
    pub(crate) name: String,
    /// The version that brought it, as the table numbers versions.
    pub(crate) since: u32,
    /// Whether a library without it is refused.
    pub(crate) required: bool,
}

/// All entries of the table in `src/driver/{room}/sys.rs`, in its order.
pub(crate) fn functions(room: &str) -> Vec<Function> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/driver")
        .join(room)
        .join("sys.rs");
    let text = fs::read_to_string(&file).expect("a readable table");
    let (_, table) = text.split_once("symbols! {").expect("a table");
    let (required, optional) = table.split_once("optional {").expect("both parts");
    let entries = |part: &str, required| {
        let entry = move |line: &str| {
            let (name, rest) = line.trim().split_once('(')?;
            let (_, since) = rest.strip_suffix(';')?.rsplit_once("since ")?;
            Some(Function {
                name: name.to_owned(),
                since: since.parse().ok()?,
                required,
            })
        };
        part.lines().filter_map(entry).collect::<Vec<_>>()
    };
    let all = [entries(required, true), entries(optional, false)].concat();
    assert!(
        all.iter().any(|function| function.required),
        "{} was not understood",
        file.display()
    );
    assert_eq!(
        text.matches(", since ").count(),
        all.len(),
        "entries of {room}"
    );
    all
}
