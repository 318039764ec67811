//! How a process was asked to behave: the environment variables that there are, and what is in force.
//!
//! A value set on the builder beats `WHARF_*`, which beats UCX's variable of the same meaning, which beats the default. An empty variable counts
//! as not set. [`VARIABLES`] has all of them. A `WHARF_` variable that is not among them is a misspelling: it is told by a `tracing` warning (target
//! `wharf::config`), with the nearest name, once. What is in force, and where it came from, [`Context::configuration`](crate::Context::configuration)
//! tells, and `wharf info --config`.
//!
//! ```
//! # fn main() -> wharf::Result<()> {
//! use wharf::{Context, config::Source};
//!
//! let context = Context::builder().transports("shm,tcp")?.build()?;
//! let set = context.configuration().into_iter().filter(|entry| entry.source != Source::Default);
//! for entry in set {
//!     println!("{} = {:?}, from: {}", entry.variable.name, entry.value, entry.source);
//! }
//! # Ok(())
//! # }
//! ```

// Comes in: what the builder was given, and the environment. Goes out: `Config`, in which every value is possible and says where it came from. Reading it
// has no effect; what the system can really do is found out by `context`. Uses `error` and the names in `transport`.
// Tests: beside each file, with an environment made up by the test.

mod devices;
mod environment;
mod in_force;
mod limits;
mod memory;
mod progress;
mod rdma;
mod transports;
mod value;
mod variables;

use std::{fmt, ops::Deref, time::Duration};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::MonitorKind,
    transport::verbs::RelaxedOrdering,
};

pub(crate) use devices::{NetDevices, interface_addresses, system_interfaces};
pub(crate) use environment::Environment;
pub use in_force::{Entry, UnknownVariable};
pub use limits::{Limits, Quota};
pub use progress::Progress;
pub(crate) use transports::TransportSet;
pub(crate) use value::{RendezvousScheme, RendezvousThreshold, Threshold};
pub use variables::{VARIABLES, Variable};

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Nobody asked for anything else.
    Default,
    /// The program, by the builder.
    Builder,
    /// This variable.
    Env(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Builder => f.write_str("builder"),
            Self::Env(name) => f.write_str(name),
        }
    }
}

/// A value and where it came from. Dereferences to the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    pub(crate) value: T,
    pub(crate) source: Source,
}

impl<T> Deref for Setting<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> From<T> for Setting<T> {
    /// A default.
    fn from(value: T) -> Self {
        Self {
            value,
            source: Source::Default,
        }
    }
}

/// All options, complete and possible.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Transports that may be used.
    pub(crate) transports: Setting<TransportSet>,
    /// Interfaces that may be used.
    pub(crate) net_devices: Setting<NetDevices>,
    /// How waiting is done.
    pub(crate) progress: Setting<Progress>,
    /// From which size on a tag message goes by rendezvous.
    pub(crate) rendezvous_threshold: Setting<RendezvousThreshold>,
    /// For the whole of a connect, positive.
    pub(crate) connect_timeout: Setting<Duration>,
    /// For a listener's part of the handshake, positive.
    pub(crate) handshake_timeout: Setting<Duration>,
    /// Between keepalive probes on connections that need them, positive; `None`: none.
    pub(crate) keepalive: Setting<Option<Duration>>,
    /// Frames over TCP carry checksums.
    pub(crate) tcp_checksums: Setting<bool>,
    /// Learn of a peer's death by pidfd.
    pub(crate) pidfd: Setting<bool>,
    /// Copy between processes by `process_vm_readv` and `process_vm_writev`.
    pub(crate) cma: Setting<bool>,
    /// Transfers of device memory may stop in host memory where no path reaches both ends.
    pub(crate) staging: Setting<bool>,
    /// Operations posted on one endpoint, at least 1.
    pub(crate) ops_window: Setting<usize>,
    /// What peers may make a worker hold.
    pub(crate) limits: Setting<Limits>,
    /// Who tells when memory goes away.
    pub(crate) memory_monitor: Setting<MonitorKind>,
    /// How connections over RDMA devices are made.
    pub(crate) rc: rdma::Rc,
    /// Keep registrations.
    pub(crate) rcache: Setting<bool>,
    /// Registrations that are kept, at least 1; `None`: the cache's default. So the others.
    pub(crate) rcache_max_regions: Setting<Option<usize>>,
    /// Bytes in registrations that are kept.
    pub(crate) rcache_max_size: Setting<Option<usize>>,
    /// Bytes that may wait to be deregistered.
    pub(crate) rcache_max_unreleased: Setting<Option<usize>>,
    /// How a long message travels where network devices reach memory, or one process the other's.
    pub(crate) rendezvous_scheme: Setting<RendezvousScheme>,
    /// When writes of network devices may overtake each other.
    pub(crate) relaxed_ordering: Setting<RelaxedOrdering>,
    /// Network devices fetch pages when they want them.
    pub(crate) on_demand: Setting<bool>,
    /// Variables that other rooms read, and that were set.
    pub(crate) others: Vec<(&'static str, String)>,
    /// Variables that nobody reads.
    pub(crate) unknown: Vec<UnknownVariable>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            transports: TransportSet::default().into(),
            net_devices: NetDevices::default().into(),
            progress: Progress::default().into(),
            rendezvous_threshold: RendezvousThreshold::default().into(),
            connect_timeout: Duration::from_secs(10).into(),
            handshake_timeout: Duration::from_secs(5).into(),
            keepalive: Some(Duration::from_secs(10)).into(),
            tcp_checksums: false.into(),
            pidfd: true.into(),
            cma: true.into(),
            staging: true.into(),
            ops_window: 4096.into(),
            limits: Limits::default().into(),
            memory_monitor: MonitorKind::default().into(),
            rc: rdma::Rc::default(),
            rcache: true.into(),
            rcache_max_regions: None.into(),
            rcache_max_size: None.into(),
            rcache_max_unreleased: None.into(),
            rendezvous_scheme: RendezvousScheme::default().into(),
            relaxed_ordering: RelaxedOrdering::default().into(),
            on_demand: false.into(),
            others: Vec::new(),
            unknown: Vec::new(),
        }
    }
}

/// What the builder was given; `None` leaves the choice to the environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) transports: Option<TransportSet>,
    pub(crate) net_devices: Option<NetDevices>,
    pub(crate) progress: Option<Progress>,
    pub(crate) rendezvous_threshold: Option<RendezvousThreshold>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) handshake_timeout: Option<Duration>,
    pub(crate) keepalive: Option<Option<Duration>>,
    pub(crate) tcp_checksums: Option<bool>,
    pub(crate) pidfd: Option<bool>,
    pub(crate) cma: Option<bool>,
    pub(crate) staging: Option<bool>,
    pub(crate) memory_monitor: Option<MonitorKind>,
    pub(crate) limits: Option<Limits>,
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
        environment::warn_unknown(&unknown);
        let default = Self::default();
        let memory_monitor = memory::monitor(&given, environment)?;
        let config = Self {
            transports: environment.choose(
                given.transports,
                &["WHARF_TLS", "UCX_TLS"],
                |text| TransportSet::parse(text, own),
                || TransportSet::all(own),
            )?,
            net_devices: environment.choose(
                given.net_devices,
                &["WHARF_NET_DEVICES", "UCX_NET_DEVICES"],
                |text| NetDevices::parse(text, interfaces),
                NetDevices::default,
            )?,
            progress: environment.choose(
                given.progress,
                &["WHARF_PROGRESS"],
                Progress::parse,
                Progress::default,
            )?,
            rendezvous_threshold: environment.choose(
                given.rendezvous_threshold,
                &["WHARF_RNDV_THRESH", "UCX_RNDV_THRESH"],
                RendezvousThreshold::parse,
                RendezvousThreshold::default,
            )?,
            connect_timeout: environment.choose(
                given.connect_timeout,
                &["WHARF_CONNECT_TIMEOUT"],
                value::time,
                || *default.connect_timeout,
            )?,
            handshake_timeout: environment.choose(
                given.handshake_timeout,
                &["WHARF_HANDSHAKE_TIMEOUT"],
                value::time,
                || *default.handshake_timeout,
            )?,
            keepalive: environment.choose(
                given.keepalive,
                &["WHARF_KEEPALIVE_INTERVAL", "UCX_KEEPALIVE_INTERVAL"],
                value::time_or_never,
                || *default.keepalive,
            )?,
            tcp_checksums: environment.choose(
                given.tcp_checksums,
                &["WHARF_TCP_CHECKSUMS"],
                value::yes_no,
                || *default.tcp_checksums,
            )?,
            pidfd: environment.choose(given.pidfd, &["WHARF_PIDFD"], value::yes_no, || {
                *default.pidfd
            })?,
            cma: environment.choose(given.cma, &["WHARF_CMA"], value::yes_no, || *default.cma)?,
            staging: environment.choose(
                given.staging,
                &["WHARF_STAGING"],
                value::yes_no,
                || *default.staging,
            )?,
            ops_window: environment.choose(None, &["WHARF_OPS_WINDOW"], value::count, || {
                *default.ops_window
            })?,
            limits: environment.choose(
                given.limits,
                &["WHARF_LIMITS"],
                Limits::parse,
                Limits::default,
            )?,
            memory_monitor,
            rc: rdma::Rc::load(environment)?,
            rcache: environment.choose(
                None,
                &["WHARF_RCACHE_ENABLE", "UCX_RCACHE_ENABLE"],
                memory::enable,
                || *default.rcache,
            )?,
            rcache_max_regions: environment.choose(
                None,
                &["WHARF_RCACHE_MAX_REGIONS", "UCX_RCACHE_MAX_REGIONS"],
                memory::count,
                || None,
            )?,
            rcache_max_size: environment.choose(
                None,
                &["WHARF_RCACHE_MAX_SIZE", "UCX_RCACHE_MAX_SIZE"],
                memory::size,
                || None,
            )?,
            rcache_max_unreleased: environment.choose(
                None,
                &["WHARF_RCACHE_MAX_UNRELEASED", "UCX_RCACHE_MAX_UNRELEASED"],
                memory::size,
                || None,
            )?,
            rendezvous_scheme: environment.choose(
                None,
                &["WHARF_RNDV_SCHEME", "UCX_RNDV_SCHEME"],
                RendezvousScheme::parse,
                RendezvousScheme::default,
            )?,
            relaxed_ordering: environment.choose(
                None,
                &[
                    "WHARF_IB_PCI_RELAXED_ORDERING",
                    "UCX_IB_PCI_RELAXED_ORDERING",
                ],
                memory::relaxed_ordering,
                RelaxedOrdering::default,
            )?,
            on_demand: environment.choose(None, &["WHARF_IB_ON_DEMAND"], value::yes_no, || {
                *default.on_demand
            })?,
            others: in_force::read_elsewhere(environment),
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
}

/// An error about the configuration.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, message.into()).during(Operation::Configure)
}

/// The one of `known` that `word` most likely meant, as the end of a sentence; empty when none is near.
fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"))
}

/// The one of `known` that `word` most likely meant, if one is near.
fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let score = |name: &str| strsim::normalized_damerau_levenshtein(word, name);
    known
        .into_iter()
        .max_by(|a, b| score(a).total_cmp(&score(b)))
        .filter(|name| score(name) >= 0.4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(given: Overrides, variables: &[(&str, &str)]) -> Result<Config> {
        let get = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let names = variables.iter().map(|(key, _)| (*key).to_owned()).collect();
        let interfaces = || Ok(vec!["lo".to_owned(), "eth0".to_owned()]);
        Config::load(given, &Environment::new(&get, names), &[], &interfaces)
    }

    fn message(variables: &[(&str, &str)]) -> String {
        let error = load(Overrides::default(), variables).expect_err("must be refused");
        assert_eq!(error.kind(), ErrorKind::Configuration);
        error.to_string()
    }

    #[test]
    fn defaults_without_environment() {
        let config = load(Overrides::default(), &[]).unwrap();
        assert!(
            config
                .describe()
                .iter()
                .all(|(_, _, source)| *source == Source::Default)
        );
        let names = config.transports.names().collect::<Vec<_>>();
        assert_eq!(names, crate::transport::registry::NAMES);
        assert_eq!(*config.handshake_timeout, Duration::from_secs(5));
        assert_eq!(*config.ops_window, 4096);
        let plain = Config::default();
        assert_eq!(
            format!("{:?}", plain.describe()),
            format!("{:?}", config.describe())
        );
    }

    #[test]
    fn memory() {
        let with = |variables: &[_]| load(Overrides::default(), variables).unwrap();
        for (variables, monitor) in [
            (&[("WHARF_MEM_MONITOR", "uffd")][..], MonitorKind::Uffd),
            (&[("UCX_MEM_EVENTS", "n")], MonitorKind::None),
            (&[("UCX_MEM_EVENTS", "y")], MonitorKind::Auto),
            (
                &[("UCX_MEM_EVENTS", "n"), ("WHARF_MEM_MONITOR", "auto")],
                MonitorKind::Auto,
            ),
        ] {
            assert_eq!(*with(variables).memory_monitor, monitor, "{variables:?}");
        }
        let config = with(&[
            ("UCX_RCACHE_ENABLE", "try"),
            ("WHARF_RCACHE_MAX_REGIONS", "8"),
            ("UCX_RCACHE_MAX_REGIONS", "inf"),
            ("WHARF_RCACHE_MAX_SIZE", "64M"),
            ("UCX_RCACHE_MAX_UNRELEASED", "inf"),
        ]);
        assert!(*config.rcache);
        assert_eq!(*config.rcache_max_regions, Some(8));
        assert_eq!(*config.rcache_max_size, Some(64 << 20));
        assert_eq!(*config.rcache_max_unreleased, Some(usize::MAX));
        assert!(!*with(&[("WHARF_RCACHE_ENABLE", "n")]).rcache);
        for bad in [
            ("WHARF_MEM_MONITOR", "ufd"),
            ("UCX_MEM_EVENTS", "uffd"),
            ("WHARF_RCACHE_ENABLE", "maybe"),
            ("WHARF_RCACHE_MAX_REGIONS", "0"),
            ("WHARF_RCACHE_MAX_REGIONS", "4K"),
            ("WHARF_RCACHE_MAX_SIZE", "-1"),
            ("UCX_RCACHE_MAX_UNRELEASED", "much"),
        ] {
            assert!(message(&[bad]).contains(bad.0), "{bad:?}");
        }
    }

    #[test]
    fn builder_beats_wharf_beats_ucx() {
        let ucx = ("UCX_TLS", "tcp");
        let wharf = ("WHARF_TLS", "shm");
        let config = load(Overrides::default(), &[ucx]).unwrap();
        assert_eq!(config.transports.source, Source::Env("UCX_TLS"));
        assert!(config.transports.allows("tcp") && !config.transports.allows("shm"));
        let config = load(Overrides::default(), &[ucx, wharf]).unwrap();
        assert_eq!(config.transports.source, Source::Env("WHARF_TLS"));
        assert!(config.transports.allows("shm") && !config.transports.allows("tcp"));
        let given = Overrides {
            transports: Some(TransportSet::parse("self", &[]).unwrap()),
            ..Overrides::default()
        };
        let config = load(given, &[ucx, wharf]).unwrap();
        assert_eq!(config.transports.source, Source::Builder);
        assert_eq!(config.transports.names().collect::<Vec<_>>(), ["self"]);
    }

    #[test]
    fn empty_is_not_set() {
        let config = load(
            Overrides::default(),
            &[("WHARF_TLS", ""), ("UCX_TLS", "self")],
        )
        .unwrap();
        assert_eq!(config.transports.source, Source::Env("UCX_TLS"));
    }

    #[test]
    fn every_variable_is_read() {
        let variables = [
            ("WHARF_NET_DEVICES", "lo"),
            ("WHARF_PROGRESS", "spin:20us"),
            ("WHARF_RNDV_THRESH", "8K"),
            ("WHARF_CONNECT_TIMEOUT", "2"),
            ("WHARF_HANDSHAKE_TIMEOUT", "250ms"),
            ("WHARF_KEEPALIVE_INTERVAL", "inf"),
            ("WHARF_TCP_CHECKSUMS", "y"),
            ("WHARF_PIDFD", "n"),
            ("WHARF_CMA", "no"),
            ("WHARF_STAGING", "n"),
            ("WHARF_OPS_WINDOW", "16"),
            ("WHARF_LIMITS", "worker.connections=9"),
            ("WHARF_MEM_MONITOR", "none"),
            ("WHARF_RCACHE_ENABLE", "n"),
            ("WHARF_RCACHE_MAX_REGIONS", "8"),
            ("WHARF_RCACHE_MAX_SIZE", "inf"),
            ("WHARF_RCACHE_MAX_UNRELEASED", "1G"),
            ("WHARF_RNDV_SCHEME", "put_zcopy"),
            ("WHARF_IB_PCI_RELAXED_ORDERING", "off"),
            ("WHARF_IB_ON_DEMAND", "y"),
            ("WHARF_RC_TIMEOUT", "100ms"),
            ("WHARF_RC_RETRY_COUNT", "3"),
            ("WHARF_RC_PATH_MTU", "1024"),
            ("WHARF_RC_TX_QUEUE_LEN", "64"),
            ("WHARF_IB_GID_INDEX", "1"),
            ("WHARF_TLS", "sm"),
            ("PATH", "/bin"),
            ("UCX_LOG_LEVEL", "info"),
        ];
        let config = load(Overrides::default(), &variables).unwrap();
        assert!(
            config
                .describe()
                .iter()
                .all(|(name, _, source)| *source == Source::Env(name))
        );
        assert_eq!(*config.progress, Progress::Spin(Duration::from_micros(20)));
        assert_eq!(config.rendezvous_threshold.intra, Threshold::Bytes(8192));
        assert_eq!(*config.connect_timeout, Duration::from_secs(2));
        assert_eq!(*config.handshake_timeout, Duration::from_millis(250));
        assert_eq!(*config.keepalive, None);
        assert!(!*config.pidfd && !*config.cma && !*config.staging);
        assert!(*config.tcp_checksums);
        assert_eq!(*config.ops_window, 16);
        assert_eq!(config.limits.worker.connections, 9);
        assert_eq!(*config.rendezvous_scheme, RendezvousScheme::Put);
        assert_eq!(*config.relaxed_ordering, RelaxedOrdering::Off);
        assert!(*config.on_demand);
        let rc = config.rc.options();
        assert_eq!(
            (rc.timeout, rc.retries, rc.sends, rc.gid_index),
            (15, 3, 64, Some(1))
        );
    }

    #[test]
    fn impossible_values_name_the_variable() {
        for variable in [
            ("WHARF_PROGRESS", "bussy"),
            ("WHARF_RNDV_THRESH", "8Q"),
            ("WHARF_CONNECT_TIMEOUT", "-1s"),
            ("WHARF_PIDFD", "maybe"),
            ("WHARF_RNDV_THRESH", "99999999999999999999G"),
            ("WHARF_OPS_WINDOW", "0"),
            ("WHARF_HANDSHAKE_TIMEOUT", "0"),
            ("WHARF_CONNECT_TIMEOUT", "9999999999999999999999999"),
            ("WHARF_TLS", "tpc"),
            ("UCX_TLS", "^tcp,smm"),
            ("UCX_RNDV_SCHEME", "put"),
            ("UCX_IB_PCI_RELAXED_ORDERING", "some"),
            ("WHARF_IB_ON_DEMAND", "try"),
            ("WHARF_NET_DEVICES", "eth1"),
            ("WHARF_RC_RETRY_COUNT", "8"),
            ("UCX_RC_PATH_MTU", "1000"),
            ("UCX_IB_GID_INDEX", "first"),
        ] {
            let text = message(&[variable]);
            assert!(text.contains(variable.0), "{text}");
        }
    }
}
