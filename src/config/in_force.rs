//! The configuration in force, for people and programs: each variable, its value as the variable takes it, and where that came from.

use std::time::Duration;

use super::{
    Config, Environment, Limits, NetDevices, Progress, RendezvousScheme, RendezvousThreshold,
    Setting, Source, Threshold, TransportSet, VARIABLES, Variable, nearest,
};
use crate::{
    memory::{MonitorKind, RegistrationCacheOptions},
    transport::verbs::RelaxedOrdering,
};

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

impl Config {
    /// Every option of a context as text, by its variable.
    pub(super) fn describe(&self) -> Vec<(&'static str, String, Source)> {
        fn row<T: Text>(
            name: &'static str,
            setting: &Setting<T>,
        ) -> (&'static str, String, Source) {
            (name, setting.value.text(), setting.source)
        }
        // Where nothing was set, what the cache takes then.
        fn limit(
            name: &'static str,
            setting: &Setting<Option<usize>>,
            default: u64,
        ) -> (&'static str, String, Source) {
            let text = match setting.value {
                Some(usize::MAX) => "inf".to_owned(),
                Some(count) => count.to_string(),
                None => default.to_string(),
            };
            (name, text, setting.source)
        }
        let cache = RegistrationCacheOptions::default();
        let regions = u64::try_from(cache.max_regions).unwrap_or(u64::MAX);
        let mut rows = vec![
            row("WHARF_TLS", &self.transports),
            row("WHARF_NET_DEVICES", &self.net_devices),
            row("WHARF_PROGRESS", &self.progress),
            row("WHARF_RNDV_THRESH", &self.rendezvous_threshold),
            row("WHARF_RNDV_SCHEME", &self.rendezvous_scheme),
            row("WHARF_CONNECT_TIMEOUT", &self.connect_timeout),
            row("WHARF_HANDSHAKE_TIMEOUT", &self.handshake_timeout),
            row("WHARF_KEEPALIVE_INTERVAL", &self.keepalive),
            row("WHARF_TCP_CHECKSUMS", &self.tcp_checksums),
            row("WHARF_PIDFD", &self.pidfd),
            row("WHARF_CMA", &self.cma),
            row("WHARF_STAGING", &self.staging),
            row("WHARF_OPS_WINDOW", &self.ops_window),
            row("WHARF_LIMITS", &self.limits),
            row("WHARF_MEM_MONITOR", &self.memory_monitor),
            row("WHARF_RCACHE_ENABLE", &self.rcache),
            limit(
                "WHARF_RCACHE_MAX_REGIONS",
                &self.rcache_max_regions,
                regions,
            ),
            limit(
                "WHARF_RCACHE_MAX_SIZE",
                &self.rcache_max_size,
                cache.max_bytes,
            ),
            limit(
                "WHARF_RCACHE_MAX_UNRELEASED",
                &self.rcache_max_unreleased,
                cache.max_unreleased,
            ),
            row("WHARF_IB_PCI_RELAXED_ORDERING", &self.relaxed_ordering),
            row("WHARF_IB_ON_DEMAND", &self.on_demand),
        ];
        rows.extend(self.rc.describe());
        rows
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
pub(super) fn read_elsewhere(environment: &Environment<'_>) -> Vec<(&'static str, String)> {
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

/// A value as its variable takes it.
trait Text {
    fn text(&self) -> String;
}

impl Text for TransportSet {
    fn text(&self) -> String {
        let names: Vec<&str> = self.names().chain(self.absent()).collect();
        names.join(",")
    }
}

impl Text for Limits {
    fn text(&self) -> String {
        Self::text(self)
    }
}

impl Text for NetDevices {
    fn text(&self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Only(names) => names.join(","),
            Self::Except(names) => format!("^{}", names.join(",")),
        }
    }
}

impl Text for Progress {
    fn text(&self) -> String {
        match self {
            Self::Adaptive => "adaptive".to_owned(),
            Self::Spin(time) => format!("spin:{time:?}"),
            Self::Busy => "busy".to_owned(),
            Self::EventDriven => "event".to_owned(),
            Self::Thread => "thread".to_owned(),
        }
    }
}

impl Text for Threshold {
    fn text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Bytes(bytes) => bytes.to_string(),
            Self::Never => "inf".to_owned(),
        }
    }
}

impl Text for RendezvousThreshold {
    fn text(&self) -> String {
        match self.intra == self.inter {
            true => self.intra.text(),
            false => format!("intra:{},inter:{}", self.intra.text(), self.inter.text()),
        }
    }
}

impl Text for RendezvousScheme {
    fn text(&self) -> String {
        let text = match self {
            Self::Auto => "auto",
            Self::Get => "get_zcopy",
            Self::Put => "put_zcopy",
            Self::Messages => "am",
        };
        text.to_owned()
    }
}

impl Text for RelaxedOrdering {
    fn text(&self) -> String {
        let text = match self {
            Self::Auto => "auto",
            Self::On => "y",
            Self::Off => "n",
        };
        text.to_owned()
    }
}

impl Text for MonitorKind {
    fn text(&self) -> String {
        self.name().to_owned()
    }
}

impl Text for Duration {
    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl Text for Option<Duration> {
    fn text(&self) -> String {
        self.map_or_else(|| "inf".to_owned(), |time| time.text())
    }
}

impl Text for bool {
    fn text(&self) -> String {
        if *self { "y" } else { "n" }.to_owned()
    }
}

impl Text for usize {
    fn text(&self) -> String {
        self.to_string()
    }
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
