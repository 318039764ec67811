//! A worker with it: no code of the upper layers knows ROCm.

use wharf::{Access, MemoryType, Tag};

use crate::{
    alone::{child_with, is_child},
    bench::run,
    fixture::{accelerator, block_until, control, live, pattern},
    support::{LIMIT, this_test},
};

#[test]
fn every_verb_between_devices_and_the_host() {
    for bar in ["0", "1"] {
        if !is_child() {
            child_with(this_test!(), &[("EMULATED_HSA_BAR", bar)]);
            continue;
        }
        run(accelerator(), |context, worker| async move {
            let address = worker.address().expect("an address");
            let endpoint = worker.connect(&address).await.expect("connects");
            for length in [1, 300, 5_000, 3_000_001] {
                let data = pattern(length as u64, length);
                let (one, other) = (MemoryType::Rocm(0), MemoryType::Rocm(1));
                let memory = context.allocate_on(one, length).await.expect("memory");
                let memory = worker.copy(data.clone(), memory).await.expect("copies");
                // To the other device by a message, and back into ordinary memory by a get.
                let target = context.allocate_on(other, length).await.expect("memory");
                let receive = worker.tag_recv(Tag(1), target);
                let send = endpoint.tag_send(Tag(1), memory.freeze());
                let (received, sent) = tokio::join!(receive, send);
                sent.expect("sent");
                let there = received.expect("received").buffer;
                let region = context.expose(there, Access::READ | Access::WRITE).await;
                let region = region.expect("exposed");
                let descriptor = region.descriptor().expect("a descriptor");
                let remote = endpoint.import(&descriptor).expect("imports");
                let back = endpoint.get(remote.clone(), vec![0; length]).await;
                assert!(back.expect("got") == data);
                // And into it.
                let data = pattern(7, length);
                endpoint
                    .put(data.clone(), remote.clone())
                    .await
                    .expect("put");
                let pinned = context.allocate_on(MemoryType::HostPinned, length).await;
                let pinned = pinned.expect("memory");
                let back = endpoint.get(remote, pinned).await.expect("got");
                assert!(back.as_slice() == Some(&data[..]));
            }
            worker.shutdown(LIMIT).await.expect("ends");
        });
        block_until("the end", || live("allocations") == 0);
        assert_eq!(control("misused"), "0", "{}", control("misuses"));
        return;
    }
}
