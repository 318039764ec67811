//! Memory that is taken back while a peer's operation is in the middle of it.

use std::{pin::pin, sync::Arc, time::Duration};

use wharf::MemoryType;

use crate::{
    group::{BOTH, Carrier, pattern, run},
    support::accelerator::FakeAccelerator,
};

const SIZE: usize = 100_000;

/// The device of the owner is still writing what a peer puts, or reading what it gets.
#[test]
fn it_is_the_owners_when_the_device_is_done_with_it() {
    for carrier in [Carrier::Shm, Carrier::Tcp] {
        for put in [true, false] {
            eprintln!("{carrier:?}, put: {put}");
            run(async move {
                let device = FakeAccelerator::new();
                let builder = carrier.builder().accelerator(Arc::new(device.clone()));
                let context = builder.build().expect("a context");
                let ranks = carrier.ranks_of(context.clone()).await;
                let memory = context.allocate_on(MemoryType::Cuda(0), SIZE).await;
                let memory = ranks[1].register(memory.expect("memory"), BOTH).await;
                let memory = memory.expect("registered");
                let bytes = memory.serialize().expect("bytes");
                let remote = ranks[0].deserialize(&bytes).await.expect("whole");
                device.plan(|plan| plan.stuck = true);
                let part = remote.part(0, SIZE).expect("within");
                let peer = tokio::spawn(async move {
                    match put {
                        true => remote.endpoint().put(vec![0xee; SIZE], part).await.is_ok(),
                        false => remote.endpoint().get(part, vec![0; SIZE]).await.is_ok(),
                    }
                });
                while device.copies() == 0 {
                    tokio::task::yield_now().await;
                }
                let mut revoked = pin!(memory.revoke());
                let early = tokio::time::timeout(Duration::from_millis(100), &mut revoked).await;
                assert!(early.is_err(), "the device is inside");
                device.plan(|plan| plan.stuck = false);
                revoked.await;
                let worker = ranks[1].worker();
                let own = pattern(SIZE, 3);
                memory.copy_in(worker, 0, own.clone()).await.expect("in");
                assert!(!peer.await.expect("ended"), "it was revoked");
                let now = memory.copy_out(worker, 0, SIZE).await.expect("out");
                assert!(now == own, "what the owner wrote is gone");
                device.check();
            });
        }
    }
}
