//! Arrays of Python libraries, by what they say of themselves: `__cuda_array_interface__` and `__array_interface__`.

use super::{AddressRange, dlpack::row_by_row};
use crate::error::{Error, ErrorKind, Operation, Result};

/// The values of `__cuda_array_interface__` (Numba's, version 3) or `__array_interface__` (NumPy's, version 3), under their names there.
///
/// Made a buffer by [`Buffer::from_array`](crate::Buffer::from_array) and [`BufferMut::from_array`](crate::BufferMut::from_array). A `stream` that is given
/// there has work that may still write the array: see [`CopyBuffer::after`](crate::CopyBuffer::after) and
/// [`Worker::reached`](crate::Worker::reached). An array with a `mask` is not to be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayInterface {
    /// The address, the first of `data`.
    pub data: u64,
    /// The second of `data`: whether it may not be written.
    pub read_only: bool,
    /// Elements in each dimension.
    pub shape: Vec<i64>,
    /// The type of an element, as `<f4`: order of its bytes, kind, and bytes (of `U`, characters of 4 bytes).
    pub typestr: String,
    /// Bytes from one element to the next in each dimension; `None`: row by row.
    pub strides: Option<Vec<i64>>,
}

impl ArrayInterface {
    /// Bytes of all elements.
    ///
    /// # Errors
    /// `InvalidArgument`: the elements do not follow each other row by row, are more than there can be, or the type is none.
    pub fn byte_len(&self) -> Result<usize> {
        let each = self.element()?;
        let strides = self.strides.as_deref().unwrap_or_default();
        if self.strides.is_some() && strides.len() != self.shape.len() {
            return Err(bad(format!(
                "{} strides for a shape of {} dimensions",
                strides.len(),
                self.shape.len()
            )));
        }
        let count = row_by_row(&self.shape, strides, each)?;
        let bytes = count.checked_mul(usize::try_from(each).unwrap_or(usize::MAX));
        bytes
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| bad(format!("an array of shape {:?} is too long", self.shape)))
    }

    /// Bytes of an element.
    fn element(&self) -> Result<i64> {
        let mut letters = self.typestr.chars();
        let (order, kind) = (letters.next(), letters.next());
        let number: Option<u32> = letters.as_str().parse().ok();
        match (order, kind, number) {
            (Some('<' | '>' | '|' | '='), Some('U'), Some(characters)) => {
                Ok(i64::from(characters) * 4)
            }
            (Some('<' | '>' | '|' | '='), Some(kind), Some(bytes))
                if kind.is_ascii_alphabetic() && kind != 'O' && kind != 't' =>
            {
                Ok(i64::from(bytes))
            }
            _ => Err(bad(format!(
                "{:?} is no type of elements with bytes of their own",
                self.typestr
            ))),
        }
    }

    /// Where its bytes are.
    /// Errors: as of [`byte_len`](Self::byte_len); `InvalidArgument`: the range does not fit in the address space.
    pub(crate) fn range(&self) -> Result<AddressRange> {
        AddressRange::new(self.data, self.byte_len()? as u64)
    }
}

#[cold]
fn bad(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory)
}
