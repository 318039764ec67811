//! Two workers, or five, over scripted links, in one thread: programs of everything that an endpoint does, under schedules that a seed makes.
//!
//! | file | holds |
//! |---|---|
//! | `wire` | a transport whose links let arrive what a script says, when it says so |
//! | `bed`, `task` | workers and their connections; futures, polled by hand when they were woken |
//! | `program` | steps: what is begun, what happens, what goes wrong; made of a seed, and made fewer where they fail |
//! | `run` | does them, and says what must hold |
//! | `books` | what was begun and what came of it |
//! | `scenarios` | 45 things that an endpoint does, under 15 kinds of schedules: 675 |
//! | `protocol` | faults that were seen once, full windows, limits, deadlines, liars |
//!
//! Nothing here sleeps, waits for a socket or starts a thread once connections stand, and time stands still but where a scenario has it pass.
//!
//! `SCHEDULES` says how many random programs are played, `SCHEDULES_SEED` the first seed, which a failure prints, with the fewest steps that fail and what
//! they did; `SCHEDULES_ALL=1` has scenarios take every step also where the code is not optimised. By hand:
//! `SCHEDULES=10_000_000 cargo test --release --test schedules -- --nocapture random`, which takes forty minutes of one processor where the allocator keeps
//! long blocks (glibc's, with `MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_TOP_PAD_=100000000`), and half as much again
//! elsewhere.
//!
//! That it can fail was tried with wharf broken on purpose, one way at a time; the tests that found it, and in how many steps random programs did:
//!
//! | broken | found by |
//! |---|---|
//! | a flush, or a send, that is over wakes nobody | random (2), 7 of `scenarios` |
//! | the window of eager messages is not given back | random (a group), `a_full_window_is_waited_for` |
//! | credits of active messages are not given back | random (a group), 5 of `scenarios` |
//! | the window of a stream is not given back | random (1), 7 of `scenarios` |
//! | a message is delivered twice | random (1), 5 of `protocol` |
//! | a dropped receive gives its memory back while a payload lands there | random (6), `dropped_while_it_comes` |
//! | a message that is given back comes behind those that came after it | random (8) |
//! | what a served request was charged stays | random (2), 7 of `scenarios` |
//! | a put is acknowledged and not written, or written a byte too far | random (1), 7 of `scenarios` |
//! | a fence waits for nothing | random (3), 4 of `scenarios` |
//! | a message is called off, and said to be, that a receive has taken | random (3) |
//! | room on a link is not heeded | random (5), `with_little_room`, 3 of `protocol` |
//! | what was announced to a peer that closes does not end | random (3), 2 of `protocol`, 3 of `scenarios` |
//! | the record of a connection that is over is kept | `nothing_is_kept_for_who_is_gone` |

mod bed;
mod books;
// Not all of it is used here.
#[allow(dead_code)]
#[path = "../support/bytes.rs"]
mod bytes;
// Not all of it is used here.
#[allow(dead_code, unsafe_code)]
#[path = "../cancel/guarded.rs"]
mod guarded;
#[path = "../hostile/heap.rs"]
mod heap;
mod program;
mod protocol;
mod run;
mod scenarios;
mod task;
mod wire;

use std::{
    env,
    panic::{self, AssertUnwindSafe},
    sync::atomic::Ordering::Relaxed,
    time::Instant,
};

use bed::{Bed, KINDS, Plan};
use books::Seen;
use program::{Fault, Sort, Step, program, shrink, split_mix};
use run::Run;

/// Programs that one connection serves.
const GROUP: u64 = 16;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.replace('_', "").parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The group of programs of a seed: what its bed is like, and its steps.
fn group(seed: u64) -> (Plan, Sort, Vec<Step>) {
    let mut state = seed ^ 0x6_0000;
    let roll = split_mix(&mut state);
    let (sort, programs) = match roll >> 16 & 7 {
        0 | 1 => (Sort::Hostile, 1),
        2..=4 => (Sort::Faulty, 1),
        _ => (Sort::Fair, GROUP),
    };
    let kind = match KINDS[roll as usize % KINDS.len()] {
        // What names an address would be believed: it is this process's own.
        kind if kind.shares && sort == Sort::Hostile => KINDS[0],
        kind => kind,
    };
    let plan = match roll >> 8 & 7 {
        0 => Plan::five(kind),
        _ => Plan::two(kind),
    };
    let steps = (0..programs).flat_map(|_| program(split_mix(&mut state), sort));
    (plan, sort, steps.collect())
}

/// Plays a group; in the end windows are whole.
fn play_on(run: &mut Run, seed: u64, sort: Sort, steps: &[Step]) {
    run.trace = 0;
    run.play(steps);
    if sort == Sort::Fair {
        run.look_at_windows(seed as u32);
    }
}

/// On a bed of its own.
fn play(seed: u64, steps: &[Step]) -> Run {
    let (plan, sort, _) = group(seed);
    let mut run = Run::new(Bed::new(plan));
    play_on(&mut run, seed, sort, steps);
    run
}

/// Why a program fails, if it does. What follows its last step is part of it.
fn fails(seed: u64, steps: &[Step]) -> Option<String> {
    let mut steps = steps.to_vec();
    if steps.last() != Some(&Step::End) {
        steps.push(Step::End);
    }
    let steps = &steps;
    let played = panic::catch_unwind(AssertUnwindSafe(|| drop(play(seed, steps))));
    let said = played.err()?;
    let text = said.downcast_ref::<String>().cloned();
    let text = text.or_else(|| said.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    Some(text.unwrap_or_default())
}

/// Tells of a failure in as few steps as it takes.
fn explain(seed: u64, steps: Vec<Step>, since: u64) {
    eprintln!("once more: SCHEDULES_SEED={seed} SCHEDULES=1");
    // What fails once more need not be told each time.
    let told = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    // The beginning, in which there are no numbers as yet.
    let kind = |text: String| {
        text.chars()
            .filter(|c| !c.is_ascii_digit())
            .take(24)
            .collect::<String>()
    };
    if let Some(why) = fails(seed, &steps).map(kind) {
        let few = shrink(steps, 600, |steps| {
            fails(seed, steps).map(kind).as_ref() == Some(&why)
        });
        run::TELLS.store(true, Relaxed);
        eprintln!("in {} steps: {:?}", few.len(), fails(seed, &few));
        run::TELLS.store(false, Relaxed);
    } else {
        eprintln!("not by itself: SCHEDULES_SEED={since}, on workers that serve many groups");
    }
    panic::set_hook(told);
}

/// Workers that serve many groups; where programs end their connections, with new ones for each.
struct Kept {
    run: Run,
    since: u64,
    groups: u32,
}

/// Groups that workers serve.
const SERVED: u32 = 100;

impl Kept {
    fn new(plan: Plan, seed: u64) -> Self {
        Self {
            run: Run::new(Bed::new(plan)),
            since: seed,
            groups: 0,
        }
    }
}

#[test]
fn random_programs() {
    let _others = ALONE.read();
    let schedules = number("SCHEDULES").unwrap_or(4000);
    let first = number("SCHEDULES_SEED").unwrap_or(1);
    let began = Instant::now();
    let (mut programs, mut steps, mut groups) = (0, 0, 0);
    let mut seen = Seen::default();
    let mut kept: Vec<(String, Kept)> = Vec::new();
    for seed in first.. {
        if programs >= schedules {
            break;
        }
        let (plan, sort, all) = group(seed);
        let name = format!("{} {} {}", plan.kind.name, plan.nodes, sort == Sort::Fair);
        let index = kept.iter().position(|(known, _)| *known == name);
        let mut bed = match index.map(|index| kept.swap_remove(index).1) {
            Some(bed) if bed.groups < SERVED && !bed.run.is_spent => bed,
            _ => Kept::new(plan, seed),
        };
        let (since, before) = (bed.since, (bed.run.programs, bed.run.steps));
        let played = AssertUnwindSafe(move || {
            if bed.run.bed.conns.is_empty() {
                bed.run.bed.connect();
            }
            play_on(&mut bed.run, seed, sort, &all);
            bed.groups += 1;
            // Those of which nothing was lost serve on, so that what each program leaves adds up.
            if bed.groups == SERVED && !bed.run.bed.conns.is_empty() {
                bed.run.end_connections();
            }
            bed
        });
        match panic::catch_unwind(played) {
            Ok(bed) => {
                programs += bed.run.programs - before.0;
                steps += bed.run.steps - before.1;
                groups += 1;
                let mut bed = bed;
                seen.join(std::mem::take(&mut bed.run.seen));
                kept.push((name, bed));
            }
            Err(panic) => {
                explain(seed, group(seed).2, since);
                panic::resume_unwind(panic);
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    eprintln!(
        "{programs} schedules, {steps} steps, {groups} times connected, in {took:.1} s: {seen:?}"
    );
    // They say something.
    assert!(seen.least() > programs / 20 || programs < 1000, "{seen:?}");
}

/// Who looks at the memory of the whole process is alone.
static ALONE: parking_lot::RwLock<()> = parking_lot::RwLock::new(());

/// What connections that are over leave on the heap does not grow.
#[test]
fn nothing_is_kept_for_who_is_gone() {
    /// Programs, of which the first make tables that keep their room.
    const PROGRAMS: u64 = 120;
    const FIRST: u64 = 60;
    /// Far less than the record of a connection, for each.
    const EACH: usize = 100;
    let _alone = ALONE.write();
    for kind in KINDS {
        let mut run = Run::new(Bed::new(Plan::two(kind)));
        let mut before = 0;
        for seed in 0..PROGRAMS {
            if seed == FIRST {
                before = heap::bytes();
            }
            if run.bed.conns.is_empty() {
                run.bed.connect();
            }
            let mut steps = program(seed, Sort::Faulty);
            steps.retain(|step| !matches!(step, Step::Fault(Fault::Kill | Fault::Shutdown, _)));
            run.play(&steps);
            if !run.bed.conns.is_empty() {
                run.end_connections();
            }
        }
        let grown = heap::bytes().saturating_sub(before);
        let may = EACH * (PROGRAMS - FIRST) as usize;
        assert!(grown < may, "{}: {grown} bytes are kept", kind.name);
    }
}

/// The same seed is the same schedule, with the same wakes and messages, to the end. Not so where both ends share memory: which of them copies is decided by
/// what was measured.
#[test]
fn a_seed_is_a_schedule() {
    let _others = ALONE.read();
    let mut different = std::collections::BTreeSet::new();
    for seed in 1..60 {
        let (plan, _, steps) = group(seed);
        if plan.kind.shares {
            continue;
        }
        let [one, other] = [(); 2].map(|()| play(seed, &steps).trace);
        assert_eq!(one, other, "seed {seed}");
        different.insert(one);
    }
    assert!(different.len() > 30);
}
