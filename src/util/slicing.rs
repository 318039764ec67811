//! Ranges of what is sliced.

use std::ops::{Bound, Range, RangeBounds};

/// The part that a range names of what has `length` bytes.
///
/// # Panics
/// When it ends before it begins or after the end, as with a slice.
#[track_caller]
pub(crate) fn within(range: impl RangeBounds<usize>, length: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(length),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= length => start..end,
        (Some(start), Some(end)) => panic!("range {start}..{end} leaves {length} bytes"),
        _ => panic!("the range of a slice overflows"),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn as_a_slice_of_std_does() {
        let ends = [0, 1, 5, 6, usize::MAX];
        let bounds = [Bound::Included, Bound::Excluded].into_iter();
        let bounds = bounds.flat_map(|bound| ends.map(bound));
        let bounds: Vec<Bound<usize>> = bounds.chain([Bound::Unbounded]).collect();
        let bytes = [0_u8, 1, 2, 3, 4];
        for start in &bounds {
            for end in &bounds {
                let of_std = catch_unwind(|| bytes[(*start, *end)].to_vec()).ok();
                let found = catch_unwind(|| within((*start, *end), bytes.len())).ok();
                let found = found.map(|range| bytes[range].to_vec());
                assert_eq!(found, of_std, "{start:?}, {end:?}");
            }
        }
    }
}
