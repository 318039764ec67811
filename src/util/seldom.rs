//! What most values of a type do without.

use std::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};

/// Empty as a rule. To drop it then is one look and no call, which in an operation that is over at once is seen.
#[derive(Debug)]
pub(crate) struct Seldom<T>(ManuallyDrop<Option<T>>);

impl<T> Default for Seldom<T> {
    #[inline(always)]
    fn default() -> Self {
        Self(ManuallyDrop::new(None))
    }
}

impl<T> Deref for Seldom<T> {
    type Target = Option<T>;
    #[inline(always)]
    fn deref(&self) -> &Option<T> {
        &self.0
    }
}

impl<T> DerefMut for Seldom<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Option<T> {
        &mut self.0
    }
}

impl<T> Drop for Seldom<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.is_some() {
            drop_full(&mut self.0);
        }
    }
}

#[inline(never)]
fn drop_full<T>(full: &mut Option<T>) {
    drop(full.take());
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
        *seldom = Some(Rc::clone(&held));
        assert_eq!(Rc::strong_count(&held), 2);
        drop(seldom);
        assert_eq!(Rc::strong_count(&held), 1);
        let mut taken = Seldom::default();
        *taken = Some(Rc::clone(&held));
        let inner = taken.take();
        drop(taken);
        assert_eq!(Rc::strong_count(&held), 2);
        drop(inner);
        assert_eq!(Rc::strong_count(&held), 1);
    }
}
