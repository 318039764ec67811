//! The transport's name, and what can be set.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::{
    driver::{rdmacm::Libraries, verbs::Mtu},
    memory::{MemoryDomain, MonitorKind, RegistrationCacheOptions},
    types::text::words,
};

/// The name in configuration.
pub(super) const NAME: &str = "rc_verbs";

/// What can be set.
#[derive(Clone, Debug)]
pub(crate) struct RcOptions {
    /// Which libraries are used.
    pub(crate) libraries: Libraries,
    /// Devices and ports that may be used.
    pub(crate) devices: DeviceChoice,
    /// Where in a port's table the address to use stands; `None`: the best of them.
    pub(crate) gid_index: Option<u8>,
    /// How long a packet may go unanswered, as the device's code: 4.096 µs × 2^t.
    pub(crate) timeout: u8,
    /// How often such a packet is sent again, at most 7.
    pub(crate) retries: u8,
    /// The largest packets; `None`: as large as both ports take.
    pub(crate) mtu: Option<Mtu>,
    /// Silence after which the kernel asks over the control socket whether the peer's host is still there. `None`: it never does.
    pub(crate) keepalive: Option<Duration>,
    /// Messages of a connection that may be on their way to the device, 32 to 1024.
    pub(crate) sends: u32,
    /// How memory is registered.
    pub(crate) memory: MemoryOptions,
}

impl Default for RcOptions {
    /// 16 is 268 ms: with 7 retries an unreachable peer is told after 2 s (soft-RoCE) to 8 s (devices that wait up to four times as long).
    fn default() -> Self {
        Self {
            libraries: Libraries::default(),
            devices: DeviceChoice::All,
            gid_index: None,
            timeout: 16,
            retries: 7,
            mtu: None,
            keepalive: Some(Duration::from_secs(10)),
            sends: 128,
            memory: MemoryOptions::default(),
        }
    }
}

/// A selection of devices and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// Any.
    #[default]
    All,
    /// Only these: `rxe0`, or one port of it, `rxe0:1`.
    Only(Vec<String>),
    /// Any but these.
    Except(Vec<String>),
}

impl DeviceChoice {
    /// Whether a port may be used.
    pub(crate) fn allows(&self, device: &str, port: u8) -> bool {
        let named = |names: &[String]| {
            names.iter().any(|name| match name.split_once(':') {
                Some((name, number)) => name == device && number.parse() == Ok(port),
                None => name == device,
            })
        };
        match self {
            Self::All => true,
            Self::Only(names) => named(names),
            Self::Except(names) => !named(names),
        }
    }
}

/// When writes of network devices may overtake each other on the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RelaxedOrdering {
    /// Where completions tell of the bytes.
    #[default]
    Auto,
    /// Everywhere but in words of device atomics.
    On,
    /// Nowhere.
    Off,
}

words! { RelaxedOrdering, "ordering": Auto = "auto", On = "y", Off = "n" }

/// Who knows and exports memory of other devices, once the context has found them.
pub(crate) type Experts = Arc<OnceLock<Vec<Arc<dyn MemoryDomain>>>>;

/// How memory is registered.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryOptions {
    /// What caches keep.
    pub(crate) cache: RegistrationCacheOptions,
    /// Who tells them when memory goes away.
    pub(crate) monitor: MonitorKind,
    /// `WHARF_IB_PCI_RELAXED_ORDERING`.
    pub(crate) relaxed_ordering: RelaxedOrdering,
    /// Pages are fetched when a device wants them, where it can (`WHARF_IB_ON_DEMAND`).
    pub(crate) on_demand: bool,
    /// Whom memory of other devices is had from.
    pub(crate) experts: Experts,
}
