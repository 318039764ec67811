//! What all bootstraps between processes can be told.

use std::{fmt, sync::Arc, time::Duration};

use super::limits::DEADLINE;

/// Options of a bootstrap between processes.
#[derive(Clone)]
pub struct BootstrapOptions {
    pub(super) deadline: Duration,
    pub(super) secret: Option<Arc<[u8]>>,
}

impl BootstrapOptions {
    /// 30 seconds, and no secret.
    #[must_use]
    pub fn new() -> Self {
        Self {
            deadline: DEADLINE,
            secret: None,
        }
    }

    /// How long a wait takes at most: first that for all ranks to come, then each call that says nothing else.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What all ranks must prove to know. Without one anybody who reaches rank 0 can take a place in the group.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.secret = Some(secret.as_ref().into());
        self
    }
}

impl Default for BootstrapOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Without the secret.
impl fmt::Debug for BootstrapOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapOptions")
            .field("deadline", &self.deadline)
            .field("secret", &self.secret.is_some())
            .finish()
    }
}
