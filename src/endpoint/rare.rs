//! What few operations have, and is kept apart from their futures: those that are over in their first poll do without.

use std::task::{Context, Poll};

use crate::{
    error::{Operation, Result},
    protocol::control::Signal,
    worker::{operations::Outcome, rma::Target},
};

use super::operation::{Deadline, Entered};

/// What an operation that is over in its first poll does without.
#[derive(Default)]
pub(super) struct Rare {
    pub(super) deadline: Deadline,
    pub(super) entered: Option<Entered>,
    /// Of a put. An error goes to whoever awaits.
    pub(super) signal: Option<Result<Signal>>,
    /// The counter, where somebody may wait for it.
    pub(super) counter: Option<Target>,
}

/// Whether the operation has begun, and was not over at once.
#[inline]
pub(super) fn has_begun(rare: &Option<Box<Rare>>) -> bool {
    matches!(
        rare.as_deref(),
        Some(Rare {
            entered: Some(_),
            ..
        })
    )
}

/// Polls an operation that has begun.
#[inline]
pub(super) fn poll_rest(
    rare: &mut Option<Box<Rare>>,
    cx: &mut Context<'_>,
    operation: Operation,
) -> Poll<Outcome> {
    match rare.as_deref_mut() {
        Some(Rare {
            entered: Some(entered),
            deadline,
            ..
        }) => entered.poll(cx, deadline, operation),
        _ => Poll::Pending,
    }
}

/// As [`Rare`] of an operation that is over and was not told so, for its task is to give way first.
#[cold]
pub(super) fn told_later(outcome: Outcome) -> Option<Box<Rare>> {
    Some(Box::new(Rare {
        entered: Some(Entered::over(outcome)),
        ..Rare::default()
    }))
}
