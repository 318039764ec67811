//! What the public interface promises, on every path a connection can take.
//!
//! Each scenario is written once, by [`scenarios!`], and becomes a test for each [`Way`]: to oneself, over shared memory, over
//! shared memory with a facility taken away, over TCP; and for two of them on a runtime with several threads as well. Both ends
//! live in this process (`tests/process` has them in two).

#[path = "../support/mod.rs"]
mod support;

/// Makes scenarios into tests.
///
/// `everywhere` runs them on all ways, `between workers` on those with two workers.
macro_rules! scenarios {
    (everywhere: $($(#[$attribute:meta])* async fn $name:ident($way:ident: Way) $body:block)*) => {$(
        $(#[$attribute])*
        mod $name {
            use super::*;
            async fn scenario($way: Way) $body
            #[test]
            fn own() {
                run(scenario(Way::Own));
            }
            scenarios!(@workers scenario);
        }
    )*};
    (between workers: $($(#[$attribute:meta])* async fn $name:ident($way:ident: Way) $body:block)*) => {$(
        $(#[$attribute])*
        mod $name {
            use super::*;
            async fn scenario($way: Way) $body
            scenarios!(@workers scenario);
        }
    )*};
    (@workers $scenario:ident) => {
        #[test]
        fn shm() {
            run($scenario(Way::Shm));
        }
        #[test]
        fn shm_without_cma() {
            run($scenario(Way::ShmWithoutCma));
        }
        #[test]
        fn shm_without_pidfd() {
            run($scenario(Way::ShmWithoutPidfd));
        }
        #[test]
        fn tcp() {
            run($scenario(Way::Tcp));
        }
        #[test]
        fn shm_on_threads() {
            run_on_threads($scenario(Way::Shm));
        }
        #[test]
        fn tcp_on_threads() {
            run_on_threads($scenario(Way::Tcp));
        }
    };
}

mod fixture;

mod am;
mod atomic;
mod config;
mod connect;
mod device;
mod ends;
mod layout;
mod lent;
mod list;
mod listener;
mod load;
mod pressure;
mod rma;
mod signal;
mod stream;
mod tag;
