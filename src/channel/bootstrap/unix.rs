//! A group on one host, over Unix sockets with abstract names: no port, no file, and only processes of one user.

use futures::FutureExt;

use super::{
    hub::{Member, bootstrap_by_member},
    limits::{check_rank, check_runtime, check_size},
    options::BootstrapOptions,
    rendezvous::{Me, Tasks, follow, lead},
    socket::{Acceptor, Address},
};
use crate::error::{Error, ErrorKind, Result};

/// One rank of a group on this host. Dropping it says goodbye to the others.
///
/// The ranks meet at a name in the abstract namespace, which belongs to the network namespace. Both ends of each connection check that the other's
/// process is of their own user, or of root; anybody may have taken the name before, and then joining fails.
#[derive(Debug)]
pub struct UnixBootstrap {
    member: Member,
    _tasks: Tasks,
}

impl UnixBootstrap {
    /// Joins the group that meets at `name` (up to 80 bytes), as rank `rank` of `size`.
    ///
    /// # Errors
    /// As [`TcpBootstrap::join`](super::TcpBootstrap::join); `PermissionDenied` for a process of another user; `InvalidArgument` for a name that is
    /// empty or too long; `Io` at rank 0 when the name is taken.
    ///
    /// # Cancel safety
    /// Dropped, this rank has not come; dropped at rank 0, the attempt is over for all who have.
    pub async fn join(
        name: &str,
        rank: usize,
        size: usize,
        options: &BootstrapOptions,
    ) -> Result<Self> {
        check_runtime()?;
        check_size(size)?;
        check_rank(rank, size)?;
        if name.is_empty() || name.len() > 80 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a group's name has 1 to 80 bytes",
            ));
        }
        let name = format!("wharf-group-{name}").into_bytes();
        let waits = (options.deadline, options.deadline);
        let me = Me::new(options.secret.clone())?;
        let (hub, tasks) = if rank == 0 {
            lead(Acceptor::unix(name)?, me, size, waits).await?
        } else {
            let places = move || std::future::ready(Ok(vec![Address::Unix(name.clone())])).boxed();
            follow(places, me, rank, size, waits).await?
        };
        Ok(Self {
            member: Member(hub),
            _tasks: tasks,
        })
    }
}

bootstrap_by_member!(UnixBootstrap);
