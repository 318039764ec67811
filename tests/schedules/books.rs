//! What a program has begun, and what came of it; what must hold of that in the end.

use std::{cell::RefCell, rc::Rc};

use wharf::EndpointId;

use super::guarded::bytes;

/// How far something has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Never polled: nothing came of it.
    New,
    /// It happens, whatever becomes of its future; unless its connection ends.
    Begun,
    Done,
    /// It failed with its connection: it may have happened.
    Open,
    /// Called off in time, or refused: it never happens.
    Never,
}

impl Fate {
    /// Whether it must have happened, and whether it may have.
    pub(crate) fn bounds(self, is_faulty: bool) -> (bool, bool) {
        match self {
            Self::New | Self::Never => (false, false),
            Self::Begun => (!is_faulty, true),
            Self::Done => (true, true),
            Self::Open => (false, true),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) conn: usize,
    pub(crate) side: usize,
    /// The id of an active message.
    pub(crate) am: Option<usize>,
    pub(crate) tag: u64,
    pub(crate) length: usize,
    pub(crate) sync: bool,
    pub(crate) priority: bool,
    pub(crate) order: Option<u32>,
    pub(crate) fate: Fate,
    pub(crate) received: u32,
    /// Its payload was not wanted.
    pub(crate) is_refused: bool,
    /// Its sender would rather have it back.
    pub(crate) is_called_off: bool,
}

#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) node: usize,
    pub(crate) tag: u64,
    pub(crate) mask: u64,
    pub(crate) room: usize,
    pub(crate) order: Option<u32>,
    pub(crate) got: Option<usize>,
    pub(crate) is_truncated: bool,
    /// It has given a message back, perhaps.
    pub(crate) is_loose: bool,
    pub(crate) is_over: bool,
    /// When it was.
    pub(crate) ended: u32,
}

impl Receive {
    pub(crate) fn matches(&self, tag: u64) -> bool {
        (tag ^ self.tag) & self.mask == 0
    }
}

#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) node: usize,
    pub(crate) conn: usize,
    pub(crate) side: usize,
    pub(crate) at: usize,
    pub(crate) serial: u64,
    pub(crate) length: usize,
    pub(crate) local: bool,
    pub(crate) fate: Fate,
    /// It has its slot still.
    pub(crate) has_slot: bool,
    pub(crate) signals: bool,
}

#[derive(Debug)]
pub(crate) struct Get {
    pub(crate) node: usize,
    pub(crate) slot: usize,
    pub(crate) length: usize,
}

/// An atomic operation, or a signal: something is added to a word of a node.
#[derive(Debug)]
pub(crate) struct Raise {
    pub(crate) node: usize,
    pub(crate) conn: usize,
    pub(crate) counter: bool,
    pub(crate) fate: Fate,
    pub(crate) old: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) conn: usize,
    pub(crate) total: usize,
    /// Bytes whose writes have returned.
    pub(crate) written: usize,
    pub(crate) is_finished: bool,
    pub(crate) reader_left: bool,
    pub(crate) is_read: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) messages: Vec<Message>,
    pub(crate) receives: Vec<Receive>,
    pub(crate) puts: Vec<Put>,
    pub(crate) gets: Vec<Get>,
    pub(crate) raises: Vec<Raise>,
    pub(crate) streams: Vec<Stream>,
    /// Puts that a flush or fence waits for.
    pub(crate) flushes: Vec<Vec<usize>>,
    /// Active messages as they came: node, whom from as the receiver calls it, serial.
    pub(crate) arrivals: Vec<(usize, EndpointId, usize)>,
    pub(crate) clock: u32,
    /// Messages were changed on their way: what they bring says nothing.
    pub(crate) is_hostile: bool,
}

/// How much of each came about, so that programs are known to say something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) tagged: u64,
    pub(crate) active: u64,
    pub(crate) puts: u64,
    pub(crate) atomics: u64,
    pub(crate) streams: u64,
    pub(crate) called_off: u64,
    pub(crate) truncated: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, books: &Books) {
        let count = |is_so: &dyn Fn(&Message) -> bool| {
            books
                .messages
                .iter()
                .filter(|message| is_so(message))
                .count() as u64
        };
        self.tagged += count(&|message| message.am.is_none() && message.received == 1);
        self.active += books.arrivals.len() as u64;
        let puts = books.puts.iter().filter(|put| put.fate == Fate::Done);
        self.puts += puts.count() as u64;
        self.atomics += books
            .raises
            .iter()
            .filter(|raise| raise.old.is_some())
            .count() as u64;
        self.streams += books.streams.iter().filter(|stream| stream.is_read).count() as u64;
        self.called_off += count(&|message| message.fate == Fate::Never);
        let receives = books.receives.iter();
        self.truncated += receives.filter(|receive| receive.is_truncated).count() as u64;
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.tagged += other.tagged;
        self.active += other.active;
        self.puts += other.puts;
        self.atomics += other.atomics;
        self.streams += other.streams;
        self.called_off += other.called_off;
        self.truncated += other.truncated;
    }

    /// The rarest.
    pub(crate) fn least(&self) -> u64 {
        let all = [
            self.tagged,
            self.active,
            self.puts,
            self.atomics,
            self.streams,
        ];
        let rare = [self.called_off * 10, self.truncated * 10];
        all.into_iter().chain(rare).min().unwrap_or_default()
    }
}

pub(crate) type Shelf = Rc<RefCell<Books>>;

/// Bytes in front of each stream: its number.
pub(crate) const HEAD: usize = 8;

/// The payload of a message: its number in front where its tag has none.
pub(crate) fn payload(number: usize, tag: u64, length: usize) -> Vec<u8> {
    let mut bytes = bytes(number as u64 + 1, length).to_vec();
    if tag >> 16 == 0 {
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    bytes
}

impl Books {
    /// A receive is over, and may have given a message back.
    pub(crate) fn let_go(&mut self, number: usize, is_loose: bool) {
        let ended = self.tick();
        let receive = &mut self.receives[number];
        receive.is_loose |= is_loose;
        (receive.is_over, receive.ended) = (true, ended);
    }

    pub(crate) fn tick(&mut self) -> u32 {
        self.clock += 1;
        self.clock
    }

    /// Which message these bytes with this tag are.
    pub(crate) fn number_of(tag: u64, bytes: &[u8]) -> Option<usize> {
        match tag >> 16 {
            0 => bytes
                .first_chunk::<8>()
                .map(|word| u64::from_le_bytes(*word) as usize),
            serial => Some(serial as usize - 1),
        }
    }

    /// Messages of one connection come in the order in which they were sent, to receives in the order in which these were posted.
    pub(crate) fn check_order(&self) {
        let over = self.receives.iter().filter_map(|receive| {
            let message = &self.messages[receive.got?];
            Some((receive, message))
        });
        let over: Vec<_> = over.filter(|(_, message)| !message.priority).collect();
        for (first, late) in &over {
            for (second, early) in &over {
                let is_crossed = first.node == second.node
                    && (late.conn, late.side) == (early.conn, early.side)
                    && first.order < second.order
                    && late.order > early.order
                    && first.matches(early.tag);
                // A message that somebody else had then, and has given back, comes later than others.
                let was_back = |receive: &Receive| {
                    receive.node == first.node
                        && receive.is_loose
                        && receive.matches(early.tag)
                        && Some(receive.ended) > first.order
                };
                assert!(
                    !is_crossed || self.receives.iter().any(was_back),
                    "{late:?} came to {first:?} before {early:?}, which came to {second:?}"
                );
            }
        }
        let mut last: Vec<(usize, EndpointId, usize, u32)> = Vec::new();
        for (node, from, number) in &self.arrivals {
            let message = &self.messages[*number];
            let (am, order) = (message.am.unwrap_or(0), message.order.unwrap_or(0));
            let place = last
                .iter_mut()
                .find(|(n, f, a, _)| (n, f, a) == (node, from, &am));
            match place {
                Some((.., last)) => {
                    assert!(*last < order, "active messages out of order: {message:?}");
                    *last = order;
                }
                None => last.push((*node, *from, am, order)),
            }
        }
    }

    /// Each message came once; what failed in between, not at all or once. `faulty`: of these connections nothing is known.
    pub(crate) fn check_messages(
        &self,
        faulty: &[bool],
        over: &[bool],
        to: impl Fn(&Message) -> usize,
    ) {
        for message in &self.messages {
            assert!(message.received <= 1, "twice: {message:?}");
            let (must, may) = message.fate.bounds(false);
            assert!(
                may || message.received == 0,
                "called off, and came: {message:?}"
            );
            let is_faulty = faulty[message.conn] || over[to(message)];
            let truncated = self.receives.iter().any(|receive| {
                // One that was dropped does not tell.
                (receive.is_truncated || receive.is_loose)
                    && receive.node == to(message)
                    && receive.matches(message.tag)
                    && receive.room < message.length
            });
            let refused = message.is_refused || message.am == Some(super::bed::IDS);
            assert!(
                message.received == 1
                    || !must
                    || is_faulty
                    || refused
                    || (message.am.is_none() && truncated),
                "never came: {message:?}"
            );
        }
        // As many were too long as receives were too short.
        let lost = |must: bool| {
            let mut lost = 0;
            for message in &self.messages {
                let bounds = message.fate.bounds(false);
                let counts = if must { bounds.0 } else { bounds.1 };
                lost += usize::from(message.am.is_none() && counts && message.received == 0);
            }
            lost
        };
        let receives = self.receives.iter();
        let truncated = receives.filter(|receive| receive.is_truncated).count();
        let receives = self.receives.iter();
        let untold = receives
            .filter(|receive| receive.is_loose && receive.room < 20_000)
            .count();
        if !faulty.contains(&true) {
            let (least, most) = (lost(true), lost(false));
            assert!(
                least <= truncated + untold && truncated <= most,
                "{truncated} or {untold} more receives were too short, for {least} to {most} messages"
            );
        }
    }
}
