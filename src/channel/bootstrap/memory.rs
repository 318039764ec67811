//! A group within one process, for tests, and for programs whose ranks are tasks or threads.

use std::{sync::Arc, time::Duration};

use super::{
    hub::{Hub, LocalLink, Member, bootstrap_by_member},
    limits::{DEADLINE, check_runtime, check_size},
    rendezvous::NoRoads,
};
use crate::error::Result;

/// One rank of a group within this process. Dropping it says goodbye to the others.
///
/// ```
/// # async fn run() -> wharf::Result<()> {
/// use wharf::channel::bootstrap::{Bootstrap, MemoryBootstrap};
///
/// let group = MemoryBootstrap::group(2)?;
/// group[0].send(1, 7, "hello".into()).await?;
/// assert_eq!(group[1].receive(0, 7).await?, "hello");
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
/// ```
#[derive(Debug)]
pub struct MemoryBootstrap {
    member: Member,
}

impl MemoryBootstrap {
    /// All ranks of a group of `size`, whose waits take 30 seconds at most.
    ///
    /// # Errors
    /// `InvalidArgument` for none, and outside a Tokio runtime.
    pub fn group(size: usize) -> Result<Vec<Self>> {
        Self::group_with_deadline(size, DEADLINE)
    }

    /// The same, with a limit of its own to waits.
    ///
    /// # Errors
    /// As [`MemoryBootstrap::group`].
    pub fn group_with_deadline(size: usize, deadline: Duration) -> Result<Vec<Self>> {
        check_size(size)?;
        check_runtime()?;
        let hubs: Vec<Arc<Hub>> = (0..size)
            .map(|rank| Hub::new(rank, size, deadline, Box::new(NoRoads)))
            .collect();
        for hub in &hubs {
            for to in &hubs {
                let link = LocalLink {
                    to: Arc::downgrade(to),
                    from: hub.rank,
                };
                hub.set_link(to.rank, Arc::new(link));
            }
        }
        Ok(hubs
            .into_iter()
            .map(|hub| Self {
                member: Member(hub),
            })
            .collect())
    }
}

bootstrap_by_member!(MemoryBootstrap);
