//! Deadlines, and what few operations that have begun have besides a place in the table: kept here, as their futures are two words.

use std::{future::Future, pin::Pin, task::Context, time::Duration};

use slab::Slab;
use tokio::time::Sleep;

use crate::{
    error::{Error, ErrorKind, Operation},
    types::OpKey,
    util::lock::Mutex,
    worker::{drivers::Driver, operations::Outcome, shared::Shared},
};

/// What futures have left here. `None`: it is being polled.
pub(crate) type Aside = Mutex<Slab<Option<Rare>>>;

/// An operation that has a deadline, or ended with more than a value, or has a place that its future has no bits for.
#[derive(Debug)]
pub(crate) struct Rare {
    /// `None`: it is in the table no more.
    pub(crate) key: Option<OpKey>,
    /// How it ended before it was in the table.
    pub(crate) ended: Option<Box<Outcome>>,
    pub(crate) deadline: Deadline,
    pub(crate) operation: Operation,
}

/// A deadline that starts to run at the first poll.
#[derive(Debug, Default)]
pub(crate) enum Deadline {
    #[default]
    None,
    After(Duration),
    Running(Pin<Box<Sleep>>),
}

impl Deadline {
    #[inline]
    pub(crate) fn is_over(&mut self, shared: &Shared, cx: &mut Context<'_>) -> bool {
        match self {
            Self::None => false,
            // All that a worker which was stopped had under way has ended.
            _ => shared.while_it_runs(&[Driver::Timers], || self.runs_out(cx)) == Some(true),
        }
    }

    fn runs_out(&mut self, cx: &mut Context<'_>) -> bool {
        if let Self::After(after) = self {
            *self = Self::Running(Box::pin(tokio::time::sleep(*after)));
        }
        match self {
            Self::Running(sleep) => sleep.as_mut().poll(cx).is_ready(),
            _ => false,
        }
    }

    pub(crate) fn error(operation: Operation) -> Error {
        Error::new(ErrorKind::DeadlineExceeded, "the deadline passed").during(operation)
    }
}
