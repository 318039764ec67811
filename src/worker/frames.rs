//! Messages of a peer that keeps to nothing, given to the core by hand: atomic operations and signals.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    config::{Limits, RendezvousThreshold},
    error::{Error, ErrorKind, Result},
    memory::{
        BufferMut, HostBufferMut, Region,
        region::{Guest, RegionTable, RegionWatcher},
    },
    protocol::{
        control::{self, Atomic, PutHeader, Signal},
        layout::Strided,
        ledger::{Amount, Ledger},
    },
    sys::identity::identity,
    transport::{Link, LinkAttributes, PeerInfo, Place, SendError, Sink},
    types::{Access, EndpointId, LinkId, OpKey, Source, WorkerId},
    util::lock::Mutex,
    worker::{
        core::Core,
        held::quotas,
        operations::{self, Ask, Ended, Work},
        peer::{Made, Peer},
    },
};

pub(super) const LINK: LinkId = LinkId(0);
pub(super) const OP: u64 = 0x0101;

/// Messages that were sent: id, header, body.
type Sent = Arc<Mutex<Vec<(u8, u64, Vec<u8>)>>>;

/// A link that notes what is sent, until it is full.
#[derive(Debug)]
struct Notes {
    sent: Sent,
    room: Arc<AtomicUsize>,
}

impl Link for Notes {
    fn attributes(&self) -> LinkAttributes {
        LinkAttributes {
            transport: "notes",
            max_short: 48,
            max_bcopy: 8192,
            max_zcopy: 0,
        }
    }
    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        self.am_bcopy(id, header, &[], body)
    }
    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if self.sent.lock().len() >= self.room.load(Relaxed) {
            return Err(SendError::Full);
        }
        self.sent
            .lock()
            .push((id, header, [prefix, payload].concat()));
        Ok(())
    }
    fn flush(&mut self, _sink: &mut dyn Sink) {}
    fn is_flushed(&self) -> bool {
        true
    }
}

pub(super) struct Bed {
    pub(super) core: Core,
    sent: Sent,
    room: Arc<AtomicUsize>,
    pub(super) regions: Arc<RegionTable>,
}

impl Bed {
    pub(super) fn new(room: usize) -> Self {
        let regions = Arc::new(RegionTable::default());
        let core = Core::new(regions.clone(), RendezvousThreshold::default());
        let mut bed = Self {
            core,
            sent: Sent::default(),
            room: Arc::new(AtomicUsize::new(room)),
            regions,
        };
        bed.connect(LINK);
        bed
    }

    /// Adds a connection. What all of them send is noted in one place.
    pub(super) fn connect(&mut self, slot: LinkId) {
        let link = Notes {
            sent: self.sent.clone(),
            room: self.room.clone(),
        };
        let account = self.core.movers.ctx.ledger.open(Source::User(1));
        self.core.movers.ctx.add_peer(Peer::new(Made {
            id: EndpointId(1 + slot.index() as u64),
            slot,
            interface: 0,
            link: Box::new(link),
            short: 48,
            eager: 8192,
            lending: crate::protocol::thresholds::Lending::new(None),
            worker: WorkerId([1; 16]),
            info: PeerInfo {
                identity: identity().clone(),
                name: "hostile".into(),
                certificates: None,
                origin: crate::transport::channel::Origin::default(),
            },
            account,
            transports: Vec::new(),
            one_copy: None,
            handles: 1,
        }));
    }

    /// What was sent since this was asked last.
    pub(super) fn sent(&mut self) -> Vec<(u8, u64, Vec<u8>)> {
        std::mem::take(&mut *self.sent.lock())
    }

    /// Begins a ledger with these limits.
    pub(super) fn limit(&mut self, change: impl FnOnce(Limits) -> Limits) {
        self.core.movers.ctx.ledger = Ledger::new(quotas(&change(Limits::default())));
        let account = self.core.movers.ctx.ledger.open(Source::User(1));
        self.core.movers.ctx.peer(LINK).expect("there").account = Some(account);
    }

    /// The peer reads: there is room for all that waits. What went out.
    pub(super) fn make_room(&mut self) -> Vec<(u8, u64, Vec<u8>)> {
        self.room.store(usize::MAX, Relaxed);
        while self
            .core
            .movers
            .ctx
            .peer(LINK)
            .is_some_and(|peer| !peer.queue.is_empty())
        {
            self.core.pump(LINK);
        }
        self.sent()
    }

    pub(super) fn expose(&self, length: usize, access: Access) -> Region {
        let memory = HostBufferMut::allocate(length).expect("memory");
        self.regions
            .expose(BufferMut::from(memory), access)
            .expect("exposed")
    }

    /// What is answered to a message.
    pub(super) fn say(
        &mut self,
        id: u8,
        header: u64,
        body: &[u8],
    ) -> Result<Vec<(u8, u64, Vec<u8>)>> {
        self.core.message(LINK, id, header, body)?;
        Ok(self.sent())
    }

    #[track_caller]
    pub(super) fn expect_violation(&mut self, id: u8, header: u64, body: &[u8]) {
        let before = self.core.movers.ctx.failures.len();
        let error = self.say(id, header, body).expect_err("not allowed");
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert_eq!(
            self.core.movers.ctx.failures.len(),
            before + 1,
            "the connection goes on"
        );
    }

    #[track_caller]
    pub(super) fn expect_refusal(&mut self, id: u8, body: &[u8], kind: ErrorKind) {
        let answer = self.say(id, OP, body).expect("refused, no more");
        let code = control::error_kind_code(kind).to_le_bytes().to_vec();
        assert_eq!(answer, [(control::NACK, OP, code)]);
        assert!(self.core.movers.ctx.failures.is_empty());
    }
}

fn add(region: &Region, offset: u64, code: u32) -> Atomic {
    let exposed = region.exposed();
    Atomic {
        generation: exposed.generation,
        offset,
        operand: 5,
        compare: 0,
        slot: exposed.slot,
        code,
    }
}

const ADD8: u32 = 0x0801;
const FETCH_ADD8: u32 = 0x1_0801;

#[test]
fn atomics_are_served() {
    let mut bed = Bed::new(100);
    let region = bed.expose(64, Access::READ | Access::WRITE);
    let answer = bed.say(control::ATOMIC, OP, &add(&region, 56, FETCH_ADD8).encode());
    assert_eq!(
        answer.expect("served"),
        [(control::FETCHED, OP, vec![0; 8])]
    );
    let answer = bed.say(control::ATOMIC, OP, &add(&region, 56, ADD8).encode());
    assert_eq!(
        answer.expect("served"),
        [(control::DONE, OP, vec![])],
        "the value is not asked for"
    );
    assert_eq!(region.load::<u64>(56).expect("a word"), 10);
}

#[test]
fn atomics_out_of_order_are_refused() {
    let mut bed = Bed::new(100);
    let region = bed.expose(64, Access::READ | Access::WRITE);
    for offset in [57, 64, 1 << 40, u64::MAX - 7, u64::MAX] {
        bed.expect_refusal(
            control::ATOMIC,
            &add(&region, offset, ADD8).encode(),
            ErrorKind::OutOfBounds,
        );
    }
    for offset in [1, 4, 7, 55] {
        bed.expect_refusal(
            control::ATOMIC,
            &add(&region, offset, ADD8).encode(),
            ErrorKind::InvalidArgument,
        );
    }
    for slot in [1, u32::MAX] {
        let foreign = Atomic {
            slot,
            ..add(&region, 0, ADD8)
        };
        bed.expect_refusal(control::ATOMIC, &foreign.encode(), ErrorKind::StaleKey);
    }
    let mut stale = add(&region, 0, ADD8);
    stale.generation ^= 1;
    bed.expect_refusal(control::ATOMIC, &stale.encode(), ErrorKind::StaleKey);
    assert_eq!(region.load::<u64>(0).expect("a word"), 0);
    // What a posting form may do does not let a value out.
    let write_only = bed.expose(8, Access::WRITE);
    bed.expect_refusal(
        control::ATOMIC,
        &add(&write_only, 0, FETCH_ADD8).encode(),
        ErrorKind::AccessDenied,
    );
    let read_only = bed.expose(8, Access::READ);
    bed.expect_refusal(
        control::ATOMIC,
        &add(&read_only, 0, ADD8).encode(),
        ErrorKind::AccessDenied,
    );
    assert_eq!(
        write_only.load::<u64>(0).expect("a word") + read_only.load::<u64>(0).expect("a word"),
        0
    );
    drop((write_only, read_only));
    for code in [
        0,
        0x0800,
        0x0807,
        0x0001,
        0x0201,
        0x1001,
        0x2_0801,
        u32::MAX,
    ] {
        bed.expect_violation(control::ATOMIC, OP, &add(&region, 0, code).encode());
    }
    let good = add(&region, 0, ADD8).encode();
    for length in 0..good.len() {
        bed.expect_violation(control::ATOMIC, OP, &good[..length]);
    }
    assert_eq!(region.load::<u64>(0).expect("a word"), 0);
}

#[test]
fn answers_that_nobody_asked_for() {
    let mut bed = Bed::new(100);
    let word = 7_u64.to_le_bytes();
    // Of operations that there are not, or not any more: an echo.
    for op in [0, OP, u64::MAX] {
        assert_eq!(bed.say(control::FETCHED, op, &word).expect("ignored"), []);
        assert_eq!(bed.say(control::DONE, op, &[]).expect("ignored"), []);
    }
    for body in [&word[..7], &[], &[0; 9]] {
        bed.expect_violation(control::FETCHED, OP, body);
    }
    bed.core.movers.ctx.failures.clear();
    let mut enter = |fetch, sent| {
        let work = operations::Atomic {
            asks: Ask::Settle,
            fetch,
            sent,
        };
        bed.core
            .movers
            .ctx
            .operations
            .insert(Some(LINK), false, Work::Atomic(work))
    };
    let (fetch, post, unsent) = (enter(true, true), enter(false, true), enter(true, false));
    let outcome = |bed: &mut Bed, key: OpKey| {
        bed.core
            .movers
            .ctx
            .operations
            .get(key)
            .and_then(|entry| entry.outcome.take())
    };
    // A word for who asked for none, or has not asked yet; no word for who asked.
    bed.expect_violation(control::FETCHED, post.0, &word);
    bed.expect_violation(control::FETCHED, unsent.0, &word);
    bed.core.movers.ctx.failures.clear();
    bed.say(control::DONE, fetch.0, &[]).expect("ignored");
    bed.say(control::DONE, unsent.0, &[]).expect("ignored");
    for key in [fetch, post, unsent] {
        assert!(outcome(&mut bed, key).is_none());
    }
    bed.say(control::FETCHED, fetch.0, &word)
        .expect("the answer");
    assert!(matches!(outcome(&mut bed, fetch), Some(Ended::Value(7))));
    bed.say(control::DONE, post.0, &[]).expect("the answer");
    assert!(matches!(outcome(&mut bed, post), Some(Ended::Done(Ok(())))));
}

fn signal(region: &Region, offset: u64) -> Signal {
    let exposed = region.exposed();
    Signal {
        generation: exposed.generation,
        offset,
        add: 2,
        slot: exposed.slot,
    }
}

#[test]
fn signals_that_fit_nowhere_are_told_once() {
    let mut bed = Bed::new(100);
    let region = bed.expose(64, Access::READ | Access::WRITE);
    let settle = |bed: &mut Bed| bed.say(control::SETTLE, OP, &[]).expect("answered");
    assert_eq!(
        bed.say(control::SIGNAL, 0, &signal(&region, 8).encode())
            .expect("applied"),
        []
    );
    assert_eq!(region.load::<u64>(8).expect("a word"), 2);
    assert_eq!(settle(&mut bed), [(control::DONE, OP, vec![])]);
    for (offset, kind) in [
        (57, ErrorKind::OutOfBounds),
        (u64::MAX, ErrorKind::OutOfBounds),
        (4, ErrorKind::InvalidArgument),
    ] {
        for _ in 0..1000 {
            assert_eq!(
                bed.say(control::SIGNAL, 0, &signal(&region, offset).encode())
                    .expect("kept in mind"),
                []
            );
        }
        bed.expect_refusal(control::SETTLE, &[], kind);
        assert_eq!(settle(&mut bed), [(control::DONE, OP, vec![])], "said once");
    }
    let good = signal(&region, 0).encode();
    for length in 0..good.len() {
        bed.expect_violation(control::SIGNAL, 0, &good[..length]);
    }
    let mut bytes = [0; 64];
    region.read_at(0, &mut bytes).expect("within");
    assert_eq!(
        bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(),
        2,
        "touched"
    );
}

#[test]
fn a_put_and_its_signal_go_together() {
    let mut bed = Bed::new(100);
    let region = bed.expose(64, Access::READ | Access::WRITE);
    let exposed = region.exposed();
    let put = |offset, last| PutHeader {
        generation: exposed.generation,
        offset,
        slot: exposed.slot,
        last,
    };
    let message =
        |put: PutHeader, signal: Signal| [&put.encode()[..], &signal.encode(), &[7; 16]].concat();
    let value = |offset| region.load::<u64>(offset).expect("a word");
    let answer = bed.say(control::PUT, OP, &message(put(16, 3), signal(&region, 8)));
    assert_eq!(answer.expect("done"), [(control::DONE, OP, vec![])]);
    assert_eq!(
        (value(8), value(16), value(24), value(32)),
        (2, 0x0707_0707_0707_0707, 0x0707_0707_0707_0707, 0)
    );
    // A put that is refused does not signal; a signal that is refused stops its put.
    bed.expect_refusal(
        control::PUT,
        &message(put(56, 3), signal(&region, 8)),
        ErrorKind::OutOfBounds,
    );
    bed.expect_refusal(
        control::PUT,
        &message(put(40, 3), signal(&region, 9)),
        ErrorKind::InvalidArgument,
    );
    bed.expect_refusal(
        control::PUT,
        &message(put(40, 3), signal(&region, 60)),
        ErrorKind::OutOfBounds,
    );
    assert_eq!((value(8), value(40)), (2, 0));
    // Cut short, or with a mark that there is not; also where the payload is asked a place for.
    bed.expect_violation(
        control::PUT,
        OP,
        &message(put(40, 3), signal(&region, 8))[..PutHeader::SIZE + Signal::SIZE - 1],
    );
    for mark in [2, 4, 5, u32::MAX] {
        let bad = message(put(40, mark), signal(&region, 8));
        bed.expect_violation(control::PUT, OP, &bad);
        let error = bed.core.place(
            LINK,
            control::PUT,
            OP,
            &bad[..PutHeader::SIZE + Signal::SIZE],
            16,
        );
        assert_eq!(error.expect_err("not allowed").kind(), ErrorKind::Protocol);
    }
    assert_eq!((value(8), value(40)), (2, 0));
    assert_eq!(
        bed.core.movers.ctx.operations.iter().count(),
        0,
        "entries are left"
    );
}

/// Somebody to be told of regions, so that they can be taken back.
struct Nobody;
impl RegionWatcher for Nobody {
    fn revoke(&self, _slot: u32, _generation: u64) -> Vec<Box<dyn Guest>> {
        Vec::new()
    }
}

#[test]
fn memory_taken_back_is_touched_no_more() {
    let mut bed = Bed::new(100);
    let nobody: Arc<dyn RegionWatcher> = Arc::new(Nobody);
    bed.regions.watch(Arc::downgrade(&nobody));
    let region = bed.expose(64, Access::READ | Access::WRITE);
    let (atomic, signal) = (add(&region, 0, ADD8).encode(), signal(&region, 0).encode());
    drop(region);
    let next = bed.expose(64, Access::READ | Access::WRITE);
    bed.expect_refusal(control::ATOMIC, &atomic, ErrorKind::StaleKey);
    bed.say(control::SIGNAL, 0, &signal).expect("kept in mind");
    bed.expect_refusal(control::SETTLE, &[], ErrorKind::StaleKey);
    assert_eq!(next.load::<u64>(0).expect("a word"), 0);
}

#[test]
fn bytes_for_what_is_copied_here_are_refused() {
    let mut bed = Bed::new(100);
    let get = operations::Get::new(BufferMut::from(vec![0; 16]), (0, 1), 0);
    let key = bed
        .core
        .movers
        .ctx
        .operations
        .insert(Some(LINK), false, Work::Get(get));
    // As while a transfer of this side writes the buffer.
    bed.core
        .movers
        .ctx
        .operations
        .get(key)
        .expect("an entry")
        .copies = 1;
    bed.expect_violation(control::FRAGMENT, key.0, &[7; 16]);
    let entry = bed.core.movers.ctx.operations.get(key).expect("an entry");
    assert!(
        entry.outcome.is_none(),
        "the buffer was given back while it is written"
    );
    entry.copies = 0;
    bed.core.movers.ctx.failures.clear();
    bed.say(control::FRAGMENT, key.0, &[7; 16])
        .expect("asked for");
    assert!(
        bed.core
            .movers
            .ctx
            .operations
            .get(key)
            .expect("an entry")
            .outcome
            .is_some()
    );
}

#[test]
fn a_request_behind_the_end_of_numbers_is_refused() {
    let mut bed = Bed::new(100);
    let region = bed.expose(64, Access::READ);
    let exposed = region.exposed();
    let header = control::LayoutHeader {
        generation: exposed.generation,
        position: u64::MAX,
        length: 8,
        slot: exposed.slot,
        blocks: 1,
        last: 0,
    };
    let mut body = header.encode().to_vec();
    body.extend(0_u64.to_le_bytes());
    body.extend(8_u32.to_le_bytes());
    let answers = bed
        .say(control::GET_LAYOUT, OP, &body)
        .expect("refused, no more");
    let [(control::LAYOUT_DATA, OP, answer)] = &answers[..] else {
        panic!("{answers:?}");
    };
    let answer = control::LayoutAnswer::decode(answer).expect("an answer");
    assert_eq!(
        (answer.status, answer.code),
        (2, control::error_kind_code(ErrorKind::OutOfBounds))
    );
}

#[test]
fn what_is_served_ends_when_the_memory_is_taken_back() {
    let mut bed = Bed::new(0);
    let region = bed.expose(64, Access::READ);
    let (slot, generation) = (region.exposed().slot, region.exposed().generation);
    let request = control::GetRequest {
        generation,
        offset: 0,
        length: 64,
        slot,
    };
    bed.say(control::GET, OP, &request.encode())
        .expect("allowed");
    assert_eq!(bed.core.movers.ctx.operations.len(), 1);
    // The link has no room, and never will have.
    bed.core.movers.ctx.withdraw(slot);
    assert_eq!(
        bed.core.movers.ctx.operations.len(),
        0,
        "the memory is held for who does not read"
    );
}

#[test]
fn routes_to_what_cannot_be_lent() {
    let mut bed = Bed::new(100);
    let region = bed.expose(4096, Access::READ);
    let closed = bed.expose(4096, Access::WRITE);
    let route = |region: &Region, offset, length| control::Route {
        to: OP,
        generation: region.exposed().generation,
        offset,
        length,
        slot: region.exposed().slot,
        region: 1,
        accelerator: 7,
    };
    let stale = control::Route {
        generation: 1,
        ..route(&region, 0, 64)
    };
    let nothing = control::Route {
        region: 0,
        ..route(&region, 0, 64)
    };
    for (route, why) in [
        (route(&region, 0, 64), "host memory"),
        (route(&region, 4000, 97), "leaves"),
        (route(&region, u64::MAX, 2), ""),
        (route(&region, 2, u64::MAX), ""),
        (route(&closed, 0, 64), ""),
        (stale, ""),
        (nothing, "ended"),
    ] {
        // No loan, and the reason; the peer asks for fragments then, and hears what is wrong.
        let answer = bed.say(control::ROUTE, OP, &route.encode());
        let answer = answer.expect("refused, no more");
        let [(control::ROUTED, OP, body)] = &answer[..] else {
            panic!("{answer:?}");
        };
        assert_eq!(body[..8], [0; 8]);
        let text = String::from_utf8_lossy(&body[8..]);
        assert!(text.contains(why), "{text}");
        assert_eq!(bed.core.movers.ctx.operations.len(), 0);
        assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
    }
    assert!(bed.core.movers.ctx.failures.is_empty());
    let odd = control::Route {
        region: 2,
        ..route(&region, 0, 64)
    };
    bed.expect_violation(control::ROUTE, OP, &odd.encode());
    let good = route(&region, 0, 64).encode();
    for length in 0..good.len() {
        bed.expect_violation(control::ROUTE, OP, &good[..length]);
    }
}

#[test]
fn routes_that_nobody_asked_for() {
    let mut bed = Bed::new(100);
    let region = bed.expose(64, Access::READ);
    let exposed = region.exposed().clone();
    let help =
        bed.core
            .movers
            .ctx
            .operations
            .insert(Some(LINK), true, Work::Help { _exposed: exposed });
    let loan = [&7_u64.to_le_bytes()[..], &[1; 100]].concat();
    for op in [0, OP, u64::MAX, help.0] {
        // The loan goes back at once.
        let answer = bed.say(control::ROUTED, op, &loan);
        assert_eq!(answer.expect("ignored"), [(control::DONE, 7, vec![])]);
        // A refusal that is late.
        let answer = bed.say(control::ROUTED, op, &[0; 20]);
        assert_eq!(answer.expect("ignored"), []);
    }
    assert!(bed.core.movers.ctx.failures.is_empty());
    for length in 0..8 {
        bed.expect_violation(control::ROUTED, OP, &loan[..length]);
    }
    bed.expect_violation(control::ROUTED, OP, &[1; 8 + 513]);
}

/// The peer has sent half of a frame, and stops. What is revoked meanwhile is its owner's when the rest is there, or the connection is gone.
#[tokio::test(start_paused = true)]
async fn memory_is_taken_back_when_the_last_frame_is_there() {
    for goes_on in [true, false] {
        let mut bed = Bed::new(100);
        let region = bed.expose(64, Access::WRITE);
        let exposed = region.exposed();
        let put = PutHeader {
            generation: exposed.generation,
            offset: 8,
            slot: exposed.slot,
            last: 1,
        };
        let place = bed.core.place(LINK, control::PUT, OP, &put.encode(), 16);
        let Ok(Place::Memory { token, .. }) = place else {
            panic!("{place:?}");
        };
        let mut revoked = Box::pin(region.revoke());
        let early = tokio::time::timeout(Duration::from_secs(9), &mut revoked).await;
        assert!(early.is_err(), "the rest of the frame lands in the owner's");
        let late = bed.core.place(LINK, control::PUT, OP, &put.encode(), 16);
        assert!(matches!(late, Ok(Place::Discard)), "{late:?}");
        if goes_on {
            bed.core.placed(LINK, token);
        } else {
            let gone = Error::new(ErrorKind::PeerDied, "it was stopped for too long");
            bed.core.fail(LINK, gone);
        }
        bed.core.movers.ctx.deferred.clear();
        revoked.await;
        assert_eq!(region.unexpose().await.len(), 64);
    }
}

/// What this process itself puts from exposed memory, or gets into it, is no peer's access.
#[tokio::test(start_paused = true)]
async fn memory_is_taken_back_under_operations_of_its_owner() {
    let bed = Bed::new(100);
    let region = bed.expose(64, Access::READ);
    let own = region.source(0, 64).expect("within");
    let lent = region.lend(Access::READ).expect("lent");
    let mut revoked = Box::pin(region.revoke());
    let early = tokio::time::timeout(Duration::from_secs(9), &mut revoked).await;
    assert!(early.is_err(), "it is lent under another key");
    drop(lent);
    revoked.await;
    let mut memory = pin!(region.unexpose());
    let early = tokio::time::timeout(Duration::from_secs(9), &mut memory).await;
    assert!(early.is_err(), "the memory is in use");
    drop(own);
    assert_eq!(memory.await.len(), 64);
}

/// What a link would buffer is refused when its head is here.
#[test]
fn long_frames_are_refused_by_their_head() {
    const LONG: usize = 32 << 20;
    for id in 0..=u8::MAX {
        for prefix in [&[0_u8; 0][..], &[0; 8], &[0; 24]] {
            let mut bed = Bed::new(100);
            let place = bed.core.place(LINK, id, 0, prefix, LONG);
            let buffered = match place {
                Ok(Place::Whole) => true,
                Ok(Place::Memory { .. }) => panic!("message {id} has a place"),
                Ok(Place::Discard) | Err(_) => false,
            };
            assert!(!buffered, "message {id} is buffered");
        }
    }
}

/// A layout of one byte again and again: a short request for a long answer, which takes its turns with everything else.
#[test]
fn a_long_answer_to_a_short_request_takes_turns() {
    const LENGTH: u64 = 64 << 20;
    for block in [1, 64 << 10] {
        let mut bed = Bed::new(usize::MAX);
        let region = bed.expose(64 << 10, Access::READ);
        let exposed = region.exposed();
        let header = control::LayoutHeader {
            generation: exposed.generation,
            position: 0,
            length: LENGTH,
            slot: exposed.slot,
            blocks: control::NONE,
            last: 0,
        };
        let form = Strided::new(0, block, 0, LENGTH / block).form();
        let body = [&header.encode()[..], &form].concat();
        let mut turn = bed.say(control::GET_LAYOUT, OP, &body).expect("served");
        let mut position = 0;
        for _ in 0..10 {
            let bytes: usize = turn.iter().map(|(.., body)| body.len()).sum();
            assert!((1..=1 << 20).contains(&bytes), "{bytes} bytes in one turn");
            let runs = bytes as u64 / block;
            assert!(runs <= 64 << 10, "{runs} runs in one turn");
            for (id, op, body) in &turn {
                assert_eq!((*id, *op), (control::LAYOUT_DATA, OP));
                let answer = control::LayoutAnswer::decode(body).expect("an answer");
                assert_eq!((answer.position, answer.status), (position, 0));
                position += (body.len() - control::LayoutAnswer::SIZE) as u64;
            }
            bed.core.pump(LINK);
            turn = std::mem::take(&mut *bed.sent.lock());
        }
        bed.core.fail(LINK, Error::new(ErrorKind::Closed, "over"));
    }
}
