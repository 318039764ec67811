//! Peers that keep to nothing. A worker is told anything in any order by a peer that is the test, over a
//! transport of the test's own; see `machine`.
//!
//! Here a seeded generator decides, for some seconds: `HOSTILE_PLAYS` plays, `HOSTILE_SEED` the first one's
//! seed, which a failure prints. `tests/fuzz` has the same as a fuzz target.

mod heap;
mod link;
mod machine;
mod outside;
mod peer;
mod segment;
mod wire;

// Not all of it is used here.
#[allow(dead_code)]
#[path = "../api/stranger.rs"]
mod stranger;
#[path = "../support/mod.rs"]
mod support;

use std::{
    env,
    iter::StepBy,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use machine::Bed;

/// The next of a row of numbers that look drawn at random.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The choices of one play.
fn choices(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let length = 256 << (split_mix(&mut state) % 7);
    let words = (0..length / 8).flat_map(|_| split_mix(&mut state).to_le_bytes());
    words.collect()
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// Tells of a play that does not end, and ends it.
fn watch(playing: std::sync::Arc<AtomicU64>) {
    thread::spawn(move || {
        let (mut last, mut same) = (u64::MAX, 0);
        // Between looks: nobody unparks it.
        while std::sync::Arc::strong_count(&playing) > 1 {
            thread::park_timeout(Duration::from_secs(1));
            let now = playing.load(Relaxed);
            same = if now == last { same + 1 } else { 0 };
            last = now;
            if same > 60 {
                eprintln!("a step does not end: HOSTILE_SEED={now} HOSTILE_PLAYS=1");
                std::process::abort();
            }
        }
    });
}

/// For one that looks at the memory of the whole process; the others run side by side.
pub(crate) static ALONE: parking_lot::RwLock<()> = parking_lot::RwLock::new(());

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}

/// Seeds, dealt to players who play side by side. Most of a play is a wait: after lies of a certain
/// kind memory comes back when its peer is given up, after a second.
fn dealt(seeds: Range<u64>) -> impl Iterator<Item = StepBy<Range<u64>>> {
    const PLAYERS: u64 = 4;
    let firsts = seeds.start..seeds.end.min(seeds.start + PLAYERS);
    firsts.map(move |first| (first..seeds.end).step_by(PLAYERS as usize))
}

#[test]
fn nothing_a_peer_says_does_harm() {
    let _alone = ALONE.write();
    let plays = number("HOSTILE_PLAYS").unwrap_or(400);
    let first = number("HOSTILE_SEED").unwrap_or(1);
    let bed = Bed::new(heap::bytes);
    let began = Instant::now();
    let (mut frames, mut refused, mut received) = (0, 0, 0);
    let playing = std::sync::Arc::new(AtomicU64::new(first));
    watch(playing.clone());
    for seed in first..first + plays {
        playing.store(seed, Relaxed);
        let play = AssertUnwindSafe(|| bed.play(&choices(seed)));
        match panic::catch_unwind(play) {
            Ok(played) => {
                frames += played.frames;
                refused += u64::from(played.refused);
                received += played.received;
            }
            Err(panic) => {
                eprintln!("once more: HOSTILE_SEED={seed} HOSTILE_PLAYS=1");
                panic::resume_unwind(panic);
            }
        }
    }
    let each = frames as f64 / began.elapsed().as_secs_f64();
    eprintln!(
        "{frames} messages in {plays} plays, {each:.0} a second; {refused} peers found out, {received} receives checked"
    );
    // The generator says something worth hearing.
    assert!(frames > 10 * plays && received > plays / 4);
}
