//! A peer that says of what has not come that it is complete, for each way in which bytes come. The buffers are full of a canary: nothing
//! of it may be given to a user as a message.

use std::time::{Duration, Instant};

use crate::{
    Context,
    error::{Error, ErrorKind},
    memory::BufferMut,
    protocol::{
        control::{self, LayoutAnswer, Rts},
        layout::{Block, Indexed, Shape},
        plan::CHUNK,
    },
    transport::{Place, Sink},
    types::{LinkId, Mask, OpKey, Priority, Tag},
    util::testing::run,
    worker::{
        core::Core,
        frames::{Bed, LINK},
        layout::Plan,
        operations::{Get, Outcome, Work},
        pair::Pair,
        rma::Target,
    },
};

const CANARY: u8 = 0xc5;
const TAG: Tag = Tag(7);

fn canary(length: usize) -> BufferMut {
    vec![CANARY; length].into()
}

fn rts(length: usize) -> Rts {
    Rts {
        op: 77,
        length: length as u64,
        address: 0,
        segment: 0,
        segment_offset: 0,
        slot: control::NONE,
    }
}

/// A receive that has met an announced message of as many bytes.
fn matched(core: &mut Core, link: LinkId, buffer: BufferMut, rts: Rts) -> OpKey {
    core.message(link, control::TAG_RTS, TAG.0, &rts.encode())
        .expect("announced");
    let taken = core.take_unexpected(TAG, Mask::ALL);
    let taken = taken.expect("a message");
    let key = core
        .movers
        .ctx
        .enter_receive(buffer, Some(link), taken.arrival);
    core.movers.hand_over(key, taken.arrival, taken.message);
    key
}

fn get(core: &mut Core, length: usize, layout: Option<Box<Plan>>) -> OpKey {
    let get = Get {
        layout,
        ..Get::new(canary(length), (0, 1), 0)
    };
    match get.layout.is_some() {
        true => core
            .movers
            .start_layout(LINK, Work::Get(get), Priority::Normal),
        false => core
            .movers
            .ctx
            .operations
            .insert(Some(LINK), false, Work::Get(get)),
    }
}

impl Bed {
    /// The word of the peer breaks the protocol, and what it was about ends with the connection, by an error.
    #[track_caller]
    fn expect_a_lie(mut self, key: OpKey) {
        self.expect_violation(control::DONE, key.0, &[]);
        let entry = self.core.movers.ctx.operations.get(key).expect("goes on");
        assert!(entry.outcome.is_none(), "believed");
        self.expect_an_error(key);
    }

    #[track_caller]
    fn expect_an_error(mut self, key: OpKey) {
        self.core
            .fail(LINK, Error::new(ErrorKind::Protocol, "a lie"));
        let outcome = self.core.take_outcome(key).expect("over");
        assert!(outcome.is_failure(), "{outcome:?}");
    }
}

#[test]
fn a_receive_in_fragments() {
    for part in [0, 60] {
        let mut bed = Bed::new(100);
        let key = matched(&mut bed.core, LINK, canary(100), rts(100));
        bed.say(control::FRAGMENT, key.0, &vec![1; part])
            .expect("asked for");
        bed.expect_a_lie(key);
    }
}

#[test]
fn a_receive_behind_one_that_was_dropped() {
    let mut bed = Bed::new(100);
    let first = matched(&mut bed.core, LINK, canary(100), rts(100));
    bed.core.drop_future(first);
    let taken = bed.core.take_unexpected(TAG, Mask::ALL);
    let taken = taken.expect("it keeps its place");
    let key = bed
        .core
        .movers
        .ctx
        .enter_receive(canary(100), Some(LINK), taken.arrival);
    bed.core.movers.hand_over(key, taken.arrival, taken.message);
    bed.expect_a_lie(key);
}

/// What is on its way to a receive that is gone goes back when the connection ends, for another
/// that had matched it ends first: one that was posted since had nothing of it, and waits on.
#[test]
fn a_receive_behind_one_that_had_matched() {
    let mut bed = Bed::new(100);
    let other = get(&mut bed.core, 100, None);
    let first = matched(&mut bed.core, LINK, canary(100), rts(100));
    bed.core.drop_future(first);
    let taken = bed.core.take_unexpected(TAG, Mask::ALL);
    let taken = taken.expect("it keeps its place");
    let ctx = &mut bed.core.movers.ctx;
    let second = ctx.enter_receive(canary(100), Some(LINK), taken.arrival);
    // The last of the connection's takes the place of the first.
    drop(ctx.operations.take_work(other));
    let movers = &mut bed.core.movers;
    movers.hand_over(second, taken.arrival, taken.message);
    let last = bed.core.post_receive(TAG, Mask::ALL, canary(100), false);
    let reset = Error::new(ErrorKind::ConnectionReset, "reset");
    bed.core.fail(LINK, reset);
    let outcome = bed.core.take_outcome(second).expect("over");
    assert!(outcome.is_failure(), "{outcome:?}");
    assert!(!bed.core.is_over(last));
    assert!(bed.core.unexpected.is_empty());
    assert_eq!(bed.core.movers.ctx.operations.len(), 0);
}

/// The payload has a place in the receive's buffer, and half of it is there.
#[test]
fn a_receive_of_a_long_frame() {
    for says in [true, false] {
        let mut bed = Bed::new(100);
        let key = bed.core.post_receive(TAG, Mask::ALL, canary(6000), false);
        let place = bed.core.place(LINK, control::TAG_EAGER, TAG.0, &[], 6000);
        assert!(matches!(place, Ok(Place::Memory { .. })), "{place:?}");
        let key = bed.core.entry_of(key).expect("in the table");
        match says {
            true => bed.expect_a_lie(key),
            false => bed.expect_an_error(key),
        }
    }
}

/// The last fragment was given a place, and the connection ends before it is there.
#[test]
fn the_last_fragment_never_comes() {
    let mut bed = Bed::new(100);
    let key = matched(&mut bed.core, LINK, canary(100), rts(100));
    let place = bed.core.place(LINK, control::FRAGMENT, key.0, &[], 60);
    assert!(matches!(place, Ok(Place::Memory { .. })), "{place:?}");
    // A link that brings frames beside each other brings the short one first.
    bed.say(control::FRAGMENT, key.0, &[1; 40])
        .expect("asked for");
    bed.expect_an_error(key);
}

/// The peer refuses it while its last bytes are on their way into place: it has failed, and its buffer comes back.
#[test]
fn one_that_fails_before_its_last_bytes() {
    let code = control::error_kind_code(ErrorKind::StaleKey).to_le_bytes();
    for is_get in [false, true] {
        let mut bed = Bed::new(100);
        let key = match is_get {
            true => get(&mut bed.core, 100, None),
            false => matched(&mut bed.core, LINK, canary(100), rts(100)),
        };
        let place = bed.core.place(LINK, control::FRAGMENT, key.0, &[], 100);
        assert!(matches!(place, Ok(Place::Memory { .. })), "{place:?}");
        bed.say(control::NACK, key.0, &code).expect("a refusal");
        // More comes, and is dropped.
        bed.say(control::FRAGMENT, key.0, &[]).expect("in order");
        assert!(bed.core.take_outcome(key).is_none(), "it is still written");
        bed.core.placed(LINK, key.0);
        let outcome = bed.core.take_outcome(key).expect("over");
        let Outcome::Buffer(Err(error), buffer) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!((error.kind(), buffer.len()), (ErrorKind::StaleKey, 100));
    }
}

#[test]
fn a_get_in_fragments() {
    for part in [0, 60] {
        let mut bed = Bed::new(100);
        let key = get(&mut bed.core, 100, None);
        bed.say(control::FRAGMENT, key.0, &vec![1; part])
            .expect("asked for");
        bed.expect_a_lie(key);
    }
}

/// What this side copies itself, and what its network devices move.
#[test]
fn a_get_that_this_side_makes() {
    for by_devices in [false, true] {
        let mut bed = Bed::new(100);
        let key = get(&mut bed.core, 100, None);
        let entry = bed.core.movers.ctx.operations.get(key).expect("there");
        match by_devices {
            true => entry.is_short = true,
            false => entry.copies = 1,
        }
        bed.expect_a_lie(key);
    }
}

/// A network device has refused a short one of a device's memory: by messages it would stop in host memory, which the operation may forbid.
#[test]
fn a_short_get_that_may_not_stop() {
    for to_device in [true, false] {
        let mut bed = Bed::new(100);
        let key = get(&mut bed.core, 100, None);
        let entry = bed.core.movers.ctx.operations.get(key).expect("there");
        (entry.is_short, entry.to_device, entry.unstaged) = (true, to_device, true);
        let refused = Error::new(ErrorKind::AccessDenied, "no such key");
        bed.core.refused(LINK, key.0, refused);
        match bed.core.take_outcome(key) {
            Some(Outcome::Buffer(Err(error), _)) if to_device => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            }
            // It goes on by messages.
            None if !to_device => {}
            outcome => panic!("to a device: {to_device}: {outcome:?}"),
        }
    }
}

/// Two blocks of 50 bytes, asked for by one request.
fn blocks(bed: &mut Bed) -> OpKey {
    let blocks = vec![
        Block { offset: 0, len: 50 },
        Block {
            offset: 80,
            len: 50,
        },
    ];
    let shape = Shape::Indexed(Indexed::trusted(blocks, 100));
    let target = Target {
        slot: 3,
        generation: 4,
        address: 0,
        offset: 0,
        segment: 0,
        segment_offset: 0,
        on_device: false,
        read_back: false,
    };
    let plan = Plan::new(target, 200, shape.into());
    get(&mut bed.core, 100, Some(Box::new(plan)))
}

fn answer(position: u64, status: u16, length: usize) -> Vec<u8> {
    let answer = LayoutAnswer {
        position,
        status,
        code: 0,
    };
    [&answer.encode()[..], &vec![1; length]].concat()
}

#[test]
fn a_get_of_blocks() {
    let mut bed = Bed::new(1000);
    let key = blocks(&mut bed);
    bed.expect_a_lie(key);
    // The same bytes twice are not all bytes; nor are those of another way, or those behind a gap.
    for (id, body) in [
        (control::LAYOUT_DATA, answer(0, 1, 50)),
        (control::LAYOUT_DATA, answer(0, 0, 50)),
        (control::LAYOUT_DATA, answer(51, 0, 49)),
        (control::LAYOUT_DATA, answer(50, 1, 49)),
        (control::LAYOUT_DATA, answer(50, 0, 51)),
        (control::FRAGMENT, vec![1; 50]),
    ] {
        let mut bed = Bed::new(1000);
        let key = blocks(&mut bed);
        bed.say(control::LAYOUT_DATA, key.0, &answer(0, 0, 50))
            .expect("asked for");
        bed.expect_violation(id, key.0, &body);
        assert!(
            bed.core
                .movers
                .ctx
                .operations
                .get(key)
                .expect("there")
                .outcome
                .is_none(),
            "believed"
        );
        bed.expect_an_error(key);
    }
    let mut bed = Bed::new(1000);
    let key = blocks(&mut bed);
    for (position, status) in [(0, 0), (50, 1)] {
        bed.say(control::LAYOUT_DATA, key.0, &answer(position, status, 50))
            .expect("asked for");
    }
    let outcome = bed.core.take_outcome(key).expect("over");
    assert!(matches!(outcome, Outcome::Buffer(Ok(_), _)));
}

/// Memory in common: copied by this side alone, or by both ends, which count chunks. Neither has begun when the peer says that it is done.
#[test]
fn a_receive_out_of_common_memory() {
    const LENGTH: usize = 8 * CHUNK;
    for (cma, shares) in [(true, false), (true, true), (false, true)] {
        run(async {
            let pair = Pair::of(Context::builder().cma(cma)).await;
            let (here, link) = (&pair.here, pair.link);
            let source = vec![1_u8; LENGTH];
            here.shared.with(|engine| {
                let core = &mut engine.core;
                let mut rts = rts(LENGTH);
                rts.address = source.as_ptr() as u64;
                if shares {
                    let one_copy = core.movers.ctx.one_copy(link).expect("memory in common");
                    rts.slot = one_copy.pair.acquire().expect("a word");
                }
                let key = matched(core, link, canary(LENGTH), rts);
                let lie = core.message(link, control::DONE, key.0, &[]);
                let error = lie.expect_err("nothing was copied");
                assert_eq!(error.kind(), ErrorKind::Protocol);
                let entry = core.movers.ctx.operations.get(key).expect("goes on");
                assert!(entry.outcome.is_none(), "believed");
                engine.progress();
                let outcome = engine.core.take_outcome(key).expect("over");
                assert!(outcome.is_failure(), "{outcome:?}");
            });
            pair.end();
        });
    }
}

/// The peer is inside memory of a receive when the connection ends: the buffer comes back if it leaves at once, and the receive ends without it else.
#[test]
fn a_receive_that_the_peer_is_inside() {
    const LENGTH: usize = 8 * CHUNK;
    for leaves in [true, false] {
        run(async {
            let Pair {
                here,
                there,
                link,
                endpoint,
            } = Pair::new().await;
            let theirs = there.shared.with(|engine| {
                let mut peers = engine.ctx().connections();
                let peer = peers.next().expect("connected");
                peer.one_copy
                    .as_ref()
                    .expect("memory in common")
                    .pair
                    .clone()
            });
            let source = vec![1_u8; LENGTH];
            here.shared.with(|engine| {
                let mut rts = rts(LENGTH);
                rts.address = source.as_ptr() as u64;
                let key = matched(&mut engine.core, link, canary(LENGTH), rts);
                theirs.enter();
                engine.abort(link, endpoint, Error::new(ErrorKind::Closed, "over"));
                let now = Instant::now();
                engine.core.movers.let_stay(now + Duration::from_secs(3600));
                engine.progress();
                let inside = engine.core.take_outcome(key);
                assert!(inside.is_none(), "{inside:?}");
                match leaves {
                    true => theirs.leave(),
                    false => engine.core.movers.let_stay(now),
                }
                engine.progress();
                let comes_back = match engine.core.take_outcome(key) {
                    Some(Outcome::Buffer(Err(_), _)) => true,
                    Some(Outcome::Done(Err(_))) => false,
                    outcome => panic!("{outcome:?}"),
                };
                assert_eq!(comes_back, leaves);
                assert_eq!(engine.core.movers.lingering.is_empty(), leaves);
                if !leaves {
                    theirs.leave();
                }
            });
            here.shared.release_endpoint(link, endpoint);
        });
    }
}

/// What has not been sent is not there, whatever the peer says.
#[test]
fn a_put_and_a_send() {
    use crate::worker::operations::{Put, Send, SendStage};
    for copies in [0, 1] {
        let mut bed = Bed::new(0);
        let put = Put {
            next: 40,
            ..Put::new(vec![1; 100].into(), (0, 1), 0)
        };
        let work = Work::Put(put);
        let key = bed
            .core
            .movers
            .ctx
            .operations
            .insert(Some(LINK), false, work);
        bed.core
            .movers
            .ctx
            .operations
            .get(key)
            .expect("there")
            .copies = copies;
        bed.expect_a_lie(key);
    }
    let mut bed = Bed::new(0);
    let send = Send {
        tag: TAG,
        buffer: vec![1; 100].into(),
        sync: false,
        stage: SendStage::Queued,
        slot: None,
        cancelling: false,
        am: None,
    };
    let work = Work::Send(send);
    let key = bed
        .core
        .movers
        .ctx
        .operations
        .insert(Some(LINK), false, work);
    bed.expect_a_lie(key);
}
