//! The transport's name, and what can be set.

use std::time::Duration;

/// The name in configuration.
pub(super) const NAME: &str = "tcp";

/// What can be set.
#[derive(Clone, Debug)]
pub(crate) struct TcpOptions {
    /// Silence after which the kernel asks whether the peer is still there, and after which it asks again; whole seconds. `None`: it never
    /// does.
    pub(crate) keepalive: Option<Duration>,
    /// Frames carry checksums, where either end says so.
    pub(crate) checksums: bool,
    /// No link without TLS.
    pub(crate) tls: bool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            keepalive: Some(Duration::from_secs(10)),
            checksums: false,
            tls: false,
        }
    }
}
