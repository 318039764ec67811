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
            fn on_one(way: Way) {
                run(scenario(way));
            }
            scenarios!(@kinds $kinds);
        }
    )*};
    (@kinds [$($kind:ident)*]) => {
        $(scenarios!(@$kind);)*
    };
    (@own) => {
        #[test]
        fn own() {
            on_one(Way::Own);
        }
    };
    (@carriers) => {
        #[test]
        fn shm() {
            on_one(Way::Shm);
        }
        #[test]
        fn shm_without_cma() {
            on_one(Way::ShmWithoutCma);
        }
        #[test]
        fn tcp() {
            on_one(Way::Tcp);
        }
        #[cfg(feature = "tls")]
        #[test]
        fn tls() {
            on_one(Way::Tls);
        }
        #[cfg(feature = "verbs")]
        #[test]
        fn rc_verbs() {
            on_one(Way::RcVerbs);
        }
    };
    (@deaths) => {
        #[test]
        fn shm_without_pidfd() {
            on_one(Way::ShmWithoutPidfd);
        }
    };
    (@tls_threads) => {
        #[cfg(feature = "tls")]
        #[test]
        fn tls_on_threads() {
            on_threads(Way::Tls);
        }
    };
    (@threads) => {
        // Whether it can be sent to another thread is proved here, and not for each test, which took a tenth of the time to compile them all.
        fn on_threads(way: Way) {
            run_on_threads(scenario(way));
        }
        #[test]
        fn shm_on_threads() {
            on_threads(Way::Shm);
        }
        #[test]
        fn tcp_on_threads() {
            on_threads(Way::Tcp);
        }
        #[cfg(feature = "verbs")]
        #[test]
        fn rc_verbs_on_threads() {
            on_threads(Way::RcVerbs);
        }
    };
}
