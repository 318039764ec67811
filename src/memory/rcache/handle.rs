//! The cache's end: that of its last handle.

use std::{mem::ManuallyDrop, sync::Arc};

use super::inner::Inner;
use crate::{
    memory::{Registrar, Subscription},
    sys::fork,
};

/// What all clones of a cache share. Its end is the end of the cache; guards and the reaper hold `Inner` beyond it.
pub(super) struct Handle<R: Registrar> {
    pub(super) inner: Arc<Inner<R>>,
    /// Ends before the regions are given up. The sink holds `Inner`, never this.
    pub(super) subscription: Option<Subscription>,
}

impl<R: Registrar> Drop for Handle<R> {
    fn drop(&mut self) {
        if fork::forked() {
            // The parent's: nothing here is given back by a child.
            let _ = ManuallyDrop::new(self.subscription.take());
            return;
        }
        drop(self.subscription.take());
        self.inner.close();
    }
}
