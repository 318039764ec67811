//! The transport's name, and what can be chosen.

/// The transport's name in configuration.
pub(super) const NAME: &str = "shm";

/// What can be chosen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShmOptions {
    /// Watch the peer's process by a pidfd, so that its death is told apart from a closed connection. Default: yes, where the
    /// kernel has it.
    pub use_pidfd: bool,
}

impl Default for ShmOptions {
    fn default() -> Self {
        Self { use_pidfd: true }
    }
}
