//! Addresses as the kernel has them.
//!
//! # Safety
//! A storage has room for every address and is aligned for it; its family says which one it holds.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    ptr,
};

/// As the kernel writes an address.
pub(super) fn to_raw(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all of it are numbers, for which zeros are values.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger, and aligned for every address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
        }
    }
    storage
}

/// An address that the kernel wrote; `None`: none, or of another family.
pub(super) fn from_raw(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which it is.
            let raw = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in6>().read() };
            Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(raw.sin6_addr.s6_addr),
                u16::from_be(raw.sin6_port),
                raw.sin6_flowinfo,
                raw.sin6_scope_id,
            )))
        }
        _ => None,
    }
}
