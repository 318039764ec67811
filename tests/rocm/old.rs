//! A runtime as old as ROCm 5.2.3, and one that says less.

use wharf::{
    MemoryType,
    transport::{accelerator::Accelerator as _, rocm::RocmCopy},
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, library, pattern},
    support::{emulated, this_test},
};

/// What came after 5.2.3, and what is optional besides.
const NEWER: [&str; 2] = [
    "hsa_amd_portable_export_dmabuf",
    "hsa_amd_portable_close_dmabuf",
];

fn lacking(names: &[&str]) -> (tempdir::Folder, RocmCopy) {
    let folder = tempdir::Folder::new();
    let old = emulated::without(&library(), names, &folder.0).expect("a copy");
    (folder, RocmCopy::with_library(old))
}

mod tempdir {
    use std::path::PathBuf;

    /// A folder that goes with its value.
    pub(super) struct Folder(pub(super) PathBuf);

    impl Folder {
        pub(super) fn new() -> Self {
            let name = format!("wharf-rocm-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).expect("a folder");
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

fn round_trip(accelerator: &RocmCopy) {
    let mut bench = Bench::with(accelerator.clone());
    let mut memory = bench.allocate(MemoryType::Rocm(1), 9000);
    bench.put(&mut memory, &pattern(4, 9000));
    assert!(bench.get(&memory, 9000) == pattern(4, 9000));
}

#[test]
fn an_old_runtime_copies_and_exports_nothing_as_a_dma_buf() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let (_folder, accelerator) = lacking(&NEWER);
    round_trip(&accelerator);
    let domain = accelerator.domain();
    let memory = domain.allocate(MemoryType::Rocm(0), 64).expect("memory");
    let found = domain
        .detect(memory.range())
        .expect("detects")
        .expect("known");
    assert!(!found.dma_buf && !memory.exports());
    let error = domain.export(memory.range()).expect_err("too old");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("hsa_amd_portable_export_dmabuf"));
}

/// Nobody tells of failures, memory is not zeroed: all the rest works.
#[test]
fn one_without_events_and_fills() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let names = [
        "hsa_amd_register_system_event_handler",
        "hsa_amd_memory_fill",
    ];
    let (_folder, accelerator) = lacking(&names);
    round_trip(&accelerator);
}

#[test]
fn one_that_lacks_what_is_needed() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let (_folder, accelerator) = lacking(&["hsa_amd_memory_async_copy"]);
    let error = accelerator.probe().expect_err("useless");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("hsa_amd_memory_async_copy"),
        "{error}"
    );
}

/// Up to ROCm 5 there is one handler of failures, which may be the program's.
#[test]
fn a_program_that_handles_failures_itself() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_ONE_HANDLER", "1")]);
    }
    let accelerator = RocmCopy::with_library(library());
    round_trip(&accelerator);
}
