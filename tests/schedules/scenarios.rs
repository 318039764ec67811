//! What each verb does, one after the other, and what may come between at every step: each of [`verbs`] under each of the tests here.

use std::panic::{self, AssertUnwindSafe};

use super::{
    ALONE,
    bed::{Bed, KINDS, Plan},
    program::{Act, Dice, Fault, Step, length},
    run::Run,
};

/// An end of the first link, and of the second, of [`TWO`](super::bed::TWO): that of node 0, and that of node 1.
pub(crate) const HERE: u32 = 0;
pub(crate) const THERE: u32 = 1;
const HERE_TOO: u32 = 3;

/// How operations are begun: posted and polled at once, awaited, or polled later.
pub(crate) const POSTED: u32 = 0;
const AWAITED: u32 = 2;
const LATER: u32 = 1;
/// Beside that, of sends.
const PLAIN: u32 = 0x50;
const SYNC: u32 = 0x40;
const HIGH: u32 = 0x10;
/// Of receives: a tag alone, or any.
const EXACT: u32 = 0x100;
pub(crate) const ANY: u32 = 0x100;
const MASKED: u32 = 0x200;
pub(crate) const ROOMY: u32 = 1;

/// What makes this length.
pub(crate) fn of(bytes: usize) -> u32 {
    let rolls = (0..1 << 16).filter(|roll| roll % 14 == 13);
    let mut rolls = rolls.filter(|roll| length(*roll) == bytes);
    rolls.next().expect("a length that programs have")
}

/// A room of this length.
fn short(bytes: usize) -> u32 {
    let rolls = (0..1 << 24).step_by(5);
    let mut rolls = rolls.filter(|roll: &u32| length(roll >> 8) == bytes);
    rolls.next().expect("a length that programs have")
}

pub(crate) fn send(end: u32, bytes: usize, how: u32) -> Step {
    Step::Act(Act::Send, [end, 0, of(bytes), how])
}

pub(crate) fn recv(node: u32, class: u32, room: u32, how: u32) -> Step {
    Step::Act(Act::Recv, [node, class, room, how])
}

pub(crate) fn act(act: Act, args: [u32; 4]) -> Step {
    Step::Act(act, args)
}

/// One message each way, a pass and a poll after each.
fn beats(count: usize) -> Vec<Step> {
    let beat = [
        Step::Arrive(HERE, 4),
        Step::Pass(1),
        Step::Poll(0),
        Step::Arrive(THERE, 4),
        Step::Pass(0),
        Step::Poll(0),
    ];
    beat.repeat(count)
}

type Verb = (&'static str, Vec<Step>);

/// What is begun, without the steps that let it happen.
fn verbs() -> Vec<Verb> {
    let put = |bytes, how| act(Act::Put, [HERE, 0, of(bytes), how]);
    let get = |bytes| act(Act::Get, [HERE, 1, of(bytes), 0]);
    let am = |id, bytes, how| act(Act::Am, [HERE, id, of(bytes), how]);
    let inbox = |id, how| act(Act::Inbox, [1, id, how, 0]);
    // What is written in pieces of 1000 bytes.
    let open = |bytes, how: u32| act(Act::Open, [HERE, of(bytes), how << 20 | 999, 0]);
    let accept = |how| act(Act::Accept, [THERE, 0, how, 0]);
    let (all, kept) = (0x100_0000 | 4999, 40);
    const SHORT: usize = 40;
    const EAGER: usize = 4999;
    const LONG: usize = 20_000;
    vec![
        (
            "a short message, posted first",
            vec![recv(1, MASKED, ROOMY, POSTED), send(HERE, SHORT, PLAIN)],
        ),
        (
            "a short message, received late",
            vec![
                send(HERE, SHORT, PLAIN | AWAITED),
                Step::Arrive(HERE, 0),
                Step::Pass(1),
                recv(1, ANY, ROOMY, AWAITED),
            ],
        ),
        (
            "a short message of one tag",
            vec![
                recv(1, 0, ROOMY, AWAITED),
                act(Act::Send, [HERE, EXACT, of(SHORT), PLAIN]),
            ],
        ),
        (
            "an eager message, posted first",
            vec![recv(1, MASKED, ROOMY, POSTED), send(HERE, EAGER, PLAIN)],
        ),
        (
            "an eager message, received late",
            vec![
                send(HERE, EAGER, PLAIN),
                Step::Arrive(HERE, 0),
                Step::Pass(1),
                recv(1, ANY, ROOMY, AWAITED),
            ],
        ),
        (
            "a long message, posted first",
            vec![recv(1, MASKED, ROOMY, POSTED), send(HERE, LONG, PLAIN)],
        ),
        (
            "a long message, received late",
            vec![
                send(HERE, LONG, PLAIN | AWAITED),
                Step::Arrive(HERE, 0),
                Step::Pass(1),
                recv(1, ANY, ROOMY, AWAITED),
            ],
        ),
        (
            "a synchronous message",
            vec![send(HERE, SHORT, SYNC), recv(1, ANY, ROOMY, POSTED)],
        ),
        (
            "a synchronous message, received late",
            vec![
                send(HERE, EAGER, SYNC | AWAITED),
                Step::Arrive(HERE, 0),
                Step::Pass(1),
                recv(1, ANY, ROOMY, AWAITED),
            ],
        ),
        (
            "an eager message too long for its receive",
            vec![recv(1, ANY, short(200), POSTED), send(HERE, EAGER, PLAIN)],
        ),
        (
            "a long message too long for its receive",
            vec![send(HERE, LONG, PLAIN), recv(1, ANY, short(200), AWAITED)],
        ),
        (
            "a message that nobody receives",
            vec![send(HERE, EAGER, PLAIN), send(HERE, LONG, SYNC)],
        ),
        (
            "a receive of what nobody sends",
            vec![recv(1, 0, ROOMY, POSTED), recv(1, ANY, ROOMY, AWAITED)],
        ),
        (
            "messages of two lengths, in order",
            vec![
                recv(1, ANY, ROOMY, POSTED),
                recv(1, ANY, ROOMY, AWAITED),
                send(HERE, LONG, PLAIN),
                send(HERE, SHORT, PLAIN),
            ],
        ),
        (
            "messages of two priorities",
            vec![
                send(HERE, LONG, PLAIN),
                send(HERE, SHORT, HIGH | 0x10),
                recv(1, ANY, ROOMY, POSTED),
                recv(1, ANY, ROOMY, POSTED),
            ],
        ),
        (
            "messages over two links",
            vec![
                send(HERE, EAGER, PLAIN),
                send(HERE_TOO, SHORT, PLAIN),
                recv(1, ANY, ROOMY, POSTED),
                recv(1, ANY, ROOMY, POSTED),
            ],
        ),
        (
            "a claim that is taken",
            vec![
                act(Act::Claim, [1, ANY, ROOMY, 0]),
                send(HERE, EAGER, PLAIN),
                recv(1, ANY, ROOMY, POSTED),
                send(HERE, SHORT, PLAIN),
            ],
        ),
        (
            "a claim of a long message",
            vec![send(HERE, LONG, PLAIN), act(Act::Claim, [1, ANY, ROOMY, 0])],
        ),
        (
            "a claim that is given back",
            vec![
                act(Act::Claim, [1, ANY, ROOMY, 2]),
                send(HERE, EAGER, PLAIN),
                recv(1, ANY, ROOMY, POSTED),
            ],
        ),
        (
            "a message that is taken",
            vec![
                send(HERE, LONG, PLAIN),
                Step::Arrive(HERE, 0),
                act(Act::Take, [1, ANY, 0, 0]),
            ],
        ),
        ("a short put", vec![put(SHORT, 0x6 | 8)]),
        ("a long put", vec![put(LONG, 0x2 | 8)]),
        (
            "a put that is over at its source",
            vec![put(9000, 8), act(Act::Flush, [HERE, 0, 0, 0])],
        ),
        (
            "a put and a fence",
            vec![
                put(9000, 0x2 | 8),
                act(Act::Flush, [HERE, 0, 0, 2]),
                put(SHORT, 8 | 2),
            ],
        ),
        (
            "a put and a flush",
            vec![put(LONG, 0x2 | 8), act(Act::Flush, [HERE, 0, 0, 0])],
        ),
        (
            "a put with a signal",
            vec![act(Act::Wait, [1, 1, 0, 0]), put(9000, 2)],
        ),
        (
            "a signal",
            vec![
                act(Act::Wait, [1, 1, 0, 0]),
                act(Act::Signal, [HERE, 0, 0, 0]),
            ],
        ),
        ("a short get", vec![get(SHORT)]),
        (
            "a long get",
            vec![get(LONG), act(Act::Flush, [HERE, 0, 0, 0])],
        ),
        (
            "an atomic operation from each end",
            vec![
                act(Act::Atomic, [HERE, 0, 0, POSTED]),
                act(Act::Atomic, [HERE, 0, 0, AWAITED]),
                act(Act::Atomic, [THERE, 0, 0, 0]),
            ],
        ),
        (
            "a short active message",
            vec![inbox(0, 4), am(0, SHORT, POSTED)],
        ),
        (
            "a long active message, received late",
            vec![
                am(1, LONG, POSTED),
                Step::Arrive(HERE, 0),
                Step::Pass(1),
                inbox(1, 4),
            ],
        ),
        (
            "a long active message, as bytes",
            vec![am(1, LONG, AWAITED), inbox(1, 2)],
        ),
        (
            "a long active message that is rejected",
            vec![am(1, LONG, POSTED), inbox(1, 0)],
        ),
        (
            "a long active message that is dropped",
            vec![am(1, LONG, POSTED), inbox(1, 1)],
        ),
        (
            "an active message that nobody receives",
            vec![am(2, EAGER, POSTED), am(2, LONG, AWAITED)],
        ),
        ("a stream", vec![open(EAGER, 0xc), accept(all)]),
        (
            "a stream that is flushed",
            vec![accept(all), open(9000, 0xe)],
        ),
        (
            "a stream that ends with its writer",
            vec![open(EAGER, 0), accept(all)],
        ),
        ("a stream of buffers", vec![open(EAGER, 0xd), accept(all)]),
        ("a stream that is reset", vec![open(EAGER, 4), accept(all)]),
        (
            "a stream whose reader leaves",
            vec![open(LONG, 0xc), accept(kept)],
        ),
        ("a stream that nobody accepts", vec![open(LONG, 0xc)]),
        (
            "room for operations",
            vec![act(Act::Ready, [HERE, 0, 0, 0]), send(HERE, LONG, PLAIN)],
        ),
        (
            "all polled late",
            vec![
                recv(1, ANY, ROOMY, AWAITED | LATER),
                send(HERE, LONG, PLAIN | AWAITED | LATER),
                act(Act::Get, [HERE, 1, of(LONG), LATER]),
            ],
        ),
    ]
}

/// Runs of each kind of link, as long as they last.
struct Beds(Vec<(usize, Run)>);

impl Beds {
    fn run(&mut self, kind: usize) -> &mut Run {
        let index = match self.0.iter().position(|(known, _)| *known == kind) {
            Some(index) if !self.0[index].1.is_spent => index,
            Some(index) => {
                self.0[index].1 = Run::new(Bed::new(Plan::two(KINDS[kind])));
                index
            }
            None => {
                self.0
                    .push((kind, Run::new(Bed::new(Plan::two(KINDS[kind])))));
                self.0.len() - 1
            }
        };
        let run = &mut self.0[index].1;
        if run.bed.conns.is_empty() {
            run.bed.connect();
        }
        run
    }
}

/// Each verb, by programs made of its steps. Where the kind of the links is not given, programs take turns.
fn each(what: &str, kinds: &[usize], programs: impl Fn(&[Step]) -> Vec<Vec<Step>>) {
    let _others = ALONE.read();
    let mut beds = Beds(Vec::new());
    let (mut played, mut turn) = (0, 0);
    for (name, steps) in verbs() {
        for (number, mut program) in programs(&steps).into_iter().enumerate() {
            program.push(Step::End);
            turn += 1;
            let kind = kinds[turn % kinds.len()];
            let run = AssertUnwindSafe(|| beds.run(kind).play(&program));
            if let Err(panic) = panic::catch_unwind(run) {
                let kind = KINDS[kind].name;
                eprintln!("{name}, {what} {number}, over links that are {kind}: {program:?}");
                panic::resume_unwind(panic);
            }
            played += 1;
        }
    }
    eprintln!("{} verbs, {what}: {played} programs", verbs().len());
}

const ALL: [usize; KINDS.len()] = [0, 1, 2, 3];

/// With a step more at every place, one of these in turn.
fn at_every_step(steps: &[Step], between: &[Step]) -> Vec<Vec<Step>> {
    let whole = [steps, &beats(4)].concat();
    let with = |place: usize| {
        let mut program = whole.clone();
        program.insert(place, between[place % between.len()]);
        program
    };
    (1..=whole.len()).map(with).collect()
}

/// Those that cost a connection or a worker: some of them, which others than another verb's, where the code is not optimised.
fn few(programs: Vec<Vec<Step>>) -> Vec<Vec<Step>> {
    if !cfg!(debug_assertions) || std::env::var_os("SCHEDULES_ALL").is_some() {
        return programs;
    }
    let first = programs.len() % 4;
    programs.into_iter().skip(first).step_by(4).collect()
}

#[test]
fn step_by_step() {
    each("over each kind of links", &ALL, |steps| {
        vec![[steps, &beats(8)].concat(); ALL.len()]
    });
}

#[test]
fn all_at_once() {
    each("without a step between", &ALL, |steps| {
        vec![steps.to_vec(); ALL.len()]
    });
}

#[test]
fn in_any_order() {
    each("in an order of seed", &ALL, |steps| {
        let program = |seed| {
            let mut dice = Dice(seed);
            let mut program = steps.to_vec();
            for _ in 0..40 {
                let (one, other) = (dice.next(), dice.next());
                program.push(match dice.below(3) {
                    0 => Step::Arrive(one, other),
                    1 => Step::Pass(one),
                    _ => Step::Poll(one),
                });
            }
            program
        };
        (0..24).map(program).collect()
    });
}

/// One message at a time fits into each link.
#[test]
fn with_little_room() {
    each("with little room", &ALL, |steps| {
        let mut tight = vec![Step::Room(HERE, 1), Step::Room(THERE, 1)];
        tight.extend(steps);
        tight.extend(beats(12));
        vec![tight; ALL.len()]
    });
}

/// Long payloads stop, and go on later.
#[test]
fn stalled_at_every_step() {
    each("stalled at step", &[1, 2], |steps| {
        let stalls = [
            Step::Flow(HERE, 1),
            Step::Flow(HERE, 2),
            Step::Flow(THERE, 1),
        ];
        at_every_step(steps, &stalls)
    });
}

#[test]
fn dropped_at_every_step() {
    each("dropped at step", &ALL, |steps| {
        at_every_step(steps, &[Step::Drop(0), Step::Drop(1)])
    });
}

/// Dropped while a long payload is half-way.
#[test]
fn dropped_while_it_comes() {
    each("dropped half-way at step", &[1, 2], |steps| {
        let slow = [&[Step::Flow(HERE, 2), Step::Flow(THERE, 2)], steps].concat();
        at_every_step(&slow, &[Step::Drop(0), Step::Drop(1), Step::CallOff(0)])
    });
}

#[test]
fn called_off_at_every_step() {
    each("called off at step", &ALL, |steps| {
        at_every_step(steps, &[Step::CallOff(0), Step::CallOff(1)])
    });
}

#[test]
fn the_link_breaks_at_every_step() {
    each("broken at step", &ALL, |steps| {
        let cuts: Vec<_> = (0..7)
            .map(|how| Step::Fault(Fault::Cut, [HERE, how]))
            .collect();
        few(at_every_step(steps, &cuts))
    });
}

#[test]
fn an_end_closes_at_every_step() {
    each("closed at step", &ALL, |steps| {
        few(at_every_step(steps, &ends(Fault::Close)))
    });
}

#[test]
fn an_end_aborts_at_every_step() {
    each("aborted at step", &ALL, |steps| {
        few(at_every_step(steps, &ends(Fault::Abort)))
    });
}

/// Nobody holds an end any more, but operations under way.
#[test]
fn an_end_is_let_go_at_every_step() {
    each("let go at step", &ALL, |steps| {
        few(at_every_step(steps, &ends(Fault::Leave)))
    });
}

#[test]
fn a_peer_dies_at_every_step() {
    let deaths = [[0, 0], [1, 1], [0, 1], [1, 0], [1, 0]];
    let deaths = deaths.map(|args| Step::Fault(Fault::Kill, args));
    each("a death at step", &ALL, |steps| {
        few(at_every_step(steps, &deaths))
    });
}

#[test]
fn a_worker_is_shut_down_at_every_step() {
    let ends = [0, 1, 1].map(|node| Step::Fault(Fault::Shutdown, [node, 0]));
    each("shut down at step", &ALL, |steps| {
        few(at_every_step(steps, &ends))
    });
}

/// A message on its way is changed, doubled, lost or overtaken.
#[test]
fn a_message_is_twisted_at_every_step() {
    let mut dice = Dice(7);
    let twists = (0..23).map(|number| {
        let how = dice.next() / 8 * 8 + number % 8;
        Step::Twist([number / 8 % 2, dice.next(), how, dice.next()])
    });
    let twists: Vec<_> = twists.collect();
    each("twisted at step", &[0, 1, 2], |steps| {
        few(at_every_step(steps, &twists))
    });
}

/// At either end.
fn ends(fault: Fault) -> [Step; 3] {
    [HERE, THERE, HERE].map(|end| Step::Fault(fault, [end, 0]))
}
