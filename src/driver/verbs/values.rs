//! The words of verbs: numbers of the header as newtypes, with names where a reader wants one.

use std::fmt;

use crate::error::ErrorKind;

bitflags::bitflags! {
    /// `ibv_access_flags`: what a registration, or a queue pair, allows. Remote writes and atomics need `LOCAL_WRITE` too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub(crate) struct Access: u32 {
        /// The device may write here for this process: receives, results of reads and atomics.
        const LOCAL_WRITE = 1;
        /// A peer may write.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Pages are fetched when the device wants them, instead of pinned.
        const ON_DEMAND = 1 << 6;
        /// Writes may overtake each other on the bus; ignored by kernels and devices that do not know it.
        const RELAXED_ORDERING = 1 << 20;
    }

    /// `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub(crate) struct SendFlags: u32 {
        /// Wait until earlier reads and atomics are done.
        const FENCE = 1;
        /// Completion is told by the completion queue.
        const SIGNALED = 1 << 1;
        /// Wakes a peer who armed for solicited events alone.
        const SOLICITED = 1 << 2;
        /// The bytes are copied when posted: no key is needed, the memory is free at once.
        const INLINE = 1 << 3;
    }
}

/// Newtypes over a number, with constants, and a phrase for each.
macro_rules! words {
    ($( $(#[$meta:meta])* $Name:ident: $otherwise:literal { $( $value:ident = $number:literal, $phrase:literal; )+ } )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub(crate) struct $Name(pub(crate) u32);

        #[allow(dead_code, reason = "the names of the header, whether somebody compares with them or not")]
        impl $Name {
            $( #[doc = concat!("`", stringify!($value), "`: ", $phrase, ".")]
            pub(crate) const $value: Self = Self($number); )+

            /// The name in the header and a phrase, where it is known.
            pub(crate) const fn known(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $( $number => Some((stringify!($value), $phrase)), )+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.known() {
                    Some((name, phrase)) => write!(f, "{phrase} ({name}, {})", self.0),
                    None => write!(f, "{} {}", $otherwise, self.0),
                }
            }
        }

        impl fmt::Debug for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )+ };
}

words! {
    /// `ibv_wc_status`: how a work request ended.
    Status: "completion status" {
        SUCCESS = 0, "done";
        LOC_LEN_ERR = 1, "the message is longer than the memory posted for it";
        LOC_QP_OP_ERR = 2, "the queue pair cannot do this";
        LOC_PROT_ERR = 4, "a local key does not cover the memory named";
        WR_FLUSH_ERR = 5, "the queue pair had failed before";
        MW_BIND_ERR = 6, "a memory window could not be bound";
        BAD_RESP_ERR = 7, "the peer's device answered what it may not";
        LOC_ACCESS_ERR = 8, "the local memory does not allow what the peer asked";
        REM_INV_REQ_ERR = 9, "the peer's device takes no such request";
        REM_ACCESS_ERR = 10, "the peer's key does not allow this, or does not exist any longer";
        REM_OP_ERR = 11, "the peer's device could not do it";
        RETRY_EXC_ERR = 12, "the peer's device did not answer in all the tries";
        RNR_RETRY_EXC_ERR = 13, "the peer had no receive posted in all the tries";
        REM_ABORT_ERR = 16, "the peer aborted";
        FATAL_ERR = 19, "the device has failed";
        RESP_TIMEOUT_ERR = 20, "the peer's device answered too late";
        GENERAL_ERR = 21, "the device reports an error";
    }

    /// `ibv_event_type`: what a device tells without being asked.
    EventKind: "device event" {
        CQ_ERR = 0, "a completion queue has failed (overrun)";
        QP_FATAL = 1, "a queue pair has failed";
        QP_REQ_ERR = 2, "a peer sent what the queue pair does not take";
        QP_ACCESS_ERR = 3, "a peer was refused access";
        COMM_EST = 4, "the first packet of a connection came";
        SQ_DRAINED = 5, "a send queue has drained";
        PATH_MIG = 6, "a connection moved to its other path";
        PATH_MIG_ERR = 7, "a connection could not move to its other path";
        DEVICE_FATAL = 8, "the device has failed or was removed";
        PORT_ACTIVE = 9, "a port is up";
        PORT_ERR = 10, "a port is down";
        LID_CHANGE = 11, "a port's LID changed";
        PKEY_CHANGE = 12, "a port's keys of partitions changed";
        SM_CHANGE = 13, "the subnet has another manager";
        SRQ_ERR = 14, "a shared receive queue has failed";
        SRQ_LIMIT_REACHED = 15, "a shared receive queue runs low";
        QP_LAST_WQE_REACHED = 16, "a failed queue pair takes nothing more from its shared receive queue";
        CLIENT_REREGISTER = 17, "the subnet's manager forgot its clients";
        GID_CHANGE = 18, "a port's table of GIDs changed";
        WQ_FATAL = 19, "a work queue has failed";
    }

    /// `ibv_qp_state`.
    State: "queue pair state" {
        RESET = 0, "just made";
        INIT = 1, "takes receives";
        RTR = 2, "receives";
        RTS = 3, "sends and receives";
        SQD = 4, "drains its sends";
        SQE = 5, "its sends have failed";
        ERR = 6, "has failed";
    }

    /// `ibv_port_state`.
    PortState: "port state" {
        NOP = 0, "nothing";
        DOWN = 1, "down";
        INIT = 2, "waits for the subnet's manager";
        ARMED = 3, "waits to be used";
        ACTIVE = 4, "up";
    }

    /// `ibv_gid_type_sysfs`, `ibv_gid_type`: by which network a GID is reached.
    GidKind: "GID of kind" {
        IB = 0, "InfiniBand";
        ROCE_V1 = 1, "RoCE v1";
        ROCE_V2 = 2, "RoCE v2";
    }

    /// The link layer of a port.
    LinkLayer: "link layer" {
        UNSPECIFIED = 0, "unknown";
        INFINIBAND = 1, "InfiniBand";
        ETHERNET = 2, "Ethernet";
    }

    /// `ibv_transport_type`.
    Transport: "transport type" {
        IB = 0, "InfiniBand or RoCE";
        IWARP = 1, "iWARP";
        USNIC = 2, "usNIC";
        UNSPECIFIED = 4, "its own";
    }
}

impl Status {
    /// What it is for a caller who branches on kinds.
    pub(crate) const fn kind(self) -> ErrorKind {
        match self {
            Self::LOC_LEN_ERR => ErrorKind::Truncated,
            Self::LOC_PROT_ERR => ErrorKind::InvalidArgument,
            Self::LOC_ACCESS_ERR | Self::REM_ACCESS_ERR => ErrorKind::AccessDenied,
            Self::BAD_RESP_ERR | Self::REM_INV_REQ_ERR => ErrorKind::Protocol,
            // Soft-RoCE says that the queue pair cannot do it (`LOC_QP_OP_ERR`) where it cannot send a packet: its link is down (Linux 6.1).
            Self::WR_FLUSH_ERR
            | Self::LOC_QP_OP_ERR
            | Self::REM_OP_ERR
            | Self::RNR_RETRY_EXC_ERR
            | Self::REM_ABORT_ERR => ErrorKind::ConnectionReset,
            // No answer from there.
            Self::RETRY_EXC_ERR | Self::RESP_TIMEOUT_ERR => ErrorKind::Unreachable,
            Self::FATAL_ERR => ErrorKind::DeviceLost,
            _ => ErrorKind::Io,
        }
    }
}

/// A status as an error's cause.
impl std::error::Error for Status {}

impl EventKind {
    /// Whether nothing on the device goes on.
    pub(crate) const fn is_device_end(self) -> bool {
        matches!(self, Self::DEVICE_FATAL)
    }
}

/// How large a packet's payload may be, as verbs count: 256 to 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Mtu(u8);

impl Mtu {
    /// From the header's number, 1 to 5.
    pub(crate) const fn from_code(code: u32) -> Option<Self> {
        match code {
            1..=5 => Some(Self(code as u8)),
            _ => None,
        }
    }

    /// The largest that is not above `bytes`; `None` below 256.
    pub(crate) fn within(bytes: u32) -> Option<Self> {
        (1..=5_u8).rev().map(Self).find(|mtu| mtu.bytes() <= bytes)
    }

    /// The header's number.
    pub(crate) const fn code(self) -> u32 {
        self.0 as u32
    }

    /// In bytes.
    pub(crate) const fn bytes(self) -> u32 {
        128 << self.0
    }
}

/// A port's address on the network: an IPv6 address, or an IPv4 one mapped into it, on RoCE.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

impl Gid {
    pub(super) fn from_words(words: [u64; 2]) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
        Self(bytes)
    }

    pub(super) fn words(self) -> [u64; 2] {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.0[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        [word(0), word(8)]
    }

    /// As an IP address; an IPv4 one where one is mapped in it.
    pub(crate) fn ip(self) -> std::net::IpAddr {
        std::net::Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether nothing is there.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip(), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
