//! Holds the guide and the lists of examples against what is there: names, texts, targets, files. `cargo test --test guide`.

mod look;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below a folder with this extension.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

/// The sources, but for the guide: what it says must be so elsewhere.
fn sources() -> Vec<String> {
    let mut found = Vec::new();
    files(&root().join("src"), "rs", &mut found);
    found.retain(|path| !path.starts_with(root().join("src/guide")));
    assert!(found.len() > 100, "src/ was not found");
    found.iter().map(read).collect()
}

/// The programs in `examples/`: files, and folders with a `main.rs`.
fn examples() -> BTreeSet<String> {
    let entries = fs::read_dir(root().join("examples")).expect("a folder");
    let names = entries.filter_map(|entry| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_str().expect("UTF-8").to_owned();
        match entry.path().join("main.rs").exists() {
            true => Some(format!("{name}/main")),
            false => name.strip_suffix(".rs").map(str::to_owned),
        }
    });
    names.collect()
}

/// What stands between `before` and `after`, each time.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    let parts = text.split(before).skip(1);
    parts.filter_map(|part| part.split(after).next()).collect()
}

#[test]
fn every_example_is_listed_and_run_by_a_test() {
    let examples = examples();
    assert!(examples.contains("two_processes"), "{examples:?}");
    let table = read("examples/README.md");
    let listed: BTreeSet<String> = between(&table, "](", ".rs)")
        .into_iter()
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, examples, "examples/README.md against examples/");

    // A test that runs one compiles it in as a module, and calls it by that name.
    let mut tests = Vec::new();
    files(&root().join("tests"), "rs", &mut tests);
    let tests: Vec<String> = tests
        .iter()
        .filter(|path| !path.starts_with(root().join("tests/guide")))
        .map(read)
        .collect();
    for name in &examples {
        let included = format!("examples/{name}.rs\"]");
        let called = format!("{}::", name.trim_end_matches("/main"));
        let played = format!("play!({name})");
        assert!(
            tests.iter().any(|text| text.contains(&included)),
            "no test compiles examples/{name}.rs in"
        );
        assert!(
            tests
                .iter()
                .any(|text| text.contains(&called) || text.contains(&played)),
            "no test calls {name}"
        );
    }
}

/// The program that a reader meets first is one that is compiled and run.
#[test]
fn the_readme_begins_with_an_example() {
    let readme = read("README.md");
    let listing = between(&readme, "```rust\n", "```");
    // Without what is for the test that runs the example, and the lines about that itself.
    let program = read("examples/hello.rs").replace("pub(crate) ", "");
    let start = program.find("use wharf").expect("a program");
    assert_eq!(listing.first(), Some(&&program[start..]));

    // A version would name what the registry has under this name, which is not this crate.
    assert!(readme.contains("\nwharf = { path = \""));
    let versions = ["wharf = \"", "wharf = { version"];
    assert!(!versions.iter().any(|line| readme.contains(line)));
}

#[test]
fn the_readmes_look_is_compiled() {
    let readme = read("README.md");
    let [listing] = between(&readme, "## A look\n\n```rust\n", "```")[..] else {
        panic!("one listing");
    };
    assert!(read("tests/guide/look.rs").contains(listing), "{listing}");
}

/// Where the crate is read without its repository.
#[test]
fn what_the_first_documents_link_to_is_in_the_package() {
    let manifest = read("Cargo.toml");
    let included = between(&manifest, "include = [", "]")[0];
    let included: Vec<&str> = between(included, "\"/", "\"");
    for document in ["README.md", "SUPPORT.md", "CHANGELOG.md"] {
        let text = read(document);
        let links = between(&text, "](", ")").into_iter();
        let links = links.filter(|link| !link.starts_with("http") && !link.starts_with('#'));
        for link in links {
            let file = link.split('#').next().unwrap_or(link);
            let is_in = |part: &&str| Path::new(file).starts_with(part);
            assert!(included.iter().any(is_in), "{document}: {link}");
        }
    }
}

#[test]
fn the_guide_names_examples_that_are_there() {
    let mut guide = Vec::new();
    files(&root().join("src/guide"), "rs", &mut guide);
    let examples = examples();
    let mut named = BTreeSet::new();
    for text in guide.iter().map(read) {
        let names = between(&text, "examples/", ".rs`").into_iter();
        let is_name = |name: &&str| {
            name.chars()
                .all(|letter| letter.is_ascii_lowercase() || letter == '_')
        };
        named.extend(names.filter(is_name).map(str::to_owned));
    }
    assert!(named.len() > 10, "{named:?}");
    let strangers: Vec<_> = named.difference(&examples).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

/// Names that the search of the documentation has to know: UCP of UCX 1.22, with what it keeps of older versions.
#[test]
fn every_name_of_ucp_is_an_alias() {
    let mut found = Vec::new();
    files(&root().join("src"), "rs", &mut found);
    let aliases: BTreeSet<String> = found
        .iter()
        .map(read)
        .flat_map(|text| {
            let lists = between(&text, "#[doc(alias", ")]").into_iter();
            let names =
                lists.flat_map(|list| list.split('"').skip(1).step_by(2).map(str::to_owned));
            names.collect::<Vec<_>>()
        })
        .collect();
    let list = include_str!("ucp_names.txt");
    let names = list.lines().filter(|line| line.starts_with("ucp_"));
    assert!(names.clone().count() > 200);
    let missing: Vec<_> = names.filter(|name| !aliases.contains(*name)).collect();
    assert!(
        missing.is_empty(),
        "no item has these as an alias: {missing:?}"
    );
}

/// The texts of errors and warnings are the ones that are printed.
#[test]
fn troubleshooting_quotes_the_code() {
    let sources = sources();
    // As literals are written: without the backslashes of quotes and line ends.
    let plain: Vec<String> = sources
        .iter()
        .map(|text| text.replace("\\\"", "\""))
        .collect();
    let mut quoted = 0;
    // Which cell of a row holds what is said.
    for (page, cell) in [("troubleshooting", 1), ("containers", 3)] {
        let page = read(format!("src/guide/{page}.rs"));
        let rows = page.lines().filter(|line| line.starts_with("//! | "));
        for row in rows {
            let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
            // A code span with a space in it is a text.
            if let Some(cell) = cells.get(cell) {
                let texts = cell.split('`').skip(1).step_by(2);
                for text in texts.filter(|text| text.contains(' ')) {
                    quoted += 1;
                    for part in text.split('…').map(str::trim).filter(|part| part.len() > 3) {
                        let there = plain.iter().any(|source| {
                            source.contains(part)
                                || part.ends_with(':') && source.contains(&part[..part.len() - 1])
                        });
                        assert!(there, "nothing in src/ says {part:?}");
                    }
                }
            }
        }
    }
    assert!(quoted > 25, "{quoted} texts were found");
}

/// The table of targets has each that is used, and no other.
#[test]
fn every_target_is_listed() {
    let page = read("src/guide/observing.rs");
    let listed: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `wharf::"))
        .filter_map(|line| line.split('`').next().map(str::to_owned))
        .collect();
    let mut used = BTreeSet::new();
    for text in sources() {
        used.extend(
            between(&text, "target: \"wharf::", "\"")
                .into_iter()
                .map(str::to_owned),
        );
        used.extend(
            between(&text, "OPERATION: &str = \"wharf::", "\"")
                .into_iter()
                .map(str::to_owned),
        );
        for level in ["error", "warn", "info", "debug", "trace"] {
            for event in between(&text, &format!("tracing::{level}!("), ";") {
                assert!(
                    event.trim_start().starts_with("target:"),
                    "an event without a target: {event}"
                );
            }
        }
    }
    assert_eq!(listed, used, "src/guide/observing.rs against src/");
}

#[test]
fn the_architecture_names_files_that_are_there() {
    let text = read("ARCHITECTURE.md") + &read("CONTRIBUTING.md");
    let is_part = |c: char| c.is_alphanumeric() || "_/.-".contains(c);
    let mut named = BTreeSet::new();
    for start in ["src/", "tests/", "examples/", "benches/"] {
        for (at, _) in text.match_indices(start) {
            let rest = &text[at..];
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            // Several files of a folder at once: the folder.
            named.insert(rest[..end].trim_end_matches(['/', '.']));
        }
    }
    assert!(named.len() > 50, "{named:?}");
    for path in named {
        assert!(root().join(path).exists(), "{path} is not there");
    }
}
