//! The machine as the runtime sees it.

use crate::{
    driver::hsa::{Access, Agent, Grain, Hsa, Pool, RawAgent},
    error::{Error, ErrorKind, Result},
};

/// The accelerator's name in configuration, where `rocm` is short for all that ROCm has.
pub(super) const NAME: &str = "rocm_copy";

/// Agents that matter here.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) hsa: &'static Hsa,
    /// The host's first node.
    pub(super) host: Agent,
    /// Where it allocates what devices reach.
    pub(super) host_pool: Pool,
    pub(super) devices: Vec<Device>,
}

/// A device, by its ordinal.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) agent: Agent,
    pub(super) pool: Pool,
    /// Whether the host reaches all of its memory.
    pub(super) large_bar: bool,
    /// The devices that can reach its memory, itself first.
    pub(super) reached_by: Reach,
}

/// Devices that reach some memory, by a bit for each ordinal. Those from 64 on are counted out: they reach their own memory alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach(u64);

impl Reach {
    pub(super) fn of(ordinals: impl IntoIterator<Item = u16>) -> Self {
        let bit = |ordinal: u16| 1_u64.checked_shl(u32::from(ordinal)).unwrap_or(0);
        Self(ordinals.into_iter().map(bit).fold(0, |all, bit| all | bit))
    }

    pub(super) fn has(self, ordinal: u16) -> bool {
        self.0.checked_shr(u32::from(ordinal)).unwrap_or(0) & 1 == 1
    }
}

impl Machine {
    pub(super) fn of(hsa: &'static Hsa) -> Result<Self> {
        let host = hsa.cpus()?.first().copied().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "the HSA runtime names no node of the host",
            )
        })?;
        let agents = hsa.gpus()?;
        let mut devices = Vec::with_capacity(agents.len());
        for (own, agent) in agents.iter().enumerate() {
            // Devices that share the host's memory may have no other than fine-grained.
            let (pool, large_bar) = match agent.pool(Grain::Coarse) {
                Ok(pool) => (pool, agent.has_large_bar()?),
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    (agent.pool(Grain::Fine)?, false)
                }
                Err(error) => return Err(error),
            };
            let mut reached_by = Vec::new();
            for (ordinal, other) in agents.iter().enumerate() {
                if ordinal == own || pool.access(other)? != Access::Never {
                    reached_by.push(ordinal as u16);
                }
            }
            devices.push(Device {
                agent: *agent,
                pool,
                large_bar,
                reached_by: Reach::of(reached_by),
            });
        }
        if devices.is_empty() {
            let text = "the HSA runtime knows no device (ROCR_VISIBLE_DEVICES may hide them)";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(Self {
            hsa,
            host,
            host_pool: host.pool(Grain::Fine)?,
            devices,
        })
    }

    /// A device.
    /// Errors: `InvalidArgument`: there is none of this number.
    pub(super) fn device(&self, ordinal: u16) -> Result<&Device> {
        self.devices.get(usize::from(ordinal)).ok_or_else(|| {
            let count = self.devices.len();
            let text = format!("there is no ROCm device {ordinal}: there are {count}");
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }

    /// The number of a device, if the agent is one.
    pub(super) fn ordinal(&self, agent: RawAgent) -> Option<u16> {
        let mut devices = self.devices.iter();
        let place = devices.position(|device| device.agent.raw() == agent)?;
        u16::try_from(place).ok()
    }

    pub(super) fn is_host(&self, agent: RawAgent) -> bool {
        self.host.raw() == agent
            || self
                .hsa
                .cpus()
                .is_ok_and(|all| all.iter().any(|cpu| cpu.raw() == agent))
    }

    /// All devices, as a list for the runtime.
    pub(super) fn agents(&self, reach: Reach) -> Vec<Agent> {
        let numbered = (0_u16..).zip(&self.devices);
        let reaching = numbered.filter(|(ordinal, _)| reach.has(*ordinal));
        reaching.map(|(_, device)| device.agent).collect()
    }

    pub(super) fn everybody(&self) -> Reach {
        Reach::of((0_u16..).zip(&self.devices).map(|(ordinal, _)| ordinal))
    }
}
