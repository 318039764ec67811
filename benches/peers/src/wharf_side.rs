//! wharf itself: the one file that calls its API.
//!
//! Comes in: a half and its measurement. Goes out: nanoseconds, millions a second, GB a second, KiB, or wake-ups.
//! The variant names the progress policy: `busy`, `event` or `adaptive`.

use crate::Outcome;
use crate::half::Half;

/// False leaves wharf's column empty.
pub(crate) const READY: bool = false;

pub(crate) fn run(half: &mut Half) -> Outcome<f64> {
    Err(format!("wharf is not measured yet ({:?})", half.spec.verb).into())
}
