#![allow(unsafe_code)]
/// Anonymous memory at an address, or anywhere if that is 0.
pub(crate) fn map_at(
    address: usize,
    length: usize,
    shared: bool,
    flags: libc::c_int,
) -> std::io::Result<usize> {
    let kind = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    // SAFETY: with `MAP_FIXED` over pages of the caller's own, else where nothing is.
    let base = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            kind | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(base as usize)
}
