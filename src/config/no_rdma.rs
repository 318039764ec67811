//! Where the feature `verbs` is not built in: nothing can be set of RDMA devices.

use super::{
    environment::{Environment, Names},
    table::Told,
};
use crate::error::Result;

/// What can be set of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rc;

/// What the builder was given of that.
#[derive(Clone, Debug, Default)]
pub(crate) struct RcOverrides;

impl Rc {
    pub(super) fn load(_: RcOverrides, _: &Environment<'_>, _: Names<'_>) -> Result<Self> {
        Ok(Self)
    }

    pub(super) fn check(&self) -> Result<()> {
        Ok(())
    }

    pub(super) fn describe(&self) -> Vec<Told> {
        Vec::new()
    }
}
