//! The configuration in force: what is read, and for people and programs each variable, its value as the variable takes it, and where that came from.

use std::{ops::Deref, time::Duration};

use super::{
    environment::{Environment, Names},
    options::{Options, Overrides},
    rdma::Rc,
    setting::{Source, invalid},
    table::Told,
    unknown::{UnknownVariable, warn_unknown},
    variables::{VARIABLES, Variable},
};
use crate::error::Result;

/// All options, complete and possible. Dereferences to those of a context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    options: Options,
    /// How connections over RDMA devices are made.
    pub(crate) rc: Rc,
    /// Variables that other rooms read, and that were set.
    pub(crate) others: Vec<(&'static str, String)>,
    /// Variables that nobody reads.
    pub(crate) unknown: Vec<UnknownVariable>,
}

impl Deref for Config {
    type Target = Options;

    fn deref(&self) -> &Options {
        &self.options
    }
}

/// An option in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The variable that sets it, with its documentation.
    pub variable: &'static Variable,
    /// Its value, as the variable takes it; `None` where there is none. Of a secret only that it is set.
    pub value: Option<String>,
    /// Where the value came from.
    pub source: Source,
}

impl Config {
    /// Longest time that a timeout may be.
    const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Puts together what the builder was given, the environment and the defaults. `own` are the names of the program's
    /// own transports, `interfaces` lists the machine's.
    ///
    /// # Errors
    /// `Configuration`: a variable's value is unknown or impossible.
    pub(crate) fn load(
        given: Overrides,
        environment: &Environment<'_>,
        own: &[&str],
        interfaces: &dyn Fn() -> Result<Vec<String>>,
    ) -> Result<Self> {
        let unknown = UnknownVariable::among(environment);
        warn_unknown(&unknown);
        let names = Names { own, interfaces };
        let config = Self {
            options: Options::load(given, environment, names)?,
            rc: Rc::load(environment, names)?,
            others: read_elsewhere(environment),
            unknown,
        };
        config.check()?;
        for (name, value, source) in config.describe() {
            if source != Source::Default {
                tracing::debug!(target: "wharf::config", "{name} = {value} (from {source})");
            }
        }
        Ok(config)
    }

    /// Refuses what each parser alone lets pass.
    fn check(&self) -> Result<()> {
        let times = [
            (
                "connect timeout",
                Some(&*self.connect_timeout),
                self.connect_timeout.source,
            ),
            (
                "handshake timeout",
                Some(&*self.handshake_timeout),
                self.handshake_timeout.source,
            ),
            (
                "keepalive interval",
                self.keepalive.as_ref(),
                self.keepalive.source,
            ),
        ];
        for (what, time, source) in times {
            if time.is_some_and(|time| time.is_zero() || *time > Self::MAX_TIME) {
                return Err(invalid(format!(
                    "{what} ({source}): must be above zero and at most 365 days"
                )));
            }
        }
        if *self.ops_window == 0 {
            return Err(invalid(format!(
                "operations window ({}): at least 1",
                self.ops_window.source
            )));
        }
        if *self.rcache_max_regions == Some(0) {
            return Err(invalid(format!(
                "registrations that are kept ({}): at least 1; WHARF_RCACHE_ENABLE=n keeps none",
                self.rcache_max_regions.source
            )));
        }
        Ok(())
    }

    /// Every option of a context as text, by its variable.
    pub(super) fn describe(&self) -> Vec<Told> {
        let mut told = self.options.describe();
        told.extend(self.rc.describe());
        told
    }

    /// Every variable, in the table's order.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let rows = self.describe();
        let entry = |variable: &'static Variable| {
            let row = rows.iter().find(|(name, ..)| *name == variable.name);
            let (value, source) = match row {
                Some((_, value, source)) => (Some(value.clone()), *source),
                None => match self.others.iter().find(|(name, _)| *name == variable.name) {
                    Some((name, value)) => (Some(value.clone()), Source::Env(name)),
                    None => (None, Source::Default),
                },
            };
            Entry {
                variable,
                value,
                source,
            }
        };
        VARIABLES.iter().map(entry).collect()
    }
}

/// The variables that other rooms read, as they are set now; of a secret only that it is.
fn read_elsewhere(environment: &Environment<'_>) -> Vec<(&'static str, String)> {
    let own = Config::default().describe();
    VARIABLES
        .iter()
        .filter(|variable| !own.iter().any(|(name, ..)| *name == variable.name))
        .filter_map(|variable| {
            let value = environment.get(variable.name)?;
            let value = match variable.name {
                "WHARF_SECRET" => "set".to_owned(),
                // An address has a colon; a unique id holds the group's secret.
                "WHARF_ROOT" if !value.contains(':') => "set, to a unique id".to_owned(),
                _ => value,
            };
            Some((variable.name, value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::Overrides, *};
    use crate::error::Result;

    fn load(variables: &[(&str, &str)]) -> Result<Config> {
        let get = |name: &str| {
            let mut set = variables.iter();
            set.find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let names = variables.iter().map(|(key, _)| (*key).to_owned()).collect();
        let interfaces = || Ok(vec!["lo".to_owned(), "eth0".to_owned()]);
        Config::load(
            Overrides::default(),
            &Environment::new(&get, names),
            &[],
            &interfaces,
        )
    }

    fn shown(config: &Config) -> Vec<(&'static str, String)> {
        let rows = config.describe().into_iter();
        rows.map(|(name, value, _)| (name, value)).collect()
    }

    /// What is shown is what the variable takes.
    #[test]
    fn values_are_read_back() {
        let others = [
            ("WHARF_TLS", "^tcp"),
            ("WHARF_NET_DEVICES", "^lo"),
            ("WHARF_PROGRESS", "spin:20us"),
            ("WHARF_RNDV_THRESH", "intra:inf,inter:8K"),
            ("WHARF_RNDV_SCHEME", "put_zcopy"),
            ("WHARF_CONNECT_TIMEOUT", "1.5s"),
            ("WHARF_KEEPALIVE_INTERVAL", "inf"),
            ("WHARF_CMA", "off"),
            ("WHARF_LIMITS", "source.connections=64,worker.requests=inf"),
            ("WHARF_MEM_MONITOR", "uffd"),
            ("WHARF_RCACHE_MAX_REGIONS", "inf"),
            ("WHARF_RCACHE_MAX_SIZE", "1G"),
            ("WHARF_IB_PCI_RELAXED_ORDERING", "on"),
            ("WHARF_IB_GID_INDEX", "3"),
            ("WHARF_RC_PATH_MTU", "1024"),
        ];
        for config in [load(&[]).unwrap(), load(&others).unwrap()] {
            let texts = shown(&config);
            let variables: Vec<(&str, &str)> = texts
                .iter()
                .map(|(name, text)| (*name, text.as_str()))
                .collect();
            let again = load(&variables).expect("what is shown is possible");
            assert_eq!(shown(&again), texts);
        }
    }

    #[test]
    fn every_variable_has_an_entry() {
        let config = load(&[
            ("UCX_TLS", "tcp"),
            ("WHARF_LIBCUDA", "/here/libcuda.so"),
            ("WHARF_SECRET", "Schwertfisch"),
            ("WHARF_ROOT", "00ff00ff"),
            ("WHARF_SERVICE", ""),
        ])
        .unwrap();
        assert!(!format!("{config:?}").contains("00ff00ff"), "{config:?}");
        let entries = config.entries();
        assert_eq!(entries.len(), VARIABLES.len());
        let of = |name: &str| {
            let entry = entries.iter().find(|entry| entry.variable.name == name);
            let entry = entry.expect("an entry");
            (entry.value.as_deref(), entry.source)
        };
        assert_eq!(of("WHARF_TLS"), (Some("tcp"), Source::Env("UCX_TLS")));
        assert_eq!(of("WHARF_OPS_WINDOW"), (Some("4096"), Source::Default));
        assert_eq!(
            of("WHARF_LIBCUDA"),
            (Some("/here/libcuda.so"), Source::Env("WHARF_LIBCUDA"))
        );
        assert_eq!(
            of("WHARF_SECRET"),
            (Some("set"), Source::Env("WHARF_SECRET"))
        );
        assert_eq!(
            of("WHARF_ROOT"),
            (Some("set, to a unique id"), Source::Env("WHARF_ROOT"))
        );
        assert_eq!(of("WHARF_SERVICE"), (None, Source::Default));
        assert!(!format!("{config:?}").contains("Schwert"));
    }

    #[test]
    fn a_misspelling_has_a_nearest_name() {
        let config = load(&[
            ("WHARF_PROGRES", "busy"),
            ("WHARF_ZZZZZZZZZZZZZZZZZZZZZZZZZZZZ", "1"),
            ("WHARF_TLS", "tcp"),
            ("UCX_PROGRES", "1"),
        ])
        .unwrap();
        let mut found: Vec<_> = config
            .unknown
            .iter()
            .map(|unknown| {
                let nearest = unknown.nearest.map(|variable| variable.name);
                (unknown.name.as_str(), nearest)
            })
            .collect();
        found.sort_unstable();
        assert_eq!(
            found,
            [
                ("WHARF_PROGRES", Some("WHARF_PROGRESS")),
                ("WHARF_ZZZZZZZZZZZZZZZZZZZZZZZZZZZZ", None)
            ]
        );
    }
}
