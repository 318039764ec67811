//! How the processes of a group find each other, and talk while nothing else stands yet.
//!
//! From a rank, a size and where rank 0 is a process has a [`Bootstrap`]: small messages between ranks, all-gather and barrier, each with a deadline. It
//! is for what comes before the fast paths: addresses, descriptors, agreement. Messages are at most [`MAX_MESSAGE`] bytes.
//!
//! | the processes are | see |
//! |---|---|
//! | tasks of one | [`MemoryBootstrap`] |
//! | anywhere, by a unique id or host and port | [`TcpBootstrap`], [`UniqueId`] |
//! | on one host | [`UnixBootstrap`] |
//! | started by torchrun, Open MPI, PMI, Slurm or Kubernetes | [`Launch`] |
//! | those that etcd knows | `EtcdBootstrap`, with the feature `etcd` |

// Uses `protocol` for the handshake and its proof of a secret, `sys` for abstract sockets, and no worker. Tests: `tests/channel/bootstrap.rs`.

mod collector;
mod contract;
mod environment;
#[cfg(feature = "etcd")]
mod etcd;
mod frame;
mod hub;
mod limits;
mod memory;
mod options;
mod rendezvous;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
mod unique_id;
mod unix;

pub use contract::Bootstrap;
pub use environment::{Launch, Launcher, RootPlace, Variables};
#[cfg(feature = "etcd")]
pub use etcd::{Change, EtcdBootstrap, EtcdOptions, Member, Members, Membership};
pub use limits::{DEADLINE, MAX_GATHER, MAX_MESSAGE, MAX_SIZE, TAGS};
pub(super) use limits::{after, check_rank};
pub use memory::MemoryBootstrap;
pub use options::BootstrapOptions;
pub use tcp::{Meeting, TcpBootstrap, TcpRoot};
pub use unique_id::UniqueId;
pub use unix::UnixBootstrap;

/// Gives bytes to the decoders of what processes tell each other here.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let own = bytes::Bytes::copy_from_slice(bytes);
    if let Ok(read) = frame::Frame::decode(&own) {
        let (head, body) = read.clone().encode();
        let again = bytes::Bytes::from([&head[4..], &body].concat());
        assert_eq!(frame::Frame::decode(&again).ok(), Some(read));
    }
    for size in [0, 1, 3] {
        if let Ok(parts) = frame::decode_verdict(&own, size) {
            assert_eq!(parts.len(), size);
        }
        rendezvous::fuzz(bytes, size);
    }
    if let Ok(id) = UniqueId::from_bytes(bytes) {
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).ok(), Some(id));
    }
    if let Ok(address) = socket::Address::decode(bytes) {
        assert_eq!(
            socket::Address::decode(&address.encode()).ok(),
            Some(address)
        );
    }
}
