//! What the emulated vendor libraries share: bytes that no pointer reaches, file descriptors between processes, a fault
//! plan, a journal of the calls, and random delays.
//!
//! In: what an emulated driver asks for. Out: plain values and `io::Result`. It knows no vendor. Used by the packages
//! beside it; its tests stand in the files.

pub mod backing;
pub mod faults;
pub mod journal;
pub mod pattern;
pub mod random;
pub mod share;
