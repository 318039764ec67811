//! The engine with a device that says what it is told to.
//!
//! # Safety
//! The device touches no memory.
#![allow(unsafe_code)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Instant,
};

use crate::{
    error::{Error, ErrorKind, Result},
    transport::accelerator::{
        Asked, Bell, CopyAttributes, CopyEnd, CopyEngine, CopyRequest, CopySink, DevicePlace,
        DeviceStream, Engine, Home, Owner, Queued, Reports, Route, Vendor,
    },
    types::MemoryType,
};

/// Whether the device has something to say.
#[derive(Debug, Default)]
struct Fake(Arc<AtomicBool>);

#[derive(Debug)]
struct FakeHome {
    stirred: Arc<AtomicBool>,
    /// Refused by `push`, for `flush` to report.
    refused: Vec<u64>,
}

impl Vendor for Fake {
    const NAME: &'static str = "fake_copy";
    const ATTRIBUTES: CopyAttributes = CopyAttributes {
        max_copy: 1 << 20,
        max_in_flight: 4,
        fragment: 1 << 10,
        pageable_from: Some(0),
    };
    type Home = FakeHome;
    type Mark = ();
    type Stream = ();

    fn first(&self) -> Result<Vec<u16>> {
        Ok(vec![0])
    }

    fn memory(_: u16) -> MemoryType {
        MemoryType::HostPinned
    }

    fn owner(&self, memory_type: MemoryType) -> Option<Owner> {
        match memory_type {
            MemoryType::HostPinned => Some(Owner::Device(0)),
            _ => None,
        }
    }

    fn open(&self, _: u16, _: &Arc<Bell>) -> Result<FakeHome> {
        Ok(FakeHome {
            stirred: Arc::clone(&self.0),
            refused: Vec::new(),
        })
    }

    fn join(&self, _: u16, _: u16) -> Result<()> {
        Ok(())
    }

    fn mark(&self, _: DevicePlace) -> Result<()> {
        Ok(())
    }

    fn stream(&self, _: DeviceStream) -> Result<((), u16)> {
        Ok(((), 0))
    }

    fn gave_up(&self) {}
}

impl Home for FakeHome {
    type Mark = ();
    type Stream = ();

    fn ordinal(&self) -> u16 {
        0
    }

    fn lost(&self) -> Option<&Error> {
        None
    }

    fn is_idle(&self) -> bool {
        self.refused.is_empty()
    }

    fn push(&mut self, _: Route, copy: Queued) {
        self.refused.push(copy.token);
    }

    fn flush(&mut self, reports: &mut Reports) {
        let refused = || Error::new(ErrorKind::InvalidArgument, "refused");
        let tokens = self.refused.drain(..);
        reports.extend(tokens.map(|token| (token, Err(refused()))));
    }

    fn goes_on(&self) -> bool {
        !self.refused.is_empty()
    }

    fn has_done(&self) -> bool {
        self.stirred.load(SeqCst) || !self.refused.is_empty()
    }

    fn collect(&mut self, _: &mut Reports) {
        self.stirred.store(false, SeqCst);
    }

    fn ask(&mut self, _: &mut Reports) -> Asked {
        Asked::Rings
    }

    fn check(&mut self, _: &mut Reports) {}

    fn has_gate(&self, (): &()) -> bool {
        false
    }

    fn after(&mut self, (): &(), _: u64, _: &mut Reports) -> Result<()> {
        Ok(())
    }

    fn give_up(&mut self, _: Error, _: &mut Reports) {}

    fn close(self, _: Instant) {}
}

#[derive(Default)]
struct Sink(Vec<u64>);

impl CopySink for Sink {
    fn copied(&mut self, token: u64, _: Result<()>) {
        self.0.push(token);
    }
    fn lost(&mut self, _: Error) {}
}

fn engine() -> (Engine<Fake>, Arc<AtomicBool>) {
    let stirred = Arc::default();
    let vendor = Arc::new(Fake(Arc::clone(&stirred)));
    (Engine::open(vendor).expect("an engine"), stirred)
}

fn begin(engine: &mut Engine<Fake>, token: u64) {
    let request = CopyRequest {
        from: CopyEnd::Host {
            address: std::ptr::dangling_mut(),
            pinned: false,
        },
        to: CopyEnd::Device {
            address: 1,
            memory_type: MemoryType::HostPinned,
        },
        length: 1,
        token,
        unstaged: false,
    };
    // SAFETY: nothing touches either end.
    unsafe { engine.copy(request) }.expect("taken");
}

#[test]
fn a_device_that_speaks_at_idle_keeps_nobody_awake() {
    let (mut engine, stirred) = engine();
    stirred.store(true, SeqCst);
    // `progress` does not ask a device at idle: then it may not refuse to be armed either.
    assert_eq!(engine.progress(8, &mut Sink::default()), 0);
    assert!(engine.arm());
    engine.disarm();
}

#[test]
fn whatever_refuses_to_be_armed_is_over_after_one_pass() {
    let (mut engine, stirred) = engine();
    let mut sink = Sink::default();
    begin(&mut engine, 7);
    stirred.store(true, SeqCst);
    // Not flushed: the pass does it.
    assert_eq!(engine.progress(8, &mut sink), 1);
    assert_eq!(sink.0, [7]);
    stirred.store(true, SeqCst);
    begin(&mut engine, 8);
    assert!(!engine.arm());
    assert_eq!(engine.progress(8, &mut sink), 1);
    assert!(engine.arm());
    engine.disarm();
    assert_eq!(sink.0, [7, 8]);
}
