//! The program `wharf` as its users run it: built by Cargo for this test, in an environment without anybody's configuration.

#[path = "../support/mod.rs"]
mod support;

mod info;
mod perf;
mod run;
