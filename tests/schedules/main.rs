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
    let (sort, programs) = match roll >> 16 & 7 {
        0 => (Sort::Hostile, 1),
        1 | 2 => (Sort::Faulty, 1),
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

fn fails(seed: u64, steps: &[Step]) -> Option<String> {
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
    if fails(seed, &steps).is_some() {
        let few = shrink(steps, 400, |steps| fails(seed, steps).is_some());
        run::TELLS.store(true, Relaxed);
        eprintln!("in {} steps: {:?}", few.len(), fails(seed, &few));
        run::TELLS.store(false, Relaxed);
    } else {
        eprintln!("not by itself: SCHEDULES_SEED={since}, on workers that serve many groups");
    }
    panic::set_hook(told);
}

/// Workers that serve many groups, with new connections for each.
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
    let schedules = number("SCHEDULES").unwrap_or(4000);
    let first = number("SCHEDULES_SEED").unwrap_or(1);
    let began = Instant::now();
    let (mut programs, mut steps, mut groups) = (0, 0, 0);
    let mut kept: Vec<(String, Kept)> = Vec::new();
    for seed in first.. {
        if programs >= schedules {
            break;
        }
        let (plan, sort, all) = group(seed);
        let name = format!("{} {}", plan.kind.name, plan.nodes);
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
            if !bed.run.bed.conns.is_empty() {
                bed.run.end_connections();
            }
            bed.groups += 1;
            bed
        });
        match panic::catch_unwind(played) {
            Ok(bed) => {
                programs += bed.run.programs - before.0;
                steps += bed.run.steps - before.1;
                groups += 1;
                kept.push((name, bed));
            }
            Err(panic) => {
                explain(seed, group(seed).2, since);
                panic::resume_unwind(panic);
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    eprintln!("{programs} schedules, {steps} steps, {groups} times connected, in {took:.1} s");
}

/// The same seed is the same schedule, with the same wakes and messages, to the end. Not so where both ends share memory: which of them copies is decided by
/// what was measured.
#[test]
fn a_seed_is_a_schedule() {
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

#[test]
#[ignore = "by hand"]
fn times() {
    let began = Instant::now();
    for _ in 0..50 {
        drop(Bed::new(Plan::two(KINDS[0])));
    }
    eprintln!("bed: {:?}", began.elapsed() / 50);
    let mut run = Run::new(Bed::new(Plan::two(KINDS[0])));
    let began = Instant::now();
    for _ in 0..50 {
        let runtime = run.bed.runtime.clone();
        {
            let _inside = runtime.enter();
            run.end_connections();
        }
        run.bed.connect();
    }
    eprintln!("connect: {:?}", began.elapsed() / 50);
    let all: Vec<_> = (0..1000).map(|seed| program(seed, Sort::Fair)).collect();
    let began = Instant::now();
    for steps in &all {
        run.play(steps);
    }
    eprintln!("program: {:?}", began.elapsed() / 1000);
}
