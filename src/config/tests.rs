//! What the builder, the environment and the defaults make together.

use std::time::Duration;

use super::{
    Config, Environment, Names, Overrides, Progress, RcOverrides, RendezvousScheme, Source,
    TransportSet,
};
use crate::{
    error::{ErrorKind, Result},
    memory::MonitorKind,
    transport::verbs::RelaxedOrdering,
};

fn load(given: Overrides, variables: &[(&str, &str)]) -> Result<Config> {
    let get = |name: &str| {
        variables
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    };
    let names = variables.iter().map(|(key, _)| (*key).to_owned()).collect();
    let interfaces = || Ok(vec!["lo".to_owned(), "eth0".to_owned()]);
    Config::load(
        (given, RcOverrides::default()),
        &Environment::new(&get, names),
        Names {
            interfaces: &interfaces,
            ..Names::NONE
        },
    )
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
    assert_eq!(names, *crate::transport::registry::NAMES);
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
    assert_eq!(config.rendezvous_threshold.intra, Some(8192));
    assert_eq!(*config.connect_timeout, Duration::from_secs(2));
    assert_eq!(*config.handshake_timeout, Duration::from_millis(250));
    assert_eq!(*config.keepalive, None);
    assert!(!*config.pidfd && !*config.cma && !*config.staging);
    assert!(*config.tcp_checksums);
    assert_eq!(*config.ops_window, 16);
    assert_eq!(config.limits.worker.connections, 9);
    assert_eq!(*config.rendezvous_scheme, RendezvousScheme::Put);
    assert_eq!(*config.rc.relaxed_ordering, RelaxedOrdering::Off);
    assert!(*config.rc.on_demand);
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
