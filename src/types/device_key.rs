//! Registered memory as a network device calls it.

/// What a device calls registered memory: the local key for operations of its own process, the remote key for those of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceKey {
    /// The owner's number of the device (its GUID), as the owner's end of a link tells it when rails are set up.
    pub device: u64,
    /// The key.
    pub key: u32,
}
