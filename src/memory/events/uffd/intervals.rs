//! A set of addresses as the fewest runs of them.

use std::collections::BTreeMap;

use crate::memory::AddressRange;

/// Runs that neither overlap nor touch: first address to the one behind the last.
#[derive(Debug, Default)]
pub(super) struct Intervals(BTreeMap<u64, u64>);

impl Intervals {
    /// Adds all of `range`; runs that it overlaps or touches become one with it.
    pub(super) fn insert(&mut self, range: AddressRange) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start(), range.end());
        while let Some((&other, &other_end)) = self.0.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.0.remove(&other);
            start = start.min(other);
            end = end.max(other_end);
        }
        self.0.insert(start, end);
    }

    /// Takes all of `range` out.
    pub(super) fn remove(&mut self, range: AddressRange) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.0.range(..range.end()).next_back() {
            if end <= range.start() {
                break;
            }
            self.0.remove(&start);
            if start < range.start() {
                self.0.insert(start, range.start());
            }
            if end > range.end() {
                self.0.insert(range.end(), end);
            }
        }
    }

    /// Whether adding `range` adds no run.
    pub(super) fn touches(&self, range: AddressRange) -> bool {
        self.before(range.end().saturating_add(1))
            .is_some_and(|(_, end)| end >= range.start())
    }

    /// Whether an address of `range` is in it.
    pub(super) fn overlaps(&self, range: AddressRange) -> bool {
        self.before(range.end())
            .is_some_and(|(_, end)| end > range.start())
    }

    /// How many runs.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The runs, from the lowest address on.
    pub(super) fn iter(&self) -> impl Iterator<Item = AddressRange> {
        self.0
            .iter()
            .filter_map(|(start, end)| AddressRange::new(*start, end - start).ok())
    }

    /// The last run that begins before `address`.
    fn before(&self, address: u64) -> Option<(u64, u64)> {
        let (start, end) = self.0.range(..address).next_back()?;
        Some((*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Addresses of the model.
    const SPACE: u64 = 64;

    proptest! {
        #[test]
        fn like_a_set_of_addresses(steps in prop::collection::vec((any::<bool>(), 0..SPACE, 0..12_u64), 1..60)) {
            let mut set = Intervals::default();
            let mut model = [false; SPACE as usize + 16];
            for (add, start, length) in steps {
                let range = AddressRange::new(start, length).expect("a range");
                let model_range = start as usize..(start + length) as usize;
                let overlaps = model[model_range.clone()].contains(&true);
                prop_assert_eq!(!range.is_empty() && set.overlaps(range), overlaps);
                let (before, touched) = (set.len(), set.touches(range));
                match add {
                    true => set.insert(range),
                    false => set.remove(range),
                }
                model[model_range].fill(add);
                if add && length > 0 {
                    prop_assert_eq!(touched, set.len() <= before);
                }
                let mut found = [false; SPACE as usize + 16];
                let mut last = None;
                for run in set.iter() {
                    prop_assert!(!run.is_empty() && last.is_none_or(|end| end < run.start()), "joined");
                    last = Some(run.end());
                    found[run.start() as usize..run.end() as usize].fill(true);
                }
                prop_assert_eq!(found, model);
            }
        }
    }
}
