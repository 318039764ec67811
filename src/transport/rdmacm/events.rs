//! Events of a connection manager, awaited.

use tokio::io::unix::AsyncFd;

use super::watch;
use crate::{
    driver::rdmacm::{Event, EventChannel, EventKind},
    error::{Error, ErrorKind, Result},
};

/// The events of one listener or one end.
#[derive(Debug)]
pub(super) struct Events(AsyncFd<EventChannel>);

impl Events {
    /// To be made on a runtime.
    /// Errors: what the system said.
    pub(super) fn new(channel: EventChannel) -> Result<Self> {
        watch::events(channel).map(Self)
    }

    /// The next one.
    /// Errors: as of any call.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost.
    pub(super) async fn next(&self) -> Result<Event> {
        loop {
            let mut guard =
                self.0.readable().await.map_err(|error| {
                    Error::io("awaiting the connection manager's events", error)
                })?;
            if let Some(event) = guard.get_inner().next()? {
                return Ok(event);
            }
            guard.clear_ready();
        }
    }

    /// Waits for this one, and gives what came with it.
    /// Errors: what another event says went wrong. Events that tell nothing of the sort are passed over.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn expect(&self, kind: EventKind) -> Result<Vec<u8>> {
        loop {
            let event = self.next().await?;
            if event.kind == kind {
                // A failed step is told with its own event and a status.
                if event.status < 0 {
                    let why = std::io::Error::from_raw_os_error(event.status.saturating_abs());
                    return Err(Error::io(event.kind.to_string(), why));
                }
                return Ok(event.data);
            }
            if let Some(error) = event.error() {
                return Err(match event.kind {
                    EventKind::REJECTED => rejected(error, &event.data),
                    _ => error,
                });
            }
        }
    }
}

/// With the other side's words, if it is one that says some.
fn rejected(error: Error, data: &[u8]) -> Error {
    let words = data.split(|byte| *byte == 0).next().unwrap_or_default();
    match std::str::from_utf8(words) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => {
            Error::new(ErrorKind::Rejected, format!("{error}: {text}"))
        }
        _ => error,
    }
}
