//! What a peer may do to exposed memory.

bitflags::bitflags! {
    /// Rights that an exposed region grants to those who hold its descriptor.
    ///
    /// [`all`](Self::all) are those that any memory has, [`READ`](Self::READ) and [`WRITE`](Self::WRITE).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias("UCP_MEM_MAP_PROT_REMOTE_READ", "UCP_MEM_MAP_PROT_REMOTE_WRITE", "UCP_MEM_MAP_PROT_LOCAL_READ", "UCP_MEM_MAP_PROT_LOCAL_WRITE"))]
    pub struct Access: u8 {
        /// Peers may read the region by get.
        const READ = 1;
        /// Peers may write the region by put.
        const WRITE = 2;
    }
}

impl Access {
    /// Peers may run atomics of a network device on the region's 64-bit words (fetch-and-add, compare-and-swap), and those alone: no processor's
    /// atomics. A device's atomics are atomic towards that device's only, so neither this process nor a peer may change such a word in any other
    /// way while they run. Exposing memory with it fails where no device does atomics: so it is named, and not among [`all`](Self::all).
    pub const DEVICE_ATOMIC: Self = Self::from_bits_retain(4);
    const KNOWN: Self = Self::all().union(Self::DEVICE_ATOMIC);

    /// Of those that are known.
    pub(crate) const fn of_bits(bits: u8) -> Self {
        Self::from_bits_retain(bits).intersection(Self::KNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_right_is_named_only() {
        let all = Access::all();
        assert!(all.contains(Access::READ | Access::WRITE) && !all.contains(Access::DEVICE_ATOMIC));
        let three = all | Access::DEVICE_ATOMIC;
        assert!(three.contains(Access::DEVICE_ATOMIC) && three.contains(all));
        assert_eq!(Access::of_bits(0xff), three);
        assert_eq!(Access::of_bits(three.bits()), three);
        assert_eq!(three - Access::DEVICE_ATOMIC, all);
    }
}
