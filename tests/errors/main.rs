//! Every ending and every error that a program meets, provoked for real (processes that are killed, filters for system calls, namespaces, limits): its kind, and what
//! it says.

#[path = "../support/mod.rs"]
mod support;

mod ends;
mod limits;
mod runtime;
mod said;
mod slower;

use std::{error::Error as _, time::Duration};

use wharf::{Context, Error, ErrorKind, Worker};

/// A worker over these transports, whose connecting does not last.
fn worker(transports: &str) -> Worker {
    let builder = Context::builder().transports(transports).expect("known");
    let builder = builder.connect_timeout(Duration::from_secs(2));
    Worker::new(&builder.build().expect("a context")).expect("a worker")
}

/// Demands this kind, and that its line, which says nothing twice, is `text`: each `*` stands for anything.
#[track_caller]
fn expect(error: &Error, kind: ErrorKind, text: &str) {
    let line = error.to_string();
    assert_eq!(error.kind(), kind, "{line}");
    let mut rest = &line[..];
    for (index, part) in text.split('*').enumerate() {
        let at = rest.find(part).filter(|at| index > 0 || *at == 0);
        let at = at.unwrap_or_else(|| panic!("{line:?} is not {text:?}"));
        rest = &rest[at + part.len()..];
    }
    assert!(
        rest.is_empty() || text.ends_with('*'),
        "{line:?} is not {text:?}"
    );
    // As anyhow prints a chain.
    let mut source = error.source();
    while let Some(cause) = source {
        assert!(
            !line.contains(&cause.to_string()),
            "{line:?} says {cause} twice"
        );
        source = cause.source();
    }
}
