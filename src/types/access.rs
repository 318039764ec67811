//! What a peer may do to exposed memory.

bitflags::bitflags! {
    /// Rights that an exposed region grants to those who hold its descriptor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias("UCP_MEM_MAP_PROT_REMOTE_READ", "UCP_MEM_MAP_PROT_REMOTE_WRITE", "UCP_MEM_MAP_PROT_LOCAL_READ", "UCP_MEM_MAP_PROT_LOCAL_WRITE"))]
    pub struct Access: u8 {
        /// Peers may read the region by get.
        const READ = 1;
        /// Peers may write the region by put.
        const WRITE = 2;
        /// Peers may run atomics of a network device on the region's 64-bit words (fetch-and-add, compare-and-swap), and those alone: no
        /// processor's atomics. A device's atomics are atomic towards that device's only, so neither this process nor a peer may change
        /// such a word in any other way while they run. Not part of [`all`](Self::all) that a program needs: exposing memory with it
        /// fails where no device does atomics.
        const DEVICE_ATOMIC = 4;
    }
}
