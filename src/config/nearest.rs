//! The word that a misspelt one most likely meant.

/// The one of `known` that `word` most likely meant, as the end of a sentence; empty when none is near.
pub(super) fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"))
}

/// The one of `known` that `word` most likely meant, if one is near.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let score = |name: &str| strsim::normalized_damerau_levenshtein(word, name);
    known
        .into_iter()
        .max_by(|a, b| score(a).total_cmp(&score(b)))
        .filter(|name| score(name) >= 0.4)
}
