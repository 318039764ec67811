//! The floors: what the machine itself allows, with no library in the way.
//!
//! Comes in: a half and its measurement, whose variant names the floor. Goes out: nanoseconds, millions a second, or GB a second.

mod bulk;
mod line;
mod ring;
mod wake;

use crate::Outcome;
use crate::half::Half;

pub(crate) fn run(half: &mut Half) -> Outcome<f64> {
    match half.spec.variant.as_str() {
        "line" => line::bounce(half),
        "ring" => ring::rate(half),
        "memcpy" => bulk::memcpy(half),
        "halves" => bulk::halves(half),
        "cma" => bulk::cma(half, false),
        "cma-halves" => bulk::cma(half, true),
        "eventfd" => wake::eventfd(half),
        other => Err(format!("no floor `{other}`").into()),
    }
}
