//! No two types of the public interface have one name, in whichever module: who reads code, and who searches the documentation, knows which is meant.

use std::{collections::BTreeMap, fs, path::Path};

use super::{collect, without_comments};

/// Names that doors of public modules re-export, and of how many definitions each is the name.
#[test]
fn a_name_is_of_one_type() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let mut doors = String::new();
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let path = file
            .strip_prefix(&root)
            .expect("below")
            .display()
            .to_string();
        if ["bin", "driver", "sys"]
            .iter()
            .any(|room| path.starts_with(room))
        {
            continue;
        }
        let text = without_comments(&fs::read_to_string(&file).expect("text"));
        for start in text.match_indices("pub use ").map(|(start, _)| start) {
            doors += text[start..].split(';').next().unwrap_or_default();
        }
        for (start, _) in text.match_indices("\npub ") {
            let mut words = text[start..].split(|c: char| !c.is_alphanumeric() && c != '_');
            let kind = words
                .by_ref()
                .find(|word| !matches!(*word, "" | "pub" | "unsafe"));
            if let (Some("struct" | "enum" | "trait" | "type"), Some(name)) = (kind, words.next()) {
                defined
                    .entry(name.to_owned())
                    .or_default()
                    .push(path.clone());
            }
        }
    }
    let is_told = |name: &str| {
        let mut words = doors.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == name)
    };
    assert!(
        defined.len() > 200 && is_told("Endpoint"),
        "src/ was not understood"
    );
    defined.retain(|name, paths| paths.len() > 1 && is_told(name));
    // Of one of these the door tells, and the other is the room's own.
    let own = ["Destination"];
    defined.retain(|name, _| !own.contains(&&**name));
    assert!(defined.is_empty(), "{defined:#?}");
}
