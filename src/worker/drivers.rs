//! Whether the runtime that somebody is in has what wharf asks of one: timers and I/O.

use std::{cell::Cell, panic::catch_unwind, time::Duration};

use tokio::runtime::{Handle, Id};

use crate::error::{Error, ErrorKind, Result};

/// Whether the current runtime has what a worker needs. Tokio tells by panics alone, which it prints.
/// Errors: `InvalidArgument`: which it lacks.
pub(super) fn are_here() -> Result<()> {
    let timers = || drop(tokio::time::sleep(Duration::ZERO));
    let io = || drop(tokio::net::UnixDatagram::unbound());
    let lacks = |what| {
        let text = format!("a worker needs the runtime's {what}: build it with `enable_all`");
        Error::new(ErrorKind::InvalidArgument, text)
    };
    catch_unwind(timers).map_err(|_| lacks("timers"))?;
    catch_unwind(io).map_err(|_| lacks("I/O driver"))
}

/// Whether there is a current runtime that has them, which is found out once for each thread in it. The worker's, `own`, has.
pub(super) fn are_at_hand(own: Id) -> bool {
    thread_local! {
        static LAST: Cell<Option<(Id, bool)>> = const { Cell::new(None) };
    }
    let Ok(here) = Handle::try_current().map(|here| here.id()) else {
        return false;
    };
    match LAST.get() {
        _ if here == own => true,
        Some((last, has)) if last == here => has,
        _ => {
            let has = are_here().is_ok();
            LAST.set(Some((here, has)));
            has
        }
    }
}
