//! Which path it is: what it is between, and which of its ends this one is.

use crate::types::text::words;

/// What a path is between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Within one worker.
    Worker,
    /// Between processes of one host.
    Host,
    /// Between hosts.
    Network,
}

words! { Reach, "reach": Worker = "worker", Host = "host", Network = "network" }

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that dialled.
    Client,
    /// The end that listened.
    Server,
}

words! { Role, "role": Client = "client", Server = "server" }
