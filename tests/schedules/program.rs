//! Programs: what is begun, what the script lets happen, and what goes wrong; made from a seed, and made shorter where one fails.

/// The next of a row of numbers that look drawn at random.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One step. Numbers are taken modulo what there is to choose among at that moment, so that any row of steps is a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An operation is begun, or made and not yet polled.
    Act(Act, [u32; 4]),
    /// A task that was woken is polled.
    Poll(u32),
    /// A pass of a worker.
    Pass(u32),
    /// Messages of one direction of one link arrive.
    Arrive(u32, u32),
    /// Room on one direction of a link, and how much of a long payload may land.
    Room(u32, u32),
    Flow(u32, u32),
    /// A task is dropped, or called off where it was posted.
    Drop(u32),
    CallOff(u32),
    /// Everything that can happen happens.
    Rest,
    /// A message on its way is changed, sent twice, lost, or put before others.
    Twist([u32; 4]),
    Fault(Fault, [u32; 2]),
    /// A program of a group is over: what must hold then holds.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Send,
    Recv,
    Claim,
    Take,
    Put,
    Get,
    Atomic,
    Flush,
    Am,
    Inbox,
    Open,
    Accept,
    Signal,
    Wait,
    Ready,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One end closes, aborts, or lets go of its last handle.
    Close,
    Abort,
    Leave,
    /// The link breaks.
    Cut,
    /// A worker is driven no more, and its links are reset.
    Kill,
    Shutdown,
}

/// Lengths of messages and the like: around the limits between the ways that they take.
const LENGTHS: [usize; 14] = [
    8, 9, 40, 48, 49, 200, 1000, 2999, 3008, 4999, 5000, 8000, 9000, 20_000,
];

/// A length, most often a short one.
pub(crate) fn length(roll: u32) -> usize {
    let most = roll as usize % LENGTHS.len();
    LENGTHS[(roll >> 8) as usize % (most + 1)]
}

/// What programs of a group may have in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Nothing goes wrong, and a connection serves many.
    Fair,
    Faulty,
    Hostile,
}

pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u32 {
        (split_mix(&mut self.0) >> 32) as u32
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.next() % end.max(1)
    }

    fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u32) as usize]
    }

    fn four(&mut self) -> [u32; 4] {
        [(); 4].map(|()| self.next())
    }
}

const ACTS: [Act; 24] = [
    Act::Send,
    Act::Send,
    Act::Send,
    Act::Send,
    Act::Recv,
    Act::Recv,
    Act::Recv,
    Act::Claim,
    Act::Take,
    Act::Put,
    Act::Put,
    Act::Get,
    Act::Atomic,
    Act::Flush,
    Act::Am,
    Act::Am,
    Act::Inbox,
    Act::Inbox,
    Act::Open,
    Act::Accept,
    Act::Signal,
    Act::Wait,
    Act::Ready,
    Act::Flush,
];

const FAULTS: [Fault; 10] = [
    Fault::Close,
    Fault::Close,
    Fault::Abort,
    Fault::Leave,
    Fault::Leave,
    Fault::Cut,
    Fault::Cut,
    Fault::Cut,
    Fault::Kill,
    Fault::Shutdown,
];

/// The program of a seed.
pub(crate) fn program(seed: u64, sort: Sort) -> Vec<Step> {
    let mut dice = Dice(seed ^ 0x5eed_0000_0000);
    let count = 10 + dice.below(70);
    // Some programs are of few verbs, so that these meet.
    let mut acts = ACTS.to_vec();
    if dice.below(3) > 0 {
        acts = (0..1 + dice.below(5)).map(|_| dice.pick(&ACTS)).collect();
        if acts.contains(&Act::Send) {
            acts.push(Act::Recv);
        }
    }
    let busy = dice.pick(&[2, 5, 10]);
    let (mut drops, mut weather) = (dice.pick(&[0, 1, 3]), dice.pick(&[0, 1, 3, 6]));
    let mut steps = Vec::with_capacity(count as usize + 1);
    // Where long messages come slowly, much happens while they do.
    let is_slow = dice.below(6) == 0;
    if is_slow {
        (drops, weather) = (4, 3);
        steps.extend((0..4).map(|way| Step::Flow(way, 1 + dice.below(2))));
    }
    for _ in 0..count {
        let (one, other) = (dice.next(), dice.next());
        let step = match dice.below(30) {
            roll if roll < 8 => {
                let mut args = dice.four();
                while is_slow && length(args[2]) < 3000 {
                    args[2] = dice.next();
                }
                Step::Act(dice.pick(&acts), args)
            }
            roll if roll < 8 + busy => match roll % 2 {
                0 => Step::Arrive(one, other),
                _ => Step::Poll(one),
            },
            roll if roll < 8 + busy + drops => match roll % 2 {
                0 => Step::Drop(one),
                _ => Step::CallOff(one),
            },
            roll if roll < 8 + busy + drops + weather => match roll % 2 {
                0 => Step::Room(one, other),
                _ => Step::Flow(one, other),
            },
            26 => Step::Rest,
            roll => match roll % 3 {
                0 => Step::Arrive(one, other),
                1 => Step::Poll(one),
                _ => Step::Pass(one),
            },
        };
        steps.push(step);
    }
    let at = |dice: &mut Dice| dice.below(count + 1) as usize;
    match sort {
        Sort::Fair => {}
        Sort::Faulty => {
            for _ in 0..1 + dice.below(3) {
                let fault = Step::Fault(dice.pick(&FAULTS), [dice.next(), dice.next()]);
                let at = at(&mut dice).min(steps.len());
                steps.insert(at, fault);
            }
        }
        Sort::Hostile => {
            for _ in 0..1 + dice.below(6) {
                let twist = Step::Twist(dice.four());
                let at = at(&mut dice).min(steps.len());
                steps.insert(at, twist);
            }
        }
    }
    steps.push(Step::End);
    steps
}

/// Takes steps away for as long as the program fails all the same, up to so many tries.
pub(crate) fn shrink(
    mut steps: Vec<Step>,
    mut tries: usize,
    mut fails: impl FnMut(&[Step]) -> bool,
) -> Vec<Step> {
    let mut part = steps.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < steps.len() && tries > 0 {
            tries -= 1;
            let mut fewer = steps.clone();
            fewer.drain(at..(at + part).min(steps.len()));
            match fails(&fewer) {
                true => steps = fewer,
                false => at += part,
            }
        }
        part = if part == 1 { 0 } else { part.div_ceil(2) };
    }
    steps
}
