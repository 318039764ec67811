//! Two workers, or five, over scripted links, in one thread: programs of everything that an endpoint does, under schedules that a seed makes.

mod bed;
mod books;
#[allow(unsafe_code)]
#[path = "../cancel/guarded.rs"]
mod guarded;
mod program;
mod run;
mod task;
mod wire;

use std::{
    env,
    panic::{self, AssertUnwindSafe},
    sync::atomic::Ordering::Relaxed,
    time::Instant,
};

use bed::{Bed, KINDS, Plan};
use program::{Sort, Step, program, shrink, split_mix};
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
    let kind = KINDS[roll as usize % KINDS.len()];
    let plan = match roll >> 8 & 7 {
        0 => Plan::five(kind),
        _ => Plan::two(kind),
    };
    let (sort, programs) = match roll >> 16 & 7 {
        0 => (Sort::Hostile, 1),
        1 | 2 => (Sort::Faulty, 1),
        _ => (Sort::Fair, GROUP),
    };
    let steps = (0..programs).flat_map(|_| program(split_mix(&mut state), sort));
    (plan, sort, steps.collect())
}

/// Plays a group on a bed of its own.
fn play(seed: u64, steps: &[Step]) -> Run {
    let (plan, ..) = group(seed);
    let mut run = Run::new(Bed::new(plan));
    run.play(steps);
    run
}

fn fails(seed: u64, steps: &[Step]) -> Option<String> {
    let played = panic::catch_unwind(AssertUnwindSafe(|| drop(play(seed, steps))));
    let said = played.err()?;
    let text = said.downcast_ref::<String>().cloned();
    let text = text.or_else(|| said.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    Some(text.unwrap_or_default())
}

#[test]
fn random_programs() {
    let schedules = number("SCHEDULES").unwrap_or(2000);
    let first = number("SCHEDULES_SEED").unwrap_or(1);
    let began = Instant::now();
    let (mut programs, mut steps, mut ended) = (0, 0, 0);
    let mut seed = first;
    while programs < schedules {
        let (_, _, all) = group(seed);
        let played = panic::catch_unwind(AssertUnwindSafe(|| play(seed, &all)));
        match played {
            Ok(run) => {
                programs += run.programs;
                steps += run.steps;
                ended += 1;
            }
            Err(panic) => {
                eprintln!("once more: SCHEDULES_SEED={seed} SCHEDULES=1");
                // What fails once more need not be told each time.
                let told = panic::take_hook();
                panic::set_hook(Box::new(|_| {}));
                let few = shrink(all, 400, |steps| fails(seed, steps).is_some());
                run::TELLS.store(true, Relaxed);
                let why = fails(seed, &few);
                panic::set_hook(told);
                eprintln!("shrunk, seed {seed}: {why:?}");
                panic::resume_unwind(panic);
            }
        }
        seed += 1;
    }
    let took = began.elapsed().as_secs_f64();
    eprintln!("{programs} schedules, {steps} steps on {ended} beds in {took:.1} s");
}
