//! wharf's own kernels, run from their text on a weak memory; and the same text with one order in it weakened, which must fail with some seed.
//!
//! ```text
//! device 0   put of round r ─► signal ─► wait for the answer ─► put of round r + 1 ─► …       the host looks
//! device 1   wait ─► copies what has come, by plain loads ─► signals ─► wait ─► …        ──►  at what was copied
//! ```

#![allow(
    clippy::print_stdout,
    reason = "which seed showed it is of use to who reads the log"
)]

use std::{collections::VecDeque, sync::Arc};

use wharf_emulated_common::random::Random;
use wharf_emulated_ptx::{Bytes, Device, Grid, Launch, Memory, Program, Turn};

const TEXT: &str = include_str!("../../../../src/channel/device/channel.ptx");

/// Where the memory begins, and what is where in it.
const START: u64 = 0x7000_0000_0000;
const TOKENS: [u64; 2] = [START, START + 128];
const TAKEN: [u64; 2] = [START + 256, START + 384];
const SENT: [u64; 2] = [START + 512, START + 640];
const DONE: [u64; 2] = [START + 768, START + 896];
const STATUS: u64 = START + 1024;
const TARGET: u64 = START + (8 << 10);
const PACKETS: u64 = START + (16 << 10);
const SOURCES: u64 = START + (64 << 10);
const COPIES: u64 = START + (128 << 10);
const EACH: u64 = 8 << 10;
const ROOM: usize = 256 << 10;

const ROUNDS: u64 = 4;
/// More than any run takes.
const LOOKS: u64 = 1 << 20;
const LENGTH: u64 = 2_021;
const GRID: Grid = Grid {
    blocks: 3,
    threads: 32,
};
const ALONE: Grid = Grid {
    blocks: 1,
    threads: 1,
};

/// Launches of a device, one after the other.
struct Stream {
    queue: VecDeque<Launch>,
}

impl Stream {
    fn turn(&mut self, device: &Device, memory: &Bytes) -> Result<bool, String> {
        let Some(first) = self.queue.front_mut() else {
            return Ok(false);
        };
        let turn = first.turn(device, memory);
        if turn.map_err(|fault| fault.to_string())? == Turn::Over {
            self.queue.pop_front();
        }
        Ok(true)
    }
}

/// A text, and a seed of everything.
struct Bed {
    program: Arc<Program>,
    seed: u64,
    streams: [Stream; 2],
}

impl Bed {
    fn new(text: &str, seed: u64) -> Self {
        let program = Program::parse(text).unwrap_or_else(|error| panic!("{error}"));
        Self {
            program: Arc::new(program),
            seed,
            streams: [(); 2].map(|()| Stream {
                queue: VecDeque::new(),
            }),
        }
    }

    fn enqueue(&mut self, device: usize, name: &str, grid: Grid, arguments: &[u64]) {
        let entry = self.program.entry(name).expect("in the text");
        let arguments = Launch::arguments(&self.program, entry, arguments);
        self.seed += 1;
        let seed = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let launch = Launch::new(&self.program, entry, &arguments, grid, seed);
        self.streams[device].queue.push_back(launch);
    }

    /// Both devices at the same time, in any order; then the host looks.
    fn run(&mut self, memory: &Bytes) -> Result<(), String> {
        let mut random = Random::new(self.seed);
        let devices = [1, 2].map(|number| Device::new(self.seed << 2 | number));
        loop {
            let first = random.up_to(1) as usize;
            let mut worked = false;
            for number in [first, 1 - first] {
                worked |= self.streams[number].turn(&devices[number], memory)?;
                if random.up_to(1) == 0 && worked {
                    break;
                }
            }
            if !worked {
                break;
            }
        }
        for device in &devices {
            device.settle(memory).map_err(|fault| fault.to_string())?;
        }
        match memory.load(STATUS, 4).expect("memory") {
            0 => Ok(()),
            _ => Err("waited in vain".to_owned()),
        }
    }
}

/// How a put tells of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tells {
    Itself,
    BySignal,
    ByStore,
}

fn memory() -> Bytes {
    let memory = Bytes::new(START, ROOM);
    for round in 0..ROUNDS {
        let bytes: Vec<u8> = (0..EACH).map(|at| byte(round, at)).collect();
        memory
            .write(SOURCES + round * EACH, &bytes)
            .expect("memory");
    }
    memory
}

fn byte(round: u64, at: u64) -> u8 {
    ((round + 1) * 83 + at * 37 % 251) as u8
}

/// Puts with signals, in turns.
fn puts(text: &str, seed: u64, tells: Tells) -> Result<(), String> {
    let memory = memory();
    let mut bed = Bed::new(text, seed << 16);
    // Words, words and bytes, bytes.
    let shift = seed % 3;
    let (shift, length) = if shift == 2 {
        (1, 333)
    } else {
        (0, LENGTH - 5 * shift)
    };
    for round in 0..ROUNDS {
        let from = SOURCES + round * EACH;
        let token = if tells == Tells::Itself { TOKENS[1] } else { 0 };
        let put = [TARGET + shift, from, length, DONE[0], token, 1];
        bed.enqueue(0, "wharf_put", GRID, &put);
        match tells {
            Tells::Itself => {}
            Tells::BySignal => bed.enqueue(0, "wharf_signal", ALONE, &[TOKENS[1], 1]),
            Tells::ByStore => {
                bed.enqueue(0, "wharf_signal_store", ALONE, &[TOKENS[1], SENT[0], 1]);
            }
        }
        let wait = |own: usize| [TOKENS[own], TAKEN[own], LOOKS, STATUS];
        bed.enqueue(0, "wharf_wait", ALONE, &wait(0));
        bed.enqueue(1, "wharf_wait", ALONE, &wait(1));
        let copy = [COPIES + round * EACH, TARGET + shift, length, DONE[1], 0, 0];
        bed.enqueue(1, "wharf_put", GRID, &copy);
        bed.enqueue(1, "wharf_signal", ALONE, &[TOKENS[0], 1]);
    }
    bed.run(&memory)?;
    for round in 0..ROUNDS {
        let mut found = vec![0; length as usize + 1];
        memory
            .read(COPIES + round * EACH, &mut found)
            .expect("memory");
        let mut expected = Vec::from_iter((0..length).map(|at| byte(round, at)));
        expected.push(0);
        if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
            return Err(format!("{tells:?}: byte {at} of round {round}"));
        }
    }
    Ok(())
}

/// Packets, which need no signal. The flags of each round are others.
fn packets(text: &str, seed: u64) -> Result<(), String> {
    let memory = memory();
    let mut bed = Bed::new(text, seed << 16);
    let length = 700 + seed % 9;
    for round in 0..ROUNDS {
        let from = SOURCES + round * EACH + seed % 2;
        let (words, flag) = (length.div_ceil(4), round + 1);
        let at = PACKETS + round % 2 * EACH;
        let put = [at, from, length, words, flag];
        bed.enqueue(0, "wharf_packets_put", GRID, &put);
        bed.enqueue(
            0,
            "wharf_wait",
            ALONE,
            &[TOKENS[0], TAKEN[0], LOOKS, STATUS],
        );
        let to = COPIES + round * EACH + seed % 3;
        let get = [to, at, length, flag, LOOKS, STATUS];
        bed.enqueue(1, "wharf_packets_get", GRID, &get);
        bed.enqueue(1, "wharf_signal", ALONE, &[TOKENS[0], 1]);
    }
    bed.run(&memory)?;
    for round in 0..ROUNDS {
        let mut found = vec![0; length as usize];
        let at = COPIES + round * EACH + seed % 3;
        memory.read(at, &mut found).expect("memory");
        let expected = (0..length).map(|at| byte(round, at + seed % 2));
        if !expected.eq(found) {
            return Err(format!("packets of round {round}"));
        }
    }
    Ok(())
}

fn all(text: &str, seed: u64) -> Result<(), String> {
    puts(text, seed, Tells::Itself)?;
    puts(text, seed, Tells::BySignal)?;
    puts(text, seed, Tells::ByStore)?;
    packets(text, seed)
}

#[test]
fn as_they_are() {
    for seed in 0..150 {
        all(TEXT, seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// Each order of the text, weakened: where, what it was, and the text with it.
fn weakened(text: &str) -> Vec<(usize, String, String)> {
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let others: &[(&str, &str)] = &[
            (".release.", ".relaxed."),
            (".acquire.", ".relaxed."),
            (".acq_rel.", ".relaxed."),
            (".acq_rel.", ".acquire."),
            ("bar.sync 0;", ""),
        ];
        for (was, is) in others.iter().filter(|(was, _)| code.contains(was)) {
            let mut changed: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            changed[number] = code.replace(was, is);
            found.push((
                number + 1,
                format!("{} → {is}", code.trim()),
                changed.join("\n"),
            ));
        }
    }
    found
}

#[test]
fn each_order_is_needed() {
    let places = weakened(TEXT);
    assert!(places.len() >= 7, "{}", places.len());
    for (line, what, text) in places {
        let failed = (0..60).find_map(|seed| all(&text, seed).err().map(|why| (seed, why)));
        match failed {
            Some((seed, why)) => println!("line {line}: {what}: seed {seed}: {why}"),
            None => panic!("line {line}: {what}: no seed fails"),
        }
    }
}
