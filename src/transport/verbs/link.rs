//! The sending half.

use std::sync::Arc;

use super::{
    connection::Connection,
    one_sided::{Ways, explain},
    options::NAME,
    queues::BODY,
    wire::HEADER,
};
use crate::transport::{DeviceWays, Link, LinkAttributes, OneSided, SendError, Sink};

/// Longest short message where the device sends little or nothing inline, in bytes.
const SHORT: usize = 112;

/// A link.
#[derive(Debug)]
pub(super) struct RcLink {
    connection: Arc<Connection>,
    attributes: LinkAttributes,
    ways: Option<Ways>,
}

impl RcLink {
    /// Over a connection.
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        let inline = connection.rails.first().map_or(0, |rail| rail.inline);
        let longest = connection.longest.min(BODY);
        let attributes = LinkAttributes {
            transport: NAME,
            max_short: inline.saturating_sub(HEADER).max(SHORT).min(longest),
            max_bcopy: longest,
            max_zcopy: 0,
        };
        Self {
            ways: Ways::new(&connection),
            connection,
            attributes,
        }
    }
}

impl Link for RcLink {
    fn attributes(&self) -> LinkAttributes {
        self.attributes
    }

    #[inline]
    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        self.connection.message(id, header, &[], body)
    }

    #[inline]
    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.connection.message(id, header, prefix, payload)
    }

    fn flush(&mut self, _sink: &mut dyn Sink) {
        // Everything accepted is posted.
    }

    fn is_flushed(&self) -> bool {
        self.connection.is_flushed()
    }

    fn device_ways(&self) -> Option<DeviceWays> {
        Some(explain(&self.connection))
    }

    fn one_sided(&mut self) -> Option<&mut dyn OneSided> {
        let ways = self.ways.as_mut()?;
        Some(ways)
    }
}

impl Drop for RcLink {
    fn drop(&mut self) {
        self.connection.set_dropped();
    }
}
