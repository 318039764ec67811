//! Where to listen, known before anybody listens there.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener},
    sync::atomic::{AtomicU32, Ordering},
};

/// A number that no other use in this process has, and hardly any in another one.
fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    std::process::id()
        .wrapping_mul(64)
        .wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Ports below those that the kernel gives to whoever asks for any: what is free stays so, also while nobody listens for a while.
fn free_port(ip: Ipv4Addr, number: u32) -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    let ports = (0..COUNT).map(|step| (number.wrapping_add(step.into()) % u32::from(COUNT)) as u16);
    ports
        .map(|port| FIRST + port)
        .find(|port| TcpListener::bind((ip, *port)).is_ok())
        .expect("a free port")
}

/// An address of this host with a port, for this use alone.
pub(crate) fn own_place() -> SocketAddr {
    let number = number();
    // All of 127/8 is this host. Its first and last 65,536 are left to others and to broadcasts.
    let ip = Ipv4Addr::from_bits(0x7f01_0000 + number % (254 << 16));
    SocketAddrV4::new(ip, free_port(ip, number)).into()
}

/// A port for what listens at all addresses.
pub(crate) fn own_port() -> u16 {
    free_port(Ipv4Addr::UNSPECIFIED, number())
}
