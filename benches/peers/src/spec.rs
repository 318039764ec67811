//! What one measurement is: the words that the coordinator hands to the two halves.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::rdma_core;

/// What is done with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// One message there, one back; half a round trip.
    Latency,
    /// Small messages one way, as many as go.
    Rate,
    /// Messages one way from ordinary memory.
    Stream,
    /// Messages one way between buffers that wharf allocated.
    StreamOwned,
    /// As [`Verb::Latency`], by active messages.
    AmLatency,
    /// As [`Verb::Stream`], by active messages.
    AmStream,
    /// The same two, with each byte of a message read where it lies.
    AmReadLatency,
    AmReadStream,
    /// The same two, with each message kept by wharf's receiver.
    AmKeptLatency,
    AmKeptStream,
    /// One-sided writes between buffers that the library allocated.
    Put,
    /// One-sided writes there and back, seen by looking at memory; half a round trip.
    PutLatency,
    /// One-sided read, one at a time, whole operation.
    Get,
    /// Atomic fetch-add, one at a time, whole operation.
    FetchAdd,
    /// A signal there and one back, each to a counter that somebody waits for; half a round trip.
    SignalLatency,
    /// A put with a signal to a target that has slept for [`Spec::gap`].
    Signal,
    /// One message to a receiver that has slept for [`Spec::gap`].
    Parked,
    /// Wake-ups at rest; `size` is the number of endpoints.
    Idle,
    /// Memory for each idle connection; `size` is the number of endpoints.
    Memory,
    /// A byte stream one way, in writes of the size from one place of ordinary memory.
    Bytes,
    /// A byte stream one way, in buffers that the stream owns meanwhile.
    BytesOwned,
    /// As `BytesOwned`, from memory that wharf allocated.
    BytesAllocated,
    /// Bytes there and back on a stream; half a round trip.
    BytesLatency,
    /// Many endpoints on one worker; `size` is their number.
    Many,
}

const VERBS: [(Verb, &str); 24] = [
    (Verb::Latency, "latency"),
    (Verb::Rate, "rate"),
    (Verb::Stream, "stream"),
    (Verb::StreamOwned, "stream_owned"),
    (Verb::AmLatency, "am_latency"),
    (Verb::AmStream, "am_stream"),
    (Verb::AmReadLatency, "am_read_latency"),
    (Verb::AmReadStream, "am_read_stream"),
    (Verb::AmKeptLatency, "am_kept_latency"),
    (Verb::AmKeptStream, "am_kept_stream"),
    (Verb::Put, "put"),
    (Verb::PutLatency, "put_latency"),
    (Verb::Get, "get"),
    (Verb::FetchAdd, "fetch_add"),
    (Verb::SignalLatency, "signal_latency"),
    (Verb::Signal, "signal"),
    (Verb::Parked, "parked"),
    (Verb::Idle, "idle"),
    (Verb::Memory, "memory"),
    (Verb::Bytes, "bytes"),
    (Verb::BytesOwned, "bytes_owned"),
    (Verb::BytesAllocated, "bytes_allocated"),
    (Verb::BytesLatency, "bytes_latency"),
    (Verb::Many, "many"),
];

impl Verb {
    /// Whether active messages are sent there and back.
    #[cfg(feature = "ucx")]
    pub(crate) fn is_am_latency(self) -> bool {
        matches!(
            self,
            Self::AmLatency | Self::AmReadLatency | Self::AmKeptLatency
        )
    }

    /// Whether active messages are sent.
    #[cfg(feature = "ucx")]
    pub(crate) fn is_am(self) -> bool {
        self.is_am_latency()
            || matches!(
                self,
                Self::AmStream | Self::AmReadStream | Self::AmKeptStream
            )
    }

    /// Whether each byte of them is read where it lies.
    #[cfg(feature = "ucx")]
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::AmReadLatency | Self::AmReadStream)
    }

    fn word(self) -> &'static str {
        VERBS
            .iter()
            .find(|(verb, _)| *verb == self)
            .map_or("?", |(_, word)| word)
    }
}

/// One measurement of one contestant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Who is measured: `wharf`, `ucx`, `tokio`, `raw`, `iceoryx2`, `floor`.
    pub(crate) family: String,
    /// Which form of it; the family gives it a meaning.
    pub(crate) variant: String,
    pub(crate) verb: Verb,
    /// `shm`, `tcp`, `tls` (tcp under TLS) or `rc_verbs`.
    pub(crate) transport: String,
    /// Bytes of a message, or a number of endpoints.
    pub(crate) size: usize,
    /// How long the timed part lasts.
    pub(crate) millis: u64,
    /// How long the receiver has slept before each message of [`Verb::Parked`].
    pub(crate) gap_us: u64,
}

impl Spec {
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_millis((self.millis / 5).clamp(5, 50))
    }

    pub(crate) fn gap(&self) -> Duration {
        Duration::from_micros(self.gap_us)
    }

    /// How many messages a sender keeps in flight when it streams.
    pub(crate) fn window(&self) -> usize {
        match self.size {
            0..=1024 => 64,
            1025..=131_072 => 16,
            131_073..=4_194_304 => 4,
            _ => 2,
        }
    }

    /// How many operations are timed together.
    pub(crate) fn batch(&self) -> usize {
        match self.size {
            // As perftest does it. An emulated device takes some 100 us for each, and a mean of several holds what the host did meanwhile.
            0..=131_072 if self.transport == rdma_core::TRANSPORT => 1,
            0..=1024 => 200,
            1025..=131_072 => 32,
            131_073..=4_194_304 => 4,
            _ => 1,
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} {} {} {} {}",
            self.family,
            self.variant,
            self.verb.word(),
            self.transport,
            self.size,
            self.millis,
            self.gap_us
        )
    }
}

impl FromStr for Spec {
    type Err = crate::Failure;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split(' ').collect();
        let [family, variant, verb, transport, size, millis, gap] = words[..] else {
            return Err(format!("a measurement has seven words, not `{text}`").into());
        };
        let (verb, _) = VERBS
            .iter()
            .find(|(_, word)| *word == verb)
            .ok_or_else(|| format!("no verb `{verb}`"))?;
        Ok(Self {
            family: family.into(),
            variant: variant.into(),
            verb: *verb,
            transport: transport.into(),
            size: size.parse()?,
            millis: millis.parse()?,
            gap_us: gap.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_survives_the_command_line() {
        for (verb, _) in VERBS {
            let spec = Spec {
                family: "ucx".into(),
                variant: "poll".into(),
                verb,
                transport: "shm".into(),
                size: 8,
                millis: 100,
                gap_us: 0,
            };
            assert_eq!(spec.to_string().parse::<Spec>().unwrap(), spec);
        }
    }
}
