//! Messages and one-sided transfers with memory of a card at either end, over every path.

use std::sync::Arc;

use wharf::{Access, Context, Descriptor, MemoryType, Tag};

use crate::{
    fixture::{Pair, Way, pattern, run, run_on_threads, same},
    machine::{DEVICE, Machine, OTHER, bytes, filled},
};

const PAIRS: [(MemoryType, MemoryType); 4] = [
    (MemoryType::Host, DEVICE),
    (DEVICE, MemoryType::Host),
    (DEVICE, OTHER),
    (DEVICE, DEVICE),
];
const SIZES: [usize; 4] = [1, 9000, (1 << 20) + 1, 7 << 19];

fn context(machine: &Machine, way: Way) -> Context {
    let builder = way.builder().accelerator(Arc::new(machine.gaudi()));
    builder.build().expect("a context")
}

scenarios! {
    everywhere:

    async fn tagged(way: Way) {
        let machine = Machine::new(&[]);
        let Pair { here, there } = Pair::of(&context(&machine, way), way).await;
        for (from, to) in PAIRS {
            for (seed, size) in SIZES.into_iter().enumerate() {
                let wanted = pattern(size, seed);
                let source = filled(&here.worker, &here.context, from, wanted).await.freeze();
                let target = filled(&there.worker, &there.context, to, &vec![0x33; size + 5]).await;
                let (sent, received) = tokio::join!(
                    here.endpoint.tag_send(Tag(7), source),
                    there.worker.tag_recv(Tag(7), target),
                );
                sent.expect("sent");
                let target = received.expect("received").buffer;
                let found = bytes(&there.worker, target.freeze()).await;
                same(&found[..size], wanted, format_args!("{size} bytes {from} to {to}"));
            }
        }
        machine.check();
    }

    async fn put_and_get(way: Way) {
        const BOTH: Access = Access::READ.union(Access::WRITE);
        let machine = Machine::new(&[]);
        let Pair { here, there } = Pair::of(&context(&machine, way), way).await;
        for (from, to) in PAIRS {
            for (seed, size) in SIZES.into_iter().enumerate() {
                let what = format!("{size} bytes {from} to {to}");
                let wanted = pattern(size, seed);
                let source = filled(&here.worker, &here.context, from, wanted).await.freeze();
                let target = filled(&there.worker, &there.context, to, &vec![0x44; size + 2]).await;
                let region = there.context.expose(target, BOTH).await.expect("exposed");
                let descriptor = region.descriptor().expect("a descriptor");
                let descriptor = Descriptor::from_bytes(&descriptor.to_bytes()).expect("unaltered");
                let remote = here.endpoint.import(&descriptor).expect("the peer's");
                here.endpoint.put(source, remote.slice(1..)).await.expect("put");
                let room = filled(&here.worker, &here.context, from, &vec![0; size + 2]).await;
                let got = here.endpoint.get(remote, room).await.expect("got");
                let got = bytes(&here.worker, got.freeze()).await;
                same(&got[1..=size], wanted, &what);
                assert_eq!((got[0], got[size + 1]), (0x44, 0x44), "{what}");
                let found = bytes(&there.worker, region.unexpose().await.freeze()).await;
                same(&found[1..=size], wanted, &what);
            }
        }
        machine.check();
    }
}
