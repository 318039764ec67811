//! Agents and their pools: who they are, what memory they have, and who reaches whose.
//!
//! # Safety
//! Attributes are asked for with room for what the header says; iterating calls back on this thread, within the call, with the pointer
//! that it was given.
#![allow(unsafe_code)]

use std::{ffi::c_void, fmt, ptr::NonNull};

use super::{Hsa, RawAgent, RawPool, Status, sys};
use crate::error::{Error, ErrorKind, Result};

/// What an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AgentKind {
    /// A node of the host: processors and their memory.
    Cpu,
    /// A device that copies and has memory.
    Gpu,
    /// Something else, which this crate does not use.
    Other(u32),
}

/// A processor or device that the runtime knows. A small value, good until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    pub(super) hsa: &'static Hsa,
    pub(super) raw: RawAgent,
    kind: AgentKind,
}

/// Where on PCI an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PciAddress {
    /// The domain.
    pub(crate) domain: u32,
    /// The bus.
    pub(crate) bus: u8,
    /// The device.
    pub(crate) device: u8,
    /// The function.
    pub(crate) function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl Hsa {
    /// All agents, in the runtime's order, which is the same for the life of the process. Initialises it.
    /// Errors: as of [`Hsa::initialise`]; and what the runtime reports.
    pub(crate) fn agents(&'static self) -> Result<Vec<Agent>> {
        unsafe extern "C" fn each(agent: RawAgent, list: *mut c_void) -> Status {
            // SAFETY: the list that `agents` passed, which nobody else uses during the call.
            unsafe { (*list.cast::<Vec<RawAgent>>()).push(agent) };
            Status::SUCCESS
        }
        self.initialise()?;
        let known = match self.agents.get() {
            Some(known) => known,
            None => {
                let mut found: Vec<RawAgent> = Vec::new();
                // SAFETY: `each` gets the list, on this thread, within the call.
                let status =
                    unsafe { (self.api.hsa_iterate_agents)(each, (&raw mut found).cast()) };
                status.check("hsa_iterate_agents")?;
                let kind = |raw| Ok((raw, self.agent_number(raw, sys::agent::DEVICE)?));
                let found = found.into_iter().map(kind).collect::<Result<_>>()?;
                self.agents.get_or_init(|| found)
            }
        };
        let agent = |(raw, kind): &(RawAgent, u32)| Agent {
            hsa: self,
            raw: *raw,
            kind: match *kind {
                sys::DEVICE_CPU => AgentKind::Cpu,
                sys::DEVICE_GPU => AgentKind::Gpu,
                other => AgentKind::Other(other),
            },
        };
        Ok(known.iter().map(agent).collect())
    }

    /// The devices, in the order by which programs count them. Initialises the runtime.
    /// Errors: as of [`Hsa::agents`].
    pub(crate) fn gpus(&'static self) -> Result<Vec<Agent>> {
        self.of_kind(AgentKind::Gpu)
    }

    /// The nodes of the host. Initialises the runtime.
    /// Errors: as of [`Hsa::agents`].
    pub(crate) fn cpus(&'static self) -> Result<Vec<Agent>> {
        self.of_kind(AgentKind::Cpu)
    }

    fn of_kind(&'static self, kind: AgentKind) -> Result<Vec<Agent>> {
        let mut agents = self.agents()?;
        agents.retain(|agent| agent.kind == kind);
        Ok(agents)
    }

    fn agent_number(&self, agent: RawAgent, what: u32) -> Result<u32> {
        let mut number = 0_u32;
        // SAFETY: the callers' attributes are u32.
        let status =
            unsafe { (self.api.hsa_agent_get_info)(agent, what, (&raw mut number).cast()) };
        status.check("hsa_agent_get_info").map(|()| number)
    }
}

impl Agent {
    /// The runtime.
    pub(crate) fn hsa(&self) -> &'static Hsa {
        self.hsa
    }

    /// The runtime's handle.
    pub(crate) fn raw(&self) -> RawAgent {
        self.raw
    }

    /// The name of its kind, as compilers call it: `gfx942`.
    /// Errors: what the runtime reports.
    pub(crate) fn name(&self) -> Result<String> {
        self.text::<64>(sys::agent::NAME)
    }

    /// The name on the box.
    /// Errors: what the runtime reports.
    pub(crate) fn product_name(&self) -> Result<String> {
        self.text::<64>(sys::agent::PRODUCT_NAME)
    }

    /// Who it is, the same in every process: `GPU-` and 16 hexadecimal digits. `None`: it has no number of its own, or the runtime cannot be
    /// asked.
    /// Errors: `Forked`, and what else the runtime reports.
    pub(crate) fn uuid(&self) -> Result<Option<String>> {
        match self.text::<21>(sys::agent::UUID) {
            Ok(text) if text.ends_with("-XX") || text.is_empty() => Ok(None),
            Ok(text) => Ok(Some(text)),
            Err(error) if Status::of(&error) == Some(Status::ERROR_INVALID_ARGUMENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where on PCI it is.
    /// Errors: what the runtime reports.
    pub(crate) fn pci_address(&self) -> Result<PciAddress> {
        let bdf = self.number(sys::agent::BDF)?;
        Ok(PciAddress {
            domain: self.number(sys::agent::DOMAIN)?,
            bus: (bdf >> 8 & 0xFF) as u8,
            device: (bdf >> 3 & 0x1F) as u8,
            function: (bdf & 7) as u8,
        })
    }

    /// Its global pools in which programs allocate.
    /// Errors: what the runtime reports.
    pub(crate) fn pools(&self) -> Result<Vec<Pool>> {
        unsafe extern "C" fn each(pool: RawPool, list: *mut c_void) -> Status {
            // SAFETY: the list that `pools` passed, which nobody else uses during the call.
            unsafe { (*list.cast::<Vec<RawPool>>()).push(pool) };
            Status::SUCCESS
        }
        self.hsa.usable()?;
        let mut found: Vec<RawPool> = Vec::new();
        // SAFETY: `each` gets the list, on this thread, within the call.
        let status = unsafe {
            (self.hsa.api.hsa_amd_agent_iterate_memory_pools)(
                self.raw,
                each,
                (&raw mut found).cast(),
            )
        };
        status.check("hsa_amd_agent_iterate_memory_pools")?;
        let mut pools = Vec::with_capacity(found.len());
        for raw in found {
            pools.extend(Pool::new(*self, raw)?);
        }
        Ok(pools)
    }

    /// The pool of a grain, the largest of several.
    /// Errors: `Unsupported`: it has none; and what the runtime reports.
    pub(crate) fn pool(&self, grain: Grain) -> Result<Pool> {
        let pools = self.pools()?.into_iter();
        // Memory for the arguments of kernels is scarce.
        let fit = pools.filter(|pool| pool.grain == grain && !pool.for_arguments);
        fit.max_by_key(|pool| pool.size).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("{self:?} has no pool of {grain:?} grain"),
            )
        })
    }

    /// Whether the host reaches all of its memory (a "large BAR"): then its addresses can be loaded and stored by the host.
    /// Errors: what the runtime reports.
    pub(crate) fn has_large_bar(&self) -> Result<bool> {
        let pool = self.pool(Grain::Coarse)?;
        let Some(cpu) = self.hsa.cpus()?.first().copied() else {
            return Ok(false);
        };
        Ok(pool.access(&cpu)? != Access::Never)
    }

    /// The register that flushes what the host wrote through the BAR, where the device has one.
    pub(crate) fn hdp_flush(&self) -> Option<HdpFlush> {
        self.hsa.usable().ok()?;
        let mut registers = [std::ptr::null_mut::<u32>(); 2];
        // SAFETY: writes two pointers.
        let status = unsafe {
            (self.hsa.api.hsa_agent_get_info)(
                self.raw,
                sys::agent::HDP_FLUSH,
                registers.as_mut_ptr().cast(),
            )
        };
        let register = NonNull::new(registers[0]).filter(|at| at.is_aligned());
        (status == Status::SUCCESS).then_some(())?;
        register.map(HdpFlush)
    }

    fn number(&self, what: u32) -> Result<u32> {
        self.hsa.usable()?;
        self.hsa.agent_number(self.raw, what)
    }

    fn text<const ROOM: usize>(&self, what: u32) -> Result<String> {
        const { assert!(ROOM <= 64) };
        self.hsa.usable()?;
        // More room than any text has, so that the end is a zero.
        let mut bytes = [0_u8; 128];
        // SAFETY: the callers' attributes are texts of at most `ROOM` bytes.
        let status =
            unsafe { (self.hsa.api.hsa_agent_get_info)(self.raw, what, bytes.as_mut_ptr().cast()) };
        status.check("hsa_agent_get_info")?;
        let end = bytes[..ROOM].iter().position(|byte| *byte == 0);
        Ok(String::from_utf8_lossy(&bytes[..end.unwrap_or(ROOM)]).into_owned())
    }
}

impl PartialEq for Agent {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw && std::ptr::eq(self.hsa, other.hsa)
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} agent {:#x}", self.kind, self.raw.0)
    }
}

/// A register of a device that flushes what the host wrote to its memory. Mapped until the process ends.
#[derive(Debug)]
pub(crate) struct HdpFlush(NonNull<u32>);

// SAFETY: a register that any thread may write at any time.
unsafe impl Send for HdpFlush {}
// SAFETY: as for Send.
unsafe impl Sync for HdpFlush {}

impl HdpFlush {
    /// Flushes, and waits until that has arrived.
    pub(crate) fn flush(&self) {
        // SAFETY: the runtime's own mapping of the register, made for this write.
        unsafe { self.0.write_volatile(1) };
        // SAFETY: as above; a read comes back after the writes before it.
        unsafe { self.0.read_volatile() };
    }
}

/// How memory is kept the same for host and devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Grain {
    /// At every access.
    Fine,
    /// Between kernels and copies.
    Coarse,
    /// Neither is said.
    Unsaid,
}

impl Grain {
    pub(super) const fn of(flags: u32) -> Self {
        if flags & sys::POOL_FINE != 0 {
            Self::Fine
        } else if flags & sys::POOL_COARSE != 0 {
            Self::Coarse
        } else {
            Self::Unsaid
        }
    }
}

/// Whether an agent reaches a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// It cannot.
    Never,
    /// It does.
    Default,
    /// When it is allowed to, for each allocation: [`Hsa::allow_access`].
    OnDemand,
}

/// Memory of an agent, of one kind. A small value, good until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    agent: Agent,
    raw: RawPool,
    grain: Grain,
    for_arguments: bool,
    size: usize,
}

impl Pool {
    /// `None` for one in which a program cannot allocate.
    fn new(agent: Agent, raw: RawPool) -> Result<Option<Self>> {
        let ask = |what: u32| {
            // Room for the widest; the narrower ones fill its lower bytes.
            let mut value = 0_u64;
            // SAFETY: no attribute asked for here is wider than 8 bytes.
            let status = unsafe {
                (agent.hsa.api.hsa_amd_memory_pool_get_info)(raw, what, (&raw mut value).cast())
            };
            let value = u64::from_le(value);
            status.check("hsa_amd_memory_pool_get_info").map(|()| value)
        };
        if ask(sys::pool::SEGMENT)? as u32 != sys::SEGMENT_GLOBAL
            || ask(sys::pool::ALLOC_ALLOWED)? & 0xFF == 0
        {
            return Ok(None);
        }
        let flags = ask(sys::pool::GLOBAL_FLAGS)? as u32;
        Ok(Some(Self {
            agent,
            raw,
            grain: Grain::of(flags),
            for_arguments: flags & sys::POOL_KERNARG != 0,
            size: ask(sys::pool::SIZE)? as usize,
        }))
    }

    /// Whose it is.
    pub(crate) fn agent(&self) -> Agent {
        self.agent
    }

    /// The runtime's handle.
    pub(crate) fn raw(&self) -> RawPool {
        self.raw
    }

    /// Its bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Whether an agent reaches its memory.
    /// Errors: what the runtime reports.
    pub(crate) fn access(&self, by: &Agent) -> Result<Access> {
        Ok(match self.reach(by, sys::reach::ACCESS)? {
            1 => Access::Default,
            2 => Access::OnDemand,
            _ => Access::Never,
        })
    }

    fn reach(&self, by: &Agent, what: u32) -> Result<u32> {
        self.agent.hsa.usable()?;
        let mut value = 0_u32;
        // SAFETY: the callers' attributes are u32.
        let status = unsafe {
            (self.agent.hsa.api.hsa_amd_agent_memory_pool_get_info)(
                by.raw,
                self.raw,
                what,
                (&raw mut value).cast(),
            )
        };
        status
            .check("hsa_amd_agent_memory_pool_get_info")
            .map(|()| value)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (grain, size) = (self.grain, self.size);
        write!(f, "{grain:?} pool of {size} bytes of {:?}", self.agent)
    }
}
