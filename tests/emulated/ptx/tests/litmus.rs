//! What the memory promises and what it does not, by the smallest texts that tell; and what the interpreter reads.

use std::sync::Arc;

use wharf_emulated_common::random::Random;
use wharf_emulated_ptx::{Bytes, Device, Fault, Grid, Launch, Memory, Program, Turn};

const START: u64 = 0x1000;
const DATA: u64 = START;
const FLAG: u64 = START + 256;
const FOUND: u64 = START + 512;

fn module(body: &str) -> String {
    format!(".version 7.0\n.target sm_70\n.address_size 64\n{body}")
}

/// Where the two threads of a litmus test are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    OneBlock,
    TwoBlocks,
    TwoDevices,
}

/// Passes a message: thread 0 writes and tells, thread 1 has read before, is told, and reads. How many of the seeds see an old value.
fn old_values(tell: &str, is_told: &str, place: Where) -> u32 {
    let text = module(&format!(
        ".visible .entry pass(.param .u64 data, .param .u64 flag, .param .u64 found, .param .u32 role)
        {{
            .reg .u64 %d<4>; .reg .u32 %v, %f, %r, %t, %b; .reg .pred %p;
            ld.param.u64 %d0, [data]; ld.param.u64 %d1, [flag]; ld.param.u64 %d2, [found];
            ld.param.u32 %r, [role];
            mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x;
            add.u32 %t, %t, %b; add.u32 %r, %r, %t;
            setp.eq.u32 %p, %r, 0;
            @!%p bra reads;
            mov.u32 %v, 7; mov.u32 %f, 1;
            st.global.u32 [%d0], %v;
            {tell}
            // Nothing is seen by the end of the block.
            mov.u32 %t, 0;
        lingers:
            add.u32 %t, %t, 1;
            setp.lt.u32 %p, %t, 400;
            @%p bra lingers;
            ret;
        reads:
            ld.global.u32 %v, [%d0];
        again:
            {is_told}
            setp.eq.u32 %p, %f, 0;
            @%p bra again;
            ld.global.u32 %v, [%d0];
            st.global.u32 [%d2], %v;
            ret;
        }}"
    ));
    let program = Arc::new(Program::parse(&text).unwrap_or_else(|error| panic!("{error}")));
    let mut old = 0;
    for seed in 0..200 {
        let memory = Bytes::new(START, 1024);
        let devices = [Device::new(seed), Device::new(seed + 1)];
        let launch = |role: u64, blocks, threads| {
            let arguments = [DATA, FLAG, FOUND, role];
            let arguments = Launch::arguments(&program, 0, &arguments);
            Launch::new(
                &program,
                0,
                &arguments,
                Grid { blocks, threads },
                seed * 2 + role,
            )
        };
        let mut launches = match place {
            Where::OneBlock => vec![(0, launch(0, 1, 2))],
            Where::TwoBlocks => vec![(0, launch(0, 2, 1))],
            Where::TwoDevices => vec![(0, launch(0, 1, 1)), (1, launch(1, 1, 1))],
        };
        let mut random = Random::new(seed);
        while !launches.is_empty() {
            let next = random.up_to(launches.len() as u64 - 1) as usize;
            let (device, launch) = &mut launches[next];
            if launch.turn(&devices[*device], &memory).expect("no fault") == Turn::Over {
                launches.remove(next);
            }
        }
        devices
            .iter()
            .for_each(|device| device.settle(&memory).expect("memory"));
        match memory.load(FOUND, 4).expect("memory") {
            7 => {}
            0 => old += 1,
            other => panic!("{other} was never written"),
        }
    }
    old
}

#[test]
fn messages_pass_within_their_scope() {
    let scopes = [
        ("cta", Where::OneBlock),
        ("gpu", Where::TwoBlocks),
        ("sys", Where::TwoDevices),
    ];
    for (reach, (scope, _)) in scopes.iter().enumerate() {
        for (index, (_, place)) in scopes.iter().enumerate() {
            let pairs = [
                (
                    format!("st.release.{scope}.global.u32 [%d1], %f;"),
                    format!("ld.acquire.{scope}.global.u32 %f, [%d1];"),
                ),
                (
                    format!("fence.acq_rel.{scope}; st.relaxed.{scope}.global.u32 [%d1], %f;"),
                    format!("ld.relaxed.{scope}.global.u32 %f, [%d1]; fence.sc.{scope};"),
                ),
                (
                    format!("red.release.{scope}.global.add.u32 [%d1], %f;"),
                    format!("atom.acquire.{scope}.global.add.u32 %f, [%d1], 0;"),
                ),
            ];
            for (tell, is_told) in pairs {
                // Beyond its scope a flag need not be seen at all.
                if index > reach {
                    continue;
                }
                let old = old_values(&tell, &is_told, *place);
                assert_eq!(old, 0, "{tell} {is_told} {place:?}");
            }
        }
    }
}

#[test]
fn messages_do_not_pass_otherwise() {
    for (tell, is_told, place) in [
        // Too narrow.
        (
            "st.release.cta.global.u32 [%d1], %f; st.relaxed.gpu.global.u32 [%d1], %f;",
            "ld.acquire.gpu.global.u32 %f, [%d1];",
            Where::TwoBlocks,
        ),
        (
            "fence.acq_rel.gpu; st.relaxed.sys.global.u32 [%d1], %f;",
            "ld.acquire.sys.global.u32 %f, [%d1];",
            Where::TwoDevices,
        ),
        (
            "fence.acq_rel.sys; st.relaxed.sys.global.u32 [%d1], %f;",
            "ld.relaxed.sys.global.u32 %f, [%d1]; fence.acq_rel.gpu;",
            Where::TwoDevices,
        ),
        // No release, no acquire.
        (
            "st.relaxed.cta.global.u32 [%d1], %f;",
            "ld.acquire.cta.global.u32 %f, [%d1];",
            Where::OneBlock,
        ),
        (
            "st.volatile.global.u32 [%d1], %f;",
            "ld.acquire.sys.global.u32 %f, [%d1];",
            Where::TwoDevices,
        ),
        (
            "st.release.sys.global.u32 [%d1], %f;",
            "ld.volatile.global.u32 %f, [%d1];",
            Where::TwoDevices,
        ),
        (
            "red.global.add.u32 [%d1], %f;",
            "ld.acquire.gpu.global.u32 %f, [%d1];",
            Where::TwoBlocks,
        ),
    ] {
        assert!(old_values(tell, is_told, place) > 0, "{tell} {is_told}");
    }
}

fn run(text: &str, arguments: &[u64], grid: (u32, u32), memory: &Bytes) -> Result<(), Fault> {
    let program = Arc::new(Program::parse(text).unwrap_or_else(|error| panic!("{error}")));
    let entry = program.entry("main").expect("in the text");
    let arguments = Launch::arguments(&program, entry, arguments);
    let (blocks, threads) = grid;
    let device = Device::new(3);
    let launch = Launch::new(&program, entry, &arguments, Grid { blocks, threads }, 5);
    launch.run_alone(&device, memory)?;
    device.settle(memory)
}

/// A thread sees its own stores in order, however late others do.
#[test]
fn a_thread_sees_its_own() {
    let text = module(
        ".visible .entry main(.param .u64 at)
        {
            .reg .u64 %d; .reg .u32 %i, %v, %w; .reg .pred %p;
            ld.param.u64 %d, [at];
            mov.u32 %w, %tid.x; mul.wide.u32 %d, %w, 8; .reg .u64 %e; ld.param.u64 %e, [at]; add.u64 %d, %d, %e;
            mov.u32 %i, 0;
        L:  add.u32 %i, %i, 1;
            st.global.u32 [%d], %i;
            st.global.u8 [%d+4], %i;
            st.volatile.global.u16 [%d+4], %i;
            ld.global.u32 %v, [%d];
            setp.ne.u32 %p, %v, %i;
            @%p trap;
            ld.global.u8 %v, [%d+4];
            and.b32 %w, %i, 255;
            setp.ne.u32 %p, %v, %w;
            @%p trap;
            atom.add.global.u32 %v, [%d], 0;
            setp.ne.u32 %p, %v, %i;
            @%p trap;
            setp.lt.u32 %p, %i, 300;
            @%p bra L;
            ret;
        }",
    );
    let memory = Bytes::new(START, 1024);
    run(&text, &[START], (1, 40), &memory).expect("no trap");
    for thread in 0..40 {
        assert_eq!(memory.load(START + 8 * thread, 4), Ok(300));
    }
}

#[test]
fn functions_and_arithmetic() {
    let text = module(
        ".func (.param .b64 product, .param .b32 sign) signed(.param .b32 one, .param .b32 two);
        .visible .entry main(.param .align 8 .b8 all[24])
        {
            .reg .b64 %at, %w<3>; .reg .b32 %one, %two, %r<6>; .reg .b16 %h; .reg .pred %p, %q;
            ld.param.u64 %at, [all];
            ld.param.v2.u32 {%one, %two}, [all+8];
            {
                .param .b32 a; .param .b32 b; .param .b64 c; .param .b32 d;
                st.param.b32 [a], %one;
                st.param.b32 [b], %two;
                call.uni (c, d), signed, (a, b);
                ld.param.b64 %w0, [c];
                ld.param.b32 %r0, [d];
            }
            st.global.v2.u64 [%at], {%w0, -1};
            st.global.u32 [%at+16], %r0;
            shr.s32 %r1, %one, 40; shr.u32 %r2, %one, 40; shl.b32 %r3, %one, 31;
            st.global.v4.u32 [%at+32], {%r1, %r2, %r3, 0x10};
            mad.wide.s32 %w1, %one, %two, %w0;
            cvt.s64.s32 %w2, %one;
            st.global.v2.u64 [%at+48], {%w1, %w2};
            cvt.u16.u32 %h, %one; cvt.s32.s16 %r4, %h;
            min.s32 %r5, %one, %two;
            setp.lt.s32 %p, %one, %two; setp.lt.and.u32 %q, %one, %two, %p;
            selp.b32 %r1, 1, 2, %p; selp.b32 %r2, 1, 2, %q;
            st.global.v4.u32 [%at+64], {%r4, %r5, %r1, %r2};
            ret;
        }
        .func (.param .b64 product, .param .b32 sign) signed(.param .b32 one, .param .b32 two)
        {
            .reg .b32 %a, %b, %s; .reg .b64 %c; .reg .pred %p;
            ld.param.b32 %a, [one]; ld.param.b32 %b, [two];
            mul.wide.s32 %c, %a, %b;
            setp.lt.s64 %p, %c, 0;
            mov.u32 %s, 1;
            @%p neg.s32 %s, %s;
            st.param.b64 [product], %c;
            st.param.b32 [sign], %s;
            ret;
        }",
    );
    let memory = Bytes::new(START, 1024);
    let program = Arc::new(Program::parse(&text).unwrap_or_else(|error| panic!("{error}")));
    let entry = program.entry("main").expect("in the text");
    let mut arguments = START.to_le_bytes().to_vec();
    arguments.extend((-6_i32).to_le_bytes());
    arguments.extend(1_000_000_007_i32.to_le_bytes());
    let grid = Grid {
        blocks: 1,
        threads: 1,
    };
    let device = Device::new(1);
    let launch = Launch::new(&program, entry, &arguments, grid, 1);
    launch.run_alone(&device, &memory).expect("no fault");
    device.settle(&memory).expect("memory");
    let long = |at: u64| memory.load(START + at, 8).expect("memory").cast_signed();
    let word = |at: u64| memory.load(START + at, 4).expect("memory") as u32;
    assert_eq!((long(0), long(8)), (-6_000_000_042, -1));
    assert_eq!(word(16).cast_signed(), -1);
    assert_eq!([32, 36, 40, 44].map(word), [u32::MAX, 0, 0, 16]);
    assert_eq!((long(48), long(56)), (-12_000_000_084, -6));
    assert_eq!(
        [64, 68, 72, 76].map(word),
        [(-6_i32).cast_unsigned(), (-6_i32).cast_unsigned(), 1, 2]
    );
}

#[test]
fn faults() {
    let memory = Bytes::new(START, 1024);
    let text = |what: &str| {
        module(&format!(
            ".visible .entry main(.param .u64 at) {{ .reg .u64 %a, %v; ld.param.u64 %a, [at]; {what} ret; }}"
        ))
    };
    let store = text("st.global.u64 [%a], 1;");
    let load = text("ld.global.u64 %v, [%a];");
    for text in [&store, &load] {
        assert_eq!(run(text, &[START], (1, 1), &memory), Ok(()));
        let gone = run(text, &[START + 1024], (1, 1), &memory);
        assert!(matches!(gone, Err(Fault::Address(..))), "{gone:?}");
        let odd = run(text, &[START + 4], (1, 1), &memory);
        assert_eq!(odd, Err(Fault::Misaligned(START + 4, 8)));
    }
    assert_eq!(
        run(&text("trap;"), &[START], (1, 1), &memory),
        Err(Fault::Trap)
    );
}

#[test]
fn what_is_not_known_is_refused() {
    for (line, why) in [
        ("add.f32 %a, %a, %a;", "no floating point"),
        ("ld.shared.u64 %a, [%a];", ".shared is not known"),
        ("ld.acquire.global.u64 %a, [%a];", "without a scope"),
        (
            "ld.release.sys.global.u64 %a, [%a];",
            "a load that releases",
        ),
        ("ld.global.v2.u64 %a, [%a];", "with 1 registers"),
        ("tex.2d.u64 %a, [%a];", "is not known"),
        ("bra nowhere;", "no label nowhere"),
        ("mov.u64 %b, %a;", "%b is no register"),
        ("call nobody;", "no such function"),
        ("st.global.u64 [%a], 1", "';' is missing"),
    ] {
        let text = module(&format!(
            ".visible .entry main()\n{{\n.reg .u64 %a;\n{line}\n}}"
        ));
        let malformed = Program::parse(&text).expect_err(line);
        let said = malformed.to_string();
        assert!(said.contains(why), "{line}: {said}");
        assert!((7..=8).contains(&malformed.line), "{line}: {said}");
    }
}
