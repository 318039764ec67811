//! What channels ask of CUDA: the accelerator of a context, and calls that may block.

use std::{any::Any, borrow::Cow, sync::Arc};

use crate::{
    context::Context,
    error::{Error, ErrorKind, Result},
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

/// Does it on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        let text = format!("on a thread that may block: {error}");
        Err(Error::new(ErrorKind::Canceled, text))
    })
}

#[cold]
pub(super) fn unsupported(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}
