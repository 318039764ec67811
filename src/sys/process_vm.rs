//! Copying between this process's memory and another's, by the kernel, in one copy.
//!
//! Needs the right to trace the other process: the same user and namespaces and no Yama restriction, or `CAP_SYS_PTRACE`.
//!
//! # Safety
//! The remote address is only a number here: the kernel checks it against the other process's mappings and this process
//! cannot come to harm by it. The local range is the caller's to vouch for.
#![allow(unsafe_code)]

use std::io;

/// Copies `len` bytes between `remote` in process `pid` and `local`: to `local` when `pull`, else to `remote`. Returns how many
/// were copied, from the beginning: fewer than `len` when the remote range ends before, or when the kernel's limit for one
/// call (2 GiB) was met.
/// Errors: `ESRCH` no such process (any more), `EPERM` no right, `EFAULT` nothing mapped at `remote`, or nothing that may be written,
/// `ENOSYS` built without it.
///
/// # Safety
/// `local` must be valid for `len` bytes, for writing when `pull`, and nothing else may write them during the call, nor read
/// them when `pull`. What the bytes at `remote` are to the other process is a matter between the two: to write there the
/// caller must have been granted that range by it.
pub(crate) unsafe fn copy(
    pid: u32,
    remote: u64,
    local: *mut u8,
    len: usize,
    pull: bool,
) -> io::Result<usize> {
    let remote = usize::try_from(remote).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    let here = libc::iovec {
        iov_base: local.cast(),
        iov_len: len,
    };
    let there = libc::iovec {
        // An address of the other process; never dereferenced here.
        iov_base: std::ptr::without_provenance_mut(remote),
        iov_len: len,
    };
    // SAFETY: `here` names the caller's range.
    unsafe { vectors(pid, &[here], &[there], pull) }
}

/// As [`copy`] with one call for many ranges: those of process `pid` one behind the other, and those `here` one behind the
/// other. At most 1024 each. Returns how many bytes were copied, from the beginning.
/// Errors: as [`copy`]; `EINVAL` for more ranges.
///
/// # Safety
/// As [`copy`], of every range.
pub(crate) unsafe fn vectors(
    pid: u32,
    here: &[libc::iovec],
    there: &[libc::iovec],
    pull: bool,
) -> io::Result<usize> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let (local, locals) = (here.as_ptr(), here.len() as libc::c_ulong);
    let (remote, remotes) = (there.as_ptr(), there.len() as libc::c_ulong);
    loop {
        // SAFETY: both vectors live through the call; the local ranges are the caller's.
        let copied = unsafe {
            match pull {
                true => libc::process_vm_readv(pid, local, locals, remote, remotes, 0),
                false => libc::process_vm_writev(pid, local, locals, remote, remotes, 0),
            }
        };
        if let Ok(copied) = usize::try_from(copied) {
            return Ok(copied);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        process::{Command, Stdio},
    };

    use super::*;
    use crate::sys::memfd::Memfd;

    fn errno(result: io::Result<usize>) -> Option<i32> {
        result.expect_err("must fail").raw_os_error()
    }

    #[test]
    #[ignore = "needs process_vm_readv: a container may refuse it"]
    fn reads_and_writes_this_process() {
        let me = std::process::id();
        let source = *b"across the fence";
        let mut target = [0_u8; 16];
        let remote = source.as_ptr() as u64;
        // SAFETY: `target` has 16 bytes and is not otherwise in use.
        let result = unsafe { copy(me, remote, target.as_mut_ptr(), 16, true) };
        assert_eq!((result.expect("read"), target), (16, source));
        let mut far = [0_u8; 16];
        // SAFETY: `target` has 16 bytes; `far` is this function's and not otherwise in use.
        let result = unsafe { copy(me, far.as_mut_ptr() as u64, target.as_mut_ptr(), 16, false) };
        assert_eq!((result.expect("write"), far), (16, source));
    }

    #[test]
    #[ignore = "needs process_vm_readv: a container may refuse it"]
    fn stops_at_the_end_of_the_mapping() {
        let me = std::process::id();
        let mapping = Memfd::create(c"wharf-test", 1 << 16)
            .and_then(|memory| memory.map())
            .expect("map");
        // SAFETY: `fence` is the last page of the mapping, which the test made; nothing else uses it.
        let fenced = unsafe {
            let fence = mapping.as_ptr().add((1 << 16) - 4096);
            libc::mprotect(fence.cast(), 4096, libc::PROT_NONE)
        };
        assert_eq!(fenced, 0);
        let mut target = vec![1_u8; 1 << 16];
        // SAFETY: `target` has that many bytes.
        let result = unsafe {
            copy(
                me,
                mapping.as_ptr() as u64,
                target.as_mut_ptr(),
                target.len(),
                true,
            )
        };
        assert_eq!(result.expect("part"), (1 << 16) - 4096);
    }

    #[test]
    #[ignore = "needs process_vm_readv: a container may refuse it"]
    fn errors_say_what() {
        let mut target = [0_u8; 8];
        let local = target.as_mut_ptr();
        // SAFETY: `target` has 8 bytes.
        let result = unsafe { copy(std::process::id(), 8, local, 8, true) };
        assert_eq!(errno(result), Some(libc::EFAULT));
        // SAFETY: as before.
        let result = unsafe { copy(i32::MAX as u32, 4096, local, 8, true) };
        assert_eq!(errno(result), Some(libc::ESRCH));
        // SAFETY: as before.
        let result = unsafe { copy(u32::MAX, 4096, local, 8, true) };
        assert_eq!(errno(result), Some(libc::ESRCH));
    }

    #[test]
    #[ignore = "needs process_vm_readv: a container may refuse it"]
    fn reads_another_process_until_it_ends() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn");
        // `spawn` may return before the program is loaded; once it answers, it is.
        let mut echo = [0];
        let (stdin, stdout) = (child.stdin.as_mut(), child.stdout.as_mut());
        stdin.expect("piped").write_all(b"?").expect("ask");
        stdout
            .expect("piped")
            .read_exact(&mut echo)
            .expect("answer");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("maps");
        // The first mapping is the beginning of the program's file.
        let start = maps.split('-').next().expect("an address");
        let start = u64::from_str_radix(start, 16).expect("hexadecimal");
        let mut magic = [0_u8; 4];
        // SAFETY: `magic` has 4 bytes and is not otherwise in use.
        let alive = unsafe { copy(child.id(), start, magic.as_mut_ptr(), 4, true) };
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!((alive.expect("read"), &magic), (4, b"\x7fELF"));
        // SAFETY: as before.
        let ended = unsafe { copy(child.id(), start, magic.as_mut_ptr(), 4, true) };
        assert_eq!(errno(ended), Some(libc::ESRCH));
    }
}
