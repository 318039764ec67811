//! Which devices a process takes.

use crate::{
    common::{First, Path, Second, play},
    machine::{needs_machine, open_devices},
    support::{LIMIT, watchdog},
};

/// The one that it was told to, and no other.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn that_are_named() {
    needs_machine!();
    play!(Path::RcVerbs)
}

async fn first(mut first: First) {
    let (child, endpoint) = first.second().await;
    assert_eq!(open_devices(std::process::id()), ["uverbs0"]);
    assert_eq!(open_devices(child.pid()), ["uverbs1"]);
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    first.finish().await;
}

async fn second(second: Second) {
    watchdog(LIMIT, second.endpoint.closed()).await;
}
