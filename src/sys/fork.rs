//! Whether this process is a child made by `fork` (or a bare `clone`) of one that used wharf.
//!
//! A page that the kernel gives to children zeroed (`madvise(2)`, `MADV_WIPEONFORK`, Linux 4.14) holds a word that is not zero. A handler of
//! `pthread_atfork` zeroes it too, for kernels without, and lets others put their own state in order.
//!
//! # Safety
//! The page is mapped before its address is published and never unmapped. Handlers run in a child of which only one thread exists, with every
//! lock that another thread held still held: they may do what a signal handler may do.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use crate::error::{Error, ErrorKind, Operation, Result};

/// The word: null before the first question.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Stands in for the page where none can be had. Only the handler zeroes it.
static SPARE: AtomicU32 = AtomicU32::new(ALIVE);

/// What the word is in the process that made it.
const ALIVE: u32 = 1;

/// Handlers that there can be.
const HANDLERS: usize = 16;

static TABLE: [AtomicPtr<()>; HANDLERS] = [const { AtomicPtr::new(ptr::null_mut()) }; HANDLERS];

/// Whether this process is a child, made by `fork` or `clone`, of one in which this had been asked before. Two loads; async-signal-safe after
/// the first call.
#[inline]
pub(crate) fn forked() -> bool {
    if cfg!(miri) {
        // The interpreter makes no children, and has neither the page nor the handler.
        return false;
    }
    let word = WORD.load(Acquire);
    if word.is_null() {
        prepare();
        return false;
    }
    // SAFETY: published by `prepare` or `forget`, mapped for good.
    unsafe { &*word }.load(Relaxed) != ALIVE
}

/// Where the question is asked often: one load of the word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(&'static AtomicU32);

impl Mark {
    /// To be made in the process that is to be told from its children.
    pub(crate) fn here() -> Self {
        forked();
        // SAFETY: `forked` has published it, and it is mapped for good.
        Self(unsafe { &*WORD.load(Acquire) })
    }

    /// Whether this process is a child.
    #[inline]
    pub(crate) fn is_child(self) -> bool {
        self.0.load(Relaxed) != ALIVE
    }

    /// `Forked`, in a child.
    /// Errors: `Forked`.
    #[inline]
    pub(crate) fn check(self, operation: Operation) -> Result<()> {
        match self.is_child() {
            false => Ok(()),
            true => Err(refusal(operation)),
        }
    }
}

/// `Forked`, in a child.
/// Errors: `Forked`.
#[inline]
pub(crate) fn check(operation: Operation) -> Result<()> {
    match forked() {
        false => Ok(()),
        true => Err(refusal(operation)),
    }
}

#[cold]
fn refusal(operation: Operation) -> Error {
    Error::new(
        ErrorKind::Forked,
        "this process is a child made by fork; what its parent opened cannot be used here",
    )
    .during(operation)
}

/// Has `handler` called in every child that `fork` makes from now on (not in one of a bare `clone`). It may do what a signal handler may do:
/// no lock, no allocation. Asking twice for the same is asking once.
/// Errors: `Exhausted`: 16 handlers are there already.
pub(crate) fn at_fork_in_child(handler: fn()) -> Result<()> {
    forked();
    let handler = handler as *mut ();
    for place in &TABLE {
        match place.compare_exchange(ptr::null_mut(), handler, AcqRel, Acquire) {
            Ok(_) => return Ok(()),
            Err(there) if there == handler => return Ok(()),
            Err(_) => {}
        }
    }
    Err(Error::new(
        ErrorKind::Exhausted,
        "too many handlers of fork",
    ))
}

/// Makes the word and has it zeroed in children. Waits for nobody: threads that come together make one each, and one of them stays.
#[cold]
fn prepare() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    let word = page().unwrap_or_else(|| (&raw const SPARE).cast_mut());
    if WORD
        .compare_exchange(ptr::null_mut(), word, Release, Relaxed)
        .is_err()
    {
        if !ptr::eq(word, &raw const SPARE) {
            // SAFETY: mapped by `page` above and published nowhere.
            unsafe { libc::munmap(word.cast(), PAGE) };
        }
        return;
    }
    if !ASKED.swap(true, AcqRel) {
        // SAFETY: the handler is a function of this file that may run in a child; it stays, as the library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

const PAGE: usize = 4096;

/// A page that children get zeroed, with the word in it.
fn page() -> Option<*mut AtomicU32> {
    // SAFETY: a new mapping, wherever the kernel likes.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping made above. Without the advice (an old kernel) the handler zeroes the word.
    unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) };
    let word = page.cast::<AtomicU32>();
    // SAFETY: mapped, writable, aligned to a page, and nobody else's yet.
    unsafe { &*word }.store(ALIVE, Relaxed);
    Some(word)
}

/// Runs in the child, before `fork` returns there.
extern "C" fn in_child() {
    let word = WORD.load(Acquire);
    if !word.is_null() {
        // SAFETY: published by `prepare`, mapped for good.
        unsafe { &*word }.store(0, Relaxed);
    }
    for place in &TABLE {
        let handler = place.load(Acquire);
        if !handler.is_null() {
            // SAFETY: put there by `at_fork_in_child`, from a `fn()`.
            let handler = unsafe { std::mem::transmute::<*mut (), fn()>(handler) };
            handler();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `question` in a child and tells what it answered.
    fn in_a_child(fork: impl FnOnce() -> libc::pid_t, question: impl FnOnce() -> bool) -> bool {
        let child = fork();
        if child == 0 {
            let code = i32::from(question());
            // SAFETY: ends the child at once, with nothing of the parent's run.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0, "no child");
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "the child ended by {status:#x}");
        libc::WEXITSTATUS(status) == 1
    }

    fn fork() -> libc::pid_t {
        // SAFETY: the child only asks, and ends.
        unsafe { libc::fork() }
    }

    fn clone() -> libc::pid_t {
        // SAFETY: as `fork`, but without libc's handlers.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t }
    }

    #[test]
    fn children_know() {
        assert!(!forked());
        let mark = Mark::here();
        assert!(!mark.is_child());
        assert!(in_a_child(fork, move || mark.is_child()), "fork");
        assert!(in_a_child(fork, forked), "fork");
        assert!(in_a_child(clone, forked), "clone");
        assert!(!forked() && check(Operation::Memory).is_ok());
        assert!(in_a_child(fork, || {
            check(Operation::Memory).is_err_and(|error| error.kind() == ErrorKind::Forked)
        }));
    }

    #[test]
    fn handlers_run_in_the_child() {
        static RAN: AtomicU32 = AtomicU32::new(0);
        fn handler() {
            RAN.fetch_add(1, Relaxed);
        }
        at_fork_in_child(handler).expect("a place");
        at_fork_in_child(handler).expect("the same place");
        assert!(in_a_child(fork, || RAN.load(Relaxed) == 1));
        assert_eq!(RAN.load(Relaxed), 0);
    }
}
