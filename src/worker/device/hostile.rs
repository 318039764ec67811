//! A peer that asks for what there is not, or puts where nobody lets it, given to the core by hand.
//!
//! # Safety
//! The device memory is made up: its type is none that the host reaches, so nothing dereferences its address.
#![allow(unsafe_code)]

use crate::{
    error::ErrorKind,
    memory::{AddressRange, Buffer, BufferMut, DomainMemory, Region},
    protocol::control::{self, GetRequest, Pull, PutHeader, PutRts, Rtr},
    types::{Access, MemoryType, OpKey, Tag},
    worker::{
        frames::{Bed, LINK, OP},
        operations::{Get, Put, RecvStage, Send, SendStage, Work},
        peer::ANSWERS,
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
        bed.core.failures.clear();
    }
    bed.expect_violation(control::PULL, key.0, &[1; 23]);
    bed.core.failures.clear();
    // What has ended, or never was.
    let canceled = control::error_kind_code(ErrorKind::Canceled).to_le_bytes();
    let answer = bed
        .say(control::PULL, 77, &pull(0, 1))
        .expect("no more than that");
    assert_eq!(answer, [(control::NACK, OP, canceled.to_vec())]);
    for stage in [SendStage::Queued, SendStage::AwaitMatch] {
        let other = send(&mut bed, bytes.clone().into(), stage);
        bed.expect_violation(control::PULL, other.0, &pull(0, 1));
        bed.core.failures.clear();
    }
    let put = Put {
        buffer: bytes.into(),
        region: (0, 1),
        offset: 0,
        next: 0,
        local: false,
        acknowledged: false,
        slot: None,
        signal: None,
        signal_due: false,
        layout: None,
        announced: false,
    };
    let put = bed
        .core
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
    assert_eq!(bed.core.operations.len(), 0);
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
    assert_eq!(bed.core.peer(LINK).map(|peer| peer.staged), Some(0));
    for last in [0, 2, 4] {
        bed.expect_violation(control::PUT_RTS, OP, &put_rts(&region, 0, 8, last));
        bed.core.failures.clear();
    }
    // A signal is said to follow, and does not.
    bed.expect_violation(control::PUT_RTS, OP, &put_rts(&region, 0, 8, 3));
    bed.core.failures.clear();
    bed.core.peer(LINK).expect("alive").staged = ANSWERS;
    let _ = bed
        .say(control::PUT_RTS, OP, &put_rts(&host, 64, 0, 1))
        .expect("cut off");
    assert_eq!(bed.core.failures.len(), 1);
}

#[test]
fn nothing_lands_in_device_memory() {
    let mut bed = Bed::new(1000);
    let order = bed.core.unexpected.arrival();
    let receive = bed.core.enter_receive(device(4096), LINK, order);
    bed.core
        .operations
        .get(receive)
        .expect("there")
        .staged
        .get_or_insert_default();
    if let Some(Work::Recv(recv)) = bed
        .core
        .operations
        .get(receive)
        .map(|entry| &mut entry.work)
    {
        recv.stage = RecvStage::Copying;
    }
    bed.expect_violation(control::FRAGMENT, receive.0, b"bytes");
    bed.core.failures.clear();
    // An end that nobody asked for ends nothing.
    let _ = bed.say(control::DONE, receive.0, &[]).expect("ignored");
    assert!(
        bed.core
            .operations
            .get(receive)
            .expect("there")
            .outcome
            .is_none()
    );
    let get = Get {
        buffer: device(4096),
        region: (0, 1),
        offset: 0,
        got: 0,
        slot: None,
        layout: None,
        pull: None,
    };
    let get = bed
        .core
        .operations
        .insert(Some(LINK), false, Work::Get(get));
    bed.core
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
            .operations
            .get(key)
            .expect("there")
            .outcome
            .is_some()
    );
}
