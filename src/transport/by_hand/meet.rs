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
    util::wire::{Field, Reader},
};

const MAGIC: &[u8; 4] = b"whnd";
const VERSION: u8 = 1;

pub(super) fn hello(me: &Identity, by_kernel: bool, landmark: &Landmark) -> Vec<u8> {
    let mut hello = MAGIC.to_vec();
    VERSION.put(&mut hello);
    me.put(&mut hello);
    by_kernel.put(&mut hello);
    landmark.put(&mut hello);
    hello
}

pub(super) fn read(bytes: &[u8]) -> Result<(Identity, bool, Landmark)> {
    let said = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first);
    let (version, body) = said.ok_or_else(|| {
        let text = "the peer is no driver by hand";
        Error::new(ErrorKind::Protocol, text)
    })?;
    if *version != VERSION {
        let text = format!("the peer is a driver of version {version}, this side of {VERSION}");
        return Err(Error::new(ErrorKind::VersionMismatch, text));
    }
    let from = &mut Reader::new(body);
    let mut read = || {
        Ok((
            Identity::read(from)?,
            from.u8()? == 1,
            Landmark::read(from)?,
        ))
    };
    read().map_err(|_: Error| Error::new(ErrorKind::Protocol, "a driver's hello is too short"))
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
