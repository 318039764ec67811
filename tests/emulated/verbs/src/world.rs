//! The state of both devices, and how requests are carried out.
//!
//! # Safety
//! Memory is reached only where a live registration covers it; the program keeps what it registers mapped. See the crate.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io,
    os::unix::fs::FileExt,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use wharf_emulated_common::{faults::Faults, journal::Journal};

use crate::abi::{AsyncEvent, Cap, Sge, Wc};

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
const SIGNALED: u32 = 2;
const SOLICITED: u32 = 4;
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

/// What ends a request.
mod status {
    pub(super) const LEN: u32 = 1;
    pub(super) const PROT: u32 = 4;
    pub(super) const FLUSH: u32 = 5;
    pub(super) const REM_INV: u32 = 9;
    pub(super) const REM_ACCESS: u32 = 10;
    pub(super) const REM_OP: u32 = 11;
    pub(super) const RETRY: u32 = 12;
    pub(super) const RNR: u32 = 13;
}

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
}

/// A write that has not come to the memory that it is for.
pub(crate) struct Behind {
    /// The device that has written it.
    device: usize,
    file: File,
    at: u64,
    bytes: Vec<u8>,
}

/// A completion, and the slots of the send queue that polling it frees.
pub(crate) struct Entry {
    wc: Wc,
    frees: u32,
}

pub(crate) struct SrqState {
    pub(crate) pd: usize,
    pub(crate) room: usize,
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
    pub(crate) peer: u32,
    pub(crate) access: u32,
    pub(crate) rnr_retry: u8,
    pub(crate) receives: VecDeque<Receive>,
    /// Posted, and not carried out.
    pub(crate) sends: VecDeque<Send>,
    /// Slots of the send queue in use, and those of them that no completion told of yet.
    pub(crate) used: u32,
    pub(crate) untold: u32,
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
        }
    }

    /// A number that was never used.
    pub(crate) fn number(&mut self) -> u32 {
        self.next += 0x11;
        self.next
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
                qp.pd == pd && matches!(qp.state, RTR | RTS) && qp.access & REMOTE_WRITE != 0
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
    fn covered(&self, pd: usize, piece: &Sge, key: u32, access: u32) -> bool {
        self.mrs.get(&key).is_some_and(|mr| {
            mr.pd == pd
                && mr.access & access == access
                && piece.addr >= mr.addr
                && piece.addr - mr.addr + u64::from(piece.length) <= mr.length
        })
    }

    /// Puts a completion into a queue, and tells whoever armed it.
    fn complete(&mut self, cq: usize, wc: Wc, frees: u32, solicited: bool) {
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

    /// Ends a send.
    fn end_send(&mut self, number: u32, send: &Send, status: u32) {
        let Some(qp) = self.qps.get_mut(&number) else {
            return;
        };
        qp.untold += 1;
        if status == 0 && send.flags & SIGNALED == 0 && !qp.signal_all {
            return;
        }
        let frees = std::mem::take(&mut qp.untold);
        let opcode = match send.opcode {
            WRITE | WRITE_IMM => 1,
            READ => 2,
            CAS => 3,
            ADD => 4,
            _ => 0,
        };
        let wc = Wc {
            wr_id: send.id,
            status,
            opcode,
            qp_num: number,
            ..Wc::default()
        };
        let cq = qp.send_cq;
        self.complete(cq, wc, frees, false);
    }

    /// Takes the next receive of a queue pair.
    fn receive_of(&mut self, number: u32) -> Option<Receive> {
        let qp = self.qps.get_mut(&number)?;
        if qp.srq == 0 {
            return qp.receives.pop_front();
        }
        let srq = qp.srq;
        self.srqs.get_mut(&srq)?.receives.pop_front()
    }

    /// Moves a queue pair to its end, and flushes what it has.
    pub(crate) fn fail(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(&number) else {
            return;
        };
        qp.state = ERR;
        let sends: Vec<Send> = qp.sends.drain(..).collect();
        let receives: Vec<Receive> = qp.receives.drain(..).collect();
        let (cq, raw, context, shares) = (qp.recv_cq, qp.raw, qp.context(), qp.srq != 0);
        for send in sends {
            self.end_send(number, &send, status::FLUSH);
        }
        for receive in receives {
            let wc = Wc {
                wr_id: receive.id,
                status: status::FLUSH,
                opcode: 128,
                qp_num: number,
                ..Wc::default()
            };
            self.complete(cq, wc, 0, false);
        }
        if shares {
            self.tell(context, raw, 16);
        }
    }

    /// Carries out what can be, of all queue pairs.
    pub(crate) fn progress(&mut self) {
        loop {
            let numbers: Vec<u32> = self.qps.keys().copied().collect();
            let before: usize = self.qps.values().map(|qp| qp.sends.len()).sum();
            for number in numbers {
                self.progress_one(number);
            }
            let after: usize = self.qps.values().map(|qp| qp.sends.len()).sum();
            if before == after {
                return;
            }
        }
    }

    fn progress_one(&mut self, number: u32) {
        if self.lost {
            return;
        }
        while let Some(send) = self
            .qps
            .get_mut(&number)
            .and_then(|qp| qp.sends.pop_front())
        {
            let struck = crate::exports::struck("completion");
            let answer = match struck {
                Some(code) => Err(code),
                None => self.carry_out(number, &send),
            };
            match answer {
                Ok(true) => self.end_send(number, &send, 0),
                Ok(false) => {
                    // Waits for a receive.
                    if let Some(qp) = self.qps.get_mut(&number) {
                        qp.sends.push_front(send);
                    }
                    return;
                }
                Err(status) => {
                    self.end_send(number, &send, status);
                    self.fail(number);
                    return;
                }
            }
        }
    }

    /// Whether it was done; not: a receive is missing, and may come.
    fn carry_out(&mut self, number: u32, send: &Send) -> Result<bool, u32> {
        let Some(qp) = self.qps.get(&number) else {
            return Ok(true);
        };
        let (pd, peer_number, patient) = (qp.pd, qp.peer, qp.rnr_retry == 7);
        let writes = matches!(send.opcode, READ | CAS | ADD);
        let access = if writes { LOCAL_WRITE } else { 0 };
        if send.inline.is_none()
            && !send
                .pieces
                .iter()
                .all(|piece| self.covered(pd, piece, piece.lkey, access))
        {
            return Err(status::PROT);
        }
        let Some(peer) = self.qps.get(&peer_number) else {
            return Err(status::RETRY);
        };
        if !matches!(peer.state, RTR | RTS) || peer.peer != number {
            return Err(status::RETRY);
        }
        let (peer_pd, peer_access, peer_cq) = (peer.pd, peer.access, peer.recv_cq);
        let length: u32 = send.pieces.iter().map(|piece| piece.length).sum();
        let key = match send.opcode {
            CAS | ADD => send.wr[3] as u32,
            _ => send.wr[1] as u32,
        };
        let far = |length| Sge {
            addr: send.wr[0],
            length,
            lkey: key,
        };
        let need = match send.opcode {
            WRITE | WRITE_IMM => Some((REMOTE_WRITE, length)),
            READ => Some((REMOTE_READ, length)),
            CAS | ADD => Some((REMOTE_ATOMIC, 8)),
            _ => None,
        };
        if let Some((need, length)) = need
            && length > 0
            && (peer_access & need == 0 || !self.covered(peer_pd, &far(length), key, need))
        {
            let raw = self
                .qps
                .get(&peer_number)
                .map(|peer| (peer.raw, peer.context()));
            if let Some((raw, context)) = raw {
                self.tell(context, raw, 3);
            }
            self.fail(peer_number);
            return Err(status::REM_ACCESS);
        }
        let told = matches!(send.opcode, SEND | SEND_IMM | WRITE_IMM);
        let receive = if told {
            match self.receive_of(peer_number) {
                None if patient => return Ok(false),
                None => return Err(status::RNR),
                some => some,
            }
        } else {
            None
        };
        let mut wc = Wc {
            opcode: 128,
            byte_len: length,
            qp_num: peer_number,
            src_qp: number,
            ..Wc::default()
        };
        if matches!(send.opcode, SEND_IMM | WRITE_IMM) {
            wc.wc_flags = 2;
            wc.imm_data = send.imm;
        }
        // SAFETY: every range was found covered by a live registration; inline bytes are ours.
        unsafe {
            match send.opcode {
                WRITE | WRITE_IMM => {
                    let bytes = self.gather(send);
                    self.scatter(&bytes, &[far(length)]);
                    wc.opcode = 129;
                }
                READ => {
                    self.arrive(self.device_of(key));
                    let bytes = self.load(&far(length));
                    self.scatter(&bytes, &send.pieces);
                }
                CAS | ADD => {
                    if !send.wr[0].is_multiple_of(8) || length != 8 {
                        return Err(status::REM_INV);
                    }
                    let Some(old) = self.atomic(key, send) else {
                        return Err(status::REM_OP);
                    };
                    self.scatter(&old.to_ne_bytes(), &send.pieces);
                }
                _ => {
                    let pieces = receive.as_ref().map_or(&[][..], |receive| &receive.pieces);
                    let fine = pieces
                        .iter()
                        .all(|piece| self.covered(peer_pd, piece, piece.lkey, LOCAL_WRITE));
                    let room: u32 = pieces.iter().map(|piece| piece.length).sum();
                    wc.status = match (fine, room >= length) {
                        (false, _) => status::PROT,
                        (_, false) => status::LEN,
                        _ => 0,
                    };
                    if wc.status == 0 {
                        let bytes = self.gather(send);
                        self.scatter(&bytes, pieces);
                    }
                }
            }
        }
        if let Some(receive) = receive {
            wc.wr_id = receive.id;
            let failed = wc.status;
            self.complete(peer_cq, wc, 0, send.flags & SOLICITED != 0);
            if failed != 0 {
                self.fail(peer_number);
                return Err(if failed == status::LEN {
                    status::REM_INV
                } else {
                    status::REM_OP
                });
            }
        }
        Ok(true)
    }
}

/// Bytes of registered memory; every piece was found covered by a live registration.
impl World {
    /// Where a piece lies in the file behind its memory: begin, and length.
    fn file(&self, piece: &Sge) -> Option<(&File, Vec<(u64, usize)>)> {
        let mr = self.mrs.get(&piece.lkey)?;
        let (file, runs) = mr.file.as_ref()?;
        let (mut skip, mut left) = (piece.addr - mr.addr, u64::from(piece.length));
        let mut parts = Vec::new();
        for (at, length) in runs {
            let here = length.saturating_sub(skip).min(left);
            if here > 0 {
                parts.push((at + skip, here as usize));
            }
            skip = skip.saturating_sub(*length);
            left -= here;
        }
        Some((file, parts))
    }

    /// # Safety
    /// The piece is readable.
    unsafe fn load(&self, piece: &Sge) -> Vec<u8> {
        let Some((file, parts)) = self.file(piece) else {
            // SAFETY: the caller says so.
            return unsafe { bytes_at(piece.addr, piece.length as usize) };
        };
        let mut bytes = vec![0; piece.length as usize];
        let mut room = &mut bytes[..];
        for (at, length) in parts {
            let (now, later) = room.split_at_mut(length);
            if let Err(error) = file.read_exact_at(now, at) {
                JOURNAL.misuse(format!("reading a dma-buf: {error}"));
            }
            room = later;
        }
        bytes
    }

    /// # Safety
    /// The pieces are readable.
    unsafe fn gather(&self, send: &Send) -> Vec<u8> {
        match &send.inline {
            Some(bytes) => bytes.clone(),
            None => {
                let pieces = send.pieces.iter();
                // SAFETY: the caller says so.
                pieces
                    .flat_map(|piece| unsafe { self.load(piece) })
                    .collect()
            }
        }
    }

    /// # Safety
    /// The pieces are writable.
    unsafe fn scatter(&mut self, mut bytes: &[u8], pieces: &[Sge]) {
        for piece in pieces {
            let (now, later) = bytes.split_at(bytes.len().min(piece.length as usize));
            match self.file(piece) {
                Some((file, parts)) => {
                    let mut rest = now;
                    let mut behind = Vec::new();
                    for (at, length) in parts {
                        let (part, later) = rest.split_at(length);
                        // The first half, where the other stays behind.
                        let there = if self.late { length / 2 } else { length };
                        let (there, late) = part.split_at(there);
                        let written = file.write_all_at(there, at);
                        match written.and_then(|()| file.try_clone()) {
                            Ok(_) if late.is_empty() => {}
                            Ok(file) => behind.push(Behind {
                                device: self.device_of(piece.lkey).unwrap_or(0),
                                file,
                                at: at + there.len() as u64,
                                bytes: late.to_vec(),
                            }),
                            Err(error) => JOURNAL.misuse(format!("writing a dma-buf: {error}")),
                        }
                        rest = later;
                    }
                    self.behind.extend(behind);
                }
                // SAFETY: the caller says so.
                None => unsafe {
                    std::ptr::copy(now.as_ptr(), piece.addr as *mut u8, now.len());
                },
            }
            bytes = later;
        }
    }

    /// The device that memory is registered with.
    fn device_of(&self, key: u32) -> Option<usize> {
        let context = self.pds.get(&self.mrs.get(&key)?.pd)?;
        Some(self.contexts.get(context)?.device)
    }

    /// What a device has written comes to where it is for; `None`: any device.
    pub(crate) fn arrive(&mut self, device: Option<usize>) {
        for one in std::mem::take(&mut self.behind) {
            if device.is_some_and(|device| device != one.device) {
                self.behind.push(one);
            } else if let Err(error) = one.file.write_all_at(&one.bytes, one.at) {
                JOURNAL.misuse(format!("writing a dma-buf: {error}"));
            }
        }
    }

    /// Does an atomic operation on a word of 8 bytes, and returns what was there; not in a dma-buf.
    ///
    /// # Safety
    /// The word is writable, and aligned.
    unsafe fn atomic(&self, key: u32, send: &Send) -> Option<u64> {
        if self.mrs.get(&key)?.file.is_some() {
            return None;
        }
        // SAFETY: the caller says so.
        let word = unsafe { &*(send.wr[0] as *const std::sync::atomic::AtomicU64) };
        let order = std::sync::atomic::Ordering::SeqCst;
        Some(match send.opcode {
            ADD => word.fetch_add(send.wr[1], order),
            _ => word
                .compare_exchange(send.wr[1], send.wr[2], order, order)
                .unwrap_or_else(|old| old),
        })
    }
}

impl QpState {
    fn context(&self) -> usize {
        // SAFETY: a queue pair that is not destroyed; its context does not change.
        unsafe { (*(self.raw as *const crate::abi::Qp)).context as usize }
    }
}

/// Bytes at an address.
///
/// # Safety
/// Readable.
pub(crate) unsafe fn bytes_at(address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: the caller says so. Other threads may write meanwhile, as they may where hardware reads.
    unsafe { std::ptr::copy(address as *const u8, bytes.as_mut_ptr(), length) };
    bytes
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
