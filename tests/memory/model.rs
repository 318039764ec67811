//! Random scripts against a model: a map of what is kept, and a version for each page. Fixed seeds, so a failure comes again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use wharf::{
    Access,
    memory::{Registration, Timing},
};

use crate::{
    fakes::{BOTH, READ, Space, block_on, fakes_with, roomy},
    support::FakeRegistrar,
};

/// Pages of the space that scripts play in: across the border of two blocks of 2 MiB.
const FIRST: u64 = 480;
const PAGES: u64 = 64;

#[derive(Clone, Debug)]
enum Step {
    Get(u64, u64, Access),
    Drop(usize),
    Change(u64, u64),
    /// The event of a change comes later.
    LateChange(u64, u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let span =
        || (0..PAGES, 1..24_u64).prop_map(|(first, count)| (first, (first + count).min(PAGES)));
    prop_oneof![
        8 => (span(), prop_oneof![3 => Just(READ), 1 => Just(BOTH), 1 => Just(Access::WRITE)]).prop_map(|((a, b), access)| Step::Get(a, b, access)),
        3 => (0..8_usize).prop_map(Step::Drop),
        3 => span().prop_map(|(a, b)| Step::Change(a, b.min(a + 3))),
        1 => span().prop_map(|(a, b)| Step::LateChange(a, b.min(a + 3))),
        1 => Just(Step::Flush),
    ]
}

/// What should be kept: first page to one behind the last, rights, users among the guards.
#[derive(Default)]
struct Model {
    kept: BTreeMap<u64, (u64, Access, usize)>,
}

impl Model {
    /// The first page of what overlaps.
    fn overlapping(&self, first: u64, last: u64) -> Vec<u64> {
        let reach = |(start, (end, ..)): (&u64, &(u64, Access, usize))| {
            (*start < last && first < *end).then_some(*start)
        };
        self.kept.iter().filter_map(reach).collect()
    }

    /// The range and rights that a request should get, and whether it is a hit.
    fn get(&mut self, first: u64, last: u64, access: Access) -> (u64, u64, Access, bool) {
        let over = self.overlapping(first, last);
        if let [start] = over[..] {
            let (end, rights, _) = self.kept[&start];
            if start <= first && last <= end && rights.contains(access) {
                return (start, end, rights, true);
            }
        }
        let (mut from, mut to) = (first, last);
        for start in over {
            let (end, rights, _) = self.kept.remove(&start).expect("overlaps");
            if rights == access {
                (from, to) = (from.min(start), to.max(end));
            }
        }
        self.kept.insert(from, (to, access, 0));
        (from, to, access, false)
    }

    fn change(&mut self, first: u64, last: u64) {
        for start in self.overlapping(first, last) {
            self.kept.remove(&start);
        }
    }
}

fn run(timing: Timing, steps: &[Step]) {
    let (cache, registrar, monitor) = fakes_with(FakeRegistrar::new(), timing, roomy());
    let space = Space::new();
    let pages = |first: u64, last: u64| space.pages(FIRST + first, last - first);
    let number = |address: u64| ((address & 0xffff_ffff) / 4096 - FIRST) as usize;
    let versions = Arc::new(Mutex::new(vec![0_u64; PAGES as usize]));
    // What each registration pinned.
    let pinned: Arc<Mutex<HashMap<u64, Vec<u64>>>> = Arc::default();
    let (now, pins) = (Arc::clone(&versions), Arc::clone(&pinned));
    registrar.set_rule(move |call, range, _| {
        let of_range = now.lock()[number(range.start())..number(range.end())].to_vec();
        pins.lock().insert(call, of_range);
        Ok(())
    });
    let mut model = Model::default();
    let mut guards: Vec<Registration<FakeRegistrar>> = Vec::new();
    let change = |first: u64, last: u64| {
        for version in &mut versions.lock()[first as usize..last as usize] {
            *version += 1;
        }
        monitor.change(pages(first, last));
    };
    for step in steps {
        match *step {
            Step::Get(first, last, access) => {
                let calls = registrar.calls();
                let registration =
                    block_on(cache.get(pages(first, last), access)).expect("registered");
                let (from, to, rights, hit) = model.get(first, last, access);
                assert_eq!(
                    (registration.range(), registration.access()),
                    (pages(from, to), rights),
                    "{step:?}"
                );
                assert_eq!(registrar.calls() == calls, hit, "{step:?}");
                let pinned = &pinned.lock()[&registration.number];
                let of_request = &pinned[(first - from) as usize..(last - from) as usize];
                assert_eq!(
                    of_request,
                    &versions.lock()[first as usize..last as usize],
                    "stale pages"
                );
                assert!(registration.is_current());
                guards.push(registration);
            }
            Step::Drop(index) if index < guards.len() => drop(guards.swap_remove(index)),
            Step::Drop(_) => {}
            Step::Change(first, last) => {
                change(first, last);
                model.change(first, last);
            }
            Step::LateChange(first, last) => {
                if timing == Timing::After {
                    monitor.hold();
                    change(first, last);
                    for page in 0..PAGES {
                        assert!(
                            cache.lookup(pages(page, page + 1), READ).is_none(),
                            "an event is under way"
                        );
                    }
                    monitor.release();
                } else {
                    change(first, last);
                }
                model.change(first, last);
            }
            Step::Flush => {
                let held: Vec<_> = guards
                    .iter()
                    .filter(|guard| guard.is_current())
                    .map(|guard| guard.range().start())
                    .collect();
                block_on(cache.flush());
                model.kept.retain(|first, _| {
                    held.contains(&pages(*first, *first + 1).start())
                        && cache
                            .lookup(pages(*first, *first + 1), Access::empty())
                            .is_some()
                });
            }
        }
        // Every page says what the model says.
        for page in 0..PAGES {
            let found = cache
                .lookup(pages(page, page + 1), Access::empty())
                .map(|found| (found.range(), found.access()));
            let expected = model
                .kept
                .range(..=page)
                .next_back()
                .filter(|(_, (end, ..))| page < *end);
            assert_eq!(
                found,
                expected.map(|(start, (end, rights, _))| (pages(*start, *end), *rights)),
                "page {page} after {step:?}"
            );
        }
        assert_eq!(cache.statistics().regions, model.kept.len() as u64);
    }
    // Guards still have what they were given, and everything ends once.
    for guard in &guards {
        assert_eq!(guard.range, guard.range());
    }
    drop(guards);
    block_on(cache.flush());
    assert_eq!(
        (registrar.live(), registrar.registered()),
        (vec![], registrar.deregistered())
    );
}

fn scripts(timing: Timing) {
    let cases = if cfg!(debug_assertions) { 150 } else { 1500 };
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let seed = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    TestRunner::new_with_rng(config, seed)
        .run(&proptest::collection::vec(step(), 1..60), |steps| {
            run(timing, &steps);
            Ok(())
        })
        .expect("the cache does what the model does");
}

#[test]
fn told_before_the_change() {
    scripts(Timing::Before);
}

#[test]
fn told_after_the_change() {
    scripts(Timing::After);
}
