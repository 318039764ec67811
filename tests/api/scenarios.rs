//! One body, a test for each way that a connection can take.

/// Makes scenarios into tests.
///
/// `everywhere` runs them on all ways, `between workers` on those with two workers. `on each carrier` leaves out what has no part in where bytes go: how a
/// peer's death is seen, and who runs the tasks; `on each carrier and threads` only the first. Sessions of TLS hand buffers to each other on their threads: `everywhere,
/// and under TLS on threads` is for what sends bytes of its own by each kind of message.
macro_rules! scenarios {
    (everywhere: $($scenarios:tt)*) => {
        scenarios!(@each [own carriers deaths threads] $($scenarios)*);
    };
    (everywhere, and under TLS on threads: $($scenarios:tt)*) => {
        scenarios!(@each [own carriers deaths threads tls_threads] $($scenarios)*);
    };
    (between workers: $($scenarios:tt)*) => {
        scenarios!(@each [carriers deaths threads] $($scenarios)*);
    };
    (on each carrier and threads: $($scenarios:tt)*) => {
        scenarios!(@each [own carriers threads] $($scenarios)*);
    };
    (on each carrier: $($scenarios:tt)*) => {
        scenarios!(@each [own carriers] $($scenarios)*);
    };
    (@each $kinds:tt $($(#[$attribute:meta])* async fn $name:ident($way:ident: Way) $body:block)*) => {$(
        $(#[$attribute])*
        mod $name {
            use super::*;
            async fn scenario($way: Way) $body
            scenarios!(@kinds $kinds scenario);
        }
    )*};
    (@kinds [$($kind:ident)*] $scenario:ident) => {
        $(scenarios!(@$kind $scenario);)*
    };
    (@own $scenario:ident) => {
        #[test]
        fn own() {
            run($scenario(Way::Own));
        }
    };
    (@carriers $scenario:ident) => {
        #[test]
        fn shm() {
            run($scenario(Way::Shm));
        }
        #[test]
        fn shm_without_cma() {
            run($scenario(Way::ShmWithoutCma));
        }
        #[test]
        fn tcp() {
            run($scenario(Way::Tcp));
        }
        #[cfg(feature = "tls")]
        #[test]
        fn tls() {
            run($scenario(Way::Tls));
        }
        #[cfg(feature = "verbs")]
        #[test]
        fn rc_verbs() {
            run($scenario(Way::RcVerbs));
        }
    };
    (@deaths $scenario:ident) => {
        #[test]
        fn shm_without_pidfd() {
            run($scenario(Way::ShmWithoutPidfd));
        }
    };
    (@tls_threads $scenario:ident) => {
        #[cfg(feature = "tls")]
        #[test]
        fn tls_on_threads() {
            run_on_threads($scenario(Way::Tls));
        }
    };
    (@threads $scenario:ident) => {
        #[test]
        fn shm_on_threads() {
            run_on_threads($scenario(Way::Shm));
        }
        #[test]
        fn tcp_on_threads() {
            run_on_threads($scenario(Way::Tcp));
        }
        #[cfg(feature = "verbs")]
        #[test]
        fn rc_verbs_on_threads() {
            run_on_threads($scenario(Way::RcVerbs));
        }
    };
}
