//! Values by a number of 16 bits, each found by two looks into tables however many there are, and the last one again by one.

/// Numbers of a page.
const PAGE: usize = 1 << 8;

/// See the module's text. An empty one takes no memory; one page for each 256 numbers of which some are used.
#[derive(Debug)]
pub(crate) struct ById<T> {
    /// Where in `values` a number's value is, and one more; 0 where there is none.
    pages: Vec<Option<Box<[u32; PAGE]>>>,
    values: Vec<(u16, T)>,
    /// Where the value is that was asked for last: as a rule the next one, too.
    last: usize,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            values: Vec::new(),
            last: 0,
        }
    }
}

impl<T> ById<T> {
    fn place(&self, id: u16) -> Option<usize> {
        let page = self.pages.get(usize::from(id >> 8))?.as_ref()?;
        (page[usize::from(id as u8)] as usize).checked_sub(1)
    }

    /// Notes where a value is; `None` when it is gone.
    fn note(&mut self, id: u16, place: Option<usize>) {
        let page = usize::from(id >> 8);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([0; PAGE]));
        page[usize::from(id as u8)] = place.map_or(0, |place| place as u32 + 1);
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: u16) -> Option<&mut T> {
        let place = match self.values.get(self.last) {
            Some((of, _)) if *of == id => self.last,
            _ => return self.find(id),
        };
        Some(&mut self.values[place].1)
    }

    #[inline(never)]
    fn find(&mut self, id: u16) -> Option<&mut T> {
        self.last = self.place(id)?;
        Some(&mut self.values[self.last].1)
    }

    /// The value of a number, made where there is none.
    #[inline(always)]
    pub(crate) fn entry(&mut self, id: u16, make: impl FnOnce() -> T) -> &mut T {
        let place = match self.values.get(self.last) {
            Some((of, _)) if *of == id => self.last,
            _ => self.find_or_insert(id, make),
        };
        &mut self.values[place].1
    }

    #[inline(never)]
    fn find_or_insert(&mut self, id: u16, make: impl FnOnce() -> T) -> usize {
        self.last = self.place(id).unwrap_or_else(|| {
            let place = self.values.len();
            self.note(id, Some(place));
            self.values.push((id, make()));
            place
        });
        self.last
    }

    pub(crate) fn remove(&mut self, id: u16) -> Option<T> {
        let place = self.place(id)?;
        self.note(id, None);
        let (_, value) = self.values.swap_remove(place);
        if let Some(&(moved, _)) = self.values.get(place) {
            self.note(moved, Some(place));
        }
        Some(value)
    }

    /// In no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        self.values.iter().map(|(id, value)| (*id, value))
    }

    /// In no order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), prop_oneof![0_u16..4, 254_u16..259, any::<u16>()]), 0..200)) {
            let (mut map, mut model) = (ById::default(), BTreeMap::new());
            for (number, (adds, id)) in steps.into_iter().enumerate() {
                if adds && map.get_mut(id).is_none() {
                    map.entry(id, || number);
                    model.insert(id, number);
                } else if !adds {
                    prop_assert_eq!(map.remove(id), model.remove(&id));
                }
                prop_assert_eq!(map.get_mut(id).copied(), model.get(&id).copied());
            }
            let mut all: Vec<_> = map.iter().map(|(id, value)| (id, *value)).collect();
            all.sort_unstable();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }
}
