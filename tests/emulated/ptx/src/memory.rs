//! What lies beyond the device.

use std::fmt;

use parking_lot::Mutex;

/// Why a launch ends before its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// So many bytes at an address that is none, or not this device's to touch.
    Address(u64, u64),
    /// An address that is no multiple of what is loaded or stored there.
    Misaligned(u64, u64),
    /// `trap`.
    Trap,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(at, len) => write!(f, "{len} bytes at {at:#x}, which is no address"),
            Self::Misaligned(at, len) => write!(f, "{len} bytes at {at:#x}, not aligned"),
            Self::Trap => write!(f, "a trap"),
        }
    }
}

/// Memory that others see, by the addresses that kernels use.
pub trait Memory: Sync {
    /// Reads bytes, in no order.
    ///
    /// # Errors
    /// `Address`.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Writes bytes, in no order.
    ///
    /// # Errors
    /// `Address`.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Loads an aligned word of 4 or 8 bytes, never in part.
    ///
    /// # Errors
    /// `Address`.
    fn load(&self, at: u64, width: u64) -> Result<u64, Fault>;

    /// Stores one, never in part, behind all that was written here before.
    ///
    /// # Errors
    /// `Address`.
    fn store(&self, at: u64, width: u64, value: u64) -> Result<(), Fault>;

    /// Changes one, with nothing between the load and the store; what it was.
    ///
    /// # Errors
    /// `Address`.
    fn update(&self, at: u64, width: u64, change: &mut dyn FnMut(u64) -> u64)
    -> Result<u64, Fault>;
}

/// So many bytes from an address on, for tests.
#[derive(Debug)]
pub struct Bytes {
    start: u64,
    bytes: Mutex<Vec<u8>>,
}

impl Bytes {
    /// `len` zeros at `start`.
    pub fn new(start: u64, len: usize) -> Self {
        Self {
            start,
            bytes: Mutex::new(vec![0; len]),
        }
    }

    fn with<T>(&self, at: u64, len: usize, work: impl FnOnce(&mut [u8]) -> T) -> Result<T, Fault> {
        let mut bytes = self.bytes.lock();
        let offset = at.checked_sub(self.start).map(|offset| offset as usize);
        let range = offset.and_then(|offset| bytes.get_mut(offset..offset.checked_add(len)?));
        range.map(work).ok_or(Fault::Address(at, len as u64))
    }
}

impl Memory for Bytes {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.with(at, bytes.len(), |found| bytes.copy_from_slice(found))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.with(at, bytes.len(), |found| found.copy_from_slice(bytes))
    }

    fn load(&self, at: u64, width: u64) -> Result<u64, Fault> {
        self.update(at, width, &mut |value| value)
    }

    fn store(&self, at: u64, width: u64, value: u64) -> Result<(), Fault> {
        self.update(at, width, &mut |_| value).map(drop)
    }

    fn update(
        &self,
        at: u64,
        width: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, Fault> {
        self.with(at, width as usize, |found| {
            let mut word = [0; 8];
            word[..found.len()].copy_from_slice(found);
            let was = u64::from_le_bytes(word);
            let len = found.len();
            found.copy_from_slice(&change(was).to_le_bytes()[..len]);
            was
        })
    }
}
