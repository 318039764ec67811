//! A system that refuses calls: a filter of this process's own.
#![allow(unsafe_code)] // `prctl`, which has no safe face for filters.

use std::io;

/// This thread, and those that it starts, are refused these system calls, with this error.
pub(crate) fn refuse(calls: &[libc::c_long], errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let number = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    // The call's number is at 0 of `struct seccomp_data`.
    let mut filter = vec![statement(number, 0, 0, 0)];
    for call in calls {
        filter.push(statement(is, 0, 1, *call as u32));
        filter.push(statement(
            answer,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ));
    }
    filter.push(statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW));
    let installed = install(&mut filter);
    assert!(installed.is_ok(), "a filter: {installed:?}");
}

/// Puts a filter before the calls of this thread and of those that it starts.
pub(crate) fn install(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: a program of that length; the other call takes numbers only.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
