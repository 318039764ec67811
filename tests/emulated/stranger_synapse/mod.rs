//! The emulated Synapse, used as a stranger would: by the loader, by exported names, with what the vendor's header says and
//! nothing of wharf's.
//!
//! A process has one device, so each test that acquires one runs in a process of its own.

mod api;
mod copies;
mod devices;
mod flow;
mod memory;
mod misuse;
mod order;
mod processes;
mod states;
