//! One side of a test: allocates, exports, imports, copies, as it is told by lines. In the test's own process or in a second one.
//!
//! # Safety
//! Copies are between memory that the test keeps, or that it means to lose; the contexts are entered around them.
#![allow(unsafe_code)]

use std::{ffi::c_void, future::Future, time::Duration};

use tokio::runtime::Runtime;

use crate::{
    accelerator::ipc::handover::DEADLINE,
    api::{self, Access, PoolProps, Prop, control, ok},
    driver::cuda::{Cuda, CudaContext},
    error::{Error, ErrorKind},
    ipc::CudaSharing,
    support::{Child, LIMIT, Parent, block_until, emulated},
    sys::identity::identity,
    transport::accelerator::{Export, ImportedMemory},
    types::{Identity, MemoryType},
};

pub(crate) type CudaIpc = crate::accelerator::ipc::Ipc<CudaSharing>;

/// What virtual memory comes in.
pub(crate) const BLOCK: usize = 2 << 20;

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

pub(crate) fn cuda() -> &'static Cuda {
    // First by the stranger's loader, which decides how many devices there are.
    assert!(!api::symbol("cuInit").is_null());
    Cuda::load(Some(&emulated::cuda())).expect("the emulated driver loads")
}

pub(crate) fn context(ordinal: u16) -> CudaContext {
    let device = cuda().device(ordinal).expect("a device");
    device.primary_context().expect("a context")
}

pub(crate) struct Agent {
    pub(crate) ipc: CudaIpc,
    pub(crate) runtime: Runtime,
    held: Vec<ImportedMemory>,
    contexts: Vec<CudaContext>,
}

impl Agent {
    pub(crate) fn new() -> Self {
        let cuda = cuda();
        Self {
            ipc: CudaIpc::new(CudaSharing(cuda)).expect("random bytes"),
            runtime: runtime(),
            held: Vec::new(),
            contexts: (0..2)
                .filter_map(|ordinal| cuda.device(ordinal).ok())
                .map(|device| device.primary_context().expect("a context"))
                .collect(),
        }
    }

    /// So much may be open at a time, and so long an exporter is waited for.
    pub(crate) fn limit(&mut self, most: usize, patience: Duration) {
        let limited = CudaIpc::with_limits(CudaSharing(cuda()), most, patience);
        self.ipc = limited.expect("random bytes");
    }

    /// Allocates; `kind` as in [`allocate`].
    pub(crate) fn allocate(&self, kind: &str, len: usize, device: u16) -> u64 {
        let context = &self.contexts[usize::from(device)];
        let _guard = context.enter().expect("enters");
        allocate(kind, len, device.into())
    }

    pub(crate) fn free(&self, kind: &str, at: u64, len: usize) {
        let _guard = self.contexts[0].enter().expect("enters");
        free(kind, at, len);
    }

    /// The descriptor, in a line.
    pub(crate) fn export(&self, at: u64, len: u64) -> String {
        match self.ipc.export(at, len) {
            Ok(Export::Descriptor(bytes)) => {
                assert!(bytes.len() <= Export::MAX);
                format!("ok {}", hex(&bytes))
            }
            Ok(Export::Impossible(why)) => format!("impossible {why}"),
            Err(error) => said(&error),
        }
    }

    /// Where it is here. It stays open until `release`.
    pub(crate) fn import(&mut self, descriptor: &str, peer: &Identity) -> String {
        let import = self.ipc.import(&unhex(descriptor), peer);
        match self
            .runtime
            .block_on(crate::support::watchdog(LIMIT, import))
        {
            Ok(imported) => {
                let MemoryType::Cuda(device) = imported.memory_type() else {
                    panic!("{imported:?}");
                };
                let text = format!("ok {} {device}", imported.address());
                self.held.push(imported);
                text
            }
            Err(error) => said(&error),
        }
    }

    pub(crate) fn release(&mut self, index: Option<usize>) {
        // As on a runtime's thread.
        let _inside = self.runtime.enter();
        match index {
            Some(index) => drop(self.held.remove(index)),
            None => self.held.clear(),
        }
    }

    /// Copies device memory to the host by a stream, and compares.
    pub(crate) fn read(&self, at: u64, len: usize, seed: u64) -> String {
        let _guard = self.contexts[0].enter().expect("enters");
        let (host, stream) = (api::pinned(len), api::stream());
        ok(api::cuMemcpyAsync(host, at, len, stream));
        ok(api::cuStreamSynchronize(stream));
        let answer = control(&format!("compare {host} {len} {seed}"));
        ok(api::cuMemFreeHost(host));
        ok(api::cuStreamDestroy_v2(stream));
        answer
    }

    /// Fills device memory from the host by a stream.
    pub(crate) fn write(&self, at: u64, len: usize, seed: u64) {
        let _guard = self.contexts[0].enter().expect("enters");
        let (host, stream) = (api::pinned(len), api::stream());
        control(&format!("fill {host} {len} {seed}"));
        ok(api::cuMemcpyAsync(at, host, len, stream));
        ok(api::cuStreamSynchronize(stream));
        ok(api::cuMemFreeHost(host));
        ok(api::cuStreamDestroy_v2(stream));
    }

    /// Waits until what is closed elsewhere is closed.
    pub(crate) fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        block_until(what, || done(self));
    }

    /// Closes all that is open and not used.
    pub(crate) fn close(&self) {
        // The thread that opened it may be its user for a moment still.
        self.until("closing", |agent| {
            agent.ipc.close_unused();
            agent.ipc.counts().live == 0
        });
    }

    fn obey(&mut self, line: &str) -> String {
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["who"] => who(identity()),
            ["allocate", kind, len, device] => self
                .allocate(kind, number(len) as usize, number(device) as u16)
                .to_string(),
            ["free", kind, at, len] => {
                self.free(kind, number(at), number(len) as usize);
                "freed".to_owned()
            }
            ["export", at, len] => self.export(number(at), number(len)),
            ["import", descriptor, peer] => self.import(descriptor, &peer_of(peer)),
            ["release", index] => {
                self.release(Some(number(index) as usize));
                "released".to_owned()
            }
            ["release"] => {
                self.release(None);
                "released".to_owned()
            }
            ["read", at, len, seed] => self.read(number(at), number(len) as usize, number(seed)),
            ["write", at, len, seed] => {
                self.write(number(at), number(len) as usize, number(seed));
                "written".to_owned()
            }
            ["limit", most] => {
                self.limit(number(most) as usize, DEADLINE);
                "limited".to_owned()
            }
            ["close"] => {
                self.close();
                "closed".to_owned()
            }
            ["counts"] => format!("{:?}", self.ipc.counts()),
            ["live"] => live(),
            ["fds"] => crate::support::open_fds().to_string(),
            ["control", ..] => control(line.split_once(' ').expect("a command").1),
            _ => panic!("{line:?} is no command"),
        }
    }
}

/// What is allocated, open and mapped, in one line.
pub(crate) fn live() -> String {
    let text = control("live");
    // The streams and pinned memory of copies are the test's.
    let lines = text.lines().filter(|line| {
        [
            "bytes",
            "allocations",
            "opened",
            "reserved",
            "mappings",
            "handles",
            "pools",
        ]
        .contains(&line.split(' ').next().expect("a word"))
    });
    lines.collect::<Vec<_>>().join(", ")
}

/// Kinds: `device`, `virtual`, `fabric`, `sealed` (virtual memory without leave), `two` (two pieces, of half the length each), `pool`,
/// `poolfabric`, `default` (the default pool), `managed`, `pinned`.
fn allocate(kind: &str, len: usize, device: i32) -> u64 {
    let mut at = 0;
    match kind {
        "device" => ok(api::cuMemAlloc_v2(&mut at, len)),
        "managed" => ok(api::cuMemAllocManaged(&mut at, len, 1)),
        "pinned" => ok(api::cuMemHostAlloc(&mut at, len, 3)),
        "default" => ok(api::cuMemAllocAsync(&mut at, len, 0)),
        "pool" | "poolfabric" => {
            let props = PoolProps {
                kind: 1,
                handle_types: if kind == "pool" { 1 } else { 8 },
                location: [1, device],
                win32: 0,
                max: 0,
                reserved: [0; 56],
            };
            let mut pool = 0;
            ok(api::cuMemPoolCreate(&mut pool, &props));
            // Not the first of it.
            ok(api::cuMemAllocFromPoolAsync(&mut at, 700, pool, 0));
            ok(api::cuMemAllocFromPoolAsync(&mut at, len, pool, 0));
            ok(api::cuStreamSynchronize(0));
        }
        "two" => {
            ok(api::cuMemAddressReserve(&mut at, len, 0, 0, 0));
            map(at, len / 2, 1, device);
            map(at + len as u64 / 2, len / 2, 1, device);
        }
        _ => {
            let types = match kind {
                "virtual" => 1,
                "fabric" => 8,
                "sealed" => 0,
                _ => panic!("{kind:?} is no kind"),
            };
            let whole = len.next_multiple_of(BLOCK);
            ok(api::cuMemAddressReserve(&mut at, whole, 0, 0, 0));
            map(at, whole, types, device);
        }
    }
    at
}

/// New physical memory at reserved addresses.
pub(crate) fn map(at: u64, len: usize, handle_types: u32, device: i32) {
    let prop = Prop {
        kind: 1,
        handle_types,
        location: [1, device],
        win32: 0,
        flags: 0,
    };
    let access = Access {
        location: [1, device],
        flags: 3,
    };
    let mut handle = 0;
    ok(api::cuMemCreate(&mut handle, len, &prop, 0));
    ok(api::cuMemMap(at, len, 0, handle, 0));
    ok(api::cuMemRelease(handle));
    ok(api::cuMemSetAccess(at, len, &access, 1));
}

fn free(kind: &str, at: u64, len: usize) {
    match kind {
        "device" | "managed" | "pool" | "poolfabric" | "default" => ok(api::cuMemFree_v2(at)),
        "pinned" => ok(api::cuMemFreeHost(at)),
        _ => {
            let whole = len.next_multiple_of(BLOCK);
            ok(api::cuMemUnmap(at, whole));
            ok(api::cuMemAddressFree(at, whole));
        }
    }
}

fn said(error: &Error) -> String {
    format!("{:?} {error}", error.kind()).replace('\n', " ")
}

/// The kind of an error that was said.
pub(crate) fn is(answer: &str, kind: ErrorKind) -> bool {
    answer.split(' ').next() == Some(&format!("{kind:?}"))
}

/// The descriptor of an export that was said.
#[track_caller]
pub(crate) fn exported(answer: &str) -> &str {
    answer.strip_prefix("ok ").expect(answer)
}

/// The address of an import that was said.
#[track_caller]
pub(crate) fn imported(answer: &str) -> u64 {
    let mut words = answer.split(' ');
    assert_eq!(words.next(), Some("ok"), "{answer}");
    let address = words.next().and_then(|word| word.parse().ok());
    address.expect("an address")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("digits"))
        .collect()
}

/// Who a process is, in a word.
pub(crate) fn who(identity: &Identity) -> String {
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

pub(crate) fn peer_of(word: &str) -> Identity {
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

/// A second process obeys until its line is closed.
pub(crate) fn serve(mut parent: Parent) {
    let mut agent = Agent::new();
    loop {
        let line = agent.runtime.block_on(parent.hear());
        if line == "quit" {
            return;
        }
        let answer = agent.obey(&line);
        parent.say(answer);
    }
}

/// An agent in a second process.
pub(crate) struct Far {
    pub(crate) child: Child,
    runtime: Runtime,
    pub(crate) who: Identity,
}

impl Far {
    pub(crate) fn start(test: &str, variables: &[(&str, &str)]) -> Self {
        Self::from_child(Child::start(test, "agent", variables))
    }

    pub(crate) fn from_child(child: Child) -> Self {
        let mut this = Self {
            child,
            runtime: runtime(),
            who: identity().clone(),
        };
        this.who = peer_of(&this.ask("who"));
        this
    }

    /// Tells it something, and has its answer.
    pub(crate) fn ask(&mut self, line: impl std::fmt::Display) -> String {
        self.tell(line);
        self.answer()
    }

    pub(crate) fn tell(&mut self, line: impl std::fmt::Display) {
        self.child.say(line);
    }

    pub(crate) fn answer(&mut self) -> String {
        self.runtime.block_on(self.child.hear())
    }

    pub(crate) fn number(&mut self, line: impl std::fmt::Display) -> u64 {
        self.ask(line).parse().expect("a number")
    }

    pub(crate) fn finish(mut self) {
        self.tell("quit");
        self.child.finish();
    }
}

/// Polls once.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    let waker = std::task::Waker::noop();
    std::pin::Pin::new(future)
        .poll(&mut std::task::Context::from_waker(waker))
        .is_ready()
}

/// Where the address of a variable is only looked up.
pub(crate) fn address_of<T>(value: &T) -> u64 {
    (&raw const *value).cast::<c_void>().addr() as u64
}
