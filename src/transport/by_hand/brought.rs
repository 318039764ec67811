//! What operations give back: a trait that nobody else implements.

use super::state::Work;
use crate::memory::{Buffer, BufferMut};

/// Of what an operation worked on.
pub(super) trait Of: Sized {
    fn of(work: Work) -> Option<Self>;
}

impl Of for () {
    fn of(_: Work) -> Option<Self> {
        Some(())
    }
}

impl Of for Buffer {
    fn of(work: Work) -> Option<Self> {
        match work {
            Work::Put(buffer) => Some(buffer),
            _ => None,
        }
    }
}

impl Of for BufferMut {
    fn of(work: Work) -> Option<Self> {
        match work {
            Work::Get(buffer) => Some(buffer),
            _ => None,
        }
    }
}
