//! Two processes: what they exchange is right, and when one of them dies, stops or is not trusted, the other goes on.
//!
//! Each scenario has a `first` (the test's process, which listens) and a `second` (this program started again, which connects), and is
//! played over shared memory, over it without `cma` and without pidfd, and over tcp.

#[path = "../support/mod.rs"]
mod support;

mod asleep;
mod atomics;
mod barriers;
mod common;
mod crowd;
mod death;
mod device;
mod exchange;
mod fork;
mod listening;
mod paths;
mod pingpong;
mod rights;
mod stop;
