//! What lies in several pieces: where each byte is, and the bytes in one run for paths that need them so.
//!
//! A [`Piece`] is what is sent from, a [`PieceMut`] what is received into; what they are is for who makes them to say.
//!
//! # Safety
//! The addresses of [`Extent`]s are those of pieces that the list owns, in which nothing moves while the list lives. Those of a
//! [`ListMut`] are reached through it alone.
#![allow(unsafe_code)]

use std::{fmt, sync::OnceLock};

use crate::{
    error::Result,
    types::{EndpointId, MemoryType},
    util::copy::copy_slice,
};

/// A run of bytes without ownership, as a table of them lies in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) address: *mut u8,
    pub(crate) length: usize,
}

// SAFETY: plain numbers; whoever uses the address vouches for it.
unsafe impl Send for Extent {}
// SAFETY: as above.
unsafe impl Sync for Extent {}

/// What a [`List`] consists of: some memory to send from. None is empty, or a list itself.
pub(crate) trait Piece: Sized {
    fn len(&self) -> usize;
    /// The first byte. For reading only.
    fn address(&self) -> *const u8;
    /// The bytes, where the host reaches them.
    fn as_slice(&self) -> Option<&[u8]>;
    fn memory_type(&self) -> MemoryType;
    /// The bytes from `start` to `end`, without a copy.
    fn part(&self, start: usize, end: usize) -> Self;
}

/// Pieces to send from.
pub(crate) struct List<P> {
    pieces: Vec<P>,
    table: Vec<Extent>,
    ends: Vec<usize>,
    memory_type: MemoryType,
    whole: OnceLock<Box<[u8]>>,
}

impl<P: Piece> List<P> {
    pub(crate) fn new(pieces: Vec<P>) -> Self {
        let table: Vec<Extent> = pieces
            .iter()
            .map(|piece| Extent {
                address: piece.address().cast_mut(),
                length: piece.len(),
            })
            .collect();
        let ends = ends(pieces.iter().map(P::len));
        let memory_type = type_of(pieces.iter().map(P::memory_type));
        Self {
            pieces,
            table,
            ends,
            memory_type,
            whole: OnceLock::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(crate) fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    /// Whether the host does not reach a piece.
    pub(crate) fn is_on_device(&self) -> bool {
        !self.memory_type.is_host_accessible()
    }

    /// Where the pieces are. For reading only.
    pub(crate) fn table(&self) -> &[Extent] {
        &self.table
    }

    /// The piece that holds `position`, and where in it.
    pub(crate) fn piece(&self, position: usize) -> Option<(&P, usize)> {
        let (index, within) = find(&self.ends, position);
        Some((self.pieces.get(index)?, within))
    }

    pub(crate) fn pieces(&self) -> &[P] {
        &self.pieces
    }

    /// What is left, from `position` on, of the piece there.
    pub(crate) fn run(&self, position: usize) -> &[u8] {
        let (index, within) = find(&self.ends, position);
        self.pieces
            .get(index)
            .and_then(P::as_slice)
            .and_then(|piece| piece.get(within..))
            .unwrap_or(&[])
    }

    /// Appends `length` bytes from `position` on to `to`.
    pub(crate) fn gather(&self, position: usize, mut length: usize, to: &mut Vec<u8>) {
        let (index, mut within) = find(&self.ends, position);
        for piece in self.pieces.get(index..).unwrap_or(&[]) {
            let piece = piece
                .as_slice()
                .and_then(|piece| piece.get(within..))
                .unwrap_or(&[]);
            let part = piece.get(..length).unwrap_or(piece);
            to.extend_from_slice(part);
            length -= part.len();
            within = 0;
            if length == 0 {
                return;
            }
        }
    }

    /// All bytes in one run: a copy, made once.
    #[cold]
    pub(crate) fn whole(&self) -> &[u8] {
        self.whole.get_or_init(|| {
            let mut whole = Vec::with_capacity(self.len());
            self.gather(0, self.len(), &mut whole);
            whole.into_boxed_slice()
        })
    }

    /// The pieces of the bytes from `start` to `end`, without a copy.
    pub(crate) fn parts(&self, mut start: usize, end: usize) -> Vec<P> {
        let mut parts = Vec::new();
        while start < end {
            let (index, within) = find(&self.ends, start);
            let Some(piece) = self.pieces.get(index) else {
                break;
            };
            let part = piece.part(within, piece.len().min(within + end - start));
            start += part.len();
            parts.push(part);
        }
        parts
    }
}

/// What a [`ListMut`] consists of: some memory to receive into, which may be a list itself.
pub(crate) trait PieceMut: Sized {
    fn len(&self) -> usize;
    /// The first byte, of no list.
    fn address(&mut self) -> *mut u8;
    /// The bytes, where the host reaches them, of no list.
    fn as_mut_slice(&mut self) -> Option<&mut [u8]>;
    /// Copies `data` to where it belongs, from `start` on, where the host reaches that.
    fn scatter(&mut self, start: usize, data: &[u8]);
    fn memory_type(&self) -> MemoryType;
    /// Its own pieces, if it is several.
    fn list_ref(&self) -> Option<&ListMut<Self>>;
    fn list_mut(&mut self) -> Option<&mut ListMut<Self>>;
    /// Appends the bytes to `bytes`.
    fn copy_to(&self, bytes: &mut Vec<u8>);
    /// What comes over this connection is to be written into it: a loan to another ends.
    ///
    /// # Errors
    /// `Exhausted`: the system has no mapping left.
    fn takes_from(&mut self, from: EndpointId) -> Result<()>;
}

/// Pieces to receive into.
pub(crate) struct ListMut<P> {
    pieces: Vec<P>,
    ends: Vec<usize>,
    memory_type: MemoryType,
    /// The bytes in one run, while some path wants them so. They are what counts then.
    staging: Option<Vec<u8>>,
}

impl<P: PieceMut> ListMut<P> {
    /// As [`PieceMut::takes_from`], of every piece.
    /// Errors: as there.
    pub(crate) fn takes_from(&mut self, from: EndpointId) -> Result<()> {
        let mut pieces = self.pieces.iter_mut();
        pieces.try_for_each(|piece| piece.takes_from(from))
    }

    pub(crate) fn new(pieces: Vec<P>) -> Self {
        let ends = ends(pieces.iter().map(P::len));
        let memory_type = type_of(pieces.iter().map(P::memory_type));
        Self {
            pieces,
            ends,
            memory_type,
            staging: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(crate) fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    /// Whether the host does not reach a piece.
    pub(crate) fn is_on_device(&self) -> bool {
        !self.memory_type.is_host_accessible()
    }

    /// Where the pieces are, for writing.
    pub(crate) fn table(&mut self) -> Vec<Extent> {
        self.unstage();
        let mut table = Vec::with_capacity(self.pieces.len());
        for piece in &mut self.pieces {
            if let Some(list) = piece.list_mut() {
                table.append(&mut list.table());
            } else if piece.len() > 0 {
                table.push(Extent {
                    address: piece.address(),
                    length: piece.len(),
                });
            }
        }
        table
    }

    /// The piece that holds `position`, and where in it.
    pub(crate) fn piece_mut(&mut self, position: usize) -> Option<(&mut P, usize)> {
        self.unstage();
        let (index, within) = find(&self.ends, position);
        Some((self.pieces.get_mut(index)?, within))
    }

    pub(crate) fn pieces(&self) -> &[P] {
        &self.pieces
    }

    /// What is left, from `position` on, of the piece there. Empty for a piece that is a list itself.
    pub(crate) fn run(&mut self, position: usize) -> &mut [u8] {
        let (index, within) = find(&self.ends, position);
        self.pieces
            .get_mut(index)
            .filter(|piece| self.staging.is_none() && piece.list_ref().is_none())
            .and_then(P::as_mut_slice)
            .and_then(|piece| piece.get_mut(within..))
            .unwrap_or(&mut [])
    }

    /// Copies `data` to where it belongs, from `position` on, as far as there is room.
    pub(crate) fn scatter(&mut self, position: usize, mut data: &[u8]) {
        if let Some(staging) = &mut self.staging {
            let to = staging.get_mut(position..).unwrap_or(&mut []);
            let length = to.len().min(data.len());
            copy_slice(&data[..length], &mut to[..length]);
            return;
        }
        let (index, mut within) = find(&self.ends, position);
        for piece in self.pieces.get_mut(index..).unwrap_or(&mut []) {
            let length = (piece.len() - within).min(data.len());
            let (part, rest) = data.split_at(length);
            piece.scatter(within, part);
            data = rest;
            within = 0;
            if data.is_empty() {
                return;
            }
        }
    }

    /// The bytes in one run, if they are.
    pub(crate) fn staged(&self) -> Option<&[u8]> {
        self.staging.as_deref()
    }

    /// Takes the bytes into one run.
    #[cold]
    pub(crate) fn stage(&mut self) -> &mut [u8] {
        if self.staging.is_none() {
            self.staging = Some(self.copied());
        }
        self.staging.as_deref_mut().unwrap_or(&mut [])
    }

    /// Returns them to the pieces.
    fn unstage(&mut self) {
        if let Some(staging) = self.staging.take() {
            self.scatter(0, &staging);
        }
    }

    /// The bytes in a new `Vec`.
    pub(crate) fn copied(&self) -> Vec<u8> {
        match &self.staging {
            Some(staging) => staging.clone(),
            None => {
                let mut bytes = Vec::with_capacity(self.len());
                for piece in &self.pieces {
                    piece.copy_to(&mut bytes);
                }
                bytes
            }
        }
    }

    pub(crate) fn into_pieces(mut self) -> Vec<P> {
        self.unstage();
        self.pieces
    }
}

impl<P> fmt::Debug for ListMut<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pieces", self.pieces.len())
    }
}

/// Which piece holds the byte at `position`, and where in it. `ends` are the pieces' ends in the whole.
fn find(ends: &[usize], position: usize) -> (usize, usize) {
    let index = ends.partition_point(|end| *end <= position);
    let start = index.checked_sub(1).map_or(0, |before| ends[before]);
    (index, position - start)
}

/// The type of the first that the host does not reach, or the host's.
fn type_of(mut types: impl Iterator<Item = MemoryType>) -> MemoryType {
    types
        .find(|memory_type| !memory_type.is_host_accessible())
        .unwrap_or(MemoryType::Host)
}

/// Ends of pieces in the whole. More bytes than there can be addresses saturate; no path can move them.
fn ends(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    lengths
        .scan(0_usize, |end, length| {
            *end = end.saturating_add(length);
            Some(*end)
        })
        .collect()
}
