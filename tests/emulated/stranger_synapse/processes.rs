//! Two programs and one card: the second has it when the first has let it go, or was killed.

use std::ptr;

use super::api::*;
use crate::support::{Child, child, this_test};

/// Acquires the card with the module 7 by each way that names it, and copies on it.
fn has_the_card() {
    let mut id = NO_ID;
    ok(synDeviceAcquireByModuleId(&mut id, 7));
    let (stream, memory, mut host) = (stream(), malloc(4096), Host::pinned(4096));
    host.bytes().copy_from_slice(&pattern(4, 4096));
    let at = host.address();
    ok(synMemCopyAsync(stream, at, 4096, memory, TO_DEVICE));
    ok(synStreamSynchronize(stream));
    host.bytes().fill(0);
    ok(synMemCopyAsync(stream, memory, 4096, at, TO_HOST));
    ok(synStreamSynchronize(stream));
    assert_eq!(host.bytes(), pattern(4, 4096));
    ok(synDeviceFree(id, memory, 0));
    ok(synHostFree(id, host.pointer(), 0));
    ok(synStreamDestroy(stream));
}

#[tokio::test]
async fn a_card_is_one_programs_at_a_time() {
    if let Some(mut parent) = child("first") {
        ok(synInitialize());
        has_the_card();
        parent.say("has it");
        parent.hear().await;
        released(&[]);
        parent.say("let it go");
        parent.hear().await;
        has_the_card();
        // In the middle of work.
        control("hold all");
        ok(synMemsetD8Async(malloc(4096), 1, 4096, stream()));
        parent.say("has it again");
        return parent.wait_for_death().await;
    }
    if let Some(mut parent) = child("second") {
        ok(synInitialize());
        let mut id = 5;
        let refused = || {
            let mut id = 5;
            let by_module = synDeviceAcquireByModuleId(&mut id, 7);
            assert_eq!((by_module, id), (NO_DEVICE, NO_ID));
            // By the address a busy card is a failure, where one that is not there is no device.
            assert_eq!(synDeviceAcquire(&mut id, c"0000:33:00.0".as_ptr()), FAIL);
            assert_eq!(control("live"), "devices 0");
        };
        refused();
        // It counts all the same, and of two the other one is free.
        let mut count = 0;
        ok(synDeviceGetCount(&mut count));
        assert_eq!(count, 2);
        ok(synDeviceAcquire(&mut id, ptr::null()));
        let mut info = Info::default();
        ok(synDeviceGetInfoV2(id, &mut info));
        assert_eq!(info.index, 1);
        released(&[]);
        parent.say("refused");
        parent.hear().await;
        has_the_card();
        released(&[]);
        parent.say("had it");
        parent.hear().await;
        refused();
        parent.say("refused again");
        parent.hear().await;
        has_the_card();
        released(&[]);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("text");
    let variables = [("EMULATED_HLTHUNK_FOLDER", folder)];
    let mut first = Child::start(this_test!(), "first", &variables);
    assert_eq!(first.hear().await, "has it");
    let mut second = Child::start(this_test!(), "second", &variables);
    assert_eq!(second.hear().await, "refused");
    first.say("let it go");
    assert_eq!(first.hear().await, "let it go");
    second.say("now");
    assert_eq!(second.hear().await, "had it");
    first.say("again");
    assert_eq!(first.hear().await, "has it again");
    second.say("now");
    assert_eq!(second.hear().await, "refused again");
    first.kill();
    second.say("now");
    second.finish();
}
