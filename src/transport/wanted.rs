//! A message that somebody waits for, and how it is found.

use super::HeldBytes;
use crate::types::LinkId;

/// A message that somebody waits for, and the memory that it is to go to.
///
/// No two words stand here as they stand beside each other where they come from, or go to: the compiler would move both by one load, and a load of two words
/// that were written one by one just before waits until the processor has written them out.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Wanted {
    /// Its header, in the bits of `mask`; all of it once the message was taken.
    pub header: u64,
    /// Where its body goes.
    pub address: *mut u8,
    /// Which bits of the header count.
    pub mask: u64,
    /// Bytes that there are.
    pub room: usize,
    /// How many more times to look for it before it is said not to be there, where one look is one load and one pause.
    pub looks: u32,
    /// Its id.
    pub id: u8,
}

/// Whether a message that was wanted was there. As large as two registers, in which it comes back: what is written to memory is waited for, as there.
#[derive(Clone, Copy, Debug)]
pub enum Taken {
    /// It is not there.
    Nothing,
    /// It is where it was to go, and its header in [`Wanted`].
    Message {
        /// The link that brought it.
        from: LinkId,
        /// Bytes of its body.
        length: u32,
    },
}

const _: () = assert!(size_of::<Taken>() == 16);

/// A message that was wanted, and stays where it lies.
#[derive(Debug)]
pub struct InPlace {
    /// The link that brought it.
    pub from: LinkId,
    /// Its header.
    pub header: u64,
    /// Its body.
    pub held: HeldBytes,
}
