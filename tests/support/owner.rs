//! What keeps something of the program's, and counts when that ends.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// Keeps it, and tells when it is dropped.
pub(crate) struct Owner<T>(pub(crate) T, pub(crate) Arc<AtomicUsize>);

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}
