//! One body, a test for each way that a connection can take.

/// Makes scenarios into tests.
///
/// `everywhere` runs them on all ways, `between workers` on those with two workers. `on each
/// carrier` leaves out who runs the tasks. `and without pidfd` is for what sees a peer end, which
/// nothing else has a pidfd for. Sessions of TLS hand buffers to each other on their threads: `and
/// under TLS on threads` is for what sends bytes of its own by each kind of message.
macro_rules! scenarios {
    (everywhere: $($scenarios:tt)*) => {
        scenarios!(@each [own carriers threads] $($scenarios)*);
    };
    (everywhere, and without pidfd: $($scenarios:tt)*) => {
        scenarios!(@each [own carriers no_pidfd threads] $($scenarios)*);
    };
    (everywhere, and under TLS on threads: $($scenarios:tt)*) => {
        scenarios!(@each [own carriers threads tls_threads] $($scenarios)*);
    };
    (between workers: $($scenarios:tt)*) => {
        scenarios!(@each [carriers threads] $($scenarios)*);
    };
    (between workers, and without pidfd: $($scenarios:tt)*) => {
        scenarios!(@each [carriers no_pidfd threads] $($scenarios)*);
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
    (@no_pidfd) => {
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
