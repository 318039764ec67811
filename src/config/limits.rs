//! What peers may make a worker hold: of memory, messages, streams, requests and connections.

use std::{fmt, str::FromStr};

use super::{
    nearest::did_you_mean,
    setting::invalid,
    value::{self, displayed},
};
use crate::error::Error;

/// What peers may make a worker hold before they are held back, and then refused.
///
/// Each amount is bounded three times: for one connection, for all connections from one source together, and for the whole worker. A source is
/// the IP address of a peer over a network (of an IPv6 address the first 64 bits), and over a Unix socket the user that the kernel knows a peer to be,
/// whatever it says of itself. The loopback connection of a worker to itself is not limited.
///
/// Peers that keep to the protocol are held back by its windows long before they reach the default limit of a connection: 1 MiB of tagged messages,
/// 512 KiB of active ones of each id that is received here, 4096 announced ones, 128 streams of 64 KiB that nobody has accepted. Who receives more than some
/// forty ids, and leaves them all untaken, needs a higher one. What is beyond a limit is refused with
/// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted): a stream or a get alone; a message, of which its sender has no hope to hear, with its
/// connection. Who leaves more than 32,768 answers unread is cut off whatever the limits. Windows that are given back count with them, and
/// beginnings and ends of streams: 64 bytes each, in no limit's amount.
///
/// Messages that had arrived whole when their connection ended stay to be received, and count for their source and the worker until then.
/// Messages are not kept of a peer that broke the protocol or went beyond a limit; its streams stay, to be accepted and read. What is held now,
/// [`WorkerMetrics::held`](crate::WorkerMetrics::held) tells; how often each limit was met, [`WorkerMetrics::refused`](crate::WorkerMetrics::refused).
///
/// A count of [`u64::MAX`] is no limit. The variable `WHARF_LIMITS` sets single amounts, as in `connection.unexpected_bytes=1M,worker.connections=100`.
///
/// ```
/// # fn main() -> wharf::Result<()> {
/// use wharf::{Context, config::Limits};
///
/// let limits = Limits::default()
///     .each_connection(|quota| quota.unaccepted_streams(16))
///     .each_source(|quota| quota.unexpected_bytes(32 << 20).connections(64))
///     .whole_worker(|quota| quota.unexpected_bytes(512 << 20).connections(4096));
/// let context = Context::builder().limits(limits).build()?;
/// # assert!(context.configuration().iter().any(|entry| entry.value.as_deref().is_some_and(|text| text.contains("source.connections=64"))));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// For each connection.
    pub connection: Quota,
    /// For all connections from one source together.
    pub source: Quota,
    /// For all connections of a worker together.
    pub worker: Quota,
}

/// Amounts that may be held: of one connection, one source or one worker ([`Limits`]).
///
/// | amount | unit | connection | source | worker |
/// |---|---|---|---|---|
/// | [`unexpected_bytes`](Self::unexpected_bytes) | bytes | 32 MiB | 256 MiB | 1 GiB |
/// | [`unexpected_messages`](Self::unexpected_messages) | count | 65,536 | 524,288 | 2,097,152 |
/// | [`unaccepted_streams`](Self::unaccepted_streams) | count | 128 | 4096 | 65,536 |
/// | [`requests`](Self::requests) | count | 16,384 | 131,072 | 1,048,576 |
/// | [`connections`](Self::connections) | count | none | 16,384 | 65,536 |
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    /// Bytes of memory in messages that arrived before anybody received them, or of which a part is here, with what is needed to keep them; in streams
    /// before anybody accepted them; in answers that wait until the peer reads; and in lists of blocks that it gets or puts.
    pub unexpected_bytes: u64,
    /// Messages that arrived, or were announced, before anybody received them. Those that dropped receives put back count as one each, however long they are,
    /// and are refused none; but where the peer has yet to send the rest of one, and has more than twice as many here, and 16, its connection ends.
    pub unexpected_messages: u64,
    /// Streams that peers have opened and nobody has accepted. Of one connection at most 128, which is the protocol's limit.
    pub unaccepted_streams: u64,
    /// What peers ask for and is being served in messages: gets, puts into device memory, parts of announced messages. Of gets of many blocks, and puts
    /// of many into device memory, at most 64 for each connection are served at a time, which is the protocol's limit.
    pub requests: u64,
    /// Connections that peers have made; not those that the worker itself has dialled, and not those whose peers have yet to say who they are, which
    /// have [places of their own](crate::ContextBuilder::handshake_timeout). Of one connection it means nothing.
    pub connections: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connection: Quota {
                unexpected_bytes: 32 << 20,
                unexpected_messages: 1 << 16,
                unaccepted_streams: 128,
                requests: 1 << 14,
                connections: u64::MAX,
            },
            source: Quota {
                unexpected_bytes: 256 << 20,
                unexpected_messages: 1 << 19,
                unaccepted_streams: 1 << 12,
                requests: 1 << 17,
                connections: 1 << 14,
            },
            worker: Quota {
                unexpected_bytes: 1 << 30,
                unexpected_messages: 1 << 21,
                unaccepted_streams: 1 << 16,
                requests: 1 << 20,
                connections: 1 << 16,
            },
        }
    }
}

impl Limits {
    /// Changes what each connection may hold.
    #[must_use]
    pub fn each_connection(mut self, change: impl FnOnce(Quota) -> Quota) -> Self {
        self.connection = change(self.connection);
        self
    }

    /// Changes what all connections from one source may hold together.
    #[must_use]
    pub fn each_source(mut self, change: impl FnOnce(Quota) -> Quota) -> Self {
        self.source = change(self.source);
        self
    }

    /// Changes what all connections of a worker may hold together.
    #[must_use]
    pub fn whole_worker(mut self, change: impl FnOnce(Quota) -> Quota) -> Self {
        self.worker = change(self.worker);
        self
    }

    /// Reads `SCOPE.AMOUNT=COUNT` with commas between; what is not named keeps its default.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for part in text.split(',') {
            let expected = || format!("expected \"SCOPE.AMOUNT=COUNT\", found \"{part}\"");
            let (name, count) = part.split_once('=').ok_or_else(expected)?;
            let (scope, amount) = name.trim().split_once('.').ok_or_else(expected)?;
            let scopes = ["connection", "source", "worker"];
            let quota = match scope {
                "connection" => &mut limits.connection,
                "source" => &mut limits.source,
                "worker" => &mut limits.worker,
                _ => {
                    return Err(format!(
                        "no scope \"{scope}\"{}",
                        did_you_mean(scope, scopes)
                    ));
                }
            };
            let names = quota.amounts().map(|(name, _)| name);
            let mut amounts = quota.amounts_mut();
            let Some((_, place)) = amounts.iter_mut().find(|(name, _)| *name == amount) else {
                return Err(format!(
                    "no amount \"{amount}\"{}",
                    did_you_mean(amount, names)
                ));
            };
            **place = match count.trim() {
                "inf" => u64::MAX,
                count => value::bytes(count)? as u64,
            };
        }
        Ok(limits)
    }
}

/// As `WHARF_LIMITS` takes it, complete.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes = [
            ("connection", &self.connection),
            ("source", &self.source),
            ("worker", &self.worker),
        ];
        let parts = scopes.iter().flat_map(|(scope, quota)| {
            quota.amounts().map(|(name, count)| match count {
                u64::MAX => format!("{scope}.{name}=inf"),
                count => format!("{scope}.{name}={count}"),
            })
        });
        f.write_str(&parts.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Limits {
    type Err = Error;

    /// As `WHARF_LIMITS`: `SCOPE.AMOUNT=COUNT` with commas between; the others are the defaults.
    ///
    /// # Errors
    /// `Configuration`.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text).map_err(invalid)
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_text! { Limits }

displayed! { Limits }

macro_rules! amounts {
    ($($name:ident: $doc:literal;)+) => {
        impl Quota {
            $(
                #[doc = $doc]
                #[must_use]
                pub fn $name(mut self, count: u64) -> Self {
                    self.$name = count;
                    self
                }
            )+

            fn amounts(&self) -> [(&'static str, u64); 5] {
                [$((stringify!($name), self.$name)),+]
            }

            fn amounts_mut(&mut self) -> [(&'static str, &mut u64); 5] {
                [$((stringify!($name), &mut self.$name)),+]
            }
        }
    };
}

amounts! {
    unexpected_bytes: "Sets the bytes in messages that nobody has received and streams that nobody has accepted.";
    unexpected_messages: "Sets the count of messages that nobody has received.";
    unaccepted_streams: "Sets the count of streams that nobody has accepted.";
    requests: "Sets the count of requests that are being served.";
    connections: "Sets the count of connections.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_round() {
        let limits = Limits::default()
            .each_connection(|quota| quota.unexpected_bytes(7).requests(u64::MAX))
            .each_source(|quota| quota.connections(3))
            .whole_worker(|quota| quota.unaccepted_streams(0).unexpected_messages(9));
        assert_eq!(Limits::parse(&limits.to_string()), Ok(limits));
    }

    #[test]
    fn what_is_named_is_set_and_nothing_else() {
        let limits = Limits::parse("connection.unexpected_bytes=1M, worker.connections=inf");
        let expected = Limits::default()
            .each_connection(|quota| quota.unexpected_bytes(1 << 20))
            .whole_worker(|quota| quota.connections(u64::MAX));
        assert_eq!(limits, Ok(expected));
    }

    #[test]
    fn what_is_unknown_is_refused_with_the_nearest() {
        for (text, says) in [
            ("conection.requests=1", "\"connection\""),
            ("worker.request=1", "\"requests\""),
            ("worker.requests", "SCOPE.AMOUNT=COUNT"),
            ("worker.requests=-1", "expected a size"),
            ("", "SCOPE.AMOUNT=COUNT"),
        ] {
            let error = Limits::parse(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
