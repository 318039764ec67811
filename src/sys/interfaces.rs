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
/// Errors: what the system said.
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
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller's promise, also for what is read by the family. None of it need be aligned.
    unsafe {
        match libc::c_int::from((&raw const (*address).sa_family).read_unaligned()) {
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
    use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};

    use super::*;

    /// As another library reads the same list.
    #[test]
    fn they_are_those_of_the_system() {
        let theirs = getifaddrs().expect("a list").map(|theirs| {
            let ip = theirs.address.and_then(|address| {
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
            });
            let is_up = theirs.flags.contains(InterfaceFlags::IFF_UP);
            (theirs.interface_name, ip, is_up)
        });
        let ours = interfaces().expect("a list").into_iter();
        let ours: Vec<_> = ours.map(|ours| (ours.name, ours.ip, ours.is_up)).collect();
        assert_eq!(ours, theirs.collect::<Vec<_>>());
        assert!(ours.iter().any(|(_, ip, _)| ip.is_some()), "{ours:?}");
    }
}
