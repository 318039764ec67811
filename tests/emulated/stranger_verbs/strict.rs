//! What the library refuses a program that keeps no rule, and with which error number.
//!
//! # Safety
//! See `raw`: types are those of the header, and what structs name lives through the calls.
#![allow(unsafe_code)]

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
};

use super::raw::{
    ALL, Device, ERR, INIT, INLINE, LOCAL_WRITE, QUEUE_PAIR, QpAttr, QpInit, QpInitEx, READ,
    REMOTE_WRITE, RESET, RTR, RTS, Raw, SEND, SHARED, SIGNALED, Sge, TO_INIT, TO_RTR, TO_RTS,
    WRITE, attributes, call, connect, errno, field, modify, name, number, operation, post_receive,
    post_send, send, state,
};

const NONE: Raw = ptr::null_mut();

/// Both ends of a connection, on a device each.
struct Two {
    devices: [Device; 2],
    pairs: [Raw; 2],
}

impl Two {
    fn new() -> Self {
        Self::with(|_| ())
    }

    /// With what `change` does to the first one's attributes.
    fn with(change: impl FnOnce(&mut QpAttr)) -> Self {
        let devices = [Device::open(0), Device::open(1)];
        let pairs = devices.each_ref().map(|device| device.queue_pair(NONE));
        let mut near = attributes(number(pairs[1]), devices[1].gid);
        change(&mut near);
        connect(pairs[0], &near);
        connect(pairs[1], &attributes(number(pairs[0]), devices[0].gid));
        Self { devices, pairs }
    }

    fn post(&self, side: usize, request: super::raw::SendWr) -> c_int {
        post_send(self.devices[side].context, self.pairs[side], &mut [request]).0
    }

    /// The statuses of what completed at a side.
    fn statuses(&self, side: usize) -> Vec<u32> {
        let polled = self.devices[side].poll();
        polled.iter().map(|wc| wc.status).collect()
    }
}

#[test]
fn what_others_stand_on_is_not_destroyed() {
    let device = Device::open(0);
    let mut init = [0_usize, 0, 0];
    // A context, then `max_wr` 4 and `max_sge` 1.
    init[1] = 4 | 1 << 32;
    let srq = call!(ibv_create_srq(device.pd => Raw, init.as_mut_ptr() => *mut usize) -> Raw);
    let qp = device.queue_pair(srq);
    let region = device.register(ALL);
    let destroy = [
        ("ibv_close_device", device.context),
        ("ibv_dealloc_pd", device.pd),
        ("ibv_destroy_comp_channel", device.channel),
        ("ibv_destroy_cq", device.cq),
        ("ibv_destroy_srq", srq),
    ];
    let end = |name: &str, object| {
        type End = unsafe extern "C" fn(Raw) -> c_int;
        // SAFETY: see the head of the file.
        unsafe { super::raw::function::<End>(name)(object) }
    };
    for (name, object) in destroy {
        assert_eq!(end(name, object), libc::EBUSY, "{name}");
    }
    // From what stands on others to what they stand on, each goes, and is no hindrance then.
    for (name, object) in [
        ("ibv_destroy_qp", qp),
        ("ibv_destroy_srq", srq),
        ("ibv_dereg_mr", region.mr),
        ("ibv_destroy_cq", device.cq),
        ("ibv_destroy_comp_channel", device.channel),
        ("ibv_dealloc_pd", device.pd),
        ("ibv_close_device", device.context),
    ] {
        assert_eq!(end(name, object), 0, "{name}");
    }
}

type Change = fn(&mut QpAttr);

/// Every step with what it must be told; no other one, and with nothing less or more.
#[test]
fn queue_pairs_go_from_state_to_state_as_they_may() {
    let devices = [Device::open(0), Device::open(1)];
    let steps = [(INIT, TO_INIT), (RTR, TO_RTR), (RTS, TO_RTS)];
    let all = attributes(number(devices[1].queue_pair(NONE)), devices[1].gid);
    let qp = devices[0].queue_pair(NONE);
    for (from, &(next, must)) in [RESET, INIT, RTR].iter().zip(&steps) {
        assert_eq!(state(qp), *from);
        for (to, mask) in steps.iter().filter(|step| step.0 > *from + 1) {
            let attr = QpAttr { state: *to, ..all };
            assert_eq!(modify(qp, &attr, *mask), libc::EINVAL, "{from} to {to}");
        }
        let attr = QpAttr { state: next, ..all };
        for bit in (0..26).filter(|bit| must & 1 << bit != 0) {
            assert_eq!(modify(qp, &attr, must & !(1 << bit)), libc::EINVAL, "{bit}");
        }
        // The queue key, alternative paths and rates are of other queue pairs.
        for bit in [6, 14, 18, 25] {
            assert_eq!(modify(qp, &attr, must | 1 << bit), libc::EINVAL, "{bit}");
        }
        // Not the state that it is in.
        let elsewhere = QpAttr {
            cur_state: ERR,
            ..attr
        };
        assert_eq!(modify(qp, &elsewhere, must | 2), libc::EINVAL);
        assert_eq!(modify(qp, &attr, must), 0, "to {next}");
    }
    // What is refused of the values themselves.
    let wrong: [(u32, c_int, Change, c_int); 12] = [
        (INIT, TO_INIT, |attr| attr.port_num = 2, libc::EINVAL),
        (INIT, TO_INIT, |attr| attr.pkey_index = 1, libc::EINVAL),
        (RTR, TO_RTR, |attr| attr.path_mtu = 0, libc::EINVAL),
        (RTR, TO_RTR, |attr| attr.path_mtu = 6, libc::EINVAL),
        (
            RTR,
            TO_RTR,
            |attr| attr.max_dest_rd_atomic = 17,
            libc::EINVAL,
        ),
        // Ethernet knows GIDs alone; this side has one, on one port.
        (RTR, TO_RTR, |attr| attr.is_global = 0, libc::EINVAL),
        (RTR, TO_RTR, |attr| attr.sgid_index = 1, libc::EINVAL),
        (RTR, TO_RTR, |attr| attr.ah_port_num = 2, libc::EINVAL),
        (RTR, TO_RTR, |attr| attr.dgid = [1, 2], libc::ETIMEDOUT),
        (RTS, TO_RTS, |attr| attr.retry_cnt = 8, libc::EINVAL),
        (RTS, TO_RTS, |attr| attr.rnr_retry = 8, libc::EINVAL),
        (RTS, TO_RTS, |attr| attr.max_rd_atomic = 17, libc::EINVAL),
    ];
    for (to, mask, change, errno) in wrong {
        let reset = QpAttr::default();
        assert_eq!(modify(qp, &reset, 1), 0, "any state to RESET");
        for (step, mask) in steps.iter().filter(|step| step.0 < to) {
            assert_eq!(
                modify(
                    qp,
                    &QpAttr {
                        state: *step,
                        ..all
                    },
                    *mask
                ),
                0
            );
        }
        let mut attr = QpAttr { state: to, ..all };
        change(&mut attr);
        assert_eq!(modify(qp, &attr, mask), errno, "to {to}");
        assert_eq!(state(qp), to - 1, "stays where it was");
    }
    let over = QpAttr { state: ERR, ..all };
    assert_eq!(modify(qp, &over, 1), 0);
    for (to, mask) in steps {
        assert_eq!(modify(qp, &QpAttr { state: to, ..all }, mask), libc::EINVAL);
    }
}

#[test]
fn requests_are_refused_where_they_cannot_be() {
    let two = Two::new();
    let [near, _] = &two.devices;
    let region = near.register(ALL);
    let piece = [region.piece(8)];
    let three = [region.piece(8); 3];
    // A state that sends nothing, and one that receives nothing.
    let fresh = near.queue_pair(NONE);
    let post = |qp, request| post_send(near.context, qp, &mut [request]);
    let refused = (libc::EINVAL, Some(0));
    assert_eq!(post(fresh, send(1, SEND, 0, &piece)), refused);
    let receive = |qp, list: &[Sge]| post_receive(near.context, QUEUE_PAIR, qp, 1, list);
    assert_eq!(receive(fresh, &piece), libc::EINVAL);
    let attr = attributes(1, near.gid);
    assert_eq!(
        modify(
            fresh,
            &QpAttr {
                state: INIT,
                ..attr
            },
            TO_INIT
        ),
        0
    );
    assert_eq!(post(fresh, send(1, SEND, 0, &piece)), refused);
    assert_eq!(receive(fresh, &piece), 0);
    // More pieces or inline bytes than it has room for, what cannot be inline, and no such request.
    let qp = two.pairs[0];
    assert_eq!(post(qp, send(1, SEND, 0, &three)), refused);
    assert_eq!(receive(qp, &three), libc::EINVAL);
    let long = [region.piece(17)];
    assert_eq!(post(qp, send(1, SEND, INLINE, &long)), refused);
    assert_eq!(post(qp, send(1, READ, INLINE, &piece)), refused);
    assert_eq!(post(qp, send(1, 7, 0, &piece)), refused);
    // Longer than any message is.
    let huge = [Sge {
        length: u32::MAX,
        ..piece[0]
    }; 2];
    assert_eq!(post(qp, send(1, SEND, 0, &huge)), refused);
    for _ in 0..4 {
        assert_eq!(receive(qp, &piece), 0);
    }
    assert_eq!(receive(qp, &piece), libc::ENOMEM);
}

/// Room comes back with a completion that was polled, and for all requests until it.
#[test]
fn a_send_queue_has_no_more_room_than_was_asked_for() {
    let two = Two::new();
    let [near, far] = &two.devices;
    let (from, to) = (near.register(ALL), far.register(ALL));
    let piece = [from.piece(8)];
    let write = |id, flags| super::raw::SendWr {
        remote: to.addr,
        rkey: u64::from(to.rkey),
        ..send(id, WRITE, flags, &piece)
    };
    let mut six = [0, 0, 0, SIGNALED, 0, 0].map(|flags| write(flags.into(), flags));
    let (answer, bad) = post_send(near.context, two.pairs[0], &mut six);
    assert_eq!((answer, bad), (libc::ENOMEM, Some(4)));
    // All were carried out, and only one told of it.
    assert_eq!(two.post(0, write(5, 0)), libc::ENOMEM);
    assert_eq!(two.statuses(0), [0]);
    for _ in 0..4 {
        assert_eq!(two.post(0, write(6, 0)), 0);
    }
    // Nobody asked to be told: the room is gone for good.
    assert_eq!(two.post(0, write(7, SIGNALED)), libc::ENOMEM);
    assert!(near.poll().is_empty());
}

#[test]
fn memory_is_registered_as_the_kernel_does() {
    let device = Device::open(0);
    let words = [0_u64; 8];
    let start: Raw = words.as_ptr().cast_mut().cast();
    let register = |address: Raw, length: usize, access: c_int| {
        let mr = call!(ibv_reg_mr(device.pd => Raw, address => Raw, length => usize, access => c_int) -> Raw);
        if mr.is_null() { errno() } else { 0 }
    };
    assert_eq!(register(start, 0, ALL), libc::EINVAL);
    assert_eq!(register(start, 64, REMOTE_WRITE), libc::EINVAL);
    assert_eq!(register(start, 64, 8), libc::EINVAL);
    // Optional rights are of the newer call.
    assert_eq!(register(start, 64, 1 << 20), libc::EINVAL);
    assert_eq!(
        register(ptr::without_provenance_mut(4096), 64, ALL),
        libc::EFAULT
    );
    assert_eq!(register(start, 64, 0), 0);
    let newer = call!(ibv_reg_mr_iova2(device.pd => Raw, start => Raw, 64 => usize, start as u64 => u64, 1 | 1 << 20 => u32) -> Raw);
    assert!(!newer.is_null());
    let elsewhere = call!(ibv_reg_mr_iova2(device.pd => Raw, start => Raw, 64 => usize, 1 => u64, 1 => u32) -> Raw);
    assert!(elsewhere.is_null() && errno() == libc::EINVAL);
}

/// What ends requests, at both sides, and that a queue pair with an error ends all else.
#[test]
fn requests_end_as_the_transport_says() {
    const LOC_PROT: u32 = 4;
    const FLUSH: u32 = 5;
    const REM_INV: u32 = 9;
    const REM_ACCESS: u32 = 10;
    const RETRY: u32 = 12;
    const RNR: u32 = 13;
    let write = |two: &Two, access, change: fn(&mut super::raw::SendWr)| {
        let from = two.devices[0].register(LOCAL_WRITE);
        let to = two.devices[1].register(access);
        let piece = [from.piece(8)];
        let mut request = super::raw::SendWr {
            remote: to.addr,
            rkey: u64::from(to.rkey),
            ..send(1, WRITE, SIGNALED, &piece)
        };
        change(&mut request);
        assert_eq!(two.post(0, request), 0);
    };
    // The far end fails with what it refuses.
    for (access, change) in [
        (LOCAL_WRITE, (|_| ()) as fn(&mut super::raw::SendWr)),
        (ALL, |request| request.rkey += 1),
        (ALL, |request| request.remote += 64),
        (ALL, |request| request.remote = u64::MAX),
        (ALL, |request| request.remote -= 1),
    ] {
        let two = Two::new();
        let region = two.devices[1].register(ALL);
        let piece = [region.piece(8)];
        let far = two.devices[1].context;
        assert_eq!(post_receive(far, QUEUE_PAIR, two.pairs[1], 1, &piece), 0);
        write(&two, access, change);
        assert_eq!(two.statuses(0), [REM_ACCESS]);
        assert_eq!(two.statuses(1), [FLUSH]);
        assert_eq!((state(two.pairs[0]), state(two.pairs[1])), (ERR, ERR));
        // Posting goes on; all is flushed.
        write(&two, ALL, |_| ());
        assert_eq!(two.statuses(0), [FLUSH]);
    }
    // A key of this side that is none is no business of the peer's.
    let two = Two::new();
    let piece = [Sge {
        addr: 64,
        length: 8,
        lkey: 3,
    }];
    assert_eq!(two.post(0, send(1, SEND, SIGNALED, &piece)), 0);
    assert_eq!(two.statuses(0), [LOC_PROT]);
    assert_eq!((state(two.pairs[0]), state(two.pairs[1])), (ERR, RTS));
    // No receive, with one retry; one that is too short.
    let two = Two::new();
    assert_eq!(two.post(0, send(1, SEND, SIGNALED, &[])), 0);
    assert_eq!(two.statuses(0), [RNR]);
    assert_eq!(state(two.pairs[1]), RTS);
    let two = Two::new();
    let regions = two.devices.each_ref().map(|device| device.register(ALL));
    let (near, far) = ([regions[0].piece(16)], [regions[1].piece(8)]);
    let context = two.devices[1].context;
    assert_eq!(post_receive(context, QUEUE_PAIR, two.pairs[1], 1, &far), 0);
    assert_eq!(two.post(0, send(1, SEND, SIGNALED, &near)), 0);
    assert_eq!((two.statuses(0), two.statuses(1)), (vec![REM_INV], vec![1]));
    // Packets that the far end does not expect, or that go to another port, or to nobody.
    for change in [
        (|attr| attr.sq_psn = 8) as Change,
        |attr| attr.dgid = Device::open(0).gid,
        |attr| attr.dest_qp_num = 1,
    ] {
        let two = Two::with(change);
        write(&two, ALL, |_| ());
        assert_eq!(two.statuses(0), [RETRY]);
    }
}

#[test]
fn shared_receives_have_their_limits() {
    let device = Device::open(0);
    let mut init = [0_usize, 2 | 1 << 32, 0];
    let srq = call!(ibv_create_srq(device.pd => Raw, init.as_mut_ptr() => *mut usize) -> Raw);
    let region = device.register(ALL);
    let piece = [region.piece(8); 2];
    let post = |list| post_receive(device.context, SHARED, srq, 1, list);
    assert_eq!(post(&piece), libc::EINVAL);
    assert_eq!((post(&piece[..1]), post(&piece[..1])), (0, 0));
    assert_eq!(post(&piece[..1]), libc::ENOMEM);
    // A queue pair that shares has none of its own.
    let qp = device.queue_pair(srq);
    let attr = attributes(1, device.gid);
    assert_eq!(
        modify(
            qp,
            &QpAttr {
                state: INIT,
                ..attr
            },
            TO_INIT
        ),
        0
    );
    let own = post_receive(device.context, QUEUE_PAIR, qp, 1, &piece[..1]);
    assert_eq!(own, libc::EINVAL);
    let modify = |limit: u32, mask: c_int| {
        let mut attr = [0_u32, 0, limit];
        call!(ibv_modify_srq(srq => Raw, attr.as_mut_ptr() => *mut u32, mask => c_int) -> c_int)
    };
    assert_eq!(
        (modify(3, 2), modify(1, 1)),
        (libc::EINVAL, libc::EOPNOTSUPP)
    );
    assert_eq!(modify(2, 2), 0);
    let mut told = [0_u32; 3];
    assert_eq!(
        call!(ibv_query_srq(srq => Raw, told.as_mut_ptr() => *mut u32) -> c_int),
        0
    );
    assert_eq!(told, [2, 1, 2]);
}

/// The table before the context: its size, what is there, and what is not.
#[test]
fn the_extended_table_is_that_of_the_header() {
    let device = Device::open(1);
    let before = |distance: usize| field::<usize>(device.context.wrapping_byte_sub(distance), 0);
    assert_eq!(field::<usize>(device.context, 320), usize::MAX);
    assert_eq!(before(8), 648);
    // Tags, XRC domains, flows, device memory, a clock.
    for distance in [32, 24, 64, 80, 96, 128, 192, 208, 256, 304, 312] {
        assert_eq!(before(distance), 0, "{distance}");
    }
    type Query = unsafe extern "C" fn(Raw, u8, *mut u32, usize) -> c_int;
    let query: Query = operation(device.context.wrapping_byte_sub(320), 0);
    let mut port = [!0_u32; 14];
    // SAFETY: see the head of the file.
    let ask = |number, port: &mut [u32; 14], size| unsafe {
        query(device.context, number, port.as_mut_ptr(), size)
    };
    assert_eq!(ask(2, &mut port, 56), libc::EINVAL);
    assert_eq!(ask(1, &mut port, 52), 0);
    assert_eq!((port[0], port[1], port[13]), (4, 5, !0));
    assert_eq!(ask(1, &mut port, 56), 0);
    assert_eq!(port[13], 0);
    // What the inline call for devices asks of one.
    type Attributes = unsafe extern "C" fn(Raw, *const u32, *mut u64, usize) -> c_int;
    let attributes: Attributes = operation(device.context.wrapping_byte_sub(104), 0);
    let mut all = [!0_u64; 50];
    // SAFETY: see the head of the file.
    unsafe {
        let unknown = 1;
        let refused = attributes(device.context, &raw const unknown, all.as_mut_ptr(), 400);
        assert_eq!(refused, libc::EINVAL);
        assert_eq!(
            attributes(device.context, ptr::null(), all.as_mut_ptr(), 400),
            0
        );
    }
    assert_eq!(all[8], 2_u64.to_be());
    assert_eq!((all[29], all[30], all[49] >> 32), (0, 0, 1));
}

/// Requests that are built by calls, and completions that are read by calls.
#[test]
fn extended_queues_are_used_by_calls() {
    type Plain = unsafe extern "C" fn(Raw);
    type Answers = unsafe extern "C" fn(Raw) -> c_int;
    type SetPiece = unsafe extern "C" fn(Raw, u32, u64, u32);
    type SetInline = unsafe extern "C" fn(Raw, *const c_void, usize);
    let devices = [Device::open(0), Device::open(1)];
    let [near, far] = &devices;
    // Completions: their bytes and queue pairs can be asked for, a clock cannot.
    type CreateCq = unsafe extern "C" fn(Raw, *mut u64) -> Raw;
    let create: CreateCq = operation(far.context.wrapping_byte_sub(120), 0);
    let plain_pair =
        |init: &mut QpInit| call!(ibv_create_qp(far.pd => Raw, init => *mut QpInit) -> Raw);
    let extended = |qp: Raw| call!(ibv_qp_to_qp_ex(qp => Raw) -> Raw);
    let mut init = [8, 7, 0, 0, 1 | 1 << 7, 0, 0];
    // SAFETY: see the head of the file; here and below.
    unsafe {
        assert!(create(far.context, init.as_mut_ptr()).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        init[4] = 0x7f;
        let cq = create(far.context, init.as_mut_ptr());
        assert!(!cq.is_null());
        let mut plain = far.init(NONE);
        plain.recv_cq = cq;
        let there = plain_pair(&mut plain);
        assert!(extended(there).is_null());

        type CreateQp = unsafe extern "C" fn(Raw, *mut QpInitEx) -> Raw;
        let create: CreateQp = operation(near.context.wrapping_byte_sub(56), 0);
        let plain = near.init(NONE);
        let mut init = QpInitEx {
            qp_context: NONE,
            send_cq: plain.send_cq,
            recv_cq: plain.recv_cq,
            srq: NONE,
            cap: plain.cap,
            qp_type: 2,
            sq_sig_all: 0,
            comp_mask: 1 | 1 << 6,
            pd: near.pd,
            rest: [0; 7],
            send_ops: 1 << 7,
        };
        assert!(create(near.context, &raw mut init).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        init.send_ops = 1 << 2 | 1;
        let here = create(near.context, &raw mut init);
        assert!(!here.is_null());
        assert_eq!(extended(here), here);
        connect(here, &attributes(number(there), far.gid));
        connect(there, &attributes(number(here), near.gid));

        let words = [0_u64; 8];
        let (from, to) = (near.register(ALL), far.register(ALL));
        let part = |offset: usize| field::<usize>(here, offset);
        let built = |count: usize| {
            std::mem::transmute::<usize, Plain>(part(320))(here);
            for id in 0..count {
                here.byte_add(168).cast::<u64>().write(id as u64);
                here.byte_add(176).cast::<u32>().write(SIGNALED);
                std::mem::transmute::<usize, Plain>(part(240))(here);
                let set = std::mem::transmute::<usize, SetPiece>(part(304));
                set(here, from.lkey, from.addr, 8);
            }
        };
        let complete = || std::mem::transmute::<usize, Answers>(part(328))(here);
        // All or none; what was given up was never there.
        built(5);
        assert_eq!(complete(), libc::ENOMEM);
        built(2);
        std::mem::transmute::<usize, Plain>(part(336))(here);
        assert_eq!(complete(), libc::EINVAL);
        built(1);
        std::mem::transmute::<usize, SetInline>(part(288))(here, words.as_ptr().cast(), 17);
        assert_eq!(complete(), libc::EINVAL);
        assert!(near.poll().is_empty());
        let piece = [to.piece(64)];
        for id in [5, 6] {
            assert_eq!(post_receive(far.context, QUEUE_PAIR, there, id, &piece), 0);
        }
        built(2);
        std::mem::transmute::<usize, SetInline>(part(288))(here, words.as_ptr().cast(), 16);
        assert_eq!(complete(), 0);
        assert_eq!(near.poll().len(), 2);

        let reader = |offset: usize| field::<usize>(cq, offset);
        type Start = unsafe extern "C" fn(Raw, *const u64) -> c_int;
        let start = std::mem::transmute::<usize, Start>(reader(144));
        let next = std::mem::transmute::<usize, Answers>(reader(152));
        let bytes = std::mem::transmute::<usize, Answers>(reader(184));
        let zero = 0;
        for (id, length) in [(5_u64, 8), (6, 16)] {
            let answer = match id {
                5 => start(cq, &raw const zero),
                _ => next(cq),
            };
            assert_eq!(answer, 0);
            assert_eq!((field::<u64>(cq, 136), field::<u32>(cq, 132)), (id, 0));
            assert_eq!(bytes(cq), length);
        }
        assert_eq!(next(cq), libc::ENOENT);
        std::mem::transmute::<usize, Plain>(reader(160))(cq);
        assert_eq!(start(cq, &raw const zero), libc::ENOENT);
    }
}

#[test]
fn what_is_asked_of_a_port_is_refused_where_there_is_none() {
    let device = Device::open(0);
    let mut gid = [0_u8; 16];
    let mut key = 0_u16;
    for (port, index) in [(0, 0), (2, 0), (1, 1), (1, -1)] {
        let told = call!(ibv_query_gid(device.context => Raw, port => u8, index => c_int, gid.as_mut_ptr() => *mut u8) -> c_int);
        assert_eq!((told, errno()), (-1, libc::EINVAL));
        let told = call!(ibv_query_pkey(device.context => Raw, port => u8, index => c_int, &raw mut key => *mut u16) -> c_int);
        assert_eq!((told, errno()), (-1, libc::EINVAL));
    }
    assert_eq!(
        call!(ibv_query_pkey(device.context => Raw, 1 => u8, 0 => c_int, &raw mut key => *mut u16) -> c_int),
        0
    );
    assert_eq!(key, 0xffff);
    let find =
        |key: u16| call!(ibv_get_pkey_index(device.context => Raw, 1 => u8, key => u16) -> c_int);
    assert_eq!((find(key), find(1)), (0, -1));
    let text = |number: c_int| name(call!(ibv_wc_status_str(number => c_int) -> *const c_char));
    assert_eq!(
        (text(0).as_str(), text(99).as_str(), text(-1).as_str()),
        ("success", "unknown", "unknown")
    );
}
