//! Building a context: options, then probes.

#[cfg(feature = "verbs")]
use std::path::PathBuf;
use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "verbs")]
use super::memory::device_memory;
use super::{
    admission::{Admission, Admit, IncomingInfo},
    handle::{Context, Inner},
    memory::{Memory, registrations},
    reason::{NOT_BUILT_IN, reason},
};
use crate::{
    config::{
        Config, Environment, Limits, Names, NetDevices, Overrides, Progress, RcOverrides,
        RendezvousScheme, RendezvousThreshold, Source, TransportSet, invalid, system_interfaces,
    },
    error::{Error, ErrorKind, Operation, Result},
    memory::{MemoryDomain, MonitorKind},
    sys::fork,
    trace,
    transport::{
        Accelerator, Reach, Transport, cma,
        loopback::Loopback,
        registry,
        tcp::{Tcp, TcpOptions},
        tls::Tls,
    },
};
#[cfg(feature = "verbs")]
use crate::{
    config::{RelaxedOrdering, path_mtu, rdma_devices},
    driver::rdmacm::Libraries,
    transport::verbs::RcOptions,
};

/// Options of a [`Context`]. What is not set here is taken from `WHARF_*` variables, some of UCX's beneath them, and
/// defaults beneath those ([`config`](crate::config)).
#[derive(Default)]
#[must_use = "nothing is made before `build`"]
#[doc(alias(
    "ucp_config_t",
    "ucp_config_read",
    "ucp_config_modify",
    "ucp_config_release"
))]
pub struct ContextBuilder {
    given: Overrides,
    rc: RcOverrides,
    #[cfg(feature = "verbs")]
    libraries: Libraries,
    secret: Option<Vec<u8>>,
    admit: Option<Admit>,
    tls: Option<Tls>,
    own: Vec<Arc<dyn Transport>>,
    domains: Vec<Arc<dyn MemoryDomain>>,
    accelerators: Vec<Arc<dyn Accelerator>>,
}

impl Context {
    /// Starts to build one. Without any option it takes all transports that work here.
    #[doc(alias = "ucp_init")]
    #[doc(alias("ucp_init_version", "ucp_params_t"))]
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }
}

impl ContextBuilder {
    /// Which transports may be used: UCX's names and aliases with commas between (`"shm,tcp"`), `"all"`, or `^` and those
    /// to leave out (`"^tcp"`). The order does not matter. A transport of one's own is named after
    /// [`transport`](Self::transport) was called. Variables: `WHARF_TLS`, `UCX_TLS`.
    ///
    /// # Errors
    /// `Configuration`: an unknown name, one that was left out of this build (the message says which of the crate's features brings it), or nothing is left.
    #[doc(alias = "UCX_TLS")]
    pub fn transports(mut self, list: &str) -> Result<Self> {
        let parsed = TransportSet::parse(list, &self.own_names());
        self.given.transports =
            Some(parsed.map_err(|why| invalid(format!("transports \"{list}\": {why}")))?);
        Ok(self)
    }

    /// Which network interfaces may be used: names with commas between, `"all"`, or `^` and those to leave out. Workers listen at their addresses alone.
    /// RDMA devices are named in the same way, after `verbs_library` where that is called.
    /// Variables: `WHARF_NET_DEVICES`, `UCX_NET_DEVICES`.
    ///
    /// # Errors
    /// `Configuration`: no such interface, or none is left.
    #[doc(alias = "UCX_NET_DEVICES")]
    pub fn net_devices(mut self, list: &str) -> Result<Self> {
        let names = Names {
            own: &[],
            interfaces: &system_interfaces,
            devices: &|| self.rdma_devices(),
        };
        let parsed = NetDevices::parse(list, &names);
        self.given.net_devices =
            Some(parsed.map_err(|why| invalid(format!("network devices \"{list}\": {why}")))?);
        Ok(self)
    }

    /// How workers wait. Variable: `WHARF_PROGRESS`.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.given.progress = Some(progress);
        self
    }

    /// A secret that both ends of every connection must know. They prove it to each other before they tell anything of
    /// themselves, by a password-authenticated key exchange (CPace): who does not know it can try one guess with each connection, and none
    /// without. Feature `secret`, on by default.
    #[cfg(feature = "secret")]
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// A check of each peer that connects to a worker of this context, to a [listener](crate::Listener) or by a worker's address: after its
    /// handshake, with the [secret](Self::secret) if there is one, and before anything that it asks for is served. Whom it refuses no listener's program
    /// sees. Without it everybody is admitted who knows the secret.
    ///
    /// It is called on a thread of the runtime, and must not block. If it panics the peer is refused.
    ///
    /// ```
    /// # fn main() -> wharf::Result<()> {
    /// use wharf::{Admission, Context};
    ///
    /// let context = Context::builder()
    ///     .admit(|peer| match peer.peer_addr() {
    ///         Some(from) if peer.peer_credentials().is_none() && !from.ip().is_loopback() => {
    ///             Admission::Refuse("from this host only".to_owned())
    ///         }
    ///         _ => Admission::Accept,
    ///     })
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn admit(
        mut self,
        check: impl Fn(&IncomingInfo) -> Admission + Send + Sync + 'static,
    ) -> Self {
        self.admit = Some(Arc::new(check));
        self
    }

    /// Encrypts every TCP connection of this context, made or taken, by rustls: from its first byte, with this crate's own handshake and all that follows
    /// inside. Nothing falls back to plain text: a peer without TLS is refused, and hears why.
    ///
    /// Who is dialled by `host:port` must have a certificate for that host or IP address; for a worker's address see [`Tls::worker_name`]. The chain that a
    /// peer has shown is [`Endpoint::peer_certificates`](crate::Endpoint::peer_certificates) and
    /// [`Incoming::peer_certificates`](crate::Incoming::peer_certificates).
    ///
    /// Processes of one host and one user still go by shared memory, which needs no encryption, and without certificates; leave it out of
    /// [`transports`](Self::transports) where each peer must show one. Other users of the host go by TCP. `rc_verbs` has no encryption and is left out,
    /// with listening and connecting by RDMA address. Transports of one's own are as they are. [The guide](crate::guide::tls) has more.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// From how many bytes on a tag message goes by rendezvous instead of being sent at once. Without it the attributes
    /// of the path decide. It is as well from how many on the reader of a [`ByteStream`](crate::ByteStream) copies a buffer out of the
    /// writer's memory: at least 16 KiB where both map it, 128 KiB where the kernel copies. Variables: `WHARF_RNDV_THRESH`, `UCX_RNDV_THRESH`.
    #[doc(alias = "UCX_RNDV_THRESH")]
    pub fn rendezvous_threshold(mut self, bytes: usize) -> Self {
        self.given.rendezvous_threshold = Some(RendezvousThreshold::same(Some(bytes)));
        self
    }

    /// Time for the whole of a connect; 10 s without. Variable: `WHARF_CONNECT_TIMEOUT`.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.given.connect_timeout = Some(time);
        self
    }

    /// Time that a listener gives a new connection to say who it is; 5 s without. The first bytes have to come within 2 s.
    ///
    /// 128 handshakes may be under way on each listener over TCP, as many over its Unix socket and over RDMA, and three quarters of them for one source
    /// (an IPv4 address, the first 64 bits of an IPv6 address, a user of this host). Who comes when they are takes the place of a peer that
    /// has said nothing for 250 ms, or is not done with a message after a second, and waits while there is none; it is sent away where nothing from its
    /// source came to an end within 2 s.
    /// Variable: `WHARF_HANDSHAKE_TIMEOUT`.
    pub fn handshake_timeout(mut self, time: Duration) -> Self {
        self.given.handshake_timeout = Some(time);
        self
    }

    /// Time between keepalive probes, in whole seconds (rounded up), where a path needs them to notice that the peer's host is gone; 10 s
    /// without.
    ///
    /// Over TCP a connection whose other end has gone silent ends within three times this, idle or not, and nothing of ours wakes up for it. A
    /// process that is stopped on a host that is alive keeps its connections, but for those on which more waits for it than sockets hold:
    /// these end after two and a half times this. Over shared memory the end of a process is seen at once.
    /// Variables: `WHARF_KEEPALIVE_INTERVAL`, `UCX_KEEPALIVE_INTERVAL`.
    #[doc(alias = "UCX_KEEPALIVE_INTERVAL")]
    pub fn keepalive(mut self, interval: Duration) -> Self {
        self.given.keepalive = Some(Some(interval));
        self
    }

    /// Whether frames over TCP carry checksums; without this, none do. Where one end of a connection asks for them, both make and check them.
    ///
    /// TCP's own checksum has 16 bits, and devices on the way make it anew: of the bits that faulty memory there flips, some arrive unnoticed.
    /// With this, a CRC-32 of each frame's header and of its payload is compared; a wrong one ends the connection with `Protocol`, and what it covers is
    /// never delivered as complete. It finds accidents, and keeps out nobody who changes bytes on purpose. Each end reads every byte once more for it.
    /// Variable: `WHARF_TCP_CHECKSUMS`.
    pub fn tcp_checksums(mut self, yes: bool) -> Self {
        self.given.tcp_checksums = Some(yes);
        self
    }

    /// Whether to learn of a peer's death by a pidfd (the default) or only by its socket. Variable: `WHARF_PIDFD`.
    pub fn pidfd(mut self, yes: bool) -> Self {
        self.given.pidfd = Some(yes);
        self
    }

    /// Whether to copy between processes by `process_vm_readv` (the default) or through shared rings only. It takes a peer
    /// [on trust](crate::guide::security#what-cma-takes-on-trust), in two ways. Variable: `WHARF_CMA`.
    pub fn cma(mut self, yes: bool) -> Self {
        self.given.cma = Some(yes);
        self
    }

    /// Transfers of device memory for which no path reaches both ends fail with `Unsupported`, instead of stopping in pinned host memory on the way.
    /// So do blocks of a region with device memory at either end, and lists of several pieces of it.
    /// So does a [copy](crate::Worker::copy) with host memory that the engine does not take: what is not pinned for it, or cannot be. Variable: `WHARF_STAGING` (`n`).
    pub fn forbid_staging(mut self) -> Self {
        self.given.staging = Some(false);
        self
    }

    /// What peers may make a worker of this context hold: bytes and messages that nobody has received, streams that nobody has accepted, requests
    /// that are being served, connections. Variable: `WHARF_LIMITS`.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.given.limits = Some(limits);
        self
    }

    /// Who tells when memory goes away. Without it the first that can be had here. Variables: `WHARF_MEM_MONITOR`, `UCX_MEM_EVENTS`.
    pub fn memory_monitor(mut self, kind: MonitorKind) -> Self {
        self.given.memory_monitor = Some(kind);
        self
    }

    /// How long messages travel where network devices reach memory, or one process the other's. Variables: `WHARF_RNDV_SCHEME`, `UCX_RNDV_SCHEME`.
    #[doc(alias = "UCX_RNDV_SCHEME")]
    pub fn rendezvous_scheme(mut self, scheme: RendezvousScheme) -> Self {
        self.given.rendezvous_scheme = Some(scheme);
        self
    }

    /// Operations that may be posted on one endpoint, at least 1; 4096 without. Variable: `WHARF_OPS_WINDOW`.
    pub fn ops_window(mut self, operations: usize) -> Self {
        self.given.ops_window = Some(operations);
        self
    }

    /// Whether registrations of memory are kept, as they are without this. Variables: `WHARF_RCACHE_ENABLE`, `UCX_RCACHE_ENABLE`.
    #[doc(alias = "UCX_RCACHE_ENABLE")]
    pub fn keep_registrations(mut self, yes: bool) -> Self {
        self.given.rcache = Some(yes);
        self
    }

    /// Registrations that are kept, at least 1. Variables: `WHARF_RCACHE_MAX_REGIONS`, `UCX_RCACHE_MAX_REGIONS`.
    #[doc(alias = "UCX_RCACHE_MAX_REGIONS")]
    pub fn max_registrations(mut self, registrations: usize) -> Self {
        self.given.rcache_max_regions = Some(Some(registrations));
        self
    }

    /// Bytes in registrations that are kept. Variables: `WHARF_RCACHE_MAX_SIZE`, `UCX_RCACHE_MAX_SIZE`.
    #[doc(alias = "UCX_RCACHE_MAX_SIZE")]
    pub fn max_registered(mut self, bytes: usize) -> Self {
        self.given.rcache_max_size = Some(Some(bytes));
        self
    }

    /// Bytes that may wait to be deregistered. Variables: `WHARF_RCACHE_MAX_UNRELEASED`, `UCX_RCACHE_MAX_UNRELEASED`.
    #[doc(alias = "UCX_RCACHE_MAX_UNRELEASED")]
    pub fn max_unreleased(mut self, bytes: usize) -> Self {
        self.given.rcache_max_unreleased = Some(Some(bytes));
        self
    }
}

#[cfg(feature = "verbs")]
impl ContextBuilder {
    /// When writes of network devices may overtake each other. Variables: `WHARF_IB_PCI_RELAXED_ORDERING`, `UCX_IB_PCI_RELAXED_ORDERING`.
    #[doc(alias = "UCX_IB_PCI_RELAXED_ORDERING")]
    pub fn relaxed_ordering(mut self, ordering: RelaxedOrdering) -> Self {
        self.rc.relaxed_ordering = Some(ordering);
        self
    }

    /// Whether network devices fetch pages when they want them, where they can, instead of having them pinned. Variable: `WHARF_IB_ON_DEMAND`.
    pub fn on_demand_paging(mut self, yes: bool) -> Self {
        self.rc.on_demand = Some(yes);
        self
    }

    /// Where the address to use stands in the table of a port of an RDMA device. Variables: `WHARF_IB_GID_INDEX`, `UCX_IB_GID_INDEX`.
    #[doc(alias = "UCX_IB_GID_INDEX")]
    pub fn gid_index(mut self, index: u8) -> Self {
        self.rc.gid_index = Some(Some(index));
        self
    }

    /// How long a packet of `rc_verbs` may go unanswered before it is sent again: above zero, up to two hours. Variables: `WHARF_RC_TIMEOUT`,
    /// `UCX_RC_TIMEOUT`.
    #[doc(alias = "UCX_RC_TIMEOUT")]
    pub fn rc_timeout(mut self, time: Duration) -> Self {
        self.rc.timeout = Some(time);
        self
    }

    /// How often such a packet is sent again before the peer is given up, at most 7. Variables: `WHARF_RC_RETRY_COUNT`, `UCX_RC_RETRY_COUNT`.
    #[doc(alias = "UCX_RC_RETRY_COUNT")]
    pub fn rc_retries(mut self, retries: u8) -> Self {
        self.rc.retries = Some(retries);
        self
    }

    /// Bytes of the largest packets of `rc_verbs`; as many as both ports take without. Variables: `WHARF_RC_PATH_MTU`, `UCX_RC_PATH_MTU`.
    ///
    /// # Errors
    /// `Configuration`: other than a power of two from 256 to 4096.
    #[doc(alias = "UCX_RC_PATH_MTU")]
    pub fn rc_path_mtu(mut self, bytes: u32) -> Result<Self> {
        let mtu = path_mtu(&bytes.to_string());
        self.rc.mtu = Some(mtu.map_err(|why| invalid(format!("path MTU {bytes}: {why}")))?);
        Ok(self)
    }

    /// Messages of a connection of `rc_verbs` that may be on their way to the device, 32 to 1024. Variables: `WHARF_RC_TX_QUEUE_LEN`,
    /// `UCX_RC_TX_QUEUE_LEN`.
    #[doc(alias = "UCX_RC_TX_QUEUE_LEN")]
    pub fn rc_send_queue(mut self, messages: usize) -> Self {
        self.rc.sends = Some(messages);
        self
    }

    /// The library of InfiniBand and RoCE: this file, and no other is looked for. Loaded when the context is built, or by
    /// [`net_devices`](Self::net_devices) for names that are no interface's. Variable: `WHARF_LIBIBVERBS`.
    pub fn verbs_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.libraries.verbs = Some(path.into());
        self
    }

    /// The library of connections by RDMA address: this file, and no other is looked for. It has to use the libibverbs that the context uses. Loaded by the
    /// first [`connect_rdma`](crate::Worker::connect_rdma) or [`listen_rdma`](crate::Worker::listen_rdma). Variable: `WHARF_LIBRDMACM`.
    pub fn rdmacm_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.libraries.cm = Some(path.into());
        self
    }
}

impl ContextBuilder {
    /// Adds an expert for some types of memory. Those that were added first are asked first.
    pub fn memory_domain(mut self, domain: Arc<dyn MemoryDomain>) -> Self {
        self.domains.push(domain);
        self
    }

    /// Adds a transport of one's own. It is preferred to those of this build, those that were added first to those that were added later, and is
    /// named in [`transports`](Self::transports), `WHARF_TLS` and [`Endpoint::transports`](crate::Endpoint::transports) by its
    /// [`name`](Transport::name). A connection takes the first transport that both ends have under one name and that its
    /// [`Connector`](crate::transport::Connector) says can be used: one that stays within a host ([`Reach::Host`]) is set up over a Unix socket between the
    /// two, one that goes between hosts over TCP. [`transport`](crate::transport#a-transport-of-ones-own) says what has to be written.
    ///
    /// One that cannot be used here is left out, and its reason kept:
    ///
    /// ```
    /// # fn main() -> wharf::Result<()> {
    /// use std::sync::Arc;
    /// use wharf::{Context, Error, ErrorKind, Result, transport::{Opened, Reach, Transport}};
    ///
    /// #[derive(Debug)]
    /// struct Pigeons;
    ///
    /// impl Transport for Pigeons {
    ///     fn name(&self) -> &'static str {
    ///         "pigeons"
    ///     }
    ///     fn reach(&self) -> Reach {
    ///         Reach::Network
    ///     }
    ///     fn probe(&self) -> Result<()> {
    ///         Err(Error::new(ErrorKind::Unsupported, "the loft is empty"))
    ///     }
    ///     fn open(&self) -> Result<Opened> {
    ///         self.probe()?;
    ///         unreachable!("only what can be used is opened")
    ///     }
    /// }
    ///
    /// let context = Context::builder().transport(Arc::new(Pigeons)).build()?;
    /// let (name, why) = &context.unavailable()[0];
    /// assert!(name == "pigeons" && why.contains("the loft is empty"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`build`](Self::build) refuses a name that is taken (`Configuration`).
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.own.push(transport);
        self
    }

    /// Adds a kind of device of one's own, with the domain of its memory. It is asked before those of this build, whatever
    /// [`transports`](Self::transports) names, and takes the place of that one of them which has its name.
    pub fn accelerator(mut self, accelerator: Arc<dyn Accelerator>) -> Self {
        self.accelerators.push(accelerator);
        self
    }

    /// Reads the environment, probes the transports and makes the context.
    ///
    /// # Errors
    /// `Configuration`: an option, or the value of a variable, is unknown or impossible. `Unsupported`: no transport works here; the
    /// message holds the reason of each. Why devices that were asked for by name cannot be used. Why a memory monitor that was asked for by name cannot be had. `Forked`: a child made by `fork` of a process that had a context.
    pub fn build(self) -> Result<Context> {
        self.build_with(&Environment::of_process(), &system_interfaces)
    }

    /// As [`build`](Self::build), in an environment that may be made up.
    pub(super) fn build_with(
        self,
        environment: &Environment<'_>,
        interfaces: &dyn Fn() -> Result<Vec<String>>,
    ) -> Result<Context> {
        fork::check(Operation::Configure)?;
        let own = self.own_names();
        for (index, name) in own.iter().enumerate() {
            if registry::NAMES.contains(name) || own[..index].contains(name) {
                return Err(invalid(format!("there is a transport \"{name}\" already")));
            }
        }
        if self.secret.as_ref().is_some_and(Vec::is_empty) {
            return Err(invalid("an empty secret protects nothing"));
        }
        let names = Names {
            own: &own,
            interfaces,
            devices: &|| self.rdma_devices(),
        };
        let config = Config::load((self.given.clone(), self.rc.clone()), environment, names)?;
        #[cfg(feature = "verbs")]
        let config = config.with_libraries(self.libraries);
        #[cfg(feature = "verbs")]
        let rc = RcOptions {
            devices: config.net_devices.rdma(),
            memory: device_memory(&config),
            libraries: config.libraries.clone(),
            ..config.rc.options()
        };
        #[cfg(feature = "verbs")]
        let experts = Arc::clone(&rc.memory.experts);
        let candidates = self.own.iter().cloned().chain(registry::built_in(
            *config.keepalive,
            *config.pidfd,
            #[cfg(feature = "verbs")]
            rc,
            TcpOptions {
                checksums: *config.tcp_checksums,
                tls: self.tls.is_some(),
                ..TcpOptions::default()
            },
        ));
        let secured = self.tls.is_some();
        let probed = Probed::new(&config, secured, self.accelerators, candidates)?;
        for accelerator in &probed.accelerators {
            accelerator.configure(registrations(&config), *config.memory_monitor);
        }
        let mut domains = self.domains;
        domains.extend(probed.accelerators.iter().map(|device| device.domain()));
        let memory = Memory::new(&config, domains)?;
        #[cfg(feature = "verbs")]
        let _ = experts.set(memory.types.domains().to_vec());
        Ok(Context {
            inner: Arc::new(Inner {
                config,
                secret: self.secret,
                admit: self.admit,
                tls: self.tls,
                transports: probed.transports,
                accelerators: probed.accelerators,
                usable: probed.usable,
                unavailable: probed.unavailable,
                regions: Arc::default(),
                memory,
            }),
        })
    }

    /// Those of this machine, by their names.
    fn rdma_devices(&self) -> Vec<String> {
        #[cfg(feature = "verbs")]
        return rdma_devices(&self.libraries);
        #[cfg(not(feature = "verbs"))]
        Vec::new()
    }

    fn own_names(&self) -> Vec<&'static str> {
        self.own.iter().map(|transport| transport.name()).collect()
    }
}

impl fmt::Debug for ContextBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ContextBuilder");
        shown.field("given", &self.given).field("rc", &self.rc);
        #[cfg(feature = "verbs")]
        shown.field("libraries", &self.libraries);
        shown
            .field("secret", &self.secret.is_some())
            .field("admit", &self.admit.is_some())
            .field("tls", &self.tls)
            .field("own", &self.own_names())
            .field("domains", &self.domains)
            .field("accelerators", &self.accelerators)
            .finish()
    }
}

/// What the probes found.
struct Probed {
    transports: Vec<Arc<dyn Transport>>,
    accelerators: Vec<Arc<dyn Accelerator>>,
    usable: Vec<String>,
    unavailable: Vec<(String, String)>,
}

impl Probed {
    /// Where TLS is demanded (`secured`), without what has no encryption.
    fn new(
        config: &Config,
        secured: bool,
        own: Vec<Arc<dyn Accelerator>>,
        candidates: impl Iterator<Item = Arc<dyn Transport>>,
    ) -> Result<Self> {
        let mut found = Self {
            transports: Vec::new(),
            accelerators: Vec::new(),
            usable: Vec::new(),
            unavailable: Vec::new(),
        };
        let named = config.transports.is_named();
        let mut oneself = None;
        for transport in candidates {
            if !config.transports.allows(transport.name()) {
                oneself =
                    oneself.or_else(|| (transport.name() == Loopback::NAME).then_some(transport));
                continue;
            }
            if transport.name() == Tcp::NAME && config.net_devices.is_only_rdma() {
                let why = "no network interface may be used (only RDMA devices are named)";
                found.miss(Tcp::NAME, why.to_owned(), named);
                continue;
            }
            if secured && cfg!(feature = "verbs") && transport.name() == "rc_verbs" {
                let why = "it has no encryption, and TLS is demanded";
                found.miss(transport.name(), why.to_owned(), named);
                continue;
            }
            match transport.probe() {
                Ok(()) => found.transports.push(transport),
                Err(error) => {
                    let on_host = transport.reach() == Reach::Host;
                    found.miss(transport.name(), reason(&error), named || on_host);
                }
            }
        }
        let mut built_in = registry::accelerators(|name| config.transports.allows(name));
        // Two of one name would be one driver twice: nobody could tell whose the pinned memory is.
        built_in.retain(|device| own.iter().all(|own| own.name() != device.name()));
        let built_in = built_in.into_iter();
        let own = own.into_iter().map(|device| (device, true));
        for (device, own) in own.chain(built_in.map(|device| (device, false))) {
            match device.probe() {
                Ok(()) => found.accelerators.push(device),
                // What the program or its variables say of the devices that are here is not so.
                Err(error) if error.kind() == ErrorKind::Configuration || device.is_demanded() => {
                    return Err(error);
                }
                Err(error) => found.miss(device.name(), reason(&error), own || named),
            }
        }
        if config.transports.allows("cma") && !*config.cma {
            let why = match config.cma.source {
                Source::Env(name) => format!("turned off by {name}"),
                _ => "turned off by the program".to_owned(),
            };
            found.miss("cma", why, false);
        } else if config.transports.allows("cma")
            && let Err(error) = cma::probe()
        {
            found.miss("cma", reason(&error), true);
        }
        if found.transports.is_empty()
            && found.accelerators.is_empty()
            && config.transports.source == Source::Env("UCX_TLS")
            && let Some(oneself) = oneself
        {
            let text = "UCX_TLS leaves no transport that works here: a worker reaches itself alone";
            if trace::is_first(text) {
                tracing::warn!(target: "wharf::context", "{text}");
            }
            found.transports.push(oneself);
        }
        found.finish(config)
    }

    /// Notes what was asked for and is not there. What was asked for by name deserves a warning, and what any host has: without it all is slower.
    fn miss(&mut self, name: &str, why: String, warn: bool) {
        if warn {
            let remedy = registry::remedy(name);
            trace::slower!(format!("{name}: {why}"), target: "wharf::context", remedy, "transport {name} is not available: {why}");
        } else {
            tracing::debug!(target: "wharf::context", "transport {name} is not available: {why}");
        }
        self.unavailable.push((name.to_owned(), why));
    }

    fn finish(mut self, config: &Config) -> Result<Self> {
        let mut told = Vec::new();
        for name in config.transports.absent() {
            // One warning for all that a feature would bring.
            let feature = registry::missing_feature(name);
            let is_told = feature.is_some() && told.contains(&feature);
            told.push(feature);
            self.miss(name, NOT_BUILT_IN.to_owned(), !is_told);
        }
        let carries = |name: &str| {
            self.transports
                .iter()
                .any(|transport| transport.name() == name)
        };
        let on_host = |transport: &Arc<dyn Transport>| transport.reach() == Reach::Host;
        let cma = self.transports.iter().any(on_host)
            && !self.unavailable.iter().any(|(name, _)| name == "cma");
        self.usable = config
            .transports
            .names()
            .filter(|name| carries(name) || (*name == "cma" && cma))
            .map(str::to_owned)
            .collect();
        if self.usable.is_empty() && carries(Loopback::NAME) {
            self.usable.push(Loopback::NAME.to_owned());
        }
        let devices = self.accelerators.iter().map(|device| device.name());
        self.usable.extend(devices.map(str::to_owned));
        if !self.transports.is_empty() || !self.accelerators.is_empty() {
            return Ok(self);
        }
        if self.unavailable.is_empty() {
            return Err(invalid(match config.transports.allows("cma") {
                true => "cma carries no messages; it needs shm beside it",
                false => {
                    "cuda_ipc and gdr_copy are parts of cuda_copy, and rocm_ipc is one of rocm_copy; they need it beside them"
                }
            }));
        }
        let reasons: Vec<String> = self
            .unavailable
            .iter()
            .map(|(name, why)| format!("{name}: {why}"))
            .collect();
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("no transport works here ({})", reasons.join("; ")),
        )
        .during(Operation::Configure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Entry, transport::Opened};

    #[derive(Debug)]
    struct Pigeon {
        name: &'static str,
        works: bool,
        reach: Reach,
    }

    impl Transport for Pigeon {
        fn name(&self) -> &'static str {
            self.name
        }
        fn reach(&self) -> Reach {
            self.reach
        }
        fn probe(&self) -> Result<()> {
            if self.works {
                Ok(())
            } else {
                Err(Error::new(ErrorKind::Unsupported, "the pigeon sleeps"))
            }
        }
        fn open(&self) -> Result<Opened> {
            Err(Error::new(
                ErrorKind::Unsupported,
                "the pigeon does not open",
            ))
        }
    }

    fn pigeon(name: &'static str, works: bool) -> Arc<dyn Transport> {
        Arc::new(Pigeon {
            name,
            works,
            reach: Reach::Network,
        })
    }

    fn build(builder: ContextBuilder, variables: &[(&str, &str)]) -> Result<Context> {
        let get = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let names = variables.iter().map(|(key, _)| (*key).to_owned()).collect();
        builder.build_with(&Environment::new(&get, names), &|| {
            Ok(vec!["lo".to_owned()])
        })
    }

    #[test]
    fn everything_by_default() {
        let context = build(Context::builder(), &[]).unwrap();
        assert!(context.can_use("tcp") && context.can_use("self"));
        let mut usable: Vec<&str> = context.transports().collect();
        usable.retain(|name| *name != "cma");
        assert!(
            usable.into_iter().eq(context
                .message_transports()
                .iter()
                .map(|transport| transport.name()))
        );
    }

    #[test]
    fn memory_is_configured() {
        let variables = [
            ("UCX_RCACHE_ENABLE", "n"),
            ("WHARF_RCACHE_MAX_REGIONS", "8"),
            ("UCX_RCACHE_MAX_SIZE", "1M"),
            ("WHARF_RCACHE_MAX_UNRELEASED", "2M"),
            ("UCX_MEM_EVENTS", "n"),
        ];
        let context = build(Context::builder(), &variables).unwrap();
        let options = context.registration_cache_options();
        assert!(!options.enabled);
        assert_eq!(
            (
                options.max_regions,
                options.max_bytes,
                options.max_unreleased
            ),
            (8, 1 << 20, 2 << 20)
        );
        assert_eq!(context.memory_monitor().unwrap().name(), "none");
        let plain = build(Context::builder(), &[]).unwrap();
        assert_eq!(
            plain.registration_cache_options(),
            crate::memory::RegistrationCacheOptions::new()
        );
        let cache = context.registration_cache(crate::memory::MlockRegistrar::new());
        assert!(cache.is_ok());
    }

    #[test]
    fn own_transport_is_probed_and_preferred() {
        let context = build(Context::builder().transport(pigeon("pigeon", true)), &[]).unwrap();
        assert_eq!(context.transports().next(), Some("pigeon"));
        let context = build(Context::builder().transport(pigeon("pigeon", false)), &[]).unwrap();
        assert!(!context.can_use("pigeon"));
        assert_eq!(context.unavailable()[0].0, "pigeon");
        assert!(context.unavailable()[0].1.contains("sleeps"));
    }

    #[test]
    fn own_transport_in_the_environment() {
        let context = build(
            Context::builder().transport(pigeon("pigeon", true)),
            &[("WHARF_TLS", "pigeon")],
        )
        .unwrap();
        assert_eq!(context.transports().collect::<Vec<_>>(), ["pigeon"]);
        assert!(build(Context::builder(), &[("WHARF_TLS", "pigeon")]).is_err());
    }

    #[test]
    fn names_are_unique() {
        let twice = Context::builder()
            .transport(pigeon("pigeon", true))
            .transport(pigeon("pigeon", true));
        assert_eq!(
            build(twice, &[]).unwrap_err().kind(),
            ErrorKind::Configuration
        );
        let error = build(Context::builder().transport(pigeon("tcp", true)), &[]).unwrap_err();
        assert!(error.to_string().contains("already"));
    }

    #[test]
    fn nothing_that_works_is_an_error_with_reasons() {
        let builder = Context::builder()
            .transport(pigeon("pigeon", false))
            .transports("pigeon")
            .unwrap();
        let error = build(builder, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("pigeon: the pigeon sleeps"),
            "{error}"
        );
    }

    #[test]
    fn cma_needs_shm() {
        let error = build(Context::builder().transports("cma").unwrap(), &[]).unwrap_err();
        assert!(error.to_string().contains("needs shm"), "{error}");
        let context = build(Context::builder().transports("cma,tcp").unwrap(), &[]).unwrap();
        assert!(!context.can_use("cma"));
    }

    #[test]
    fn cma_stands_beside_any_transport_of_a_host() {
        for (reach, may) in [(Reach::Host, true), (Reach::Network, false)] {
            let pigeon = Pigeon {
                name: "pigeon",
                works: true,
                reach,
            };
            let builder = Context::builder().transport(Arc::new(pigeon));
            let context = build(builder.transports("pigeon,cma").unwrap(), &[]).unwrap();
            assert_eq!(context.can_use("cma"), may && cma::probe().is_ok());
        }
    }

    #[test]
    fn cma_can_be_turned_off() {
        for (builder, variables) in [
            (Context::builder().cma(false), &[][..]),
            (Context::builder(), &[("WHARF_CMA", "n")][..]),
        ] {
            let context = build(builder, variables).unwrap();
            assert!(!context.can_use("cma"));
            assert!(
                context
                    .unavailable()
                    .iter()
                    .any(|(name, why)| name == "cma" && why.contains("turned off"))
            );
        }
        assert!(
            build(Context::builder().cma(true), &[("WHARF_CMA", "n")])
                .unwrap()
                .can_use("cma")
        );
    }

    /// What is legal in UCX's variable never fails.
    #[test]
    fn ucx_variables_build() {
        for variables in [
            [("UCX_TLS", "rocm_gdr,ze_gdr")],
            [("UCX_TLS", "ugni_smsg")],
            [("UCX_TLS", "cma")],
            [("UCX_TLS", "dc_x,ud:aux")],
        ] {
            let context = build(Context::builder(), &variables).expect("legal");
            assert_eq!(
                context.transports().collect::<Vec<_>>(),
                ["self"],
                "{variables:?}"
            );
        }
        for variables in [
            [("UCX_TLS", "tcp,rc_x,ud:aux")],
            [("UCX_NET_DEVICES", "mlx5_7:1")],
            [("UCX_RNDV_SCHEME", "get_ppln")],
            [("UCX_RNDV_SCHEME", "put_ppln")],
            [("UCX_RNDV_SCHEME", "rkey_ptr")],
            [("UCX_RC_TX_QUEUE_LEN", "100000")],
            [("UCX_RC_TX_QUEUE_LEN", "1")],
            [("UCX_RC_RETRY_COUNT", "15")],
            [("UCX_RCACHE_MAX_REGIONS", "0")],
            [("UCX_RCACHE_MAX_SIZE", "auto")],
            [("UCX_KEEPALIVE_INTERVAL", "auto")],
        ] {
            build(Context::builder(), &variables).expect(variables[0].1);
        }
    }

    /// Every variable of a context has a method, which beats it.
    #[cfg(feature = "verbs")]
    #[test]
    fn methods_beat_variables() {
        let builder = Context::builder()
            .transports("self")
            .and_then(|builder| builder.net_devices("lo"))
            .and_then(|builder| builder.rc_path_mtu(1024))
            .expect("possible")
            .progress(Progress::EventDriven)
            .rendezvous_threshold(9)
            .rendezvous_scheme(RendezvousScheme::Put)
            .connect_timeout(Duration::from_secs(1))
            .handshake_timeout(Duration::from_secs(1))
            .keepalive(Duration::from_secs(1))
            .tcp_checksums(true)
            .pidfd(false)
            .cma(false)
            .forbid_staging()
            .ops_window(7)
            .limits(Limits::default())
            .memory_monitor(MonitorKind::None)
            .keep_registrations(false)
            .max_registrations(7)
            .max_registered(7)
            .max_unreleased(7)
            .relaxed_ordering(RelaxedOrdering::Off)
            .on_demand_paging(true)
            .gid_index(1)
            .rc_timeout(Duration::from_millis(7))
            .rc_retries(3)
            .rc_send_queue(64)
            .verbs_library("/nowhere/libibverbs.so.1")
            .rdmacm_library("/nowhere/librdmacm.so.1");
        let context = build(builder, &[]).expect("possible");
        let entries = context.configuration();
        let with_a_method = |entry: &&Entry| entry.variable.doc.contains("`ContextBuilder::");
        let mut count = 0;
        for entry in entries.iter().filter(with_a_method) {
            assert_eq!(entry.source, Source::Builder, "{}", entry.variable.name);
            count += 1;
        }
        assert_eq!(count, 28, "all but those of accelerators and groups");
        for impossible in [
            Context::builder().rc_retries(8),
            Context::builder().rc_send_queue(1025),
            Context::builder().rc_timeout(Duration::ZERO),
            Context::builder().ops_window(0),
            Context::builder().max_registrations(0),
        ] {
            let error = build(impossible, &[]).map(drop).expect_err("impossible");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        }
        assert!(Context::builder().rc_path_mtu(1000).is_err());
    }

    #[test]
    fn absent_is_told() {
        let context = build(Context::builder().transports("tcp,ze_ipc").unwrap(), &[]).unwrap();
        assert_eq!(
            context.unavailable(),
            [("ze_ipc".to_owned(), "not in this build of wharf".to_owned())]
        );
    }

    #[test]
    fn impossible_options_are_refused() {
        for builder in [
            Context::builder().secret([]),
            Context::builder().connect_timeout(Duration::ZERO),
            Context::builder().handshake_timeout(Duration::MAX),
            Context::builder().keepalive(Duration::ZERO),
        ] {
            assert_eq!(
                build(builder, &[]).unwrap_err().kind(),
                ErrorKind::Configuration
            );
        }
        assert_eq!(
            Context::builder()
                .net_devices("no-such-thing")
                .unwrap_err()
                .kind(),
            ErrorKind::Configuration
        );
        assert_eq!(
            Context::builder().transports("tpc").unwrap_err().kind(),
            ErrorKind::Configuration
        );
    }

    #[test]
    fn the_secret_is_not_shown() {
        let builder = Context::builder().secret(*b"Schwertfisch");
        assert!(
            !format!("{builder:?}").contains("Schwert")
                && !format!("{builder:?}").contains("83, 99")
        );
        let context = build(builder, &[]).unwrap();
        assert_eq!(context.secret(), Some(&b"Schwertfisch"[..]));
        assert!(
            !format!("{context:?}").contains("Schwert")
                && !format!("{context:?}").contains("83, 99")
        );
    }
}
