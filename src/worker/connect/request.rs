//! A connection that asks to be let in.

use std::sync::Arc;

use crate::{
    context::IncomingInfo,
    protocol::{handshake::Server, hello::Introduction},
    transport::channel::Channel,
    types::WorkerId,
    worker::{connect::backlog::Pending, shared::Shared},
};

/// A connection that a peer asks for.
pub(crate) struct Request {
    pub(crate) channel: Channel,
    pub(in crate::worker) client: Introduction,
    pub(in crate::worker) server: Server,
    /// The worker that the client was told it talks to.
    pub(crate) shared: Arc<Shared>,
    pub(crate) info: IncomingInfo,
    /// Who nobody takes is one of so many.
    pub(in crate::worker) pending: Option<Pending>,
}

impl Request {
    /// The program has it: how many it keeps is its own affair.
    pub(crate) fn taken(mut self) -> Self {
        self.pending = None;
        self
    }
    pub(crate) fn name(&self) -> String {
        self.channel.peer_name()
    }
    pub(crate) fn worker(&self) -> WorkerId {
        self.client.key.worker()
    }
}
