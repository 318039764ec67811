//! What a peer may do to exposed memory.

bitflags::bitflags! {
    /// Rights that an exposed region grants to those who hold its descriptor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Peers may read the region by get.
        const READ = 1;
        /// Peers may write the region by put.
        const WRITE = 2;
    }
}
