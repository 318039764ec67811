//! The variables, taken from the process or made up by a test.

use super::{
    setting::{Setting, Source, invalid},
    told::warn_once,
    variables::Variable,
};
use crate::error::Result;

/// What a value may name.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    /// The program's own transports.
    pub(crate) own: &'a [&'a str],
    /// Lists the machine's interfaces.
    pub(crate) interfaces: &'a dyn Fn() -> Result<Vec<String>>,
    /// Lists its RDMA devices.
    pub(crate) devices: &'a dyn Fn() -> Vec<String>,
}

impl Names<'_> {
    /// For options that name nothing.
    pub(super) const NONE: Self = Names {
        own: &[],
        interfaces: &|| Ok(Vec::new()),
        devices: &Vec::new,
    };
}

/// A variable that is set.
pub(super) struct Word<'a> {
    pub(super) name: &'static str,
    pub(super) text: &'a str,
    pub(super) names: Names<'a>,
}

impl Word<'_> {
    /// Whether the variable is UCX's: what is legal there never fails here, and what is not here is left out.
    pub(super) fn is_ucx(&self) -> bool {
        self.name.starts_with("UCX_")
    }

    /// A part of the value has no effect here.
    pub(super) fn leave_out(&self, why: &str) {
        warn_once(&format!("{}={}: {why}", self.name, self.text));
    }
}

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

    /// What was given, else the first of `variables` that is set and not empty, else the default.
    pub(super) fn choose<T>(
        &self,
        given: Option<T>,
        variables: &[&'static str],
        parse: fn(&Word<'_>) -> Result<T, String>,
        default: fn(&Names<'_>) -> T,
        names: Names<'_>,
    ) -> Result<Setting<T>> {
        if let Some(value) = given {
            return Ok(Setting {
                value,
                source: Source::Builder,
            });
        }
        for &name in variables {
            debug_assert!(Variable::find(name).is_some(), "{name} is not in the table");
            let Some(text) = self.get(name) else {
                continue;
            };
            let word = Word {
                name,
                text: &text,
                names,
            };
            let value = parse(&word).map_err(|why| invalid(format!("{name}={text}: {why}")))?;
            return Ok(Setting {
                value,
                source: Source::Env(name),
            });
        }
        Ok(Setting {
            value: default(&names),
            source: Source::Default,
        })
    }
}
