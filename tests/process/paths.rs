//! Over what the scenarios of this program are played.

/// Long transfers, and repetitions, are this many times shorter than they might be.
pub(crate) const SHORTER: usize = 1;

/// The tests of a scenario, one for each path.
macro_rules! on_every_path {
    () => {
        #[test]
        fn shm() {
            $crate::common::play!($crate::common::Path::Shm)
        }
        #[test]
        fn shm_without_cma() {
            $crate::common::play!($crate::common::Path::ShmWithoutCma)
        }
        #[test]
        fn shm_without_pidfd() {
            $crate::common::play!($crate::common::Path::ShmWithoutPidfd)
        }
        #[test]
        fn tcp() {
            $crate::common::play!($crate::common::Path::Tcp)
        }
    };
}

pub(crate) use on_every_path;
