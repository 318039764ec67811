//! A group of processes with a worker in each: ranks, a connection to every peer, and an identity.

use std::{fmt, str::FromStr, sync::Arc};

use bytes::Bytes;
use tokio::{sync::OnceCell, time::Instant};

use crate::{
    endpoint::{Endpoint, Worker},
    error::{Error, ErrorKind, Operation, Result},
    protocol::WorkerAddress,
    types::{hex, text::no},
};

use super::bootstrap::{Bootstrap, after, check_rank};

/// What tells one communicator from every other: 128 random bits that its ranks agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommunicatorId(pub(crate) [u8; 16]);

impl CommunicatorId {
    /// The bits, as they are written.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for CommunicatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(&self.0, f)
    }
}

impl FromStr for CommunicatorId {
    type Err = Error;

    /// From its `Display` form, 32 hexadecimal digits.
    ///
    /// # Errors
    /// `InvalidArgument`.
    fn from_str(text: &str) -> Result<Self> {
        let found = hex::read(text).and_then(|id| id.try_into().ok());
        found
            .map(Self)
            .ok_or_else(|| no("communicator", text, "32 hexadecimal digits"))
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_bytes! {
    CommunicatorId: |id: &Self| id.0, |bytes: &[u8]| bytes.try_into().map(Self)
}

impl fmt::Debug for CommunicatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommunicatorId({self})")
    }
}

/// A group of processes with a worker in each. A cheap clone.
///
/// Made by all ranks together from a [`Bootstrap`]; connections between the workers are made when they are asked for. In a child made by `fork` every call
/// that reaches another rank fails with `Forked`.
#[derive(Clone)]
#[doc(alias = "mscclpp::Communicator")]
pub struct Communicator {
    inner: Arc<Inner>,
}

struct Inner {
    id: CommunicatorId,
    bootstrap: Arc<dyn Bootstrap>,
    worker: Worker,
    addresses: Vec<WorkerAddress>,
    endpoints: Vec<OnceCell<Endpoint>>,
}

/// What every rank tells every other: version, random bits (rank 0's become the identity), the worker's address.
const VERSION: u16 = 1;

impl Communicator {
    /// Brings the workers of all ranks together. Every rank calls it, in the same order among the group's collective calls.
    ///
    /// # Errors
    /// Those of [`Bootstrap::all_gather`]; what [`Worker::address`] says; `VersionMismatch` and `Malformed` for what another rank sent.
    ///
    /// # Cancel safety
    /// As [`Bootstrap::all_gather_until`].
    pub async fn new(bootstrap: Arc<dyn Bootstrap>, worker: &Worker) -> Result<Self> {
        let mut mine = VERSION.to_le_bytes().to_vec();
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| {
            Error::new(ErrorKind::Io, "no random bytes for an identity").with_source(error)
        })?;
        mine.extend_from_slice(&random);
        mine.extend_from_slice(&worker.address()?.to_bytes());
        let all = bootstrap.all_gather(mine.into()).await?;
        let mut id = None;
        let mut addresses = Vec::with_capacity(all.len());
        for (rank, bytes) in all.iter().enumerate() {
            let (random, address) =
                introduction(bytes).map_err(|error| error.with_peer(format!("rank {rank}")))?;
            id.get_or_insert(CommunicatorId(random));
            addresses.push(address);
        }
        let id = id.ok_or_else(|| Error::new(ErrorKind::Protocol, "a group of no ranks"))?;
        let endpoints = addresses.iter().map(|_| OnceCell::new()).collect();
        let inner = Arc::new(Inner {
            id,
            bootstrap,
            worker: worker.clone(),
            addresses,
            endpoints,
        });
        Ok(Self { inner })
    }

    /// Its identity, the same at all ranks.
    #[must_use]
    pub fn id(&self) -> CommunicatorId {
        self.inner.id
    }

    /// This process's number.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.bootstrap.rank()
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.addresses.len()
    }

    /// This process's worker.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.inner.worker
    }

    /// What it was made from.
    #[must_use]
    pub fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        &self.inner.bootstrap
    }

    /// Where the worker of a rank can be reached.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank outside the group.
    pub fn address(&self, rank: usize) -> Result<&WorkerAddress> {
        check_rank(rank, self.size())?;
        self.inner
            .addresses
            .get(rank)
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "there is no such rank"))
    }

    /// The connection to a rank, or to this one itself. Made by the first call; the others give the same. It stays until the communicator's last
    /// clone is dropped.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank outside the group, and what [`Worker::connect`] says; `DeadlineExceeded` after [`Bootstrap::deadline`].
    ///
    /// # Cancel safety
    /// Cancel safe: another call begins anew.
    #[doc(alias = "mscclpp::Communicator::connect")]
    pub async fn endpoint(&self, rank: usize) -> Result<Endpoint> {
        self.admits()?;
        let address = self.address(rank)?;
        let deadline = self.inner.bootstrap.deadline();
        let named = |error: Error| error.with_peer(format!("rank {rank}"));
        let cell = self
            .inner
            .endpoints
            .get(rank)
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "there is no such rank"))?;
        let made = cell.get_or_try_init(|| self.inner.worker.connect(address));
        match tokio::time::timeout_at(after(deadline), made).await {
            Ok(endpoint) => endpoint.cloned().map_err(named),
            Err(_) => Err(named(
                Error::new(
                    ErrorKind::DeadlineExceeded,
                    "the connection did not stand in time",
                )
                .during(Operation::Connect),
            )),
        }
    }

    /// Connects to all ranks now.
    ///
    /// # Errors
    /// As [`Communicator::endpoint`]; the first that fails.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn connect_all(&self) -> Result<()> {
        let all = (0..self.size())
            .filter(|rank| *rank != self.rank())
            .map(|rank| self.endpoint(rank));
        futures::future::try_join_all(all).await.map(drop)
    }

    /// Sends something serialised to a rank: over the bootstrap, apart from the tags of the bootstrap itself and of other communicators on it.
    ///
    /// # Errors
    /// As [`Bootstrap::send`].
    ///
    /// # Cancel safety
    /// As [`Bootstrap::send_until`].
    pub async fn send(&self, to: usize, tag: u32, bytes: impl Into<Bytes>) -> Result<()> {
        self.admits()?;
        let bootstrap = &self.inner.bootstrap;
        bootstrap
            .send_until(to, self.tag(tag), bytes.into(), after(bootstrap.deadline()))
            .await
    }

    /// Receives what a rank sent by [`Communicator::send`] under this tag.
    ///
    /// # Errors
    /// As [`Bootstrap::receive`].
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    pub async fn receive(&self, from: usize, tag: u32) -> Result<Bytes> {
        self.receive_until(from, tag, after(self.inner.bootstrap.deadline()))
            .await
    }

    /// [`Communicator::receive`] with a deadline of its own.
    ///
    /// # Errors
    /// As [`Bootstrap::receive`].
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    pub async fn receive_until(&self, from: usize, tag: u32, deadline: Instant) -> Result<Bytes> {
        self.admits()?;
        self.inner
            .bootstrap
            .receive_until(from, self.tag(tag), deadline)
            .await
    }

    /// Gives every rank the bytes of every rank.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`].
    ///
    /// # Cancel safety
    /// As [`Bootstrap::all_gather_until`].
    #[doc(alias = "allGather")]
    pub async fn all_gather(&self, bytes: impl Into<Bytes>) -> Result<Vec<Bytes>> {
        self.admits()?;
        self.inner.bootstrap.all_gather(bytes.into()).await
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// As [`Bootstrap::barrier`].
    ///
    /// # Cancel safety
    /// As [`Bootstrap::barrier_until`].
    pub async fn barrier(&self) -> Result<()> {
        self.admits()?;
        self.inner.bootstrap.barrier().await
    }

    /// Whether this process may use it: not a child made by `fork`, whatever the bootstrap is.
    fn admits(&self) -> Result<()> {
        self.inner.worker.shared().admits(Operation::Connect)
    }

    /// The bootstrap's tag of a communicator's: the range of what is built on it, 29 bits of the identity, the tag.
    fn tag(&self, tag: u32) -> u64 {
        let [a, b, c, d, ..] = self.inner.id.0;
        let id = u64::from(u32::from_le_bytes([a, b, c, d]) >> 3);
        super::bootstrap::TAGS | id << 32 | u64::from(tag)
    }
}

/// Reads what a rank tells of itself.
pub(super) fn introduction(bytes: &[u8]) -> Result<([u8; 16], WorkerAddress)> {
    let cut = || Error::new(ErrorKind::Malformed, "an introduction is cut short");
    let (version, rest) = bytes.split_first_chunk::<2>().ok_or_else(cut)?;
    let version = u16::from_le_bytes(*version);
    if version != VERSION {
        return Err(Error::new(
            ErrorKind::VersionMismatch,
            format!("communicators of version {version} and {VERSION}"),
        ));
    }
    let (random, address) = rest.split_first_chunk::<16>().ok_or_else(cut)?;
    Ok((*random, WorkerAddress::from_bytes(address)?))
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("id", &self.id())
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
