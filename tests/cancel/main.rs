//! Futures that are dropped or forgotten at every await point, operations that are cancelled or run into a deadline: no message is lost,
//! no memory is touched that was given back, and the connection goes on.
//!
//! Both ends live on one thread, so that each test decides who makes progress, and when.
#![allow(unsafe_code)] // Buffers between canaries, made from raw memory.

#[path = "../support/mod.rs"]
mod support;

mod guarded;
mod sides;

mod am;
mod connect;
mod dropped;
mod pieces;
mod select;
mod spent;
mod stopped;
mod stream;

use support::bytes;
