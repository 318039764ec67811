//! Which operations go first.

/// Which of the operations that wait for room on an endpoint goes first.
///
/// An operation goes before all that wait on the same endpoint with a lower priority; between long transfers it goes after the fragment
/// that is on its way. Messages of one verb with the same priority stay in order. Messages with different priorities have no order among
/// each other. One in 64 turns goes to the least of them, so that none waits forever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// After all others.
    Low,
    /// What an operation has when nothing else was said.
    #[default]
    Normal,
    /// Before all others.
    High,
}
