//! What the emulated vendor libraries share: bytes that no pointer reaches, file descriptors between processes, a fault
//! plan, a journal of the calls, the time that work takes, random delays, settings, and a test's hand on all that.
//!
//! In: what an emulated driver asks for. Out: plain values and `io::Result`. It knows no vendor. Used by the packages
//! beside it; its tests stand in the files.

pub mod backing;
pub mod control;
pub mod faults;
pub mod gaudi;
pub mod journal;
pub mod loaded;
pub mod pace;
pub mod pattern;
pub mod random;
pub mod settings;
pub mod share;
