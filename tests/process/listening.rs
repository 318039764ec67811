//! The sockets that a worker listens at.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use wharf::{Context, Worker};

use crate::{
    common::{current_thread, own_sockets},
    support::{Child, LIMIT, Parent, child, this_test, watchdog},
};

/// The addresses at which this process listens over TCP.
fn listens_at() -> Vec<IpAddr> {
    /// As the tables write it.
    const LISTENS: &str = "0A";
    let mut own = own_sockets();
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // There is none for IPv6 where that is off.
        let text = fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (address, state, inode) = (columns[1], columns[3], columns[9]);
            // The kernel's list is read in pieces, between which others come and go: it may name one twice.
            if state != LISTENS || !own.remove(inode) {
                continue;
            }
            let (hex, _port) = address.split_once(':').expect("address:port");
            // Words of 32 bits, each in the order of this machine.
            let words: Vec<u32> = (0..hex.len() / 8)
                .map(|at| u32::from_str_radix(&hex[at * 8..][..8], 16).expect("a word"))
                .collect();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            found.push(match <[u8; 4]>::try_from(&bytes[..]) {
                Ok(v4) => Ipv4Addr::from(v4).into(),
                Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).expect("128")).into(),
            });
        }
    }
    found
}

async fn say_where(mut parent: Parent, lo_only: bool) {
    let builder = Context::builder().transports("tcp").expect("known");
    let builder = match lo_only {
        true => builder.net_devices("lo").expect("a loopback interface"),
        false => builder,
    };
    let context = builder.build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    let address = worker.address().expect("an address");
    let by_address = listens_at();
    assert!(!by_address.is_empty(), "it listens nowhere");
    for ip in &by_address {
        assert!(!ip.is_unspecified(), "it is told nobody, but listened at");
        assert!(!lo_only || ip.is_loopback(), "{ip}");
    }
    if lo_only {
        for (host, v6) in [("0.0.0.0:0", false), ("[::]:0", true)] {
            if v6 && !by_address.iter().any(IpAddr::is_ipv6) {
                continue;
            }
            let listener = worker.listen(host).await.expect("a listener");
            assert!(listener.local_addr().ip().is_loopback());
            // The kernel's list is read in pieces, between which others come and go: a look may miss one.
            let more = (0..100)
                .map(|_| listens_at())
                .find(|more| more.len() > by_address.len());
            let more = more.expect("it listens at one more");
            assert!(more.iter().all(IpAddr::is_loopback));
        }
    }
    parent.say(address);
    parent.hear().await;
}

fn play(test: &str, part: &'static str) {
    let mut child = Child::start(test, part, &[]);
    current_thread().block_on(async {
        let address: wharf::WorkerAddress = child.hear().await.parse().expect("an address");
        let context = Context::builder().transports("tcp").expect("known").build();
        let worker = Worker::new(&context.expect("a context")).expect("a worker");
        let dialled = watchdog(LIMIT, worker.connect(&address)).await;
        dialled.expect("at an address that it told");
        child.say("that is all");
    });
    child.finish();
}

/// Where only `lo` may be used, nobody comes by another interface.
#[test]
fn at_no_interface_that_may_not_be_used() {
    if let Some(parent) = child("lo") {
        current_thread().block_on(say_where(parent, true));
        return;
    }
    play(this_test!(), "lo");
}

/// At the addresses that peers are told, and at no others.
#[test]
fn at_what_is_told() {
    if let Some(parent) = child("all") {
        current_thread().block_on(say_where(parent, false));
        return;
    }
    play(this_test!(), "all");
}
