//! The peer that keeps to nothing: what it knows of the worker, what it has said, and what it says next.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{
    link::Message,
    machine::{Dice, EXPOSED, Messages},
    wire::*,
};

/// Payload bytes of one play; past them payloads are empty.
const BYTES: usize = 1 << 20;

/// Active messages of an id that a worker takes before it has said anything.
const GRANT: u32 = 16;

/// Exposed memory of the worker, as its descriptor says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}

/// Fragments that an operation waits for.
#[derive(Clone, Copy, Debug)]
struct Feed {
    to: u64,
    left: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// What the worker asked, and nobody has answered.
    asks: VecDeque<Message>,
    feeds: Vec<Feed>,
    /// Operations of the worker's, the last ones.
    ops: VecDeque<u64>,
    /// Those that wait for bytes.
    receiving: HashSet<u64>,
    /// Operations of the peer's own: the last number, and what was announced with which length.
    last: u64,
    announced: Vec<(u64, usize)>,
    /// Active messages that the worker takes of each id, and what it has said of that.
    credits: [u32; 4],
    pub(crate) regions: Vec<Known>,
    /// Where the peer has memory that the worker may reach by the kernel, and how much.
    pub(crate) memory: Option<(u64, usize)>,
    /// Streams by the headers that the peer gives them, and the bytes that were sent on each.
    own_streams: Vec<u64>,
    opened: u64,
    their_streams: Vec<u64>,
    sent_on: HashMap<u64, u64>,
    /// What was sent as messages, and as fragments by operation.
    messages: Messages,
    fragments: HashMap<u64, Vec<Vec<u8>>>,
    serial: usize,
    said: usize,
}

/// The byte at `at` of a stream.
fn stream_byte(name: u64, at: u64) -> u8 {
    (name.wrapping_mul(37) + at.wrapping_mul(11) + (at >> 8).wrapping_mul(13)) as u8 & 0x7f
}

/// What of a message to the peer is payload of the worker's program.
pub(crate) fn is_told(message: &Message) -> Option<&[u8]> {
    let front = match message.id {
        TAG_EAGER | FRAGMENT | STREAM_DATA | AM_EAGER => 0,
        TAG_EAGER_SYNC => 8,
        LAYOUT_DATA => 12,
        PUT => message.prefix,
        _ => return None,
    };
    message.body.get(front..)
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self {
            credits: [GRANT; 4],
            ..Self::default()
        }
    }

    pub(crate) fn bytes_said(&self) -> usize {
        self.said
    }

    /// Slot and generation of a region, by its descriptor: fields of id, length and bytes behind a head of 8 bytes.
    pub(crate) fn learns_region(&mut self, descriptor: &[u8]) {
        let mut rest = &descriptor[8..descriptor.len() - 4];
        while let Some(([i0, i1, l0, l1], behind)) = rest.split_first_chunk::<4>() {
            let (field, next) = behind.split_at(usize::from(u16::from_le_bytes([*l0, *l1])));
            if u16::from_le_bytes([*i0, *i1]) == 5 {
                self.regions.push(Known {
                    slot: u32::from_le_bytes([field[16], field[17], field[18], field[19]]),
                    generation: word(field, 20),
                });
            }
            rest = next;
        }
    }

    /// Notes what is said.
    pub(crate) fn said(&mut self, message: &Message) {
        self.said += message.body.len() + 64;
        match message.id {
            TAG_EAGER => self.note(message.header, &message.body),
            TAG_EAGER_SYNC => self.note(message.header, message.body.get(8..).unwrap_or(&[])),
            STREAM_DATA => {
                *self.sent_on.entry(message.header).or_default() += message.body.len() as u64;
            }
            FRAGMENT => {
                let log = self.fragments.entry(message.header).or_default();
                log.push(message.body.clone());
            }
            _ => {}
        }
    }

    fn note(&mut self, tag: u64, payload: &[u8]) {
        *self.messages.entry((tag, payload.to_vec())).or_default() += 1;
    }

    /// A receive ended well: with a message of that tag, which is delivered once, or with fragments.
    #[track_caller]
    pub(crate) fn accounts_for_message(&mut self, tag: u64, bytes: &[u8]) {
        if let Some(count) = self.messages.get_mut(&(tag, bytes.to_vec()))
            && *count > 0
        {
            *count -= 1;
            return;
        }
        self.accounts_for_fragments(bytes);
    }

    /// The fragments of one operation, some of them in a row, are these bytes.
    #[track_caller]
    pub(crate) fn accounts_for_fragments(&self, bytes: &[u8]) {
        let is_run = |log: &Vec<Vec<u8>>| {
            (0..log.len()).any(|first| {
                let mut rest = bytes;
                for part in &log[first..] {
                    match rest.strip_prefix(&part[..]) {
                        Some(behind) => rest = behind,
                        None => return false,
                    }
                    if rest.is_empty() {
                        return true;
                    }
                }
                rest.is_empty()
            })
        };
        let found = bytes.is_empty() || self.fragments.values().any(is_run);
        assert!(
            found,
            "{} bytes were received that the peer has not sent, beginning with {:x?}",
            bytes.len(),
            &bytes[..bytes.len().min(16)]
        );
    }

    /// Streams on which something was sent.
    pub(crate) fn streams(&self) -> Vec<u64> {
        self.sent_on.keys().copied().collect()
    }

    pub(crate) fn is_of_stream(name: u64, position: u64, bytes: &[u8]) -> bool {
        let mut at = position..;
        bytes
            .iter()
            .all(|byte| at.next().is_some_and(|at| stream_byte(name, at) == *byte))
    }

    /// Learns from what the worker says.
    pub(crate) fn heard(&mut self, message: Message) {
        let known = match message.id {
            TAG_RTS | TAG_LENT | AM_RTS | TAG_RTR | PULL | ROUTE | TAG_EAGER_SYNC | ASK_KEYS
            | WRITE => word(&message.body, 0),
            PUT | GET | ATOMIC | SETTLE | PUT_LAYOUT | GET_LAYOUT | PUT_RTS | LAYOUT_RTS => {
                message.header
            }
            AM_CREDIT | AM_REFUSED => {
                if let Some(credits) = self.credits.get_mut(message.header as u16 as usize) {
                    *credits += (message.header >> 16) as u32;
                }
                0
            }
            STREAM_OPEN => {
                self.their_streams.push(message.header ^ 1);
                message.header
            }
            _ => 0,
        };
        if matches!(
            message.id,
            TAG_RTR | GET | PULL | GET_LAYOUT | ASK_KEYS | WRITE
        ) {
            self.receiving.insert(known);
        }
        if known != 0 {
            self.ops.push_back(known);
            if self.ops.len() > 32 {
                self.ops.pop_front();
            }
        }
        self.asks.push_back(message);
        if self.asks.len() > 64 {
            self.asks.pop_front();
        }
    }

    fn payload(&mut self, length: usize) -> Vec<u8> {
        let length = if self.said > BYTES {
            length.min(16)
        } else {
            length
        };
        self.serial += 1;
        let serial = self.serial;
        let byte = |at: usize| (serial * 31 + at * 7 + (at >> 7) + (serial >> 2)) as u8 & 0x7f;
        (0..length).map(byte).collect()
    }

    fn op(&mut self, dice: &mut Dice<'_>) -> u64 {
        match self.ops.len() {
            0 => dice.word(),
            count => match dice.one_in(16) {
                true => {
                    self.ops[dice.below(count)].wrapping_add(dice.pick(&[1, u64::MAX, 1 << 32]))
                }
                false => self.ops[dice.below(count)],
            },
        }
    }

    fn own_op(&mut self) -> u64 {
        self.last += 1;
        0x0100_0000 + self.last
    }

    fn region(&mut self, dice: &mut Dice<'_>) -> Known {
        let mut known = match self.regions.len() {
            0 => Known::default(),
            count => self.regions[count - 1 - dice.below(count.min(6))],
        };
        if dice.one_in(16) {
            known.slot = dice.pick(&[0, 1, 2, NONE, 77]);
        }
        if dice.one_in(16) {
            known.generation = known.generation.wrapping_add(dice.pick(&[1, u64::MAX]));
        }
        known
    }

    fn offset(dice: &mut Dice<'_>) -> u64 {
        let end = EXPOSED as u64;
        match dice.below(12) {
            0 => dice.pick(&[u64::MAX, u64::MAX - 7, end, end - 1, end - 8, 1 << 40]),
            1 => dice.word(),
            _ => (dice.below(EXPOSED) & !7) as u64,
        }
    }

    /// Where there is memory; or where there may be none.
    fn address(&self, dice: &mut Dice<'_>) -> u64 {
        match self.memory {
            Some((address, length)) if !dice.one_in(8) => {
                address + dice.below(length.min(0x1_0000)) as u64
            }
            _ => Self::number(dice),
        }
    }

    fn number(dice: &mut Dice<'_>) -> u64 {
        match dice.below(8) {
            0 => dice.pick(&[0, 1, u64::MAX, 1 << 63, 1 << 32, u64::from(NONE), 4097]),
            1 => dice.word(),
            _ => dice.length() as u64,
        }
    }

    /// Answers something that the worker asked, in good order or nearly so.
    pub(crate) fn answer(&mut self, dice: &mut Dice<'_>) -> Option<Message> {
        if !self.feeds.is_empty() && dice.one_in(2) {
            return Some(self.feed(dice));
        }
        let count = self.asks.len();
        let ask = match count {
            0 => return self.request(dice),
            // The oldest, most often.
            _ => self.asks.remove(dice.below(count.min(4)))?,
        };
        let lies = dice.lies();
        let done = |header| message(DONE, header, Body::default());
        let nack = |header, dice: &mut Dice<'_>| {
            let code = dice.below(28) as u16;
            message(NACK, header, Body::default().u16(code).bytes(b"no"))
        };
        let op = word(&ask.body, 0);
        Some(match ask.id {
            TAG_EAGER_SYNC => done(op),
            TAG_RTS | TAG_LENT | AM_RTS => match dice.below(8) {
                0 => done(op),
                1 => nack(op, dice),
                2 => {
                    let to = self.own_op();
                    let from = Self::number(dice) & 0xff;
                    let left = word(&ask.body, 8).saturating_sub(from);
                    let length = if lies { Self::number(dice) } else { left };
                    message(PULL, op, Body::default().u64(to).u64(from).u64(length))
                }
                3 if lies => message(ASK_KEYS, op, Body::default().u64(self.own_op())),
                _ => self.ready(op, dice),
            },
            TAG_RTR => {
                let announced = self.announced.iter().find(|(own, _)| *own == ask.header);
                let length = announced.map_or(0, |(_, length)| *length);
                let left = if lies { dice.length() } else { length };
                match dice.below(12) {
                    0 => nack(op, dice),
                    1 if lies => done(op),
                    _ => {
                        self.feeds.push(Feed { to: op, left });
                        self.feed(dice)
                    }
                }
            }
            PULL => {
                let left = if lies {
                    dice.length()
                } else {
                    word(&ask.body, 16) as usize
                };
                self.feeds.push(Feed {
                    to: op,
                    left: left.min(BYTES),
                });
                self.feed(dice)
            }
            GET => {
                let left = if lies {
                    dice.length()
                } else {
                    word(&ask.body, 16) as usize
                };
                match dice.below(12) {
                    0 => nack(ask.header, dice),
                    1 if lies => done(ask.header),
                    _ => {
                        self.feeds.push(Feed {
                            to: ask.header,
                            left: left.min(BYTES),
                        });
                        self.feed(dice)
                    }
                }
            }
            GET_LAYOUT => {
                let position = word(&ask.body, 8);
                let length = match lies {
                    true => dice.length(),
                    false => word(&ask.body, 16) as usize,
                };
                let status = match dice.below(8) {
                    0 => 2,
                    1 => 0,
                    _ => 1,
                };
                // A refusal has no bytes.
                let length = if status == 2 && !lies { 0 } else { length };
                let payload = self.payload(length.min(8000));
                let position = if dice.lies() {
                    Self::number(dice)
                } else {
                    position
                };
                let body = Body::default()
                    .u64(position)
                    .u16(status)
                    .u16(17)
                    .bytes(&payload);
                with_prefix(12, message(LAYOUT_DATA, ask.header, body))
            }
            PUT | PUT_LAYOUT | PUT_RTS | LAYOUT_RTS | SETTLE => match dice.below(8) {
                0 => nack(ask.header, dice),
                _ => done(ask.header),
            },
            ATOMIC => match (dice.below(8), word(&ask.body, 32) >> 48 & 1) {
                (0, _) => nack(ask.header, dice),
                (_, fetch) if (fetch == 1) != dice.lies() => {
                    message(FETCHED, ask.header, Body::default().u64(dice.word()))
                }
                _ => done(ask.header),
            },
            CANCEL => match lies {
                true => done(ask.header),
                false => message(CANCELED, ask.header, Body::default()),
            },
            TAG_EAGER => message(CREDIT, ask.body.len() as u64 + 64, Body::default()),
            AM_EAGER => {
                let body = Body::default().u64(ask.body.len() as u64 + 64);
                message(AM_CREDIT, ask.header & 0xffff | 1 << 16, body)
            }
            STREAM_OPEN => message(STREAM_ACCEPTED, 1, Body::default()),
            STREAM_DATA => {
                let body = Body::default().u64(ask.body.len() as u64);
                message(STREAM_WINDOW, ask.header ^ 1, body)
            }
            STREAM_RTS => message(
                STREAM_TAKEN,
                ask.header ^ 1,
                Body::default().u64(Self::number(dice)),
            ),
            ROUTE => message(ROUTED, op, Body::default().u64(0).bytes(b"no way")),
            ASK_KEYS => message(KEYS, op, Body::default()),
            CLOSE if ask.header == 0 => message(CLOSE, 1, Body::default()),
            _ => return self.request(dice),
        })
    }

    fn ready(&mut self, op: u64, dice: &mut Dice<'_>) -> Message {
        let body = Body::default().u64(self.own_op()).u64(self.address(dice));
        let body = body
            .u64(dice.pick(&[0, 0, 1, u64::MAX]))
            .u64(Self::number(dice));
        message(TAG_RTR, op, body.u32(u32::from(dice.lies())))
    }

    /// The next fragment of what an operation waits for.
    fn feed(&mut self, dice: &mut Dice<'_>) -> Message {
        let index = dice.below(self.feeds.len());
        let feed = self.feeds[index];
        let mut length = match dice.below(4) {
            0 => dice.length().min(feed.left),
            _ => feed.left.min(20_000),
        };
        if dice.lies() {
            length += 1;
        }
        let payload = self.payload(length);
        self.feeds[index].left -= payload.len().min(feed.left);
        if self.feeds[index].left == 0 || payload.is_empty() {
            self.feeds.swap_remove(index);
        }
        message(FRAGMENT, feed.to, Body(payload))
    }

    /// Asks for something, in good order or nearly so.
    pub(crate) fn request(&mut self, dice: &mut Dice<'_>) -> Option<Message> {
        let tag = dice.below(4) as u64;
        let body = Body::default;
        Some(match dice.below(37) {
            0..=5 => {
                let length = dice.length();
                message(TAG_EAGER, tag, Body(self.payload(length)))
            }
            6 => {
                let length = dice.length();
                let payload = self.payload(length);
                let op = self.own_op();
                message(TAG_EAGER_SYNC, tag, body().u64(op).bytes(&payload))
            }
            7..=9 => {
                let (op, length) = (self.own_op(), Self::number(dice));
                self.announce(op, length);
                message(TAG_RTS, tag, self.rts(op, length, dice))
            }
            10 => {
                let (op, length) = (self.own_op(), dice.length() as u64);
                self.announce(op, length);
                message(TAG_LENT, tag, self.rts(op, length, dice))
            }
            11..=13 if !self.may_send(tag, dice) => return None,
            11 => {
                let (op, length) = (self.own_op(), Self::number(dice));
                self.announce(op, length);
                let header = self.payload(7);
                let rts = self.rts(op, length, dice).bytes(&header);
                message(AM_RTS, tag | 7 << 16, rts)
            }
            12 | 13 => {
                let (front, length) = (dice.below(20), dice.length());
                let payload = self.payload(front + length);
                let said = if dice.lies() { front + 1000 } else { front } as u64;
                with_prefix(front, message(AM_EAGER, tag | said << 16, Body(payload)))
            }
            14 => {
                let own = self.announced.last().map_or(5, |(op, _)| *op);
                message(CANCEL, own, body())
            }
            15 | 16 => {
                let (known, length) = (self.region(dice), dice.length());
                let payload = self.payload(length);
                let last = dice.pick(&[0, 1, 1, 3]);
                let offset = Self::offset(dice);
                let put = body()
                    .u64(known.generation)
                    .u64(offset)
                    .u32(known.slot)
                    .u32(last);
                let put = if last == 3 {
                    self.signal(put, dice)
                } else {
                    put
                };
                let front = put.0.len();
                let op = self.own_op();
                with_prefix(front, message(PUT, op, put.bytes(&payload)))
            }
            17 | 18 => {
                let known = self.region(dice);
                let get = body().u64(known.generation).u64(Self::offset(dice));
                let get = get.u64(Self::number(dice)).u32(known.slot);
                message(GET, self.own_op(), get)
            }
            19 => {
                let known = self.region(dice);
                let op = match dice.lies() {
                    true => dice.below(0x1000) as u32,
                    false => dice.pick(&[1, 2, 3, 4, 5, 6]) | dice.pick(&[0x400, 0x800]),
                };
                let code = op | dice.pick(&[0, 0x1_0000]);
                let atomic = body()
                    .u64(known.generation)
                    .u64(Self::offset(dice))
                    .u64(dice.word())
                    .u64(dice.word());
                message(ATOMIC, self.own_op(), atomic.u32(known.slot).u32(code))
            }
            20 => {
                let signal = self.signal(body(), dice);
                message(SIGNAL, 0, signal)
            }
            21 => message(SETTLE, self.own_op(), body()),
            22 | 23 => self.blocks(dice),
            24 => {
                let known = self.region(dice);
                let rts = body().u64(known.generation).u64(Self::offset(dice));
                let rts = rts
                    .u64(Self::number(dice))
                    .u32(known.slot)
                    .u32(dice.pick(&[1, 3, 5, 9]));
                let rts = self.signal(rts, dice);
                message(PUT_RTS, self.own_op(), rts)
            }
            25 => {
                let known = self.region(dice);
                let join = body().u64(known.generation).u64(Self::offset(dice));
                let join = join
                    .u64(Self::number(dice))
                    .u64(self.address(dice))
                    .u32(known.slot);
                message(JOIN, self.own_op(), join.u32(0).u32(dice.pick(&[0, 1])))
            }
            26 => {
                let known = self.region(dice);
                message(MAP, known.generation, body().u32(known.slot))
            }
            27 => match dice.below(4) {
                0 => message(CREDIT, Self::number(dice), body()),
                1 => message(AM_REFUSED, tag | 1 << 16, body().u64(Self::number(dice))),
                _ => message(AM_CREDIT, tag | 1 << 16, body().u64(Self::number(dice))),
            },
            28 if self.own_streams.len() < 100 || dice.lies() => {
                let name = self.opened << 1 | 1;
                self.opened += 1;
                self.own_streams.push(name);
                message(STREAM_OPEN, name, body())
            }
            29..=32 => return self.on_stream(dice),
            33 if dice.one_in(6) => {
                let known = self.region(dice);
                let route = body()
                    .u64(self.own_op())
                    .u64(known.generation)
                    .u64(Self::offset(dice));
                let route = route
                    .u64(Self::number(dice))
                    .u32(known.slot)
                    .u32(dice.pick(&[0, 1]))
                    .u32(7);
                let op = self.op(dice);
                message(ROUTE, op, route)
            }
            34 => {
                let (op, own) = (self.op(dice), self.own_op());
                let rare = [PULL, ASK_KEYS, KEYS, WRITE, FETCHED, MOVED];
                let id = if dice.lies() {
                    dice.pick(&rare)
                } else {
                    ROUTED
                };
                message(
                    id,
                    op,
                    body()
                        .u64(own)
                        .u64(Self::number(dice))
                        .u64(Self::number(dice)),
                )
            }
            35 => {
                let steps = dice.pick(&[0, 1, 2, u16::MAX]);
                message(MOVED, self.op(dice), body().u16(steps))
            }
            _ if dice.lies() => message(CLOSE, dice.pick(&[0, 1]), body()),
            _ => return None,
        })
    }

    /// Whether an active message of that id is within what the worker takes.
    fn may_send(&mut self, id: u64, dice: &mut Dice<'_>) -> bool {
        let credits = &mut self.credits[id as usize];
        let left = credits.checked_sub(1);
        *credits = left.unwrap_or(0);
        left.is_some() || dice.lies()
    }

    fn announce(&mut self, op: u64, length: u64) {
        self.announced.push((op, length.min(BYTES as u64) as usize));
        if self.announced.len() > 256 {
            self.announced.remove(0);
        }
    }

    fn rts(&self, op: u64, length: u64, dice: &mut Dice<'_>) -> Body {
        let (segment, count) = match if dice.lies() { dice.below(3) } else { 3 } {
            // A table, keys, a segment that nobody has.
            0 => (u64::MAX, Self::number(dice)),
            1 => (
                u64::MAX - 1,
                if dice.one_in(16) {
                    3
                } else {
                    dice.below(3) as u64
                },
            ),
            2 => (1, Self::number(dice)),
            _ => (0, 0),
        };
        let rts = Body::default().u64(op).u64(length).u64(self.address(dice));
        let rts = rts.u64(segment).u64(count).u32(dice.pick(&[NONE, NONE, 0]));
        match segment == u64::MAX - 1 {
            true => rts.bytes(&[7; 24][..12 * (count as usize).min(2)]),
            false => rts,
        }
    }

    fn signal(&mut self, body: Body, dice: &mut Dice<'_>) -> Body {
        let known = self.region(dice);
        body.u64(known.generation)
            .u64(Self::offset(dice))
            .u64(dice.word())
            .u32(known.slot)
    }

    /// Blocks: put, asked for or announced, as a list or as loops.
    fn blocks(&mut self, dice: &mut Dice<'_>) -> Message {
        let known = self.region(dice);
        let id = dice.pick(&[PUT_LAYOUT, GET_LAYOUT, GET_LAYOUT, LAYOUT_RTS]);
        let mut list = Body::default();
        let (mut total, mut blocks) = (0_u64, NONE);
        if dice.one_in(2) {
            blocks = dice.below(6) as u32;
            for _ in 0..blocks {
                let length = dice.length().min(1500) as u32;
                total += u64::from(length);
                list = list.u64(Self::offset(dice)).u32(length);
            }
        } else {
            let (block, count) = (dice.below(64) as u64, dice.below(32) as u64);
            let numbers = [Self::offset(dice), block, block + 8, count, 0, 1, 0, 1];
            total = block * count;
            let odd = if dice.lies() { dice.below(8) } else { 8 };
            for (at, number) in numbers.into_iter().enumerate() {
                list = list.u64(if at == odd {
                    Self::number(dice)
                } else {
                    number
                });
            }
        }
        if dice.lies() {
            total = Self::number(dice);
        }
        let last = match id {
            GET_LAYOUT => 0,
            PUT_LAYOUT => dice.pick(&[0, 1]),
            _ => 1,
        };
        let position = if dice.lies() { Self::number(dice) } else { 0 };
        let head = Body::default()
            .u64(known.generation)
            .u64(position)
            .u64(total);
        let head = head.u32(known.slot).u32(blocks).u32(last).bytes(&list.0);
        let payload = match id {
            PUT_LAYOUT => self.payload((total as usize).min(10_000)),
            _ => Vec::new(),
        };
        let op = self.own_op();
        message(id, op, head.bytes(&payload))
    }

    fn on_stream(&mut self, dice: &mut Dice<'_>) -> Option<Message> {
        let streams = match dice.one_in(3) {
            true => &self.their_streams,
            false => &self.own_streams,
        };
        let name = *streams.get(dice.below(streams.len()))?;
        let body = Body::default;
        let kind = dice.below(24);
        if kind < 2 && !dice.lies() {
            // More of it would be against the protocol.
            self.own_streams.retain(|own| *own != name);
            self.their_streams.retain(|their| *their != name);
        }
        Some(match kind {
            0 => message(STREAM_FIN, name, body()),
            1 => message(STREAM_RESET, name, body()),
            2 => message(STREAM_STOP, name, body()),
            3 if dice.lies() => message(STREAM_WINDOW, name, body().u64(Self::number(dice))),
            4 if dice.lies() => {
                let rts = body().u64(Self::number(dice)).u64(Self::number(dice));
                let rts = rts.u64(dice.pick(&[0, 1])).u64(Self::number(dice)).u32(0);
                message(STREAM_RTS, name, rts)
            }
            5 if dice.lies() => message(STREAM_TAKEN, name, body().u64(Self::number(dice))),
            6 if dice.lies() => message(STREAM_ACCEPTED, dice.pick(&[1, 0, u64::MAX]), body()),
            _ => {
                let length = match self.said > BYTES {
                    true => 16,
                    false => dice.length(),
                };
                let at = self.sent_on.get(&name).copied().unwrap_or(0);
                let bytes = (at..at + length as u64)
                    .map(|at| stream_byte(name, at))
                    .collect();
                message(STREAM_DATA, name, Body(bytes))
            }
        })
    }

    /// Something with a mistake in it.
    pub(crate) fn wild(&mut self, dice: &mut Dice<'_>) -> Option<Message> {
        let mut message = match dice.one_in(2) {
            true => self.answer(dice)?,
            false => self.request(dice)?,
        };
        match dice.below(8) {
            0 => message.header = self.op(dice),
            1 => message.header = Self::number(dice),
            2 => message.header ^= 1 << dice.below(64),
            3 => {
                let length = message.body.len();
                message.body.truncate(length - dice.below(length + 1));
            }
            4 => message.body.push(dice.byte() & 0x7f),
            5 if message.id != TAG_EAGER && message.id != FRAGMENT => {
                let at = dice.below(message.body.len().min(64));
                if let Some(byte) = message.body.get_mut(at) {
                    *byte = dice.byte() & 0x7f;
                }
            }
            6 => message.id = dice.below(46) as u8,
            _ => message.prefix = dice.below(70),
        }
        if message.id == STREAM_DATA {
            // Its bytes would be those of another place, or of another stream.
            return None;
        }
        Some(message)
    }
}

fn message(id: u8, header: u64, body: Body) -> Message {
    Message {
        id,
        header,
        prefix: 0,
        body: body.0,
    }
}

fn with_prefix(prefix: usize, message: Message) -> Message {
    Message { prefix, ..message }
}
