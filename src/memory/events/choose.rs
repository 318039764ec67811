//! Which monitor a context has.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, OnceLock},
};

use super::{AllocMonitor, Hooks, Imported, MemoryMonitor, NoMonitor, Uffd};
use crate::error::{Error, ErrorKind, Operation, Result};

/// A monitor, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MonitorKind {
    /// The first of [`Imported`](Self::Imported), [`Hooks`](Self::Hooks) if the program installed them, [`Uffd`](Self::Uffd) and
    /// [`None`](Self::None) that can be had.
    #[default]
    Auto,
    /// Events of another library that is in the process, or of the program when it promised them ([`announce_all`](super::announce_all)).
    Imported,
    /// The kernel's, by userfaultfd.
    Uffd,
    /// Patched functions of libc, after [`install_hooks`](super::install_hooks).
    Hooks,
    /// What Rust's global allocator frees, where it is a [`TrackedAlloc`](super::TrackedAlloc).
    Alloc,
    /// No events but those that the program tells of.
    None,
}

impl MonitorKind {
    /// Every one.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::Imported,
        Self::Uffd,
        Self::Hooks,
        Self::Alloc,
        Self::None,
    ];

    /// Its name in configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Imported => "imported",
            Self::Uffd => "uffd",
            Self::Hooks => "hooks",
            Self::Alloc => "alloc",
            Self::None => "none",
        }
    }
}

impl fmt::Display for MonitorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MonitorKind {
    type Err = Error;

    /// From its [name](Self::name).
    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                Error::new(
                    ErrorKind::Configuration,
                    format!("{text:?} is no memory monitor; there are {names}"),
                )
            })
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_text! { MonitorKind }

/// The monitor of this kind: one in a process, made when it is first asked for. With [`MonitorKind::Auto`] there always is one; what was
/// chosen, and why, is logged once (target `wharf::memory`), as a warning when no events can be had.
///
/// # Errors
/// Why it cannot be had: `Unsupported`, `PermissionDenied`, `Exhausted`, `Forked`.
pub fn monitor(kind: MonitorKind) -> Result<Arc<dyn MemoryMonitor>> {
    match kind {
        MonitorKind::Auto => Ok(auto()),
        MonitorKind::Uffd => Ok(Uffd::process()?),
        MonitorKind::None => Ok(Arc::new(NoMonitor)),
        MonitorKind::Imported => Ok(Arc::new(Imported::available()?)),
        MonitorKind::Hooks => match Hooks::installed() {
            Some(hooks) => Ok(Arc::new(hooks)),
            None => Err(absent("no hooks are installed, or they were overwritten")),
        },
        MonitorKind::Alloc => match AllocMonitor::installed() {
            Some(alloc) => Ok(Arc::new(alloc)),
            None => Err(absent("the program's allocator is no TrackedAlloc")),
        },
    }
}

fn absent(why: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, why).during(Operation::Memory)
}

/// The choice does not change afterwards.
fn auto() -> Arc<dyn MemoryMonitor> {
    static CHOSEN: OnceLock<Arc<dyn MemoryMonitor>> = OnceLock::new();
    let choose = || {
        let mut refused = Vec::new();
        for kind in [MonitorKind::Imported, MonitorKind::Hooks, MonitorKind::Uffd] {
            match monitor(kind) {
                Ok(chosen) => {
                    tracing::info!(
                        target: "wharf::memory",
                        monitor = chosen.name(),
                        sees = ?chosen.classes(),
                        "memory events are watched; {}",
                        reasons(&refused)
                    );
                    return chosen;
                }
                Err(error) => refused.push((kind, error)),
            }
        }
        tracing::warn!(
            target: "wharf::memory",
            remedy = "allow userfaultfd (vm.unprivileged_userfaultfd=1, or /dev/userfaultfd for this user), build wharf with its feature `mem-hooks`, or allocate by `TrackedAlloc`",
            "no memory events can be had, so only registrations of wharf's own memory are kept; {}",
            reasons(&refused)
        );
        Arc::new(NoMonitor)
    };
    Arc::clone(CHOSEN.get_or_init(choose))
}

/// What was not taken, and why.
fn reasons(refused: &[(MonitorKind, Error)]) -> String {
    let reasons: Vec<_> = refused
        .iter()
        .map(|(kind, error)| format!("{kind}: {error}"))
        .collect();
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in MonitorKind::ALL {
            assert_eq!(
                kind.to_string().parse::<MonitorKind>().expect("a name"),
                kind
            );
        }
        for bad in ["", "UFFD", "uffd ", "userfaultfd"] {
            let error = bad.parse::<MonitorKind>().expect_err("no name");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        }
    }
}
