//! Groups of processes and what they share, after MSCCL++'s model: a bootstrap by which the processes find each other, a communicator over it,
//! and memory, semaphores and channels that are made through it.
//!
//! Comes in: a rank and a size, by hand, from a launcher's environment or from etcd, and a [`Worker`](crate::Worker). Goes out: a
//! [`Communicator`] with an [`Endpoint`](crate::Endpoint) to each peer, and what is built on it. Uses `endpoint`, `worker`, `context`, `memory`
//! and what lies below. Tests: `tests/channel/`.
//!
//! | file | is |
//! |---|---|
//! | `bootstrap/` | how the processes of a group find each other and talk before anything else stands |
//! | `communicator.rs` | a group with a worker: ranks, endpoints, an identity |
//! | `registered.rs`, `clock.rs` | memory that the ranks of a group reach: descriptors, leases and their ends, revocation |
//! | `semaphore/` | signals between two ranks |
//! | `memory_channel/`, `packet.rs` | transfers between registered memories with signals; words that carry a flag |
//! | `device/` | the same, done by kernels of a CUDA device in the program's stream |
//! | `port_channel/`, `fifo.rs` | the same, asked for by triggers in a ring and done by a proxy |

pub mod bootstrap;
mod clock;
mod communicator;
mod device;
mod fifo;
mod memory_channel;
mod packet;
mod port_channel;
mod registered;
mod semaphore;

pub use bootstrap::Bootstrap;
pub use communicator::{Communicator, CommunicatorId};
pub use device::{DeviceChannel, DeviceChannelHandle, Enqueued};
pub use memory_channel::MemoryChannel;
pub use packet::PacketWidth;
pub use port_channel::{
    MAX_MEMORIES, MAX_SEMAPHORES, PortChannel, ProxyService, Trigger, TriggerKind,
};
pub use registered::{Lease, MAX_LEASES, RegisteredMemory, RemoteMemory};
pub use semaphore::{Semaphore, SemaphoreSignal, SemaphoreWait, Signals};

/// Gives bytes to the decoders of what ranks tell each other.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    bootstrap::fuzz(bytes);
    let _ = communicator::introduction(bytes);
}
