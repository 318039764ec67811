//! Messages of many pieces: a long one is announced with a table of them, which the receiver reads and then copies out of the pieces; where
//! nothing is copied so, fragments are cut across the pieces. Received ones land in the pieces of a list.
//!
//! # Safety
//! As in `copy.rs`: the peer's table is read between `Pair::enter` and `Pair::leave` into memory
//! of this side, and nothing in it is trusted: what it names is read from the peer's process by the kernel.
#![allow(unsafe_code)]

use crate::{
    memory::Buffer,
    protocol::{
        control::{self, Rts},
        layout::{Block, Indexed, Shape},
        plan::ways::ONE_COPY_FROM,
    },
    worker::{copy::over, peer::OneCopy},
};

/// Mean length of pieces from which on they are copied one by one: the kernel takes 0.4 µs for each (November 2026).
const PIECE: usize = 16 << 10;
/// Most pieces whose table a receiver reads (16 bytes each); of more, the message comes in fragments.
const MAX_TABLE: usize = 16 << 10;

/// Describes a list that is announced.
pub(crate) fn announce_list(one_copy: Option<&OneCopy>, buffer: &Buffer, rts: &mut Rts) {
    let Some(list) = buffer.list() else { return };
    rts.segment = control::TABLE;
    rts.address = 0;
    let table = list.table();
    if one_copy.is_some_and(|one_copy| one_copy.cma.is_some())
        && buffer.len() >= ONE_COPY_FROM
        && table.len() <= MAX_TABLE.min(buffer.len() / PIECE)
    {
        rts.address = table.as_ptr() as u64;
        rts.segment_offset = table.len() as u64;
    }
}

/// The pieces of an announced list, as blocks of the sender's address space; `None` when they cannot be read or are not what was announced.
pub(in crate::worker) fn read_table(one_copy: &OneCopy, rts: &Rts) -> Option<Shape> {
    let count = usize::try_from(rts.segment_offset)
        .ok()
        .filter(|count| (1..=MAX_TABLE).contains(count))?;
    let cma = one_copy.cma.as_ref()?;
    let mut table = vec![0_u8; count * 16];
    one_copy.pair.enter();
    let read = if one_copy.pair.peer_over() {
        Err(over())
    } else {
        // SAFETY: the table is this function's, and has that many bytes.
        unsafe { cma.copy(rts.address, table.as_mut_ptr(), table.len(), true) }
    };
    one_copy.pair.leave();
    read.ok()?;
    let mut total = 0_u64;
    let mut blocks = Vec::with_capacity(count);
    for entry in table.chunks_exact(16) {
        let (offset, len) = entry.split_at(8);
        let offset = u64::from_le_bytes(offset.try_into().ok()?);
        let len = u64::from_le_bytes(len.try_into().ok()?);
        total = total.checked_add(len)?;
        blocks.push(Block {
            offset: usize::try_from(offset).ok()?,
            len: usize::try_from(len).ok()?,
        });
    }
    (total == rts.length).then(|| Shape::Indexed(Indexed::trusted(blocks, total)))
}
