//! What a peer makes a worker hold without sending much: requests whose answers it does not read, answers that wait, messages that stop half-way.
//! All of it is charged to its connection, is refused or cut off at the limit, and is given back when it goes, or its connection.
//!
//! # Safety
//! The device memory is made up: its type is none that the host reaches, so nothing dereferences its address.
#![allow(unsafe_code)]

use crate::{
    error::{Error, ErrorKind},
    memory::{AddressRange, BufferMut, DomainMemory, Region},
    protocol::{
        control::{self, Atomic, GetRequest, LayoutAnswer, LayoutHeader, Pull, Route},
        layout::encode_block,
        ledger::Amount,
        stream::{STREAM_BACKLOG, StreamName},
    },
    transport::{Place, Sink},
    types::{Access, AmId, Mask, MemoryType, Tag},
    worker::{
        Refusals,
        frames::{Bed, LINK, OP},
        operations::{Send, SendStage, Work},
        peer::{ANSWER, ANSWERS},
        queue::{Class, Queued},
    },
};

#[derive(Debug)]
struct Device;

// SAFETY: the type is not accessible for the host.
unsafe impl DomainMemory for Device {
    fn range(&self) -> AddressRange {
        AddressRange::new(0x4000_0000_0000, 4096).expect("a range")
    }
    fn memory_type(&self) -> MemoryType {
        MemoryType::Cuda(7)
    }
}

fn get(region: &Region, length: u64) -> Vec<u8> {
    let exposed = region.exposed();
    let request = GetRequest {
        generation: exposed.generation,
        offset: 0,
        length,
        slot: exposed.slot,
    };
    request.encode().to_vec()
}

fn get_layout(region: &Region) -> Vec<u8> {
    let exposed = region.exposed();
    let header = LayoutHeader {
        generation: exposed.generation,
        position: 0,
        length: 8,
        slot: exposed.slot,
        blocks: 1,
        last: 0,
    };
    let mut body = header.encode().to_vec();
    encode_block(0, 8, &mut body);
    body
}

fn route(region: &Region) -> Vec<u8> {
    let exposed = region.exposed();
    let route = Route {
        to: OP,
        generation: exposed.generation,
        offset: 0,
        length: 64,
        slot: exposed.slot,
        region: 1,
        accelerator: 7,
    };
    route.encode().to_vec()
}

fn over(bed: &mut Bed) {
    let gone = Error::new(ErrorKind::ConnectionReset, "the peer is gone");
    bed.core.fail(LINK, gone);
    assert_eq!(
        bed.core.movers.ctx.ledger.held(),
        Amount::default(),
        "left behind"
    );
}

/// Each kind of request that this side serves while the peer reads nothing: as many as may be, and no more; all of them are over when it reads,
/// or goes.
#[test]
fn requests_of_every_kind() {
    const LIMIT: usize = 4;
    let access = Access::READ | Access::WRITE;
    for kind in 0..5 {
        for reads in [true, false] {
            let mut bed = Bed::new(0);
            bed.limit(|limits| limits.each_connection(|quota| quota.requests(LIMIT as u64)));
            let host = bed.expose(4096, access);
            let memory: Box<dyn DomainMemory> = Box::new(Device);
            let device = bed.regions.expose(BufferMut::from(memory), access);
            let device = device.expect("exposed");
            let announced = bed.core.movers.ctx.operations.insert(
                Some(LINK),
                false,
                Work::Send(Send {
                    tag: Tag(1),
                    buffer: vec![1; 64].into(),
                    sync: false,
                    stage: SendStage::Announced,
                    slot: None,
                    cancelling: false,
                    am: None,
                }),
            );
            let part = Pull {
                to: OP,
                offset: 0,
                length: 8,
            };
            let (id, header, body, refusal) = match kind {
                0 => (control::GET, OP, get(&host, 64), control::NACK),
                // Nothing has to be moved, so that no engine is needed.
                1 => (control::GET, OP, get(&device, 0), control::NACK),
                2 => (
                    control::GET_LAYOUT,
                    OP,
                    get_layout(&host),
                    control::LAYOUT_DATA,
                ),
                3 => (
                    control::PULL,
                    announced.0,
                    part.encode().to_vec(),
                    control::NACK,
                ),
                _ => (control::ROUTE, OP, route(&host), control::NACK),
            };
            for _ in 0..LIMIT + 3 {
                bed.say(id, header, &body).expect("served, or refused");
            }
            let held = bed.core.movers.ctx.ledger.held();
            // A list of one block.
            let list = if kind == 2 { 16 * LIMIT as u64 } else { 0 };
            let answers = 3 * ANSWER as u64;
            let all = Amount([list + answers, 0, 0, LIMIT as u64]);
            assert_eq!(held, all, "kind {kind}");
            let mut counted = Refusals::default();
            counted.connection.requests = 3;
            assert_eq!(bed.core.movers.ctx.refused(), counted, "kind {kind}");
            assert_eq!(
                bed.core.movers.ctx.operations.len(),
                1 + LIMIT,
                "kind {kind}"
            );
            if reads {
                let answers = bed.make_room();
                let refused = answers.iter().filter(|(id, _, body)| {
                    let code = match *id {
                        control::LAYOUT_DATA => LayoutAnswer::decode(body).expect("one").code,
                        _ => body
                            .first_chunk()
                            .map_or(0, |code| u16::from_le_bytes(*code)),
                    };
                    *id == refusal && code == control::error_kind_code(ErrorKind::Exhausted)
                });
                assert_eq!(refused.count(), 3, "kind {kind}: {answers:?}");
                // A route's loan is over when the peer has opened it: here there is none to open.
                assert_eq!(
                    bed.core.movers.ctx.ledger.held(),
                    Amount::default(),
                    "kind {kind}"
                );
                bed.say(id, header, &body).expect("room again");
            }
            over(&mut bed);
        }
    }
}

fn atomic(region: &Region) -> [u8; Atomic::SIZE] {
    let exposed = region.exposed();
    let atomic = Atomic {
        generation: exposed.generation,
        offset: 0,
        operand: 1,
        compare: 0,
        slot: exposed.slot,
        code: 0x1_0801,
    };
    atomic.encode()
}

/// Answers wait for who does not read them, are charged, and are given back when they go. Of too many the connection ends.
#[test]
fn who_does_not_read_is_cut_off() {
    let mut bed = Bed::new(0);
    let region = bed.expose(8, Access::READ | Access::WRITE);
    let request = atomic(&region);
    let ask = |bed: &mut Bed| {
        bed.core
            .message(LINK, control::ATOMIC, OP, &request)
            .expect("told by the worker");
    };
    for _ in 0..ANSWERS {
        ask(&mut bed);
    }
    let held = bed.core.movers.ctx.ledger.held();
    assert_eq!(held, Amount::bytes(ANSWERS as usize * ANSWER));
    assert!(bed.core.movers.ctx.failures.is_empty());
    assert_eq!(bed.make_room().len(), ANSWERS as usize);
    assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());

    let mut bed = Bed::new(0);
    for _ in 0..ANSWERS {
        ask(&mut bed);
    }
    assert!(bed.core.movers.ctx.failures.is_empty());
    ask(&mut bed);
    let failures: Vec<_> = bed.core.movers.ctx.failures.drain(..).collect();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].1.kind(), ErrorKind::Protocol);
    let counted = Refusals {
        unread_answers: 1,
        ..Refusals::default()
    };
    assert_eq!(bed.core.movers.ctx.refused(), counted);
    over(&mut bed);
}

/// What many connections of one source leave waiting is bounded together.
#[test]
fn answers_count_for_their_source() {
    let mut bed = Bed::new(0);
    let limit = 1000 * ANSWER as u64;
    bed.limit(|limits| limits.each_source(|quota| quota.unexpected_bytes(limit)));
    let region = bed.expose(8, Access::READ | Access::WRITE);
    for _ in 0..1000 {
        bed.core
            .message(LINK, control::ATOMIC, OP, &atomic(&region))
            .expect("room for the answer");
    }
    assert!(bed.core.movers.ctx.failures.is_empty());
    bed.core
        .message(LINK, control::ATOMIC, OP, &atomic(&region))
        .expect("told by the worker");
    let failures: Vec<_> = bed.core.movers.ctx.failures.drain(..).collect();
    assert_eq!(failures[0].1.kind(), ErrorKind::Exhausted);
    let mut counted = Refusals::default();
    counted.source.unexpected_bytes = 1;
    assert_eq!(bed.core.movers.ctx.refused(), counted);
    over(&mut bed);
}

/// So does who reads nothing of what this side's program brings about by taking what comes: it is counted, and not charged.
#[test]
fn who_reads_no_windows_is_cut_off() {
    const COUNTED: [u8; 6] = [
        control::CREDIT,
        control::AM_CREDIT,
        control::STREAM_ACCEPTED,
        control::STREAM_RESET,
        control::STREAM_TAKEN,
        control::STREAM_WINDOW,
    ];
    let say = |bed: &mut Bed, header: u32| {
        let id = COUNTED[header as usize % COUNTED.len()];
        let ctx = &mut bed.core.movers.ctx;
        ctx.control(LINK, id, header.into(), &[]);
    };
    let mut bed = Bed::new(0);
    for _ in 0..2 {
        for header in 0..ANSWERS {
            say(&mut bed, header);
        }
        assert!(bed.core.movers.ctx.failures.is_empty());
        assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
        assert_eq!(bed.make_room().len(), ANSWERS as usize);
    }

    let mut bed = Bed::new(0);
    for header in 0..=ANSWERS {
        say(&mut bed, header);
    }
    let failures: Vec<_> = bed.core.movers.ctx.failures.drain(..).collect();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].1.kind(), ErrorKind::Protocol);
    over(&mut bed);
}

/// A stream that nobody holds, and whose last bytes a device does not give, leaves its place.
#[test]
fn a_stream_whose_bytes_are_lost_leaves_its_place() {
    let mut bed = Bed::new(0);
    let endpoint = bed.core.movers.ctx.peer(LINK).expect("there").id;
    let key = bed.core.open_stream(LINK, endpoint).expect("alive");
    let key = key.expect("room");
    assert_eq!(bed.core.write_stream(key, &[1; 100]).ok(), Some(100));
    bed.core.drop_stream_reader(key);
    let reset = bed.core.message(LINK, control::STREAM_RESET, 0, &[]);
    reset.expect("of the first stream of this side's");
    bed.core.drop_stream_writer(key);
    assert!(
        bed.core.streams.get(key).is_some(),
        "its bytes are to leave"
    );
    let lost = Error::new(ErrorKind::DeviceLost, "the device is gone");
    bed.core.stream_write_failed(key, &lost);
    assert!(bed.core.streams.get(key).is_none());
}

/// Streams that are refused are no more than others that nobody has accepted, until the peer has said that it knows.
#[test]
fn refused_streams_are_bounded() {
    let header = |id| {
        let of_sender = true;
        StreamName { id, of_sender }.header()
    };
    let mut bed = Bed::new(0);
    bed.limit(|limits| limits.each_connection(|quota| quota.unaccepted_streams(1)));
    let backlog = STREAM_BACKLOG as u64;
    for id in 0..backlog {
        bed.say(control::STREAM_OPEN, header(id), &[])
            .expect("it may");
    }
    // One of them is over at both ends: there is room for another.
    bed.say(control::STREAM_RESET, header(backlog - 1), &[])
        .expect("an answer");
    bed.say(control::STREAM_OPEN, header(backlog), &[])
        .expect("it may");
    bed.expect_violation(control::STREAM_OPEN, header(backlog + 1), &[]);
}

/// What this side itself wants to say is its own affair, however much of it waits.
#[test]
fn own_messages_cut_nobody_off() {
    let mut bed = Bed::new(0);
    let peer = bed.core.movers.ctx.peer(LINK).expect("there");
    for op in 0..4 * u64::from(ANSWERS) {
        let key = crate::types::OpKey(op);
        peer.queue.push(Class::Normal, Queued::Operation(key));
    }
    for op in 0..2 * u64::from(ANSWERS) {
        bed.core.movers.ctx.control(LINK, control::CANCEL, op, &[]);
    }
    bed.core.movers.ctx.control(LINK, control::DONE, OP, &[]);
    assert!(bed.core.movers.ctx.failures.is_empty());
    assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::bytes(ANSWER));
    over(&mut bed);
}

/// The head of a long message is here, and the rest does not come.
#[test]
fn half_a_message_is_charged_whole() {
    const LENGTH: usize = 100_000;
    const ID: AmId = AmId(3);
    let word = crate::protocol::am::word(ID, 0);
    let mut bed = Bed::new(100);
    let serial = bed.core.am_open(ID, 16).expect("opened");
    for (id, header, prefix) in [
        (control::TAG_EAGER, 7, &[][..]),
        (control::TAG_EAGER_SYNC, 7, &[1; 8]),
        (control::AM_EAGER, word, &[]),
        (control::PUT_LAYOUT, OP, &[0; 40]),
    ] {
        let length = match id {
            control::PUT_LAYOUT => 60_000,
            _ => LENGTH,
        };
        let whole = Amount::bytes(prefix.len() + length);
        let place = bed.core.place(LINK, id, header, prefix, length);
        assert_eq!(bed.core.movers.ctx.ledger.held(), whole, "{place:?}");
        // The rest comes, and is charged for what it is now.
        match place.expect("let in") {
            Place::Whole => {
                let body = [prefix, &vec![0; length]].concat();
                let _ = bed.core.message(LINK, id, header, &body);
            }
            Place::Memory { token, .. } => bed.core.placed(LINK, token),
            Place::Discard => panic!("wanted"),
        }
        bed.core.movers.ctx.failures.clear();
        while bed.core.take_unexpected(Tag(7), Mask::ALL).is_some() {}
        while bed.core.am_take(ID, serial).is_some() {}
        assert_eq!(
            bed.core.movers.ctx.ledger.held(),
            Amount::default(),
            "message {id}"
        );
    }
    // Short ones come at once, and bytes for what is not there are kept by nobody.
    let place = bed.core.place(LINK, control::TAG_EAGER, 7, &[], 4096);
    assert!(matches!(place, Ok(Place::Whole)), "{place:?}");
    let answer = LayoutAnswer {
        position: 0,
        status: 0,
        code: 0,
    };
    let answer = answer.encode();
    let place = bed
        .core
        .place(LINK, control::LAYOUT_DATA, OP, &answer, LENGTH);
    assert!(matches!(place, Ok(Place::Discard)), "{place:?}");
    assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());

    for (id, header) in [(control::TAG_EAGER, 7), (control::AM_EAGER, word)] {
        let mut bed = Bed::new(100);
        let serial = bed.core.am_open(ID, 16);
        serial.expect("opened");
        bed.core
            .place(LINK, id, header, &[], LENGTH)
            .expect("let in");
        over(&mut bed);

        let mut bed = Bed::new(100);
        bed.limit(|limits| limits.each_source(|quota| quota.unexpected_bytes(LENGTH as u64 - 1)));
        bed.core.am_open(ID, 16).expect("opened");
        let error = bed.core.place(LINK, id, header, &[], LENGTH);
        let error = error.expect_err("too much");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        over(&mut bed);
    }
}
