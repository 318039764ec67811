//! A run of addresses, of any kind of memory.

use std::{fmt, str::FromStr};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    types::text::{no, number},
};

/// Addresses from `start` up to, not including, `end`. Numbers only: holding one keeps no memory alive and gives no access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressRange {
    start: u64,
    end: u64,
}

impl AddressRange {
    /// Behind the last address that memory of a process may have: of 57 bits, as x86-64 has with five levels of tables, half are the system's. Others have fewer.
    pub(crate) const HOST_END: u64 = 1 << 56;

    /// `length` bytes from `address` on.
    ///
    /// # Errors
    /// `InvalidArgument` when the end would lie beyond the last address.
    pub fn new(address: u64, length: u64) -> Result<Self> {
        match address.checked_add(length) {
            Some(end) => Ok(Self {
                start: address,
                end,
            }),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{length} bytes at {address:#x} leave the address space"),
            )
            .during(Operation::Memory)),
        }
    }

    /// Where these bytes are now.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let start = bytes.as_ptr() as u64;
        Self {
            start,
            end: start + bytes.len() as u64,
        }
    }

    /// `length` bytes that are mapped at `address`, so that they end within the address space.
    pub(crate) fn of_mapping(address: *const u8, length: usize) -> Self {
        let start = address as u64;
        Self {
            start,
            end: start.saturating_add(length as u64),
        }
    }

    /// `length` bytes of it, from `offset` on; cut off at its end.
    pub(crate) fn part(self, offset: usize, length: usize) -> Self {
        let start = self.start.saturating_add(offset as u64).min(self.end);
        let end = start.saturating_add(length as u64).min(self.end);
        Self { start, end }
    }

    /// What both have; nothing where they do not overlap.
    pub(crate) fn common(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end).max(start);
        Self { start, end }
    }

    /// First address.
    #[inline]
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The address behind the last.
    #[inline]
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether all of `other` lies in it.
    #[inline]
    #[must_use]
    pub fn contains(&self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether they share a byte.
    #[inline]
    #[must_use]
    pub fn overlaps(&self, other: Self) -> bool {
        self.start < other.end && other.start < self.end && !self.is_empty() && !other.is_empty()
    }

    /// The shortest range that holds both, and what lies between them.
    #[must_use]
    pub fn union(&self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The smallest range around it whose both ends are multiples of `align`, a power of two.
    ///
    /// # Errors
    /// `InvalidArgument` when the end would lie beyond the last address, or `align` is no power of two.
    pub fn align_to(&self, align: u64) -> Result<Self> {
        let end = match align.is_power_of_two() {
            true => self.end.checked_next_multiple_of(align),
            false => None,
        };
        match end {
            Some(end) => Ok(Self {
                start: self.start & !(align - 1),
                end,
            }),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{self} cannot be aligned to {align}"),
            )
            .during(Operation::Memory)),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

impl FromStr for AddressRange {
    type Err = Error;

    /// From its `Display` form: the first address, `..`, and the one behind the last.
    ///
    /// # Errors
    /// `InvalidArgument`: it is not that, or ends before it begins.
    fn from_str(text: &str) -> Result<Self> {
        let ends = text.split_once("..");
        let ends = ends.and_then(|(start, end)| Some((number(start)?, number(end)?)));
        match ends {
            Some((start, end)) if start <= end => Ok(Self { start, end }),
            _ => Err(no(
                "range of addresses",
                text,
                "two addresses with .. between them",
            )),
        }
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_text! { AddressRange }

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(start, end - start).expect("a range")
    }

    #[test]
    fn relations() {
        let middle = range(10, 20);
        assert!(middle.contains(range(10, 20)) && !middle.contains(range(9, 20)));
        assert!(middle.overlaps(range(19, 30)) && !middle.overlaps(range(20, 30)));
        assert!(!middle.overlaps(range(15, 15)) && !range(15, 15).overlaps(middle));
        assert_eq!(middle.union(range(30, 40)), range(10, 40));
        assert_eq!(middle.align_to(16).expect("aligned"), range(0, 32));
        assert_eq!(range(16, 32).align_to(16).expect("aligned"), range(16, 32));
    }

    #[test]
    fn the_last_addresses() {
        assert!(AddressRange::new(u64::MAX, 1).is_err());
        let last = AddressRange::new(u64::MAX - 1, 1).expect("a range");
        assert!(
            last.align_to(4096).is_err() && last.align_to(0).is_err() && last.align_to(3).is_err()
        );
    }
}
