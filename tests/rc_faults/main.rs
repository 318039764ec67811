//! RDMA devices that fail, and that are not there: what a program sees of it. On the emulated libibverbs and librdmacm, with their fault plan;
//! each test in a process of its own, as the plan and the variables are for the whole process.

#[path = "../support/mod.rs"]
mod support;

#[macro_use]
mod bench;

mod absent;
mod by_address;
mod dma_buf;
mod explain;
mod faults;
mod gpudirect;
#[path = "../device/own.rs"]
mod own;
mod two_processes;
