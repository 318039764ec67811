//! Variables that look like wharf's and are none: misspellings.

use parking_lot::Mutex;

use super::{
    environment::Environment,
    nearest::nearest,
    variables::{VARIABLES, Variable},
};

/// A `WHARF_` variable that is set and that nobody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// The variable that was most likely meant.
    pub nearest: Option<&'static Variable>,
}

impl UnknownVariable {
    /// Of these names those that begin as wharf's do and are none.
    pub(super) fn among(environment: &Environment<'_>) -> Vec<Self> {
        let known = || VARIABLES.iter().map(|variable| variable.name);
        let stranger =
            |name: &&str| name.starts_with("WHARF_") && !known().any(|known| known == *name);
        environment
            .names()
            .filter(stranger)
            .map(|name| Self {
                name: name.to_owned(),
                nearest: nearest(name, known()).and_then(Variable::find),
            })
            .collect()
    }
}

/// Tells of variables that nobody reads: each is a misspelling, and would silently do nothing. Of each once in a process.
pub(super) fn warn_unknown(unknown: &[UnknownVariable]) {
    /// Names that were told of. The environment has an end; who changes it while the process runs hears no more after so many.
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    const MOST: usize = 64;
    for UnknownVariable { name, nearest } in unknown {
        let mut told = TOLD.lock();
        if told.len() >= MOST || told.contains(name) {
            continue;
        }
        told.push(name.clone());
        drop(told);
        match nearest {
            Some(nearest) => tracing::warn!(
                target: "wharf::config",
                "{name} is not a variable of wharf, and does nothing; did you mean {}?",
                nearest.name
            ),
            None => tracing::warn!(
                target: "wharf::config",
                "{name} is not a variable of wharf, and does nothing"
            ),
        }
    }
}
