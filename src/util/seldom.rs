//! What most values of a type do without.

use std::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};

/// A box that is empty as a rule. To drop it then is one look and no call, which in an operation that is over at once is seen.
#[derive(Debug)]
pub(crate) struct Seldom<T>(ManuallyDrop<Option<Box<T>>>);

impl<T> Default for Seldom<T> {
    #[inline(always)]
    fn default() -> Self {
        Self(ManuallyDrop::new(None))
    }
}

impl<T> Deref for Seldom<T> {
    type Target = Option<Box<T>>;
    #[inline(always)]
    fn deref(&self) -> &Option<Box<T>> {
        &self.0
    }
}

impl<T> DerefMut for Seldom<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Option<Box<T>> {
        &mut self.0
    }
}

impl<T> Drop for Seldom<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(full) = self.0.take() {
            drop_full(full);
        }
    }
}

#[inline(never)]
fn drop_full<T>(full: Box<T>) {
    drop(full);
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn what_is_in_it_is_dropped_once() {
        let held = Rc::new(());
        let mut seldom = Seldom::default();
        assert!(seldom.is_none());
        *seldom = Some(Box::new(Rc::clone(&held)));
        assert_eq!(Rc::strong_count(&held), 2);
        drop(seldom);
        assert_eq!(Rc::strong_count(&held), 1);
        let mut taken = Seldom::default();
        *taken = Some(Box::new(Rc::clone(&held)));
        let inner = taken.take();
        drop(taken);
        assert_eq!(Rc::strong_count(&held), 2);
        drop(inner);
        assert_eq!(Rc::strong_count(&held), 1);
    }
}
