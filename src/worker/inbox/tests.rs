//! What a peer may do to the inboxes of a worker, and what it hears of it.

use std::sync::Arc;

use crate::{
    config::RendezvousThreshold,
    error::Result,
    protocol::{am, thresholds::Lending, window::eager_cost},
    transport::{
        Connected, Hold, InPlace, Interface, Link, LinkAttributes, PeerInfo, Place, Registry,
        SendError, Sink,
    },
    types::{EndpointId, Identity, WorkerId},
    util::lock::Mutex,
    worker::{
        core::Core,
        engine::Engine,
        peer::{Made, Peer},
    },
};

use super::*;

pub(in crate::worker) type Sent = Arc<Mutex<Vec<(u8, u64)>>>;

/// A link that takes everything and remembers what it was.
#[derive(Debug)]
struct Wire(Sent);

impl Link for Wire {
    fn attributes(&self) -> LinkAttributes {
        LinkAttributes {
            transport: "test",
            max_short: 48,
            max_bcopy: 8192,
            max_zcopy: 0,
        }
    }
    fn am_short(&mut self, id: u8, header: u64, _: &[u8]) -> Result<(), SendError> {
        self.0.lock().push((id, header));
        Ok(())
    }
    fn am_bcopy(&mut self, id: u8, header: u64, _: &[u8], _: &[u8]) -> Result<(), SendError> {
        self.am_short(id, header, &[])
    }
    fn flush(&mut self, _: &mut dyn Sink) {}
    fn is_flushed(&self) -> bool {
        true
    }
}

pub(in crate::worker) const LINK: LinkId = LinkId::new(0, 1);
const ID: AmId = AmId(3);

/// A core with one connection.
pub(in crate::worker) fn core() -> (Core, Sent) {
    let sent = Sent::default();
    let mut core = Core::new(Arc::default(), RendezvousThreshold::default());
    let link = Wire(sent.clone());
    let account = core.movers.ctx.ledger.open(crate::types::Source::User(1));
    core.movers.ctx.add_peer(Peer::new(Made {
        id: EndpointId(1),
        slot: LINK,
        interface: 0,
        link: Box::new(link),
        short: 48,
        eager: 8184,
        lending: Lending::new(None),
        worker: WorkerId([0; 16]),
        info: PeerInfo {
            identity: Identity {
                boot: [1; 16],
                net_namespace: 0,
                pid_namespace: 0,
                user_namespace: 0,
                user: 0,
                pid: 0,
            },
            name: "peer".into(),
            certificates: None,
            origin: crate::transport::channel::Origin::default(),
        },
        account,
        transports: Vec::new(),
        one_copy: None,
        handles: 1,
    }));
    (core, sent)
}

fn eager(core: &mut Core, id: AmId, body: &[u8]) -> Result<()> {
    core.message(LINK, control::AM_EAGER, am::word(id, 0), body)
}

pub(in crate::worker) fn rts(length: u64, op: u64) -> [u8; control::Rts::SIZE] {
    control::Rts {
        op,
        length,
        address: 0,
        segment: 0,
        segment_offset: 0,
        slot: control::NONE,
    }
    .encode()
}

#[track_caller]
fn violates(core: &mut Core, result: Result<()>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Protocol);
    assert_eq!(
        core.movers.ctx.failures.len(),
        1,
        "the connection is closed"
    );
}

#[test]
fn credits_are_kept() {
    let (mut core, sent) = core();
    let serial = core.am_open(ID, 20).unwrap();
    for _ in 0..20 {
        eager(&mut core, ID, b"x").unwrap();
    }
    assert_eq!(
        *sent.lock(),
        [(control::AM_CREDIT, am::credit(ID, 4, false))],
        "what the inbox has room for beyond the first ones"
    );
    // What is taken comes back in batches.
    for _ in 0..5 {
        assert!(core.am_take(ID, serial).is_some());
    }
    assert_eq!(sent.lock().len(), 2);
    for _ in 0..5 {
        eager(&mut core, ID, b"x").unwrap();
    }
    let result = eager(&mut core, ID, b"x");
    violates(&mut core, result);
}

#[test]
fn announced_messages_need_credits_too() {
    let (mut core, _) = core();
    core.am_open(ID, 1).unwrap();
    for op in 0..16 {
        let word = am::word(ID, 0);
        core.message(LINK, control::AM_RTS, word, &rts(1 << 40, op))
            .unwrap();
    }
    let result = eager(&mut core, ID, b"x");
    violates(&mut core, result);
}

#[test]
fn lengths_are_checked() {
    let word = |header| am::word(ID, header);
    let announced = rts(9, 1);
    let mut trailing = announced.to_vec();
    trailing.push(7);
    let cases: [(u8, u64, &[u8]); 6] = [
        (control::AM_EAGER, word(3), b"xx"),
        (control::AM_EAGER, word(0xffff), &[0; 70_000]),
        (control::AM_RTS, word(0), &announced[..43]),
        (control::AM_RTS, word(1), &announced),
        (control::AM_RTS, word(0), &trailing),
        (control::AM_EAGER, word(am::MAX_HEADER + 1), &[0; 5000]),
    ];
    for open in [true, false] {
        for (id, header, body) in cases {
            let (mut core, _) = core();
            if open {
                core.am_open(ID, 16).unwrap();
            }
            let result = core.message(LINK, id, header, body);
            violates(&mut core, result);
        }
    }
    let (mut core, _) = core();
    let placed = core.place(LINK, control::AM_EAGER, word(3), b"x", 1);
    violates(&mut core, placed.map(|_| ()));
}

#[test]
fn the_window_holds_for_active_messages() {
    let (mut core, _) = core();
    core.am_open(ID, 1000).unwrap();
    let body = vec![0; 8000];
    let mut result = Ok(());
    for _ in 0..200 {
        result = eager(&mut core, ID, &body);
        if result.is_err() {
            break;
        }
    }
    violates(&mut core, result);
}

/// Who closes an inbox owes its sender what is thrown away with it, and what had been taken before.
#[test]
fn a_window_is_whole_again_with_the_next_inbox() {
    let (mut core, _) = core();
    let body = vec![0; 8000];
    let whole = (am::WINDOW / eager_cost(body.len())) as usize;
    for _ in 0..3 {
        let serial = core.am_open(ID, 1000).unwrap();
        let place = core.place(LINK, control::AM_EAGER, am::word(ID, 0), &[], 8000);
        for _ in 1..whole {
            eager(&mut core, ID, &body).unwrap();
        }
        for _ in 0..5 {
            assert!(core.am_take(ID, serial).is_some());
        }
        core.am_close(ID, serial);
        let Ok(Place::Memory { token, .. }) = place else {
            panic!("{place:?}")
        };
        core.placed(LINK, token);
    }
    core.am_open(ID, 1000).unwrap();
    for _ in 0..whole {
        eager(&mut core, ID, &body).unwrap();
    }
    let result = eager(&mut core, ID, &body);
    violates(&mut core, result);
}

#[test]
fn what_nobody_receives_takes_no_memory() {
    let (mut core, sent) = core();
    for number in 0..=u16::MAX {
        eager(&mut core, AmId(number), &[0; 4000]).unwrap();
        core.message(LINK, control::AM_RTS, am::word(AmId(number), 0), &rts(9, 1))
            .unwrap();
    }
    assert_eq!(core.movers.ctx.operations.iter().count(), 0);
    let answers = std::mem::take(&mut *sent.lock());
    let refusals = answers.iter().filter(|(id, _)| *id == control::AM_REFUSED);
    assert_eq!(refusals.count(), 2 << 16);
    // Whichever is opened then, the peer hears of it.
    for id in [0, 63, 64, 40_000] {
        core.am_open(AmId(id), 16).unwrap();
        let told = sent.lock().pop();
        assert_eq!(
            told,
            Some((control::AM_CREDIT, am::credit(AmId(id), 0, false)))
        );
    }
    assert!(core.movers.ctx.failures.is_empty());
}

#[test]
fn echoes_of_nothing_are_ignored() {
    let (mut core, sent) = core();
    core.am_open(ID, 16).unwrap();
    for id in [control::AM_CREDIT, control::AM_REFUSED] {
        for word in [0, u64::MAX, am::credit(ID, u32::MAX, true)] {
            core.message(LINK, id, word, &[1; 40]).unwrap();
        }
    }
    core.message(LINK, control::CANCEL, 5, &[]).unwrap();
    assert!(core.movers.ctx.failures.is_empty() && sent.lock().is_empty());
    eager(&mut core, ID, b"x").unwrap();
}

#[test]
fn a_place_that_lands_after_the_inbox_closed_is_refused() {
    let (mut core, sent) = core();
    let serial = core.am_open(ID, 16).unwrap();
    let place = core.place(LINK, control::AM_EAGER, am::word(ID, 2), b"ab", 6000);
    let Ok(Place::Memory { token, .. }) = place else {
        panic!("{place:?}")
    };
    core.am_close(ID, serial);
    core.placed(LINK, token);
    assert_eq!(
        sent.lock().pop(),
        Some((control::AM_REFUSED, am::credit(ID, 1, true)))
    );
    assert_eq!(core.movers.ctx.operations.iter().count(), 0);
    assert!(core.movers.ctx.failures.is_empty());
}

/// Brings messages that may be taken from the front.
#[derive(Debug)]
struct Front {
    hold: Arc<Hold>,
    messages: VecDeque<(u64, &'static [u8])>,
}

#[allow(unsafe_code)]
impl Interface for Front {
    fn attach(&mut self, _: LinkId, _: Connected) -> Result<Box<dyn Link>> {
        Err(too_many())
    }
    fn detach(&mut self, _: LinkId) {}
    fn register(&mut self, _: Registry) -> Result<()> {
        Ok(())
    }
    fn progress(&mut self, _: usize, _: &mut dyn Sink) -> usize {
        0
    }
    unsafe fn take_in_place(&mut self, id: u8, header: u64, mask: u64, _: u32) -> Option<InPlace> {
        let (front, body) = *self.messages.front()?;
        assert_eq!(id, control::AM_EAGER);
        if (front ^ header) & mask != 0 {
            return None;
        }
        // SAFETY: the caller's promise; the body is static.
        let held = unsafe { self.hold.take(body) }?;
        self.messages.pop_front();
        Some(InPlace {
            from: LINK,
            header: front,
            held,
        })
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn disarm(&mut self) {}
}

fn engine(messages: Vec<(u64, &'static [u8])>, capacity: u32) -> (Engine, u64, Sent) {
    let (mut core, sent) = core();
    let serial = core.am_open(ID, capacity).unwrap();
    let mut engine = Engine::new(core).unwrap();
    let front = Front {
        hold: Hold::new(),
        messages: messages.into(),
    };
    engine.install("test", Box::new(front)).unwrap();
    (engine, serial, sent)
}

#[test]
fn what_is_in_front_is_taken_by_its_inbox_in_order_and_counted() {
    let other = am::word(AmId(4), 0);
    let word = am::word(ID, 1);
    let messages: Vec<(u64, &'static [u8])> = vec![(word, b"ab"), (word, b"cd"), (other, b"")];
    let (mut engine, serial, sent) = engine(messages, 64);
    let front = engine.am_front(ID, serial, 0).expect("it is there");
    assert!(engine.am_front(ID, serial, 0).is_none(), "one at a time");
    // The first of an id: the peer hears how many more there may be.
    assert!(front.owes);
    engine.am_settle(front.link, ID);
    let credit = (control::AM_CREDIT, am::credit(ID, 64 - 15, false));
    assert_eq!(*sent.lock(), [credit]);
    assert!(
        matches!(front.kept(), Content::Inline { header: 1, length: 2, bytes } if bytes.starts_with(b"ab"))
    );
    eager(&mut engine.core, ID, b"before").unwrap();
    assert!(engine.am_front(ID, serial, 0).is_none(), "another waits");
    assert!(engine.core.am_take(ID, serial).is_some());
    assert!(
        engine.am_front(ID, serial + 1, 0).is_none(),
        "not its inbox"
    );
    let front = engine.am_front(ID, serial, 0).expect("it is there");
    assert!(!front.owes);
    drop(front);
    assert!(engine.am_front(ID, serial, 0).is_none(), "another's");
    assert!(engine.core.movers.ctx.failures.is_empty());
    let left = engine
        .core
        .movers
        .ctx
        .peer(LINK)
        .unwrap()
        .am
        .inbound_of(ID)
        .unwrap();
    assert!(left.window.admits(62) && !left.window.admits(63));
    assert_eq!(engine.core.movers.ctx.held().unexpected_messages, 0);
}

#[test]
fn what_a_peer_may_not_send_is_refused_in_front_too() {
    let long: &'static [u8] = &[0; 8000];
    let plain = am::word(ID, 0);
    let cases = [
        (vec![(am::word(ID, 3), &b"xx"[..])], 0),
        (vec![(am::word(ID, 0xffff), long)], 0),
        // More than it has credits for, when nothing is given back; more than the window.
        (vec![(plain, &b"x"[..]); 20], 16),
        (vec![(plain, long); 200], 66),
    ];
    for (messages, allowed) in cases {
        let capacity = if allowed > 16 { 1000 } else { 1 };
        let (mut engine, serial, _) = engine(messages, capacity);
        let mut taken = 0;
        while let Some(front) = engine.am_front(ID, serial, 0) {
            if capacity > 1 && taken == 0 {
                engine.am_settle(front.link, ID);
            }
            drop(front);
            taken += 1;
        }
        assert_eq!(taken, allowed);
        let failed = &engine.core.movers.ctx.failures[..];
        assert!(
            matches!(failed, [(LINK, error)] if error.kind() == ErrorKind::Protocol),
            "{failed:?}"
        );
    }
}

#[test]
fn a_reason_is_cut_between_characters() {
    let long = "ä".repeat(40);
    let body = rejection(&long);
    assert!(body.len() <= 48);
    let error = control::error_of(&body);
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert!(error.to_string().contains(&"ä".repeat(23)), "{error}");
    let foreign = control::error_of(&[8, 0, 0xff, b'\n']);
    assert!(!foreign.to_string().contains('\n'), "{foreign}");
}
