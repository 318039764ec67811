//! The CUDA driver: found, initialised when a device is first used, and its devices.
//!
//! Comes in: the path of a library, or none. Goes out: [`Cuda`], one for each library file and process; from it [`Device`], from that
//! [`CudaContext`], and within a [`ContextGuard`] memory, streams, events and the ways to another process's memory. Uses `library`.
//! Tests: `tests/driver/`.
//!
//! | file | holds |
//! |---|---|
//! | `sys` | what the header says |
//! | `driver` | the library: found, its functions, initialised |
//! | `status` | `CUresult` and what kind of error each is |
//! | `device` | what a device is and can do |
//! | `context` | contexts, and the guard that makes one current |
//! | `memory` | device, pinned and managed memory; what an address is; dma-bufs |
//! | `stream` | streams and events: copies, order, completion |
//! | `module` | kernels: loaded from text, and launched |
//! | `ipc` | another process's memory: by legacy handles, by file descriptor, pools |
//! | `share` | the program's own memory, given to other processes |
//!
//! # What may block
//! Loading, [`Cuda::initialise`], [`Device::primary_context`] and the drop of its last clone, allocating, freeing and registering memory,
//! opening and closing another process's memory, loading kernels: milliseconds and more. They belong on a thread that may block. Copies, events, queries
//! and [`Cuda::inspect`] take microseconds.
//!
//! # Safety
//! The functions called here are those of `sys`, found by exact name, in a library that is never unloaded. A call gets pointers to live
//! local variables of the size that the header says, and handles that this room made and keeps alive. Calls by which the device reads
//! or writes memory that the caller names are `unsafe` themselves. A child made by `fork` after initialisation may not use the driver:
//! every way to a call passes [`Cuda::usable`].
#![allow(unsafe_code)]

mod context;
mod create;
mod device;
mod driver;
mod ipc;
mod memory;
mod module;
mod share;
mod status;
mod stream;
mod sys;

pub(crate) use context::{ContextGuard, ContextId, CudaContext};
pub(crate) use create::Reach;
pub(crate) use device::Device;
pub(crate) use driver::{Cuda, Version};
pub(crate) use ipc::{IpcMapping, MemoryPool, VirtualMemory};
pub(crate) use memory::{
    DeviceAllocation, HostRegistration, PinnedAllocation, PointerInfo, PointerKind,
};
pub(crate) use module::{Argument, Kernel};
pub(crate) use share::PoolImport;
pub(crate) use status::Status;
pub(crate) use stream::{Event, HostCallback, Route, Stream, Waiting};
pub(crate) use sys::{
    Attribute, DevicePtr, FabricHandle, IpcHandle, PoolPointer, RawContext, RawEvent, RawPool,
    RawStream, Uuid,
};
