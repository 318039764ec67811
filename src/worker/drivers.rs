//! Whether the runtime that somebody is in has what wharf asks of one: timers and I/O.

use std::{cell::Cell, panic::catch_unwind, time::Duration};

use tokio::runtime::{Handle, Id};

use crate::error::{Error, ErrorKind, Result};

/// What a runtime has by `enable_time`, and by `enable_io`.
#[derive(Clone, Copy)]
pub(crate) enum Driver {
    Timers,
    Io,
}

impl Driver {
    /// Whether the current runtime has it. Tokio tells by a panic alone, which it prints.
    fn is_here(self) -> bool {
        match self {
            Self::Timers => catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok(),
            Self::Io => catch_unwind(|| drop(tokio::net::UnixDatagram::unbound())).is_ok(),
        }
    }

    /// Whether there is a current runtime that has it, which is found out once for each thread in
    /// it. The worker's, `own`, has.
    pub(super) fn is_at_hand(self, own: Id) -> bool {
        thread_local! {
            static LAST: [Cell<Option<(Id, bool)>>; 2] = const { [const { Cell::new(None) }; 2] };
        }
        let Ok(here) = Handle::try_current().map(|here| here.id()) else {
            return false;
        };
        if here == own {
            return true;
        }
        LAST.with(|last| match last[self as usize].get() {
            Some((last, has)) if last == here => has,
            _ => {
                let has = self.is_here();
                last[self as usize].set(Some((here, has)));
                has
            }
        })
    }
}

/// Whether the current runtime has what a worker needs.
/// Errors: `InvalidArgument`: which it lacks.
pub(super) fn are_here() -> Result<()> {
    for (driver, what) in [(Driver::Timers, "timers"), (Driver::Io, "I/O driver")] {
        if !driver.is_here() {
            let text = format!("a worker needs the runtime's {what}: build it with `enable_all`");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
    }
    Ok(())
}
