//! Where the bytes of a buffer are, run by run: what engines that copy need to know of it, whichever memory it is.

use super::{Buffer, BufferMut};
use crate::types::MemoryType;

/// The place of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In memory that the host reaches.
    Host {
        /// The byte.
        address: *mut u8,
        /// A domain allocated it as [`MemoryType::HostPinned`].
        pinned: bool,
    },
    /// In memory of a device.
    Device {
        /// The byte, as the device has it.
        address: u64,
        /// Which device's.
        memory_type: MemoryType,
    },
}

/// Bytes that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first of them.
    pub(crate) at: Location,
    /// How many.
    pub(crate) length: usize,
}

impl Run {
    /// The part of it from `offset` on.
    pub(crate) fn skip(self, offset: usize) -> Self {
        let at = match self.at {
            Location::Host { address, pinned } => Location::Host {
                address: address.wrapping_add(offset),
                pinned,
            },
            Location::Device {
                address,
                memory_type,
            } => Location::Device {
                address: address.wrapping_add(offset as u64),
                memory_type,
            },
        };
        Self {
            at,
            length: self.length.saturating_sub(offset),
        }
    }
}

impl Buffer {
    /// What follows `position` in one run. Valid for reading, as long as a clone lives.
    pub(crate) fn run(&self, position: usize) -> Run {
        if let Some(list) = self.list() {
            return match list.piece(position) {
                Some((piece, within)) => piece.run(within),
                None => nothing(),
            };
        }
        let at = match (self.is_on_device(), self.device_range()) {
            (true, Some(range)) => Location::Device {
                address: range.start(),
                memory_type: self.memory_type(),
            },
            _ => Location::Host {
                address: self.address().cast_mut(),
                pinned: self.memory_type() == MemoryType::HostPinned,
            },
        };
        let length = self.len();
        Run { at, length }.skip(position)
    }

    /// The types of memory in it that the host does not reach.
    pub(crate) fn device_types(&self) -> Vec<MemoryType> {
        match self.list() {
            Some(list) => device_types(list.pieces(), Self::device_types),
            None if self.is_on_device() => vec![self.memory_type()],
            None => Vec::new(),
        }
    }
}

impl BufferMut {
    /// What follows `position` in one run. Good for writing as [`BufferMut::address`] is.
    pub(crate) fn run(&mut self, position: usize) -> Run {
        if let Some(list) = self.list_mut() {
            return match list.piece_mut(position) {
                Some((piece, within)) => piece.run(within),
                None => nothing(),
            };
        }
        let at = match (self.is_on_device(), self.device_range()) {
            (true, Some(range)) => Location::Device {
                address: range.start(),
                memory_type: self.memory_type(),
            },
            _ => Location::Host {
                address: self.address(),
                pinned: self.memory_type() == MemoryType::HostPinned,
            },
        };
        let length = self.len();
        Run { at, length }.skip(position)
    }

    /// The types of memory in it that the host does not reach.
    pub(crate) fn device_types(&self) -> Vec<MemoryType> {
        match self.list_ref() {
            Some(list) => device_types(list.pieces(), Self::device_types),
            None if self.is_on_device() => vec![self.memory_type()],
            None => Vec::new(),
        }
    }
}

fn device_types<P>(pieces: &[P], of_each: fn(&P) -> Vec<MemoryType>) -> Vec<MemoryType> {
    pieces.iter().flat_map(of_each).collect()
}

/// Past the end.
fn nothing() -> Run {
    let address = std::ptr::NonNull::dangling().as_ptr();
    Run {
        at: Location::Host {
            address,
            pinned: false,
        },
        length: 0,
    }
}
