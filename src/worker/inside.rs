//! What becomes of memory that a peer is inside, or may go inside, when what let it there ends.
//!
//! # Safety
//! The local ends of accesses are arrays of the test, and as long as it says.
#![allow(unsafe_code)]

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use crate::{
    Context,
    error::{Error, ErrorKind},
    memory::{Buffer, BufferMut, HostBufferMut, Region},
    protocol::control,
    transport::{self, Sink},
    types::{Access, OpKey, Tag},
    util::testing::run,
    worker::{
        operations::{Get, Outcome, Put, Send, SendStage, Work},
        pair::Pair,
        rma::Target,
    },
};

/// The other end's view of the memory that both have.
fn theirs(pair: &Pair) -> Arc<transport::Pair> {
    pair.there.shared.with(|engine| {
        let mut peers = engine.ctx().connections();
        let peer = peers.next().expect("connected");
        let one_copy = peer.one_copy.as_ref().expect("memory in common");
        one_copy.pair.clone()
    })
}

/// Begins this, refuses it while the peer is inside its memory, and lets the peer stay.
fn refused(pair: &Pair, detached: bool, make: impl FnOnce(u32) -> Work) -> OpKey {
    let theirs = theirs(pair);
    let key = pair.here.shared.with(|engine| {
        let ctx = engine.ctx();
        let peer = ctx.peer(pair.link).expect("connected");
        peer.posted += 1;
        let one_copy = peer.one_copy.as_ref().expect("memory in common");
        let word = one_copy.pair.acquire().expect("a word");
        let key = ctx.operations.insert(Some(pair.link), detached, make(word));
        theirs.enter();
        let code = control::error_kind_code(ErrorKind::StaleKey).to_le_bytes();
        engine
            .core
            .message(pair.link, control::NACK, key.0, &code)
            .expect("refused");
        engine.core.movers.let_stay(Instant::now());
        engine.progress();
        assert!(engine.core.movers.has_lingering(), "the memory is kept");
        key
    });
    theirs.leave();
    key
}

/// Nobody waits for it: the next flush says that it is lost, and its place is another's.
#[test]
fn a_put_that_is_refused() {
    run(async {
        let pair = Pair::new().await;
        refused(&pair, true, |word| {
            Work::Put(Put {
                next: 100,
                slot: Some(word),
                ..Put::new(Buffer::from(vec![1; 100]), (0, 1), 0)
            })
        });
        pair.here.shared.with(|engine| {
            let peer = engine.ctx().peer(pair.link).expect("connected");
            let lost = peer.lost.as_ref().map(Error::kind);
            assert_eq!((lost, peer.posted), (Some(ErrorKind::StaleKey), 0));
        });
        pair.end();
    });
}

/// The future learns that its buffer does not come back, and its place is another's.
#[test]
fn a_get_that_is_refused() {
    run(async {
        let pair = Pair::new().await;
        let key = refused(&pair, false, |word| {
            Work::Get(Get {
                slot: Some(word),
                ..Get::new(BufferMut::from(vec![1; 100]), (0, 1), 0)
            })
        });
        pair.here.shared.with(|engine| {
            let outcome = engine.core.take_outcome(key).expect("over");
            assert!(matches!(outcome, Outcome::Done(Err(_))), "{outcome:?}");
            let peer = engine.ctx().peer(pair.link).expect("connected");
            assert_eq!(peer.posted, 0);
        });
        pair.end();
    });
}

/// The receiver closes, which ends the send, and says then that it is ready: the buffer is the program's by now, and nobody copies out of it.
#[test]
fn a_send_that_has_ended() {
    run(async {
        let pair = Pair::new().await;
        pair.here.shared.with(|engine| {
            let ctx = engine.ctx();
            let peer = ctx.peer(pair.link).expect("connected");
            peer.posted += 1;
            peer.announced_out += 1;
            let one_copy = peer.one_copy.as_ref().expect("memory in common");
            let word = one_copy.pair.acquire().expect("a word");
            let work = Work::Send(Send {
                tag: Tag(7),
                buffer: vec![1; 256 << 10].into(),
                sync: false,
                stage: SendStage::Announced,
                slot: Some(word),
                cancelling: false,
                am: None,
            });
            let key = ctx.operations.insert(Some(pair.link), false, work);
            let over = Error::new(ErrorKind::Closed, "over");
            engine.core.fail_operation(key, over);
            let ready = control::Rtr {
                op: 1,
                scheme: 1,
                address: 4096,
                segment: 0,
                segment_offset: 0,
            };
            let ready = ready.encode();
            for (id, body) in [(control::TAG_RTR, &ready[..]), (control::ASK_KEYS, &[0; 8])] {
                engine
                    .core
                    .message(pair.link, id, key.0, body)
                    .expect("an echo");
            }
            assert!(engine.core.movers.transfers.is_empty(), "begun");
            let outcome = engine.core.take_outcome(key).expect("over");
            assert!(outcome.is_failure(), "{outcome:?}");
        });
        pair.end();
    });
}

/// Memory of the context that a peer is inside is waited for, though the worker that let it there is gone.
#[test]
fn exposed_memory_outlives_the_worker() {
    run(async {
        let pair = Pair::new().await;
        let theirs = theirs(&pair);
        let region = pair.here.shared.with(|engine| {
            let regions = &engine.ctx().regions;
            let region = regions
                .expose(BufferMut::from(vec![1; 100]), Access::all())
                .expect("exposed");
            let (slot, generation) = (region.exposed().slot, region.exposed().generation);
            engine
                .core
                .message(pair.link, control::MAP, generation, &slot.to_le_bytes())
                .expect("shown");
            region
        });
        let (slot, generation) = (region.exposed().slot, region.exposed().generation);
        let inside = theirs.inside(slot, generation).expect("let there");
        pair.end();
        let worker = Arc::downgrade(&pair.here.shared);
        drop(pair.here);
        while worker.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
        let mut memory = pin!(region.unexpose());
        let mut is_back =
            async || poll_fn(|cx| Poll::Ready(memory.as_mut().poll(cx).is_ready())).await;
        assert!(!is_back().await, "given back under the peer");
        drop(inside);
        while !is_back().await {
            tokio::task::yield_now().await;
        }
    });
}

/// Where a region begins, for a peer.
fn target(region: &Region) -> Target {
    let exposed = region.exposed();
    let (segment, _) = exposed.segment.as_ref().expect("of a segment");
    Target {
        slot: exposed.slot,
        generation: exposed.generation,
        address: exposed.address as u64,
        offset: 8,
        segment: segment.id(),
        segment_offset: 0,
        on_device: false,
        read_back: false,
    }
}

/// Memory that may be written is written directly by who was shown it for reading alone, too, and first.
#[test]
fn what_may_be_read_under_another_key() {
    run(async {
        let pair = Pair::of(Context::builder().cma(false)).await;
        let memory = HostBufferMut::allocate(4096).expect("memory");
        let region = pair.there.shared.with(|engine| {
            let regions = &engine.ctx().regions;
            regions.expose(BufferMut::from(memory), Access::all())
        });
        let region = region.expect("exposed");
        let lease = region.lend(Access::READ).expect("exposed once more");
        let mut word = [7; 8];
        let mut at_once = |region: &Region, pull| {
            pair.here.shared.with(|engine| {
                engine.progress();
                // SAFETY: the array is as long.
                unsafe {
                    engine
                        .ctx()
                        .access_now(pair.link, &target(region), word.as_mut_ptr(), 8, pull)
                }
            })
        };
        assert!(at_once(&lease, true).is_none(), "it is shown the key first");
        let written = async {
            loop {
                match at_once(&region, false) {
                    Some(done) => break done,
                    None => tokio::task::yield_now().await,
                }
            }
        };
        let limit = Duration::from_secs(10);
        let written = tokio::time::timeout(limit, written).await;
        written.expect("written directly").expect("it may be");
        let mut seen = [0; 8];
        lease.read_at(8, &mut seen).expect("the owner reads");
        assert_eq!(seen, [7; 8]);
        drop(lease);
        pair.end();
    });
}

/// A peer maps what it may only read for reading alone.
#[test]
fn what_may_only_be_read() {
    for access in [Access::READ, Access::all()] {
        run(async {
            let pair = Pair::of(Context::builder().cma(false)).await;
            let memory = HostBufferMut::allocate(4096).expect("memory");
            let region = pair.there.shared.with(|engine| {
                let regions = &engine.ctx().regions;
                regions.expose(BufferMut::from(memory), access)
            });
            let region = region.expect("exposed");
            region.write_at(8, &[7; 8]).expect("the owner writes");
            let target = target(&region);
            let mut word = [0; 8];
            let mut at_once = |pull| {
                pair.here.shared.with(|engine| {
                    engine.progress();
                    // SAFETY: the array is as long.
                    unsafe {
                        engine
                            .ctx()
                            .access_now(pair.link, &target, word.as_mut_ptr(), 8, pull)
                    }
                })
            };
            let done = loop {
                match at_once(true) {
                    Some(done) => break done,
                    None => tokio::task::yield_now().await,
                }
            };
            done.expect("it may be read");
            assert_eq!(
                at_once(false).is_some(),
                access.contains(Access::WRITE),
                "written directly"
            );
            assert_eq!(word, [7; 8]);
            pair.end();
        });
    }
}
