//! The owner's side of layouts: blocks that a peer puts, and blocks that it asks for. Every block of a message is checked before any is
//! touched.
//!
//! # Safety
//! Exposed memory is read within the bounds of an `Arc<Exposed>` that is held meanwhile, by copying only.
#![allow(unsafe_code)]

use crate::{
    error::Result,
    memory::region::Exposed,
    protocol::{
        control::{self, LayoutAnswer, LayoutHeader, Signal},
        layout::{
            BLOCK, Block, Cursor, Indexed, Places, Shape, Strided, decode_blocks, split_blocks,
        },
    },
    worker::{signal::signal_of, spread::copy_run, violation::violation},
};

/// Runs packed into one message, and what each of them costs beside its bytes.
const RUNS: u64 = 8192;
pub(in crate::worker) const EACH: u64 = 16;

/// A peer's request for the blocks of a layout.
pub(crate) struct Answer {
    pub(in crate::worker) blocks: Asked,
    /// Where in the whole stream the requested part begins.
    pub(in crate::worker) position: u64,
}

pub(in crate::worker) enum Asked {
    /// Read one after the other.
    Host(Shape, Cursor),
    /// Read by an engine.
    Device(Places),
}

impl Answer {
    /// Bytes of memory that its list takes.
    pub(crate) fn weight(&self) -> usize {
        match &self.blocks {
            Asked::Host(shape, _) => shape.weight(),
            Asked::Device(places) => places.weight(),
        }
    }

    /// The blocks, of device memory.
    pub(crate) fn places(&self) -> Option<&Places> {
        match &self.blocks {
            Asked::Device(places) => Some(places),
            Asked::Host(..) => None,
        }
    }

    /// What goes in front of the bytes from `next` on.
    pub(crate) fn frame(&self, next: usize, last: bool) -> LayoutAnswer {
        LayoutAnswer {
            position: self.position + next as u64,
            status: u16::from(last),
            code: 0,
        }
    }
}

/// The layout of a message, and what follows it.
pub(super) fn parse<'a>(header: &LayoutHeader, rest: &'a [u8]) -> Result<(Shape, &'a [u8])> {
    if header.blocks == control::NONE {
        let strided = Strided::of(rest)?;
        let rest = rest.get(Strided::FORM..).unwrap_or(&[]);
        return Ok((Shape::Strided(strided), rest));
    }
    let (list, rest) = split_blocks(rest, header.blocks)?;
    let mut blocks = Vec::with_capacity(list.len() / BLOCK);
    let mut total = 0_u64;
    for (offset, length) in decode_blocks(list) {
        total += length;
        blocks.push(Block {
            offset: usize::try_from(offset).unwrap_or(usize::MAX),
            len: length as usize,
        });
    }
    if total != header.length {
        return Err(violation(
            "a list of blocks of another length than was said",
        ));
    }
    Ok((Shape::Indexed(Indexed::trusted(blocks, total)), rest))
}

/// A put of blocks, taken apart: header, layout, signal, and what follows.
pub(super) fn parse_put(body: &[u8]) -> Result<(LayoutHeader, Shape, Option<Signal>, &[u8])> {
    let header = LayoutHeader::decode(body)?;
    let rest = body.get(LayoutHeader::SIZE..).unwrap_or(&[]);
    let (signal, rest) = signal_of(header.last, rest)?;
    let (shape, rest) = parse(&header, rest)?;
    Ok((header, shape, signal, rest))
}

pub(in crate::worker) fn start(shape: &Shape, position: u64) -> Cursor {
    match shape {
        Shape::Strided(strided) => strided.seek(position),
        // Each message has a list of its own.
        Shape::Indexed(_) => shape.cursor(),
    }
}

/// Copies runs of exposed memory from the cursor on to `to`: `most` bytes of them, and not more of them than one message packs. Returns how many.
pub(in crate::worker) fn pack(
    exposed: &Exposed,
    (shape, cursor): (&Shape, &mut Cursor),
    mut most: usize,
    to: &mut Vec<u8>,
) -> u64 {
    to.clear();
    to.reserve(most);
    let mut runs = 0;
    while most > 0 && runs < RUNS {
        let Some((offset, block)) = shape.run(cursor) else {
            break;
        };
        runs += 1;
        let length = most.min(usize::try_from(block).unwrap_or(usize::MAX));
        let end = to.len();
        // SAFETY: the block was checked against the exposed memory; `to` has room for all of `most`.
        unsafe {
            let from = exposed.address.add(offset as usize);
            copy_run(from, to.as_mut_ptr().add(end), length);
            to.set_len(end + length);
        }
        shape.advance(cursor, length as u64);
        most -= length;
    }
    runs
}
