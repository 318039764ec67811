//! Every kind of request between two devices, and how they fail: on soft-RoCE in the virtual machine, emulated elsewhere.
//!
//! # Safety
//! Requests name memory that tests keep until their end and touch only by atomics.
#![allow(unsafe_code)]

use std::{sync::atomic::Ordering, time::Duration};

use crate::{
    driver::verbs::{Access, ReceiveRequest, SendFlags, SendRequest, Sge, Status},
    error::ErrorKind,
    link::{CAPACITY, End, HASTY, Link, PATIENT, devices, run, watch},
    support::until,
};

const SIGNALED: SendFlags = SendFlags::SIGNALED;

#[test]
fn messages_go_both_ways() {
    run(async {
        let link = Link::new(PATIENT);
        let memory = [link.ends[0].memory(1024), link.ends[1].memory(1024)];
        for (from, to) in [(0, 1), (1, 0)] {
            memory[from].pattern(from as u64);
            link.receive(to, ReceiveRequest::new(5, &[memory[to].piece(0..1024)]));
            // Of two pieces, over several packets.
            let pieces = [memory[from].piece(0..1), memory[from].piece(1..900)];
            link.post(from, SendRequest::send(9, &pieces, SIGNALED));
            let sent = link.ends[from].success().await;
            assert_eq!(sent.id(), 9);
            let received = link.ends[to].success().await;
            assert_eq!((received.id(), received.bytes()), (5, 7200));
            assert_eq!(received.queue_pair(), link.queue_pairs[to].number());
            memory[to].check(from as u64, 900);
        }
    });
}

#[test]
fn memory_is_written_and_read() {
    run(async {
        let link = Link::new(PATIENT);
        let near = link.ends[0].memory(600);
        let far = link.ends[1].memory(600);
        near.pattern(3);
        let (address, key) = (far.address(0), far.region.rkey());
        // One that is not told, then one that is.
        let (first, second) = ([near.piece(0..300)], [near.piece(300..600)]);
        let mut two = [
            SendRequest::write(1, &first, SendFlags::empty(), address, key),
            SendRequest::write(2, &second, SIGNALED, far.address(300), key),
        ];
        // SAFETY: see above.
        unsafe { link.queue_pairs[0].post_send(&mut two) }.expect("posted");
        let done = link.ends[0].success().await;
        assert_eq!(done.id(), 2);
        far.check(3, 600);
        far.pattern(4);
        let all = [near.piece(0..600)];
        link.post(0, SendRequest::read(3, &all, SIGNALED, address, key));
        let done = link.ends[0].success().await;
        assert_eq!(done.id(), 3);
        near.check(4, 600);
        // Nobody at the other end was told anything.
        assert_eq!(link.ends[1].polls.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn atomics_give_what_was_there() {
    run(async {
        let link = Link::new(PATIENT);
        let near = link.ends[0].memory(2);
        let far = link.ends[1].memory(2);
        far.set(1, 40);
        let (address, key) = (far.address(1), far.region.rkey());
        let piece = [near.piece(0..1)];
        link.post(
            0,
            SendRequest::fetch_add(1, &piece, SIGNALED, address, key, 2),
        );
        assert_eq!(link.ends[0].success().await.id(), 1);
        assert_eq!((near.get(0), far.get(1)), (40, 42));
        for (compare, then) in [(41, 42), (42, 1 << 40)] {
            let swap =
                SendRequest::compare_swap(2, &piece, SIGNALED, address, key, compare, 1 << 40);
            link.post(0, swap);
            assert_eq!(link.ends[0].success().await.id(), 2);
            assert_eq!((near.get(0), far.get(1)), (42, then));
        }
    });
}

#[test]
fn inline_bytes_are_free_at_once() {
    run(async {
        let link = Link::new(PATIENT);
        assert!(link.queue_pairs[0].capacity().inline_bytes >= CAPACITY.inline_bytes);
        let far = link.ends[1].memory(2);
        link.receive(1, ReceiveRequest::new(4, &[far.piece(0..2)]));
        let mut bytes = *b"sixteen bytes !!";
        let piece = [Sge {
            addr: bytes.as_ptr().expose_provenance() as u64,
            length: 16,
            lkey: 0xdead,
        }];
        link.post(
            0,
            SendRequest::send(1, &piece, SIGNALED | SendFlags::INLINE),
        );
        bytes.fill(0);
        assert_eq!(bytes, [0; 16]);
        link.ends[1].success().await;
        let got = [far.get(0).to_ne_bytes(), far.get(1).to_ne_bytes()].concat();
        assert_eq!(got, b"sixteen bytes !!");
        link.ends[0].success().await;
    });
}

/// The receiver is parked in the kernel until the message comes: it polls twice before (once to find nothing, once after arming), and not
/// again while the sender waits.
#[test]
fn a_parked_task_is_woken_by_the_channel() {
    run(async {
        let link = std::sync::Arc::new(Link::new(PATIENT));
        let near = link.ends[0].memory(1);
        let far = link.ends[1].memory(1);
        near.set(0, 5);
        link.receive(1, ReceiveRequest::new(4, &[far.piece(0..1)]));
        let receiver = {
            let link = link.clone();
            tokio::spawn(async move { link.ends[1].success().await })
        };
        let polls = || link.ends[1].polls.load(Ordering::Relaxed);
        while polls() < 2 {
            tokio::task::yield_now().await;
        }
        // One that looks now and then would.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(polls(), 2, "the receiver is not parked");
        assert!(!receiver.is_finished());
        link.post(0, SendRequest::send(1, &[near.piece(0..1)], SIGNALED));
        let done = receiver.await.expect("receives");
        assert_eq!((done.id(), far.get(0)), (4, 5));
        // Found by the poll after the wake-up, then none.
        assert!(polls() <= 2 + 2, "{} polls", polls());
        link.ends[0].success().await;
    });
}

#[test]
fn unsolicited_messages_wake_nobody_who_asked_for_solicited_ones() {
    run(async {
        let link = Link::new(PATIENT);
        let near = link.ends[0].memory(1);
        let far = link.ends[1].memory(2);
        for id in 0..2 {
            link.receive(1, ReceiveRequest::new(id, &[far.piece(0..1)]));
        }
        link.ends[1].queue.arm(true).expect("arms");
        let piece = [near.piece(0..1)];
        link.post(0, SendRequest::send(1, &piece, SIGNALED));
        link.ends[0].success().await;
        // It is in the queue, and told of by no event.
        let mut found = Vec::new();
        until("the first", || link.ends[1].poll(&mut found) > 0).await;
        assert_eq!(link.ends[1].channel.drain(|_| ()).expect("drains"), 0);
        link.post(
            0,
            SendRequest::send(2, &piece, SIGNALED | SendFlags::SOLICITED),
        );
        let fd = watch(&link.ends[1].channel);
        let mut told = 0;
        while told == 0 {
            let mut guard = fd.readable().await.expect("readable");
            told = link.ends[1].channel.drain(|_| ()).expect("drains");
            guard.clear_ready();
        }
        assert_eq!(told, 1);
        drop(fd);
        assert_eq!(link.ends[1].completions(1).await.len(), 1);
    });
}

#[test]
fn queue_pairs_share_receives() {
    run(async {
        let ends = devices().map(End::open);
        let shared = ends[1].domain.shared_receive_queue(8, 1, 99);
        let shared = shared.expect("a shared queue");
        assert!(shared.capacity() >= 8);
        let far = ends[1].memory(8);
        let near = ends[0].memory(1);
        near.set(0, 7);
        let pieces: Vec<_> = (0..8).map(|index| [far.piece(index..index + 1)]).collect();
        let receives = pieces.iter().enumerate();
        let mut receives: Vec<_> = receives
            .map(|(id, pieces)| ReceiveRequest::new(id as u64, pieces))
            .collect();
        // SAFETY: see above.
        unsafe { shared.post(&mut receives) }.expect("posted");
        let pairs: Vec<_> = (0..2)
            .map(|_| (ends[0].queue_pair(None), ends[1].queue_pair(Some(&shared))))
            .collect();
        let piece = [near.piece(0..1)];
        for (near_pair, far_pair) in &pairs {
            ends[0].connect(near_pair, ends[1].place(far_pair), PATIENT);
            ends[1].connect(far_pair, ends[0].place(near_pair), PATIENT);
            let mut send = [SendRequest::send(1, &piece, SIGNALED)];
            // SAFETY: see above.
            unsafe { near_pair.post_send(&mut send) }.expect("posted");
            let received = ends[1].success().await;
            assert_eq!(received.queue_pair(), far_pair.number());
            assert_eq!(far.get(received.id() as usize), 7);
            ends[0].success().await;
        }
    });
}

#[test]
fn a_peer_that_is_gone_is_told_after_all_tries() {
    run(async {
        let mut link = Link::new(HASTY);
        let memory = link.ends[0].memory(1);
        let other = link.ends[1].queue_pair(None);
        drop(std::mem::replace(&mut link.queue_pairs[1], other));
        let piece = [memory.piece(0..1)];
        link.post(0, SendRequest::send(1, &piece, SIGNALED));
        link.post(0, SendRequest::send(2, &piece, SendFlags::empty()));
        let ends = link.ends[0].completions(2).await;
        assert_eq!((ends[0].id(), ends[0].status()), (1, Status::RETRY_EXC_ERR));
        assert_eq!((ends[1].id(), ends[1].status()), (2, Status::WR_FLUSH_ERR));
        let error = ends[0].error().expect("an error");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let source = error.get_ref().and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&Status::RETRY_EXC_ERR));
        assert!(
            error
                .to_string()
                .contains("did not answer in all the tries"),
            "{error}"
        );
        // It takes more, and flushes it.
        link.post(0, SendRequest::send(3, &piece, SIGNALED));
        let ends = link.ends[0].completions(1).await;
        assert_eq!((ends[0].id(), ends[0].status()), (3, Status::WR_FLUSH_ERR));
    });
}

#[test]
fn a_peer_without_receives_is_told() {
    run(async {
        let link = Link::new(HASTY);
        let memory = link.ends[0].memory(1);
        link.post(0, SendRequest::send(1, &[memory.piece(0..1)], SIGNALED));
        let ends = link.ends[0].completions(1).await;
        assert_eq!(ends[0].status(), Status::RNR_RETRY_EXC_ERR);
    });
}

#[test]
fn a_wrong_key_is_refused_by_the_peer() {
    run(async {
        let link = Link::new(HASTY);
        let near = link.ends[0].memory(1);
        let far = link.ends[1].memory(1);
        let piece = [near.piece(0..1)];
        let wrong = far.region.rkey() ^ 0x5500;
        link.post(
            0,
            SendRequest::write(1, &piece, SIGNALED, far.address(0), wrong),
        );
        let ends = link.ends[0].completions(1).await;
        assert_eq!(ends[0].status(), Status::REM_ACCESS_ERR);
        assert_eq!(
            ends[0].error().expect("an error").kind(),
            ErrorKind::AccessDenied
        );
        assert_eq!(far.get(0), 0);
    });
}

#[test]
fn a_region_that_ended_is_refused() {
    run(async {
        let link = Link::new(HASTY);
        let near = link.ends[0].memory(1);
        let far = link.ends[1].memory(1);
        let (address, key) = (far.address(0), far.region.rkey());
        drop(far);
        link.post(
            0,
            SendRequest::read(1, &[near.piece(0..1)], SIGNALED, address, key),
        );
        let ends = link.ends[0].completions(1).await;
        assert_eq!(ends[0].status(), Status::REM_ACCESS_ERR);
    });
}

#[test]
fn a_message_that_is_too_long_fails_both_sides() {
    run(async {
        let link = Link::new(HASTY);
        let near = link.ends[0].memory(4);
        let far = link.ends[1].memory(4);
        link.receive(1, ReceiveRequest::new(4, &[far.piece(0..1)]));
        link.post(0, SendRequest::send(1, &[near.piece(0..4)], SIGNALED));
        let sent = link.ends[0].completions(1).await;
        // soft-RoCE says that it could not; hardware, that it may not.
        let told = [Status::REM_OP_ERR, Status::REM_INV_REQ_ERR];
        assert!(told.contains(&sent[0].status()), "{sent:?}");
        let received = link.ends[1].completions(1).await;
        let told = [Status::LOC_QP_OP_ERR, Status::LOC_LEN_ERR];
        assert!(told.contains(&received[0].status()), "{received:?}");
    });
}

#[test]
fn a_full_queue_says_how_many_it_took() {
    run(async {
        let link = Link::new(PATIENT);
        let memory = link.ends[0].memory(1);
        let piece = [memory.piece(0..1)];
        let room = link.queue_pairs[0].capacity().sends as usize;
        // Nobody receives, so nothing completes. The device may have rounded the room up without saying so.
        let mut many = vec![SendRequest::send(1, &piece, SIGNALED); room * 8];
        // SAFETY: see above.
        let refused = unsafe { link.queue_pairs[0].post_send(&mut many) };
        let refused = refused.expect_err("is too much");
        assert!(refused.is_full(), "{refused:?}");
        assert!(
            refused.posted >= room && refused.posted < room * 8,
            "{refused:?}"
        );
        let error = refused.error("ibv_post_send", "rxe0");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    });
}

/// Whether the peer may write at all is looked at before how much it writes.
#[test]
fn writes_of_no_bytes_need_the_right_to_write() {
    run(async {
        let link = Link::for_access(devices().map(End::open), PATIENT, Access::LOCAL_WRITE);
        link.post(0, SendRequest::write(1, &[], SIGNALED, 0, 0));
        let ended = link.ends[0].completions(1).await;
        let refused = [Status::REM_ACCESS_ERR, Status::REM_INV_REQ_ERR];
        assert!(refused.contains(&ended[0].status()), "{ended:?}");
        // Of one that may, the key of no bytes is not looked at.
        let link = Link::new(PATIENT);
        link.post(0, SendRequest::write(1, &[], SIGNALED, 0, 0));
        link.ends[0].success().await;
    });
}

#[test]
fn what_is_given_up_is_flushed() {
    run(async {
        let link = Link::new(PATIENT);
        let memory = link.ends[1].memory(1);
        link.receive(1, ReceiveRequest::new(4, &[memory.piece(0..1)]));
        link.queue_pairs[1].to_error().expect("ERR");
        let ends = link.ends[1].completions(1).await;
        assert_eq!((ends[0].id(), ends[0].status()), (4, Status::WR_FLUSH_ERR));
    });
}

#[test]
fn objects_may_be_dropped_in_any_order() {
    run(async {
        let Link { queue_pairs, ends } = Link::new(PATIENT);
        let [end, other] = ends;
        let memory = end.memory(1);
        let End {
            context,
            domain,
            channel,
            queue,
            ..
        } = end;
        drop((context, domain, channel, queue));
        let [queue_pair, second] = queue_pairs;
        queue_pair.to_error().expect("ERR");
        drop((queue_pair, memory, other, second));
    });
}
