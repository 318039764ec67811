//! Groups of processes and what they share, after MSCCL++'s model: a bootstrap by which the processes find each other, a communicator over it,
//! and memory, semaphores and channels that are made through it.
//!
//! | type | is |
//! |---|---|
//! | [`bootstrap`] | how the processes of a group find each other, and talk before anything else stands: by hand, from a launcher's environment, from etcd |
//! | [`Communicator`] | a group with a [`Worker`](crate::Worker) in each process: ranks, an identity, an [`Endpoint`](crate::Endpoint) to each peer |
//! | [`RegisteredMemory`], [`RemoteMemory`], [`Lease`] | memory that the ranks of a group reach, until its lease ends or it is revoked |
//! | [`GpuBuffer`] | device memory that is made to be shared |
//! | [`Semaphore`] | signals between two ranks |
//! | [`MemoryChannel`] | transfers between registered memories, with signals; packets, words that carry a flag |
//! | [`DeviceChannel`] | the same, done by kernels of a CUDA device in the program's stream |
//! | [`PortChannel`], [`ProxyService`], [`DevicePort`] | the same, asked for by triggers in a ring, by tasks or by kernels, and done by a proxy |
//!
//! [The guide](crate::guide::processes) begins with two processes; [coming from MSCCL++](crate::guide::coming_from_mscclpp) goes name by name.

// Uses `endpoint`, `worker`, `context`, `memory` and what lies below; `clock.rs` is of leases, `cuda.rs` of all that use a CUDA device. Tests: `tests/channel/`.

pub mod bootstrap;
mod clock;
mod communicator;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod device;
mod fifo;
mod gpu_buffer;
mod memory_channel;
mod packet;
mod port_channel;
mod registered;
mod semaphore;

pub use bootstrap::Bootstrap;
pub use communicator::{Communicator, CommunicatorId};
#[cfg(feature = "cuda")]
pub use device::{DeviceChannel, DeviceChannelHandle, Enqueued};
pub use gpu_buffer::{GpuBuffer, GpuBufferKind};
pub use memory_channel::MemoryChannel;
pub use packet::PacketWidth;
#[cfg(feature = "cuda")]
pub use port_channel::{DevicePort, DevicePortHandle};
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
