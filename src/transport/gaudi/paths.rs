//! How bytes go between two places, for people.

use std::fmt;

use super::{
    card,
    peers::Known,
    shared::Shared,
    staged::{DIRECT_FROM, PIECE},
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::MemoryType,
};

/// How bytes go between two memories of a process; made by [`GaudiCopy::path`](super::GaudiCopy::path).
///
/// Its `Display` is for people: the way in one line, then a line for each better way that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GaudiPath {
    /// What moves them.
    pub chosen: String,
    /// Whether they stop in host memory on the way.
    pub is_staged: bool,
    /// Ways that are not taken, and why not.
    pub rejected: Vec<(String, String)>,
}

impl fmt::Display for GaudiPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chosen)?;
        for (way, why) in &self.rejected {
            write!(f, "\n  not {way}: {why}")?;
        }
        Ok(())
    }
}

/// See [`GaudiCopy::path`](super::GaudiCopy::path).
pub(super) fn path(shared: &Shared, from: MemoryType, to: MemoryType) -> Result<GaudiPath> {
    let count = shared.cards()?.len();
    let number = |memory_type| match memory_type {
        MemoryType::Gaudi(number) if usize::from(number) < count => Ok(Some(number)),
        memory_type if memory_type.is_host_accessible() => Ok(None),
        _ => {
            let text =
                format!("{memory_type} is no memory of a Gaudi card here, and not the host's");
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
    };
    let way = |chosen: &str| GaudiPath {
        chosen: chosen.to_owned(),
        is_staged: false,
        rejected: Vec::new(),
    };
    let host = "host memory that the registration cache maps for the card (staged where it cannot be pinned for writing)";
    Ok(match (number(from)?, number(to)?) {
        (None, None) => {
            let text = "Gaudi makes no copies within the host's memory: the processor does";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        (None, Some(_)) => way(&format!(
            "one copy by the card's engine inwards, from {host}"
        )),
        (Some(_), None) => way(&format!(
            "one copy by the card's engine outwards, into {host}"
        )),
        (Some(from), Some(to)) if from == to => {
            way("one copy by the card's engines for copies within it")
        }
        (Some(from), Some(to)) => between(shared, from, to)?,
    })
}

fn between(shared: &Shared, from: u16, to: u16) -> Result<GaudiPath> {
    let thunk = shared.load()?;
    let known = card::find(thunk, from).map(|card| card.peers().known());
    let staged = format!(
        "staged: the engine of gaudi:{from} fills pinned host memory while that of gaudi:{to} empties it, {PIECE} bytes at a time"
    );
    let direct =
        format!("one copy by the engines of gaudi:{from}, which write into gaudi:{to} over PCI");
    let not = |way: &str, why: String| (way.to_owned(), why);
    Ok(match known {
        Some(Known::Can) => GaudiPath {
            chosen: format!("{direct}; shorter than {DIRECT_FROM} bytes, {staged}"),
            is_staged: false,
            rejected: Vec::new(),
        },
        Some(Known::Cannot(why)) => GaudiPath {
            chosen: staged,
            is_staged: true,
            rejected: vec![not("one copy between the cards", why)],
        },
        unknown => {
            let why = match unknown {
                None => format!("gaudi:{from} is not open here, so its driver was not asked"),
                Some(_) => format!(
                    "the driver was not asked yet: the first copy of {DIRECT_FROM} bytes does"
                ),
            };
            GaudiPath {
                chosen: staged,
                is_staged: true,
                rejected: vec![not("one copy between the cards", why)],
            }
        }
    })
}
