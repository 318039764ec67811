//! Synapse, the runtime of Intel Gaudi: found, initialised when a device is asked for, and the one device that a process has.
//!
//! Comes in: the path of a library, or none. Goes out: [`Synapse`], one for each library file and process; from it [`Device`], either the one that
//! somebody in this process has acquired ([`Synapse::attach`]) or one taken for this process ([`Synapse::acquire`]); from that memory, mappings of
//! host memory, streams and events. Uses `library`. Tests: `tests/driver/synapse.rs`.
//!
//! | file | holds |
//! |---|---|
//! | `sys` | what the header says |
//! | `driver` | the library: found, its functions, initialised |
//! | `status` | `synStatus` and what kind of error each is |
//! | `device` | the process's device: attached or acquired, what it is, its memory, host memory mapped for it |
//! | `stream` | streams and events: copies, order, completion |
//!
//! A process has one device at most, and a device one process. There is no file descriptor and no callback for a finished copy: an event is recorded
//! behind it and queried. Device memory is no memory of the host's: its addresses are numbers.
//!
//! # What may block
//! Loading, initialising (seconds), acquiring and releasing (seconds: the firmware is loaded, the card is reset after a release), allocating, mapping
//! and unmapping (they pin pages). They belong on a thread that may block. Copies, records and queries take microseconds.
//!
//! # Safety
//! The functions called here are those of `sys`, found by exact name, in a library that is never unloaded. A call gets pointers to live local variables,
//! larger than the header says where the library writes a struct, and handles that this room made and keeps alive. Synapse is safe to call from several
//! threads. Calls by which the device reads or writes memory that the caller names are `unsafe` themselves. A child made by `fork` may not use the
//! parent's device: every object knows its process.
#![allow(unsafe_code)]

mod device;
mod driver;
mod status;
mod stream;
mod sys;

pub(crate) use device::{Device, DeviceAllocation, DeviceType, HostMapping};
pub(crate) use driver::Synapse;
pub(crate) use status::Status;
pub(crate) use stream::{Direction, Event, MAX_COPY, Stream};
