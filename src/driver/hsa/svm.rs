//! Advice on memory of the host that devices share (SVM), which the kernel moves between them: `hipMallocManaged`'s, and with a kernel that does it any.
//!
//! # Safety
//! Advice changes where memory lies, never what it holds: of addresses that are nobody's the kernel says so. A prefetch counts its signal down by itself: one that has not
//! done so in time keeps it for ever.
#![allow(unsafe_code)]

use std::{mem::ManuallyDrop, ptr, time::Duration};

use super::{
    Agent, Hsa, RawAgent, Status,
    memory::pointer_to,
    sys::{SvmPair, svm, system},
};
use crate::error::{Error, ErrorKind, Result};

/// For so long a prefetch is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

impl Hsa {
    /// Whether memory of the host can be moved to devices under its own address, in this process. Initialises the runtime.
    /// Errors: as of [`Hsa::initialise`], and what the runtime reports.
    pub(crate) fn has_svm(&self) -> Result<bool> {
        self.initialise()?;
        let mut answer = 0_u64;
        // SAFETY: writes a bool.
        let status = unsafe {
            (self.api.hsa_system_get_info)(system::SVM_SUPPORTED, (&raw mut answer).cast())
        };
        match status {
            Status::SUCCESS => Ok(answer != 0),
            Status::ERROR_INVALID_ARGUMENT => Ok(false),
            status => Err(status.error("hsa_system_get_info")),
        }
    }

    /// The agent that is to have this memory when it is moved, where all of it prefers one.
    /// Errors: `Unsupported`: the library cannot say; what the runtime reports, as of memory that is not mapped, or is in a pool.
    pub(crate) fn preferred_location(&self, address: u64, len: usize) -> Result<Option<RawAgent>> {
        self.usable()?;
        let name = "hsa_amd_svm_attributes_get";
        let call = self.optional(self.api.hsa_amd_svm_attributes_get, name)?;
        let mut pair = SvmPair {
            attribute: svm::PREFERRED_LOCATION,
            value: 0,
        };
        // SAFETY: a list of one pair, whose value is written.
        unsafe { call(pointer_to(address), len, &raw mut pair, 1) }.check(name)?;
        Ok((pair.value != 0).then_some(RawAgent(pair.value)))
    }

    /// Says which agent is to have this memory when it is moved; `None`: no one.
    /// Errors: as of [`Hsa::preferred_location`].
    pub(crate) fn set_preferred_location(
        &self,
        address: u64,
        len: usize,
        agent: Option<&Agent>,
    ) -> Result<()> {
        self.usable()?;
        let name = "hsa_amd_svm_attributes_set";
        let call = self.optional(self.api.hsa_amd_svm_attributes_set, name)?;
        let mut pair = SvmPair {
            attribute: svm::PREFERRED_LOCATION,
            value: agent.map_or(0, |agent| agent.raw().0),
        };
        // SAFETY: a list of one pair.
        unsafe { call(pointer_to(address), len, &raw mut pair, 1) }.check(name)
    }

    /// Moves memory to an agent, and waits for that.
    /// Errors: as of [`Hsa::preferred_location`]; `DeadlineExceeded` after a minute; `DeviceLost`: it failed.
    pub(crate) fn prefetch(&'static self, address: u64, len: usize, to: RawAgent) -> Result<()> {
        let name = "hsa_amd_svm_prefetch_async";
        let call = self.optional(self.api.hsa_amd_svm_prefetch_async, name)?;
        let done = self.signal(1)?;
        // SAFETY: it waits for nothing; the signal lives until it was counted down, or for ever.
        let status = unsafe { call(pointer_to(address), len, to, 0, ptr::null(), done.raw()) };
        status.check(name)?;
        let kind = match done.wait(1, PATIENCE) {
            0 => return Ok(()),
            1.. => {
                let _kept = ManuallyDrop::new(done);
                ErrorKind::DeadlineExceeded
            }
            _ => ErrorKind::DeviceLost,
        };
        let text = format!("{name}: {len} bytes at {address:#x} were not moved");
        Err(Error::new(kind, text))
    }
}
