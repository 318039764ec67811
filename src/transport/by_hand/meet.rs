//! How two drivers meet, before their transport makes the link.
//!
//! ```text
//! both   magic, version, who it is, whether it copies by the kernel, a landmark    then, over a Unix socket where both do:
//! both   whether the other's memory could be read
//! ```

use crate::{
    error::{Error, ErrorKind, Result},
    sys::identity::identity,
    transport::{
        PeerInfo,
        channel::Channel,
        cma::{self, CmaPeer, Trial},
    },
    types::{Identity, Landmark},
};

const MAGIC: &[u8; 4] = b"whnd";
const VERSION: u8 = 1;
const HELLO: usize = 4 + 1 + 16 + 24 + 8 + 1 + 8 + 16;

/// Bytes of a number.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N]> {
    let (first, rest) = bytes
        .split_first_chunk()
        .ok_or_else(|| Error::new(ErrorKind::Protocol, "a driver's hello is too short"))?;
    *bytes = rest;
    Ok(*first)
}

pub(super) fn hello(me: &Identity, by_kernel: bool, landmark: &Landmark) -> Vec<u8> {
    let mut hello = Vec::with_capacity(HELLO);
    hello.extend_from_slice(MAGIC);
    hello.push(VERSION);
    hello.extend_from_slice(&me.boot);
    for space in [me.net_namespace, me.pid_namespace, me.user_namespace] {
        hello.extend_from_slice(&space.to_le_bytes());
    }
    hello.extend_from_slice(&me.user.to_le_bytes());
    hello.extend_from_slice(&me.pid.to_le_bytes());
    hello.push(by_kernel.into());
    hello.extend_from_slice(&landmark.address.to_le_bytes());
    hello.extend_from_slice(&landmark.holds);
    hello
}

pub(super) fn read(mut bytes: &[u8]) -> Result<(Identity, bool, Landmark)> {
    let from = &mut bytes;
    if take(from)? != *MAGIC {
        return Err(Error::new(
            ErrorKind::Protocol,
            "the peer is no driver by hand",
        ));
    }
    let [version] = take(from)?;
    if version != VERSION {
        let text = format!("the peer is a driver of version {version}, this side of {VERSION}");
        return Err(Error::new(ErrorKind::VersionMismatch, text));
    }
    let identity = Identity {
        boot: take(from)?,
        net_namespace: u64::from_le_bytes(take(from)?),
        pid_namespace: u64::from_le_bytes(take(from)?),
        user_namespace: u64::from_le_bytes(take(from)?),
        user: u32::from_le_bytes(take(from)?),
        pid: u32::from_le_bytes(take(from)?),
    };
    let [by_kernel] = take(from)?;
    let landmark = Landmark {
        address: u64::from_le_bytes(take(from)?),
        holds: take(from)?,
    };
    Ok((identity, by_kernel == 1, landmark))
}

/// Who the peer is; and its process, where both ends copy by the kernel and can.
pub(super) async fn meet(
    channel: &mut Channel,
    by_kernel: bool,
) -> Result<(PeerInfo, Option<CmaPeer>)> {
    let trial = Trial::new()?;
    let by_kernel = by_kernel && channel.passes_fds();
    let hello = hello(identity(), by_kernel, &trial.landmark());
    channel.send(&hello, &[]).await?;
    let (said, _) = channel.receive().await?;
    let (identity, theirs, landmark) = read(&said)?;
    let info = PeerInfo {
        identity,
        name: channel.peer_name(),
        certificates: channel.certificates(),
        origin: channel.origin(),
    };
    if !by_kernel || !theirs {
        return Ok((info, None));
    }
    let reached = CmaPeer::reach(channel, &landmark).await;
    let verdict = cma::encode(reached.as_ref().map(drop).map_err(String::as_str));
    channel.send(&verdict, &[]).await?;
    let (said, _) = channel.receive().await?;
    let peer = cma::settled(reached, cma::decode(&said)?);
    if let Err(reason) = &peer {
        tracing::debug!(target: "wharf::by_hand", %reason, "no copies by the kernel");
    }
    Ok((info, peer.ok()))
}
