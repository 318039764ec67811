#![allow(unsafe_code)]
//! T16: copies in order with the program's own streams.
//!
//! # Safety
//! Memory and streams are kept until all copies were reported.

use std::time::Instant;

use wharf::transport::{
    Accelerator, CopyEnd, CopyEngine, CopyRequest, CopySink, SendError, accelerator::DevicePlace,
};

use crate::{
    device::{self, Current, DEVICE, Kernels},
    suite::{Case, Verdict},
    support::{LIMIT, block_until},
};

#[derive(Debug, Default)]
struct Reported(Vec<(u64, wharf::Result<()>)>);

impl CopySink for Reported {
    fn copied(&mut self, token: u64, result: wharf::Result<()>) {
        self.0.push((token, result));
    }

    fn lost(&mut self, error: wharf::Error) {
        panic!("the device is lost: {error}");
    }
}

/// Polls until the one thing under way is reported.
fn drain(engine: &mut dyn CopyEngine, token: u64) {
    let mut reported = Reported::default();
    engine.flush();
    block_until("a report", || engine.progress(16, &mut reported) > 0);
    let [(found, result)] = &reported.0[..] else {
        panic!("{reported:?}");
    };
    assert_eq!(*found, token);
    result.as_ref().expect("done");
}

fn taken(result: Result<(), SendError>) {
    match result {
        Ok(()) => {}
        Err(SendError::Full) => panic!("full, with nothing under way"),
        Err(SendError::Failed(error)) => panic!("{error}"),
    }
}

/// A slow kernel writes, and the copy behind it must see that; without the order some copies do not.
pub(crate) fn user_streams(case: &mut Case) -> Verdict {
    const LEN: usize = 4096;
    let current = Current::enter();
    let kernels = Kernels::load(&current, case.emulated);
    let (stream, memory, host) = (current.stream(), current.alloc(LEN), current.pinned(LEN));
    let mut engine = device::accelerator().open().expect("an engine");
    let request = CopyRequest {
        from: CopyEnd::Device {
            address: memory,
            memory_type: DEVICE,
        },
        to: CopyEnd::Host {
            address: device::bytes(host, LEN).as_mut_ptr(),
            pinned: true,
        },
        length: LEN,
        token: 2,
        unstaged: false,
    };
    let tries = case.pick(10_000, 200);
    let mut stale = [0, 0];
    for round in 1..=tries {
        // Now and then without the order, to know that the kernel is slow enough.
        let ordered = round % 10 != 0;
        kernels.slow_fill(stream, 50 + round % 150, memory, LEN, round);
        if ordered {
            taken(engine.after(DevicePlace::from(device::handle(stream)), 1));
            drain(&mut *engine, 1);
        }
        // SAFETY: both ends are kept, and nothing else writes the host's.
        taken(unsafe { engine.copy(request) });
        drain(&mut *engine, 2);
        if device::bytes(host, LEN) != kernels.filled(LEN, round) {
            stale[usize::from(!ordered)] += 1;
        }
        current.wait(stream);
    }
    assert_eq!(stale[0], 0, "copies behind the stream that saw old bytes");
    assert!(
        stale[1] > 0,
        "the control never saw old bytes: the test shows nothing"
    );

    // The other way round: the stream waits for wharf's copy.
    for round in 0..tries / 10 {
        device::bytes(host, LEN).fill(round as u8);
        let request = CopyRequest {
            from: request.to,
            to: request.from,
            ..request
        };
        // SAFETY: as above; the stream's copy back waits for it.
        taken(unsafe { engine.copy(request) });
        match engine.then(device::handle(stream).into(), &[request.token]) {
            Ok(()) => {}
            Err(SendError::Full) => panic!("the device is open"),
            Err(SendError::Failed(error)) => {
                drain(&mut *engine, 2);
                case.without("streams that wait for a copy", error);
                break;
            }
        }
        current.copy(host, memory, LEN, stream);
        drain(&mut *engine, 2);
        current.wait(stream);
        let same = device::bytes(host, LEN)
            .iter()
            .all(|byte| *byte == round as u8);
        assert!(same, "the stream went before the copy");
    }
    case.figure("tries", f64::from(tries), "copies");
    case.figure("old bytes with the order", f64::from(stale[0]), "copies");
    case.figure("old bytes without", f64::from(stale[1]), "copies");
    engine.quiesce(Instant::now() + LIMIT);
    drop(engine);
    current.free(memory);
    current.free_pinned(host);
    current.raw.ok(current.raw.cuStreamDestroy_v2(stream));
    Verdict::Ran
}
