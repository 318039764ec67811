//! The monitor that patches libc: chosen only where the program asked for it with [`install_hooks`].
//!
//! ```text
//!   munmap, mmap, mremap, madvise, brk (sbrk), shmat, shmdt, process_madvise
//!        │ jump over the first instruction          patch, decode
//!        ▼
//!   the hook: invalidate(), then the system call     calls
//! ```
//!
//! Sees every call that goes through libc, its own among them (`free`, `realloc`, `malloc_trim`, the end of a thread), in every library, also
//! one loaded later. Does not see system calls made directly, those of the dynamic loader, a second libc (`dlmopen`), `remap_file_pages`, and
//! files that shrink or get holes under their mapping. In a child made by `fork` the hooks tell of nothing.
//!
//! | file | holds |
//! |---|---|
//! | `install` | which functions, the self-test |
//! | `patch` | how code is changed while threads run in it |
//! | `decode` | the length of the first instruction, padding |
//! | `forks` | no fork copies a half-made patch |
//! | `calls` | what runs instead |
//! | `absent` | the same doors without the feature `mem-hooks`, or elsewhere than on x86-64 Linux with glibc |
//!
//! Tests: beside each, built in for them whatever the features are; and `tests/memory/hooks.rs`, with the feature.
//!
//! # Safety
//! Implements the monitor's promise; whatever touches code is in the files above.
#![allow(unsafe_code)]

#[cfg(all(
    any(feature = "mem-hooks", test),
    target_os = "linux",
    target_arch = "x86_64",
    target_env = "gnu"
))]
mod calls;
#[cfg(all(
    any(feature = "mem-hooks", test),
    target_os = "linux",
    target_arch = "x86_64",
    target_env = "gnu"
))]
mod decode;
#[cfg(all(
    any(feature = "mem-hooks", test),
    target_os = "linux",
    target_arch = "x86_64",
    target_env = "gnu"
))]
mod forks;
#[cfg_attr(
    not(all(
        any(feature = "mem-hooks", test),
        target_os = "linux",
        target_arch = "x86_64",
        target_env = "gnu"
    )),
    path = "absent.rs"
)]
mod install;
#[cfg(all(
    any(feature = "mem-hooks", test),
    target_os = "linux",
    target_arch = "x86_64",
    target_env = "gnu"
))]
mod patch;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{EventClasses, MemoryMonitor, Timing, Validity};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::AddressRange,
};

/// Watches between two that call the patched functions. Every one compares their bytes.
const CALLED: u32 = 64;

/// Patches libc's functions that change mappings, so that caches hear of every change before it happens. Needs the feature `mem-hooks`. Best
/// called early in `main`; later is safe too where no other thread has to be stopped for it, which is refused otherwise. The patches stay
/// for the life of the process. A second call does nothing.
///
/// # Safety
/// Nothing else changes libc's code while this runs: no other library that patches (UCX, libfabric, Open MPI) is being initialised in another
/// thread, and no debugger sets breakpoints there. No `fork` of another thread that began before the call is under way still, and none copies
/// the process by a bare `clone` meanwhile; other forks wait.
///
/// # Errors
/// `Unsupported` without the feature, on other systems, when a function is patched already (then the monitor `imported` may help), when its
/// code cannot be changed safely, or when the self-test finds that calls do not arrive. `PermissionDenied` or `Io` when the kernel does not
/// let code be written.
pub unsafe fn install_hooks() -> Result<()> {
    // SAFETY: as promised by the caller.
    unsafe { install::install() }
}

/// Ends the events of [`install_hooks`], after telling every cache that all memory changed. The patches stay and only pass calls on; they are
/// never switched on again.
pub fn disable_hooks() {
    install::disable();
}

/// Events from the patched functions.
#[derive(Clone, Copy, Debug)]
pub struct Hooks;

impl Hooks {
    /// The monitor, when [`install_hooks`] was called, and calls still arrive.
    #[must_use]
    pub fn installed() -> Option<Self> {
        install::check(true).then_some(Self)
    }
}

// SAFETY: libc's functions tell before they change anything; `classes` is empty and `validate` says `Pending` once they do not any more, for
// which its caller asks at each use.
unsafe impl MemoryMonitor for Hooks {
    fn name(&self) -> &'static str {
        "hooks"
    }

    fn timing(&self) -> Timing {
        Timing::Before
    }

    fn classes(&self) -> EventClasses {
        match install::healthy() {
            true => {
                EventClasses::UNMAP
                    | EventClasses::OVERMAP
                    | EventClasses::REMAP
                    | EventClasses::DISCARD
                    | EventClasses::BREAK
                    | EventClasses::SYSV
                    | EventClasses::RUST_HEAP
                    | EventClasses::NOTIFIED
            }
            false => EventClasses::empty(),
        }
    }

    fn watch(&self, _: AddressRange) -> Result<()> {
        static WATCHES: AtomicU32 = AtomicU32::new(1);
        let call = WATCHES.fetch_add(1, Relaxed).is_multiple_of(CALLED);
        match install::check(call) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Unsupported,
                "the memory hooks were disabled or overwritten",
            )
            .during(Operation::Memory)),
        }
    }

    fn unwatch(&self, _: AddressRange) {}

    /// Compares the entries with what was written there: 3.5 ns.
    #[inline]
    fn validate(&self) -> Validity {
        match install::stand() {
            true => Validity::Valid,
            false => Validity::Pending,
        }
    }

    /// A library that patches later overwrites the hooks without a word.
    fn is_asked_at_each_use(&self) -> bool {
        true
    }
}
