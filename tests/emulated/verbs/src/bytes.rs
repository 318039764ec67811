//! Bytes of registered memory: in memory of this process, or in the file behind a dma-buf.
//!
//! # Safety
//! Memory is reached only where a live registration covers it; the program keeps what it registers mapped. See the crate.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::{
    abi::Sge,
    frame::Request,
    world::{ADD, Behind, JOURNAL, Send, World},
};

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
    pub(crate) unsafe fn load(&self, piece: &Sge) -> Vec<u8> {
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
    pub(crate) unsafe fn gather(&self, send: &Send) -> Vec<u8> {
        match &send.inline {
            Some(bytes) => bytes.clone(),
            None => {
                // SAFETY: the caller says so.
                let mut pieces = send.pieces.iter().map(|piece| unsafe { self.load(piece) });
                let mut bytes = pieces.next().unwrap_or_default();
                pieces.for_each(|piece| bytes.extend_from_slice(&piece));
                bytes
            }
        }
    }

    /// # Safety
    /// The pieces are writable.
    pub(crate) unsafe fn scatter(&mut self, mut bytes: &[u8], pieces: &[Sge]) {
        for piece in pieces {
            let (now, later) = bytes.split_at(bytes.len().min(piece.length as usize));
            match self.file(piece) {
                Some((file, parts)) => {
                    let mut rest = now;
                    let mut behind = Vec::new();
                    for (at, length) in parts {
                        // What comes may be less than there is room for.
                        let length = length.min(rest.len());
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
    pub(crate) fn device_of(&self, key: u32) -> Option<usize> {
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
    pub(crate) unsafe fn atomic(&self, request: &Request) -> Option<u64> {
        if self.mrs.get(&request.key)?.file.is_some() {
            return None;
        }
        // SAFETY: the caller says so.
        let word = unsafe { &*(request.address as *const AtomicU64) };
        let [first, second] = request.operands;
        Some(match request.opcode {
            ADD => word.fetch_add(first, SeqCst),
            _ => word
                .compare_exchange(first, second, SeqCst, SeqCst)
                .unwrap_or_else(|old| old),
        })
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
