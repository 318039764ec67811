//! HIP, for two things: to wait for what a program has put into a stream of its own, and to have such a stream wait. Copies are the HSA runtime's
//! business.
//!
//! The library is used only when the program has it loaded already: a stream of a HIP that is not there cannot exist, and a second one next to the
//! program's would be another runtime. Its soname changes with each major release; the functions used here did not. Tests: `tests/driver/hsa/`.
//!
//! # Safety
//! The functions are found by exact name, in a library that is never unloaded; their arguments are handles and pointers to live local variables. A
//! stream is the caller's promise (`unsafe`). An event is destroyed once, by its drop.

mod event;
mod hold;
mod runtime;

pub(crate) use event::HipEvent;
pub(crate) use hold::Hold;
pub(crate) use runtime::Hip;
