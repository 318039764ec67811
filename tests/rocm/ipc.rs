//! `rocm_ipc` between two processes: by dma-bufs and by handles, opened once, freed, killed, lied to.

use tokio::runtime::Runtime;
use wharf::{
    Identity, MemoryType,
    transport::{
        accelerator::{Accelerator as _, Export, ImportedMemory},
        rocm::RocmCopy,
    },
};

use crate::{
    error::{Error, ErrorKind},
    fixture::{Bench, accelerator, block_until, calls, control, device_end, live, own, pattern},
    support::{
        Child, LIMIT, Parent, again, child, is_alone, open_fds, passes, this_test, watchdog,
    },
    sys::identity::identity,
};

const LEN: usize = 100_000;

/// One side of a test: obeys lines, in the test's own process or a second one.
struct Agent {
    accelerator: RocmCopy,
    bench: Bench,
    runtime: Runtime,
    held: Vec<ImportedMemory>,
    allocated: Vec<crate::program::Allocation>,
}

impl Agent {
    fn new() -> Self {
        let accelerator = accelerator();
        Self {
            bench: Bench::with(accelerator.clone()),
            accelerator,
            runtime: runtime(),
            held: Vec::new(),
            allocated: Vec::new(),
        }
    }

    /// Allocates with a pattern in it.
    fn allocate(&mut self, device: u16, seed: u64) -> u64 {
        let memory = own(device, LEN);
        let at = memory.address();
        control(&format!("fill {at:#x} {LEN} {seed}"));
        self.allocated.push(memory);
        at
    }

    fn export(&self, at: u64, len: u64) -> String {
        match self.accelerator.export(at, len) {
            Ok(Export::Descriptor(bytes)) => {
                assert!(bytes.len() <= Export::MAX);
                let again = self.accelerator.exported(at, len);
                assert_eq!(again, Some(Export::Descriptor(bytes.clone())));
                format!("ok {}", hex(&bytes))
            }
            Ok(Export::Impossible(why)) => format!("impossible {why}"),
            Err(error) => said(&error),
        }
    }

    /// Where it is here, and on which device. It stays open until `release`.
    fn import(&mut self, descriptor: &str, peer: &Identity) -> Result<(u64, u16), Error> {
        let import = self.accelerator.import(&unhex(descriptor), peer);
        let imported = self.runtime.block_on(watchdog(LIMIT, import))?;
        let MemoryType::Rocm(device) = imported.memory_type() else {
            panic!("{imported:?}");
        };
        let place = (imported.address(), device);
        self.held.push(imported);
        Ok(place)
    }

    /// What the other's memory has, by a copy.
    fn read(&mut self, (at, device): (u64, u16), len: usize) -> Vec<u8> {
        self.bench.fetch(device_end(at, device), len)
    }

    fn obey(&mut self, line: &str) -> String {
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["who"] => who(identity()),
            ["allocate", device, seed] => self
                .allocate(number(device) as u16, number(seed))
                .to_string(),
            ["free"] => {
                self.allocated.clear();
                "freed".to_owned()
            }
            ["export", at, len] => self.export(number(at), number(len)),
            ["import", descriptor, peer] => match self.import(descriptor, &peer_of(peer)) {
                Ok((at, device)) => format!("ok {at} {device}"),
                Err(error) => said(&error),
            },
            ["control", ..] => {
                control(line.split_once(' ').expect("a command").1).replace('\n', ", ")
            }
            ["fds"] => open_fds().to_string(),
            _ => panic!("{line:?} is no command"),
        }
    }
}

/// A second process.
struct Far {
    child: Child,
    runtime: Runtime,
    who: Identity,
}

impl Far {
    fn start(test: &str, variables: &[(&str, &str)]) -> Self {
        let mut this = Self {
            child: Child::start(test, "agent", variables),
            runtime: runtime(),
            who: identity().clone(),
        };
        this.who = peer_of(&this.ask("who"));
        this
    }

    fn ask(&mut self, line: impl std::fmt::Display) -> String {
        self.child.say(line);
        self.runtime.block_on(self.child.hear())
    }

    /// Allocates there and exports `len` bytes from `skip` on: the descriptor.
    fn export(&mut self, device: u16, seed: u64, skip: u64, len: usize) -> String {
        let at: u64 = self
            .ask(format_args!("allocate {device} {seed}"))
            .parse()
            .expect("an address");
        let answer = self.ask(format_args!("export {} {len}", at + skip));
        answer.strip_prefix("ok ").expect(&answer).to_owned()
    }

    fn finish(mut self) {
        self.child.say("quit");
        self.child.finish();
    }
}

fn serve(mut parent: Parent) {
    let mut agent = Agent::new();
    let runtime = runtime();
    loop {
        let line = runtime.block_on(parent.hear());
        if line == "quit" {
            return;
        }
        let answer = agent.obey(&line);
        parent.say(answer);
    }
}

fn runtime() -> Runtime {
    let builder = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    builder.expect("a runtime")
}

fn said(error: &Error) -> String {
    format!("{:?} {error}", error.kind()).replace('\n', " ")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("digits"))
        .collect()
}

fn who(identity: &Identity) -> String {
    format!(
        "{}:{}:{}:{}:{}:{}",
        hex(&identity.boot),
        identity.net_namespace,
        identity.pid_namespace,
        identity.user_namespace,
        identity.user,
        identity.pid
    )
}

fn peer_of(word: &str) -> Identity {
    let words: Vec<&str> = word.split(':').collect();
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    Identity {
        boot: unhex(words[0]).try_into().expect("16 bytes"),
        net_namespace: number(1),
        pid_namespace: number(2),
        user_namespace: number(3),
        user: number(4) as u32,
        pid: number(5) as u32,
    }
}

/// Runs a test in a process of its own, which has the emulator's state to itself and starts the second one.
fn alone(test: &str) {
    passes(&mut again(test));
}

/// The bytes that the emulator's `fill` writes, by a second fill here.
fn filled(seed: u64) -> Vec<u8> {
    let memory = own(0, LEN);
    control(&format!("fill {:#x} {LEN} {seed}", memory.address()));
    let mut bench = Bench::new();
    bench.fetch(device_end(memory.address(), 0), LEN)
}

/// By dma-bufs, by handles where the kernel exports none, and by handles of an exporter's whose kernel says that it can and does not.
const WAYS: [(&str, &str); 2] = [("EMULATED_HSA_DMABUF", "1"), ("EMULATED_HSA_DMABUF", "0")];

#[test]
fn the_other_process_reads_and_writes_it_and_opens_it_once() {
    if let Some(parent) = child("agent") {
        return serve(parent);
    }
    if !is_alone() {
        return alone(this_test!());
    }
    for way in WAYS {
        let mut near = Agent::new();
        let mut far = Far::start(this_test!(), &[way]);
        for device in [0, 1] {
            let seed = 40 + u64::from(device);
            let expected = filled(seed);
            let whole = far.export(device, seed, 0, LEN);
            let opened = (
                calls("hsa_amd_interop_map_buffer"),
                calls("hsa_amd_ipc_memory_attach"),
            );
            let place = near.import(&whole, &far.who).expect("opens");
            assert_eq!(place.1, device);
            assert!(near.read(place, LEN) == expected);
            // Once more, and a part of it: nothing is opened.
            let place = near.import(&whole, &far.who).expect("opens");
            let at = near
                .accelerator
                .imported(&unhex(&whole), &far.who)
                .expect("open");
            assert_eq!(at.address(), place.0);
            let now = (
                calls("hsa_amd_interop_map_buffer"),
                calls("hsa_amd_ipc_memory_attach"),
            );
            match way.1 {
                "1" => assert_eq!(now, (opened.0 + 1, opened.1)),
                _ => assert_eq!(now, (opened.0, opened.1 + 1)),
            }
            // Written by either device.
            let mut source = near.bench.allocate(MemoryType::Rocm(1 - device), LEN);
            near.bench.put(&mut source, &pattern(7, LEN));
            let end = device_end(place.0, place.1);
            near.bench.copy(source.end(0), end, LEN).expect("copies");
            assert!(near.read(place, LEN) == pattern(7, LEN));
            // Past its end is refused, and the device not lost.
            let refused = near
                .bench
                .copy(source.end(0), device_end(place.0 + 1, device), LEN);
            assert!(refused.is_err());
        }
        let exported = far.ask("control count hsa_amd_ipc_memory_create");
        assert_eq!(
            exported,
            if way.1 == "1" { "0" } else { "2" },
            "once for each allocation"
        );
        let _inside = near.runtime.enter();
        near.held.clear();
        drop(_inside);
        far.finish();
    }
}

#[test]
fn a_part_of_an_allocation() {
    if let Some(parent) = child("agent") {
        return serve(parent);
    }
    for way in WAYS {
        let mut near = Agent::new();
        let mut far = Far::start(this_test!(), &[way]);
        let expected = filled(9);
        let part = far.export(0, 9, 12_345, 777);
        let place = near.import(&part, &far.who).expect("opens");
        assert!(near.read(place, 777) == expected[12_345..12_345 + 777]);
        assert!(near.held[0].end(0, 778).is_none());
        far.finish();
    }
}

#[test]
fn an_exporter_that_is_killed_harms_nobody() {
    if let Some(parent) = child("agent") {
        return serve(parent);
    }
    if !is_alone() {
        return alone(this_test!());
    }
    for way in WAYS {
        let mut near = Agent::new();
        let mut far = Far::start(this_test!(), &[way]);
        let expected = filled(3);
        let open = far.export(0, 3, 0, LEN);
        let unopened = far.export(0, 4, 0, LEN);
        let place = near.import(&open, &far.who).expect("opens");
        // In the middle of copies out of it.
        let pinned = near.bench.pinned(LEN);
        control("hold 0");
        for token in 0..50 {
            let from = device_end(place.0, place.1);
            near.bench
                .begin(from, pinned.end(0), LEN, token)
                .expect("begins");
        }
        near.bench.engine.flush();
        far.child.kill();
        control("release");
        near.bench.drain(50);
        for (_, result) in near.bench.sink.done.drain(..) {
            result.expect("the memory stays until it is closed");
        }
        assert!(pinned.bytes() == expected);
        let error = near
            .import(&unopened, &far.who)
            .expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::PeerDied, "{error}");
        // What nobody uses is closed by the next opening.
        let inside = near.runtime.enter();
        near.held.clear();
        drop(inside);
        block_until("closing", || {
            let _ = near.import(&unopened, &far.who);
            live("mapped") + live("attached") == 0
        });
    }
}

/// An exporter without dma-bufs cannot be reached from where its handles do not lead; another user's memory never is.
#[test]
fn others_are_refused_before_the_runtime_is_asked() {
    if let Some(parent) = child("agent") {
        return serve(parent);
    }
    for way in WAYS {
        let mut near = Agent::new();
        let mut far = Far::start(this_test!(), &[way]);
        let bytes = far.export(0, 1, 0, LEN);
        let mut import = |change: &dyn Fn(&mut Identity), at: usize, value: u8| {
            let mut peer = far.who.clone();
            change(&mut peer);
            let mut bytes = unhex(&bytes);
            bytes[at] ^= value;
            seal(&mut bytes);
            near.import(&hex(&bytes), &peer)
                .map_err(|error| error.kind())
        };
        assert_eq!(import(&|_| {}, 48, 0).map(drop), Ok(()));
        // The user, little-endian at 48; what the peer is must agree.
        assert_eq!(import(&|_| {}, 48, 1), Err(ErrorKind::Protocol));
        let other = import(&|peer| peer.user ^= 1, 48, 1);
        assert_eq!(other, Err(ErrorKind::PermissionDenied));
        let namespace = import(&|peer| peer.pid_namespace ^= 1, 32, 1);
        match way.1 {
            "0" => assert_eq!(namespace, Err(ErrorKind::Unsupported)),
            _ => assert_ne!(namespace, Err(ErrorKind::Unsupported)),
        }
        // Another device's name, another way, another length.
        assert_eq!(import(&|_| {}, 80, 1), Err(ErrorKind::Unsupported));
        assert_eq!(import(&|_| {}, 6, 0x40), Err(ErrorKind::VersionMismatch));
        far.finish();
    }
}

/// The checksum at the end, over all before.
fn seal(bytes: &mut [u8]) {
    let (body, sum) = bytes.split_last_chunk_mut::<4>().expect("long enough");
    let mut crc = !0_u32;
    for byte in body {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    *sum = (!crc).to_le_bytes();
}

#[test]
fn what_was_freed_is_stale() {
    if let Some(parent) = child("agent") {
        return serve(parent);
    }
    let variables = [("EMULATED_HSA_REUSE", "1")];
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &variables);
    let old = far.export(0, 1, 0, LEN);
    far.ask("free");
    let new = far.export(0, 2, 0, LEN);
    let error = near.import(&old, &far.who).expect_err("freed");
    assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
    let expected = filled(2);
    let place = near.import(&new, &far.who).expect("opens");
    assert!(near.read(place, LEN) == expected);
    far.finish();
}

#[test]
fn a_device_that_is_not_visible_here() {
    if let Some(parent) = child("agent") {
        return serve(parent);
    }
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[("EMULATED_HSA_FIRST", "5")]);
    let bytes = far.export(0, 1, 0, LEN);
    let error = near.import(&bytes, &far.who).expect_err("not here");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("ROCR_VISIBLE_DEVICES"),
        "{error}"
    );
    far.finish();
}

#[test]
fn memory_of_this_process_and_memory_that_cannot_cross() {
    let mut near = Agent::new();
    let at = near.allocate(0, 5);
    let answer = near.export(at + 10, 100);
    let bytes = answer.strip_prefix("ok ").expect(&answer).to_owned();
    let place = near.import(&bytes, identity()).expect("its own");
    assert_eq!(place, (at + 10, 0));
    let pinned = near.bench.pinned(64);
    assert!(near.export(pinned.address(), 64).starts_with("impossible"));
    for (at, len) in [(4096, 64), (at, LEN as u64 + 1), (at, 0)] {
        assert!(
            near.export(at, len).starts_with("InvalidArgument"),
            "{at:#x} {len}"
        );
    }
    near.allocated.clear();
    let error = near.import(&bytes, identity()).expect_err("freed");
    assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
}

/// Nothing is left open, on either side, of a hundred.
#[test]
fn descriptors_are_closed() {
    if let Some(parent) = child("agent") {
        return serve(parent);
    }
    let mut near = Agent::new();
    let mut far = Far::start(this_test!(), &[]);
    let bytes = far.export(0, 1, 0, LEN);
    near.import(&bytes, &far.who).expect("opens");
    let before = far.ask("fds");
    for _ in 0..100 {
        let answer = far.ask("export 4096 64");
        assert!(answer.starts_with("InvalidArgument"), "{answer}");
    }
    assert_eq!(far.ask("fds"), before);
    assert!(far.ask("control live").contains("dmabufs 0"));
    far.finish();
}

/// Each call that crossing makes fails once: a clear error, and the next import works.
#[test]
fn each_call_may_fail() {
    if let Some(parent) = child("agent") {
        return serve(parent);
    }
    if !is_alone() {
        return alone(this_test!());
    }
    for way in WAYS {
        let mut far = Far::start(this_test!(), &[way]);
        let opener = match way.1 {
            "1" => "hsa_amd_interop_map_buffer",
            _ => "hsa_amd_ipc_memory_attach",
        };
        let mut near = Agent::new();
        let bytes = far.export(0, 1, 0, LEN);
        control(&format!("fault {opener}@1=4104"));
        let error = near.import(&bytes, &far.who).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(error.to_string().contains(opener), "{error}");
        near.import(&bytes, &far.who).expect("opens");
        // The exporter's.
        let maker = match way.1 {
            "1" => "hsa_amd_portable_export_dmabuf",
            _ => "hsa_amd_ipc_memory_create",
        };
        far.ask(format_args!("control fault {maker}@1=4096"));
        let at = far.ask("allocate 0 8");
        let answer = far.ask(format_args!("export {at} 64"));
        match way.1 {
            // A handle instead.
            "1" => assert!(answer.starts_with("ok"), "{answer}"),
            _ => assert!(
                answer.starts_with("Io") && answer.contains(maker),
                "{answer}"
            ),
        }
        let answer = far.ask(format_args!("export {at} 64"));
        let descriptor = answer.strip_prefix("ok ").expect(&answer).to_owned();
        near.import(&descriptor, &far.who).expect("opens");
        far.finish();
    }
}
