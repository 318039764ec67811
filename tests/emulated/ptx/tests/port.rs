//! The functions of device ports, called by a program's kernel on a weak memory, with a proxy beside it that does what they ask for; and with one order
//! weakened, which must fail with some seed.
//!
//! ```text
//! threads   write a source ─► put, flush ─► the proxy copies ─► read the target, which they have read before
//!           wait for a signal ─► read what the host has written before it
//! ```

#![allow(
    clippy::print_stdout,
    reason = "which seed showed it is of use to who reads the log"
)]

use std::sync::Arc;

use wharf_emulated_common::random::Random;
use wharf_emulated_ptx::{Bytes, Device, Grid, Launch, Memory, Program, Turn};

const FUNCTIONS: &str = include_str!("../../../../src/channel/port_channel/port.ptx");

/// A program's kernel. Each thread has a word of its own in source and target, and all of it is put, word by word.
const KERNEL: &str = "
.visible .entry rounds(.param .u64 port, .param .u64 source, .param .u64 target, .param .u64 news, .param .u64 wrong)
{
    .reg .b64 %port, %source, %target, %news, %wrong, %at, %value, %found, %kind, %ticket, %length, %looks;
    .reg .b32 %thread, %status, %round;
    .reg .pred %p;
    ld.param.u64 %port, [port]; ld.param.u64 %source, [source]; ld.param.u64 %target, [target];
    ld.param.u64 %news, [news]; ld.param.u64 %wrong, [wrong];
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %at, %thread, 8;
    add.u64 %source, %source, %at; add.u64 %target, %target, %at;
    mov.u64 %looks, 1000000; mov.u64 %length, 8;
    mov.u32 %round, 0;
L:  add.u32 %round, %round, 1;
    mad.wide.u32 %value, %round, 1000, %at;
    st.global.u64 [%source], %value;
    mov.u64 %kind, 5;
    {
        .param .b64 a; .param .b64 b; .param .b64 c; .param .b64 d; .param .b64 e; .param .b64 f; .param .b64 g;
        st.param.b64 [a], %port; st.param.b64 [b], %at; st.param.b64 [c], %at; st.param.b64 [d], %length;
        st.param.b64 [e], %kind; st.param.b64 [f], %looks;
        call.uni (g), wharf_port_put, (a, b, c, d, e, f);
        ld.param.b64 %ticket, [g];
    }
    {
        .param .b64 a; .param .b64 b; .param .b64 c; .param .b32 d;
        st.param.b64 [a], %port; st.param.b64 [b], %ticket; st.param.b64 [c], %looks;
        call.uni (d), wharf_port_flush, (a, b, c);
        ld.param.b32 %status, [d];
    }
    setp.ne.u32 %p, %status, 0;
    @%p trap;
    ld.global.u64 %found, [%target];
    setp.ne.u64 %p, %found, %value;
    @%p st.global.u64 [%wrong], %value;
    // What comes by a signal is older than it, and may be newer than what is read here.
    ld.global.u64 %found, [%news];
    {
        .param .b64 a; .param .b64 b; .param .b32 c;
        st.param.b64 [a], %port; st.param.b64 [b], %looks;
        call.uni (c), wharf_port_wait, (a, b);
        ld.param.b32 %status, [c];
    }
    setp.ne.u32 %p, %status, 0;
    @%p trap;
    ld.global.u64 %found, [%news];
    cvt.u64.u32 %value, %round;
    setp.lt.u64 %p, %found, %value;
    @%p st.global.u64 [%wrong], %value;
    // Each takes one signal of a round.
    bar.sync 0;
    setp.lt.u32 %p, %round, 5;
    @%p bra L;
    ret;
}";

const START: u64 = 0x7000_0000_0000;
const RING: u64 = START;
const TAIL: u64 = START + 512;
const DONE: u64 = START + 640;
const FAILED: u64 = START + 768;
const HEAD: u64 = START + 896;
const ARRIVED: u64 = START + 1024;
const TAKEN: u64 = START + 1152;
const HANDLE: u64 = START + 1280;
const NEWS: u64 = START + 1408;
const WRONG: u64 = START + 1536;
const SOURCE: u64 = START + 2048;
const TARGET: u64 = START + 4096;

const SHIFT: u32 = 2;
const THREADS: u32 = 7;
const ROUNDS: u64 = 5;
/// As the words of a trigger have them: source memory 3, destination 5, semaphore 9.
const BASE: u64 = 3 << 32 | 5 << 41 | 9 << 53;

/// What the host does, a step at a time.
#[derive(Default)]
struct Proxy {
    next: u64,
    given_back: u64,
    puts: u64,
    /// Rounds that were told of.
    told: u64,
}

impl Proxy {
    fn step(&mut self, memory: &Bytes, is_late: bool) -> Result<(), String> {
        let load = |at| memory.load(at, 8).expect("memory");
        let store = |at, value| memory.store(at, 8, value).expect("memory");
        if self.puts / u64::from(THREADS) > self.told {
            // The round is over, and perhaps known to be. A signal for each thread, and news before the first.
            self.told += u64::from(is_late);
            store(NEWS, self.told);
            store(ARRIVED, self.told * u64::from(THREADS));
        }
        let slot = RING + self.next % (1 << SHIFT) * 16;
        let second = load(slot + 8);
        let parity = self.next >> SHIFT & 1 ^ 1;
        if second >> 63 != parity {
            // Nothing there: what was taken is given back.
            store(TAIL, self.next);
            self.given_back = self.next;
            return Ok(());
        }
        let first = load(slot);
        self.next += 1;
        if self.next - self.given_back == 2 {
            store(TAIL, self.next);
            self.given_back = self.next;
        }
        let (size, from, to) = (first as u32, first >> 32, second & 0xFFFF_FFFF);
        if second & !(1 << 63) & !0xFFFF_FFFF != BASE | 5 << 50 || size != 8 || from != to {
            return Err(format!("a trigger of {first:#x} and {second:#x}"));
        }
        store(TARGET + to, load(SOURCE + from));
        self.puts += 1;
        store(DONE, self.next);
        Ok(())
    }
}

fn all(text: &str, seed: u64) -> Result<(), String> {
    let text = format!(".version 7.0\n.target sm_70\n.address_size 64\n{text}{KERNEL}");
    let program = Arc::new(Program::parse(&text).unwrap_or_else(|error| panic!("{error}")));
    let memory = Bytes::new(START, 8 << 10);
    memory.store(HANDLE, 4, 80).expect("memory");
    memory
        .store(HANDLE + 4, 4, u64::from(SHIFT))
        .expect("memory");
    let fields = [RING, HEAD, TAIL, DONE, FAILED, BASE, ARRIVED, TAKEN];
    for (field, at) in fields.into_iter().zip((HANDLE + 8..).step_by(8)) {
        memory.store(at, 8, field).expect("memory");
    }
    let entry = program.entry("rounds").expect("in the text");
    let arguments = Launch::arguments(&program, entry, &[HANDLE, SOURCE, TARGET, NEWS, WRONG]);
    let grid = Grid {
        blocks: 1,
        threads: THREADS,
    };
    let device = Device::new(seed);
    let mut launch = Launch::new(&program, entry, &arguments, grid, seed);
    let (mut random, mut proxy) = (Random::new(seed), Proxy::default());
    let mut turns = 0;
    loop {
        if random.up_to(3) == 0 {
            let is_late = random.up_to(7) == 0;
            proxy.step(&memory, is_late)?;
        } else if launch
            .turn(&device, &memory)
            .map_err(|fault| fault.to_string())?
            == Turn::Over
        {
            break;
        }
        turns += 1;
        if turns == 200_000 {
            return Err("it goes on for ever".to_owned());
        }
    }
    device.settle(&memory).map_err(|fault| fault.to_string())?;
    if proxy.next != ROUNDS * u64::from(THREADS) {
        return Err(format!("{} triggers", proxy.next));
    }
    match memory.load(WRONG, 8).expect("memory") {
        0 => Ok(()),
        value => Err(format!("not {value}, as it should be")),
    }
}

#[test]
fn put_flush_and_wait() {
    for seed in 0..300 {
        all(FUNCTIONS, seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn each_order_is_needed() {
    let lines: Vec<&str> = FUNCTIONS.lines().collect();
    let mut places = 0;
    for (number, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let Some(order) = [".release.", ".acquire."]
            .into_iter()
            .find(|order| code.contains(order))
        else {
            continue;
        };
        // Here no store is done before a load in front of it.
        if lines[number - 1].contains("orders stores alone") {
            continue;
        }
        places += 1;
        let mut changed: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        changed[number] = code.replace(order, ".relaxed.");
        let text = changed.join("\n");
        let failed = (0..100).find_map(|seed| all(&text, seed).err().map(|why| (seed, why)));
        match failed {
            Some((seed, why)) => println!("{}: seed {seed}: {why}", code.trim()),
            None => panic!("{}: no seed fails", code.trim()),
        }
    }
    assert_eq!(places, 3);
}
