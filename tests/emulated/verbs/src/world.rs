//! The state of both devices.
//!
//! # Safety
//! Objects stay until they are destroyed; see the crate.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use wharf_emulated_common::{faults::Faults, journal::Journal};

use crate::{
    abi::{AsyncEvent, Cap, QpAttr, Sge, Wc},
    wire::{To, Wire},
};

pub(crate) static WORLD: Mutex<World> = Mutex::new(World::new());
/// Events were acknowledged.
pub(crate) static ACKNOWLEDGED: Condvar = Condvar::new();
pub(crate) static FAULTS: Faults = Faults::new();
pub(crate) static JOURNAL: Journal = Journal::new();

/// Access rights and flags of the header.
pub(crate) const LOCAL_WRITE: u32 = 1;
pub(crate) const REMOTE_WRITE: u32 = 2;
pub(crate) const REMOTE_READ: u32 = 4;
pub(crate) const REMOTE_ATOMIC: u32 = 8;
pub(crate) const SIGNALED: u32 = 2;
pub(crate) const SOLICITED: u32 = 4;
pub(crate) const INLINE: u32 = 8;

/// Opcodes.
pub(crate) const WRITE: u32 = 0;
pub(crate) const WRITE_IMM: u32 = 1;
pub(crate) const SEND: u32 = 2;
pub(crate) const SEND_IMM: u32 = 3;
pub(crate) const READ: u32 = 4;
pub(crate) const CAS: u32 = 5;
pub(crate) const ADD: u32 = 6;

/// States.
pub(crate) const RESET: u32 = 0;
pub(crate) const INIT: u32 = 1;
pub(crate) const RTR: u32 = 2;
pub(crate) const RTS: u32 = 3;
pub(crate) const ERR: u32 = 6;

pub(crate) struct World {
    pub(crate) next: u32,
    pub(crate) contexts: BTreeMap<usize, ContextState>,
    /// Domains: their contexts.
    pub(crate) pds: BTreeMap<usize, usize>,
    pub(crate) mrs: BTreeMap<u32, MrState>,
    pub(crate) channels: BTreeMap<usize, ChannelState>,
    pub(crate) cqs: BTreeMap<usize, CqState>,
    pub(crate) srqs: BTreeMap<usize, SrqState>,
    /// By number.
    pub(crate) qps: BTreeMap<u32, QpState>,
    /// The state of each device's port.
    pub(crate) ports: [u32; 2],
    /// Whatever is sent gets lost, and nobody tells.
    pub(crate) lost: bool,
    /// The devices take dma-bufs.
    pub(crate) dmabuf: bool,
    /// The kernel knows memory of CUDA's by its address.
    pub(crate) peermem: bool,
    /// What they write there stays behind on the bus until they read through the same device, or the memory's driver has it flushed.
    pub(crate) late: bool,
    /// What did.
    pub(crate) behind: Vec<Behind>,
    /// What events were taken about and are not acknowledged yet, and how many.
    pub(crate) taken: BTreeMap<usize, u32>,
    /// Contexts are as of a library that has no extended tables.
    pub(crate) old: bool,
    /// What joins this process with others.
    pub(crate) wire: Option<Wire>,
    /// Requests of other processes' that wait for a receive.
    pub(crate) hungry: Vec<Hungry>,
    /// The last request that went to another process.
    pub(crate) sequence: u64,
}

/// A request that is under way to another process.
pub(crate) struct Flight {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) stage: Stage,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// Its answer is to come.
    Asked,
    /// It found no receive, and is sent again when there may be one.
    Waits,
    /// Nobody answers; it is sent again then.
    Unanswered(Instant),
}

/// A request of another process's that found no receive.
pub(crate) struct Hungry {
    pub(crate) connection: u64,
    pub(crate) sequence: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

pub(crate) struct ContextState {
    pub(crate) device: usize,
    pub(crate) fd: i32,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// It was told that its device has ended.
    pub(crate) over: bool,
}

pub(crate) struct ChannelState {
    pub(crate) context: usize,
    pub(crate) fd: i32,
    pub(crate) events: VecDeque<usize>,
}

pub(crate) struct MrState {
    pub(crate) pd: usize,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
    /// Of a dma-buf: the file behind it, and where in it the bytes are: begin and length.
    pub(crate) file: Option<(File, Vec<(u64, u64)>)>,
}

pub(crate) struct CqState {
    pub(crate) context: usize,
    pub(crate) channel: usize,
    pub(crate) room: usize,
    pub(crate) entries: VecDeque<Entry>,
    /// 0: no; 1: the next; 2: the next solicited.
    pub(crate) armed: u8,
    pub(crate) unacked: u32,
    pub(crate) failed: bool,
    /// What the calls of an extended queue read.
    pub(crate) current: Wc,
}

/// A write that has not come to the memory that it is for.
pub(crate) struct Behind {
    /// The device that has written it.
    pub(crate) device: usize,
    pub(crate) file: File,
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

/// A completion, and the slots of the send queue that polling it frees.
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    frees: u32,
}

pub(crate) struct SrqState {
    pub(crate) pd: usize,
    pub(crate) room: usize,
    pub(crate) pieces: u32,
    /// It is told once when fewer receives are left.
    pub(crate) limit: u32,
    pub(crate) receives: VecDeque<Receive>,
}

pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) pieces: Vec<Sge>,
}

pub(crate) struct QpState {
    pub(crate) raw: usize,
    pub(crate) pd: usize,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: usize,
    pub(crate) cap: Cap,
    pub(crate) signal_all: bool,
    pub(crate) state: u32,
    /// What it was given, step by step.
    pub(crate) attr: QpAttr,
    /// The device that has the GID of its peer's port.
    pub(crate) peer_device: Option<usize>,
    pub(crate) receives: VecDeque<Receive>,
    /// Posted, and not carried out.
    pub(crate) sends: VecDeque<Send>,
    /// Slots of the send queue in use, and those of them that no completion told of yet.
    pub(crate) used: u32,
    pub(crate) untold: u32,
    /// What is posted with the next `ibv_wr_complete`.
    pub(crate) building: Option<Vec<Send>>,
    /// The first of the sends, where another process has it.
    pub(crate) flight: Option<Flight>,
    /// Until when that one is sent again if nobody answers.
    pub(crate) patience: Option<Instant>,
}

pub(crate) struct Send {
    pub(crate) id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) imm: u32,
    pub(crate) pieces: Vec<Sge>,
    /// Bytes that were copied when posted.
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) wr: [u64; 4],
}

impl World {
    const fn new() -> Self {
        Self {
            next: 0x11,
            contexts: BTreeMap::new(),
            pds: BTreeMap::new(),
            mrs: BTreeMap::new(),
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            ports: [4; 2],
            lost: false,
            dmabuf: false,
            peermem: false,
            late: false,
            behind: Vec::new(),
            taken: BTreeMap::new(),
            old: false,
            wire: None,
            hungry: Vec::new(),
            sequence: 0,
        }
    }

    /// A number that was never used.
    pub(crate) fn number(&mut self) -> u32 {
        self.next += 0x11;
        self.next
    }

    /// The number of a new queue pair: another process tells by it whose it is. `None`: all are in use.
    pub(crate) fn queue_pair_number(&mut self) -> Option<u32> {
        let Some(wire) = &mut self.wire else {
            return Some(self.number());
        };
        (0..=u16::MAX).find_map(|_| {
            wire.next = wire.next.wrapping_add(1);
            let number = wire.slot << 16 | u32::from(wire.next);
            (!self.qps.contains_key(&number)).then_some(number)
        })
    }

    /// Has something go by the wire.
    pub(crate) fn post(&mut self, to: To, frame: Vec<u8>) {
        if let Some(wire) = &mut self.wire {
            wire.post(to, frame);
        }
    }

    pub(crate) fn live(&self) -> usize {
        let objects = self.contexts.len() + self.pds.len() + self.mrs.len() + self.channels.len();
        objects + self.cqs.len() + self.srqs.len() + self.qps.len()
    }

    /// Registrations that some peer could write now.
    pub(crate) fn writable(&self) -> usize {
        let joined = |pd| {
            let mut qps = self.qps.values();
            qps.any(|qp| {
                qp.pd == pd
                    && matches!(qp.state, RTR | RTS)
                    && qp.attr.qp_access_flags & REMOTE_WRITE != 0
            })
        };
        let mrs = self.mrs.values();
        mrs.filter(|mr| mr.access & REMOTE_WRITE != 0 && joined(mr.pd))
            .count()
    }

    /// Tells a context's program something.
    pub(crate) fn tell(&mut self, context: usize, element: usize, event_type: u32) {
        if let Some(state) = self.contexts.get_mut(&context) {
            // IBV_EVENT_DEVICE_FATAL.
            state.over |= event_type == 8;
            state.events.push_back(AsyncEvent {
                element,
                event_type,
            });
            ring(state.fd);
        }
    }

    /// Events about an object that nobody has taken go with it.
    pub(crate) fn forget(&mut self, at: usize) {
        for context in self.contexts.values_mut() {
            let before = context.events.len();
            context.events.retain(|event| event.element != at);
            for _ in context.events.len()..before {
                take(context.fd);
            }
        }
    }

    /// The object at this address is no more: comes back when all events about it that were taken are acknowledged, as the library does, so that
    /// who takes one may look at the object until then.
    pub(crate) fn gone(mut world: MutexGuard<'static, Self>, at: usize) {
        world.forget(at);
        while world.taken.contains_key(&at) {
            ACKNOWLEDGED.wait(&mut world);
        }
    }

    /// The open contexts of a device.
    pub(crate) fn contexts_of(&self, device: usize) -> Vec<usize> {
        self.contexts
            .iter()
            .filter(|(_, state)| state.device == device)
            .map(|(context, _)| *context)
            .collect()
    }

    /// Has all objects of a kind fail, of all programs with that device, and tells them: how many.
    pub(crate) fn break_all(&mut self, device: usize, what: &str) -> usize {
        let contexts = self.contexts_of(device);
        let mut told: Vec<(usize, usize, u32)> = Vec::new();
        match what {
            "cq" => {
                for (at, cq) in &mut self.cqs {
                    if contexts.contains(&cq.context) && !std::mem::replace(&mut cq.failed, true) {
                        cq.entries.clear();
                        told.push((cq.context, *at, 0));
                    }
                }
            }
            "srq" => {
                for (at, srq) in &self.srqs {
                    if let Some(context) = self.pds.get(&srq.pd)
                        && contexts.contains(context)
                    {
                        told.push((*context, *at, 14));
                    }
                }
            }
            _ => {
                for qp in self.qps.values() {
                    if contexts.contains(&qp.context()) {
                        told.push((qp.context(), qp.raw, 1));
                    }
                }
            }
        }
        for (context, element, kind) in &told {
            self.tell(*context, *element, *kind);
        }
        let broken: Vec<u32> = self
            .qps
            .iter()
            .filter(|(_, qp)| contexts.contains(&qp.context()))
            .map(|(number, _)| *number)
            .collect();
        for number in broken {
            self.fail(number);
        }
        told.len()
    }

    /// Whether a piece may be used so.
    pub(crate) fn covered(&self, pd: usize, piece: &Sge, key: u32, access: u32) -> bool {
        self.mrs.get(&key).is_some_and(|mr| {
            mr.pd == pd
                && mr.access & access == access
                && piece
                    .addr
                    .checked_sub(mr.addr)
                    .and_then(|skip| skip.checked_add(u64::from(piece.length)))
                    .is_some_and(|end| end <= mr.length)
        })
    }

    /// Puts a completion into a queue, and tells whoever armed it.
    pub(crate) fn complete(&mut self, cq: usize, wc: Wc, frees: u32, solicited: bool) {
        let Some(state) = self.cqs.get_mut(&cq) else {
            return;
        };
        if state.failed {
            return;
        }
        if state.entries.len() >= state.room {
            state.failed = true;
            let context = state.context;
            self.tell(context, cq, 0);
            let users: Vec<u32> = self
                .qps
                .iter()
                .filter(|(_, qp)| qp.send_cq == cq || qp.recv_cq == cq)
                .map(|(number, _)| *number)
                .collect();
            for number in users {
                self.fail(number);
            }
            return;
        }
        let failed = wc.status != 0;
        state.entries.push_back(Entry { wc, frees });
        if state.armed == 1 || (state.armed == 2 && (solicited || failed)) {
            state.armed = 0;
            if let Some(channel) = self.channels.get_mut(&state.channel) {
                state.unacked += 1;
                channel.events.push_back(cq);
                ring(channel.fd);
            }
        }
    }

    /// Throws away what nobody has polled of a queue pair that is gone, and the receives with it, as libmlx5 does.
    pub(crate) fn clean(&mut self, number: u32) {
        for cq in self.cqs.values_mut() {
            cq.entries.retain(|entry| entry.wc.qp_num != number);
        }
    }

    pub(crate) fn poll(&mut self, cq: usize) -> Option<Wc> {
        let entry = self.cqs.get_mut(&cq)?.entries.pop_front()?;
        if let Some(qp) = self.qps.get_mut(&entry.wc.qp_num) {
            qp.used = qp.used.saturating_sub(entry.frees);
        }
        Some(entry.wc)
    }
}

impl Send {
    /// How long it is.
    pub(crate) fn length(&self) -> u64 {
        match &self.inline {
            Some(bytes) => bytes.len() as u64,
            None => length_of(&self.pieces),
        }
    }
}

/// How long pieces are together.
pub(crate) fn length_of(pieces: &[Sge]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.length)).sum()
}

/// Real ones wait up to some hours.
const MOST_PATIENT: Duration = Duration::from_millis(500);

impl QpState {
    /// How long a packet waits for its answer. No longer than tests have time for.
    pub(crate) fn timeout(&self) -> Duration {
        let nanos = match self.attr.timeout {
            // For ever.
            0 => u64::MAX,
            code => 4096 << code.min(31),
        };
        Duration::from_nanos(nanos).min(MOST_PATIENT)
    }

    /// The same with all tries.
    pub(crate) fn all_tries(&self) -> Duration {
        let tries = u32::from(self.attr.retry_cnt) + 1;
        (self.timeout() * tries).min(MOST_PATIENT)
    }

    pub(crate) fn context(&self) -> usize {
        // SAFETY: a queue pair that is not destroyed; its context does not change.
        unsafe { (*(self.raw as *const crate::abi::Qp)).context as usize }
    }
}

/// A descriptor that counts.
pub(crate) fn counter() -> io::Result<i32> {
    // SAFETY: takes numbers.
    match unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(fd),
    }
}

pub(crate) fn ring(fd: i32) {
    // SAFETY: writes eight bytes to a descriptor of ours.
    unsafe { libc::write(fd, (&raw const ONE).cast(), 8) };
}

static ONE: u64 = 1;

/// Takes one from a counter, blocking as the descriptor does; false with `errno`.
pub(crate) fn take(fd: i32) -> bool {
    let mut count = 0_u64;
    // SAFETY: reads eight bytes from a descriptor of ours.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) == 8 }
}
