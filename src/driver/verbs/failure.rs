//! What the library's error numbers mean, with what to do about them.

use std::io;

use nix::sys::resource::{Resource, getrlimit};

use crate::error::{Error, ErrorKind, Result};

/// The error of `call` on `device` that ended with `errno`, positive.
#[cold]
pub(crate) fn failed(call: &str, device: &str, errno: i32) -> Error {
    let source = io::Error::from_raw_os_error(errno);
    let (kind, remedy) = match errno {
        libc::ENOMEM | libc::EAGAIN => (ErrorKind::Exhausted, memory_remedy()),
        libc::EINVAL => (ErrorKind::InvalidArgument, String::new()),
        libc::EPERM | libc::EACCES => (
            ErrorKind::PermissionDenied,
            "; the files in /dev/infiniband must be readable and writable for this user".to_owned(),
        ),
        libc::ENOSYS | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT => {
            (ErrorKind::Unsupported, String::new())
        }
        libc::ENODEV | libc::EIO => (
            ErrorKind::DeviceLost,
            "; the device has failed or was removed".to_owned(),
        ),
        _ => return Error::io(format!("{call} on {device}: {source}"), source),
    };
    Error::new(kind, format!("{call} on {device}: {source}{remedy}")).with_source(source)
}

/// The error number that `error` stems from, if it stems from one.
pub(crate) fn errno_of(error: &Error) -> Option<i32> {
    error.get_ref()?.downcast_ref::<io::Error>()?.raw_os_error()
}

/// What this thread's last call left in `errno`; never 0, so that a library that forgot to set it does not make an error a success.
pub(crate) fn last() -> i32 {
    match io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno > 0 => errno,
        _ => libc::EIO,
    }
}

/// For calls that answer the error number itself: 0 is success. Some providers answer it negative, some −1 and `errno`.
pub(crate) fn check(call: &str, device: &str, answer: i32) -> Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(failed(call, device, last())),
        answer => Err(failed(call, device, answer.saturating_abs())),
    }
}

/// A limit on locked memory is the common cause of `ENOMEM` here: queues and registrations are locked.
fn memory_remedy() -> String {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft != libc::RLIM_INFINITY => format!(
            "; this process may lock {} KiB of memory (ulimit -l): raise RLIMIT_MEMLOCK (memlock in limits.conf, LimitMEMLOCK= of a systemd unit, --ulimit memlock=-1 of a container)",
            soft / 1024
        ),
        _ => "; the device or the system has no memory for it".to_owned(),
    }
}
