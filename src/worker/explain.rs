//! How an operation goes, and why no better way: what the data path would choose, asked of the same functions (`protocol::plan`), and said for people.

use std::fmt;

use crate::{
    Operation,
    config::RendezvousScheme,
    protocol::plan::{self, Accesses, Comes, End, Message, Moves, NoWay, ways::Way},
    transport::{CopyEngine, DeviceWays, Stop},
    types::{LinkId, MemoryType, Mover, Party, Plan, When},
    worker::{
        device::Devices,
        movers::Movers,
        peer::{OneCopy, Peer, pinned},
    },
};

/// How an operation goes between two memories, and what was rejected for it; made by [`Endpoint::explain`](crate::Endpoint::explain) and
/// [`Worker::explain_copy`](crate::Worker::explain_copy).
///
/// Its `Display` is for people: the ways in one line, then a line for each better way that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The ways that it may go: the first is taken whose condition holds, and the last has none. Empty where it cannot be done. Under
    /// [`forbid_staging`](crate::ContextBuilder::forbid_staging) those that do not stop; where none of them can be taken it fails.
    pub plans: Vec<Plan>,
    /// The same in words; why it cannot be done, where it cannot.
    pub chosen: String,
    /// Whether it can be done.
    pub is_possible: bool,
    /// Whether the bytes stop in host memory because no path reaches both ends: where the first of the conditions holds.
    pub is_staged: bool,
    /// Length of the fragments that they stop in, in bytes; `None` as long as the engine is not open that says so.
    pub fragment: Option<usize>,
    /// Ways that are not taken, and why not.
    pub rejected: Vec<(String, String)>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chosen)?;
        for (way, why) in &self.rejected {
            write!(f, "\n  not {way}: {why}")?;
        }
        Ok(())
    }
}

impl Explanation {
    /// With the transport for RDMA devices, where the peer is reached through the kernel because this one is not available.
    pub(crate) fn with_unavailable(
        mut self,
        used: &[&'static str],
        unavailable: &[(String, String)],
    ) -> Self {
        /// Of the transports between hosts, the one that is preferred, and the other.
        const PREFERRED: (&str, &str) = ("rc_verbs", "tcp");
        if used.contains(&PREFERRED.1) {
            let missing = unavailable.iter().filter(|(name, _)| name == PREFERRED.0);
            for (name, why) in missing {
                self.not(name, format!("not available: {why}"));
            }
        }
        self
    }

    pub(crate) fn never(why: impl Into<String>) -> Self {
        Self {
            plans: Vec::new(),
            chosen: why.into(),
            is_possible: false,
            is_staged: false,
            fragment: None,
            rejected: Vec::new(),
        }
    }

    fn add(&mut self, plan: Plan) {
        self.plans.push(plan);
    }

    fn not(&mut self, way: &str, why: impl Into<String>) {
        self.rejected.push((way.to_owned(), why.into()));
    }

    /// Whether one of its ways can always be taken.
    fn is_complete(&self) -> bool {
        self.plans.last().is_some_and(|plan| plan.when.is_none())
    }
}

/// What is asked.
#[derive(Clone, Copy)]
struct Asked {
    operation: Operation,
    from: MemoryType,
    to: MemoryType,
    length: usize,
}

impl Asked {
    /// Whether devices have the memory at the two ends.
    fn on_devices(&self) -> (bool, bool) {
        let (from, to) = (self.from, self.to);
        (!from.is_host_accessible(), !to.is_host_accessible())
    }

    /// The memory of this side.
    fn here(&self) -> MemoryType {
        match self.operation {
            Operation::Get | Operation::TagRecv | Operation::AmRecv => self.to,
            _ => self.from,
        }
    }

    /// The end that begins a put or get.
    fn initiator(&self) -> Party {
        match self.operation {
            Operation::Get => Party::Target,
            _ => Party::Source,
        }
    }

    fn is_access(&self) -> bool {
        matches!(self.operation, Operation::Put | Operation::Get)
    }
}

/// What this worker's engines say.
struct Engines<'a> {
    devices: &'a Devices,
    /// Whether both ends are this worker's.
    own: bool,
    /// Length of the fragments of this side's engine, where it is open.
    fragment: Option<usize>,
    /// Whether nothing may stop in host memory.
    unstaged: bool,
}

impl Engines<'_> {
    /// The place of the accelerator that serves a type.
    fn slot(&self, memory_type: MemoryType) -> Option<usize> {
        let slot = self.devices.slot_for(&[memory_type]).ok();
        slot.filter(|_| !memory_type.is_host_accessible())
    }

    fn engine(&self, memory_type: MemoryType) -> Option<&dyn CopyEngine> {
        self.devices.known(self.slot(memory_type)?)
    }

    fn end(&self, memory_type: MemoryType, other: MemoryType) -> End {
        match memory_type.is_host_accessible() {
            false => End::Device(self.slot(memory_type).unwrap_or(usize::MAX)),
            true => {
                let pinned = memory_type == MemoryType::HostPinned;
                let slot = self.slot(other);
                End::Host {
                    pinned: slot.is_some_and(|slot| self.devices.is_pinned_for(slot, pinned)),
                }
            }
        }
    }

    /// Copies within this worker, before which the bytes were copied so often, by what moves them between the ends where it is not the engine.
    fn local(
        &self,
        from: MemoryType,
        to: MemoryType,
        length: usize,
        carried: Option<(Mover, u32)>,
    ) -> Vec<Plan> {
        let (out, into) = (self.end(from, to), self.end(to, from));
        let device = if from.is_host_accessible() { to } else { from };
        let stops = self.stops(from, to, length);
        let plan = |pageable| {
            let (mover, copies, is_staged) = match plan::moves(out, into, pageable) {
                Moves::Processor => (Mover::Processor, 1, false),
                Moves::Engine if stops.is_some() => (Mover::Engine, 2, true),
                Moves::Engine => (Mover::Engine, 1, false),
                Moves::Fragment => (Mover::Engine, 2, true),
                Moves::Across => (Mover::Engine, 3, true),
            };
            let (mover, before) = carried.unwrap_or((mover, 0));
            Plan {
                mover,
                by: Party::Both,
                copies: before + copies,
                is_staged,
                when: None,
            }
        };
        match self.engine(device) {
            Some(_) if stops == Some(Stop::Untried) => {
                let when = Some(When::Reached);
                vec![one_copy(Mover::Engine, Party::Both, when), plan(false)]
            }
            Some(engine) => vec![plan(engine.attributes().takes_pageable(length))],
            // What it takes is known once it is open.
            None if plan(true) != plan(false) => {
                let when = Some(When::Pageable);
                vec![Plan { when, ..plan(true) }, plan(false)]
            }
            None => vec![plan(false)],
        }
    }

    /// Why the engine stops on its way from one of its devices to another.
    fn stops(&self, from: MemoryType, to: MemoryType, length: usize) -> Option<Stop> {
        self.engine(from)?.stops(from, to, length)
    }

    /// What makes short copies into or out of this side's device, where it is not the engine.
    fn small(&self, asked: &Asked, into: bool) -> String {
        let memory_type = if into { asked.to } else { asked.from };
        let is_mine = self.own || asked.here() == memory_type;
        let small = self
            .engine(memory_type)
            .filter(|_| is_mine)
            .and_then(|engine| engine.small_copies());
        let Some(small) = small else {
            return String::new();
        };
        let most = if into { small.to_device } else { small.to_host };
        match asked.length.min(self.fragment.unwrap_or(asked.length)) <= most {
            true => format!(" by {}", small.name),
            false => String::new(),
        }
    }
}

/// What is known of a connection.
struct Known<'a> {
    peer: &'a Peer,
    name: &'static str,
    own: bool,
    direct: Option<&'a OneCopy>,
    cma: bool,
    devices: Option<DeviceWays>,
    /// Those that reach this side's memory best.
    near: Result<Vec<u64>, String>,
    scheme: RendezvousScheme,
}

const fn one_copy(mover: Mover, by: Party, when: Option<When>) -> Plan {
    Plan {
        mover,
        by,
        copies: 1,
        is_staged: false,
        when,
    }
}

/// In and out of the link, and in and out of pinned memory at so many ends.
const fn by_link(mover: Mover, stops: u32) -> Plan {
    Plan {
        mover,
        by: Party::Both,
        copies: 2 + stops,
        is_staged: stops > 0,
        when: None,
    }
}

impl Known<'_> {
    /// Why there are no copies straight into or out of the peer's memory.
    fn no_direct(&self) -> String {
        match self.direct {
            None => format!("{} shares no memory with the peer", self.name),
            Some(_) => "not in use on this connection".to_owned(),
        }
    }

    /// Whether network devices do it, and else why not.
    fn rails(&self) -> Option<Result<String, &str>> {
        let rails = self.devices.as_ref().map(|ways| &ways.rails)?;
        let rails = rails
            .as_ref()
            .and_then(|rails| Ok((rails, self.near.as_ref()?)));
        let named = |(rails, near): (&Vec<(u64, String)>, &Vec<u64>)| {
            let rails = rails.iter().filter(|(device, _)| near.contains(device));
            let names: Vec<&str> = rails.map(|(_, name)| name.as_str()).collect();
            match self.devices.as_ref().map_or(0, |ways| ways.failed) {
                0 => names.join(", "),
                failed => format!("{} ({failed} failed)", names.join(", ")),
            }
        };
        Some(rails.map(named).map_err(String::as_str))
    }

    /// The way to device memory of the peer that the engine opens.
    fn reach(&self, asked: &Asked, engines: &Engines<'_>, found: &mut Explanation) {
        let (out, into) = asked.on_devices();
        let types = [asked.from, asked.to];
        // Of this side: the other's is its own affair.
        let slot = engines.slot(asked.here());
        let unrouted = slot.and_then(|slot| self.peer.unrouted(slot));
        let (length, unstaged) = (asked.length, engines.unstaged);
        let way = plan::reaches(self.direct.is_some(), unrouted.is_some(), length, unstaged);
        let why = match way {
            _ if !(out && into) => "one end is host memory".to_owned(),
            _ if engines.devices.slot_for(&types).is_err() => "no engine reaches both".to_owned(),
            Ok(()) => {
                let when = Some(When::Opened);
                return found.add(one_copy(Mover::Engine, Party::Target, when));
            }
            Err(NoWay::NoSharedMemory) => self.no_direct(),
            Err(NoWay::Refused) => unrouted.map(ToString::to_string).unwrap_or_default(),
            Err(NoWay::Short) => format!("shorter than {} bytes", plan::ROUTE_FROM),
        };
        found.not("one copy between devices", why);
    }

    /// What is said of copies that stop because of devices.
    fn out_of_reach(&self, asked: &Asked, found: &mut Explanation) {
        let (out, into) = asked.on_devices();
        let device = if out { asked.from } else { asked.to };
        let reach = format!("the host does not reach {device}");
        let carries = |mover| found.plans.iter().any(|plan: &Plan| plan.mover == mover);
        let (mapped, kernel) = (carries(Mover::Mapped), carries(Mover::Kernel));
        if self.direct.is_none() || !(out || into) {
            return;
        }
        if self.cma && !kernel {
            let why = format!("the kernel copies host memory only: {reach}");
            found.not("cma", why);
        }
        if !mapped {
            found.not("mapped memory", reach);
        }
    }

    fn message(&self, asked: &Asked, engines: &Engines<'_>, found: &mut Explanation) {
        let (length, (out, into)) = (asked.length, asked.on_devices());
        let kind = match asked.operation {
            Operation::AmSend | Operation::AmRecv => Message::Active,
            _ => Message::Tagged,
        };
        let eager = self.peer.eager;
        if plan::is_unasked(kind, length, eager, out) {
            if into {
                // It is memory of the receiver's own when it is stored.
                let carried = Some((Mover::Eager, 2));
                found.plans = engines.local(MemoryType::Host, asked.to, length, carried);
                found.not("one copy", "it leaves unasked");
            } else if !self.lends(kind, length, found) {
                found.add(by_link(Mover::Eager, 0));
                if length > self.peer.short {
                    let why = format!("longer than {} bytes", self.peer.short);
                    found.not("inline", why);
                }
            }
            return;
        }
        found.not(
            "eager",
            match out {
                true => "device memory is announced, whatever its length, so that the message keeps its place".to_owned(),
                false if length > eager => format!("longer than {eager} bytes"),
                false => "the window of messages that leave unasked never holds it".to_owned(),
            },
        );
        for way in plan::comes(self.own, out, into) {
            match way {
                Comes::Within => found.plans = engines.local(asked.from, asked.to, length, None),
                Comes::Pulled => {
                    self.reach(asked, engines, found);
                    found.add(by_link(Mover::Messages, 1 + u32::from(out)));
                }
                Comes::Copied => self.copied(asked, found),
                Comes::Devices | Comes::Fragments if found.is_complete() => {}
                Comes::Devices => {
                    let by = match self.scheme {
                        RendezvousScheme::Messages => Err("WHARF_RNDV_SCHEME says so"),
                        RendezvousScheme::Put if into => {
                            Err("WHARF_RNDV_SCHEME has them write, which they do to host memory")
                        }
                        RendezvousScheme::Put => Ok(Party::Source),
                        _ => Ok(Party::Target),
                    };
                    self.by_devices(by, found);
                }
                Comes::Fragments => found.add(by_link(Mover::Messages, u32::from(out))),
            }
        }
    }

    /// A message that could leave unasked, and is lent, as far as this connection knows which way is the faster. Whether it is.
    fn lends(&self, kind: Message, length: usize, found: &mut Explanation) -> bool {
        let sends = self.direct.and_then(|direct| direct.sends.as_ref());
        let Some(sends) = sends.filter(|_| kind == Message::Tagged && length >= plan::LENT_FROM)
        else {
            return false;
        };
        let (way, measured) = sends.known_of_sends(length);
        let is_lent = way == Way::OneCopy;
        if is_lent {
            found.add(one_copy(Mover::Kernel, Party::Both, None));
        }
        if let Some(measured) = measured {
            found.not(if is_lent { "eager" } else { "one copy" }, measured);
        }
        is_lent
    }

    /// By network devices of this end; or why these are not asked.
    fn by_devices(&self, by: Result<Party, &str>, found: &mut Explanation) {
        match (self.rails(), by) {
            (Some(Ok(_)), Ok(by)) => {
                found.add(one_copy(Mover::NetworkDevices, by, Some(When::Registered)));
            }
            (Some(Ok(_)), Err(why)) | (Some(Err(why)), _) => found.not("network devices", why),
            (None, _) => {}
        }
    }

    /// An announced message straight out of the sender's memory, as far as this connection knows which way is the faster.
    fn copied(&self, asked: &Asked, found: &mut Explanation) {
        let length = asked.length;
        let Some(direct) = self.direct else {
            return found.not("a direct copy", self.no_direct());
        };
        let by = match plan::is_shared(self.cma, plan::counts(length)) {
            true => Party::Both,
            false => Party::Target,
        };
        // Who gives the peer the memory of a message gives the word that goes with it.
        if plan::counts(length) {
            let when = Some(When::Shared);
            let (way, measured) = direct
                .ways
                .known(pinned(self.scheme), length, true, self.cma);
            match way {
                Way::OneCopy => found.add(one_copy(Mover::Mapped, by, when)),
                Way::Fragments => found.add(Plan {
                    when,
                    ..by_link(Mover::Messages, 0)
                }),
            }
            if !self.cma
                && let Some(measured) = measured
            {
                found.not(other(way), measured);
            }
        }
        if !self.cma {
            return found.not("cma", self.no_direct());
        }
        let (way, measured) = direct.ways.known(pinned(self.scheme), length, false, false);
        if way == Way::OneCopy {
            found.add(one_copy(Mover::Kernel, by, None));
            if let Some(measured) = measured {
                found.not("fragments", measured);
            }
        } else {
            let why = measured.unwrap_or_else(|| "short, and not measured yet".to_owned());
            found.not("a direct copy", why);
        }
    }

    fn access(&self, asked: &Asked, engines: &Engines<'_>, found: &mut Explanation) {
        let (out, into) = asked.on_devices();
        let put = asked.operation == Operation::Put;
        let (here, there) = if put { (out, into) } else { (into, out) };
        let (length, by) = (asked.length, asked.initiator());
        for way in plan::accesses(put, (here, there), self.own, length) {
            match way {
                Accesses::Within => {
                    found.plans = engines.local(asked.from, asked.to, length, None);
                    let messages = format!("messages over {}", self.name);
                    found.not(&messages, "both ends are memory of this worker");
                }
                Accesses::Straight => {
                    let by = match plan::is_joined(self.cma, length) {
                        true => Party::Both,
                        false => by,
                    };
                    self.straight(by, 0, found);
                }
                Accesses::Devices => self.by_devices(Ok(by), found),
                Accesses::Announced => {
                    self.reach(asked, engines, found);
                    found.add(by_link(Mover::Messages, 1 + u32::from(out)));
                }
                Accesses::Parts => {
                    self.reach(asked, engines, found);
                    match there {
                        true => found.add(by_link(Mover::Messages, 2)),
                        false => {
                            self.straight(by, 1, found);
                            found.add(by_link(Mover::Messages, 1));
                        }
                    }
                }
                Accesses::Messages => {
                    if length == 0 && self.direct.is_none() {
                        found.not("a direct copy", self.no_direct());
                    }
                    if there {
                        self.reach(asked, engines, found);
                    }
                    found.add(by_link(Mover::Messages, u32::from(there)));
                }
            }
        }
    }

    /// Straight into or out of memory of the peer's, past so many stops.
    fn straight(&self, by: Party, stops: u32, found: &mut Explanation) {
        if self.direct.is_none() {
            return found.not("a direct copy", self.no_direct());
        }
        let plan = |mover, when| Plan {
            copies: 1 + stops,
            is_staged: stops > 0,
            ..one_copy(mover, by, Some(when))
        };
        found.add(plan(Mover::Mapped, When::Shared));
        match self.cma {
            true => found.add(plan(Mover::Kernel, When::Met)),
            false => found.not("cma", self.no_direct()),
        }
    }

    fn stream(&self, asked: &Asked, found: &mut Explanation) {
        let (out, _) = asked.on_devices();
        if out {
            found.not(
                "a direct copy",
                "what the host does not reach is not lent to the reader",
            );
        } else if self.direct.is_some() {
            let lends = plan::lends(self.peer.lending, self.cma, asked.length);
            if lends.mapped {
                let when = Some(When::OwnedAndShared);
                found.add(one_copy(Mover::Mapped, Party::Target, when));
            }
            if lends.by_kernel {
                found.add(one_copy(Mover::Kernel, Party::Target, Some(When::Owned)));
            }
        }
        found.add(by_link(Mover::Messages, u32::from(out)));
    }

    fn word(&self, asked: &Asked, found: &mut Explanation) {
        let is_atomic = asked.operation == Operation::Atomic;
        match &self.devices {
            _ if self.direct.is_some() => {
                found.add(one_copy(Mover::Mapped, Party::Source, Some(When::Shared)));
            }
            _ if !is_atomic => {}
            Some(ways) => match (&ways.no_atomics, &ways.rails) {
                (None, Ok(_)) => {
                    let when = Some(When::Registered);
                    found.add(one_copy(Mover::NetworkDevices, Party::Source, when));
                }
                (why, _) => found.not(
                    "atomics of network devices",
                    why.clone().unwrap_or_default(),
                ),
            },
            None => {}
        }
        found.add(by_link(Mover::Messages, 0));
    }

    /// One way in words.
    fn say(&self, asked: &Asked, engines: &Engines<'_>, plan: &Plan) -> String {
        let (name, (out, into)) = (self.name, asked.on_devices());
        let is_word = matches!(asked.operation, Operation::Atomic | Operation::Signal);
        let (source, target, before) = match asked.operation {
            Operation::Stream => ("writer", "reader", ""),
            _ if is_word || asked.is_access() => ("initiator", "initiator", ""),
            _ => ("sender", "receiver", "rendezvous, "),
        };
        let who = match plan.by {
            Party::Both => "both ends copy".to_owned(),
            Party::Source => format!("the {source} copies"),
            Party::Target => format!("the {target} copies"),
        };
        let carried = match plan.mover {
            Mover::Engine | Mover::Processor => return said_locally(asked, engines, plan, self),
            Mover::Eager if !out && !into && asked.length <= self.peer.short => {
                format!("eager, inline over {name}")
            }
            Mover::Eager => format!("eager over {name}"),
            Mover::Mapped if is_word => "the initiator's processor in mapped memory".to_owned(),
            Mover::Mapped => format!("{before}{who} in mapped memory"),
            Mover::Kernel => format!("{before}{who} by cma"),
            Mover::NetworkDevices => {
                let rails = self.rails().and_then(Result::ok).unwrap_or_default();
                return match asked.is_access() {
                    _ if is_word => format!(
                        "the initiator's devices, in a region that was exposed for atomics of network devices: {rails}"
                    ),
                    false => format!(
                        "rendezvous, the receiver's devices read the sender's memory where that can be registered (where the receiver's WHARF_RNDV_SCHEME is put_zcopy, the sender's write the receiver's, which is cleared before): {rails}"
                    ),
                    true => format!(
                        "the initiator's devices, where the region was registered with the owner's: {rails}"
                    ),
                };
            }
            Mover::Messages => match (asked.operation, into) {
                (Operation::Get, true) => format!("gets over {name}, served by the owner"),
                (Operation::Get | Operation::Atomic | Operation::Signal, false) => {
                    format!("messages over {name}, served by the owner")
                }
                (Operation::Put, true) => {
                    format!("announced, and pulled by the owner over {name}")
                }
                (Operation::Put, false) if out => format!("puts over {name}"),
                (Operation::Put, false) => format!("messages over {name}, served by the owner"),
                (Operation::Stream, _) => {
                    format!("frames over {name}, within the window of the stream")
                }
                (_, true) => format!("announced, and pulled by the receiver over {name}"),
                (_, false) if out => format!("announced, then fragments over {name}"),
                (_, false) => format!("rendezvous, fragments over {name}"),
            },
        };
        let way = match plan.is_staged {
            true => format!(
                "{}: {carried}",
                staged(asked, engines, out && plan.mover != Mover::Eager, into)
            ),
            false if into => format!("{carried}, then one copy by the engine into {}", asked.to),
            false => carried,
        };
        match plan.when {
            Some(when) => format!("{way}, {when}"),
            None => way,
        }
    }
}

/// What is rejected where one way was measured.
const fn other(way: Way) -> &'static str {
    match way {
        Way::OneCopy => "fragments",
        Way::Fragments => "mapped memory",
    }
}

/// Where the bytes stop.
fn staged(asked: &Asked, engines: &Engines<'_>, out: bool, into: bool) -> String {
    let (from, to) = (asked.from, asked.to);
    let out = out.then(|| format!("out of {from}{}", engines.small(asked, false)));
    let into = into.then(|| format!("into {to}{}", engines.small(asked, true)));
    let copies: Vec<String> = [out, into].into_iter().flatten().collect();
    format!(
        "staged through {}, copied {}",
        pieces(engines),
        copies.join(" and ")
    )
}

fn pieces(engines: &Engines<'_>) -> String {
    match engines.fragment {
        Some(length) => format!("pinned fragments of {length} bytes"),
        None => "pinned fragments".to_owned(),
    }
}

/// A copy by engines or the processor, in words.
fn said_locally(asked: &Asked, engines: &Engines<'_>, plan: &Plan, known: &Known<'_>) -> String {
    if plan.when == Some(When::Opened) {
        return "one copy by the engine of the side that the bytes go to, which opens the memory of the other".to_owned();
    }
    let agreed = match asked.is_access() {
        true => String::new(),
        false => format!(", agreed upon over {}", known.name),
    };
    within(asked, engines, plan) + &agreed
}

/// A copy within the worker, in words.
fn within(asked: &Asked, engines: &Engines<'_>, plan: &Plan) -> String {
    let (from, to) = (asked.from, asked.to);
    let small = match asked.on_devices() {
        (true, false) => engines.small(asked, false),
        (false, true) => engines.small(asked, true),
        _ => String::new(),
    };
    let (out, into) = (engines.end(from, to), engines.end(to, from));
    let way = match (plan.mover, plan::moves(out, into, false)) {
        (Mover::Processor, _) => format!("one copy by the processor, {from} to {to}"),
        (_, Moves::Across) => format!(
            "staged through {}, {from} to {to}, by the engines of both and the processor",
            pieces(engines)
        ),
        (_, Moves::Engine) if plan.is_staged => {
            format!("staged by the engine, through host memory of its own, {from} to {to}")
        }
        _ if plan.is_staged => format!(
            "staged through {}, {from} to {to}{small}, by the engine and the processor",
            pieces(engines)
        ),
        _ => format!("one copy by the engine, {from} to {to}{small}"),
    };
    match plan.when {
        Some(when) => format!("{way}, {when}"),
        None => way,
    }
}

/// Why a copy within the worker is not one copy by the engine.
fn no_engine(asked: &Asked, engines: &Engines<'_>) -> String {
    let (from, to) = (asked.from, asked.to);
    let (out, into) = (engines.end(from, to), engines.end(to, from));
    match plan::moves(out, into, false) {
        Moves::Across => "no engine reaches both".to_owned(),
        Moves::Engine => match engines.stops(from, to, asked.length) {
            Some(Stop::Certain(why)) => why,
            _ => "the driver was not asked yet".to_owned(),
        },
        _ => "one end is ordinary host memory".to_owned(),
    }
}

/// Puts what was found together.
fn conclude(
    mut found: Explanation,
    engines: &Engines<'_>,
    on_device: bool,
    say: impl Fn(&Plan) -> String,
) -> Explanation {
    const FORBIDDEN: &str = "it would be staged, which this context forbids";
    found.is_staged = found.plans.first().is_some_and(|plan| plan.is_staged);
    found.fragment = engines.fragment.filter(|_| on_device);
    let all = found.plans.len();
    if engines.unstaged {
        found.plans.retain(|plan| !plan.is_staged);
    }
    let mut before = "";
    for plan in &found.plans {
        found.chosen += before;
        found.chosen += &say(plan);
        before = match plan.when {
            Some(When::Opened) => "; where that cannot be, ",
            _ => "; else ",
        };
    }
    found.is_possible = !found.plans.is_empty();
    if found.plans.len() < all {
        found.chosen = match found.is_possible {
            true => format!(
                "{}; where that cannot be, it fails: {FORBIDDEN}",
                found.chosen
            ),
            false => FORBIDDEN.to_owned(),
        };
    }
    found
}

impl Movers {
    /// How an operation on a connection goes.
    pub(crate) fn explain(
        &mut self,
        link: LinkId,
        (operation, from, to): (Operation, MemoryType, MemoryType),
        length: usize,
    ) -> Option<Explanation> {
        if operation == Operation::Copy {
            return Some(self.explain_copy(from, to, length));
        }
        let asked = Asked {
            operation,
            from,
            to,
            length,
        };
        let scheme = self.scheme;
        let own = self.ctx.is_to_itself(link);
        let devices = &self.devices;
        let peer = crate::worker::peer::at(&mut self.ctx.peers, link)?;
        let mut way = explain_on(peer, devices, scheme, own, &asked);
        for (name, why) in peer.odd.iter().flat_map(|odd| &odd.refused) {
            way.not(name, format!("it could not be set up: {why}"));
        }
        Some(way)
    }

    /// How a copy within the process goes.
    pub(crate) fn explain_copy(
        &self,
        from: MemoryType,
        to: MemoryType,
        length: usize,
    ) -> Explanation {
        let asked = Asked {
            operation: Operation::Copy,
            from,
            to,
            length,
        };
        let engines = match engines(&self.devices, true, &asked) {
            Ok(engines) => engines,
            Err(why) => return why,
        };
        let mut found = Explanation::never("");
        found.plans = engines.local(from, to, length, None);
        if found.plans.last().is_some_and(|plan| plan.is_staged) {
            found.not("one copy by the engine", no_engine(&asked, &engines));
        }
        let on_device = asked.on_devices() != (false, false);
        conclude(found, &engines, on_device, |plan| {
            within(&asked, &engines, plan)
        })
    }
}

/// What the engines say that have to do with it; or why they have not.
fn engines<'a>(devices: &'a Devices, own: bool, asked: &Asked) -> Result<Engines<'a>, Explanation> {
    // Of this side's memory; the peer's is its own affair.
    let types = [asked.from, asked.to].into_iter();
    let mut mine = types.filter(|held| own || *held == asked.here());
    let mut fragment = None;
    let served = mine.try_for_each(|held| {
        if !held.is_host_accessible() {
            let of = devices.fragment(&[held])?;
            fragment = fragment.or(of);
        }
        Ok(())
    });
    served.map_err(|error: crate::Error| Explanation::never(error.to_string()))?;
    Ok(Engines {
        devices,
        own,
        fragment,
        unstaged: devices.staging_forbidden(),
    })
}

/// The network devices of a connection that reach memory of this side, of this type, best.
fn near(peer: &mut Peer, memory_type: MemoryType) -> Result<Vec<u64>, String> {
    let ways = peer.link.as_mut().and_then(|link| link.one_sided());
    ways.map_or(Ok(Vec::new()), |ways| {
        let (memory, devices) = (ways.memory(), ways.devices());
        memory.takes(memory_type, devices)?;
        Ok(memory.nearest(memory_type, devices.to_vec()))
    })
}

fn explain_on(
    peer: &mut Peer,
    devices: &Devices,
    scheme: RendezvousScheme,
    own: bool,
    asked: &Asked,
) -> Explanation {
    let (out, into) = asked.on_devices();
    match asked.operation {
        Operation::Atomic | Operation::Signal if out || into => {
            let device = if out { asked.from } else { asked.to };
            return Explanation::never(format!(
                "no processor reaches {device}: no atomic operations or signals on it"
            ));
        }
        Operation::Stream if into => {
            return Explanation::never("a stream is read into host memory");
        }
        _ => {}
    }
    let engines = match engines(devices, own, asked) {
        Ok(engines) => engines,
        Err(why) => return why,
    };
    let near = near(peer, asked.here());
    let direct = peer.one_copy.as_deref();
    let known = Known {
        peer,
        name: peer.attributes.transport,
        own,
        direct,
        cma: direct.is_some_and(|one_copy| one_copy.cma.is_some()),
        devices: peer.link.as_ref().and_then(|link| link.device_ways()),
        near,
        scheme,
    };
    let mut found = Explanation::never("");
    match asked.operation {
        Operation::Put | Operation::Get => known.access(asked, &engines, &mut found),
        Operation::Stream => known.stream(asked, &mut found),
        Operation::Atomic | Operation::Signal => known.word(asked, &mut found),
        _ => known.message(asked, &engines, &mut found),
    }
    let is_local = |plan: &Plan| plan.mover == Mover::Engine && plan.when != Some(When::Opened);
    if found
        .plans
        .last()
        .is_some_and(|plan| is_local(plan) && plan.is_staged)
    {
        found.not("one copy by the engine", no_engine(asked, &engines));
    }
    if !own {
        known.out_of_reach(asked, &mut found);
    }
    conclude(found, &engines, out || into, |plan| {
        known.say(asked, &engines, plan)
    })
}
