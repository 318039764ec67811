//! A ring of 64-byte cells with one producer and one consumer and nothing else.
//!
//! ```text
//! cell:  | sequence | payload | ... 64 bytes |     1024 cells
//! head:  how far the consumer has read, published every 64 messages
//! ```

use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::Outcome;
use crate::half::{Half, LAST, Laps};
use crate::shared::Shared;

const CELLS: u64 = 1024;
const CELL: usize = 64;
const RING: usize = 4096;
const PUBLISH_EVERY: u64 = 64;

/// Millions of 8-byte messages a second.
pub(crate) fn rate(half: &mut Half) -> Outcome<f64> {
    let shared = Shared::new(half, RING + CELL * CELLS as usize)?;
    let head = shared.word(0);
    let cell = |position: u64| RING + (position % CELLS) as usize * CELL;
    half.barrier()?;
    if !half.is_a() {
        let mut position = 0;
        loop {
            let at = cell(position);
            while shared.word_at(at).load(Acquire) != position + 1 {
                spin_loop();
            }
            let payload = shared.word_at(at + 8).load(Relaxed);
            position += 1;
            if position.is_multiple_of(PUBLISH_EVERY) || payload == LAST {
                head.store(position, Release);
            }
            if payload == LAST {
                return Ok(0.0);
            }
        }
    }
    let (mut position, mut read) = (0, 0);
    let mut push = |payload: u64| {
        while position - read == CELLS {
            read = head.load(Acquire);
        }
        let at = cell(position);
        shared.word_at(at + 8).store(payload, Relaxed);
        position += 1;
        shared.word_at(at).store(position, Release);
        position
    };
    let mut laps = Laps::with_batch(&half.spec, 10_000);
    loop {
        for n in 0..laps.batch() {
            push(n as u64);
        }
        if !laps.lap() {
            break;
        }
    }
    let end = push(LAST);
    while head.load(Acquire) != end {
        spin_loop();
    }
    Ok(1e3 / laps.mean())
}
