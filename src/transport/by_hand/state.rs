//! What a driver knows of its links and of what is under way, and what it makes of what arrives.
//!
//! # Safety
//! Memory of an operation belongs to it ([`Work`]) until it is over: until the link has said so of each part that it was lent, and of each that devices were
//! given, or the link was dropped ([`State::ended`]).
#![allow(unsafe_code)]

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::{guests::Guests, wire};
use crate::{
    error::{Error, ErrorKind, Result},
    memory::{
        Buffer, BufferMut, Segment,
        region::{Exposed, RegionTable},
    },
    sys::memfd::Mapping,
    transport::{LocalKeys, Pair, Sink, cma::CmaPeer},
    types::{Access, DeviceKey, LinkId},
    util::copy::copy_slice,
};

/// Segments of a peer that are mapped at a time, at most.
const MAX_MAPPED: usize = 64;
/// Longest that is mapped, in bytes: address space, not memory.
const LONGEST_SEGMENT: u64 = 1 << 38;

/// What an operation works on. It owns the memory.
#[derive(Debug)]
pub(super) enum Work {
    Short(Vec<u8>),
    Put(Buffer),
    Get(BufferMut),
    /// Asks whether a key stands; the segment that its memory lies in, which is to come.
    Open(Option<u64>),
}

/// Where its bytes go to or come from.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The first byte.
    pub(super) place: wire::Place,
    /// As the peer's devices address it.
    pub(super) address: u64,
    pub(super) devices: Vec<DeviceKey>,
}

/// An operation of this end.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) link: LinkId,
    pub(super) work: Work,
    pub(super) target: Target,
    /// The local memory's keys, of what devices do.
    pub(super) keys: Option<LocalKeys>,
    pub(super) by_devices: bool,
    pub(super) length: usize,
    /// Bytes that the link has taken; all of them, of what messages get, once it was asked for.
    pub(super) taken: usize,
    /// Parts that are under way.
    pub(super) parts: usize,
    /// Parts that the link still has.
    pub(super) lent: usize,
    /// Bytes that have come.
    pub(super) got: usize,
    pub(super) result: Result<()>,
}

impl Operation {
    /// Whether nothing of it is under way, and nothing will be.
    fn is_over(&self) -> bool {
        let all = self.taken == self.length;
        self.parts == 0 && self.lent == 0 && (all || self.result.is_err())
    }
}

/// What a token that a link was given stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// Memory that the link reads.
    Lent(u64),
    /// What a device does.
    Moved(u64),
}

/// What is to be sent.
#[derive(Debug)]
pub(super) enum Out {
    Operation(u64),
    Done {
        token: u64,
        code: u8,
        shared: bool,
    },
    /// What is left of what the peer gets.
    Bytes {
        token: u64,
        rest: wire::Place,
    },
    Segment(Arc<Segment>),
}

/// What both ends have in common, on one host.
pub(super) struct Near {
    pub(super) pair: Arc<Pair>,
    pub(super) cma: Option<CmaPeer>,
    /// The peer's segments that are mapped here, the oldest first; `None`: it could not be.
    mapped: Vec<(u64, Option<Mapping>)>,
}

impl Near {
    pub(super) fn new(pair: Arc<Pair>, cma: Option<CmaPeer>) -> Self {
        Self {
            pair,
            cma,
            mapped: Vec::new(),
        }
    }

    /// Whether this segment has come, to whatever avail.
    pub(super) fn has(&self, segment: u64) -> bool {
        self.mapped.iter().any(|(of, _)| *of == segment)
    }

    /// Where these bytes of a segment are mapped here, so that they may be read, or written too.
    pub(super) fn mapped(
        &self,
        (segment, offset): (u64, u64),
        length: usize,
        writes: bool,
    ) -> Option<*mut u8> {
        let (_, mapping) = self.mapped.iter().find(|(of, _)| *of == segment)?;
        let mapping = mapping.as_ref()?;
        let end = offset.checked_add(length as u64)?;
        let fits = end <= mapping.len() as u64 && (mapping.is_writable() || !writes);
        fits.then(|| mapping.as_ptr().wrapping_add(offset as usize))
    }

    fn take_in(&mut self, segment: u64, mapping: Option<Mapping>) {
        self.mapped.retain(|(of, _)| *of != segment);
        if self.mapped.len() == MAX_MAPPED {
            self.mapped.remove(0);
        }
        self.mapped.push((segment, mapping));
    }
}

/// One link.
pub(super) struct Endpoint {
    pub(super) near: Option<Near>,
    pub(super) out: VecDeque<Out>,
    /// Requests that the peer has not answered.
    pub(super) asked: usize,
    /// Answers that the peer has not been sent.
    pub(super) owed: usize,
    /// Why it has ended.
    pub(super) failed: Option<Error>,
}

impl Endpoint {
    pub(super) fn new(near: Option<Near>) -> Self {
        Self {
            near,
            out: VecDeque::new(),
            asked: 0,
            owed: 0,
            failed: None,
        }
    }

    fn owe(&mut self, out: Out) -> Result<()> {
        if self.owed == wire::WINDOW {
            return Err(wire::violation(
                "the peer asks more before it takes its answers",
            ));
        }
        self.owed += 1;
        self.out.push_back(out);
        Ok(())
    }
}

/// The driver but for its transport.
pub(super) struct State {
    pub(super) regions: Arc<RegionTable>,
    pub(super) guests: Arc<Guests>,
    pub(super) endpoints: HashMap<LinkId, Endpoint>,
    pub(super) operations: HashMap<u64, Operation>,
    pub(super) parts: HashMap<u64, Part>,
    /// Links that have room again.
    pub(super) writable: Vec<LinkId>,
    /// Links that have failed and were not ended yet.
    pub(super) failed: Vec<LinkId>,
    last: u64,
}

impl State {
    pub(super) fn new() -> Self {
        let regions = Arc::<RegionTable>::default();
        Self {
            guests: Guests::of(&regions),
            regions,
            endpoints: HashMap::new(),
            operations: HashMap::new(),
            parts: HashMap::new(),
            writable: Vec::new(),
            failed: Vec::new(),
            last: 0,
        }
    }

    /// A number that was not given before.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The link of an endpoint that can be used.
    /// Errors: why it has ended; `InvalidArgument`: it is of no driver, or of another.
    pub(super) fn endpoint(&mut self, link: LinkId) -> Result<&mut Endpoint> {
        match self.endpoints.get_mut(&link) {
            None => {
                let text = "no endpoint of this driver has this number";
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
            Some(Endpoint {
                failed: Some(error),
                ..
            }) => Err(error.clone()),
            Some(endpoint) => Ok(endpoint),
        }
    }

    /// Notes why a link is to end.
    pub(super) fn fail(&mut self, link: LinkId, error: Error) {
        if let Some(endpoint) = self.endpoints.get_mut(&link)
            && endpoint.failed.is_none()
        {
            endpoint.failed = Some(error);
            self.failed.push(link);
        }
    }

    /// The link was dropped: nobody uses what it was lent.
    pub(super) fn ended(&mut self, link: LinkId) {
        self.guests.end(link);
        let Some(endpoint) = self.endpoints.get_mut(&link) else {
            return;
        };
        (endpoint.near, endpoint.asked, endpoint.owed) = (None, 0, 0);
        endpoint.out.clear();
        let Some(error) = endpoint.failed.clone() else {
            return;
        };
        let of_it = |operation: &&mut Operation| operation.link == link;
        for operation in self.operations.values_mut().filter(of_it) {
            if !operation.is_over() && operation.result.is_ok() {
                operation.result = Err(error.clone());
            }
            (operation.parts, operation.lent) = (0, 0);
        }
    }

    /// An operation that is over, with what became of it.
    pub(super) fn take(&mut self, token: u64) -> Option<Result<Work>> {
        let operation = self.operations.get(&token)?;
        let comes = match operation.work {
            // Its segment is not ordered with the answer.
            Work::Open(Some(segment)) if operation.result.is_ok() => {
                let endpoint = self.endpoints.get(&operation.link);
                let near = endpoint.and_then(|endpoint| endpoint.near.as_ref());
                near.is_some_and(|near| !near.has(segment))
            }
            _ => false,
        };
        if comes || !operation.is_over() {
            return None;
        }
        let Operation { result, work, .. } = self.operations.remove(&token)?;
        Some(result.map(|()| work))
    }

    /// The region that a peer names, checked.
    pub(super) fn exposed(&self, place: &wire::Place, access: Access) -> Result<Arc<Exposed>> {
        let (slot, generation) = (place.slot, place.generation);
        self.regions
            .check(slot, generation, place.offset, place.length, access)
    }

    fn put_in(&mut self, from: LinkId, token: u64, body: &[u8]) -> Result<()> {
        let (mut place, bytes) = wire::Place::read(body, wire::PUT_PREFIX)?;
        place.length = bytes.len() as u64;
        let written = self
            .exposed(&place, Access::WRITE)
            .and_then(|exposed| exposed.write(place.offset as usize, bytes));
        self.answer(from, token, &written)
    }

    fn answer(&mut self, to: LinkId, token: u64, result: &Result<()>) -> Result<()> {
        let (code, shared) = (wire::code(result), false);
        self.endpoint(to)?.owe(Out::Done {
            token,
            code,
            shared,
        })
    }

    fn get_out(&mut self, from: LinkId, token: u64, body: &[u8]) -> Result<()> {
        let (rest, more) = wire::Place::read(body, 28)?;
        if !more.is_empty() || rest.length == 0 {
            return Err(wire::violation(
                "a get of nothing, or with more than it says",
            ));
        }
        match self.exposed(&rest, Access::READ) {
            Ok(_) => self.endpoint(from)?.owe(Out::Bytes { token, rest }),
            Err(error) => self.answer(from, token, &Err(error)),
        }
    }

    /// The peer shows a key: it is let at the region by itself, and gets its segment.
    fn open(&mut self, from: LinkId, token: u64, body: &[u8]) -> Result<()> {
        let (place, _) = wire::Place::read(body, 12)?;
        let regions = Arc::clone(&self.regions);
        let endpoint = self.endpoint(from)?;
        let Some(near) = &endpoint.near else {
            return Err(wire::violation("a key is shown where nothing is in common"));
        };
        let (slot, generation) = (place.slot, place.generation);
        let pair = &near.pair;
        let exposed = regions.let_at(slot, generation, || pair.let_at(slot, generation));
        let segment = exposed
            .as_ref()
            .and_then(|exposed| exposed.segment.as_ref())
            .map(|(segment, _)| segment)
            .filter(|segment| segment.is_mappable());
        // What may only be read cannot be written there.
        let access = exposed.as_ref().map(|exposed| exposed.access);
        let segment = segment.filter(|segment| access.is_some_and(|access| segment.may_go(access)));
        if let Some(segment) = segment {
            // From here on it is the peer's too: `unexpose` gives other memory back.
            segment.set_given();
            endpoint.out.push_back(Out::Segment(Arc::clone(segment)));
        }
        let stands = regions.find(slot, generation).map(drop);
        let (code, shared) = (wire::code(&stands), segment.is_some());
        endpoint.owe(Out::Done {
            token,
            code,
            shared,
        })
    }

    /// The operation of this end that a peer answers.
    fn asked(&mut self, link: LinkId, token: u64) -> Result<&mut Operation> {
        let operation = self.operations.get_mut(&token);
        operation
            .filter(|operation| {
                operation.link == link && operation.parts > 0 && !operation.by_devices
            })
            .ok_or_else(|| wire::violation("an answer to what was not asked"))
    }

    fn bytes_in(&mut self, from: LinkId, token: u64, bytes: &[u8]) -> Result<()> {
        let operation = self.asked(from, token)?;
        let got = operation.got;
        let Work::Get(buffer) = &mut operation.work else {
            return Err(wire::violation("bytes for what is no get"));
        };
        let room = buffer.run_mut().and_then(|all| all.get_mut(got..));
        let room = room.and_then(|room| room.get_mut(..bytes.len()));
        let room = room.filter(|room| !room.is_empty());
        let room =
            room.ok_or_else(|| wire::violation("more bytes than were asked for, or none"))?;
        copy_slice(bytes, room);
        operation.got += bytes.len();
        if operation.got == operation.length {
            operation.parts = 0;
            self.answered(from);
        }
        Ok(())
    }

    fn done(&mut self, from: LinkId, token: u64, body: &[u8]) -> Result<()> {
        let &[code, shared] = body else {
            return Err(wire::violation("an answer of a driver of another length"));
        };
        let outcome = wire::outcome(code)?;
        let operation = self.asked(from, token)?;
        if outcome.is_ok() && matches!(operation.work, Work::Get(_)) {
            return Err(wire::violation("the end of a get before its bytes"));
        }
        if shared != 1
            && let Work::Open(segment) = &mut operation.work
        {
            *segment = None;
        }
        operation.parts -= 1;
        operation.result = std::mem::replace(&mut operation.result, Ok(())).and(outcome);
        self.answered(from);
        Ok(())
    }

    fn answered(&mut self, from: LinkId) {
        if let Some(endpoint) = self.endpoints.get_mut(&from) {
            endpoint.asked = endpoint.asked.saturating_sub(1);
        }
    }

    fn part_over(&mut self, token: u64, result: Result<()>) {
        let (of, is_lent) = match self.parts.remove(&token) {
            Some(Part::Lent(of)) => (of, true),
            Some(Part::Moved(of)) => (of, false),
            None => return,
        };
        if let Some(operation) = self.operations.get_mut(&of) {
            let count = match is_lent {
                true => &mut operation.lent,
                false => &mut operation.parts,
            };
            *count = count.saturating_sub(1);
            operation.result = std::mem::replace(&mut operation.result, Ok(())).and(result);
        }
    }

    /// Whether an opening waits for this segment.
    fn expects(&self, from: LinkId, segment: u64) -> bool {
        self.operations.values().any(|operation| {
            operation.link == from
                && matches!(operation.work, Work::Open(Some(of)) if of == segment)
        })
    }
}

impl Sink for State {
    fn message(&mut self, from: LinkId, id: u8, header: u64, body: &[u8]) -> Result<()> {
        let taken = match id {
            wire::PUT => self.put_in(from, header, body),
            wire::GET => self.get_out(from, header, body),
            wire::OPEN => self.open(from, header, body),
            wire::BYTES => self.bytes_in(from, header, body),
            wire::DONE => self.done(from, header, body),
            _ => Err(wire::violation("a message that no driver sends")),
        };
        if let Err(error) = &taken {
            self.fail(from, error.clone());
        }
        taken
    }

    /// Nothing is lent to the transport to write into: what comes is whole.
    fn placed(&mut self, _: LinkId, _: u64) {}

    fn sent(&mut self, _: LinkId, token: u64) {
        self.part_over(token, Ok(()));
    }

    fn refused(&mut self, _: LinkId, token: u64, error: Error) {
        self.part_over(token, Err(error));
    }

    fn writable(&mut self, from: LinkId) {
        self.writable.push(from);
    }

    fn shared(&mut self, from: LinkId, segment: u64, fd: OwnedFd, length: u64) {
        if !self.expects(from, segment) {
            return;
        }
        let mapped = match length > LONGEST_SEGMENT {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => Mapping::of_lent(fd.as_fd(), length as usize),
        };
        match mapped {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let text = "the peer shares what is no memory to share";
                let error = Error::new(ErrorKind::Protocol, text).with_source(error);
                self.fail(from, error);
            }
            mapped => {
                if let Err(error) = &mapped {
                    tracing::debug!(target: "wharf::by_hand", %error, "a peer's segment is not mapped");
                }
                let endpoint = self.endpoints.get_mut(&from);
                if let Some(near) = endpoint.and_then(|endpoint| endpoint.near.as_mut()) {
                    near.take_in(segment, mapped.ok());
                }
            }
        }
    }

    fn failed(&mut self, from: LinkId, error: Error) {
        self.fail(from, error);
    }
}
