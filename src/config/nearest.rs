//! The word that a misspelt one most likely meant.

/// The one of `known` that `word` most likely meant, as the end of a sentence; empty when none is near.
pub(super) fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"))
}

/// The one of `known` that `word` most likely meant, if one is near.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Of the longer one's characters, the part that is right.
    let score = |name: &str| {
        let longer = word.chars().count().max(name.chars().count()).max(1);
        1.0 - edits(word, name) as f64 / longer as f64
    };
    known
        .into_iter()
        .max_by(|a, b| score(a).total_cmp(&score(b)))
        .filter(|name| score(name) >= 0.4)
}

/// How many characters must be put in, taken out, changed, or swapped with the next, to make one of the other.
fn edits(one: &str, other: &str) -> usize {
    let [one, other] = [one, other].map(|word| word.chars().collect::<Vec<_>>());
    let (mut second, mut last) = (Vec::new(), (0..=other.len()).collect::<Vec<_>>());
    for line in 1..=one.len() {
        let mut row = vec![line];
        for at in 1..=other.len() {
            let differ = usize::from(one[line - 1] != other[at - 1]);
            let mut least = (last[at - 1] + differ)
                .min(last[at] + 1)
                .min(row[at - 1] + 1);
            let crossed = line > 1 && at > 1 && one[line - 1] == other[at - 2];
            if crossed && one[line - 2] == other[at - 1] {
                least = least.min(second[at - 2] + 1);
            }
            row.push(least);
        }
        second = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (one, other, count) in [
            ("", "", 0),
            ("", "shm", 3),
            ("tcp", "tcp", 0),
            ("tpc", "tcp", 1),
            ("smh", "shm", 1),
            ("rc_verb", "rc_verbs", 1),
            ("kitten", "sitting", 3),
            ("größe", "große", 1),
        ] {
            assert_eq!(edits(one, other), count, "{one} {other}");
            assert_eq!(edits(other, one), count, "{other} {one}");
        }
    }

    #[test]
    fn the_nearest_is_near() {
        let known = ["shm", "tcp", "cuda_copy", "rc_verbs"];
        for (word, found) in [
            ("tpc", Some("tcp")),
            ("rc_verb", Some("rc_verbs")),
            ("cuda", Some("cuda_copy")),
            ("", None),
            ("wlan0", None),
        ] {
            assert_eq!(nearest(word, known), found, "{word}");
        }
    }
}
