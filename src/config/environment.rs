//! The variables, taken from the process or made up by a test.

use super::{Setting, Source, did_you_mean, invalid};
use crate::error::Result;

/// Every `WHARF_` variable that there is.
const KNOWN: [&str; 18] = [
    "WHARF_TLS",
    "WHARF_NET_DEVICES",
    "WHARF_PROGRESS",
    "WHARF_RNDV_THRESH",
    "WHARF_CONNECT_TIMEOUT",
    "WHARF_HANDSHAKE_TIMEOUT",
    "WHARF_KEEPALIVE_INTERVAL",
    "WHARF_PIDFD",
    "WHARF_CMA",
    "WHARF_STAGING",
    "WHARF_OPS_WINDOW",
    "WHARF_MEM_MONITOR",
    "WHARF_RCACHE_ENABLE",
    "WHARF_RCACHE_MAX_REGIONS",
    "WHARF_RCACHE_MAX_SIZE",
    "WHARF_RCACHE_MAX_UNRELEASED",
    "WHARF_LIBCUDA",
    "WHARF_LIBGDRAPI",
];

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

    /// Refuses a `WHARF_` variable that does not exist: it is a misspelling, and would silently do nothing.
    pub(super) fn refuse_unknown(&self) -> Result<()> {
        let stranger =
            |name: &&String| name.starts_with("WHARF_") && !KNOWN.contains(&name.as_str());
        match self.names.iter().find(stranger) {
            Some(name) => Err(invalid(format!(
                "{name} is not a variable of wharf{}",
                did_you_mean(name, KNOWN)
            ))),
            None => Ok(()),
        }
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
            debug_assert!(
                KNOWN.contains(&name) || name.starts_with("UCX_"),
                "{name} is not in the list"
            );
            let Some(text) = (self.get)(name).filter(|text| !text.trim().is_empty()) else {
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
