//! Files of a room use each other one way only: a file is read after those that it uses, and no file has to be read before itself.
//!
//! An arrow runs from a file to the one that *defines* what it names: what a door re-exports is followed there. So a door may re-export what stands
//! behind it, or define what that uses, and not both. What is built for tests alone does not count, nor does a method that a file adds to a type of
//! another one and a third calls: no path names the file then.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{collect, expand, is_within, without_comments};

/// A file's module, from the root of the crate: `["transport", "shm", "ring"]`.
pub(super) type Module = Vec<String>;

/// What a file says, as far as it matters here.
#[derive(Default)]
struct File {
    text: String,
    /// Names of what it defines.
    defines: BTreeSet<String>,
    /// What it imports: name here, path as written.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules that it imports everything of.
    globs: Vec<Vec<String>>,
}

pub(super) struct Crate(BTreeMap<Module, File>);

#[test]
fn files_use_each_other_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let all = Crate::read(&src);
    assert!(all.0.len() > 300, "src/ was not understood");
    let arrows = all.arrows();
    assert!(
        arrows[&path("endpoint::tag")].contains(&path("types::ids")),
        "re-exports were not followed"
    );
    let names = |circle: &Vec<Module>| circle.iter().map(|module| module.join("/")).collect();
    let found: Vec<Vec<String>> = circles(&arrows).iter().map(names).collect();
    assert!(
        found.is_empty(),
        "files that use each other in circles: {found:#?}"
    );
}

#[test]
fn circles_are_found() {
    let two = made([
        ("a", "mod b; mod c; pub use b::B; fn f() {}"),
        ("a::b", "use super::C; pub struct B;"),
        ("a::c", "use crate::a::b; pub struct C; fn g(_: b::B) {}"),
    ]);
    // `C` is no name of the door: the arrow to it ends there.
    let arrows = two.arrows();
    assert_eq!(arrows[&path("a::b")], [path("a")].into());
    assert_eq!(arrows[&path("a::c")], [path("a::b")].into());
    let found = circles(
        &made([
            ("a", "mod b; mod c; pub use c::C; pub use b::B;"),
            ("a::b", "use super::C; pub struct B;"),
            ("a::c", "use super::{B, b}; pub struct C;"),
        ])
        .arrows(),
    );
    assert_eq!(found, [[path("a::b"), path("a::c")]]);
}

#[test]
fn doors_and_tests_are_no_circles() {
    let fine = made([
        (
            "a",
            "mod b; mod c; mod d; pub(crate) use b::*; pub use c::{C as K, d}; pub use c::C;",
        ),
        (
            "a::b",
            "pub struct B; #[cfg(test)] mod tests { use super::super::K; fn f() { x() } }",
        ),
        ("a::c", "use super::B; pub struct C; #[cfg(test)] mod t;"),
        ("a::c::t", "use crate::a::d::D;"),
        ("a::d", "pub struct D; fn f(_: super::K) {}"),
    ]);
    let arrows = fine.arrows();
    assert_eq!(arrows[&path("a::c")], [path("a::b")].into());
    assert_eq!(arrows[&path("a::d")], [path("a::c")].into());
    assert!(!arrows.contains_key(&path("a::c::t")));
    assert!(circles(&arrows).is_empty());
}

fn path(text: &str) -> Module {
    text.split("::").map(str::to_owned).collect()
}

fn made<const N: usize>(files: [(&str, &str); N]) -> Crate {
    let files = files.map(|(module, text)| (path(module), text.to_owned()));
    Crate::new(files.into())
}

impl Crate {
    pub(super) fn read(src: &Path) -> Self {
        let mut files = Vec::new();
        collect(src, &mut files);
        let module = |file: &Path| {
            let file = file
                .strip_prefix(src)
                .expect("under src")
                .with_extension("");
            let mut parts: Module = file
                .iter()
                .map(|part| part.to_str().expect("ASCII names").to_owned())
                .collect();
            parts.pop_if(|last| last == "mod");
            parts
        };
        let texts = files.iter().map(|file| {
            let text = fs::read_to_string(file).expect("readable source");
            (module(file), text)
        });
        // A program is a crate of its own, and the pages of the guide are text.
        let texts = texts
            .filter(|(module, _)| !["bin", "guide", "fuzz", "lib"].contains(&module[0].as_str()));
        Self::new(texts.collect())
    }

    fn new(texts: BTreeMap<Module, String>) -> Self {
        let mut files = BTreeMap::new();
        let mut tests = Vec::new();
        for (module, text) in texts {
            let (text, of_tests) = without_tests(&without_comments(&text));
            tests.extend(
                of_tests
                    .into_iter()
                    .map(|name| [&module[..], &[name]].concat()),
            );
            files.insert(module, File::new(text));
        }
        files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Self(files)
    }

    /// What each file says, but for what is built for tests alone.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&Module, &str)> {
        let texts = self.0.iter();
        texts.map(|(module, file)| (module, file.text.as_str()))
    }

    fn arrows(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let used = |module: &Module, file: &File| -> BTreeSet<Module> {
            let targets = file
                .names()
                .into_iter()
                .filter_map(|name| self.target(module, &name));
            targets.filter(|target| target != module).collect()
        };
        self.0
            .iter()
            .map(|(module, file)| (module.clone(), used(module, file)))
            .collect()
    }

    /// The file that defines what a path names, as it is written in a module.
    fn target(&self, module: &Module, written: &[String]) -> Option<Module> {
        self.resolve(&self.rooted(module, written)?, 0)
    }

    /// From the root on. `None`: another crate's.
    fn rooted(&self, module: &Module, written: &[String]) -> Option<Module> {
        let supers = written.iter().take_while(|part| *part == "super").count();
        let rest = &written[supers..];
        match rest.first().map(String::as_str) {
            Some("crate") => Some(rest[1..].to_vec()),
            Some("self") => Some([&module[..], &rest[1..]].concat()),
            _ if supers > 0 => Some([&module[..module.len().checked_sub(supers)?], rest].concat()),
            Some(first) => {
                let child = [&module[..], &[first.to_owned()]].concat();
                self.0
                    .contains_key(&child)
                    .then(|| [&module[..], rest].concat())
            }
            None => None,
        }
    }

    fn resolve(&self, full: &[String], depth: usize) -> Option<Module> {
        // Names that lead to each other lead nowhere.
        if depth > 16 {
            return None;
        }
        let length = (1..=full.len())
            .rev()
            .find(|length| self.0.contains_key(&full[..*length]))?;
        let (module, rest) = full.split_at(length);
        let (module, file) = (module.to_vec(), &self.0[module]);
        let Some(name) = rest.first() else {
            return Some(module);
        };
        if file.defines.contains(name) {
            return Some(module);
        }
        if let Some(import) = file.imports.get(name) {
            let full = [&self.rooted(&module, import)?[..], &rest[1..]].concat();
            return self.resolve(&full, depth + 1);
        }
        let globs = file
            .globs
            .iter()
            .filter_map(|glob| self.rooted(&module, glob));
        let mut found = globs.filter_map(|glob| {
            let there = self.resolve(&[&glob[..], rest].concat(), depth + 1)?;
            (there != glob || self.0[&there].defines.contains(name)).then_some(there)
        });
        found.next().or(Some(module))
    }
}

impl File {
    fn new(text: String) -> Self {
        let mut file = Self::default();
        let words: Vec<&str> = words(&text).collect();
        for pair in words.windows(2) {
            let kinds = [
                "struct",
                "enum",
                "trait",
                "union",
                "type",
                "fn",
                "const",
                "static",
                "macro_rules",
            ];
            if kinds.contains(&pair[0]) {
                file.defines.insert(pair[1].to_owned());
            }
        }
        for import in imports(&text) {
            let (written, name) = import.split_once(" as ").unwrap_or((&import, ""));
            let mut written = path(written);
            written.pop_if(|last| last == "self");
            let Some(last) = written.last().cloned() else {
                continue;
            };
            match (last.as_str(), name) {
                ("*", _) => {
                    written.pop();
                    file.globs.push(written);
                }
                (last, "") => drop(file.imports.insert(last.to_owned(), written)),
                (_, name) => drop(file.imports.insert(name.to_owned(), written)),
            }
        }
        file.text = text;
        file
    }

    /// The paths that it names; of a module that it imports, what it names in there.
    fn names(&self) -> Vec<Vec<String>> {
        let mut named = self.globs.clone();
        let body = without_imports(&self.text);
        for (name, written) in &self.imports {
            let within = format!("{name}::");
            let inside: Vec<&str> = body
                .match_indices(&within)
                .filter(|(start, _)| !is_within(&body[..*start]))
                .map(|(start, _)| {
                    words(&body[start + within.len()..])
                        .next()
                        .unwrap_or_default()
                })
                .collect();
            if inside.is_empty() {
                named.push(written.clone());
            }
            // Of a module what is named in it, of a type the type.
            named.extend(
                inside
                    .iter()
                    .map(|item| [&written[..], &[(*item).to_owned()]].concat()),
            );
        }
        for start in ["crate::", "super::"] {
            named.extend(paths(&body, start));
        }
        named
    }
}

/// Words of a text: names and numbers.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
}

/// The paths in a text that begin so.
fn paths(text: &str, start: &str) -> Vec<Vec<String>> {
    let begins = text.match_indices(start).filter(|(at, _)| {
        let before = &text[..*at];
        // Who may see something is no use of it.
        !is_within(before) && !before.ends_with('$') && !before.ends_with("pub(in ")
    });
    let whole = begins.map(|(at, _)| {
        let rest = &text[at..];
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .unwrap_or(rest.len());
        path(rest[..end].trim_end_matches(':'))
    });
    whole.collect()
}

/// Where each `use` begins and ends.
fn uses(text: &str) -> Vec<(usize, usize)> {
    let begins = text
        .match_indices("use ")
        .filter(|(at, _)| !is_within(&text[..*at]));
    begins
        .filter_map(|(at, _)| Some((at, at + text[at..].find(';')?)))
        .collect()
}

/// What a text imports, groups taken apart, as it is written.
fn imports(text: &str) -> Vec<String> {
    uses(text)
        .into_iter()
        .flat_map(|(begin, end)| expand(&text[begin + 4..end], true))
        .collect()
}

fn without_imports(text: &str) -> String {
    let (mut out, mut last) = (String::new(), 0);
    for (begin, end) in uses(text) {
        if begin >= last {
            out += &text[last..begin];
            last = end;
        }
    }
    out + &text[last..]
}

/// A text without what is built for tests alone, and the files that it declares for them.
fn without_tests(text: &str) -> (String, Vec<String>) {
    let (mut out, mut rest, mut files) = (String::new(), text, Vec::new());
    while let Some(at) = rest.find("#[cfg(") {
        let condition = &rest[at..at + rest[at..].find(']').unwrap_or(0)];
        let of_tests = [
            "#[cfg(test)",
            "#[cfg(all(test",
            "#[cfg(any(test",
            "#[cfg(all(loom",
            "#[cfg(loom)",
        ];
        let (before, item) = rest.split_at(at + condition.len() + 1);
        if !of_tests.iter().any(|start| condition.starts_with(start)) {
            out += before;
            rest = item;
            continue;
        }
        out += &before[..at];
        let end = item_end(item);
        let declared: Vec<&str> = words(&item[..end]).collect();
        if let [.., "mod", name] = declared[..] {
            files.push(name.to_owned());
        }
        rest = &item[end..];
    }
    (out + rest, files)
}

/// Where the item that a text begins with ends.
pub(super) fn item_end(text: &str) -> usize {
    let mut depth = 0;
    for (index, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && (c == ';' || c == '}') {
            return index + 1;
        }
    }
    text.len()
}

/// Groups of files that reach each other, largest first.
fn circles(arrows: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for target in arrows.get(module).into_iter().flatten() {
                if seen.insert(target) {
                    next.push(target);
                }
            }
        }
        seen
    };
    let reaches: BTreeMap<&Module, BTreeSet<&Module>> = arrows
        .keys()
        .map(|module| (module, reached(module)))
        .collect();
    let mut found: BTreeSet<Vec<Module>> = BTreeSet::new();
    for (module, there) in &reaches {
        let circle = there.iter().filter(|other| {
            reaches
                .get(*other)
                .is_some_and(|back| back.contains(module))
        });
        let circle: Vec<Module> = circle.map(|module| (*module).clone()).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    let mut found: Vec<Vec<Module>> = found.into_iter().collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}
