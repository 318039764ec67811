//! A card has one process at a time.

use wharf::{
    ErrorKind,
    transport::{Accelerator as _, gaudi::GaudiCopy},
};

use crate::{
    machine::{DEVICE, OTHER, patiently},
    support::{Child, child, emulated, this_test},
};

fn domain() -> std::sync::Arc<dyn wharf::memory::MemoryDomain> {
    let gaudi = GaudiCopy::with_library(emulated::hlthunk());
    gaudi.probe().expect("cards");
    gaudi.domain()
}

#[test]
fn another_process_has_the_card() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    if let Some(mut parent) = child("holder") {
        let memory = patiently(|| domain().allocate(DEVICE, 100));
        parent.say("has it");
        runtime.block_on(parent.wait_for_death());
        drop(memory);
        return;
    }
    if let Some(mut parent) = child("second") {
        let domain = domain();
        let error = domain.allocate(DEVICE, 100).expect_err("taken");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(error.to_string().contains("another process"), "{error}");
        drop(patiently(|| domain.allocate(OTHER, 100)));
        parent.say("refused");
        assert_eq!(runtime.block_on(parent.hear()), "again");
        drop(patiently(|| domain.allocate(DEVICE, 100)));
        parent.say("has it");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let shared = [
        (
            "EMULATED_HLTHUNK_FOLDER",
            folder.path().to_str().expect("text"),
        ),
        ("EMULATED_HLTHUNK_RELEASE_MS", "30"),
    ];
    let mut holder = Child::start(this_test!(), "holder", &shared);
    runtime.block_on(async {
        assert_eq!(holder.hear().await, "has it");
        let mut second = Child::start(this_test!(), "second", &shared);
        assert_eq!(second.hear().await, "refused");
        // Killed as it stands.
        drop(holder);
        second.say("again");
        assert_eq!(second.hear().await, "has it");
        second.finish();
    });
}
