//! What is here of a message: all of it, or what its sender announced; in memory of its own, or where it arrived.
//!
//! # Safety
//! [`Content::in_place`] passes the promise of [`Hold::take`] on; the text above these modules says who keeps it.
#![allow(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    protocol::{
        control::Announcement,
        ledger::{AccountId, Amount},
    },
    transport::{HeldBytes, Hold},
    types::{EndpointId, LinkId},
    util::copy::copied,
};

/// A place in the queue of an inbox.
pub(in crate::worker) enum Standing {
    Message(Arrived),
    /// Its sender took it back. It keeps its place, and its sender is charged for that, until those before it are gone: never the first of a
    /// queue.
    CalledBack {
        link: LinkId,
        account: AccountId,
    },
}

/// What a message takes beside its payload.
pub(in crate::worker) const PLACE: Amount = Amount::message(size_of::<Standing>());

/// Longest message that is kept in place.
const INLINE: usize = 48;

/// A message in an inbox.
pub(crate) struct Arrived {
    pub(crate) link: LinkId,
    pub(crate) from: EndpointId,
    pub(in crate::worker) account: AccountId,
    /// What it takes of the window of its id until it is taken; 0 for an announced one.
    pub(in crate::worker) cost: u32,
    pub(crate) content: Content,
}

impl Arrived {
    /// All of it; an empty message is left.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            content: std::mem::take(&mut self.content),
            ..*self
        }
    }
}

/// A message that was taken where it lies, past the queues.
pub(crate) struct Front {
    pub(crate) link: LinkId,
    pub(crate) from: EndpointId,
    pub(in crate::worker) header: u16,
    pub(in crate::worker) held: HeldBytes,
    /// Something may be due to be given back for it: [`Engine::am_settle`](crate::worker::engine::Engine::am_settle).
    pub(crate) owes: bool,
}

impl Front {
    #[inline(always)]
    pub(crate) fn arrived(self) -> Arrived {
        Arrived {
            link: self.link,
            from: self.from,
            account: AccountId::NOBODY,
            cost: 0,
            content: Content::InPlace {
                header: self.header,
                held: self.held,
            },
        }
    }

    /// A copy of it.
    #[inline(always)]
    pub(crate) fn kept(self) -> Content {
        Content::of_held(self.header, self.held)
    }
}

/// What is here of a message. `header` is the length of the user's header, in front.
pub(crate) enum Content {
    Inline {
        header: u8,
        length: u8,
        bytes: [u8; INLINE],
    },
    Whole {
        header: u16,
        bytes: Bytes,
    },
    /// Where it arrived.
    InPlace {
        header: u16,
        held: HeldBytes,
    },
    Announced(Box<Announced>),
}

/// A message whose payload is still with its sender.
pub(crate) struct Announced {
    pub(crate) rts: Announcement,
    pub(crate) header: Bytes,
}

impl Content {
    /// What it takes of its connection's account.
    #[inline]
    pub(in crate::worker) fn amount(&self) -> Amount {
        let bytes = match self {
            Self::Inline { .. } | Self::InPlace { .. } => 0,
            Self::Whole { bytes, .. } => bytes.len(),
            Self::Announced(announced) => size_of::<Announced>() + announced.header.len(),
        };
        Amount::message(size_of::<Standing>() + bytes)
    }

    pub(in crate::worker) fn eager(header: usize, body: &[u8]) -> Self {
        if body.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..body.len()].copy_from_slice(body);
            Self::Inline {
                header: header as u8,
                length: body.len() as u8,
                bytes,
            }
        } else {
            Self::Whole {
                header: header as u16,
                bytes: copied(body).into(),
            }
        }
    }

    /// Left where it is, if there is a hold for that, else as [`Content::eager`].
    #[inline(always)]
    pub(in crate::worker) fn in_place(
        header: usize,
        body: &[u8],
        hold: Option<&Arc<Hold>>,
    ) -> Self {
        // SAFETY: within the call of the sink that brought both; the text above these modules for the end.
        match hold.and_then(|hold| unsafe { hold.take(body) }) {
            Some(held) => Self::InPlace {
                header: header as u16,
                held,
            },
            None => Self::eager(header, body),
        }
    }

    /// The header, and the payload if it is here; neither of what lies where it arrived.
    #[inline]
    pub(crate) fn parts(&self) -> (&[u8], Option<&[u8]>) {
        let (header, all) = match self {
            Self::Inline {
                header,
                length,
                bytes,
            } => {
                let all = bytes.get(..usize::from(*length));
                (usize::from(*header), all.unwrap_or(bytes))
            }
            Self::Whole { header, bytes } => (usize::from(*header), &bytes[..]),
            Self::Announced(announced) => return (&announced.header, None),
            Self::InPlace { .. } => return (&[], None),
        };
        (all.get(..header).unwrap_or(&[]), all.get(header..))
    }

    /// The payload if it is here: of [`Content::Inline`] a copy.
    pub(crate) fn payload(&self) -> Option<Bytes> {
        let data = self.parts().1?;
        Some(match self {
            Self::Whole { bytes, .. } => bytes.slice_ref(data),
            _ => copied(data).into(),
        })
    }

    /// The same in memory of its own.
    #[inline]
    pub(crate) fn kept(self) -> Self {
        match self {
            Self::InPlace { header, held } => Self::of_held(header, held),
            kept => kept,
        }
    }

    /// A copy of what lies in place.
    #[inline(always)]
    fn of_held(header: u16, held: HeldBytes) -> Self {
        let length = held.length();
        if length > INLINE {
            return Self::of_long(header, &held);
        }
        let mut bytes = [0; INLINE];
        held.copy_to(&mut bytes[..length]);
        Self::Inline {
            header: header as u8,
            length: length as u8,
            bytes,
        }
    }

    #[inline(never)]
    fn of_long(header: u16, held: &HeldBytes) -> Self {
        let bytes = held.to_vec().into();
        Self::Whole { header, bytes }
    }
}

impl Default for Content {
    /// Of an empty message.
    fn default() -> Self {
        Self::Inline {
            header: 0,
            length: 0,
            bytes: [0; INLINE],
        }
    }
}
