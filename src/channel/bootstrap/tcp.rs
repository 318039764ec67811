//! A group over TCP.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use tokio::net::TcpListener;

use super::{
    hub::{Member, bootstrap_by_member},
    limits::{check_rank, check_runtime, check_size},
    options::BootstrapOptions,
    rendezvous::{Me, Tasks, follow, lead},
    socket::{Acceptor, Address},
    unique_id::UniqueId,
};
use crate::{
    config::interface_addresses,
    endpoint::lookup,
    error::{Error, ErrorKind, Operation, Result},
};

/// Where the ranks of a group meet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Meeting {
    /// Where a [`TcpRoot`] listens, and the secret to show there.
    Id(UniqueId),
    /// `host:port`, where rank 0 listens and the others find it.
    Address(String),
}

/// For people; of an id, without its secret.
impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.places_for_people(f),
            Self::Address(address) => f.write_str(address),
        }
    }
}

impl From<UniqueId> for Meeting {
    fn from(id: UniqueId) -> Self {
        Self::Id(id)
    }
}

impl From<&str> for Meeting {
    fn from(address: &str) -> Self {
        Self::Address(address.to_owned())
    }
}

impl From<String> for Meeting {
    fn from(address: String) -> Self {
        Self::Address(address)
    }
}

/// Rank 0 before it is a group: it listens, and has an id to pass on.
///
/// ```
/// # async fn run() -> wharf::Result<()> {
/// use wharf::channel::bootstrap::{Bootstrap, BootstrapOptions, TcpBootstrap, TcpRoot};
///
/// let options = BootstrapOptions::new();
/// let root = TcpRoot::bind("127.0.0.1:0").await?;
/// let id = root.unique_id().to_string(); // to the other processes, by any means
/// let other = async { TcpBootstrap::join(id.parse::<wharf::channel::bootstrap::UniqueId>()?, 1, 2, &options).await };
/// let (zero, one) = tokio::try_join!(root.join(2, &options), other)?;
/// tokio::try_join!(zero.barrier(), one.barrier())?;
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
/// ```
#[derive(Debug)]
#[doc(alias = "createUniqueId")]
pub struct TcpRoot {
    listener: TcpListener,
    id: UniqueId,
}

impl TcpRoot {
    /// Listens at `host:port`; port 0 for any. The id of one that listens at all addresses (`0.0.0.0`, `::`) holds up to four of this host's.
    ///
    /// # Errors
    /// What binding said; `InvalidArgument` for what is not `host:port`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn bind(address: &str) -> Result<Self> {
        check_runtime()?;
        let listener = listen(address).await?;
        let here = listener
            .local_addr()
            .map_err(|error| Error::io("the listener's address", error))?;
        let addresses = if here.ip().is_unspecified() {
            own_addresses(here)?
        } else {
            vec![here]
        };
        let id = UniqueId::new(addresses)?;
        Ok(Self { listener, id })
    }

    /// Where the others find it, and the group's secret.
    #[must_use]
    pub fn unique_id(&self) -> &UniqueId {
        &self.id
    }

    /// Waits for the other ranks, and becomes rank 0 of `size`. A secret among the options is left aside for the id's.
    ///
    /// # Errors
    /// As [`TcpBootstrap::join`].
    ///
    /// # Cancel safety
    /// Dropped, the attempt is over for all who have come.
    pub async fn join(self, size: usize, options: &BootstrapOptions) -> Result<TcpBootstrap> {
        self.join_for(size, options, options.deadline).await
    }

    /// Joins with the options' deadline for that, and another for later waits.
    pub(super) async fn join_for(
        self,
        size: usize,
        options: &BootstrapOptions,
        later: Duration,
    ) -> Result<TcpBootstrap> {
        let me = Me::new(Some(self.id.secret().into()))?;
        let acceptor = Acceptor::Tcp(self.listener);
        let (hub, tasks) = lead(acceptor, me, size, (options.deadline, later)).await?;
        Ok(TcpBootstrap {
            member: Member(hub),
            _tasks: tasks,
        })
    }
}

/// One rank of a group over TCP. Dropping it says goodbye to the others.
///
/// Rank 0 keeps a connection to every other rank, and learns from its end that a process is gone. Other connections are made when they are needed. All begin
/// with a proof of the secret; what follows is neither encrypted nor authenticated.
#[derive(Debug)]
pub struct TcpBootstrap {
    member: Member,
    _tasks: Tasks,
}

impl TcpBootstrap {
    /// Joins the group that meets at `meeting`, as rank `rank` of `size`. With `host:port` rank 0 listens there; with an id only a [`TcpRoot`] is rank 0.
    /// Ranks may come in any order: those that come first wait.
    ///
    /// # Errors
    /// `DeadlineExceeded`, at all ranks, when some did not come: they are named. `Configuration`, at all ranks and at once, when two have one number,
    /// or count differently. `AuthenticationFailed` without the secret, `Malformed` where something else listens; both concern this rank alone.
    /// `PeerDied` when rank 0 ended meanwhile.
    ///
    /// # Cancel safety
    /// Dropped, this rank has not come; dropped at rank 0, the attempt is over for all who have.
    pub async fn join(
        meeting: impl Into<Meeting>,
        rank: usize,
        size: usize,
        options: &BootstrapOptions,
    ) -> Result<Self> {
        Self::join_for(meeting, rank, size, options.clone(), options.deadline).await
    }

    /// As [`TcpRoot::join_for`].
    pub(super) async fn join_for(
        meeting: impl Into<Meeting>,
        rank: usize,
        size: usize,
        options: BootstrapOptions,
        later: Duration,
    ) -> Result<Self> {
        check_runtime()?;
        check_size(size)?;
        check_rank(rank, size)?;
        let wait = (options.deadline, later);
        let (hub, tasks) = match meeting.into() {
            Meeting::Id(_) if rank == 0 => {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "rank 0 is the one who made the id: it joins by its `TcpRoot`",
                ));
            }
            Meeting::Id(id) => {
                let me = Me::new(Some(id.secret().into()))?;
                let places = id.places();
                let places = move || std::future::ready(Ok(places.clone())).boxed();
                follow(places, me, rank, size, wait).await?
            }
            Meeting::Address(address) => {
                let me = Me::new(options.secret.clone())?;
                if rank == 0 {
                    let listener = listen(&address).await?;
                    lead(Acceptor::Tcp(listener), me, size, wait).await?
                } else {
                    let address: Arc<str> = address.into();
                    // Anew for each attempt: names of pods come to stand with the pods.
                    let places = move || {
                        let address = address.clone();
                        async move {
                            let found = lookup(&address, Operation::Connect).await?;
                            Ok(found.into_iter().map(Address::Tcp).collect())
                        }
                        .boxed()
                    };
                    follow(places, me, rank, size, wait).await?
                }
            }
        };
        Ok(Self {
            member: Member(hub),
            _tasks: tasks,
        })
    }
}

bootstrap_by_member!(TcpBootstrap);

async fn listen(address: &str) -> Result<TcpListener> {
    let addresses = lookup(address, Operation::Listen).await?;
    TcpListener::bind(addresses.as_slice())
        .await
        .map_err(|error| {
            Error::io(format!("listening at {address}"), error).during(Operation::Listen)
        })
}

/// Where a listener at all addresses is reached: those that another host can use first.
fn own_addresses(bound: SocketAddr) -> Result<Vec<SocketAddr>> {
    let usable = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        // A link-local address means nothing to another host without its zone.
        IpAddr::V6(ip) => bound.is_ipv6() && !ip.is_unicast_link_local(),
    };
    let mut found: Vec<SocketAddr> = interface_addresses()?
        .into_iter()
        .filter(|(_, ip)| usable(ip))
        .map(|(_, ip)| SocketAddr::new(ip, bound.port()))
        .collect();
    found.sort_by_key(|address| (address.ip().is_loopback(), address.is_ipv6()));
    found.dedup();
    if found.is_empty() {
        return Err(Error::new(
            ErrorKind::Unreachable,
            "this host has no network address",
        ));
    }
    Ok(found)
}
