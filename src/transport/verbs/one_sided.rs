//! One-sided operations of a link: writes, reads and atomics, posted among its messages.
//!
//! ```text
//! put, get        ─▶ registered memory of others ─▶ the next rail ─▶ Sink::sent
//! short, atomic   ─▶ inline, or a part of the rail's ring ─▶ Sink::sent, Sink::fetched
//! ```
//!
//! Rails share long transfers by their speeds ([`pace`](super::pace)), and take turns with short ones. They are others than those of messages, which let no peer read or write: a request that the peer refuses ends its rail, with all
//! that is under way there, and the link goes on. A link without such rails has messages alone.
//!
//! # Safety
//! Memory of others is named as its owner vouches for it ([`OneSided::put`]); parts of the ring belong to the device until their slot has ended.
#![allow(unsafe_code)]

use std::{fmt::Write as _, sync::Arc};

use super::{connection::Connection, pace::MEASURED, queues::BODY, rail::Rail};
use crate::{
    driver::verbs::{SendRequest, Sge},
    error::{Error, ErrorKind},
    transport::{
        DeviceAtomic, DeviceKey, DeviceRegistrar, DeviceWays, LocalRange, MAX_DEVICES, OneSided,
        OneSidedAttributes, RemoteRange, SendError, Zcopy,
    },
};

/// What long transfers are cut into, in bytes: what a message waits behind, and what rails share.
const PIECE: usize = 512 << 10;
/// The longest single request, in bytes. The header of InfiniBand has 2^31.
const LONGEST: usize = 1 << 30;

/// Those of a link.
#[derive(Debug)]
pub(super) struct Ways {
    connection: Arc<Connection>,
    memory: Arc<dyn DeviceRegistrar>,
    /// Devices of this side.
    devices: Vec<u64>,
    attributes: OneSidedAttributes,
    /// The first rail for them. Those of messages come before.
    first: usize,
    /// The rail behind it whose turn it is.
    turn: usize,
}

impl Ways {
    /// `None`: memory cannot be registered, or the ends have no rail for it.
    pub(super) fn new(connection: &Arc<Connection>) -> Option<Self> {
        let first = connection.rails.iter().position(|rail| rail.data)?;
        let memory: Arc<dyn DeviceRegistrar> = connection.memory.clone()?;
        let data_rails = || usable(&connection.rails[first..]);
        let mut devices = Vec::new();
        for rail in data_rails() {
            let device = rail.device();
            if !devices.contains(&device) && devices.len() < MAX_DEVICES {
                devices.push(device);
            }
        }
        let atomics = data_rails().all(Rail::does_atomics);
        let attributes = OneSidedAttributes {
            max_put: LONGEST,
            max_get: LONGEST,
            max_short: BODY,
            piece: PIECE,
            rails: data_rails().count(),
            atomics,
        };
        Some(Self {
            connection: Arc::clone(connection),
            memory,
            devices,
            attributes,
            first,
            turn: 0,
        })
    }
}

/// Those that one-sided operations may go over now.
#[inline]
fn usable(rails: &[Rail]) -> impl Iterator<Item = &Rail> {
    rails.iter().filter(|rail| rail.is_usable())
}

/// How they go, for people.
#[cold]
pub(super) fn explain(connection: &Connection) -> DeviceWays {
    let named = |rail: &Rail| {
        let name = format!("{} port {}", rail.queue_pair.device(), rail.port);
        (rail.device(), name)
    };
    let all = || connection.rails.iter().filter(|rail| rail.data);
    let mut usable: Vec<_> = usable(&connection.rails).map(named).collect();
    let rails = connection.rails.iter().enumerate();
    let places: Vec<usize> = rails
        .filter(|(_, rail)| rail.data && rail.is_usable())
        .map(|(place, _)| place)
        .collect();
    // Long transfers, as far as was measured; where it says nothing they are alike.
    let shares = connection.shares(&places).unwrap_or_default();
    for ((_, name), share) in usable.iter_mut().zip(shares) {
        let _ = write!(name, " ({share} % of long transfers)");
    }
    let gone = all().count() - usable.len();
    let rails = match (&connection.memory, usable.as_slice(), gone) {
        (None, ..) => Err("no memory can be registered with the devices".to_owned()),
        (_, [], 0) => Err("the ends have no rail for that in common".to_owned()),
        (_, [], _) => Err("the rails for that have failed".to_owned()),
        (_, rails, _) => Ok(rails.to_vec()),
    };
    let without = all().find(|rail| !rail.does_atomics());
    DeviceWays {
        no_atomics: match &rails {
            Err(why) => Some(why.clone()),
            Ok(_) => without.map(|rail| format!("{} does none", rail.queue_pair.device())),
        },
        rails,
        failed: gone,
    }
}

/// The key of a device among those of one range.
#[inline]
fn key_of(keys: &[DeviceKey], device: u64) -> Option<u32> {
    let key = keys.iter().find(|key| key.device == device)?;
    Some(key.key)
}

#[cold]
fn unreached() -> SendError {
    let text = "no rail leads from where the local memory is registered to where the peer's is";
    SendError::Failed(Error::new(ErrorKind::Unsupported, text))
}

impl Ways {
    /// The rail that these keys allow, its key at the peer, and here: that by which so many bytes are moved first, else the next. Without local keys any rail
    /// will do.
    fn rail(
        &mut self,
        local: Option<&[DeviceKey]>,
        remote: &[DeviceKey],
        bytes: usize,
    ) -> Result<(usize, u32, u32), SendError> {
        let rails = &self.connection.rails[self.first..];
        let (mut all, mut count) = ([0; MAX_DEVICES], 0);
        for step in 0..rails.len() {
            let turn = match self.turn + step {
                turn if turn < rails.len() => turn,
                turn => turn - rails.len(),
            };
            if self.keys(turn, local, remote).is_some()
                && let Some(place) = all.get_mut(count)
            {
                (*place, count) = (self.first + turn, count + 1);
                // Short ones take turns.
                if (bytes as u64) < MEASURED {
                    break;
                }
            }
        }
        let chosen = self.connection.first_of(&all[..count], bytes as u64);
        let turn = chosen.ok_or_else(unreached)? - self.first;
        let (there, here) = self.keys(turn, local, remote).ok_or_else(unreached)?;
        self.turn = turn + 1;
        Ok((self.first + turn, there, here))
    }

    /// The keys for a rail, at the peer and here, where it can be used now and they allow it.
    fn keys(
        &self,
        turn: usize,
        local: Option<&[DeviceKey]>,
        remote: &[DeviceKey],
    ) -> Option<(u32, u32)> {
        let rail = &self.connection.rails[self.first + turn];
        if !rail.is_usable() {
            return None;
        }
        let here = match local {
            Some(keys) => key_of(keys, rail.device())?,
            None => 0,
        };
        Some((key_of(remote, rail.peer_device)?, here))
    }

    fn sge(local: &LocalRange<'_>, key: u32) -> [Sge; 1] {
        [Sge {
            addr: local.address,
            length: u32::try_from(local.length).unwrap_or(u32::MAX),
            lkey: key,
        }]
    }
}

impl OneSided for Ways {
    fn attributes(&self) -> OneSidedAttributes {
        self.attributes
    }

    fn memory(&self) -> &Arc<dyn DeviceRegistrar> {
        &self.memory
    }

    fn devices(&self) -> &[u64] {
        &self.devices
    }

    fn devices_to(&self, remote: &[DeviceKey]) -> Vec<u64> {
        let mut devices = self.devices.clone();
        devices.retain(|device| {
            let mut rails = usable(&self.connection.rails[self.first..]);
            rails.any(|rail| rail.device() == *device && key_of(remote, rail.peer_device).is_some())
        });
        devices
    }

    fn reaches(&self, remote: &[DeviceKey]) -> bool {
        usable(&self.connection.rails[self.first..])
            .any(|rail| key_of(remote, rail.peer_device).is_some())
    }

    unsafe fn put(
        &mut self,
        local: LocalRange<'_>,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        let (rail, there, here) = self.rail(Some(local.keys), remote.keys, local.length)?;
        let sge = Self::sge(&local, here);
        let make = |id, flags| SendRequest::write(id, &sge, flags, remote.address, there);
        // SAFETY: the caller's promise.
        unsafe {
            self.connection
                .one_sided(rail, (token, local.length as u64), make)
        }
        .map(|()| Zcopy::Pending)
    }

    fn put_short(
        &mut self,
        data: &[u8],
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        let (rail, there, _) = self.rail(None, remote.keys, 0)?;
        self.connection
            .short_write(rail, token, data, |id, sge, flags| {
                SendRequest::write(id, sge, flags, remote.address, there)
            })
            .map(|()| Zcopy::Pending)
    }

    unsafe fn get(
        &mut self,
        local: LocalRange<'_>,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        let (rail, there, here) = self.rail(Some(local.keys), remote.keys, local.length)?;
        let sge = Self::sge(&local, here);
        let make = |id, flags| SendRequest::read(id, &sge, flags, remote.address, there);
        // SAFETY: the caller's promise.
        unsafe {
            self.connection
                .one_sided(rail, (token, local.length as u64), make)
        }
        .map(|()| Zcopy::Pending)
    }

    fn get_short(
        &mut self,
        length: usize,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<(), SendError> {
        let (rail, there, _) = self.rail(None, remote.keys, 0)?;
        self.connection
            .fetch(rail, token, length, |id, sge, flags| {
                SendRequest::read(id, sge, flags, remote.address, there)
            })
    }

    /// Those of one word have to go to one device of the peer's: they are atomic towards the same device's alone. So callers give one key.
    fn atomic(
        &mut self,
        atomic: DeviceAtomic,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<(), SendError> {
        let (rail, there, _) = self.rail(None, remote.keys, 0)?;
        let address = remote.address;
        self.connection
            .fetch(rail, token, 8, |id, sge, flags| match atomic {
                DeviceAtomic::FetchAdd(add) => {
                    SendRequest::fetch_add(id, sge, flags, address, there, add)
                }
                DeviceAtomic::CompareSwap { compare, swap } => {
                    SendRequest::compare_swap(id, sge, flags, address, there, compare, swap)
                }
            })
    }
}
