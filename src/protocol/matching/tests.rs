//! Both queues against a plain list that is searched from the front.

use proptest::{prelude::*, test_runner::RngAlgorithm};

use super::*;
use crate::{
    protocol::ledger::{AccountId, Ledger},
    types::{LinkId, Mask, Source, Tag},
};

const LINK: LinkId = LinkId::new(0, 1);

/// Steps of a script at most; the interpreter takes milliseconds for each.
const STEPS: usize = if cfg!(miri) { 60 } else { 600 };
/// Messages or receives that wait at the same time.
const MANY: u64 = if cfg!(miri) { 300 } else { 20_000 };

/// Every third was announced.
impl Message for u64 {
    fn name(&self) -> Option<Name> {
        self.is_multiple_of(3)
            .then_some(Name::Announced(LINK, *self))
    }
}

fn accounts() -> [AccountId; 2] {
    let mut ledger = Ledger::default();
    [1, 2].map(|user| ledger.open(Source::User(user)))
}

/// Few tags, so that they meet; a wide one, so that the hash sees high bits.
fn tags() -> impl Strategy<Value = Tag> {
    prop_oneof![
        (0u64..6).prop_map(Tag),
        (0u64..6).prop_map(|tag| Tag(tag << 40 | 3)),
        (0u64..500).prop_map(Tag)
    ]
}

fn masks() -> impl Strategy<Value = Mask> {
    prop_oneof![4 => Just(Mask::ALL), 1 => Just(Mask::NONE), 1 => Just(Mask(1)), 1 => Just(Mask(0xff << 40))]
}

#[derive(Clone, Debug)]
enum PostedStep {
    Post(Tag, Mask),
    Match(Tag),
    /// Cancels the n-th receive ever posted, whatever became of it.
    Cancel(usize),
    Drain,
}

fn posted_steps() -> impl Strategy<Value = PostedStep> {
    prop_oneof![
        40 => (tags(), masks()).prop_map(|(tag, mask)| PostedStep::Post(tag, mask)),
        30 => tags().prop_map(PostedStep::Match),
        20 => any::<usize>().prop_map(PostedStep::Cancel),
        1 => Just(PostedStep::Drain),
    ]
}

#[derive(Clone, Debug)]
enum UnexpectedStep {
    Push(Tag),
    /// Arrived, matched at once: only its place is kept.
    Pass(Tag),
    Take(Tag, Mask),
    /// Of those under the n-th account, which is known to be theirs or not.
    TakeOf(Tag, Mask, usize, bool),
    /// Puts back the n-th of those taken.
    Restore(usize),
    RemoveIf(u64),
    /// Calls back the n-th message ever.
    CallBack(usize),
}

fn unexpected_steps() -> impl Strategy<Value = UnexpectedStep> {
    prop_oneof![
        40 => tags().prop_map(UnexpectedStep::Push),
        5 => tags().prop_map(UnexpectedStep::Pass),
        30 => (tags(), masks()).prop_map(|(tag, mask)| UnexpectedStep::Take(tag, mask)),
        20 => (tags(), masks(), 0usize..2, any::<bool>())
            .prop_map(|(tag, mask, account, known)| UnexpectedStep::TakeOf(tag, mask, account, known)),
        15 => any::<usize>().prop_map(UnexpectedStep::Restore),
        2 => (2u64..7).prop_map(UnexpectedStep::RemoveIf),
        10 => any::<usize>().prop_map(UnexpectedStep::CallBack),
    ]
}

proptest! {
    // Not optimised, the usual one takes most of the time.
    #![proptest_config(ProptestConfig { rng_algorithm: RngAlgorithm::XorShift, ..Default::default() })]

    #[test]
    fn posted_receives_match_like_a_list(steps in prop::collection::vec(posted_steps(), 0..STEPS)) {
        let mut queue = PostedQueue::new();
        let mut model: Vec<(Tag, Mask, usize)> = Vec::new();
        let mut ids = Vec::new();
        for step in steps {
            match step {
                PostedStep::Post(tag, mask) => {
                    model.push((tag, mask, ids.len()));
                    ids.push(queue.post(tag, mask, ids.len()));
                }
                PostedStep::Match(message) => {
                    let at = model.iter().position(|&(tag, mask, _)| mask.matches(tag, message));
                    prop_assert_eq!(queue.take_match(message), at.map(|at| model.remove(at).2));
                }
                PostedStep::Cancel(pick) if !ids.is_empty() => {
                    let pick = pick % ids.len();
                    let at = model.iter().position(|&(_, _, number)| number == pick);
                    prop_assert_eq!(queue.remove(ids[pick]), at.map(|at| model.remove(at).2));
                }
                PostedStep::Cancel(_) => {}
                PostedStep::Drain => {
                    let all: Vec<_> = model.drain(..).map(|(_, _, number)| number).collect();
                    prop_assert_eq!(queue.drain(), all);
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            let mut waiting = vec![false; ids.len()];
            for &(_, _, number) in &model {
                waiting[number] = true;
            }
            for (number, &id) in ids.iter().enumerate() {
                let waits = waiting[number];
                let Some((tag, mask)) = queue.next_for(id) else {
                    prop_assert!(!waits || model.len() > 1, "the only one is the next");
                    continue;
                };
                prop_assert!(waits);
                // Whatever the message has where the mask does not look.
                for message in [tag, Tag(tag.0 | !mask.0), Tag(tag.0 | !mask.0 & 0x5555)] {
                    let first = model.iter().find(|&&(tag, mask, _)| mask.matches(tag, message));
                    prop_assert_eq!(first.map(|first| first.2), Some(number));
                }
            }
        }
        let mut left: Vec<_> = queue.iter().copied().collect();
        left.sort_unstable();
        prop_assert_eq!(left, model.into_iter().map(|(_, _, number)| number).collect::<Vec<_>>());
    }

    #[test]
    fn unexpected_messages_match_like_a_list(steps in prop::collection::vec(unexpected_steps(), 0..STEPS)) {
        let mut queue = UnexpectedQueue::new();
        let accounts = accounts();
        let account = |number: u64| accounts[(number % 2) as usize];
        // Sorted by number, which is the order of arrival.
        let mut model: Vec<(Tag, u64)> = Vec::new();
        let mut taken: Vec<(Taken<u64>, u64)> = Vec::new();
        let mut number = 0;
        for step in steps {
            match step {
                UnexpectedStep::Push(tag) => {
                    let arrival = queue.arrival();
                    queue.insert(tag, arrival, account(number), number);
                    model.push((tag, number));
                    number += 1;
                }
                UnexpectedStep::Pass(tag) => {
                    let arrival = queue.arrival();
                    taken.push((Taken { tag, message: number, arrival, account: account(number) }, number));
                    number += 1;
                }
                UnexpectedStep::Take(tag, mask) => {
                    let at = model.iter().position(|&(message, _)| mask.matches(tag, message));
                    let peeked = queue.peek_match(tag, mask).map(|(tag, message)| (tag, *message));
                    prop_assert_eq!(peeked, at.map(|at| model[at]));
                    let got = queue.take_match(tag, mask);
                    prop_assert_eq!(got.as_ref().map(|got| (got.tag, got.message)), at.map(|at| model.remove(at)));
                    taken.extend(got.map(|got| { let number = got.message; (got, number) }));
                }
                UnexpectedStep::TakeOf(tag, mask, of, known) => {
                    let is_own = |number: &u64| *number % 2 == of as u64;
                    let accepts = |&(message, number): &(Tag, u64)| mask.matches(tag, message) && is_own(&number);
                    let at = model.iter().position(accepts);
                    let got = queue.take_match_of(known.then_some(accounts[of]), tag, mask, is_own);
                    prop_assert_eq!(got.as_ref().map(|got| (got.tag, got.message)), at.map(|at| model.remove(at)));
                    taken.extend(got.map(|got| { let number = got.message; (got, number) }));
                }
                UnexpectedStep::Restore(pick) if !taken.is_empty() => {
                    let (back, number) = taken.swap_remove(pick % taken.len());
                    let at = model.partition_point(|&(_, other)| other < number);
                    model.insert(at, (back.tag, number));
                    prop_assert_eq!(back.account, account(number));
                    queue.insert(back.tag, back.arrival, back.account, back.message);
                }
                UnexpectedStep::Restore(_) => {}
                UnexpectedStep::RemoveIf(divisor) => {
                    let mut removed: Vec<u64> = accounts
                        .iter()
                        .flat_map(|account| queue.take_of(*account, |message| message % divisor == 0))
                        .map(|taken| taken.message)
                        .collect();
                    removed.sort_unstable();
                    let (dead, alive) = model.into_iter().partition(|&(_, number)| number % divisor == 0);
                    model = alive;
                    let dead: Vec<(Tag, u64)> = dead;
                    prop_assert_eq!(removed, dead.into_iter().map(|(_, number)| number).collect::<Vec<_>>());
                }
                UnexpectedStep::CallBack(pick) if number > 0 => {
                    let pick = pick as u64 % number;
                    let name = Name::Announced(LINK, pick);
                    let at = model.iter().position(|&(_, number)| number == pick && number % 3 == 0);
                    prop_assert_eq!(queue.named(name).is_some(), at.is_some());
                    let found = queue.take_named(name).map(|taken| (taken.tag, taken.message));
                    prop_assert_eq!(found, at.map(|at| model.remove(at)));
                }
                UnexpectedStep::CallBack(_) => {}
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            prop_assert!(queue.iter().map(|(tag, message)| (tag, *message)).eq(model.iter().copied()));
        }
    }
}

#[test]
fn an_id_does_not_outlive_its_receive() {
    let mut queue = PostedQueue::new();
    let first = queue.post(Tag(1), Mask::ALL, "first");
    assert_eq!(queue.take_match(Tag(1)), Some("first"));
    let second = queue.post(Tag(2), Mask::NONE, "second");
    assert_ne!(first, second, "the same place, another use");
    assert_eq!(queue.remove(first), None);
    assert_eq!(queue.remove(second), Some("second"));
    assert!(queue.is_empty());
}

#[test]
fn many_tags_are_all_found_again() {
    let mut queue = UnexpectedQueue::new();
    for number in 0..MANY {
        let arrival = queue.arrival();
        queue.insert(Tag(number << 32), arrival, AccountId::NOBODY, number);
    }
    for number in (0..MANY).rev() {
        assert_eq!(
            queue
                .take_match(Tag(number << 32), Mask::ALL)
                .map(|taken| taken.message),
            Some(number)
        );
    }
    assert!(queue.is_empty());
}

#[test]
fn masked_receives_do_not_hold_each_other_up() {
    let (even, mut queue) = (Mask(!1), PostedQueue::new());
    for number in 0..MANY {
        queue.post(Tag(number << 1), even, number);
    }
    queue.store.looked_at.set(0);
    for number in (0..MANY).rev() {
        assert_eq!(queue.take_match(Tag(number << 1 | 1)), Some(number));
    }
    assert!(queue.is_empty());
    // Each is looked for twice, and fewer than 1.4 are looked at each time.
    let looked_at = queue.store.looked_at.get() as u64;
    assert!(looked_at < 4 * MANY, "{looked_at} for {MANY} matches");
}

/// What waits goes with its queue, and nothing twice.
#[test]
fn a_queue_drops_what_it_has() {
    let value = std::rc::Rc::new(());
    let mut queue = PostedQueue::new();
    let ids = [1, 1, 2, 3].map(|tag| queue.post(Tag(tag), Mask::ALL, value.clone()));
    drop(queue.remove(ids[1]));
    assert_eq!(std::rc::Rc::strong_count(&value), 4);
    queue.matched(ids[2]);
    drop(queue);
    assert_eq!(std::rc::Rc::strong_count(&value), 1);
}

/// The group in front changes when others are used for long, and keeps the order of its own.
#[test]
fn the_group_in_front_changes() {
    let mut queue = PostedQueue::new();
    let waits = queue.post(Tag(1), Mask::ALL, 0);
    for number in 1..100 {
        queue.post(Tag(2), Mask::ALL, number);
    }
    queue.store.looked_at.set(0);
    for number in 1..100 {
        assert_eq!(queue.take_match(Tag(2)), Some(number));
    }
    assert_eq!(
        queue.store.looked_at.get(),
        0,
        "it is in front, without a hash"
    );
    assert_eq!(queue.take_match(Tag(1)), Some(0));
    assert_eq!(queue.remove(waits), None);
}
