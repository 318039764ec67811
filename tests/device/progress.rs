//! How far an operation is that a device has a part in, at both ends.

use std::time::{Duration, Instant};

use wharf::{Access, MemoryType, OpProgress, Transferred};

use crate::{
    common::{DEVICE, Ends, OTHER, filled},
    fixture::{Side, Way, run},
};

/// Told once by who moves it alone.
const LENGTH: usize = 17 << 20;

/// Types of the two ends, a device's at one of them at least.
const PAIRS: [(MemoryType, MemoryType); 3] = [
    (MemoryType::Host, DEVICE),
    (DEVICE, MemoryType::Host),
    (DEVICE, OTHER),
];

/// Moves what can be moved, pass by pass, until all of it is told; whether each was told of something between nothing and all.
async fn watch(ends: &Ends, watches: &[OpProgress]) -> Vec<bool> {
    let mut between = vec![false; watches.len()];
    let is_over = |now: Transferred| Some(now.done) == now.total;
    while watches
        .iter()
        .any(|watch| watch.now().is_some_and(|now| !is_over(now)))
    {
        let before = Instant::now();
        while ends.here.worker.progress() + ends.there.worker.progress() == 0 {
            if before.elapsed() > Duration::from_millis(5) {
                tokio::task::yield_now().await;
                break;
            }
        }
        for (watch, between) in watches.iter().zip(&mut between) {
            *between |= watch.now().is_some_and(|now| now.done > 0 && !is_over(now));
        }
    }
    between
}

async fn memory(side: &Side, memory_type: MemoryType) -> wharf::BufferMut {
    filled(&side.worker, &side.context, memory_type, &vec![3; LENGTH]).await
}

scenarios! {
    on each carrier:

    async fn is_told_at_both_ends(way: Way) {
        let ends = Ends::new(way).await;
        for (from, to) in PAIRS {
            // By an engine, in one piece.
            if way == Way::Own && from != MemoryType::Host && to != MemoryType::Host {
                continue;
            }
            let what = format!("from {from} to {to}");
            let room = memory(&ends.there, to).await;
            let content = memory(&ends.here, from).await.freeze();
            let receive = ends.there.worker.tag_recv(1, room).post();
            let send = ends.here.endpoint.tag_send(1, content.clone()).post().expect("posted");
            let told = watch(&ends, &[receive.progress(), send.progress()]).await;
            send.await.expect("sent");
            let room = receive.await.expect("received").buffer;
            assert_eq!(told, [true; 2], "message {what}");
            let region = ends.there.context.expose(room, Access::READ | Access::WRITE).await.expect("exposed");
            let descriptor = region.descriptor().expect("a descriptor");
            let remote = ends.here.endpoint.import(&descriptor).expect("the peer's");
            let put = ends.here.endpoint.put(content, remote.clone()).post().expect("posted");
            let told = watch(&ends, &[put.progress()]).await;
            put.await.expect("written");
            assert_eq!(told, [true], "put {what}");
            let room = memory(&ends.here, from).await;
            let get = ends.here.endpoint.get(remote, room).post().expect("posted");
            let told = watch(&ends, &[get.progress()]).await;
            get.await.expect("read");
            assert_eq!(told, [true], "get {what}");
        }
        ends.end().await;
    }
}
