//! The options of a context, but those of RDMA devices: one table.

use std::time::Duration;

use super::{
    devices::NetDevices,
    environment::{Environment, Names},
    limits::Limits,
    memory,
    progress::Progress,
    setting::Setting,
    table::{Told, options},
    transports::TransportSet,
    value::{self, RendezvousScheme, RendezvousThreshold, Text},
};
use crate::{
    error::Result,
    memory::{MonitorKind, RegistrationCacheOptions},
};

options! {
    /// Options, complete and possible.
    struct Options;

    /// What the builder was given; `None` leaves the choice to the environment.
    given Overrides {
        /// Transports that may be used.
        transports: TransportSet = |names| TransportSet::all(names.own),
            "WHARF_TLS" or "UCX_TLS" by TransportSet::read;
        /// Interfaces that may be used.
        net_devices: NetDevices = |_| NetDevices::default(),
            "WHARF_NET_DEVICES" or "UCX_NET_DEVICES"
                by NetDevices::read;
        /// How waiting is done.
        progress: Progress = |_| Progress::default(),
            "WHARF_PROGRESS" by |word| Progress::parse(word.text);
        /// From which size on a tag message goes by rendezvous.
        rendezvous_threshold: RendezvousThreshold = |_| RendezvousThreshold::default(),
            "WHARF_RNDV_THRESH" or "UCX_RNDV_THRESH"
                by |word| RendezvousThreshold::parse(word.text);
        /// For the whole of a connect, positive.
        connect_timeout: Duration = |_| Duration::from_secs(10),
            "WHARF_CONNECT_TIMEOUT" by |word| value::time(word.text);
        /// For a listener's part of the handshake, positive.
        handshake_timeout: Duration = |_| Duration::from_secs(5),
            "WHARF_HANDSHAKE_TIMEOUT" by |word| value::time(word.text);
        /// Between keepalive probes on connections that need them, positive; `None`: none.
        keepalive: Option<Duration> = |_| Some(Duration::from_secs(10)),
            "WHARF_KEEPALIVE_INTERVAL" or "UCX_KEEPALIVE_INTERVAL" by value::keepalive;
        /// Frames over TCP carry checksums.
        tcp_checksums: bool = |_| false,
            "WHARF_TCP_CHECKSUMS" by |word| value::yes_no(word.text);
        /// Learn of a peer's death by pidfd.
        pidfd: bool = |_| true,
            "WHARF_PIDFD" by |word| value::yes_no(word.text);
        /// Copy between processes by `process_vm_readv` and `process_vm_writev`.
        cma: bool = |_| true,
            "WHARF_CMA" by |word| value::yes_no(word.text);
        /// Transfers of device memory may stop in host memory where no path reaches both ends.
        staging: bool = |_| true,
            "WHARF_STAGING" by |word| value::yes_no(word.text);
        /// What peers may make a worker hold.
        limits: Limits = |_| Limits::default(),
            "WHARF_LIMITS" by |word| Limits::parse(word.text);
        /// Who tells when memory goes away.
        memory_monitor: MonitorKind = |_| MonitorKind::default(),
            "WHARF_MEM_MONITOR" or "UCX_MEM_EVENTS" by memory::monitor;
        /// How a long message travels where network devices reach memory, or one process the other's.
        rendezvous_scheme: RendezvousScheme = |_| RendezvousScheme::default(),
            "WHARF_RNDV_SCHEME" or "UCX_RNDV_SCHEME" by RendezvousScheme::read;
        /// Operations posted on one endpoint, at least 1.
        ops_window: usize = |_| 4096,
            "WHARF_OPS_WINDOW" by |word| value::count(word.text);
        /// Keep registrations.
        rcache: bool = |_| true,
            "WHARF_RCACHE_ENABLE" or "UCX_RCACHE_ENABLE" by |word| memory::enable(word.text);
        /// Registrations that are kept, at least 1; `None`: the cache's default. So the others.
        rcache_max_regions: Option<usize> = |_| None,
            "WHARF_RCACHE_MAX_REGIONS" or "UCX_RCACHE_MAX_REGIONS"
                by memory::count,
            told by |limit| {
                let default = RegistrationCacheOptions::default().max_regions;
                memory::told(*limit, u64::try_from(default).unwrap_or(u64::MAX))
            };
        /// Bytes in registrations that are kept.
        rcache_max_size: Option<usize> = |_| None,
            "WHARF_RCACHE_MAX_SIZE" or "UCX_RCACHE_MAX_SIZE" by memory::size,
            told by |limit| memory::told(*limit, RegistrationCacheOptions::default().max_bytes);
        /// Bytes that may wait to be deregistered.
        rcache_max_unreleased: Option<usize> = |_| None,
            "WHARF_RCACHE_MAX_UNRELEASED" or "UCX_RCACHE_MAX_UNRELEASED"
                by memory::size,
            told by |limit| memory::told(*limit, RegistrationCacheOptions::default().max_unreleased);
    }
}
