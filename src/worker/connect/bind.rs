//! The addresses that a worker listens at, and their sockets.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use crate::{
    config::{NetDevices, interface_addresses},
    error::{Error, ErrorKind, Result},
};

/// Most addresses that a worker tells its peers.
const MOST: usize = 32;

/// Connections that wait in the system's queue of one socket.
const QUEUE: i32 = 1024;

/// Another port is tried so often, where one is free at some of the addresses only.
const TRIES: usize = 16;

/// The addresses of the interfaces that may be used, those that lead to other hosts first.
pub(super) fn interfaces(devices: &NetDevices) -> Result<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> = interface_addresses()?
        .into_iter()
        .filter(|(name, ip)| {
            // A link-local address means nothing to another host without its zone.
            let local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            !local && devices.allows(name)
        })
        .map(|(_, ip)| ip)
        .collect();
    let mut known = HashSet::new();
    found.retain(|ip| known.insert(*ip));
    found.sort_by_key(IpAddr::is_loopback);
    found.truncate(MOST);
    Ok(found)
}

/// Listens at each of these addresses, at any port. Those that cannot be bound (an IPv6 address that is not checked yet) are left out.
pub(super) fn each(ips: &[IpAddr]) -> Vec<TcpListener> {
    let bound = ips.iter().filter_map(|ip| {
        let listener = listen(SocketAddr::new(*ip, 0));
        listener
            .inspect_err(|error| tracing::debug!(target: "wharf::wireup", %ip, %error, "an address that cannot be bound"))
            .ok()
    });
    bound.collect()
}

/// Listens at an address; where it stands for all interfaces of which some may not be used, at those of the others.
/// Errors: what binding said.
pub(super) fn address(address: SocketAddr, devices: &NetDevices) -> Result<Vec<TcpListener>> {
    let failed = |error| Error::io(format!("binding {address}"), error);
    let all = *devices == NetDevices::All || devices.is_only_rdma();
    if all || !address.ip().is_unspecified() {
        return Ok(vec![listen(address).map_err(failed)?]);
    }
    let mut ips = interfaces(devices)?;
    // As the address of IPv6 that stands for all takes peers over both.
    ips.retain(|ip| ip.is_ipv4() || address.is_ipv6());
    if ips.is_empty() {
        let text = format!("binding {address}: no interface that may be used has such an address");
        return Err(Error::new(ErrorKind::Unreachable, text));
    }
    let mut tries = 0;
    loop {
        tries += 1;
        match together(&ips, address.port()) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && address.port() == 0
                    && tries < TRIES => {}
            bound => return bound.map_err(failed),
        }
    }
}

/// Listens at each of these addresses, at the same port.
fn together(ips: &[IpAddr], mut port: u16) -> io::Result<Vec<TcpListener>> {
    let mut bound = Vec::new();
    let mut left_out = Ok(());
    for ip in ips {
        match listen(SocketAddr::new(*ip, port)) {
            Ok(listener) => {
                port = listener.local_addr()?.port();
                bound.push(listener);
            }
            // As in `each`.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => left_out = Err(error),
            Err(error) => return Err(error),
        }
    }
    match bound.is_empty() {
        true => left_out.map(|()| bound),
        false => Ok(bound),
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(QUEUE)?;
    TcpListener::from_std(socket.into())
}
