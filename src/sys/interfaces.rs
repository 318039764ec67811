//! The machine's network interfaces.
//!
//! # Safety
//! The list is the system's until it is given back, which its owner here does; addresses are read as their families say.
#![allow(unsafe_code)]

use std::{ffi::CStr, io, net::IpAddr, ptr};

/// An interface with one of its addresses. One with several is there several times.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// `None`: of another family.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) is_up: bool,
}

/// What `getifaddrs(3)` gave.
struct List(*mut libc::ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it came from `getifaddrs`, and nothing of it is used any more.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// All of them.
///
/// # Errors
/// What the system said.
pub(crate) fn interfaces() -> io::Result<Vec<Interface>> {
    let mut list = List(ptr::null_mut());
    // SAFETY: it writes the list's address.
    if unsafe { libc::getifaddrs(&mut list.0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list.0;
    // SAFETY: each entry is null or valid until the list is given back.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: a name ends with a zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        found.push(Interface {
            name: name.to_string_lossy().into_owned(),
            // SAFETY: the address is null or one of its family.
            ip: unsafe { ip(entry.ifa_addr) },
            is_up: entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0,
        });
    }
    Ok(found)
}

/// # Safety
/// It must be null or point to an address of the family that it names.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise, also for what is read by the family. It need not be aligned for that.
    unsafe {
        match libc::c_int::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::from(v6.sin6_addr.s6_addr))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_loopback_is_there() {
        let all = interfaces().expect("a list");
        let loopback = |found: &&Interface| found.ip == Some(Ipv4Addr::LOCALHOST.into());
        let loopback = all.iter().find(loopback).expect("127.0.0.1");
        assert_eq!(loopback.name, "lo");
        assert!(loopback.is_up);
        // The system's own list has the same names.
        for entry in std::fs::read_dir("/sys/class/net").expect("sysfs") {
            let name = entry.expect("an entry").file_name();
            let is_interface = std::path::Path::new("/sys/class/net").join(&name).is_dir();
            let listed = all.iter().any(|found| *found.name == *name);
            assert!(listed || !is_interface, "{name:?} of {all:?}");
        }
    }
}
