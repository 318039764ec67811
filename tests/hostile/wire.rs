//! The messages of a link, written down once more by somebody who has only read about them.

pub(crate) const TAG_EAGER: u8 = 1;
pub(crate) const TAG_EAGER_SYNC: u8 = 2;
pub(crate) const TAG_RTS: u8 = 3;
pub(crate) const TAG_LENT: u8 = 45;
pub(crate) const TAG_RTR: u8 = 4;
pub(crate) const FRAGMENT: u8 = 5;
pub(crate) const DONE: u8 = 6;
pub(crate) const NACK: u8 = 7;
pub(crate) const CANCEL: u8 = 8;
pub(crate) const CANCELED: u8 = 9;
pub(crate) const PUT: u8 = 10;
pub(crate) const GET: u8 = 11;
pub(crate) const JOIN: u8 = 12;
pub(crate) const MAP: u8 = 13;
pub(crate) const CREDIT: u8 = 14;
pub(crate) const CLOSE: u8 = 15;
pub(crate) const AM_EAGER: u8 = 16;
pub(crate) const AM_RTS: u8 = 17;
pub(crate) const AM_CREDIT: u8 = 18;
pub(crate) const AM_REFUSED: u8 = 19;
pub(crate) const STREAM_OPEN: u8 = 20;
pub(crate) const STREAM_DATA: u8 = 21;
pub(crate) const STREAM_FIN: u8 = 22;
pub(crate) const STREAM_WINDOW: u8 = 23;
pub(crate) const STREAM_STOP: u8 = 24;
pub(crate) const STREAM_RESET: u8 = 25;
pub(crate) const STREAM_RTS: u8 = 26;
pub(crate) const STREAM_ACCEPTED: u8 = 27;
pub(crate) const ATOMIC: u8 = 28;
pub(crate) const FETCHED: u8 = 29;
pub(crate) const SIGNAL: u8 = 30;
pub(crate) const SETTLE: u8 = 31;
pub(crate) const PUT_LAYOUT: u8 = 32;
pub(crate) const GET_LAYOUT: u8 = 33;
pub(crate) const LAYOUT_DATA: u8 = 34;
pub(crate) const LAYOUT_RTS: u8 = 35;
pub(crate) const STREAM_TAKEN: u8 = 36;
pub(crate) const PULL: u8 = 37;
pub(crate) const PUT_RTS: u8 = 38;
pub(crate) const ROUTE: u8 = 39;
pub(crate) const ROUTED: u8 = 40;
pub(crate) const ASK_KEYS: u8 = 41;
pub(crate) const KEYS: u8 = 42;
pub(crate) const WRITE: u8 = 43;
pub(crate) const MOVED: u8 = 44;

/// In place of a slot, or of a number of blocks.
pub(crate) const NONE: u32 = u32::MAX;

/// A body, field by field.
#[derive(Debug, Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// The word at `at` of a body; 0 behind its end.
pub(crate) fn word(body: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(bytes) = body.get(at..at + 8) {
        word.copy_from_slice(bytes);
    }
    u64::from_le_bytes(word)
}
