//! The variables, taken from the process or made up by a test.

use parking_lot::Mutex;

use super::{Setting, Source, UnknownVariable, Variable, invalid};
use crate::error::Result;

/// A set of variables.
pub(crate) struct Environment<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    names: Vec<String>,
}

impl<'a> Environment<'a> {
    /// Variables looked up by `get`, of which `names` are set.
    pub(crate) fn new(get: &'a dyn Fn(&str) -> Option<String>, names: Vec<String>) -> Self {
        Self { get, names }
    }

    /// Those of this process.
    pub(crate) fn of_process() -> Environment<'static> {
        // What is not UTF-8 gets replacement characters, which no parser takes.
        Environment::new(
            &|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
            std::env::vars_os()
                .map(|(name, _)| name.to_string_lossy().into_owned())
                .collect(),
        )
    }

    /// The names of those that are set.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The value of one that is set and not empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|text| !text.trim().is_empty())
    }

    /// What was given, else the first of `names` that is set and not empty, else the default.
    pub(super) fn choose<T>(
        &self,
        given: Option<T>,
        names: &[&'static str],
        parse: impl Fn(&str) -> Result<T, String>,
        default: impl FnOnce() -> T,
    ) -> Result<Setting<T>> {
        if let Some(value) = given {
            return Ok(Setting {
                value,
                source: Source::Builder,
            });
        }
        for &name in names {
            debug_assert!(Variable::find(name).is_some(), "{name} is not in the table");
            let Some(text) = self.get(name) else {
                continue;
            };
            let value = parse(&text).map_err(|why| invalid(format!("{name}={text}: {why}")))?;
            return Ok(Setting {
                value,
                source: Source::Env(name),
            });
        }
        Ok(Setting {
            value: default(),
            source: Source::Default,
        })
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
