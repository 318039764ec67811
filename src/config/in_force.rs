//! The configuration in force: what is read, and for people and programs each variable, its value as the variable takes it, and where that came from.

use std::{ops::Deref, time::Duration};

use super::{
    environment::{Environment, Names},
    options::{Options, Overrides},
    rdma::{Rc, RcOverrides},
    setting::{Source, invalid},
    table::Told,
    unknown::{UnknownVariable, is_of_kubernetes, warn_idle, warn_unknown},
    variables::{VARIABLES, Variable},
};
#[cfg(feature = "verbs")]
use crate::driver::rdmacm::Libraries;
use crate::error::Result;

/// All options, complete and possible. Dereferences to those of a context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    options: Options,
    /// How connections over RDMA devices are made.
    pub(crate) rc: Rc,
    /// What other rooms read, as far as it was set.
    pub(crate) others: Vec<Told>,
    /// The libraries of RDMA devices, as far as the builder names them.
    #[cfg(feature = "verbs")]
    pub(crate) libraries: Libraries,
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

    /// Puts together what the builder was given, the environment and the defaults. `names` are those that values may hold.
    /// Errors: `Configuration`: a variable's value is unknown or impossible.
    pub(crate) fn load(
        (given, rc): (Overrides, RcOverrides),
        environment: &Environment<'_>,
        names: Names<'_>,
    ) -> Result<Self> {
        let unknown = UnknownVariable::among(environment);
        warn_unknown(&unknown);
        warn_idle(environment);
        let config = Self {
            options: Options::load(given, environment, names)?,
            rc: Rc::load(rc, environment, names)?,
            others: read_elsewhere(environment),
            #[cfg(feature = "verbs")]
            libraries: Libraries::default(),
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
        self.rc.check()
    }

    /// The libraries that the builder names come before those of variables.
    #[cfg(feature = "verbs")]
    pub(crate) fn with_libraries(mut self, libraries: Libraries) -> Self {
        use crate::driver::{rdmacm, verbs};

        for (name, path) in [
            (verbs::VARIABLE, &libraries.verbs),
            (rdmacm::VARIABLE, &libraries.cm),
        ] {
            if let Some(path) = path {
                self.others.retain(|(other, ..)| *other != name);
                let path = path.display().to_string();
                self.others.push((name, path, Source::Builder));
            }
        }
        self.libraries = libraries;
        self
    }

    /// Every option of a context as text, by its variable.
    pub(super) fn describe(&self) -> Vec<Told> {
        let mut told = self.options.describe();
        told.extend(self.rc.describe());
        told
    }

    /// Every variable, in the table's order.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let rows: Vec<_> = self
            .describe()
            .into_iter()
            .chain(self.others.clone())
            .collect();
        let entry = |variable: &'static Variable| {
            let row = rows.iter().find(|(name, ..)| *name == variable.name);
            let (value, source) = match row {
                Some((_, value, source)) => (Some(value.clone()), *source),
                None => (None, Source::Default),
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
fn read_elsewhere(environment: &Environment<'_>) -> Vec<Told> {
    let own = Config::default().describe();
    VARIABLES
        .iter()
        .filter(|variable| !own.iter().any(|(name, ..)| *name == variable.name))
        .filter(|variable| variable.missing_feature().is_none())
        .filter_map(|variable| {
            let value = environment.get(variable.name)?;
            if is_of_kubernetes(variable.name, &value) {
                return None;
            }
            let value = match variable.name {
                "WHARF_SECRET" => "set".to_owned(),
                // An address has a colon; a unique id holds the group's secret.
                "WHARF_ROOT" if !value.contains(':') => "set, to a unique id".to_owned(),
                _ => value,
            };
            Some((variable.name, value, Source::Env(variable.name)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
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
            Default::default(),
            &Environment::new(&get, names),
            Names {
                interfaces: &interfaces,
                ..Names::NONE
            },
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

    /// A service called `wharf`, and one called `wharf-tls`, in a pod's namespace.
    #[test]
    fn what_kubernetes_sets_is_left_alone() {
        let config = load(&[
            ("WHARF_SERVICE_HOST", "10.0.0.7"),
            ("WHARF_SERVICE_PORT", "7000"),
            ("WHARF_SERVICE_PORT_HTTP", "7000"),
            ("WHARF_PORT", "tcp://10.0.0.7:7000"),
            ("WHARF_PORT_7000_TCP", "tcp://10.0.0.7:7000"),
            ("WHARF_PORT_7000_TCP_PROTO", "tcp"),
            ("WHARF_PORT_7000_TCP_PORT", "7000"),
            ("WHARF_PORT_7000_TCP_ADDR", "10.0.0.7"),
            ("WHARF_TLS_SERVICE_HOST", "10.0.0.8"),
            ("WHARF_TLS_PORT", "tcp://10.0.0.8:7000"),
            ("WHARF_TLS_PORT_7000_UDP_ADDR", "10.0.0.8"),
        ])
        .expect("nobody's mistake");
        assert!(config.unknown.is_empty(), "{:?}", config.unknown);
        let entries = config.entries();
        let port = entries
            .iter()
            .find(|entry| entry.variable.name == "WHARF_PORT");
        assert_eq!(port.expect("an entry").value, None);
        // A port, and misspellings.
        let config = load(&[
            ("WHARF_PORT", "7000"),
            ("WHARF_PORT_X", "1"),
            ("WHARF_TLS_PORT", "1"),
        ]);
        let config = config.expect("possible");
        assert_eq!(config.unknown.len(), 2, "{:?}", config.unknown);
        let port = ("WHARF_PORT", "7000".to_owned(), Source::Env("WHARF_PORT"));
        assert_eq!(config.others, [port]);
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
