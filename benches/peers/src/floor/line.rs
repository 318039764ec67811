//! A cache line that goes there and back between two spinning processes.

use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::Outcome;
use crate::half::{Half, LAST, Laps};
use crate::shared::Shared;

/// Nanoseconds one way.
pub(crate) fn bounce(half: &mut Half) -> Outcome<f64> {
    let shared = Shared::new(half, 4096)?;
    let (there, back) = (shared.word(0), shared.word(1));
    half.barrier()?;
    let mut turn = 0;
    if !half.is_a() {
        loop {
            let seen = there.load(Acquire);
            if seen == LAST {
                return Ok(0.0);
            }
            if seen != turn {
                turn = seen;
                back.store(turn, Release);
            }
            spin_loop();
        }
    }
    let mut laps = Laps::start(&half.spec);
    loop {
        for _ in 0..laps.batch() {
            turn += 1;
            there.store(turn, Release);
            while back.load(Acquire) != turn {
                spin_loop();
            }
        }
        if !laps.lap() {
            there.store(LAST, Release);
            return Ok(laps.median() / 2.0);
        }
    }
}
