//! A peer that asks for what there is not, or puts where nobody lets it, given to the core by hand.
//!
//! # Safety
//! The device memory is made up: its type is none that the host reaches, so nothing dereferences its address.
#![allow(unsafe_code)]

use crate::{
    error::ErrorKind,
    memory::{AddressRange, Buffer, BufferMut, DomainMemory, Region},
    protocol::{
        control::{self, GetRequest, LayoutAnswer, LayoutHeader, Pull, PutHeader, PutRts, Rtr},
        layout::{Block, Indexed, MAX_BLOCKS, Shape, Strided, encode_block},
        ledger::Amount,
        plan,
    },
    types::{Access, MemoryType, OpKey, Priority, Tag},
    worker::{
        frames::{Bed, LINK, OP},
        layout::{Plan, REQUESTS},
        operations::{Get, Put, RecvStage, Send, SendStage, Work},
        rma::Target,
    },
};

#[derive(Debug)]
struct Device(u64);

// SAFETY: the type is not accessible for the host.
unsafe impl DomainMemory for Device {
    fn range(&self) -> AddressRange {
        AddressRange::new(0x4000_0000_0000, self.0).expect("a range")
    }
    fn memory_type(&self) -> MemoryType {
        MemoryType::Gaudi(7)
    }
}

fn device(length: u64) -> BufferMut {
    let memory: Box<dyn DomainMemory> = Box::new(Device(length));
    memory.into()
}

fn send(bed: &mut Bed, buffer: Buffer, stage: SendStage) -> OpKey {
    let send = Send {
        tag: Tag(1),
        buffer,
        sync: false,
        stage,
        slot: None,
        cancelling: false,
        am: None,
    };
    bed.core
        .movers
        .ctx
        .operations
        .insert(Some(LINK), false, Work::Send(send))
}

fn pull(offset: u64, length: u64) -> Vec<u8> {
    let to = OP;
    Pull { to, offset, length }.encode().to_vec()
}

fn put_rts(region: &Region, offset: u64, length: u64, last: u32) -> Vec<u8> {
    let exposed = region.exposed();
    let rts = PutRts {
        generation: exposed.generation,
        offset,
        length,
        slot: exposed.slot,
        last,
    };
    rts.encode().to_vec()
}

fn exposed(bed: &Bed) -> Region {
    let access = Access::READ | Access::WRITE;
    bed.regions.expose(device(4096), access).expect("exposed")
}

#[test]
fn parts_of_what_was_announced_are_served_and_nothing_else() {
    let mut bed = Bed::new(1000);
    let bytes: Vec<u8> = (0..100).collect();
    let key = send(&mut bed, bytes.clone().into(), SendStage::Announced);
    let answer = bed
        .say(control::PULL, key.0, &pull(40, 20))
        .expect("served");
    assert_eq!(answer, [(control::FRAGMENT, OP, bytes[40..60].to_vec())]);
    for (offset, length) in [(0, 101), (100, 1), (u64::MAX, 2), (2, u64::MAX)] {
        bed.expect_violation(control::PULL, key.0, &pull(offset, length));
        bed.core.movers.ctx.failures.clear();
    }
    bed.expect_violation(control::PULL, key.0, &[1; 23]);
    bed.core.movers.ctx.failures.clear();
    // What has ended, or never was.
    let canceled = control::error_kind_code(ErrorKind::Canceled).to_le_bytes();
    let answer = bed
        .say(control::PULL, 77, &pull(0, 1))
        .expect("no more than that");
    assert_eq!(answer, [(control::NACK, OP, canceled.to_vec())]);
    for stage in [SendStage::Queued, SendStage::AwaitMatch] {
        let other = send(&mut bed, bytes.clone().into(), stage);
        bed.expect_violation(control::PULL, other.0, &pull(0, 1));
        bed.core.movers.ctx.failures.clear();
    }
    let put = Put::new(bytes.into(), (0, 1), 0);
    let put = bed
        .core
        .movers
        .ctx
        .operations
        .insert(Some(LINK), false, Work::Put(put));
    bed.expect_violation(control::PULL, put.0, &pull(0, 1));
}

#[test]
fn exposed_memory_of_a_device_is_written_by_nobody_directly() {
    let mut bed = Bed::new(1000);
    let region = exposed(&bed);
    let (slot, generation) = (region.exposed().slot, region.exposed().generation);
    let header = |last| PutHeader {
        generation,
        offset: 0,
        slot,
        last,
    };
    let mut put = header(1).encode().to_vec();
    // Nothing may be written nowhere.
    let answer = bed.say(control::PUT, OP, &put).expect("nothing");
    assert_eq!(answer, [(control::DONE, OP, vec![])]);
    put.extend_from_slice(b"bytes");
    bed.expect_refusal(control::PUT, &put, ErrorKind::Unsupported);
    let error = region.write_at(0, b"bytes").expect_err("out of reach");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = region.read_at(0, &mut [0; 4]).expect_err("out of reach");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(region.load::<u64>(0).is_err());
    // No accelerator moves it here.
    let get = GetRequest {
        generation,
        offset: 0,
        length: 8,
        slot,
    };
    bed.expect_refusal(control::GET, &get.encode(), ErrorKind::Unsupported);
    bed.expect_refusal(
        control::PUT_RTS,
        &put_rts(&region, 0, 8, 1),
        ErrorKind::Unsupported,
    );
    assert_eq!(bed.core.movers.ctx.operations.len(), 0);
}

#[test]
fn announced_puts_are_checked() {
    let mut bed = Bed::new(1000);
    let region = exposed(&bed);
    for (offset, length) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let rts = put_rts(&region, offset, length, 1);
        bed.expect_refusal(control::PUT_RTS, &rts, ErrorKind::OutOfBounds);
    }
    let host = bed.expose(64, Access::WRITE);
    bed.expect_refusal(
        control::PUT_RTS,
        &put_rts(&host, 0, 8, 1),
        ErrorKind::InvalidArgument,
    );
    let answer = bed.say(control::PUT_RTS, OP, &put_rts(&host, 64, 0, 1));
    assert_eq!(answer.expect("nothing"), [(control::DONE, OP, vec![])]);
    let closed = bed.expose(64, Access::READ);
    bed.expect_refusal(
        control::PUT_RTS,
        &put_rts(&closed, 0, 0, 1),
        ErrorKind::AccessDenied,
    );
    // Each gave its place back.
    assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
    for last in [0, 2, 4] {
        bed.expect_violation(control::PUT_RTS, OP, &put_rts(&region, 0, 8, last));
        bed.core.movers.ctx.failures.clear();
    }
    // A signal is said to follow, and does not.
    bed.expect_violation(control::PUT_RTS, OP, &put_rts(&region, 0, 8, 3));
    bed.core.movers.ctx.failures.clear();
    bed.limit(|limits| limits.each_connection(|quota| quota.requests(0)));
    bed.expect_refusal(
        control::PUT_RTS,
        &put_rts(&host, 64, 0, 1),
        ErrorKind::Exhausted,
    );
}

#[test]
fn nothing_lands_in_device_memory() {
    let mut bed = Bed::new(1000);
    let order = bed.core.unexpected.arrival();
    let receive = bed
        .core
        .movers
        .ctx
        .enter_receive(device(4096), Some(LINK), order);
    bed.core
        .movers
        .ctx
        .operations
        .get(receive)
        .expect("there")
        .staged
        .get_or_insert_default();
    if let Some(Work::Recv(recv)) = bed.core.movers.ctx.operations.work(receive) {
        recv.stage = RecvStage::Copying;
    }
    bed.expect_violation(control::FRAGMENT, receive.0, b"bytes");
    bed.core.movers.ctx.failures.clear();
    bed.expect_violation(control::DONE, receive.0, &[]);
    bed.core.movers.ctx.failures.clear();
    assert!(
        bed.core
            .movers
            .ctx
            .operations
            .get(receive)
            .expect("there")
            .outcome
            .is_none()
    );
    let get = Get::new(device(4096), (0, 1), 0);
    let get = bed
        .core
        .movers
        .ctx
        .operations
        .insert(Some(LINK), false, Work::Get(get));
    bed.core
        .movers
        .ctx
        .operations
        .get(get)
        .expect("there")
        .staged
        .get_or_insert_default();
    bed.expect_violation(control::FRAGMENT, get.0, b"bytes");
}

#[test]
fn a_send_that_no_engine_can_read_fails_when_it_is_taken() {
    let mut bed = Bed::new(1000);
    let key = send(&mut bed, device(4096).freeze(), SendStage::Announced);
    let rtr = Rtr {
        op: OP,
        address: 0,
        segment: 0,
        segment_offset: 0,
        scheme: 0,
    };
    let answer = bed
        .say(control::TAG_RTR, key.0, &rtr.encode())
        .expect("refused");
    let code = control::error_kind_code(ErrorKind::Unsupported).to_le_bytes();
    assert_eq!(answer, [(control::NACK, OP, code.to_vec())]);
    assert!(
        bed.core
            .movers
            .ctx
            .operations
            .get(key)
            .expect("there")
            .outcome
            .is_some()
    );
}

fn layout_header(region: &Region, length: u64, blocks: u32) -> LayoutHeader {
    let exposed = region.exposed();
    LayoutHeader {
        generation: exposed.generation,
        position: 0,
        length,
        slot: exposed.slot,
        blocks,
        last: 1,
    }
}

fn list(blocks: &[(u64, u32)]) -> Vec<u8> {
    let mut list = Vec::new();
    for (offset, length) in blocks {
        encode_block(*offset, *length, &mut list);
    }
    list
}

fn form(offset: u64, block: u64, stride: u64, count: u64) -> [u8; Strided::FORM] {
    Strided::new(offset, block, stride, count).form()
}

/// Lies about lengths, blocks outside, regions that are none: nothing is held for them, and nothing is asked of an engine.
#[test]
fn announced_blocks_are_checked() {
    let mut bed = Bed::new(1000);
    let region = exposed(&bed);
    let two = list(&[(0, 4), (4092, 4)]);
    let rts = |header: LayoutHeader, rest: &[u8]| [&header.encode()[..], rest].concat();
    for bad in [(4093, 4), (u64::MAX, 4), (u64::MAX - 3, 4), (4097, 0)] {
        let length = 4 + u64::from(bad.1);
        let body = rts(layout_header(&region, length, 2), &list(&[(0, 4), bad]));
        bed.expect_refusal(control::LAYOUT_RTS, &body, ErrorKind::OutOfBounds);
    }
    for (offset, block, stride, count, position) in [
        (4093, 4, 0, 1, 0),
        (0, 4, 4093, 2, 0),
        (0, 4, u64::MAX, 2, 0),
        (0, 4, 1 << 63, 3, 0),
        (0, 4, 1, u64::MAX, 0),
        (0, 1 << 40, 0, 1 << 40, 0),
        (u64::MAX, 4, 0, 1, 0),
        // The part leaves the stream.
        (0, 4, 8, 2, 5),
        (0, 4, 8, 2, u64::MAX),
        (0, 0, 0, 5, 0),
        (0, 4, 8, 0, 0),
    ] {
        let mut header = layout_header(&region, 4, control::NONE);
        header.position = position;
        let body = rts(header, &form(offset, block, stride, count));
        bed.expect_refusal(control::LAYOUT_RTS, &body, ErrorKind::OutOfBounds);
        header.last = 0;
        let body = rts(header, &form(offset, block, stride, count));
        let answers = bed.say(control::GET_LAYOUT, OP, &body).expect("refused");
        let [(control::LAYOUT_DATA, OP, answer)] = &answers[..] else {
            panic!("{answers:?}");
        };
        let code = LayoutAnswer::decode(answer).expect("an answer").code;
        assert_eq!(code, control::error_kind_code(ErrorKind::OutOfBounds));
    }
    let mut stale = layout_header(&region, 8, 2);
    stale.generation ^= 1;
    bed.expect_refusal(control::LAYOUT_RTS, &rts(stale, &two), ErrorKind::StaleKey);
    stale.slot = u32::MAX;
    bed.expect_refusal(control::LAYOUT_RTS, &rts(stale, &two), ErrorKind::StaleKey);
    let host = bed.expose(4096, Access::READ | Access::WRITE);
    let body = rts(layout_header(&host, 8, 2), &two);
    bed.expect_refusal(control::LAYOUT_RTS, &body, ErrorKind::InvalidArgument);
    let closed = bed.expose(4096, Access::READ);
    let body = rts(layout_header(&closed, 8, 2), &two);
    bed.expect_refusal(control::LAYOUT_RTS, &body, ErrorKind::AccessDenied);
    // All is well, but nobody moves it here.
    let body = rts(layout_header(&region, 8, 2), &two);
    bed.expect_refusal(control::LAYOUT_RTS, &body, ErrorKind::Unsupported);
    let mut header = layout_header(&region, 8, 2);
    header.last = 0;
    let body = rts(header, &two);
    let answers = bed.say(control::GET_LAYOUT, OP, &body).expect("refused");
    let [(control::LAYOUT_DATA, OP, answer)] = &answers[..] else {
        panic!("{answers:?}");
    };
    let answer = LayoutAnswer::decode(answer).expect("an answer");
    let unsupported = control::error_kind_code(ErrorKind::Unsupported);
    assert_eq!((answer.status, answer.code), (2, unsupported));
    // Bytes that nobody asked for.
    header.last = 1;
    let body = rts(header, &[&two[..], &[1; 8]].concat());
    bed.expect_refusal(control::PUT_LAYOUT, &body, ErrorKind::Unsupported);
    let peer = bed.core.movers.ctx.peer(LINK).expect("alive");
    assert_eq!(peer.requests().serving, 0);
    assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
    assert_eq!(bed.core.movers.ctx.operations.len(), 0);
    // What is no message.
    let many = list(&[(0, 0); MAX_BLOCKS + 1]);
    for (mut header, rest, last) in [
        (layout_header(&region, 9, 2), &two[..], 1),
        (layout_header(&region, 8, 3), &two, 1),
        (layout_header(&region, 4, 1), &two, 1),
        (layout_header(&region, 8, u32::MAX - 1), &two, 1),
        (layout_header(&region, 0, MAX_BLOCKS as u32 + 1), &many, 1),
        (layout_header(&region, 8, control::NONE), &[0; 63], 1),
        (layout_header(&region, 8, control::NONE), &[0; 65], 1),
        (layout_header(&region, 8, 2), &two, 0),
        (layout_header(&region, 8, 2), &two, 2),
        (layout_header(&region, 8, 2), &two, 5),
        // A signal is said to follow, and does not.
        (layout_header(&region, 8, 2), &two[..20], 3),
    ] {
        header.last = last;
        bed.expect_violation(control::LAYOUT_RTS, OP, &rts(header, rest));
        bed.core.movers.ctx.failures.clear();
    }
    bed.expect_violation(control::LAYOUT_RTS, OP, &[0; LayoutHeader::SIZE - 1]);
    bed.core.movers.ctx.failures.clear();
    // More lists than this side holds.
    bed.core
        .movers
        .ctx
        .peer(LINK)
        .expect("alive")
        .requests()
        .serving = REQUESTS;
    let body = rts(layout_header(&region, 8, 2), &two);
    bed.expect_violation(control::LAYOUT_RTS, OP, &body);
    bed.core.movers.ctx.failures.clear();
    assert_eq!(bed.core.movers.ctx.operations.len(), 0);
}

/// Puts so many blocks of a byte into device memory.
fn put_list(bed: &mut Bed, count: usize) -> (OpKey, Vec<u8>) {
    let blocks = (0..count).map(|index| Block {
        offset: 2 * index,
        len: 1,
    });
    let shape = Shape::Indexed(Indexed::trusted(blocks.collect(), count as u64));
    let target = Target {
        slot: 3,
        generation: 4,
        address: 0,
        offset: 100,
        segment: 0,
        segment_offset: 0,
        on_device: true,
        read_back: false,
    };
    let bytes: Vec<u8> = (0..count).map(|index| index as u8).collect();
    let put = Put {
        layout: Some(Box::new(Plan::new(target, 2 * count, shape.into()))),
        ..Put::new(bytes.clone().into(), (3, 4), 100)
    };
    bed.core.movers.ctx.peer(LINK).expect("alive").posted += 1;
    let key = bed
        .core
        .movers
        .start_layout(LINK, Work::Put(put), Priority::Normal);
    (key, bytes)
}

/// An owner that pulls more than there is, or says that it has all: each part is announced once, and after the last all is over.
#[test]
fn a_long_list_is_announced_part_by_part() {
    let mut bed = Bed::new(1000);
    let count = 2 * MAX_BLOCKS + 5;
    let (key, bytes) = put_list(&mut bed, count);
    let (mut position, mut parts) = (0, 0);
    // What was sent is told with the next answer.
    let mut said = bed.say(control::CREDIT, 0, &[]).expect("no answer");
    while position < count {
        let [(control::LAYOUT_RTS, op, body)] = &said[..] else {
            panic!("{} messages at {position}", said.len());
        };
        assert_eq!(*op, key.0);
        let header = LayoutHeader::decode(body).expect("a header");
        // As many as a message of this link takes.
        let part = header.blocks as usize;
        assert!((1..=MAX_BLOCKS).contains(&part), "{part} blocks");
        assert_eq!(
            (header.slot, header.generation, header.last),
            (3, 4, 1),
            "the region"
        );
        assert_eq!(
            (header.position, header.length),
            (position as u64, part as u64)
        );
        let first = 100 + 2 * position as u64;
        let wanted = list(&[(first, 1), (first + 2, 1)]);
        assert_eq!(body[LayoutHeader::SIZE..][..24], wanted);
        let answer = bed
            .say(control::PULL, key.0, &pull(position as u64, 3))
            .expect("served");
        let payload = bytes[position..position + 3].to_vec();
        assert_eq!(answer, [(control::FRAGMENT, OP, payload)]);
        for (offset, length) in [(0, count as u64 + 1), (count as u64, 1), (u64::MAX, 2)] {
            bed.expect_violation(control::PULL, key.0, &pull(offset, length));
            bed.core.movers.ctx.failures.clear();
        }
        position += part;
        parts += 1;
        let entry = bed.core.movers.ctx.operations.get(key).expect("goes on");
        assert!(entry.outcome.is_none());
        said = bed.say(control::DONE, key.0, &[]).expect("goes on");
    }
    assert_eq!(said, []);
    assert!(parts > 2, "{parts} parts");
    let entry = bed.core.movers.ctx.operations.get(key).expect("there");
    assert!(entry.outcome.is_some());
}

/// No more lists are announced than the owner holds, and who waits is not over.
#[test]
fn announcements_wait_for_their_turn() {
    let mut bed = Bed::new(1000);
    let keys: Vec<OpKey> = (0..=REQUESTS).map(|_| put_list(&mut bed, 5).0).collect();
    let said = bed.say(control::CREDIT, 0, &[]).expect("no answer");
    let asked: Vec<u64> = said.iter().map(|(_, op, _)| *op).collect();
    let first: Vec<u64> = keys[..REQUESTS].iter().map(|key| key.0).collect();
    assert_eq!(asked, first);
    // One that is answered, twice, makes room for one.
    for wanted in [1, 0] {
        let said = bed.say(control::DONE, keys[3].0, &[]).expect("answered");
        assert_eq!(said.len(), wanted);
    }
    let code = control::error_kind_code(ErrorKind::AccessDenied).to_le_bytes();
    let _ = bed.say(control::NACK, keys[4].0, &code).expect("refused");
    // One whose next part has to wait.
    let (long, _) = put_list(&mut bed, 2 * MAX_BLOCKS);
    bed.core
        .movers
        .ctx
        .peer(LINK)
        .expect("alive")
        .requests()
        .asked = REQUESTS + 1;
    let said = bed.say(control::DONE, long.0, &[]).expect("answered");
    assert_eq!(said.len(), 1, "the first part");
    let over = |bed: &mut Bed| bed.core.movers.ctx.begin_flush(LINK, true).is_none();
    for key in keys.into_iter().filter(|key| *key != long) {
        bed.core.movers.ctx.operations.remove(key);
    }
    assert!(!over(&mut bed), "most of it was not put");
}

/// A part of a get takes the bytes of that part alone, wherever in the stream it begins.
#[test]
fn answers_are_held_to_the_part() {
    let block = Block { offset: 8, len: 30 };
    for (position, length, allowed) in [
        (20, 10, true),
        (25, 5, false),
        (19, 1, false),
        (0, 10, false),
        (30, 1, false),
        (20, 11, false),
        (u64::MAX, 1, false),
    ] {
        let mut bed = Bed::new(1000);
        let shape = Shape::Indexed(Indexed::trusted(vec![block; 2], 60));
        let target = Target {
            slot: 3,
            generation: 4,
            address: 0,
            offset: 0,
            segment: 0,
            segment_offset: 0,
            on_device: true,
            read_back: false,
        };
        let mut whole = Plan::new(target, 100, shape.into());
        assert_eq!((whole.cut(0, 20), whole.cut(20, 10)), (20, 10));
        assert!(whole.part(19).is_none());
        let part = whole.part(20).expect("cut");
        let get = Get {
            layout: Some(part),
            ..Get::new(vec![0; 10].into(), (3, 4), 0)
        };
        let key = bed
            .core
            .movers
            .start_layout(LINK, Work::Get(get), Priority::Normal);
        let said = bed.say(control::CREDIT, 0, &[]).expect("no answer");
        let [(control::GET_LAYOUT, _, body)] = &said[..] else {
            panic!("{said:?}");
        };
        let header = LayoutHeader::decode(body).expect("a header");
        assert_eq!((header.position, header.length), (20, 10));
        assert_eq!(body[LayoutHeader::SIZE..], list(&[(28, 10)]));
        let answer = LayoutAnswer {
            position,
            status: 0,
            code: 0,
        };
        let body = [&answer.encode()[..], &vec![1; length]].concat();
        match allowed {
            true => drop(bed.say(control::LAYOUT_DATA, key.0, &body).expect("taken")),
            false => bed.expect_violation(control::LAYOUT_DATA, key.0, &body),
        }
    }
}

/// How far a transfer is, as the peer says it who moves its bytes, is a number for people: more than there is counts as all, and it never ends anything.
#[test]
fn news_of_what_the_peer_moves() {
    let mut bed = Bed::new(1000);
    let length = 2 * plan::TOLD + 1;
    let key = send(&mut bed, vec![1; length].into(), SendStage::Announced);
    let moved = |bed: &mut Bed| bed.core.moved(key);
    assert_eq!(moved(&mut bed), Some((0, Some(length))));
    for (told, done) in [(0, 0), (1, plan::TOLD), (0, plan::TOLD), (u16::MAX, length)] {
        let answer = bed.say(control::MOVED, key.0, &u16::to_le_bytes(told));
        assert_eq!(answer.expect("taken"), []);
        assert_eq!(moved(&mut bed), Some((done, Some(length))));
    }
    // What has ended, or never was.
    assert_eq!(bed.say(control::MOVED, 77, &[0; 2]).expect("taken"), []);
    for body in [&[][..], &[1], &[0; 3], &[0; 8]] {
        bed.expect_violation(control::MOVED, key.0, body);
        bed.core.movers.ctx.failures.clear();
    }
    let flush = bed
        .core
        .movers
        .ctx
        .operations
        .insert(Some(LINK), false, Work::Flush);
    bed.expect_violation(control::MOVED, flush.0, &[1, 0]);
}
