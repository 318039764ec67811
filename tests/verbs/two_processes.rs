//! Two processes, one device each.

use std::net::IpAddr;

use crate::{
    driver::verbs::{Gid, Mtu, ReceiveRequest, SendFlags, SendRequest, Status},
    link::{End, HASTY, Memory, Place, devices, run},
    support::{Child, Parent, child, this_test},
};

/// What one tells the other: where its queue pair is, and a piece of memory.
fn told(place: Place, memory: &Memory) -> String {
    format!(
        "{} {} {} {} {}",
        place.gid.ip(),
        place.queue_pair,
        place.mtu.bytes(),
        memory.address(0),
        memory.region.rkey()
    )
}

fn heard(line: &str) -> (Place, u64, u32) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ip: IpAddr = words[0].parse().expect("an address");
    let gid = match ip {
        IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => Gid(v6.octets()),
    };
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let place = Place {
        gid,
        queue_pair: number(1) as u32,
        mtu: Mtu::within(number(2) as u32).expect("an MTU"),
    };
    (place, number(3), number(4) as u32)
}

async fn far(mut parent: Parent) {
    let end = End::open(devices()[1]);
    let queue_pair = end.queue_pair(None);
    let memory = end.memory(8);
    parent.say(told(end.place(&queue_pair), &memory));
    let (place, ..) = heard(&parent.hear().await);
    end.connect(&queue_pair, place, HASTY);
    parent.say("connected");
    assert_eq!(parent.hear().await, "written");
    memory.check(1, 8);
    memory.pattern(2);
    let piece = [memory.piece(0..8)];
    let mut send = [SendRequest::send(1, &piece, SendFlags::SIGNALED)];
    post(&queue_pair, &mut send);
    end.success().await;
    parent.wait_for_death().await;
}

async fn near(mut parent: Parent) {
    let end = End::open(devices()[0]);
    let queue_pair = end.queue_pair(None);
    let memory = end.memory(8);
    let (place, address, key) = heard(&parent.hear().await);
    end.connect(&queue_pair, place, HASTY);
    let piece = [memory.piece(0..8)];
    receive(&queue_pair, ReceiveRequest::new(4, &piece));
    parent.say(told(end.place(&queue_pair), &memory));
    assert_eq!(parent.hear().await, "connected");
    let source = end.memory(8);
    source.pattern(1);
    let from = [source.piece(0..8)];
    let write = SendRequest::write(1, &from, SendFlags::SIGNALED, address, key);
    post(&queue_pair, &mut [write]);
    end.success().await;
    parent.say("written");
    assert_eq!(end.success().await.id(), 4);
    memory.check(2, 8);
    parent.say("received");
    assert_eq!(parent.hear().await, "killed");
    post(&queue_pair, &mut [write]);
    let ends = end.completions(1).await;
    assert_eq!(ends[0].status(), Status::RETRY_EXC_ERR);
}

/// Memory of one is written, it sends, and is killed: the next write ends after all tries. Emulated devices are on one network by a folder.
#[test]
fn a_killed_process_is_told_after_all_tries() {
    if let Some(parent) = child("far") {
        return run(far(parent));
    }
    if let Some(parent) = child("near") {
        return run(near(parent));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("UTF-8");
    let start = |part| Child::start(this_test!(), part, &[("EMULATED_VERBS_FOLDER", folder)]);
    let (mut far, mut near) = (start("far"), start("near"));
    run(async {
        // Each hears what the other says.
        near.say(far.hear().await);
        far.say(near.hear().await);
        near.say(far.hear().await);
        far.say(near.hear().await);
        assert_eq!(near.hear().await, "received");
        far.kill();
        near.say("killed");
    });
    near.finish();
}

#[allow(unsafe_code, reason = "memory stays until the test's end")]
fn post(queue_pair: &crate::driver::verbs::QueuePair, requests: &mut [SendRequest<'_>]) {
    // SAFETY: callers keep memory until their end, and only touch it by atomics.
    unsafe { queue_pair.post_send(requests) }.expect("posted");
}

#[allow(unsafe_code, reason = "memory stays until the test's end")]
fn receive(queue_pair: &crate::driver::verbs::QueuePair, request: ReceiveRequest<'_>) {
    // SAFETY: as above.
    unsafe { queue_pair.post_receive(&mut [request]) }.expect("posted");
}
