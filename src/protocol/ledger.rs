//! What a worker holds for its peers: an account for each connection, one for each source, one for all. Whatever stores something for a
//! peer takes from the connection's account, and gives back when it lets go of it.
//!
//! An account outlives its connection for as long as something is held under it: messages that had arrived whole. They go on counting for
//! their source and the worker.

use std::collections::HashMap;

use slab::Slab;

use crate::{
    error::{Error, ErrorKind, Result},
    types::Source,
};

/// An account of a connection. The first is nobody's: what cannot be told to have come from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountId(u32);

impl AccountId {
    pub(crate) const NOBODY: Self = Self(0);

    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is held, may be held, or was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) streams: u64,
    pub(crate) requests: u64,
}

impl Amount {
    /// A stream that nobody has accepted.
    pub(crate) const STREAM: Self = Self {
        bytes: 0,
        messages: 0,
        streams: 1,
        requests: 0,
    };

    /// A request that is being served, with as many bytes of memory beside its place.
    pub(crate) const fn request(bytes: usize) -> Self {
        Self {
            bytes: bytes as u64,
            messages: 0,
            streams: 0,
            requests: 1,
        }
    }

    /// A message that takes as many bytes of memory.
    #[inline]
    pub(crate) const fn message(bytes: usize) -> Self {
        Self {
            bytes: bytes as u64,
            messages: 1,
            streams: 0,
            requests: 0,
        }
    }

    /// Bytes that belong to what was counted before.
    #[inline]
    pub(crate) const fn bytes(bytes: usize) -> Self {
        Self {
            bytes: bytes as u64,
            messages: 0,
            streams: 0,
            requests: 0,
        }
    }

    #[inline]
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.messages += other.messages;
        self.streams += other.streams;
        self.requests += other.requests;
    }

    #[inline]
    fn subtract(&mut self, other: Self) {
        debug_assert!(
            self.bytes >= other.bytes
                && self.messages >= other.messages
                && self.streams >= other.streams
                && self.requests >= other.requests,
            "more is given back than was taken: {self:?} - {other:?}"
        );
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.messages = self.messages.saturating_sub(other.messages);
        self.streams = self.streams.saturating_sub(other.streams);
        self.requests = self.requests.saturating_sub(other.requests);
    }

    /// Without a limit.
    const ANY: Self = Self {
        bytes: u64::MAX,
        messages: u64::MAX,
        streams: u64::MAX,
        requests: u64::MAX,
    };

    /// What of `quota` there would be too much of with `more`.
    #[inline]
    fn exceeds(&self, more: &Self, quota: &Self) -> Option<What> {
        let over = |held: u64, more: u64, limit: u64| more > 0 && held.saturating_add(more) > limit;
        if over(self.bytes, more.bytes, quota.bytes) {
            Some(What::Bytes)
        } else if over(self.messages, more.messages, quota.messages) {
            Some(What::Messages)
        } else if over(self.streams, more.streams, quota.streams) {
            Some(What::Streams)
        } else if over(self.requests, more.requests, quota.requests) {
            Some(What::Requests)
        } else {
            None
        }
    }

    fn of(&mut self, what: What) -> &mut u64 {
        match what {
            What::Bytes => &mut self.bytes,
            What::Messages => &mut self.messages,
            What::Streams => &mut self.streams,
            What::Requests => &mut self.requests,
        }
    }
}

/// One of the counts of an [`Amount`].
#[derive(Clone, Copy, Debug)]
enum What {
    Bytes,
    Messages,
    Streams,
    Requests,
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "unexpected bytes",
            Self::Messages => "unexpected messages",
            Self::Streams => "unaccepted streams",
            Self::Requests => "requests",
        }
    }
}

#[derive(Debug)]
struct Account {
    source: u32,
    held: Amount,
    is_open: bool,
}

#[derive(Debug)]
struct SourceAccount {
    source: Source,
    held: Amount,
    /// Accounts of it.
    accounts: usize,
}

/// One of these amounts for a connection, a source, and the worker: how much each may hold, or how often it could not hold more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) connection: Amount,
    pub(crate) source: Amount,
    pub(crate) worker: Amount,
}

impl Amounts {
    /// No limits.
    const ANY: Self = Self {
        connection: Amount::ANY,
        source: Amount::ANY,
        worker: Amount::ANY,
    };

    fn of(&mut self, whose: Whose) -> &mut Amount {
        match whose {
            Whose::Connection => &mut self.connection,
            Whose::Source => &mut self.source,
            Whose::Worker => &mut self.worker,
        }
    }
}

/// One of the three that have limits.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Connection,
    Source,
    Worker,
}

impl Whose {
    const fn name(self) -> &'static str {
        match self {
            Self::Connection => "a connection",
            Self::Source => "a source",
            Self::Worker => "a worker",
        }
    }
}

/// The accounts of a worker.
#[derive(Debug)]
pub(crate) struct Ledger {
    limits: Amounts,
    held: Amount,
    accounts: Slab<Account>,
    sources: Slab<SourceAccount>,
    places: HashMap<Source, u32>,
    connections: u64,
    /// How often each limit was met.
    refused: Amounts,
}

impl Ledger {
    pub(crate) fn new(limits: Amounts) -> Self {
        let mut ledger = Self {
            limits,
            held: Amount::default(),
            accounts: Slab::new(),
            sources: Slab::new(),
            places: HashMap::new(),
            connections: 0,
            refused: Amounts::default(),
        };
        let nobody = ledger.open(Source::Itself);
        debug_assert_eq!(nobody, AccountId::NOBODY);
        ledger.connections = 0;
        ledger
    }

    /// What all connections hold together.
    pub(crate) fn held(&self) -> Amount {
        self.held
    }

    /// Connections that there are.
    pub(crate) fn connections(&self) -> u64 {
        self.connections
    }

    /// How often something was refused for want of room, by what there was no room for: once for each refusal, of the connection before the
    /// source and the worker.
    pub(crate) fn refused(&self) -> Amounts {
        self.refused
    }

    /// Sources of which there are connections, or something that they left.
    pub(crate) fn sources(&self) -> usize {
        self.sources.len() - 1
    }

    /// Where an account's connection comes from.
    #[cfg(test)]
    pub(crate) fn source_of(&self, id: AccountId) -> Source {
        self.sources[self.accounts[id.index()].source as usize].source
    }

    /// A connection begins.
    pub(crate) fn open(&mut self, source: Source) -> AccountId {
        let sources = &mut self.sources;
        let place = *self.places.entry(source).or_insert_with(|| {
            let account = SourceAccount {
                source,
                held: Amount::default(),
                accounts: 0,
            };
            sources.insert(account) as u32
        });
        self.sources[place as usize].accounts += 1;
        self.connections += 1;
        let account = Account {
            source: place,
            held: Amount::default(),
            is_open: true,
        };
        AccountId(self.accounts.insert(account) as u32)
    }

    /// A connection has ended.
    pub(crate) fn close(&mut self, id: AccountId) {
        if let Some(account) = self.accounts.get_mut(id.index())
            && id != AccountId::NOBODY
            && std::mem::take(&mut account.is_open)
        {
            self.connections -= 1;
            self.settle(id);
        }
    }

    /// Takes room for something that a connection brings.
    ///
    /// # Errors
    /// `Exhausted`, with the limit that it would exceed.
    #[inline]
    pub(crate) fn take(&mut self, id: AccountId, amount: Amount) -> Result<()> {
        let Some(account) = self.accounts.get_mut(id.index()) else {
            return Ok(());
        };
        let source = &mut self.sources[account.source as usize];
        if source.source != Source::Itself {
            let limits = &self.limits;
            let exceeded = [
                (&account.held, &limits.connection, Whose::Connection),
                (&source.held, &limits.source, Whose::Source),
                (&self.held, &limits.worker, Whose::Worker),
            ]
            .into_iter()
            .find_map(|(held, quota, whose)| Some((held.exceeds(&amount, quota)?, whose)));
            if let Some((what, whose)) = exceeded {
                return Err(self.refuse(what, whose));
            }
        }
        account.held.add(amount);
        source.held.add(amount);
        self.held.add(amount);
        Ok(())
    }

    /// Counts a refusal. The reason of it.
    #[cold]
    fn refuse(&mut self, what: What, whose: Whose) -> Error {
        *self.refused.of(whose).of(what) += 1;
        let limit = *self.limits.of(whose).of(what);
        let (what, whose) = (what.name(), whose.name());
        Error::new(
            ErrorKind::Exhausted,
            format!("{what}: the limit of {whose} ({limit}) is reached"),
        )
    }

    /// Takes room for a request that takes as many bytes of memory, where there is somebody to charge.
    ///
    /// # Errors
    /// As [`Ledger::take`].
    pub(crate) fn charge(
        &mut self,
        id: Option<AccountId>,
        bytes: usize,
    ) -> Result<Option<AccountId>> {
        if let Some(id) = id {
            self.take(id, Amount::request(bytes))?;
        }
        Ok(id)
    }

    /// As [`Ledger::take`], for what is here already, and comes back: it is never refused.
    pub(crate) fn hold(&mut self, id: AccountId, amount: Amount) {
        if let Some(account) = self.accounts.get_mut(id.index()) {
            account.held.add(amount);
            self.sources[account.source as usize].held.add(amount);
            self.held.add(amount);
        }
    }

    /// Gives back what was taken.
    #[inline]
    pub(crate) fn give(&mut self, id: AccountId, amount: Amount) {
        if let Some(account) = self.accounts.get_mut(id.index()) {
            account.held.subtract(amount);
            self.sources[account.source as usize].held.subtract(amount);
            self.held.subtract(amount);
            if !account.is_open {
                self.settle(id);
            }
        }
    }

    /// An account that is over and holds nothing goes, and its source with the last of them.
    fn settle(&mut self, id: AccountId) {
        let over = self
            .accounts
            .get(id.index())
            .is_some_and(|account| !account.is_open && account.held == Amount::default());
        if !over {
            return;
        }
        let place = self.accounts.remove(id.index()).source as usize;
        let source = &mut self.sources[place];
        source.accounts -= 1;
        if source.accounts == 0 {
            let source = self.sources.remove(place).source;
            self.places.remove(&source);
        }
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new(Amounts::ANY)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(last: u8) -> Source {
        IpAddr::from([10, 0, 0, last]).into()
    }

    fn ledger(connection: u64, source: u64, worker: u64) -> Ledger {
        let bytes = |bytes| Amount {
            bytes,
            ..Amount::ANY
        };
        Ledger::new(Amounts {
            connection: bytes(connection),
            source: bytes(source),
            worker: bytes(worker),
        })
    }

    #[track_caller]
    fn refused(ledger: &mut Ledger, id: AccountId, bytes: usize, whose: Whose) {
        let (held, mut counted) = (ledger.held(), ledger.refused());
        let error = ledger.take(id, Amount::message(bytes));
        let error = error.expect_err("too much");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.to_string().contains(whose.name()), "{error}");
        counted.of(whose).bytes += 1;
        assert_eq!((ledger.held(), ledger.refused()), (held, counted));
    }

    #[test]
    fn each_limit_holds() {
        let mut ledger = ledger(100, 150, 220);
        let [a, b] = [1, 1].map(|last| ledger.open(address(last)));
        let c = ledger.open(Source::User(1000));
        let own = ledger.open(Source::Itself);
        ledger.take(a, Amount::message(100)).expect("room");
        refused(&mut ledger, a, 1, Whose::Connection);
        ledger.take(b, Amount::message(50)).expect("room");
        refused(&mut ledger, b, 1, Whose::Source);
        ledger.take(c, Amount::message(70)).expect("room");
        refused(&mut ledger, c, 1, Whose::Worker);
        ledger.take(own, Amount::message(1000)).expect("its own");
        assert_eq!(ledger.held().bytes, 1220);
        ledger.give(a, Amount::message(100));
        ledger.give(own, Amount::message(1000));
        ledger.take(b, Amount::message(50)).expect("room again");
    }

    /// What a connection left goes on counting for its source, until it is given back; then nothing is left.
    #[test]
    fn what_is_left_counts() {
        let mut ledger = ledger(100, 150, 1000);
        for _ in 0..2 {
            let first = ledger.open(address(1));
            ledger.take(first, Amount::message(100)).expect("room");
            ledger.close(first);
            let next = ledger.open(address(1));
            refused(&mut ledger, next, 51, Whose::Source);
            ledger.close(next);
            let other = ledger.open(address(2));
            ledger.take(other, Amount::message(100)).expect("another");
            ledger.give(other, Amount::message(100));
            ledger.close(other);
            assert_eq!(ledger.sources(), 1);
            ledger.give(first, Amount::message(100));
            assert_eq!(ledger.sources(), 0);
            assert_eq!(ledger.held(), Amount::default());
            assert_eq!(ledger.accounts.len(), 1, "accounts left behind");
        }
    }
}
