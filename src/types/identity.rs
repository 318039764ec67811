//! Who a process is, as far as it decides which paths lead to it.

/// Where a process lives. Two processes share memory when host, boot and (for the socket that passes it) network namespace
/// agree, and read each other's memory when process namespace and user agree too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The kernel's boot id (`/proc/sys/kernel/random/boot_id`), 16 bytes; zero when unknown, and then equal to no other.
    pub boot: [u8; 16],
    /// Inode of the network namespace (`/proc/self/ns/net`), 0 when unknown.
    pub net_namespace: u64,
    /// Inode of the process namespace (`/proc/self/ns/pid`), 0 when unknown.
    pub pid_namespace: u64,
    /// Inode of the user namespace (`/proc/self/ns/user`), 0 when unknown.
    pub user_namespace: u64,
    /// Effective user id.
    pub user: u32,
    /// Process id in its own namespace.
    pub pid: u32,
}

impl Identity {
    /// Whether both run on one kernel since one boot.
    #[must_use]
    pub fn same_host(&self, other: &Self) -> bool {
        self.boot == other.boot && self.boot != [0; 16]
    }
}

/// Where a process has what it drew at random for one connection: who reads that there reaches the right process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landmark {
    pub(crate) address: u64,
    pub(crate) holds: [u8; 16],
}
