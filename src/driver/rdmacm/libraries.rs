//! The libraries of RDMA devices, as a program names them.

use std::path::PathBuf;

use super::RdmaCm;
use crate::{driver::verbs::Verbs, error::Result};

/// Their files. `None`: the one that its variable names, or the system's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Libraries {
    pub(crate) verbs: Option<PathBuf>,
    pub(crate) cm: Option<PathBuf>,
}

impl Libraries {
    /// libibverbs, as of [`Verbs::load`].
    /// Errors: `Unsupported`: it is not here.
    pub(crate) fn verbs(&self) -> Result<&'static Verbs> {
        Verbs::load(self.verbs.as_deref())
    }

    /// Both, loaded at the first call. May take milliseconds.
    /// Errors: `Unsupported`: one is not here, or librdmacm uses another libibverbs.
    pub(crate) fn load(&self) -> Result<(&'static RdmaCm, &'static Verbs)> {
        let verbs = self.verbs()?;
        Ok((RdmaCm::load(self.cm.as_deref(), verbs)?, verbs))
    }
}
