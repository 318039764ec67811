//! Faults that were seen once, each in a schedule of its own, and what a full window, a limit, a deadline or a liar comes to. `tests/SECURITY.md` names them.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{AmId, Endpoint, ErrorKind, Mask, Tag, config::Limits};

use super::{
    ALONE,
    bed::{Bed, KINDS, Plan},
    bytes::all_are,
    program::{Act, Fault, Step},
    run::Run,
    scenarios::{ANY, HERE, POSTED, ROOMY, THERE, act, of, recv, send},
    task::{Flag, What},
    wire::{Frame, Kind},
};

/// Messages of a link, by their ids.
const RTR: u8 = 4;
const FRAGMENT: u8 = 5;
const DONE: u8 = 6;
const GET: u8 = 11;

const PLAIN: u32 = 0x50;
const LONG: usize = 20_000;
const EAGER: usize = 4999;

fn over(kind: Kind) -> Run {
    Run::new(Bed::new(Plan::two(kind)))
}

fn limited(limits: fn(Limits) -> Limits) -> Run {
    let plan = Plan {
        limits,
        ..Plan::two(KINDS[0])
    };
    Run::new(Bed::new(plan))
}

/// Polls a future when it is woken, and lets everything happen in between.
#[track_caller]
fn drive<T>(run: &mut Run, future: impl Future<Output = T>) -> T {
    drive_while(run, future, Run::rest)
}

#[track_caller]
fn drive_while<T>(
    run: &mut Run,
    future: impl Future<Output = T>,
    mut between: impl FnMut(&mut Run),
) -> T {
    let runtime = run.bed.runtime.clone();
    let _inside = runtime.enter();
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    let mut future = pin!(future);
    loop {
        flag.take();
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        between(run);
        assert!(flag.is_woken(), "it was never woken");
    }
}

/// Polled once: whether it waits.
fn waits<T>(run: &Run, future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> bool {
    let _inside = run.bed.runtime.enter();
    let mut cx = Context::from_waker(Waker::noop());
    future.poll(&mut cx).is_pending()
}

fn endpoint(run: &Run, side: usize) -> Endpoint {
    run.bed.conns[0].ends[side].clone().expect("open")
}

fn rest(run: &mut Run) {
    run.play(&[Step::Rest]);
}

fn end(run: &mut Run) {
    run.play(&[Step::End]);
}

/// The tasks that are left.
fn left(run: &Run) -> Vec<What> {
    run.tasks.iter().map(|task| task.what).collect()
}

#[test]
fn unreceived_long_messages_hold_up_no_short_one() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        run.play(&[send(HERE, LONG, PLAIN); 100]);
        let short = act(Act::Send, [HERE, 0x100 | 1, of(8), PLAIN]);
        run.play(&[short, Step::Rest, recv(1, 1, ROOMY, POSTED), Step::Rest]);
        let received = run
            .shelf
            .borrow()
            .messages
            .last()
            .map(|message| message.received);
        assert_eq!(received, Some(1), "{}", kind.name);
        end(&mut run);
    }
}

/// Past the window messages wait at their sender, and none is lost, doubled or overtaken.
#[test]
fn a_full_window_is_waited_for() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        run.play(&[send(HERE, EAGER, PLAIN | 2); 300]);
        run.play(&[Step::Rest]);
        assert!(run.tasks.len() > 50, "{} of 300 wait", run.tasks.len());
        run.play(&[recv(1, ANY, ROOMY, POSTED); 150]);
        end(&mut run);
        run.look_at_windows(HERE);
    }
}

#[test]
fn announcements_are_waited_for() {
    let _others = ALONE.read();
    let mut run = over(KINDS[0]);
    run.play(&[send(HERE, 5000, PLAIN | 2); 4200]);
    rest(&mut run);
    let held = run.bed.nodes[1].worker.metrics().held;
    assert_eq!(held.unexpected_messages, 4096);
    // Whether their futures are dropped or not, all come.
    run.play(&[Step::Drop(0); 100]);
    end(&mut run);
    run.look_at_windows(HERE);
}

#[test]
fn credits_are_waited_for() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        run.play(&[act(Act::Am, [HERE, 0, of(200), 2]); 50]);
        // Another id has credits of its own.
        run.play(&[
            act(Act::Am, [HERE, 1, of(LONG), 2]),
            act(Act::Inbox, [1, 1, 4, 0]),
        ]);
        rest(&mut run);
        let waits = left(&run);
        assert!(
            waits.len() > 25
                && waits
                    .iter()
                    .all(|what| matches!(what, What::Am(n) if *n < 50))
        );
        end(&mut run);
        run.look_at_windows(HERE);
    }
}

/// A write waits when as much as a window is unread, and goes on when a part of that is read.
#[test]
fn what_is_read_of_a_stream_makes_room() {
    const WINDOW: usize = 512 << 10;
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        let (near, far) = (endpoint(&run, 0), endpoint(&run, 1));
        let mut writer = drive(&mut run, near.stream()).expect("opened");
        let mut reader = drive(&mut run, far.accept_stream()).expect("accepted");
        rest(&mut run);
        let written = std::rc::Rc::new(std::cell::Cell::new(0));
        let count = written.clone();
        let write = async move {
            loop {
                writer.write_all(&[7; 4096]).await.expect("open");
                count.set(count.get() + 4096);
            }
        };
        let mut write: Pin<Box<dyn Future<Output = ()>>> = Box::pin(write);
        let (mut read, mut part) = (0, vec![0; WINDOW / 2]);
        for _ in 0..4 {
            for _ in 0..200 {
                assert!(waits(&run, write.as_mut()));
                rest(&mut run);
            }
            let unread = written.get() - read;
            assert!(
                unread >= WINDOW - (WINDOW / 4),
                "{}: waits with {unread} unread",
                kind.name
            );
            assert!(unread <= WINDOW + (128 << 10), "{unread} unread");
            read += drive(&mut run, reader.read_exact(&mut part)).expect("open");
            assert!(all_are(&part, 7));
        }
        drop((write, reader));
        end(&mut run);
    }
}

/// Short writes are gathered where sending costs a system call. One that found no room for that goes on when some of what was gathered has left, also
/// where the rest of that waits for the reader.
#[test]
fn a_write_goes_on_when_a_full_link_has_room() {
    let _others = ALONE.read();
    let mut run = over(KINDS[1]);
    // 119,960 bytes in pieces of 1000, of which 64 KiB may leave before the stream is accepted.
    let open = act(Act::Open, [HERE, of(2999), 999, 0]);
    run.play(&[Step::Room(HERE, 2), open, Step::Rest]);
    assert_eq!(left(&run), []);
    end(&mut run);
}

#[test]
fn after_ones_own_close_calls_say_closed() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        run.bed.conns[0].is_faulty = true;
        let (near, far) = (endpoint(&run, 0), endpoint(&run, 1));
        drive(&mut run, near.close()).expect("closed");
        let error = drive(&mut run, near.tag_send(1, "late")).expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::Closed);
        let error = drive(&mut run, far.tag_send(1, "late")).expect_err("closed there");
        assert_eq!(error.kind(), ErrorKind::ClosedByPeer);
        drop((near, far));
        end(&mut run);
    }
}

/// Both close before they hear of each other.
#[test]
fn both_ends_close_at_once() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        let close = |side| Step::Fault(Fault::Close, [side, 0]);
        run.play(&[
            send(HERE, LONG, PLAIN),
            send(THERE, 200, PLAIN),
            close(HERE),
            close(THERE),
        ]);
        rest(&mut run);
        assert_eq!(left(&run), [], "they wait for each other");
        end(&mut run);
    }
}

/// What is announced and nobody has received ends at its sender when the peer closes.
#[test]
fn what_is_announced_ends_when_the_peer_closes() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        run.play(&[
            send(HERE, LONG, PLAIN),
            act(Act::Am, [HERE, 0, of(LONG), 0]),
            send(HERE, 200, 0x40),
            Step::Rest,
        ]);
        assert_eq!(run.tasks.len(), 3);
        run.play(&[Step::Fault(Fault::Close, [THERE, 0]), Step::Rest]);
        assert_eq!(left(&run), [], "it waits for who is gone");
        end(&mut run);
    }
}

/// Whoever waits for a message or a counter is told that its worker is shut down, though nobody waits for the end of that.
#[test]
fn a_shut_down_that_is_dropped_wakes_who_waits() {
    let _others = ALONE.read();
    let mut run = over(KINDS[0]);
    run.play(&[
        act(Act::Inbox, [1, 0, 4, 0]),
        act(Act::Wait, [1, 1, 0, 0]),
        act(Act::Wait, [1, 2, 0, 0]),
    ]);
    // The wait for one more, and that for two.
    let before = run.tasks.len();
    run.play(&[
        Step::Fault(Fault::Shutdown, [1, 0]),
        Step::Drop(before as u32),
        Step::Rest,
    ]);
    assert_eq!(left(&run), []);
    end(&mut run);
}

/// The peer says of what has not come that it is complete.
#[test]
fn what_never_came_is_no_message() {
    let _others = ALONE.read();
    for fragments in [0, 1, 2] {
        let mut run = over(KINDS[0]);
        run.play(&[recv(1, ANY, ROOMY, POSTED), send(HERE, LONG, PLAIN)]);
        run.play(&[Step::Arrive(HERE, 0), Step::Pass(1)]);
        let op = {
            let wire = run.bed.conns[0].wire.lock();
            let ready = wire.ways[1].flight.iter().find(|frame| frame.id == RTR);
            let ready = ready.expect("an answer");
            u64::from_le_bytes(*ready.body.first_chunk().expect("a word"))
        };
        run.play(&[Step::Arrive(THERE, 0), Step::Pass(0)]);
        lie(&mut run, 0, |frames| {
            frames.retain(|frame| frame.id == FRAGMENT);
            frames.truncate(fragments);
            frames.push(Frame::new(DONE, op, 0, Vec::new()));
        });
    }
    let mut run = over(KINDS[0]);
    run.play(&[act(Act::Get, [THERE, 0, of(LONG), 0])]);
    let op = {
        let wire = run.bed.conns[0].wire.lock();
        let asks = wire.ways[1].flight.iter().find(|frame| frame.id == GET);
        asks.expect("a request").header
    };
    run.play(&[Step::Arrive(THERE, 0), Step::Pass(0)]);
    lie(&mut run, 0, |frames| {
        frames.truncate(1);
        frames.push(Frame::new(DONE, op, 0, Vec::new()));
    });
}

/// Changes what is on its way, after which the other end has found its peer out, and nothing that this was about has ended well.
fn lie(run: &mut Run, side: usize, change: impl FnOnce(&mut Vec<Frame>)) {
    {
        let conn = &mut run.bed.conns[0];
        (conn.is_hostile, conn.is_faulty) = (true, true);
        let wire = &mut conn.wire.lock();
        let mut frames = wire.ways[side].flight.drain(..).collect();
        change(&mut frames);
        wire.ways[side].arrived.extend(frames);
    }
    let node = run.bed.conns[0].nodes[1 - side];
    let waits = |run: &Run| run.tasks.iter().filter(|task| task.node == node).count();
    let before = waits(run);
    assert!(before > 0);
    run.play(&[Step::Pass(node as u32 | 0x1_0000)]);
    assert!(
        run.bed.conns[0].wire.lock().refused[1 - side],
        "the lie was believed"
    );
    assert_eq!(waits(run), before, "it ended by a lie");
    run.shelf.borrow_mut().is_hostile = true;
    end(run);
}

/// A long message that no verb has is refused by its head, and not put together first.
#[test]
fn long_messages_that_nobody_knows_are_not_buffered() {
    let _others = ALONE.read();
    let mut run = over(KINDS[1]);
    let mut buffered = Vec::new();
    for id in 0..=255 {
        if run.bed.conns.is_empty() {
            run.bed.connect();
        }
        let conn = &mut run.bed.conns[0];
        (conn.is_hostile, conn.is_faulty) = (true, true);
        run.shelf.borrow_mut().is_hostile = true;
        let conn = &mut run.bed.conns[0];
        let frame = Frame::new(id, 7, 0, vec![0; 1 << 20]);
        conn.wire.lock().ways[0].arrived.push_back(frame);
        run.play(&[Step::Pass(1 | 0x1_0000)]);
        if run.bed.conns[0].wire.lock().ways[0].buffered > 0 {
            buffered.push(id);
        }
        end(&mut run);
    }
    assert!(buffered.len() < 6, "the messages {buffered:?}");
}

/// Half of a message that nobody has asked for counts as if it were there.
#[test]
fn half_a_message_is_charged() {
    let _others = ALONE.read();
    let mut run = over(KINDS[1]);
    run.play(&[
        send(HERE, EAGER, PLAIN),
        Step::Flow(HERE, 1),
        Step::Arrive(HERE, 0),
        Step::Pass(1),
    ]);
    let held = run.bed.nodes[1].worker.metrics().held;
    assert!(held.unexpected_bytes >= EAGER as u64, "{held:?}");
    run.play(&[Step::Fault(Fault::Cut, [HERE, 1]), Step::Rest]);
    let held = run.bed.nodes[1].worker.metrics().held;
    assert_eq!(held.unexpected_bytes, 0, "{held:?}");
    end(&mut run);
}

/// Messages stay when their connection is over, and count for who has sent them until they are received.
#[test]
fn what_connections_leave_is_bounded() {
    const LIMIT: u64 = 100_000;
    let _others = ALONE.read();
    let mut run = limited(|limits| limits.each_source(|quota| quota.unexpected_bytes(100_000)));
    for _ in 0..6 {
        run.play(&[send(HERE, EAGER, PLAIN); 8]);
        run.play(&[
            Step::Arrive(HERE, 0),
            Step::Pass(1),
            Step::Pass(1),
            Step::Pass(1),
        ]);
        let held = run.bed.nodes[1].worker.metrics().held;
        assert!(held.unexpected_bytes <= LIMIT, "{held:?}");
        run.play(&[
            Step::Fault(Fault::Cut, [HERE, 0]),
            Step::Fault(Fault::Cut, [THERE + 1, 0]),
            Step::Rest,
        ]);
        for task in std::mem::take(&mut run.tasks) {
            drop(task);
        }
        for conn in &mut run.bed.conns {
            (conn.ends, conn.remotes, conn.counters) = Default::default();
        }
        rest(&mut run);
        run.bed.conns.clear();
        run.bed.connect();
        // The books are of connections that are gone.
        run.shelf = Default::default();
    }
    let metrics = run.bed.nodes[1].worker.metrics();
    assert!(
        metrics.held.unexpected_bytes > LIMIT / 2,
        "{:?}",
        metrics.held
    );
    assert!(
        metrics.refused.source.unexpected_bytes > 0,
        "{:?}",
        metrics.refused
    );
    let worker = run.bed.nodes[1].worker.clone();
    while worker.tag_probe(Tag(0), Mask(0)).is_some() {
        let received = drive(
            &mut run,
            worker.tag_recv(Tag(0), vec![0; EAGER]).mask(Mask(0)),
        );
        assert_eq!(received.expect("it is here").len, EAGER);
    }
    end(&mut run);
}

/// As many streams wait to be accepted as may; others are refused alone, and nothing is left of them.
#[test]
fn streams_that_nobody_accepts_are_bounded() {
    let _others = ALONE.read();
    let mut run = limited(|limits| limits.each_connection(|quota| quota.unaccepted_streams(4)));
    // Their writers are told.
    run.bed.conns[0].is_faulty = true;
    run.play(&[act(Act::Open, [HERE, of(9000), 0xc0_0000 | 999, 0]); 12]);
    rest(&mut run);
    let metrics = run.bed.nodes[1].worker.metrics();
    assert_eq!(metrics.held.unaccepted_streams, 4);
    assert_eq!(metrics.refused.connection.unaccepted_streams, 8);
    run.play(&[
        send(HERE, 200, PLAIN),
        recv(1, ANY, ROOMY, POSTED),
        Step::Rest,
    ]);
    assert_eq!(
        run.shelf.borrow().messages[0].received,
        1,
        "the connection goes on"
    );
    end(&mut run);
}

/// Of gets whose answers nobody reads as many are served as may be.
#[test]
fn gets_that_nobody_reads_are_bounded() {
    let _others = ALONE.read();
    let mut run = limited(|limits| limits.each_connection(|quota| quota.requests(4)));
    run.bed.conns[0].is_faulty = true;
    let region = run.bed.conns[0].remotes[0].clone().expect("imported");
    let near = endpoint(&run, 0);
    let gets = (0..40).map(|_| {
        let (near, region) = (near.clone(), region.slice(..LONG));
        async move { near.get(region, vec![0; LONG]).await.map(|_| ()) }
    });
    let mut gets: Vec<_> = gets.map(Box::pin).collect();
    run.bed.conns[0].wire.lock().ways[1].room = 1;
    for get in &mut gets {
        assert!(waits(&run, get.as_mut()));
    }
    let mut most = 0;
    for _ in 0..50 {
        run.play(&[Step::Arrive(HERE, 0), Step::Pass(1)]);
        most = most.max(run.bed.nodes[1].worker.metrics().held.requests);
    }
    assert!((1..=4).contains(&most), "{most} requests are served");
    let mut ended = [0, 0];
    for get in gets {
        let result = drive(&mut run, get);
        ended[usize::from(result.is_err())] += 1;
    }
    assert!(ended[0] >= 4 && ended[1] > 0, "{ended:?}");
    let metrics = run.bed.nodes[1].worker.metrics();
    assert_eq!(metrics.held.requests, 0);
    assert_eq!(metrics.refused.connection.requests, ended[1]);
    drop((near, region));
    end(&mut run);
}

/// What this side wants to say is its own affair, however much of it waits.
#[test]
fn own_messages_that_wait_cut_nobody_off() {
    const MANY: usize = 33_000;
    let _others = ALONE.read();
    let mut run = over(KINDS[0]);
    run.bed.conns[0].wire.lock().ways[0].room = 1;
    let near = endpoint(&run, 0);
    let counter = run.bed.conns[0].counters[0].clone().expect("imported");
    let before = run.bed.nodes[1].counter.value();
    let mut waiting = 0;
    for _ in 0..MANY {
        let raise = near.signal(&counter, 1);
        let mut raise = pin!(raise);
        // Dropped, it happens all the same.
        waiting += usize::from(waits(&run, raise.as_mut()));
    }
    assert!(waiting > MANY - 10, "{waiting}");
    run.play(&[Step::Pass(0), Step::Pass(1), Step::Rest]);
    assert_eq!(run.bed.nodes[1].counter.value() - before, MANY as u64);
    run.forget_words();
    end(&mut run);
}

/// A waker that panics ends nobody else's wait.
#[test]
fn a_waker_that_panics_takes_nobody_along() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as it is meant to");
        }
    }
    let _others = ALONE.read();
    let mut run = over(KINDS[0]);
    let worker = run.bed.nodes[1].worker.clone();
    let mut first = pin!(worker.tag_recv(Tag(9), vec![0; 8]));
    let waker = Waker::from(Arc::new(Panics));
    {
        let _inside = run.bed.runtime.enter();
        assert!(
            first
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    run.play(&[recv(1, 0, ROOMY, 2)]);
    let near = endpoint(&run, 0);
    drive(&mut run, near.tag_send(9, vec![1; 8])).expect("sent");
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    run.play(&[
        act(Act::Send, [HERE, 0x100, of(200), PLAIN]),
        Step::Arrive(HERE, 0),
        Step::Pass(1),
        Step::Pass(1),
        Step::Rest,
    ]);
    std::panic::set_hook(told);
    assert_eq!(left(&run), [], "the other receive has its message");
    assert!(!waits(&run, first), "and this one too");
    drop(near);
    end(&mut run);
}

/// What is polled once, with Tokio's budget spent, and dropped has begun.
#[test]
fn what_is_dropped_with_the_budget_spent_happens() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        let near = endpoint(&run, 0);
        let region = run.bed.conns[0].remotes[0].clone().expect("imported");
        run.bed.nodes[1].shadow[..8].fill(3);
        let runtime = run.bed.runtime.clone();
        runtime.block_on(std::future::poll_fn(|cx| {
            while tokio::task::coop::has_budget_remaining() {
                let _ = pin!(tokio::task::consume_budget()).poll(cx);
            }
            let _ = pin!(near.put(vec![3; 8], region.slice(..8))).poll(cx);
            for length in [8, LONG] {
                let _ = pin!(near.tag_send(1, vec![length as u8; length])).poll(cx);
            }
            let _ = pin!(near.am_send(AmId(0), vec![1], vec![2; LONG])).poll(cx);
            Poll::Ready(())
        }));
        let worker = run.bed.nodes[1].worker.clone();
        for length in [8, LONG] {
            let received = drive(&mut run, worker.tag_recv(Tag(1), vec![0; LONG]));
            let received = received.expect("a message");
            assert_eq!(received.len, length);
            assert!(all_are(&received.buffer[..length], length as u8));
        }
        let inbox = run.bed.nodes[1].inboxes[0].clone();
        let mut inbox = inbox.borrow_mut().take().expect("an inbox");
        let message = drive(&mut run, inbox.recv()).expect("a message");
        let bytes = drive(&mut run, message.bytes()).expect("its bytes");
        assert_eq!(bytes[..], [2; LONG]);
        *run.bed.nodes[1].inboxes[0].borrow_mut() = Some(inbox);
        drop((near, region));
        // The put is looked at.
        end(&mut run);
    }
}

/// A deadline ends a wait, and what was waited for is there afterwards, or never was.
#[test]
fn deadlines_pass_in_virtual_time() {
    const LATER: Duration = Duration::from_secs(3600);
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        let (near, worker) = (endpoint(&run, 0), run.bed.nodes[1].worker.clone());
        let runtime = run.bed.runtime.clone();
        runtime.block_on(async { tokio::time::pause() });
        let pass = |run: &mut Run| {
            rest(run);
            run.bed
                .runtime
                .clone()
                .block_on(tokio::time::advance(2 * LATER));
        };
        let receive = worker.tag_recv(Tag(1), vec![0; 8]).deadline(LATER);
        let error = drive_while(&mut run, receive, pass).expect_err("nobody sends");
        let (error, buffer) = error.into_parts();
        assert_eq!(
            (error.kind(), buffer),
            (ErrorKind::DeadlineExceeded, Some(vec![0; 8]))
        );
        for length in [8, LONG] {
            let send = near.tag_send(1, vec![5; length]).sync().deadline(LATER);
            let error = drive_while(&mut run, send, pass).expect_err("nobody receives");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        }
        // What was called off in time is gone, what was not is whole.
        rest(&mut run);
        while worker.tag_probe(Tag(0), Mask(0)).is_some() {
            let received = drive(
                &mut run,
                worker.tag_recv(Tag(0), vec![0; LONG]).mask(Mask(0)),
            );
            let received = received.expect("it is here");
            assert!(all_are(&received.buffer[..received.len], 5));
        }
        runtime.block_on(async { tokio::time::resume() });
        drop(near);
        end(&mut run);
    }
}

/// A connection that nobody holds is over in time, though the peer hears of no close.
#[test]
fn a_peer_that_answers_no_close_is_cut_off() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        let (runtime, worker) = (run.bed.runtime.clone(), run.bed.nodes[0].worker.clone());
        runtime.block_on(async { tokio::time::pause() });
        let held = || worker.metrics().held.connections;
        let before = held();
        run.play(&[Step::Fault(Fault::Leave, [HERE, 0])]);
        let mut passes = |time| {
            run.play(&[Step::Pass(0), Step::Pass(0)]);
            runtime.block_on(async {
                // What was begun asks for the time before it passes.
                tokio::task::yield_now().await;
                tokio::time::advance(time).await;
            });
        };
        passes(Duration::from_secs(30));
        assert_eq!(held(), before, "it may answer still");
        passes(Duration::from_secs(3600));
        passes(Duration::ZERO);
        assert_eq!(held(), before - 1);
        runtime.block_on(async { tokio::time::resume() });
        end(&mut run);
    }
}

/// A peer raises a counter in memory, and its link breaks before it can say that somebody sleeps there.
#[test]
fn a_counter_that_was_raised_by_who_is_gone_wakes() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        // The counter's memory is mapped by then.
        run.play(&[act(Act::Wait, [1, 1, 0, 0]), Step::Rest]);
        assert_eq!(left(&run), [What::Wait], "nobody has raised it");
        let lost = Step::Fault(Fault::Cut, [0, 3]);
        run.play(&[lost, act(Act::Signal, [HERE, 0, 0, 0]), Step::Rest]);
        let waits = left(&run).contains(&What::Wait);
        assert_eq!(waits, !kind.shares, "over {}", kind.name);
        end(&mut run);
    }
}

/// Who waits for room, or for the end of a connection, is woken by it.
#[test]
fn who_waits_for_room_or_the_end_is_woken() {
    let _others = ALONE.read();
    for kind in KINDS {
        let mut run = over(kind);
        run.bed.conns[0].wire.lock().ways[0].room = 1;
        run.play(&[send(HERE, 200, PLAIN | 2); 20]);
        let near = endpoint(&run, 0);
        let far = endpoint(&run, 1);
        {
            let mut ready = pin!(near.ready());
            assert!(waits(&run, ready.as_mut()), "with 19 in front");
            drive(&mut run, ready).expect("room");
        }
        run.play(&[recv(1, ANY, ROOMY, POSTED); 20]);
        rest(&mut run);
        assert_eq!(left(&run), []);
        run.bed.conns[0].is_faulty = true;
        let closed = far.closed();
        let reason = drive_while(&mut run, closed, |run| {
            near.abort();
            rest(run);
        });
        assert_eq!(reason.kind(), ErrorKind::AbortedByPeer);
        drop(near);
        drop(far);
        end(&mut run);
    }
}
