//! Tensors of other libraries (PyTorch, NumPy, CuPy, JAX), as they hand them over: DLPack.
//!
//! The layouts are those of `dlpack.h`, version 1.1 of the standard (<https://dmlc.github.io/dlpack>), and of the older form without a version, which most
//! producers still make.
//!
//! # Safety
//! Whoever makes a [`DlpackTensor`] vouches for the pointer. What it points to is read until the deleter is called, once, at the end.
#![allow(unsafe_code)]

use std::{ffi::c_void, fmt, ptr::NonNull, slice};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::AddressRange,
    types::MemoryType,
};

/// `DLTensor`.
#[derive(Debug)]
#[repr(C)]
struct Raw {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Unversioned {
    tensor: Raw,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Raw,
}

const _: () = assert!(size_of::<Raw>() == 48 && size_of::<Unversioned>() == 64);
const _: () = assert!(size_of::<Versioned>() == 80);

/// The major version of the layout above.
const MAJOR: u32 = 1;
/// `DLPACK_FLAG_BITMASK_READ_ONLY` and `DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED`.
const READ_ONLY: u64 = 1;
const PADDED: u64 = 1 << 2;

enum Managed {
    Unversioned(NonNull<Unversioned>),
    Versioned(NonNull<Versioned>),
}

/// A tensor that another library lent, by DLPack. Given back, to its deleter, when this or the last buffer of it is dropped.
///
/// Made a buffer by [`into_buffer`](Self::into_buffer) or [`into_buffer_mut`](Self::into_buffer_mut). From Python: the pointer in the capsule that
/// `tensor.__dlpack__()` gives, whose name is then to be changed to the one that says that it was used. That call takes the stream which is made to wait for
/// what the producer has still to write; for copies in order with a stream of the program's own see
/// [`CopyBuffer::after`](crate::CopyBuffer::after).
pub struct DlpackTensor(Managed);

// SAFETY: the standard has consumers call the deleter on any thread; until then it is only read.
unsafe impl Send for DlpackTensor {}
// SAFETY: as for Send.
unsafe impl Sync for DlpackTensor {}

impl DlpackTensor {
    /// That of a `DLManagedTensor`, the form without a version (of a capsule named `dltensor`).
    ///
    /// # Errors
    /// `InvalidArgument`: null.
    ///
    /// # Safety
    /// It points to such a tensor, which is this value's from now on. What the standard says of it holds: its memory, shape and strides stay until the deleter
    /// is called, which any thread may do. Until then nobody writes its elements, nor does work of a device's that is still to come.
    pub unsafe fn from_raw(tensor: *mut c_void) -> Result<Self> {
        let tensor = NonNull::new(tensor.cast()).ok_or_else(null)?;
        Ok(Self(Managed::Unversioned(tensor)))
    }

    /// That of a `DLManagedTensorVersioned` (of a capsule named `dltensor_versioned`).
    ///
    /// # Errors
    /// `InvalidArgument`: null; `Unsupported`: of another major version than 1. It was given back then.
    ///
    /// # Safety
    /// As of [`from_raw`](Self::from_raw).
    pub unsafe fn from_raw_versioned(tensor: *mut c_void) -> Result<Self> {
        let tensor: NonNull<Versioned> = NonNull::new(tensor.cast()).ok_or_else(null)?;
        // SAFETY: the caller vouches for it; these fields are there in every version.
        let (major, minor) = unsafe { ((*tensor.as_ptr()).major, (*tensor.as_ptr()).minor) };
        let made = Self(Managed::Versioned(tensor));
        match major {
            MAJOR => Ok(made),
            _ => {
                let text = format!("a tensor of DLPack {major}.{minor}; this takes {MAJOR}");
                Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory))
            }
        }
    }

    fn raw(&self) -> &Raw {
        // SAFETY: valid until the deleter is called, with `self`.
        unsafe {
            match self.0 {
                Managed::Unversioned(at) => &(*at.as_ptr()).tensor,
                Managed::Versioned(at) => &(*at.as_ptr()).tensor,
            }
        }
    }

    fn flags(&self) -> u64 {
        match self.0 {
            Managed::Unversioned(_) => 0,
            // SAFETY: valid until the deleter is called, with `self`.
            Managed::Versioned(at) => unsafe { (*at.as_ptr()).flags },
        }
    }

    /// Elements in each dimension.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        self.numbers(self.raw().shape)
    }

    /// Elements from one to the next in each dimension; empty: row by row.
    fn strides(&self) -> &[i64] {
        self.numbers(self.raw().strides)
    }

    fn numbers(&self, at: *const i64) -> &[i64] {
        let count = usize::try_from(self.raw().ndim).unwrap_or(0);
        match at.is_null() {
            true => &[],
            // SAFETY: one for each dimension, which stay until the deleter is called, with `self`.
            false => unsafe { slice::from_raw_parts(at, count) },
        }
    }

    /// Whether the producer forbids to write it. Producers of the form without a version cannot say so.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.flags() & READ_ONLY != 0
    }

    /// Bytes of all elements.
    ///
    /// # Errors
    /// `InvalidArgument`: the elements do not follow each other row by row, or are more than there can be.
    pub fn byte_len(&self) -> Result<usize> {
        let raw = self.raw();
        let (shape, strides) = (self.shape(), self.strides());
        if usize::try_from(raw.ndim).ok() != Some(shape.len()) {
            return Err(bad("a tensor without a shape".to_owned()));
        }
        let elements = row_by_row(shape, strides, 1)?;
        let bits = usize::from(raw.bits) * usize::from(raw.lanes);
        let bytes = match self.flags() & PADDED != 0 || bits.is_multiple_of(8) {
            true => elements.checked_mul(bits.div_ceil(8)),
            // Packed, the last byte filled up.
            false => elements.checked_mul(bits).map(|bits| bits.div_ceil(8)),
        };
        bytes
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| bad(format!("a tensor of shape {shape:?} is too long")))
    }

    /// Where its bytes are.
    /// Errors: as of [`byte_len`](Self::byte_len); `InvalidArgument`: the range does not fit in the address space.
    pub(crate) fn range(&self) -> Result<AddressRange> {
        let raw = self.raw();
        let start = (raw.data.expose_provenance() as u64)
            .checked_add(raw.byte_offset)
            .ok_or_else(|| bad("a tensor beyond the last address".to_owned()))?;
        AddressRange::new(start, self.byte_len()? as u64)
    }

    /// That memory of the type that was found is what the producer says of it.
    /// Errors: `Unsupported`: of a device that no accelerator of the context has, or that wharf knows nothing of.
    pub(crate) fn agree(&self, found: MemoryType) -> Result<()> {
        let raw = self.raw();
        let device = u16::try_from(raw.device_id).ok();
        // The numbers of `DLDeviceType`.
        let (name, agrees) = match (raw.device_type, found) {
            (1, found) => ("host memory", found.is_host_accessible()),
            (3 | 11, found) => ("pinned host memory", found.is_host_accessible()),
            (2, MemoryType::Cuda(ordinal)) => ("CUDA", Some(ordinal) == device),
            (2 | 13, found) => ("CUDA", found == MemoryType::CudaManaged),
            (10, MemoryType::Rocm(ordinal)) => ("ROCm", Some(ordinal) == device),
            (10, found) => ("ROCm", found == MemoryType::RocmManaged),
            // A device of the producer's own.
            (12, found) => ("a device of its own", !found.is_host_accessible()),
            _ => ("a device that wharf does not know", false),
        };
        if agrees {
            return Ok(());
        }
        let text = format!(
            "a tensor says to be in the memory of {name} (DLPack's device {}:{}); by its address this context has it as {found} memory",
            raw.device_type, raw.device_id
        );
        Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory))
    }
}

impl Drop for DlpackTensor {
    fn drop(&mut self) {
        // SAFETY: called once, with the tensor that it belongs to, which nobody uses any more.
        unsafe {
            match self.0 {
                Managed::Unversioned(at) => {
                    if let Some(deleter) = (*at.as_ptr()).deleter {
                        deleter(at.as_ptr());
                    }
                }
                Managed::Versioned(at) => {
                    if let Some(deleter) = (*at.as_ptr()).deleter {
                        deleter(at.as_ptr());
                    }
                }
            }
        }
    }
}

impl fmt::Debug for DlpackTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = self.raw();
        f.debug_struct("DlpackTensor")
            .field("device", &(raw.device_type, raw.device_id))
            .field("shape", &self.shape())
            .field("bits", &raw.bits)
            .finish_non_exhaustive()
    }
}

/// How many elements there are, if they follow each other row by row: `strides` in units of which an element has `each`; empty: as if they did.
/// Errors: `InvalidArgument`: they do not, or are more than there can be.
pub(super) fn row_by_row(shape: &[i64], strides: &[i64], each: i64) -> Result<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    let too_long = || bad(format!("an array of shape {shape:?} is too long"));
    let mut count: i64 = 1;
    for (at, length) in shape.iter().enumerate().rev() {
        if *length < 0 {
            return Err(bad(format!("an array of shape {shape:?}")));
        }
        let expected = count.checked_mul(each).ok_or_else(too_long)?;
        // Of one row it does not matter where the next would be.
        if *length > 1 && strides.get(at).is_some_and(|stride| *stride != expected) {
            let text = format!(
                "an array of shape {shape:?} with strides {strides:?} is not in one run, row by row"
            );
            return Err(bad(text));
        }
        count = count.checked_mul(*length).ok_or_else(too_long)?;
    }
    usize::try_from(count).map_err(|_| too_long())
}

#[cold]
fn null() -> Error {
    bad("no tensor: a null pointer".to_owned())
}

#[cold]
fn bad(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory)
}
