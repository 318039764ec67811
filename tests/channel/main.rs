//! Groups of processes: how they find each other, and what they share.

#[path = "../support/mod.rs"]
mod support;

#[path = "../emulated/stranger_cuda/api.rs"]
mod api;
mod bootstrap;
mod communicator;
mod device;
mod device_port;
mod environment;
mod gpu_buffer;
mod group;
mod memory_channel;
mod port_channel;
mod processes;
mod registered;
mod revoke;
mod semaphore;
