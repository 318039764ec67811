//! A queue: reads packets when their turn comes and carries them out.
//!
//! ```text
//! job ─► random delay ─► hold? timed out? ─► read the packets ─► runs between engine barriers, each in any order ─► done
//!                                                     └── a packet or an address that is not right: the card is reset
//! ```

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use wharf_emulated_common::{backing::copy_host, pace::takes};

use crate::{
    abi::{CS_TIMEOUT, Chip, Outcome, PAGE_FAULT, SKIP_RESET, UNDEFINED_OPCODE, USER_ENGINE_ERR},
    gate::emulator,
    memory::Place,
    peer::Peer,
    session::Session,
    settings,
    submit::{End, Job, Packets},
};

const PACKET: usize = 24;
const LIN_DMA: u32 = 9;

/// One copy or fill.
#[derive(Clone, Copy, Debug)]
struct Copy {
    len: u64,
    source: u64,
    target: u64,
    fill: bool,
    barrier: bool,
}

/// Why the card is reset.
#[derive(Debug)]
struct Fault {
    events: u64,
    why: String,
}

/// Carries out jobs until the session ends.
pub(crate) fn run(session: &Arc<Session>, jobs: &Receiver<Job>) {
    let emulator = emulator();
    let card = &emulator.machine.cards[session.card];
    while let Ok(job) = jobs.recv() {
        let pause = session.random.lock().up_to(settings::DELAY_US.get());
        takes(Duration::from_micros(pause));
        let is_over = || !session.tables.lock().fences.is_running(job.seq);
        card.hold
            .wait(|| job.since.elapsed() >= job.limit || is_over());
        if is_over() {
            continue;
        }
        if job.since.elapsed() >= job.limit {
            session.tables.lock().fences.set(job.seq, End::TimedOut);
            if job.flags & SKIP_RESET == 0 {
                session.reset(CS_TIMEOUT);
            }
            session.changed.notify_all();
            continue;
        }
        if let Some(events) = job.late {
            session.reset(events);
            continue;
        }
        match carry_out(session, &job) {
            Ok(()) => {
                session.tables.lock().fences.done(job.seq);
                session.changed.notify_all();
            }
            Err(fault) => {
                let text = format!("submission {}: {}", job.seq, fault.why);
                emulator.journal.misuse(text);
                session.reset(fault.events);
            }
        }
    }
}

fn carry_out(session: &Session, job: &Job) -> Result<(), Fault> {
    let mut bytes = vec![0; job.size as usize];
    match job.packets {
        Packets::Kernel(handle) => {
            read_buffer(session.card, handle, &mut bytes)
                .map_err(|_| fault(PAGE_FAULT, "the command buffer has gone".to_owned()))?;
        }
        Packets::User(address) => {
            let pieces = resolve(session, address, job.size)?;
            let mut done = 0;
            for (place, len) in pieces {
                let piece = &mut bytes[done..done + len as usize];
                let read = match place {
                    Place::Device(offset) => session.backing.read(offset, piece),
                    Place::Peer(..) => Err(std::io::ErrorKind::InvalidInput.into()),
                    Place::Host(from) => {
                        copy_host(piece.as_mut_ptr().expose_provenance() as u64, from, len)
                    }
                };
                read.map_err(|_| fault(PAGE_FAULT, "the command buffer has gone".to_owned()))?;
                done += len as usize;
            }
        }
    }
    let mut copies = Vec::new();
    for packet in bytes.chunks(PACKET) {
        copies.push(decode(session.chip, packet)?);
    }
    let mut run: Vec<Copy> = Vec::new();
    for copy in copies {
        if copy.barrier {
            shuffled(session, &mut run)?;
        }
        run.push(copy);
    }
    shuffled(session, &mut run)
}

/// Carries out what has no order, in another one than it was given in.
fn shuffled(session: &Session, run: &mut Vec<Copy>) -> Result<(), Fault> {
    while !run.is_empty() {
        let pick = session.random.lock().up_to(run.len() as u64 - 1) as usize;
        one(session, run.swap_remove(pick))?;
    }
    Ok(())
}

fn decode(chip: Chip, packet: &[u8]) -> Result<Copy, Fault> {
    let unknown = |why: &str| fault(UNDEFINED_OPCODE, format!("{why}: {packet:02x?}"));
    if packet.len() < PACKET {
        return Err(unknown("a packet that ends early"));
    }
    let word = |at: usize| {
        u32::from_le_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
    };
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let ctl = word(4);
    if ctl >> 24 & 0x1F != LIN_DMA {
        return Err(unknown("not LIN_DMA"));
    }
    // Bits that may be set: message and engine barrier, opcode, fill; and what each chip wants.
    let wanted = match chip {
        Chip::Gaudi => 1 << 30 | 1 << 3,
        _ => 0,
    };
    let free = 1 << 31 | 1 << 29 | 0x1F << 24 | 1 << 4;
    if ctl & !free != wanted {
        return Err(unknown("bits that a copy does not have"));
    }
    let copy = Copy {
        len: u64::from(word(0)),
        source: long(8),
        target: long(16),
        fill: ctl & 1 << 4 != 0,
        barrier: ctl & 1 << 29 != 0,
    };
    if copy.len == 0
        || (copy.fill && (copy.source > u64::from(u32::MAX) || !copy.len.is_multiple_of(4)))
    {
        return Err(fault(USER_ENGINE_ERR, format!("no copy: {copy:?}")));
    }
    if chip == Chip::Gaudi && copy.target >> 56 != 0 {
        return Err(fault(
            USER_ENGINE_ERR,
            "a context's number in the target".to_owned(),
        ));
    }
    Ok(copy)
}

fn one(session: &Session, copy: Copy) -> Result<(), Fault> {
    let targets = resolve(session, copy.target, copy.len)?;
    let vanished = |_| {
        let text = format!("host memory has gone: {copy:?}");
        fault(PAGE_FAULT, text)
    };
    if copy.fill {
        let pattern = (copy.source as u32).to_le_bytes().repeat(4096);
        for (to, len) in targets {
            let mut done = 0;
            while done < len {
                let piece = (len - done).min(pattern.len() as u64);
                let bytes = &pattern[..piece as usize];
                match to {
                    Place::Device(at) => session.backing.write(at + done, bytes),
                    Place::Peer(..) => Err(std::io::ErrorKind::InvalidInput.into()),
                    Place::Host(at) => {
                        copy_host(at + done, bytes.as_ptr().expose_provenance() as u64, piece)
                    }
                }
                .map_err(vanished)?;
                done += piece;
            }
        }
        return Ok(());
    }
    let mut sources = resolve(session, copy.source, copy.len)?.into_iter();
    let mut source = sources.next();
    for (mut to, mut wanted) in targets {
        while wanted > 0 {
            let Some((from, left)) = source else {
                return Ok(());
            };
            let piece = wanted.min(left);
            move_bytes(session, to, from, piece).map_err(vanished)?;
            to = to.behind(piece);
            wanted -= piece;
            source = match left - piece {
                0 => sources.next(),
                left => Some((from.behind(piece), left)),
            };
        }
    }
    Ok(())
}

impl Place {
    const fn behind(self, len: u64) -> Self {
        match self {
            Self::Device(at) => Self::Device(at + len),
            Self::Host(at) => Self::Host(at + len),
            Self::Peer(start, at) => Self::Peer(start, at + len),
        }
    }
}

fn move_bytes(session: &Session, to: Place, from: Place, len: u64) -> std::io::Result<()> {
    let memory = &session.backing;
    if let (Place::Peer(..), _) | (_, Place::Peer(..)) = (to, from) {
        // No speed is wanted of this.
        let mut piece = vec![0; len as usize];
        let here = piece.as_mut_ptr().expose_provenance() as u64;
        match from {
            Place::Peer(start, at) => peer(session, start)?.read(at, &mut piece)?,
            Place::Device(at) => memory.read(at, &mut piece)?,
            Place::Host(at) => copy_host(here, at, len)?,
        }
        return match to {
            Place::Peer(start, at) => peer(session, start)?.write(at, &piece),
            Place::Device(at) => memory.write(at, &piece),
            Place::Host(at) => copy_host(at, here, len),
        };
    }
    match (to, from) {
        (Place::Device(to), Place::Host(from)) => memory.write_from(to, from, len),
        (Place::Host(to), Place::Device(from)) => memory.read_to(from, to, len),
        (Place::Device(to), Place::Device(from)) => memory.copy_to(from, memory, to, len),
        (Place::Host(to), Place::Host(from)) => copy_host(to, from, len),
        _ => Err(std::io::ErrorKind::InvalidInput.into()),
    }
}

/// What is mapped of another card at an address.
fn peer(session: &Session, start: u64) -> std::io::Result<Arc<Peer>> {
    let tables = session.tables.lock();
    let peer = tables.memory.peers.get(&start).cloned();
    peer.ok_or_else(|| std::io::ErrorKind::NotFound.into())
}

fn resolve(session: &Session, address: u64, len: u64) -> Result<Vec<(Place, u64)>, Fault> {
    let tables = session.tables.lock();
    tables.memory.resolve(address, len).map_err(|()| {
        let text = format!("{len} bytes at {address:#x} are not in one mapping");
        fault(PAGE_FAULT, text)
    })
}

const fn fault(events: u64, why: String) -> Fault {
    Fault { events, why }
}

/// Bytes of a command buffer of the kernel's.
fn read_buffer(card: usize, handle: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    let file = File::from(emulator().machine.cards[card].description()?);
    file.read_exact_at(bytes, handle)
}

/// What the first Gaudi's driver makes of a command buffer before it takes it.
pub(crate) fn filter(card: usize, handle: u64, size: u64) -> Outcome {
    let mut bytes = vec![0; size as usize];
    read_buffer(card, handle, &mut bytes).map_err(|_| libc::EFAULT)?;
    let mut at = 0;
    while at < bytes.len() {
        let Some(ctl) = bytes.get(at + 4..at + 8) else {
            return Err(libc::EINVAL);
        };
        let ctl = u32::from_le_bytes([ctl[0], ctl[1], ctl[2], ctl[3]]);
        let len = match ctl >> 24 & 0x1F {
            // MSG_PROT, CP_DMA, STOP, WREG_BULK.
            7 | 5 | 0xB | 2 => return Err(libc::EPERM),
            LIN_DMA => PACKET,
            // WREG_32, MSG_SHORT, FENCE, NOP; MSG_LONG.
            1 | 4 | 8 | 0xA => 8,
            3 => 16,
            _ => return Err(libc::EINVAL),
        };
        at += len;
        if at > bytes.len() {
            return Err(libc::EINVAL);
        }
    }
    Ok(())
}
