//! One body, a test for each way that a connection can take.

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
        #[test]
        fn shm_on_threads() {
            run_on_threads($scenario(Way::Shm));
        }
        #[test]
        fn tcp_on_threads() {
            run_on_threads($scenario(Way::Tcp));
        }
        #[cfg(feature = "tls")]
        #[test]
        fn tls_on_threads() {
            run_on_threads($scenario(Way::Tls));
        }
        #[cfg(feature = "verbs")]
        #[test]
        fn rc_verbs_on_threads() {
            run_on_threads($scenario(Way::RcVerbs));
        }
    };
}
