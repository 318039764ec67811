//! What names a stream of a worker.

/// A stream of a worker, as its handles and the queues name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamKey {
    pub(in crate::worker) slot: u32,
    pub(in crate::worker) generation: u32,
}
