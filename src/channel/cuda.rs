//! What channels ask of CUDA: the accelerator of a context.

use std::{any::Any, borrow::Cow, sync::Arc};

use crate::{
    context::Context,
    error::{Error, ErrorKind},
    transport::{Accelerator, cuda::CudaCopy},
};

/// CUDA as a context uses it.
pub(super) fn accelerator(context: &Context) -> Option<Arc<dyn Accelerator>> {
    let mut accelerators = context.accelerators().iter();
    accelerators.find(|one| cuda(one).is_some()).cloned()
}

pub(super) fn cuda(accelerator: &Arc<dyn Accelerator>) -> Option<&CudaCopy> {
    let accelerator: &dyn Any = &**accelerator;
    accelerator.downcast_ref()
}

#[cold]
pub(super) fn unsupported(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}
