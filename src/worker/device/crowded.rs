//! Pinned fragments that peers hold up, and others wait for. The engine copies nothing, and says
//! that it has.
//!
//! # Safety
//! The device memory is made up: its type is none that the host reaches, so nothing dereferences
//! its address.
#![allow(unsafe_code)]

use std::{sync::Arc, time::Instant};

use crate::{
    error::{ErrorKind, Result},
    memory::{AddressRange, BufferMut, DomainMemory, HostDomain, MemoryDomain},
    protocol::control,
    transport::{CopyAttributes, CopyEngine, CopyRequest, CopySink, Registry, SendError},
    types::{LinkId, MemoryType, OpKey},
    worker::{
        device::{
            engines::{Open, Slot, State},
            pipe::{DEPTH, Kind, Pipe},
            pool::{FRAGMENTS, Pinned, Side},
        },
        frames::{Bed, LINK},
        movers::serve,
        operations::{Get, Work},
        rma::Target,
    },
};

/// Bytes of a fragment, and of a transfer: as many parts as it has under way.
const PART: usize = 4096;
const TOTAL: usize = PART * DEPTH;

#[derive(Debug, Default)]
struct Idle(Vec<u64>);

impl CopyEngine for Idle {
    fn attributes(&self) -> CopyAttributes {
        CopyAttributes {
            max_copy: 1 << 20,
            max_in_flight: 1000,
            fragment: PART,
            pageable_from: None,
        }
    }
    unsafe fn copy(&mut self, request: CopyRequest) -> Result<(), SendError> {
        self.0.push(request.token);
        Ok(())
    }
    fn flush(&mut self) {}
    fn progress(&mut self, _: usize, sink: &mut dyn CopySink) -> usize {
        let done = std::mem::take(&mut self.0);
        done.iter().for_each(|token| sink.copied(*token, Ok(())));
        done.len()
    }
    fn register(&mut self, _: Registry) -> Result<()> {
        Ok(())
    }
    fn ready(&mut self, _: usize) {}
    fn arm(&mut self) -> bool {
        self.0.is_empty()
    }
    fn disarm(&mut self) {}
    fn quiesce(&mut self, _: Instant) {}
}

#[derive(Debug)]
struct Device;

// SAFETY: the type is not accessible for the host.
unsafe impl DomainMemory for Device {
    fn range(&self) -> AddressRange {
        AddressRange::new(0x4000_0000_0000, TOTAL as u64).expect("a range")
    }
    fn memory_type(&self) -> MemoryType {
        MemoryType::Cuda(7)
    }
}

fn device() -> BufferMut {
    let memory: Box<dyn DomainMemory> = Box::new(Device);
    memory.into()
}

fn link(number: usize) -> LinkId {
    LinkId::new(number as u32, 0)
}

/// Three connections, and an engine.
fn bed(room: usize) -> Bed {
    let mut bed = Bed::new(room);
    (1..3).for_each(|number| bed.connect(link(number)));
    let domain: Arc<dyn MemoryDomain> = Arc::new(HostDomain);
    let pinned = Pinned::new(&domain, PART, true);
    let open = Open::new(Box::new(Idle::default()), pinned);
    bed.core.movers.devices.slots.push(Slot {
        state: State::Open(Box::new(open)),
        waiting: Vec::new(),
    });
    bed
}

/// Begins a get into device memory, or, for the other side, what answers one out of it.
fn begin(bed: &mut Bed, link: LinkId, side: Side) -> OpKey {
    let (work, kind) = match side {
        Side::In => {
            let target = Target {
                slot: 1,
                generation: 1,
                offset: 0,
                address: 0,
                segment: 0,
                segment_offset: 0,
                on_device: false,
                read_back: false,
            };
            (
                Work::Get(Get::new(device(), (1, 1), 0)),
                Kind::Get { target },
            )
        }
        Side::Out => (Work::Serve(serve::of(device().freeze(), 7)), Kind::Serve),
    };
    let movers = &mut bed.core.movers;
    let key = movers.ctx.operations.insert(Some(link), false, work);
    movers.begin_staged(key, Pipe::new(kind, 0, TOTAL));
    pass(bed);
    key
}

fn pass(bed: &mut Bed) {
    while bed.core.movers.progress_devices() > 0 {
        bed.core.act();
    }
    bed.core.act();
}

/// What is sent of a transfer whose fragments have come.
fn requests(bed: &mut Bed) -> usize {
    let sent = bed.sent();
    let asks = |(id, ..): &&(u8, u64, Vec<u8>)| *id == control::GET;
    sent.iter().filter(asks).count()
}

/// Two peers that have stopped hold all fragments of a side, as long as nobody waits for one; then
/// the first of them goes.
fn they_make_way(side: Side) -> (Bed, OpKey) {
    // One of them reads no answers.
    let mut bed = bed(match side {
        Side::In => usize::MAX,
        Side::Out => 0,
    });
    let held: Vec<OpKey> = (0..FRAGMENTS / DEPTH)
        .map(|number| begin(&mut bed, link(number / 2), side))
        .collect();
    bed.sent();
    let looks = |bed: &mut Bed, looks| {
        (0..looks).for_each(|_| bed.core.movers.make_way());
        std::mem::take(&mut bed.core.movers.ctx.failures)
    };
    assert!(looks(&mut bed, 1000).is_empty(), "nobody waits");
    let waits = begin(&mut bed, link(2), side);
    let soon = looks(&mut bed, side.looks());
    assert!(soon.is_empty(), "they have had too little time");
    let mut failed = looks(&mut bed, 1);
    let (gone, error) = failed.pop().expect("one has to go");
    assert_eq!((gone, error.kind()), (LINK, ErrorKind::DeadlineExceeded));
    assert!(failed.is_empty(), "one is enough");
    bed.core.fail(gone, error);
    pass(&mut bed);
    assert!(looks(&mut bed, 1000).is_empty(), "nobody waits any more");
    for (number, key) in held.into_iter().enumerate() {
        let has_failed = bed.core.take_outcome(key).is_some();
        assert_eq!(has_failed, number < 2, "{number}");
    }
    (bed, waits)
}

#[test]
fn peers_that_do_not_send_make_way() {
    let (mut bed, _) = they_make_way(Side::In);
    assert_eq!(requests(&mut bed), DEPTH);
}

#[test]
fn peers_that_do_not_read_make_way() {
    let (mut bed, waits) = they_make_way(Side::Out);
    let pipe = bed.core.movers.ctx.pipe(waits).expect("it goes on");
    assert_eq!(pipe.parts.len(), DEPTH);
}

/// What a transfer that has failed had asked for counts as well.
#[test]
fn parts_of_what_has_failed_make_way() {
    let mut bed = bed(usize::MAX);
    for number in 0..FRAGMENTS / DEPTH {
        let key = begin(&mut bed, link(number / 2), Side::In);
        let error = crate::Error::new(ErrorKind::Canceled, "cancelled");
        bed.core.fail_operation(key, error);
        assert!(bed.core.take_outcome(key).is_some());
    }
    begin(&mut bed, link(2), Side::In);
    (0..=Side::In.looks()).for_each(|_| bed.core.movers.make_way());
    assert_eq!(bed.core.movers.ctx.failures.len(), 1);
}

/// As long as some are handed out, nobody has to go.
#[test]
fn fragments_that_go_round_end_nothing() {
    let mut bed = bed(usize::MAX);
    let pinned = bed.core.movers.devices.pinned(0).expect("open").clone();
    let take = || pinned.take(Side::In, None).expect("free");
    let mut others = [(); DEPTH].map(|()| take()).to_vec();
    for number in 1..FRAGMENTS / DEPTH {
        begin(&mut bed, link(number / 2), Side::In);
    }
    begin(&mut bed, link(2), Side::In);
    for _ in 0..3 {
        (0..Side::In.looks()).for_each(|_| bed.core.movers.make_way());
        others.pop();
        pass(&mut bed);
    }
    assert!(bed.core.movers.ctx.failures.is_empty());
}
