//! The engine by hand: what it promises to the worker.
//!
//! # Safety
//! The tests keep memory until its copies were reported, or the engine was dropped.
#![allow(unsafe_code)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use wharf::{
    Error, ErrorKind, MemoryType, Result,
    memory::{DomainMemory, MemoryDomain},
    transport::{Accelerator as _, CopyEnd, CopyEngine, CopyRequest, CopySink, SendError},
};

use crate::{
    machine::{DEVICE, DEVICE_RESET, Machine, OTHER},
    support::{LIMIT, block_until},
};

#[derive(Default)]
struct Sink {
    done: Vec<(u64, Result<()>)>,
    lost: Option<Error>,
}

impl CopySink for Sink {
    fn copied(&mut self, token: u64, result: Result<()>) {
        assert!(self.done.iter().all(|(known, _)| *known != token), "twice");
        assert!(self.lost.is_none(), "after the loss");
        self.done.push((token, result));
    }

    fn lost(&mut self, error: Error) {
        assert!(self.lost.is_none(), "told twice");
        self.lost = Some(error);
    }
}

struct Bench {
    machine: Machine,
    domain: Arc<dyn MemoryDomain>,
    engine: Box<dyn CopyEngine>,
    sink: Sink,
    device: Box<dyn DomainMemory>,
    other: Box<dyn DomainMemory>,
    host: Vec<u8>,
}

const ROOM: usize = 1 << 20;

impl Bench {
    fn new(settings: &[(&str, u64)]) -> Self {
        let machine = Machine::new(settings);
        let gaudi = machine.gaudi();
        gaudi.probe().expect("cards");
        let domain = gaudi.domain();
        Self {
            device: machine.allocate(&domain, DEVICE, ROOM),
            other: machine.allocate(&domain, OTHER, ROOM),
            engine: gaudi.open().expect("opens"),
            domain,
            sink: Sink::default(),
            host: (0..ROOM).map(|index| index as u8).collect(),
            machine,
        }
    }

    fn begin(&mut self, from: CopyEnd, to: CopyEnd, length: usize, token: u64) -> Result<()> {
        let request = CopyRequest {
            from,
            to,
            length,
            token,
            unstaged: false,
        };
        // SAFETY: see the module.
        match unsafe { self.engine.copy(request) } {
            Ok(()) => Ok(()),
            Err(SendError::Full) => Err(Error::new(ErrorKind::WouldBlock, "full")),
            Err(SendError::Failed(error)) => Err(error),
        }
    }

    fn host(&mut self, offset: usize) -> CopyEnd {
        CopyEnd::Host {
            address: self.host[offset..].as_mut_ptr(),
            pinned: false,
        }
    }

    fn device(&self, offset: u64) -> CopyEnd {
        CopyEnd::Device {
            address: self.device.range().start() + offset,
            memory_type: DEVICE,
        }
    }

    fn drain(&mut self, count: usize) {
        let start = Instant::now();
        while self.sink.done.len() < count {
            self.engine.progress(64, &mut self.sink);
            assert!(
                start.elapsed() < LIMIT,
                "{} of {count}",
                self.sink.done.len()
            );
        }
    }
}

#[test]
fn what_is_not_this_engines_is_refused_at_once() {
    let mut bench = Bench::new(&[]);
    let (here, there) = (bench.host(0), bench.host(4096));
    let device = bench.device(0);
    let foreign = CopyEnd::Device {
        address: 4096,
        memory_type: MemoryType::Cuda(0),
    };
    for (from, to, length) in [
        (here, there, 8),
        (here, device, 0),
        (here, device, usize::MAX),
        (here, foreign, 8),
    ] {
        let error = bench.begin(from, to, length, 1).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    // Addresses that no allocation has would be a fault of the card: each is an error of its copy.
    let end = bench.device.range().end();
    let wrong = |address, memory_type| CopyEnd::Device {
        address,
        memory_type,
    };
    let other = bench.other.range().start();
    let cases = [
        wrong(end - 4, DEVICE),
        wrong(end + (1 << 22), DEVICE),
        wrong(1, DEVICE),
        wrong(other, DEVICE),
    ];
    for (token, to) in (10..).zip(cases) {
        bench.begin(here, to, 8, token).expect("taken");
    }
    bench.engine.flush();
    bench.drain(cases.len());
    for (_, result) in bench.sink.done.drain(..) {
        assert_eq!(
            result.expect_err("nobody's").kind(),
            ErrorKind::InvalidArgument
        );
    }
    bench.machine.check();
}

#[test]
fn no_more_is_taken_than_may_be_under_way() {
    let mut bench = Bench::new(&[]);
    bench.machine.control("hold");
    let most = bench.engine.attributes().max_in_flight;
    for token in 0..most as u64 {
        let (from, to) = (bench.host(0), bench.device(token * 8));
        bench.begin(from, to, 8, token).expect("room");
    }
    let (from, to) = (bench.host(0), bench.device(0));
    let error = bench.begin(from, to, 8, 9999).expect_err("full");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    bench.engine.flush();
    // Registered, and as many submitted as may be: never as many as the ring has.
    block_until("the card is full", || {
        bench.engine.progress(64, &mut bench.sink);
        bench.machine.live("running") == 32
    });
    assert!(bench.sink.done.is_empty());
    bench.machine.control("release");
    bench.drain(most);
    assert!(bench.sink.done.iter().all(|(_, result)| result.is_ok()));
    bench.machine.check();
}

#[test]
fn another_engine_takes_its_turn_when_the_card_has_room_again() {
    let mut bench = Bench::new(&[]);
    let gaudi = bench.machine.gaudi();
    gaudi.probe().expect("cards");
    let mut second = gaudi.open().expect("opens");
    // Known to the cache.
    let ends = (bench.host(0), bench.device(0));
    bench.begin(ends.0, ends.1, ROOM, 0).expect("room");
    bench.engine.flush();
    bench.drain(1);
    bench.machine.control("hold");
    for token in 1..33 {
        bench.begin(ends.0, ends.1, 8, token).expect("room");
    }
    bench.engine.flush();
    block_until("the card is full", || bench.machine.live("running") == 32);
    let request = CopyRequest {
        from: ends.0,
        to: ends.1,
        length: 8,
        token: 7,
        unstaged: false,
    };
    // SAFETY: see the module.
    assert!(unsafe { second.copy(request) }.is_ok());
    second.flush();
    let mut sink = Sink::default();
    second.progress(64, &mut sink);
    assert!(sink.done.is_empty() && bench.machine.live("running") == 32);
    bench.machine.control("release");
    block_until("its turn", || {
        second.progress(64, &mut sink);
        !sink.done.is_empty()
    });
    bench.drain(33);
    bench.machine.check();
}

#[test]
fn a_parked_worker_is_woken() {
    use mio::{Events, Poll};
    let mut bench = Bench::new(&[("delay_us", 20_000)]);
    let mut poll = Poll::new().expect("a poll");
    let registry = poll.registry().try_clone().expect("a registry");
    let mut events = Events::with_capacity(8);
    bench
        .engine
        .register(wharf::transport::Registry::new(registry, 0))
        .expect("registered");
    for token in 0..20 {
        let (from, to) = (bench.host(0), bench.device(0));
        bench.begin(from, to, 1 << 17, token).expect("room");
        let start = Instant::now();
        while bench.sink.done.len() <= token as usize {
            if bench.engine.arm() {
                poll.poll(&mut events, Some(LIMIT)).expect("polled");
                assert!(!events.is_empty(), "nobody rang");
                for event in &events {
                    bench.engine.ready(event.token().0);
                }
            }
            bench.engine.disarm();
            bench.engine.progress(64, &mut bench.sink);
            assert!(start.elapsed() < LIMIT, "never");
        }
    }
}

#[test]
fn an_engine_that_is_dropped_waits_for_its_copies() {
    let mut bench = Bench::new(&[("delay_us", 30_000)]);
    for token in 0..10 {
        let (from, to) = (bench.host(0), bench.device(0));
        bench.begin(from, to, 5000, token).expect("room");
    }
    bench.engine.flush();
    bench.engine.quiesce(Instant::now() + LIMIT);
    bench.host.fill(0);
    assert_eq!(bench.machine.live("running"), 0);
    bench.drain(10);
    let (from, to) = (bench.host(0), bench.device(0));
    let error = bench.begin(from, to, 8, 99).expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

#[test]
fn a_card_that_does_not_end_its_work_is_closed_with_the_engine() {
    let mut bench = Bench::new(&[]);
    bench.machine.control("hold 0");
    let (from, to) = (bench.host(0), bench.device(0));
    bench.begin(from, to, 500_000, 5).expect("room");
    bench.engine.flush();
    block_until("it runs", || {
        bench.engine.progress(64, &mut bench.sink);
        bench.machine.live("running") > 0
    });
    let closed = bench.machine.calls("hlthunk_close");
    bench
        .engine
        .quiesce(Instant::now() + Duration::from_millis(300));
    assert_eq!(bench.machine.calls("hlthunk_close"), closed + 1);
    // A process that another test is just starting may have a copy of the descriptor.
    block_until("the other card alone", || {
        bench.machine.live("sessions") == 1
    });
    bench.drain(1);
    let (_, result) = bench.sink.done.pop().expect("reported");
    assert_eq!(result.expect_err("given up").kind(), ErrorKind::DeviceLost);
}

#[test]
fn an_engine_without_cards_is_lost() {
    let mut bench = Bench::new(&[]);
    let ends = |bench: &mut Bench| {
        let there = CopyEnd::Device {
            address: bench.other.range().start(),
            memory_type: OTHER,
        };
        [(bench.host(0), bench.device(0)), (bench.host(0), there)]
    };
    for (token, (from, to)) in (0..).zip(ends(&mut bench)) {
        bench.begin(from, to, 100, token).expect("taken");
    }
    bench.engine.flush();
    bench.drain(2);
    bench.machine.control("hold");
    for (token, (from, to)) in (2..).zip(ends(&mut bench)) {
        bench.begin(from, to, 1000, token).expect("taken");
    }
    bench.engine.flush();
    for card in 0..2 {
        bench
            .machine
            .control(&format!("break {card} {DEVICE_RESET}"));
    }
    block_until("the loss", || {
        bench.engine.progress(64, &mut bench.sink);
        bench.sink.lost.is_some()
    });
    assert_eq!(bench.sink.done.len(), 4);
    for (token, result) in &bench.sink.done {
        assert_eq!(result.is_err(), *token >= 2, "{token}: {result:?}");
    }
    for (from, to) in ends(&mut bench) {
        let error = bench.begin(from, to, 8, 9).expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    }
    assert!(!bench.domain.is_loaded());
}
