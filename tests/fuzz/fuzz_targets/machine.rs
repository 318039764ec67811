//! The state machine of `tests/hostile`: bytes decide what a peer says and what the worker's program does.
#![no_main]

#[path = "../../hostile/link.rs"]
mod link;
#[path = "../../hostile/machine.rs"]
mod machine;
#[path = "../../hostile/peer.rs"]
mod peer;
#[path = "../../hostile/wire.rs"]
mod wire;

#[path = "../../hostile/heap.rs"]
mod heap;

use std::cell::Cell;

thread_local! {
    static BED: machine::Bed = machine::Bed::new(heap::bytes);
    /// Plays, and messages that were delivered in them.
    static PLAYED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let frames = BED.with(|bed| bed.play(bytes).frames);
    let (plays, all) = PLAYED.get();
    PLAYED.set((plays + 1, all + frames));
    // The last of these lines tells how much was played, as libFuzzer knows only of executions.
    if plays % 256 == 255 {
        eprintln!("machine: {} messages in {} plays", all + frames, plays + 1);
    }
});
