//! Connections by address between two workers that may both dial: which one stands, and taking one that the peer made.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Poll, Waker},
};

use crate::{
    error::{Error, ErrorKind, Result},
    types::{EndpointId, LinkId, WorkerId},
    worker::{connect::wireup::Part, ctx::Ctx, peer::at, shared::Shared},
};

/// Counts one connection of a meeting in, and out again however it ends.
pub(super) struct Met<'a> {
    shared: &'a Shared,
    worker: WorkerId,
    part: Part,
}

impl<'a> Met<'a> {
    /// A dial. `None`: a connection of the peer's is being accepted already.
    pub(super) fn dials(shared: &'a Shared, worker: WorkerId) -> Option<Self> {
        Self::new(shared, worker, Part::Dials)
    }

    /// A request. `None`: this side's own connection is the one.
    pub(super) fn accepts(shared: &'a Shared, worker: WorkerId) -> Option<Self> {
        Self::new(shared, worker, Part::Accepts)
    }

    fn new(shared: &'a Shared, worker: WorkerId, part: Part) -> Option<Self> {
        let mut meetings = shared.wireup.meetings.lock();
        let meeting = meetings.entry(worker).or_default();
        let accepts = part == Part::Accepts;
        let against = if accepts { Part::Told } else { Part::Accepts };
        if *meeting.count(against) > 0 {
            return None;
        }
        meeting.crossed |= accepts && *meeting.count(Part::Dials) > 0 && shared.id > worker;
        *meeting.count(part) += 1;
        Some(Self {
            shared,
            worker,
            part,
        })
    }

    pub(super) fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Takes a connection that the peer makes while this side dials, whenever it stands.
    pub(super) async fn found(&self) -> (LinkId, EndpointId) {
        let mut waits = Waits::new(self.shared, self.worker);
        poll_fn(|cx| {
            waits.leave(cx.waker());
            claim(self.shared, self.worker).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Before a dial that has an answer tells the peer who this is. From there on the peer's own connections are turned away, as long as what this gives is
    /// there. The peer may be unreachable from here: before that it is not turned away. `None`: this side's connections give way to the peer's.
    /// Errors: `WouldBlock`: one of the peer's is being accepted, or stands. The next dial waits for that, without a place of the peer's listener, which would not wait
    /// as long.
    pub(super) fn tells(&self) -> Result<Option<Self>> {
        let (shared, worker) = (self.shared, self.worker);
        if shared.id > worker {
            return Ok(None);
        }
        match Self::new(shared, worker, Part::Told).filter(|_| !is_there(shared, worker)) {
            Some(told) => Ok(Some(told)),
            None => {
                let text = "the peer's own connection is being made";
                Err(Error::new(ErrorKind::WouldBlock, text))
            }
        }
    }

    pub(super) fn has_crossed(&self) -> bool {
        let meetings = self.shared.wireup.meetings.lock();
        meetings
            .get(&self.worker)
            .is_some_and(|meeting| meeting.crossed)
    }
}

impl Drop for Met<'_> {
    fn drop(&mut self) {
        let mut meetings = self.shared.wireup.meetings.lock();
        if let Some(meeting) = meetings.get_mut(&self.worker) {
            *meeting.count(self.part) -= 1;
            meeting.crossed &= *meeting.count(Part::Dials) > 0;
            if meeting.counts == [0; 3] {
                meetings.remove(&self.worker);
            }
        }
        drop(meetings);
        if self.part == Part::Accepts {
            // Who waited for it looks again, and dials if there is nothing.
            self.shared
                .with(|engine| engine.ctx().wake_arrivals(self.worker));
        }
    }
}

/// None is given twice, although the places of a peer go when nobody waits there.
static TICKETS: AtomicU64 = AtomicU64::new(0);

/// The place of one who waits for a connection of a peer's, among all who do.
struct Waits<'a> {
    shared: &'a Shared,
    worker: WorkerId,
    ticket: Option<u64>,
}

impl<'a> Waits<'a> {
    fn new(shared: &'a Shared, worker: WorkerId) -> Self {
        Self {
            shared,
            worker,
            ticket: None,
        }
    }

    fn leave(&mut self, waker: &Waker) {
        let ticket = &mut self.ticket;
        ticket.get_or_insert_with(|| TICKETS.fetch_add(1, Relaxed));
        let before = self.shared.with(|engine| {
            let waiters = engine.ctx().arrivals.entry(self.worker).or_default();
            waiters.leave(ticket, waker)
        });
        drop(before);
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            // A waker is the program's, and is dropped without the lock; in a fork's child the lock is as it was.
            let forgotten = self.shared.ask(|engine| {
                let arrivals = &mut engine.ctx().arrivals;
                let waiters = arrivals.get_mut(&self.worker)?;
                let forgotten = waiters.forget(ticket);
                if waiters.is_empty() {
                    arrivals.remove(&self.worker);
                }
                forgotten
            });
            drop(forgotten);
        }
    }
}

/// Waits for a connection that the peer makes. `None`: none is being made any more.
pub(super) async fn arrival(shared: &Shared, worker: WorkerId) -> Option<(LinkId, EndpointId)> {
    let coming = || {
        let mut meetings = shared.wireup.meetings.lock();
        let meeting = meetings.get_mut(&worker);
        meeting.is_some_and(|meeting| *meeting.count(Part::Accepts) > 0)
    };
    let mut waits = Waits::new(shared, worker);
    poll_fn(|cx| {
        if coming() {
            waits.leave(cx.waker());
            if coming() {
                return claim(shared, worker)
                    .map_or(Poll::Pending, |found| Poll::Ready(Some(found)));
            }
        }
        // One that was accepted could be claimed before it was counted out.
        Poll::Ready(claim(shared, worker))
    })
    .await
}

/// Takes a connection that the worker itself has made to this one.
pub(super) fn claim(shared: &Shared, worker: WorkerId) -> Option<(LinkId, EndpointId)> {
    shared.with(|engine| {
        let ctx = engine.ctx();
        let link = unclaimed(ctx, worker)?;
        ctx.forget_unclaimed(worker, link);
        let peer = ctx.peer(link)?;
        peer.handles += 1;
        peer.claimed = true;
        Some((link, peer.id))
    })
}

/// Whether there is one to take.
fn is_there(shared: &Shared, worker: WorkerId) -> bool {
    shared.with(|engine| unclaimed(engine.ctx(), worker).is_some())
}

fn unclaimed(ctx: &mut Ctx, worker: WorkerId) -> Option<LinkId> {
    let mut links = ctx.unclaimed.get(&worker)?.iter().copied();
    links.find(|link| at(&mut ctx.peers, *link).is_some_and(|peer| peer.is_open()))
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        pin::{Pin, pin},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        task::{Context as TaskContext, Wake},
        time::Duration,
    };

    use futures::future::poll_immediate;

    use super::*;
    use crate::{
        Context,
        protocol::WorkerAddress,
        sys::identity::identity,
        util::testing::run,
        worker::{
            Handle,
            connect::{Destination, address, connect},
        },
    };

    /// Two workers, of which the first gives way where both dial.
    fn two(transport: &str) -> [Arc<Handle>; 2] {
        let limit = Duration::from_secs(20);
        let context = Context::builder()
            .transports(transport)
            .and_then(|builder| builder.connect_timeout(limit).build());
        let context = context.expect("a context");
        let mut two = [(); 2].map(|()| Handle::start(&context).expect("a worker"));
        two.sort_by_key(|worker| std::cmp::Reverse(worker.shared.id));
        two
    }

    struct Counts(Arc<AtomicUsize>);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn counting(count: &Arc<AtomicUsize>) -> Waker {
        Arc::new(Counts(Arc::clone(count))).into()
    }

    /// How many connections a worker has, and how many of them somebody holds.
    fn connections(worker: &Handle) -> (usize, usize) {
        worker.shared.with(|engine| {
            let held = engine.ctx().connections().filter(|peer| peer.handles > 0);
            let held = held.count();
            (engine.ctx().connections().count(), held)
        })
    }

    /// Who gives up while its own connection stands, and may have to give way to the peer's, leaves none behind.
    #[test]
    fn a_dial_that_is_dropped_between_two_connections() {
        run(async {
            let [here, there] = two("shm");
            let to = address(&there.shared).expect("an address");
            let mut dial = Box::pin(connect(&here.shared, Destination::Worker(to)));
            assert!(poll_immediate(&mut dial).await.is_none());
            let met = Met::accepts(&here.shared, there.shared.id).expect("it gives way");
            while connections(&here) != (1, 1) {
                assert!(
                    poll_immediate(&mut dial).await.is_none(),
                    "it waits for the other"
                );
                tokio::task::yield_now().await;
            }
            drop(dial);
            assert_eq!(connections(&here).1, 0);
            drop(met);
            while connections(&here).0 > 0 {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Where a worker seems to be, and nobody answers.
    fn silent(worker: &Handle) -> (TcpListener, WorkerAddress) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let sockets = vec![listener.local_addr().expect("an address")];
        let tcp = vec!["tcp".to_owned()];
        let (id, identity) = (worker.shared.id, identity().clone());
        let address = WorkerAddress::new(id, identity, None, sockets, tcp, false);
        (listener, address.expect("an address"))
    }

    /// Until both hold one connection and have no other.
    async fn until_one(two: &[Arc<Handle>; 2]) {
        while two.iter().any(|worker| connections(worker) != (1, 1)) {
            tokio::task::yield_now().await;
        }
    }

    /// Both dial, and one does not reach the other.
    #[test]
    fn the_connection_that_comes_about_is_taken() {
        run(async {
            for reached in [0, 1] {
                let two = two("tcp");
                let (_listener, nowhere) = silent(&two[1 - reached]);
                let mut to = [(); 2].map(|()| nowhere.clone());
                to[1 - reached] = address(&two[reached].shared).expect("an address");
                let [first, second] = to.map(Destination::Worker);
                let (first, second) = tokio::join!(
                    connect(&two[0].shared, first),
                    connect(&two[1].shared, second)
                );
                first.expect("connected");
                second.expect("connected");
                until_one(&two).await;
            }
        });
    }

    /// Whoever is sooner, the two have the same one.
    #[test]
    fn both_dial_and_have_one_connection() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let rounds = async {
            for round in 0..60 {
                let two = two(if round % 2 == 0 { "shm" } else { "tcp" });
                let to = [1, 0].map(|other| address(&two[other].shared).expect("an address"));
                let dials = [0, 1].map(|own: usize| {
                    let (here, to) = (two[own].clone(), to[own].clone());
                    tokio::spawn(async move {
                        for _ in 0..(round + own * 7) % 11 {
                            tokio::task::yield_now().await;
                        }
                        connect(&here.shared, Destination::Worker(to)).await
                    })
                });
                for dial in dials {
                    dial.await.expect("no panic").expect("connected");
                }
                until_one(&two).await;
            }
        };
        let limit = Duration::from_secs(120);
        let rounds = async { tokio::time::timeout(limit, rounds).await };
        runtime.block_on(rounds).expect("it hangs");
    }

    /// Whoever's own connections stand waits for one of the peer's that is being accepted for as long as it takes, and longer than the peer's listener would wait.
    #[test]
    fn who_waits_for_the_peers_own_keeps_no_listener_waiting() {
        run(async {
            let context = Context::builder()
                .transports("shm")
                .map(|builder| builder.handshake_timeout(Duration::from_millis(200)))
                .and_then(|builder| builder.build());
            let context = context.expect("a context");
            let mut two = [(); 2].map(|()| Handle::start(&context).expect("a worker"));
            two.sort_by_key(|worker| worker.shared.id);
            let [here, there] = &two;
            let to = address(&there.shared).expect("an address");
            let mut dial = Box::pin(connect(&here.shared, Destination::Worker(to)));
            assert!(poll_immediate(&mut dial).await.is_none());
            let met = Met::accepts(&here.shared, there.shared.id).expect("not told yet");
            let wait = tokio::time::timeout(Duration::from_millis(700), &mut dial);
            wait.await.expect_err("it waits for the other");
            drop(met);
            dial.await.expect("nothing came of that");
        });
    }

    /// What comes of one peer wakes nobody who waits for another, and is no connection of that.
    #[test]
    fn arrivals_are_those_of_one_peer() {
        run(async {
            let [here, there] = two("shm");
            let (here, worker) = (&here.shared, there.shared.id);
            let others = [WorkerId([1; 16]), WorkerId([2; 16])];
            let mets = others.map(|other| Met::accepts(here, other).expect("nobody dials"));
            let count = Arc::new(AtomicUsize::new(0));
            let waker = counting(&count);
            let mut cx = TaskContext::from_waker(&waker);
            let mut waits = others.map(|other| Box::pin(arrival(here, other)));
            for wait in &mut waits {
                assert!(wait.as_mut().poll(&mut cx).is_pending());
            }
            let to = address(here).expect("an address");
            let made = connect(&there.shared, Destination::Worker(to)).await;
            made.expect("connected");
            while claim(here, worker).is_none() {
                tokio::task::yield_now().await;
            }
            assert_eq!(count.load(SeqCst), 0, "woken by another's");
            let [first, second] = mets;
            drop(first);
            assert_eq!(count.load(SeqCst), 1);
            assert!(waits[0].as_mut().poll(&mut cx).is_ready());
            drop(second);
            assert_eq!(count.load(SeqCst), 2);
            drop(waits);
            here.with(|engine| {
                let ctx = engine.ctx();
                assert!(ctx.arrivals.is_empty() && ctx.unclaimed.is_empty());
            });
        });
    }

    /// Who waits for a peer's connection has one place, however often it is polled, and leaves none.
    #[test]
    fn who_waits_for_an_arrival_has_one_place() {
        run(async {
            let [here, there] = two("shm");
            let (here, worker) = (&here.shared, there.shared.id);
            let met = Met::accepts(here, worker).expect("nobody dials");
            let places = || {
                here.with(|engine| {
                    let arrivals = engine.ctx().arrivals.values();
                    arrivals.map(|waiters| waiters.len()).sum::<usize>()
                })
            };
            {
                let mut waits = pin!(arrival(here, worker));
                let mut cx = TaskContext::from_waker(Waker::noop());
                for _ in 0..100 {
                    let polled = Pin::as_mut(&mut waits).poll(&mut cx);
                    assert!(polled.is_pending());
                }
                assert_eq!(places(), 1);
            }
            assert_eq!(places(), 0);
            drop(met);
        });
    }

    /// Whoever comes when all others were woken has a place that none of them takes.
    #[test]
    fn who_waits_anew_has_a_place_of_its_own() {
        run(async {
            let [here, there] = two("shm");
            let (here, worker) = (&here.shared, there.shared.id);
            let met = Met::accepts(here, worker).expect("nobody dials");
            let mut cx = TaskContext::from_waker(Waker::noop());
            let mut first = Box::pin(arrival(here, worker));
            let mut second = Box::pin(arrival(here, worker));
            assert!(first.as_mut().poll(&mut cx).is_pending());
            assert!(second.as_mut().poll(&mut cx).is_pending());
            here.with(|engine| engine.ctx().wake_arrivals(worker));
            drop(second);
            let mut third = Box::pin(arrival(here, worker));
            assert!(third.as_mut().poll(&mut cx).is_pending());
            assert!(first.as_mut().poll(&mut cx).is_pending());
            drop(first);
            let left = here.with(|engine| {
                let waiters = engine.ctx().arrivals.get(&worker);
                waiters.map_or(0, |waiters| waiters.len())
            });
            assert_eq!(left, 1);
            drop((third, met));
        });
    }
}
