//! Who may send how much: an end sends no more than the other has receives posted for.
//!
//! Every message begins with how many receives its sender has posted anew. One that says only that is sent when half of them are due;
//! the last place is kept for it, so that two ends that both have much to say do not wait for each other.

use crate::error::{Error, ErrorKind, Result};

/// Bytes before what a message carries: receives posted anew (`u16`, little-endian), then zeros.
pub(super) const HEADER: usize = 4;

/// Receives of an end.
pub(super) const RECEIVES: usize = 8;

/// Receives that are due before they are told of by themselves.
const HALF: usize = RECEIVES / 2;

/// One end's account.
#[derive(Debug)]
pub(super) struct Window {
    /// Receives that the peer has at all.
    size: usize,
    /// Those that this side may use.
    open: usize,
    /// Receives of this side, posted anew, that the peer does not know of.
    due: usize,
}

impl Window {
    /// To a peer with so many receives.
    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            open: size,
            due: 0,
        }
    }

    /// Whether bytes may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.open >= 2
    }

    /// Whether a message may be sent that only asks: what the peer's task has not taken yet, perhaps as others keep it, is not to be filled up.
    pub(super) fn may_ask(&self) -> bool {
        self.open > self.size / 2
    }

    /// Whether a message without bytes should be sent.
    pub(super) fn is_notice_due(&self) -> bool {
        self.due >= HALF && self.open >= 1
    }

    /// A message is sent: its header.
    pub(super) fn send(&mut self) -> [u8; HEADER] {
        self.open = self.open.saturating_sub(1);
        let due = std::mem::take(&mut self.due);
        let [low, high] = u16::try_from(due).unwrap_or(u16::MAX).to_le_bytes();
        [low, high, 0, 0]
    }

    /// A receive was posted anew.
    pub(super) fn posted(&mut self) {
        self.due += 1;
    }

    /// A message came.
    /// Errors: `Protocol`: no message of a wharf.
    pub(super) fn receive(&mut self, message: &[u8]) -> Result<()> {
        let [low, high, 0, 0, ..] = *message else {
            return Err(broken("a message came that is none"));
        };
        self.open += usize::from(u16::from_le_bytes([low, high]));
        if self.open > self.size {
            return Err(broken("more places were given back than there are"));
        }
        Ok(())
    }
}

#[cold]
fn broken(what: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends that both send whatever they may, and receive in every order of turns: none is ever stuck for good.
    #[test]
    fn two_talkers_do_not_wait_for_each_other() {
        for seed in 0..2000_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut ends = [Window::new(RECEIVES), Window::new(RECEIVES)];
            let mut on_way: [Vec<[u8; HEADER]>; 2] = [Vec::new(), Vec::new()];
            let mut sent = 0;
            for _ in 0..400 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let end = (random & 1) as usize;
                if random & 2 == 0 && ends[end].is_open() {
                    let message = ends[end].send();
                    on_way[1 - end].push(message);
                    sent += 1;
                } else if !on_way[end].is_empty() {
                    let message = on_way[end].remove(0);
                    ends[end].receive(&message).expect("a message");
                    ends[end].posted();
                }
                if ends[end].is_notice_due() {
                    let message = ends[end].send();
                    on_way[1 - end].push(message);
                }
                assert!(on_way[end].len() <= RECEIVES, "more than there is room for");
            }
            // What is on its way comes, and then both may talk.
            for _ in 0..RECEIVES * 2 {
                for end in 0..2 {
                    if !on_way[end].is_empty() {
                        let message = on_way[end].remove(0);
                        ends[end].receive(&message).expect("a message");
                        ends[end].posted();
                    }
                    if ends[end].is_notice_due() {
                        let message = ends[end].send();
                        on_way[1 - end].push(message);
                    }
                }
            }
            assert!(sent > 0 && ends.iter().all(Window::is_open), "{ends:?}");
        }
    }

    #[test]
    fn foreign_messages_are_refused() {
        let mut window = Window::new(4);
        for message in [&b""[..], &[0, 0, 0], &[0, 0, 1, 0], &[1, 0, 0, 0]] {
            assert!(window.receive(message).is_err(), "{message:?}");
        }
        let mut window = Window::new(4);
        window.send();
        assert!(window.receive(&[1, 0, 0, 0, 7]).is_ok());
    }
}
