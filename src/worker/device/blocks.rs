//! Blocks of a region, strided or listed, where an end is device memory. The stream of a layout is cut into parts as any transfer is; each stops in a
//! fragment.
//!
//! | blocks in | buffer in | how |
//! |---|---|---|
//! | the peer's host memory | a device | each part is a put or get of its own, from or into its fragment (`movers/put.rs`, `movers/pull.rs`) |
//! | device memory of the peer | any | a get: the owner gathers (`movers/serve.rs`); a put: announced with its blocks, and pulled and scattered by the owner (`movers/pull.rs`) |
//!
//! An engine is asked for one copy for each block, and blocks that follow each other are one. What an engine is asked for at once it tells
//! at once. Nothing goes straight from device to device.

use crate::{
    memory::{region::Exposed, run::Run},
    protocol::layout::Places,
};

/// Most runs that an engine is asked for at once for a part.
pub(in crate::worker) const RUNS: usize = 256;

/// What follows `position` of a layout's part in memory that is exposed.
pub(in crate::worker) fn run_in(
    exposed: &Exposed,
    places: &Places,
    position: usize,
) -> Option<Run> {
    let (offset, length) = places.run(position as u64)?;
    let run = exposed.run(usize::try_from(offset).ok()?);
    Some(Run {
        length: run
            .length
            .min(usize::try_from(length).unwrap_or(usize::MAX)),
        ..run
    })
}
