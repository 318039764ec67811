//! What is registered, and what is refused, with the reason.
//!
//! # Safety
//! Registrations are of memory that is not used otherwise.
#![allow(unsafe_code)]

use std::{fs, net::IpAddr, os::fd::AsFd};

use nix::sys::{
    memfd::{MFdFlags, memfd_create},
    resource::{Resource, setrlimit},
};

use crate::{
    driver::verbs::{
        Access, AtomicSupport, Gid, GidEntry, GidKind, LinkLayer, PortState, Transport, Verbs,
        choose_gid,
    },
    error::ErrorKind,
    link::{ALL, End, devices, needs_machine, open},
    support::{Child, child, this_test},
};

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn devices_and_ports_are_described() {
    needs_machine!();
    let all = Verbs::load(None)
        .expect("loads")
        .devices()
        .expect("devices");
    for name in devices() {
        let device = all.iter().find(|device| device.name() == name);
        let device = device.expect("that device");
        assert_eq!(device.transport(), Transport::IB);
        assert_ne!(device.guid(), 0);
        let context = device.open().expect("opens");
        let attributes = context.attributes().expect("attributes");
        assert_eq!(attributes.ports, 1);
        assert_eq!(attributes.max_reads_started, 128);
        assert_eq!(attributes.max_reads_served, 128);
        assert_eq!(attributes.atomics, AtomicSupport::Device);
        assert!(attributes.max_shared_receive_queues > 0);
        let port = context.port(1).expect("a port");
        assert_eq!(port.state, PortState::ACTIVE);
        assert_eq!(port.link_layer, LinkLayer::ETHERNET);
        assert!(port.uses_gid() && port.lid == 0);
        assert_eq!(port.mtu.expect("an MTU").bytes(), 1024);
        let error = context.port(2).expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn the_ipv4_address_is_chosen() {
    needs_machine!();
    for (name, last) in devices().into_iter().zip([1, 2]) {
        let end = End::open(name);
        assert_eq!(end.gid.gid.ip(), IpAddr::from([10, 77, 0, last]));
        assert_eq!(end.gid.kind, GidKind::ROCE_V2);
        let gids = end.context.gids().expect("GIDs");
        assert!(gids.len() >= 3, "{gids:?}");
        assert_ne!(end.gid.interface, 0);
    }
}

/// Without a device: by what is preferred.
#[test]
fn gids_are_preferred_by_kind_and_reach() {
    let entry = |index, ip: &str, kind| {
        let ip: IpAddr = ip.parse().expect("an address");
        let octets = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        GidEntry {
            gid: Gid(octets),
            index,
            port: 1,
            kind,
            interface: 1,
        }
    };
    let (v1, v2) = (GidKind::ROCE_V1, GidKind::ROCE_V2);
    let table = [
        entry(0, "fe80::1", v1),
        entry(1, "fe80::1", v2),
        entry(2, "10.0.0.1", v1),
        entry(3, "fd00::1", v2),
        entry(4, "10.0.0.1", v2),
        entry(5, "10.0.0.2", v2),
    ];
    let best = |table: &[GidEntry]| choose_gid(table, 1).map(|entry| entry.index);
    assert_eq!(best(&table), Some(4));
    assert_eq!(best(&table[..4]), Some(3));
    assert_eq!(best(&table[..3]), Some(1));
    assert_eq!(best(&table[..1]), Some(0));
    assert_eq!(best(&[]), None);
    assert_eq!(choose_gid(&table, 2), None);
    let infiniband = [entry(0, "fe80::1", GidKind::IB)];
    assert_eq!(best(&infiniband), Some(0));
    assert_eq!(best(&[entry(0, "::", v2)]), None);
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn what_cannot_be_registered_is_told() {
    needs_machine!();
    let end = End::open("rxe0");
    let refused = |address, length, access| {
        // SAFETY: fails, or is dropped at once.
        let error = unsafe { end.domain.register(address, length, access) };
        let error = error.expect_err("is refused");
        assert!(error.to_string().contains("ibv_reg_mr on rxe0"), "{error}");
        error
    };
    let local = Access::LOCAL_WRITE;
    // Nothing is mapped there: kernels say EFAULT or ENOMEM.
    let kind = refused(0x1000, 4096, local).kind();
    assert!(
        matches!(kind, ErrorKind::InvalidArgument | ErrorKind::Exhausted),
        "{kind:?}"
    );
    let words = [0_u64; 8];
    let address = words.as_ptr().expose_provenance();
    // A remote write needs a local one.
    let error = refused(address, 64, Access::REMOTE_WRITE);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // The program's text is not writable.
    let text = what_cannot_be_registered_is_told as fn() as usize;
    let error = refused(text & !0xfff, 64, local);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(
        error.to_string().contains("not writable for this process"),
        "{error}"
    );
    // soft-RoCE fetches nothing by itself.
    let error = refused(address, 64, local | Access::ON_DEMAND);
    assert!(error.to_string().contains("on-demand"), "{error}");
    let on_demand = end.context.attributes().expect("attributes").on_demand;
    assert!(!on_demand.supported && !on_demand.implicit);
    // A hint that it does not know is left out, not refused.
    // SAFETY: dropped at once.
    let relaxed = unsafe {
        end.domain
            .register(address, 64, local | Access::RELAXED_ORDERING)
    };
    let region = relaxed.expect("registers");
    assert_eq!(region.piece(0..64).expect("all of it").length, 64);
    let error = region.piece(1..65).expect_err("leaves it");
    assert_eq!(error.kind(), ErrorKind::OutOfBounds);
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn dma_bufs_are_refused_by_soft_roce() {
    needs_machine!();
    let end = End::open("rxe0");
    let fd = memfd_create("wharf-test", MFdFlags::MFD_CLOEXEC).expect("a descriptor");
    // SAFETY: fails.
    let error = unsafe { end.domain.register_dmabuf(fd.as_fd(), 0, 4096, 0, ALL) };
    let error = error.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("ibv_reg_dmabuf_mr"), "{error}");
}

/// In a process of its own, which has a limit and no right to pass it.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn the_limit_on_locked_memory_is_told_with_the_remedy() {
    needs_machine!();
    if child("limited").is_none() {
        Child::start(this_test!(), "limited", &[]).finish();
        return;
    }
    let context = open("rxe0");
    let domain = context.protection_domain().expect("a domain");
    setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).expect("a limit");
    give_up_rights();
    let bytes = vec![0_u8; 1 << 20];
    // SAFETY: fails.
    let error = unsafe { domain.register(bytes.as_ptr().expose_provenance(), bytes.len(), ALL) };
    let error = error.expect_err("is too much");
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("may lock 64 KiB of memory (ulimit -l): raise RLIMIT_MEMLOCK"),
        "{text}"
    );
}

/// Drops all capabilities of this thread.
fn give_up_rights() {
    /// `_LINUX_CAPABILITY_VERSION_3`.
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    let none = [0_u32; 6];
    // SAFETY: reads the two structs.
    let answer = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    let status = fs::read_to_string("/proc/thread-self/status").expect("a status");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
}
