//! What goes out: messages that are tried at once, and announced; memory that peers may reach.

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::{Buffer, Segment},
    protocol::{
        control::{self, Rts},
        plan,
    },
    trace,
    transport::{Link, SendError},
    types::{OpKey, Tag},
    worker::{
        list::announce_list,
        peer::{OneCopy, Peer},
        step::ZCOPY_FROM,
    },
};

/// Bytes that one turn of a link's queue hands over, about: a peer that asks for a lot is answered between everything else.
pub(in crate::worker) const TURN: u64 = 512 << 10;

/// A send of an eager message, tried at once: the hot path. `Err(None)`: it does not go this way. `data`: its `length` bytes, asked for when
/// there is room for them: the pieces of what is no run are put together then.
#[inline]
pub(crate) fn try_eager<'a>(
    peer: &mut Peer,
    tag: Tag,
    length: usize,
    is_run: bool,
    data: impl FnOnce() -> &'a [u8],
) -> Result<(), Option<SendError>> {
    if !peer.queue.is_empty() || length > peer.eager {
        return Err(None);
    }
    if !peer.has_window(length) {
        // The window that comes back may be waiting to be read.
        return Err(Some(SendError::Full));
    }
    if is_run && peer.lends(length) {
        return Err(None);
    }
    let Some(link) = peer.link.as_mut() else {
        return Err(None);
    };
    let data = data();
    if data.len() <= peer.short {
        link.am_short(control::TAG_EAGER, tag.0, data)?;
    } else if data.len() <= peer.eager.min(peer.attributes.max_bcopy)
        && (peer.attributes.max_zcopy == 0 || data.len() < ZCOPY_FROM || link.sends_in_place())
    {
        link.am_bcopy(control::TAG_EAGER, tag.0, &[], data)?;
    } else {
        return Err(None);
    }
    peer.take_window(data.len());
    trace::operation("tag send", data.len(), "eager");
    peer.left(length);
    Ok(())
}

/// Describes a message that is too long to send unasked, or is lent, with every way in which the receiver may reach it.
pub(in crate::worker) fn announce(
    peer: &mut Peer,
    buffer: &Buffer,
    key: OpKey,
    slot: &mut Option<u32>,
    is_lent: bool,
) -> Rts {
    let mut rts = Rts {
        op: key.0,
        length: buffer.len() as u64,
        address: 0,
        segment: 0,
        segment_offset: 0,
        slot: control::NONE,
    };
    if buffer.is_on_device() {
        // In fragments; there is no table to read.
        rts.segment = control::TABLE;
        return rts;
    }
    if buffer.list().is_some() {
        announce_list(peer.one_copy.as_deref(), buffer, &mut rts);
        return rts;
    }
    rts.address = buffer.address() as u64;
    let Some(one_copy) = &mut peer.one_copy else {
        return rts;
    };
    if is_lent || plan::counts(buffer.len()) {
        // It may have one from an earlier turn, at which there was no room.
        *slot = slot.or_else(|| one_copy.pair.acquire());
        rts.slot = slot.unwrap_or(control::NONE);
        if !is_lent
            && let Some(link) = &mut peer.link
            && let Some(segment) = show(one_copy, &mut **link, buffer)
        {
            rts.segment = segment.id();
        }
    }
    rts
}

/// Lets the peer read the segment of a message's buffer, if it is nothing but the message: nobody writes it any more, and the peer cannot.
pub(crate) fn show<'a>(
    one_copy: &mut OneCopy,
    link: &mut dyn Link,
    buffer: &'a Buffer,
) -> Option<&'a Arc<Segment>> {
    let segment = buffer.whole_segment()?;
    (one_copy.has(segment)
        || one_copy.is_worth(segment) && segment.seal() && give(one_copy, link, segment))
    .then_some(segment)
}

/// Lends the peer the segment of a buffer that it is to write a message into, which it could do by the kernel as well: until the connection is over, or the
/// buffer is used with another. A segment is lent to one connection only.
pub(crate) fn lend(one_copy: &mut OneCopy, link: &mut dyn Link, segment: &Arc<Segment>) -> bool {
    if one_copy.has(segment) {
        return true;
    }
    one_copy.cma.is_some()
        && one_copy.is_worth(segment)
        && one_copy.lend(segment)
        && give(one_copy, link, segment)
}

/// Gives the peer a segment. Whether it will have it.
pub(crate) fn give(one_copy: &mut OneCopy, link: &mut dyn Link, segment: &Segment) -> bool {
    let length = segment.mapping().len() as u64;
    let share = |fd| link.share(segment.id(), fd, length).is_ok();
    let is_given = segment.fd().is_some_and(share);
    if is_given {
        one_copy.set_given(segment);
    }
    is_given
}

/// An error for a send on a link that is gone.
#[cold]
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the endpoint is closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::plan::CHUNK, worker::pair::Pair};

    #[tokio::test]
    async fn an_announcement_that_finds_no_room_takes_one_word() {
        let pair = Pair::new().await;
        let buffer = Buffer::from(vec![1; 4 * CHUNK]);
        pair.here.shared.with(|engine| {
            let peer = engine.core.movers.ctx.peer(pair.link).expect("connected");
            let mut word = None;
            let first = announce(peer, &buffer, OpKey::new(1, 1), &mut word, false);
            assert_ne!(first.slot, control::NONE);
            assert_eq!(
                announce(peer, &buffer, OpKey::new(1, 1), &mut word, false).slot,
                first.slot
            );
            let other = announce(peer, &buffer, OpKey::new(2, 1), &mut None, false);
            assert_ne!(other.slot, first.slot);
        });
        pair.end();
    }
}
