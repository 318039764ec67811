//! The table of what is measured, and against whom.

use crate::spec::Verb;

/// One row of wharf's, with everybody it is compared to.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) transport: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) verb: Verb,
    pub(crate) size: usize,
    pub(crate) unit: Unit,
    /// The variant of wharf: its progress policy.
    pub(crate) wharf: &'static str,
    pub(crate) peers: &'static [Peer],
}

/// Somebody or something to compare with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// A floor of this program.
    Floor(&'static str, &'static str),
    /// UCX that polls, with these transports.
    Ucx(&'static str),
    /// UCX in a Tokio task, waiting as the variant says; only with UCX built in.
    UcxTokio(&'static str),
    /// Tokio's own socket.
    Tokio,
    /// A raw socket that spins.
    Raw,
    Iceoryx2,
    /// rdma-core's perftest, which waits as the variant says.
    RdmaCore(&'static str),
    /// A number that must not be exceeded.
    Limit(f64),
    /// Nobody.
    Alone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Nanoseconds,
    MillionsPerSecond,
    GigabytesPerSecond,
    Kibibytes,
    WakeUps,
    Microseconds,
}

impl Unit {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::MillionsPerSecond => "M/s",
            Self::GigabytesPerSecond => "GB/s",
            Self::Kibibytes => "KiB",
            Self::WakeUps => "wakeups",
            Self::Microseconds => "us",
        }
    }

    /// Above 1 when wharf is better. Nothing when one of them is missing.
    pub(crate) fn ratio(self, wharf: Option<f64>, peer: Option<f64>) -> Option<f64> {
        let (wharf, peer) = (wharf?, peer?);
        let (good, bad) = match self {
            Self::MillionsPerSecond | Self::GigabytesPerSecond => (wharf, peer),
            _ => (peer, wharf),
        };
        if good == 0.0 && bad == 0.0 {
            return Some(1.0);
        }
        let ratio = good / bad;
        ratio.is_finite().then_some(ratio)
    }
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// What UCX takes by itself on one host.
const UCX_SHM: &str = "posix,cma,self";
/// UCX without the kernel's copies: sometimes its better choice.
const UCX_POSIX: &str = "posix,self";
const UCX_TCP: &str = "tcp,self";

const LINE: Peer = Peer::Floor("line", "floor: cache line");
const RING: Peer = Peer::Floor("ring", "floor: ring alone");
const MEMCPY: Peer = Peer::Floor("memcpy", "floor: memcpy");
const HALVES: Peer = Peer::Floor("halves", "floor: memcpy, both ends a half");
const CMA: Peer = Peer::Floor("cma", "floor: CMA pull");
const CMA_HALVES: Peer = Peer::Floor("cma-halves", "floor: CMA, both ends a half");
const EVENTFD: Peer = Peer::Floor("eventfd", "floor: eventfd to Tokio task");

pub(crate) const IDLE_ENDPOINTS: usize = 16;

pub(crate) const CASES: &[Case] = &[
    shm(
        "tag_latency",
        "hot",
        Verb::Latency,
        8,
        Unit::Nanoseconds,
        "busy",
        &[
            Peer::Ucx(UCX_SHM),
            LINE,
            Peer::Iceoryx2,
            Peer::UcxTokio("yield"),
            Peer::UcxTokio("asyncfd"),
        ],
    ),
    shm(
        "tag_latency",
        "adaptive",
        Verb::Latency,
        8,
        Unit::Nanoseconds,
        "adaptive",
        &[Peer::Ucx(UCX_SHM), LINE],
    ),
    shm(
        "tag_latency",
        "event",
        Verb::Latency,
        8,
        Unit::Nanoseconds,
        "event",
        &[Peer::Tokio],
    ),
    shm(
        "tag_rate",
        "hot",
        Verb::Rate,
        8,
        Unit::MillionsPerSecond,
        "busy",
        &[Peer::Ucx(UCX_SHM), RING, Peer::Tokio],
    ),
    stream(
        4 * KIB,
        &[
            Peer::Ucx(UCX_SHM),
            Peer::Ucx(UCX_POSIX),
            MEMCPY,
            Peer::Tokio,
        ],
    ),
    stream(
        64 * KIB,
        &[
            Peer::Ucx(UCX_SHM),
            Peer::Ucx(UCX_POSIX),
            MEMCPY,
            CMA,
            CMA_HALVES,
            Peer::Tokio,
        ],
    ),
    stream(
        MIB,
        &[
            Peer::Ucx(UCX_SHM),
            Peer::Ucx(UCX_POSIX),
            MEMCPY,
            CMA,
            CMA_HALVES,
            Peer::Tokio,
        ],
    ),
    stream(
        16 * MIB,
        &[
            Peer::Ucx(UCX_SHM),
            Peer::Ucx(UCX_POSIX),
            MEMCPY,
            CMA,
            CMA_HALVES,
        ],
    ),
    shm(
        "tag_stream_owned",
        "hot",
        Verb::StreamOwned,
        MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[MEMCPY, HALVES, Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "tag_stream_owned",
        "hot",
        Verb::StreamOwned,
        16 * MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[MEMCPY, HALVES, Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "am_latency",
        "hot",
        Verb::AmLatency,
        8,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_SHM), LINE],
    ),
    shm(
        "am_latency",
        "hot",
        Verb::AmLatency,
        4 * KIB,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "am_stream",
        "hot",
        Verb::AmStream,
        4 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Ucx(UCX_SHM), MEMCPY],
    ),
    shm(
        "am_read_latency",
        "hot",
        Verb::AmReadLatency,
        8,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "am_read_latency",
        "hot",
        Verb::AmReadLatency,
        4 * KIB,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "am_read_stream",
        "hot",
        Verb::AmReadStream,
        4 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "am_kept_latency",
        "hot",
        Verb::AmKeptLatency,
        8,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "am_kept_latency",
        "hot",
        Verb::AmKeptLatency,
        4 * KIB,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "am_kept_stream",
        "hot",
        Verb::AmKeptStream,
        4 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Ucx(UCX_SHM)],
    ),
    shm(
        "bytes",
        "hot",
        Verb::Bytes,
        64 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[
            Peer::Tokio,
            Peer::Ucx(UCX_SHM),
            Peer::Ucx(UCX_POSIX),
            MEMCPY,
        ],
    ),
    shm(
        "bytes",
        "adaptive",
        Verb::Bytes,
        64 * KIB,
        Unit::GigabytesPerSecond,
        "adaptive",
        &[Peer::Tokio],
    ),
    shm(
        "bytes",
        "adaptive",
        Verb::Bytes,
        64,
        Unit::GigabytesPerSecond,
        "adaptive",
        &[Peer::Tokio],
    ),
    shm(
        "bytes_owned",
        "hot",
        Verb::BytesOwned,
        64 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[MEMCPY],
    ),
    shm(
        "bytes_owned",
        "hot",
        Verb::BytesOwned,
        MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Tokio, MEMCPY, CMA],
    ),
    shm(
        "bytes_owned",
        "hot",
        Verb::BytesOwned,
        16 * MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[MEMCPY],
    ),
    shm(
        "bytes_allocated",
        "hot",
        Verb::BytesAllocated,
        64 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[MEMCPY],
    ),
    shm(
        "bytes_allocated",
        "hot",
        Verb::BytesAllocated,
        MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Tokio, MEMCPY, CMA],
    ),
    shm(
        "bytes_allocated",
        "hot",
        Verb::BytesAllocated,
        16 * MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[MEMCPY],
    ),
    shm(
        "bytes_owned",
        "adaptive",
        Verb::BytesOwned,
        MIB,
        Unit::GigabytesPerSecond,
        "adaptive",
        &[MEMCPY],
    ),
    shm(
        "bytes_allocated",
        "adaptive",
        Verb::BytesAllocated,
        MIB,
        Unit::GigabytesPerSecond,
        "adaptive",
        &[MEMCPY],
    ),
    shm(
        "bytes_latency",
        "adaptive",
        Verb::BytesLatency,
        64,
        Unit::Nanoseconds,
        "adaptive",
        &[Peer::Tokio, Peer::Ucx(UCX_SHM)],
    ),
    tcp(
        "bytes",
        "adaptive",
        Verb::Bytes,
        64 * KIB,
        Unit::GigabytesPerSecond,
        "adaptive",
        &[Peer::Tokio, Peer::Ucx(UCX_TCP)],
    ),
    tls(Verb::Bytes, 64 * KIB),
    tls(Verb::BytesLatency, 64),
    tcp(
        "bytes_latency",
        "adaptive",
        Verb::BytesLatency,
        64,
        Unit::Nanoseconds,
        "adaptive",
        &[Peer::Tokio],
    ),
    shm(
        "put_stream",
        "hot",
        Verb::Put,
        4 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Ucx(UCX_SHM), Peer::Ucx(UCX_POSIX), MEMCPY],
    ),
    shm(
        "put_stream",
        "hot",
        Verb::Put,
        MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Ucx(UCX_SHM), Peer::Ucx(UCX_POSIX), MEMCPY, HALVES],
    ),
    shm(
        "get",
        "hot",
        Verb::Get,
        8,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_SHM), Peer::Ucx(UCX_POSIX), LINE],
    ),
    shm(
        "fetch_add",
        "hot",
        Verb::FetchAdd,
        8,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_SHM), LINE],
    ),
    shm(
        "signal_latency",
        "hot",
        Verb::SignalLatency,
        8,
        Unit::Nanoseconds,
        "busy",
        &[LINE],
    ),
    shm(
        "put_signal",
        "parked",
        Verb::Signal,
        8,
        Unit::Nanoseconds,
        "adaptive",
        &[EVENTFD],
    ),
    shm(
        "tag_parked",
        "parked",
        Verb::Parked,
        8,
        Unit::Nanoseconds,
        "adaptive",
        &[EVENTFD, Peer::Tokio, Peer::UcxTokio("asyncfd")],
    ),
    tcp(
        "tag_latency",
        "hot",
        Verb::Latency,
        8,
        Unit::Nanoseconds,
        "busy",
        &[Peer::Ucx(UCX_TCP), Peer::Raw],
    ),
    tcp(
        "tag_latency",
        "event",
        Verb::Latency,
        8,
        Unit::Nanoseconds,
        "event",
        &[Peer::Tokio, Peer::UcxTokio("asyncfd")],
    ),
    tcp(
        "tag_stream",
        "hot",
        Verb::Stream,
        64 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Ucx(UCX_TCP), Peer::Raw, Peer::Tokio],
    ),
    tcp(
        "tag_stream",
        "hot",
        Verb::Stream,
        MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::Ucx(UCX_TCP), Peer::Raw, Peer::Tokio],
    ),
    tcp(
        "tag_parked",
        "parked",
        Verb::Parked,
        8,
        Unit::Nanoseconds,
        "adaptive",
        &[Peer::Tokio],
    ),
    shm(
        "idle_wakeups",
        "idle",
        Verb::Idle,
        IDLE_ENDPOINTS,
        Unit::WakeUps,
        "adaptive",
        &[Peer::Limit(0.0)],
    ),
    tcp(
        "idle_wakeups",
        "idle",
        Verb::Idle,
        IDLE_ENDPOINTS,
        Unit::WakeUps,
        "adaptive",
        &[Peer::Limit(0.0)],
    ),
    shm(
        "memory_per_connection",
        "idle",
        Verb::Memory,
        64,
        Unit::Kibibytes,
        "adaptive",
        &[Peer::Limit(256.0)],
    ),
    tcp(
        "memory_per_connection",
        "idle",
        Verb::Memory,
        256,
        Unit::Kibibytes,
        "adaptive",
        &[Peer::Limit(32.0)],
    ),
    shm(
        "connect_many",
        "idle",
        Verb::Many,
        1000,
        Unit::Microseconds,
        "adaptive",
        &[Peer::Alone],
    ),
    tcp(
        "connect_many",
        "idle",
        Verb::Many,
        1000,
        Unit::Microseconds,
        "adaptive",
        &[Peer::Alone],
    ),
    rdma(
        "tag_latency",
        "hot",
        Verb::Latency,
        64,
        Unit::Nanoseconds,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
    rdma(
        "tag_latency",
        "event",
        Verb::Latency,
        64,
        Unit::Nanoseconds,
        "event",
        &[Peer::RdmaCore("event")],
    ),
    rdma(
        "tag_latency",
        "adaptive",
        Verb::Latency,
        64,
        Unit::Nanoseconds,
        "adaptive",
        &[Peer::RdmaCore("poll"), Peer::RdmaCore("event")],
    ),
    rdma(
        "am_latency",
        "hot",
        Verb::AmLatency,
        64,
        Unit::Nanoseconds,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
    rdma(
        "am_latency",
        "event",
        Verb::AmLatency,
        64,
        Unit::Nanoseconds,
        "event",
        &[Peer::RdmaCore("event")],
    ),
    rdma(
        "put_latency",
        "hot",
        Verb::PutLatency,
        64,
        Unit::Nanoseconds,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
    rdma(
        "get",
        "hot",
        Verb::Get,
        64,
        Unit::Nanoseconds,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
    rdma(
        "fetch_add",
        "hot",
        Verb::FetchAdd,
        8,
        Unit::Nanoseconds,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
    rdma(
        "tag_rate",
        "hot",
        Verb::Rate,
        64,
        Unit::MillionsPerSecond,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
    rdma(
        "tag_rate",
        "event",
        Verb::Rate,
        64,
        Unit::MillionsPerSecond,
        "event",
        &[Peer::RdmaCore("event")],
    ),
    rdma(
        "tag_stream",
        "hot",
        Verb::Stream,
        64 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
    rdma(
        "put_stream",
        "hot",
        Verb::Put,
        64 * KIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
    rdma(
        "put_stream",
        "hot",
        Verb::Put,
        MIB,
        Unit::GigabytesPerSecond,
        "busy",
        &[Peer::RdmaCore("poll")],
    ),
];

const fn stream(size: usize, peers: &'static [Peer]) -> Case {
    shm(
        "tag_stream",
        "hot",
        Verb::Stream,
        size,
        Unit::GigabytesPerSecond,
        "busy",
        peers,
    )
}

const fn shm(
    name: &'static str,
    mode: &'static str,
    verb: Verb,
    size: usize,
    unit: Unit,
    wharf: &'static str,
    peers: &'static [Peer],
) -> Case {
    Case {
        name,
        transport: "shm",
        mode,
        verb,
        size,
        unit,
        wharf,
        peers,
    }
}

const fn tcp(
    name: &'static str,
    mode: &'static str,
    verb: Verb,
    size: usize,
    unit: Unit,
    wharf: &'static str,
    peers: &'static [Peer],
) -> Case {
    Case {
        name,
        transport: "tcp",
        mode,
        verb,
        size,
        unit,
        wharf,
        peers,
    }
}

/// Byte streams over TCP under TLS, beside tokio-rustls with the same provider and certificates.
const fn tls(verb: Verb, size: usize) -> Case {
    let (name, unit) = match verb {
        Verb::Bytes => ("bytes", Unit::GigabytesPerSecond),
        _ => ("bytes_latency", Unit::Nanoseconds),
    };
    Case {
        name,
        transport: "tls",
        mode: "adaptive",
        verb,
        size,
        unit,
        wharf: "adaptive",
        peers: &[Peer::Tokio],
    }
}

const fn rdma(
    name: &'static str,
    mode: &'static str,
    verb: Verb,
    size: usize,
    unit: Unit,
    wharf: &'static str,
    peers: &'static [Peer],
) -> Case {
    Case {
        name,
        transport: crate::rdma_core::TRANSPORT,
        mode,
        verb,
        size,
        unit,
        wharf,
        peers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_one_is_better() {
        assert_eq!(Unit::Nanoseconds.ratio(Some(1.0), Some(2.0)), Some(2.0));
        assert_eq!(
            Unit::GigabytesPerSecond.ratio(Some(1.0), Some(2.0)),
            Some(0.5)
        );
        assert_eq!(Unit::WakeUps.ratio(Some(0.0), Some(0.0)), Some(1.0));
        assert_eq!(Unit::WakeUps.ratio(Some(3.0), Some(0.0)), Some(0.0));
        assert_eq!(Unit::Kibibytes.ratio(None, Some(0.0)), None);
    }
}
