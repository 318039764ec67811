//! Which functions are patched, and whether they still are.
//!
//! # Safety
//! Functions are libc's own, found by name in the libc that is loaded, and replaced by those of `calls` with the same arguments. The library
//! that holds the hooks is pinned before the first patch, so what the jumps lead to stays mapped.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    mem,
    sync::{
        OnceLock,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, Release, SeqCst},
        },
    },
};

use super::{
    calls::{self, PROBE},
    forks,
    patch::{self, Entry, Patched, Target},
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::Cause,
    sys::fork::at_fork_in_child,
    util::lock::Mutex,
};

/// What was patched, for good.
struct Installed {
    patched: Vec<Patched>,
    /// What each hit looks at.
    entries: Vec<Entry>,
    /// Entries of functions that the self-test calls, and their bits.
    probes: Vec<(u32, usize)>,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();
static HEALTHY: AtomicBool = AtomicBool::new(false);
/// Found overwritten where nothing may be logged.
static LOST: AtomicBool = AtomicBool::new(false);
/// One installation or self-test at a time. Never taken in a hook.
static BUSY: Mutex<()> = Mutex::new(());

/// # Safety
/// As [`super::install_hooks`].
pub(super) unsafe fn install() -> Result<()> {
    let busy = BUSY.lock();
    if INSTALLED.get().is_some() {
        return match healthy() {
            true => Ok(()),
            false => Err(refused("the hooks were disabled or overwritten")),
        };
    }
    let functions = functions()?;
    pin()?;
    // Long before code is changed: forks that began earlier are over by then.
    forks::register()
        .map_err(|error| Error::io("a handler of forks", error).during(Operation::Memory))?;
    let targets: Vec<_> = functions.iter().map(|(target, _)| *target).collect();
    at_fork_in_child(in_child)?;
    // SAFETY: libc's functions and hooks with their arguments; libc stays loaded, and this library was pinned.
    let patched = unsafe { patch::patch(&targets)? };
    let installed = INSTALLED.get_or_init(|| Installed {
        entries: patched.iter().map(Patched::entry).collect(),
        patched,
        probes: functions
            .iter()
            .filter(|(_, bit)| *bit != 0)
            .map(|(target, bit)| (*bit, target.entry))
            .collect(),
    });
    calls::ENABLED.store(true, SeqCst);
    HEALTHY.store(true, SeqCst);
    let passed = self_test(installed);
    drop(busy);
    match passed {
        Ok(()) => Ok(()),
        Err(what) => {
            disable();
            Err(refused(format!(
                "the patched {what} did not reach its hook"
            )))
        }
    }
}

fn refused(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unsupported, message).during(Operation::Memory)
}

pub(super) fn healthy() -> bool {
    HEALTHY.load(Relaxed)
}

/// Whether the patches stand, and with `call`, whether calls arrive. Once they did not, the hooks are disabled.
pub(super) fn check(call: bool) -> bool {
    let Some(installed) = INSTALLED.get() else {
        return false;
    };
    if !healthy() {
        if LOST.swap(false, SeqCst) {
            warn(overwritten(installed).unwrap_or("libc function"));
        }
        return false;
    }
    let lost = match call {
        true => {
            let _busy = BUSY.lock();
            self_test(installed).err()
        }
        false => overwritten(installed),
    };
    let Some(what) = lost else { return true };
    disable();
    warn(what);
    false
}

fn warn(what: &str) {
    tracing::warn!(
        target: "wharf::memory",
        function = what,
        "memory hooks were overwritten by another library and are not used any more"
    );
}

/// Whether calls arrive, by the entries alone. Once they did not, the hooks are disabled. No lock, no allocation, no log.
#[inline]
pub(super) fn stand() -> bool {
    let Some(installed) = INSTALLED.get() else {
        return false;
    };
    if !healthy() {
        return false;
    }
    // Without a branch for each.
    let difference = installed
        .entries
        .iter()
        .fold(0, |all, entry| all | entry.difference());
    if difference == 0 {
        return true;
    }
    LOST.store(true, SeqCst);
    disable();
    false
}

/// No more events, once everything that is cached has been told of.
pub(super) fn disable() {
    HEALTHY.store(false, SeqCst);
    calls::tell_everything(Cause::Notified);
    calls::ENABLED.store(false, SeqCst);
}

/// In the child of a fork nobody may use what the parent cached.
fn in_child() {
    HEALTHY.store(false, SeqCst);
    calls::ENABLED.store(false, SeqCst);
}

fn overwritten(installed: &Installed) -> Option<&'static str> {
    let lost = installed.patched.iter().find(|patch| !patch.stands())?;
    Some(lost.name)
}

/// The name of the function that does not lead to its hook. `brk` is not called: libc's own would lose a race with `malloc` for the break.
fn self_test(installed: &Installed) -> Result<(), &'static str> {
    if let Some(name) = overwritten(installed) {
        return Err(name);
    }
    calls::PROBED.store(0, SeqCst);
    let errno = std::io::Error::last_os_error();
    let mut expected = 0;
    for (bit, entry) in &installed.probes {
        expected |= bit;
        // SAFETY: all take up to six words; the hook answers the first one, and libc's own function is refused by the kernel: no page begins
        // at the odd address, no segment has the number -1.
        unsafe {
            let function: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize =
                mem::transmute(*entry);
            match *bit {
                calls::SHMAT => function(usize::MAX, PROBE, 0, 0, 0, 0),
                calls::PROCESS_MADVISE => function(usize::MAX, PROBE, 1, 0, 0, 0),
                _ => function(PROBE, 1, 1, 0, 0, 0),
            };
        }
    }
    // SAFETY: libc's errno of this thread is always there.
    unsafe { *libc::__errno_location() = errno.raw_os_error().unwrap_or(0) };
    match expected & !calls::PROBED.load(SeqCst) {
        0 => Ok(()),
        _ => Err("libc function"),
    }
}

/// libc's functions, the hooks, and the bits of those that the self-test calls.
fn functions() -> Result<Vec<(Target, u32)>> {
    let libc = Libc::open()?;
    let kept = libc
        .find(c"__curbrk")
        .ok_or_else(|| refused("libc has no __curbrk"))?;
    calls::BREAK.store(kept as *mut usize, Release);
    let all: [(&'static CStr, usize, u32); 8] = [
        (
            c"munmap",
            calls::munmap as *const () as usize,
            calls::MUNMAP,
        ),
        (c"mmap", calls::mmap as *const () as usize, calls::MMAP),
        (
            c"mremap",
            calls::mremap as *const () as usize,
            calls::MREMAP,
        ),
        (
            c"madvise",
            calls::madvise as *const () as usize,
            calls::MADVISE,
        ),
        (c"brk", calls::brk as *const () as usize, 0),
        (c"shmat", calls::shmat as *const () as usize, calls::SHMAT),
        (c"shmdt", calls::shmdt as *const () as usize, calls::SHMDT),
        (
            c"process_madvise",
            calls::process_madvise as *const () as usize,
            calls::PROCESS_MADVISE,
        ),
    ];
    let mut functions = Vec::new();
    for (symbol, hook, bit) in all {
        let name = symbol.to_str().unwrap_or("libc's");
        match libc.find(symbol) {
            Some(entry) => functions.push((Target { name, entry, hook }, bit)),
            // glibc has it since 2.36.
            None if bit == calls::PROCESS_MADVISE => {}
            None => return Err(refused(format!("libc has no {name}"))),
        }
    }
    Ok(functions)
}

/// The libc that this process runs on.
#[cfg(not(target_feature = "crt-static"))]
struct Libc(*mut libc::c_void);

#[cfg(not(target_feature = "crt-static"))]
impl Libc {
    fn open() -> Result<Self> {
        // SAFETY: loads nothing. The handle is never closed, as libc never goes.
        let handle =
            unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        match handle.is_null() {
            false => Ok(Self(handle)),
            true => Err(refused("libc.so.6 is not loaded")),
        }
    }

    /// By name in libc itself, so not what a preloaded library puts in front of it.
    fn find(&self, name: &CStr) -> Option<usize> {
        // SAFETY: a handle of dlopen's and a string that ends with a zero.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found as usize)
    }
}

/// A program linked statically has its libc in itself, without names.
#[cfg(target_feature = "crt-static")]
struct Libc;

#[cfg(target_feature = "crt-static")]
impl Libc {
    fn open() -> Result<Self> {
        Ok(Self)
    }

    fn find(&self, name: &CStr) -> Option<usize> {
        unsafe extern "C" {
            static mut __curbrk: usize;
        }
        Some(match name.to_bytes() {
            b"__curbrk" => &raw mut __curbrk as usize,
            b"munmap" => libc::munmap as *const () as usize,
            b"mmap" => libc::mmap as *const () as usize,
            b"mremap" => libc::mremap as *const () as usize,
            b"madvise" => libc::madvise as *const () as usize,
            b"brk" => libc::brk as *const () as usize,
            b"shmat" => libc::shmat as *const () as usize,
            b"shmdt" => libc::shmdt as *const () as usize,
            _ => return None,
        })
    }
}

/// Keeps the library with the hooks loaded, when they are not in the program itself.
#[cfg(not(target_feature = "crt-static"))]
fn pin() -> Result<()> {
    let mut info = mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: writes the structure, and answers 0 when it did not; the program's headers lie in the program.
    let (found, here) = unsafe {
        let found = libc::dladdr(pin as *const () as *const _, info.as_mut_ptr());
        (found, info.assume_init())
    };
    // SAFETY: a number from the kernel.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as *const libc::c_void;
    let mut info = mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: as above.
    let (program_found, program) = unsafe {
        let found = libc::dladdr(program, info.as_mut_ptr());
        (found, info.assume_init())
    };
    if found != 0 && program_found != 0 && here.dli_fbase == program.dli_fbase {
        return Ok(());
    }
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: the name is the loader's own; nothing new is loaded.
    if found == 0 || unsafe { libc::dlopen(here.dli_fname, flags) }.is_null() {
        return Err(refused("the library with the hooks cannot be kept loaded"));
    }
    Ok(())
}

#[cfg(target_feature = "crt-static")]
fn pin() -> Result<()> {
    Ok(())
}
