//! Over what the scenarios of `tests/process` are played here.

/// An emulated processor moves some 10 MB/s: long transfers, and repetitions, are this many times shorter.
pub(crate) const SHORTER: usize = 16;

/// The tests of a scenario, one for each path.
macro_rules! on_every_path {
    () => {
        #[test]
        #[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
        fn rc_verbs() {
            $crate::machine::needs_machine!();
            $crate::common::play!($crate::common::Path::RcVerbs)
        }
    };
}

pub(crate) use on_every_path;
