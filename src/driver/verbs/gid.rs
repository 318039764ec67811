//! GIDs of a device, and which one of a port to use.
//!
//! # Safety
//! Tables are arrays of the size that is passed; see `verbs`.
#![allow(unsafe_code)]

use std::{ffi::c_int, fs, net::IpAddr};

use super::{Context, Gid, GidKind, failure, sys};
use crate::error::Result;

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    /// The address.
    pub(crate) gid: Gid,
    /// Where it stands in the port's table.
    pub(crate) index: u8,
    /// The port.
    pub(crate) port: u8,
    /// By which network it is reached.
    pub(crate) kind: GidKind,
    /// The network interface that it belongs to; 0: none.
    pub(crate) interface: u32,
}

impl GidEntry {
    /// How well it serves a connection to another host: more is better; `None`: not at all.
    fn rank(&self) -> Option<u8> {
        if self.gid.is_empty() {
            return None;
        }
        let reach = match self.gid.ip() {
            IpAddr::V4(ip) if ip.is_link_local() || ip.is_loopback() => 1,
            IpAddr::V4(_) => 3,
            IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80 => 0,
            IpAddr::V6(_) => 2,
        };
        // RoCE v2 is routed, v1 ends at the subnet; an InfiniBand port has GIDs of one kind alone.
        let kind = match self.kind {
            GidKind::ROCE_V2 => 8,
            GidKind::ROCE_V1 => 0,
            _ => 4,
        };
        Some(kind + reach)
    }
}

/// The entry to use of those of a port: RoCE v2 before v1, an IPv4 address before a global IPv6 one, a link-local one last; the first in
/// the table where they are equal. `None`: the port has none.
pub(crate) fn choose_gid(entries: &[GidEntry], port: u8) -> Option<GidEntry> {
    let mut best: Option<(u8, GidEntry)> = None;
    for entry in entries.iter().filter(|entry| entry.port == port) {
        if let Some(rank) = entry.rank()
            && best.is_none_or(|(than, _)| rank > than)
        {
            best = Some((rank, *entry));
        }
    }
    best.map(|(_, entry)| entry)
}

impl Context {
    /// The GIDs of all ports. Entries that are empty are left out.
    /// Errors: as of any call.
    pub(crate) fn gids(&self) -> Result<Vec<GidEntry>> {
        /// No table is longer: the index is one byte.
        const MOST: u32 = 256;
        let ports = self.attributes()?.ports;
        let mut lengths = Vec::new();
        for port in 1..=ports {
            lengths.push((port, self.port(port)?.gids.min(MOST)));
        }
        let open = &**self.open();
        let Some(call) = open.verbs.api._ibv_query_gid_table else {
            return self.gids_one_by_one(&lengths);
        };
        let room: u32 = lengths.iter().map(|(_, length)| length).sum();
        let mut raw = vec![sys::RawGidEntry::default(); room as usize];
        // SAFETY: writes no more entries than there is room for, each of the size given.
        let found = unsafe {
            call(
                open.raw(),
                raw.as_mut_ptr(),
                raw.len(),
                0,
                size_of::<sys::RawGidEntry>(),
            )
        };
        let Ok(found) = usize::try_from(found) else {
            // Kernels older than the call refuse it.
            let errno = i32::try_from(found.unsigned_abs()).unwrap_or(libc::EIO);
            return match errno {
                libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT => {
                    self.gids_one_by_one(&lengths)
                }
                errno => Err(failure::failed("ibv_query_gid_table", open.name(), errno)),
            };
        };
        raw.truncate(found);
        let entry = |raw: &sys::RawGidEntry| {
            Some(GidEntry {
                gid: Gid::from_words(raw.gid),
                index: u8::try_from(raw.gid_index).ok()?,
                port: u8::try_from(raw.port_num).ok()?,
                kind: GidKind(raw.gid_type),
                interface: raw.ndev_ifindex,
            })
        };
        let entries = raw.iter().filter_map(entry);
        Ok(entries.filter(|entry| !entry.gid.is_empty()).collect())
    }

    /// With the call that every version has; the kernel's files tell the kind.
    fn gids_one_by_one(&self, lengths: &[(u8, u32)]) -> Result<Vec<GidEntry>> {
        let open = &**self.open();
        let mut entries = Vec::new();
        for (port, length) in lengths {
            for index in 0..*length {
                let mut raw = [0; 2];
                // SAFETY: writes 16 bytes.
                let answer = unsafe {
                    (open.verbs.api.ibv_query_gid)(
                        open.raw(),
                        *port,
                        c_int::try_from(index).unwrap_or(c_int::MAX),
                        &raw mut raw,
                    )
                };
                open.check("ibv_query_gid", answer)?;
                let gid = Gid::from_words(raw);
                let Ok(index) = u8::try_from(index) else {
                    break;
                };
                if gid.is_empty() {
                    continue;
                }
                let file = format!(
                    "/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}",
                    open.name()
                );
                let kind = match fs::read_to_string(file).unwrap_or_default().trim() {
                    "RoCE v2" => GidKind::ROCE_V2,
                    "IB/RoCE v1" if self.port(*port)?.uses_gid() => GidKind::ROCE_V1,
                    _ => GidKind::IB,
                };
                entries.push(GidEntry {
                    gid,
                    index,
                    port: *port,
                    kind,
                    interface: 0,
                });
            }
        }
        Ok(entries)
    }
}
