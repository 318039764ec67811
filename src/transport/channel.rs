//! The channel that a connection is set up over.

/// A framed control channel between the two ends of a connection under construction.
#[derive(Debug)]
pub struct Channel;
