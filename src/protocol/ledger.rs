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

/// What is held, may be held, or was refused: so much of each of [`WHAT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount(pub(crate) [u64; 4]);

/// What is counted.
const WHAT: [&str; 4] = [
    "unexpected bytes",
    "unexpected messages",
    "unaccepted streams",
    "requests",
];

/// Whose limits there are.
const WHOSE: [&str; 3] = ["a connection", "a source", "a worker"];

impl Amount {
    /// A stream that nobody has accepted.
    pub(crate) const STREAM: Self = Self([0, 0, 1, 0]);

    /// Without a limit.
    const ANY: Self = Self([u64::MAX; 4]);

    /// A request that is being served, with as many bytes of memory beside its place.
    pub(crate) const fn request(bytes: usize) -> Self {
        Self([bytes as u64, 0, 0, 1])
    }

    /// A message that takes as many bytes of memory.
    #[inline]
    pub(crate) const fn message(bytes: usize) -> Self {
        Self([bytes as u64, 1, 0, 0])
    }

    /// Bytes that belong to what was counted before.
    #[inline]
    pub(crate) const fn bytes(bytes: usize) -> Self {
        Self([bytes as u64, 0, 0, 0])
    }

    #[inline]
    fn add(&mut self, other: Self) {
        for (held, more) in self.0.iter_mut().zip(other.0) {
            *held += more;
        }
    }

    #[inline]
    fn subtract(&mut self, other: Self) {
        for (held, less) in self.0.iter_mut().zip(other.0) {
            debug_assert!(
                *held >= less,
                "more is given back than was taken: {held} - {less}"
            );
            *held = held.saturating_sub(less);
        }
    }

    /// Which of `quota` there would be too much of with `more`.
    #[inline]
    fn exceeds(&self, more: &Self, quota: &Self) -> Option<usize> {
        let over = |held: u64, more: u64, limit: u64| more > 0 && held.saturating_add(more) > limit;
        (0..WHAT.len()).find(|&what| over(self.0[what], more.0[what], quota.0[what]))
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

/// The accounts of a worker.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// How much each of [`WHOSE`] may hold.
    limits: [Amount; 3],
    held: Amount,
    accounts: Slab<Account>,
    sources: Slab<SourceAccount>,
    places: HashMap<Source, u32>,
    connections: u64,
    /// How often each limit was met.
    refused: [Amount; 3],
}

impl Ledger {
    pub(crate) fn new(limits: [Amount; 3]) -> Self {
        let mut ledger = Self {
            limits,
            held: Amount::default(),
            accounts: Slab::new(),
            sources: Slab::new(),
            places: HashMap::new(),
            connections: 0,
            refused: Default::default(),
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
    pub(crate) fn refused(&self) -> [Amount; 3] {
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
    /// Errors: `Exhausted`, with the limit that it would exceed.
    #[inline]
    pub(crate) fn take(&mut self, id: AccountId, amount: Amount) -> Result<()> {
        let Some(account) = self.accounts.get_mut(id.index()) else {
            return Ok(());
        };
        let source = &mut self.sources[account.source as usize];
        if source.source != Source::Itself {
            let held = [&account.held, &source.held, &self.held];
            let exceeded = (0..WHOSE.len()).find_map(|whose| {
                Some((held[whose].exceeds(&amount, &self.limits[whose])?, whose))
            });
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
    fn refuse(&mut self, what: usize, whose: usize) -> Error {
        self.refused[whose].0[what] += 1;
        let limit = self.limits[whose].0[what];
        let (what, whose) = (WHAT[what], WHOSE[whose]);
        Error::new(
            ErrorKind::Exhausted,
            format!("{what}: the limit of {whose} ({limit}) is reached"),
        )
    }

    /// Takes room for a request that takes as many bytes of memory, where there is somebody to charge.
    /// Errors: as [`Ledger::take`].
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

    /// As [`Ledger::take`], for what is here already, and comes back: it is counted whatever the
    /// limits say.
    pub(crate) fn hold(&mut self, id: AccountId, amount: Amount) {
        if let Some(account) = self.accounts.get_mut(id.index()) {
            account.held.add(amount);
            self.sources[account.source as usize].held.add(amount);
            self.held.add(amount);
        }
    }

    /// Whether the messages of a connection, or of its source, are more than twice as many as may wait, and 16, with those that came back. What all of the worker's
    /// peers have is not this one's fault.
    /// Errors: `Exhausted`, with the limit.
    pub(crate) fn check_messages(&mut self, id: AccountId) -> Result<()> {
        let Some(account) = self.accounts.get(id.index()) else {
            return Ok(());
        };
        let source = &self.sources[account.source as usize];
        let held = [&account.held, &source.held];
        // A few even where none may wait: a receive that is dropped once is no fault of the peer's.
        let most = |whose: usize| self.limits[whose].0[1].saturating_mul(2).max(16);
        let exceeds = |whose: &usize| held[*whose].0[1] > most(*whose);
        match (0..held.len()).find(exceeds) {
            Some(whose) if source.source != Source::Itself => Err(self.refuse(1, whose)),
            _ => Ok(()),
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
        Self::new([Amount::ANY; 3])
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
        let any = u64::MAX;
        Ledger::new([connection, source, worker].map(|bytes| Amount([bytes, any, any, any])))
    }

    #[track_caller]
    fn refused(ledger: &mut Ledger, id: AccountId, bytes: usize, whose: usize) {
        let (held, mut counted) = (ledger.held(), ledger.refused());
        let error = ledger.take(id, Amount::message(bytes));
        let error = error.expect_err("too much");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.to_string().contains(WHOSE[whose]), "{error}");
        counted[whose].0[0] += 1;
        assert_eq!((ledger.held(), ledger.refused()), (held, counted));
    }

    #[test]
    fn each_limit_holds() {
        let mut ledger = ledger(100, 150, 220);
        let [a, b] = [1, 1].map(|last| ledger.open(address(last)));
        let c = ledger.open(Source::User(1000));
        let own = ledger.open(Source::Itself);
        ledger.take(a, Amount::message(100)).expect("room");
        refused(&mut ledger, a, 1, 0);
        ledger.take(b, Amount::message(50)).expect("room");
        refused(&mut ledger, b, 1, 1);
        ledger.take(c, Amount::message(70)).expect("room");
        refused(&mut ledger, c, 1, 2);
        ledger.take(own, Amount::message(1000)).expect("its own");
        assert_eq!(ledger.held(), Amount([1220, 4, 0, 0]));
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
            refused(&mut ledger, next, 51, 1);
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
