#![allow(unsafe_code)]
//! How the emulated libraries of one Gaudi know each other: by the file behind a card's descriptor.
//!
//! A card is a file: `card0`, `card1`, ... in the folder `EMULATED_HLTHUNK_FOLDER`, which processes share, or without that variable a nameless
//! one of the process and library. Who has opened a card holds an open file description of its file that has locked byte 0; it is given out as the
//! card's descriptor, so the card is free when the last copy of that has gone, in whichever process. (The emulated hl-thunk locks the same byte, keeps
//! at byte 64 until when the card is in reset, and has a dma-buf lock a byte from 2^40 on: a card is not free before those have gone.)
//!
//! At byte 4096 the file says, when Synapse has opened it, what a [`Card`] holds. Whoever holds the descriptor, in this process or, by
//! `SCM_RIGHTS`, in another, reads there which card it is, where its memory lies, and who has SCAL on it. The bytes of the memory are in another
//! memory file of the process that opened the card: [`Card::memory`] is that descriptor's number there (`/proc/PID/fd/NUMBER`, or
//! [`crate::share::take`]), so the card's own descriptor gives no way to them, as a real one does not.
//!
//! | what | in `Card` |
//! |---|---|
//! | the one mapped address that a dma-buf export takes (`hlthunk_device_mapped_memory_export_dmabuf_fd`) | `allocated_base` |
//! | offset of the byte at device address `a`, in the memory file and for the export | `a - allocated_base` |
//! | bytes that may be exported | `0..base - allocated_base + len` |
//! | `scal_get_handle_from_fd` succeeds | in process `scal`, for descriptor `scal_fd` |
//!
//! # Safety
//! System calls with numbers and structs that live through them.

use std::{
    fs::File,
    io, mem,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::fs::FileExt,
    },
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    backing::{Backing, borrow_fd},
    pace::takes,
    share::{self, Process},
};

/// The first word of a card's description.
const MAGIC: u64 = u64::from_le_bytes(*b"EMUGAUDI");
/// Its words.
const WORDS: usize = 16;
/// Where it stands in the card's file.
const AT: u64 = 4096;
/// Bytes of a card's file.
const FILE: u64 = 8 << 30;
/// Where the file says until when the card is in reset: milliseconds since 1970, in the machine's order of bytes.
const RESET_UNTIL: u64 = 64;
/// Where the bytes begin that dma-bufs lock.
const EXPORTS: i64 = 1 << 40;

/// A card that a process has opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Card {
    /// Its place in the system's order.
    pub index: u64,
    /// 1, 2 or 3: Gaudi1, 2, 3.
    pub generation: u64,
    /// Where the pool `global_hbm` begins.
    pub base: u64,
    /// Its size.
    pub len: u64,
    /// How much of it is free.
    pub free: u64,
    /// Where the allocation begins that the pool lies in; at most `base`.
    pub allocated_base: u64,
    /// The process that opened the card.
    pub owner: Option<Process>,
    /// The memory's descriptor there.
    pub memory: u64,
    /// The process in which SCAL is set up, if it is.
    pub scal: Option<Process>,
    /// The descriptor by which it was set up.
    pub scal_fd: u64,
}

impl Card {
    /// The card behind a descriptor; nothing when it is no emulated card's.
    pub fn of(fd: RawFd) -> Option<Self> {
        let mut bytes = [0; WORDS * 8];
        file(fd)?.read_exact_at(&mut bytes, AT).ok()?;
        let mut words = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or_default();
        if next() != MAGIC {
            return None;
        }
        let process = |id: u64, start: u64| {
            let id = u32::try_from(id).ok().filter(|id| *id != 0)?;
            Some(Process { id, start })
        };
        Some(Self {
            index: next(),
            generation: next(),
            base: next(),
            len: next(),
            free: next(),
            allocated_base: next(),
            owner: process(next(), next()),
            memory: next(),
            scal: process(next(), next()),
            scal_fd: next(),
        })
    }

    /// Writes the card's state behind a descriptor.
    ///
    /// # Errors
    /// It is not open, or no file.
    pub fn store(&self, fd: RawFd) -> io::Result<()> {
        let file = file(fd).ok_or(io::ErrorKind::NotFound)?;
        file.write_all_at(&self.bytes(), AT)
    }

    /// The card's memory: the byte at device address `a` stands at `a - allocated_base`.
    ///
    /// # Errors
    /// Its owner has ended, or this process may not take its descriptors.
    pub fn memory(&self) -> io::Result<Backing> {
        let owner = self.owner.ok_or(io::ErrorKind::NotFound)?;
        let fd = RawFd::try_from(self.memory).map_err(|_| io::ErrorKind::InvalidData)?;
        let file = if owner == Process::this() {
            file(fd).ok_or(io::ErrorKind::NotFound)?
        } else {
            share::take(owner, fd)?.into()
        };
        Backing::from_file(file)
    }

    fn bytes(&self) -> Vec<u8> {
        let process =
            |process: Option<Process>| process.map_or([0, 0], |p| [u64::from(p.id), p.start]);
        let [owner, owner_start] = process(self.owner);
        let [scal, scal_start] = process(self.scal);
        [
            MAGIC,
            self.index,
            self.generation,
            self.base,
            self.len,
            self.free,
            self.allocated_base,
            owner,
            owner_start,
            self.memory,
            scal,
            scal_start,
            self.scal_fd,
            0,
            0,
            0,
        ]
        .iter()
        .flat_map(|word: &u64| word.to_le_bytes())
        .collect()
    }
}

fn file(fd: RawFd) -> Option<File> {
    if fd < 0 {
        return None;
    }
    // SAFETY: used for one call, which fails when the number is no open descriptor.
    let borrowed = unsafe { borrow_fd(fd) };
    Some(borrowed.try_clone_to_owned().ok()?.into())
}

/// The PCI address of a card.
pub fn pci_address(index: u64) -> String {
    format!("0000:{:02x}:00.0", 0x33 + 0x11 * index)
}

/// The module id of a card: not its number.
pub const fn module_id(index: u64) -> u64 {
    7 - index
}

/// Opens a card for this process: its descriptor, on which nothing is described yet. Waits for a card that is in reset.
///
/// # Errors
/// `ResourceBusy`: somebody has it, or a dma-buf of it; else from the file system.
pub fn open(index: u64) -> io::Result<File> {
    let folder = std::env::var_os("EMULATED_HLTHUNK_FOLDER").filter(|folder| !folder.is_empty());
    let Some(folder) = folder else {
        return Ok(Backing::new("emulated-gaudi", FILE)?.duplicate()?.into());
    };
    let path = PathBuf::from(folder).join(format!("card{index}"));
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)?;
    file.set_len(FILE)?;
    if !lock(&file)? || is_exported(&file)? {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let mut until = [0; 8];
    file.read_exact_at(&mut until, RESET_UNTIL)?;
    let until = Duration::from_millis(u64::from_ne_bytes(until));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let left = until.saturating_sub(now.unwrap_or_default());
    takes(left.min(Duration::from_secs(10)));
    // What its last owner wrote.
    file.write_all_at(&[0; WORDS * 8], AT)?;
    Ok(file)
}

/// Locks byte 0 for the open file description; whether that went.
fn lock(file: &File) -> io::Result<bool> {
    let mut region = region(0, 1);
    // SAFETY: the struct lives through the call.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut region) };
    match status {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            error => Err(error),
        },
    }
}

/// Whether a dma-buf of it is open.
fn is_exported(file: &File) -> io::Result<bool> {
    let mut region = region(EXPORTS, 0);
    // SAFETY: the struct lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut region) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(region.l_type) != libc::F_UNLCK)
}

const fn region(start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Longest text in a dma-buf.
const TEXT: usize = 16 << 10;

/// Offset and length.
pub type Run = (u64, u64);

/// What is said in a dma-buf of a card: its size, where in the card's memory its bytes are, if that is in pieces, and else where they begin; and the
/// memory. All of it stays there.
///
/// # Errors
/// It is none.
pub fn look(fd: RawFd) -> io::Result<(u64, Vec<Run>, u64, OwnedFd)> {
    let none = || io::Error::from_raw_os_error(libc::EINVAL);
    #[repr(C, align(8))]
    struct Control([u8; 64]);
    let mut text = vec![0_u8; TEXT];
    let mut control = Control([0; 64]);
    let mut data = libc::iovec {
        iov_base: text.as_mut_ptr().cast(),
        iov_len: text.len(),
    };
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: everything the message points to lives through the call.
    let got = unsafe { libc::recvmsg(fd, &raw mut message, flags) };
    let len = usize::try_from(got).map_err(|_| none())?;
    if (message.msg_controllen as usize) < 20 {
        return Err(none());
    }
    let word = [control.0[16], control.0[17], control.0[18], control.0[19]];
    // SAFETY: the kernel made it for this caller.
    let memory = unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(word)) };
    let text = String::from_utf8_lossy(&text[..len]);
    let mut lines = text.lines();
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16);
    let mut words = lines
        .next()
        .unwrap_or("")
        .rsplit(' ')
        .map(|word| hex(word).ok());
    let (size, start) = (words.next().flatten(), words.next().flatten());
    let (size, start) = size.zip(start).ok_or_else(none)?;
    let runs = lines.next().unwrap_or("").split(',').filter_map(|run| {
        let (at, len) = run.split_once(':')?;
        Some((hex(at).ok()?, hex(len).ok()?))
    });
    Ok((size, runs.collect(), start, memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_back_and_nothing_else_is_one() {
        let card = Card {
            index: 3,
            generation: 2,
            base: 0x1001_5000_0000_0000,
            len: 1 << 30,
            free: 1 << 29,
            allocated_base: 0x1001_4fff_0000_0000,
            owner: Some(Process::this()),
            memory: 9,
            scal: None,
            scal_fd: 4,
        };
        let memory = Backing::new("memory", 4096).expect("a file");
        let card = Card {
            memory: memory.fd() as u64,
            ..card
        };
        let same = card.memory().expect("this process's own");
        assert_eq!(same.inode(), memory.inode());
        let file = Backing::new("card", FILE).expect("a file");
        assert_eq!(Card::of(file.fd()), None);
        card.store(file.fd()).expect("written");
        assert_eq!(Card::of(file.fd()), Some(card));
        let other = Card {
            free: 7,
            scal: card.owner,
            ..card
        };
        other.store(file.fd()).expect("written");
        assert_eq!(Card::of(file.fd()), Some(other));
        let short = Backing::new("none", 8).expect("a file");
        assert_eq!(Card::of(short.fd()), None);
        assert_eq!(Card::of(-1), None);
    }
}
