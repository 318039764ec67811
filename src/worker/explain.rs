//! How an operation goes, and why no better way: for people.

use std::fmt;

use crate::{
    Operation,
    config::RendezvousScheme,
    transport::{DeviceWays, SmallCopies},
    types::MemoryType,
    worker::{
        core::Core,
        device::ROUTE_FROM,
        peer::{JOIN_FROM, Peer},
        ways::Way,
    },
};

/// How an operation goes between two memories, and what was rejected for it; made by [`Endpoint::explain`](crate::Endpoint::explain).
///
/// Its `Display` is for people: the way in one line, then a line for each better way that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The protocol, and what moves the bytes; why it cannot be done, where it cannot.
    pub chosen: String,
    /// Whether it can be done.
    pub is_possible: bool,
    /// Whether the bytes stop in pinned host memory because no path reaches both ends.
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
    fn way(chosen: String) -> Self {
        Self {
            chosen,
            is_possible: true,
            is_staged: false,
            fragment: None,
            rejected: Vec::new(),
        }
    }

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
                self = self.not(name, format!("not available: {why}"));
            }
        }
        self
    }

    pub(crate) fn never(why: impl Into<String>) -> Self {
        Self {
            is_possible: false,
            ..Self::way(why.into())
        }
    }

    fn not(mut self, way: &str, why: impl Into<String>) -> Self {
        self.rejected.push((way.to_owned(), why.into()));
        self
    }
}

/// What this side's engine says.
struct Here {
    /// Length of the pieces, where it stops; `None` as long as it is not open.
    fragment: Option<usize>,
    /// Copies that the processor makes itself.
    small: Option<SmallCopies>,
    /// Whether its memory is the source's.
    is_source: bool,
    /// Whether it reaches the memory of both ends.
    alone: bool,
    /// Its place in the context.
    slot: Option<usize>,
    forbidden: bool,
}

impl Here {
    /// What makes a copy out of this side's device, where it is not the engine.
    fn out(&self, length: usize) -> String {
        self.by(self.is_source, length, |small| small.to_host)
    }

    /// The same into it.
    fn into(&self, length: usize) -> String {
        self.by(!self.is_source, length, |small| small.to_device)
    }

    fn by(&self, mine: bool, length: usize, most: fn(&SmallCopies) -> usize) -> String {
        match &self.small {
            Some(small) if mine && length.min(self.fragment.unwrap_or(length)) <= most(small) => {
                format!(" by {}", small.name)
            }
            _ => String::new(),
        }
    }
}

impl Peer {
    fn device_ways(&self) -> Option<DeviceWays> {
        self.link.as_ref()?.device_ways()
    }

    /// How an operation of this length goes between host memories.
    fn explain_host(
        &self,
        operation: Operation,
        length: usize,
        scheme: RendezvousScheme,
    ) -> Explanation {
        let name = self.attributes.transport;
        let devices = self.device_ways();
        let direct = self.one_copy.as_ref();
        let cma = direct.is_some_and(|one_copy| one_copy.cma.is_some());
        let no_cma = match direct {
            None => format!("{name} shares no memory with the peer"),
            Some(_) => "not in use on this connection".to_owned(),
        };
        match operation {
            Operation::Put | Operation::Get if direct.is_some() => {
                let who = if cma && length >= JOIN_FROM {
                    "both ends copy"
                } else {
                    "the initiator copies"
                };
                let by = if cma {
                    "mapped memory, else cma"
                } else {
                    "mapped memory, else messages over shm"
                };
                let way = Explanation::way(format!("{who}, {by}"));
                if cma { way } else { way.not("cma", no_cma) }
            }
            Operation::Put | Operation::Get => {
                let messages = format!("messages over {name}, served by the owner");
                let way = match devices.map(|ways| ways.rails) {
                    Some(Ok(rails)) => Explanation::way(by_devices(&rails, &messages)),
                    Some(Err(why)) => Explanation::way(messages).not("network devices", why),
                    None => Explanation::way(messages),
                };
                way.not("a direct copy", no_cma)
            }
            Operation::Stream => {
                let lent = match direct {
                    Some(_) if length >= self.lending.by_kernel && cma => {
                        "an owned buffer is copied by the reader, mapped memory or cma; else "
                    }
                    Some(_) if length >= self.lending.mapped => {
                        "a buffer that wharf allocated is copied by the reader in mapped memory; else "
                    }
                    _ => "",
                };
                Explanation::way(format!(
                    "{lent}frames over {name}, within the window of the stream"
                ))
            }
            Operation::Atomic if direct.is_some() => Explanation::way(format!(
                "the initiator's processor in mapped memory, else messages over {name}, served by the owner"
            )),
            Operation::Atomic | Operation::Signal => {
                let messages = format!("messages over {name}, served by the owner");
                match devices.filter(|_| operation == Operation::Atomic) {
                    None => Explanation::way(messages),
                    Some(ways) => match (ways.no_atomics, ways.rails) {
                        (None, Ok(rails)) => Explanation::way(format!(
                            "{messages}; in a region that was exposed for atomics of network devices: {rails}"
                        )),
                        (why, _) => Explanation::way(messages)
                            .not("atomics of network devices", why.unwrap_or_default()),
                    },
                }
            }
            _ if length <= self.short => Explanation::way(format!("eager, inline over {name}")),
            _ if length <= self.eager => Explanation::way(format!("eager over {name}"))
                .not("inline", format!("longer than {} bytes", self.short)),
            _ => {
                let eager = format!("longer than {} bytes", self.eager);
                let (best, measured) = direct
                    .filter(|_| cma)
                    .map_or((Way::Fragments, None), |direct| {
                        direct.ways.known(scheme, length)
                    });
                if best == Way::OneCopy {
                    let way = "rendezvous, both ends copy, mapped memory or cma";
                    let way = Explanation::way(way.to_owned()).not("eager", eager);
                    match measured {
                        Some(measured) => way.not("fragments", measured),
                        None => way,
                    }
                } else {
                    let why = match cma {
                        true => {
                            measured.unwrap_or_else(|| "short, and not measured yet".to_owned())
                        }
                        false => no_cma,
                    };
                    let fragments = format!("fragments over {name}");
                    let way = match devices.map(|ways| ways.rails) {
                        Some(Ok(_)) if scheme == RendezvousScheme::Messages => {
                            let why = "WHARF_RNDV_SCHEME says so";
                            Explanation::way(format!("rendezvous, {fragments}"))
                                .not("network devices", why)
                        }
                        Some(Ok(rails)) => Explanation::way(format!(
                            "rendezvous, the receiver's devices read the sender's memory where that can be registered (where the receiver's WHARF_RNDV_SCHEME is put_zcopy, the sender's write the receiver's, which is cleared before): {rails}; else {fragments}"
                        )),
                        Some(Err(why)) => Explanation::way(format!("rendezvous, {fragments}"))
                            .not("network devices", why),
                        None => Explanation::way(format!("rendezvous, {fragments}")),
                    };
                    way.not("eager", eager).not("a direct copy", why)
                }
            }
        }
    }

    /// The same where one end or both are out of the host's reach.
    fn explain_device(
        &self,
        operation: Operation,
        (from, to): (MemoryType, MemoryType),
        length: usize,
        here: &Here,
    ) -> Explanation {
        let name = self.attributes.transport;
        let fragment = here.fragment;
        if self.is_own() && matches!(operation, Operation::Put | Operation::Get) {
            return explain_within(name, (from, to), length, here);
        }
        let (out, into) = (!from.is_host_accessible(), !to.is_host_accessible());
        let device = if out { from } else { to };
        let how = match (operation, into) {
            (Operation::Atomic | Operation::Signal, _) => {
                return Explanation::never(format!(
                    "no processor reaches {device}: no atomic operations or signals on it"
                ));
            }
            (Operation::Stream, true) => {
                return Explanation::never("a stream is read into host memory");
            }
            (Operation::Get, true) => format!("gets over {name}"),
            (Operation::Get, false) => format!("fragments over {name}, served by the owner"),
            (Operation::Put, true) => format!("announced, and pulled by the owner over {name}"),
            (Operation::Put, false) => format!("puts over {name}"),
            (Operation::Stream, false) => {
                format!("frames over {name}, within the window of the stream")
            }
            (_, true) => {
                format!(
                    "announced unless it is short and host memory, and pulled by the receiver over {name}"
                )
            }
            (_, false) => format!("announced, then fragments over {name}"),
        };
        let copies = match (out, into) {
            (true, true) => format!(
                "copied out of {from}{} and into {to}{}",
                here.out(length),
                here.into(length)
            ),
            (true, false) => format!("copied out of {from}{}", here.out(length)),
            _ => format!("copied into {to}{}", here.into(length)),
        };
        let pieces = match fragment {
            Some(length) => format!("pinned fragments of {length} bytes"),
            None => "pinned fragments".to_owned(),
        };
        let mut staged = format!("staged through {pieces}, {copies}: {how}");
        // The peer's memory alone is a device's: registered as a dma-buf.
        if let Some(Ok(rails)) = self.device_ways().map(|ways| ways.rails)
            && matches!(
                (operation, out, into),
                (Operation::Put, false, true) | (Operation::Get, true, false)
            )
        {
            staged = by_devices(&rails, &staged);
        }
        // Why the engine of one side cannot open the other's memory.
        let unrouted = here.slot.and_then(|slot| self.unrouted(slot));
        let no_route = match (&self.one_copy, unrouted) {
            _ if !(out && into) => Some("one end is host memory".to_owned()),
            _ if !here.alone => Some("no engine reaches both".to_owned()),
            _ if self.is_own() => None,
            (None, _) => Some(format!("{name} shares no memory with the peer")),
            (_, Some(error)) => Some(error.to_string()),
            _ if length < ROUTE_FROM && !here.forbidden => {
                Some(format!("shorter than {ROUTE_FROM} bytes"))
            }
            _ => None,
        };
        let mut way = match &no_route {
            None if self.is_own() => Explanation::way(format!(
                "one copy by the engine, from {from} to {to}, agreed upon over {name}"
            )),
            None => {
                let otherwise = match here.forbidden {
                    true => "it fails: it would be staged, which this context forbids",
                    false => &staged,
                };
                Explanation::way(format!(
                    "one copy by the engine of the side that the bytes go to, which opens the memory of the other; where that cannot be, {otherwise}"
                ))
            }
            Some(_) => Explanation::way(staged),
        };
        way.is_staged = no_route.is_some();
        way.fragment = fragment;
        if out
            && !matches!(
                operation,
                Operation::Put | Operation::Get | Operation::Stream
            )
        {
            let why = "device memory is announced, whatever its length, so that the message keeps its place";
            way = way.not("eager", why);
        }
        if let Some(why) = no_route {
            way = way.not("one copy between devices", why);
        }
        let reach = format!("the host does not reach {device}");
        if let Some(one_copy) = &self.one_copy {
            if one_copy.cma.is_some() {
                way = way.not(
                    "cma",
                    format!("the kernel copies host memory only: {reach}"),
                );
            }
            way = way.not("mapped memory", reach);
        }
        way
    }
}

/// A put or get by network devices.
fn by_devices(rails: &str, otherwise: &str) -> String {
    format!(
        "the initiator's devices, where the region was registered with the owner's: {rails}; else {otherwise}"
    )
}

/// A put or get of a worker's own memory, with a device at either end.
fn explain_within(
    name: &str,
    (from, to): (MemoryType, MemoryType),
    length: usize,
    here: &Here,
) -> Explanation {
    let messages = format!("messages over {name}");
    let own = "both ends are memory of this worker";
    let is_staged = from == MemoryType::Host || to == MemoryType::Host;
    let small = match (from.is_host_accessible(), to.is_host_accessible()) {
        (false, true) => here.by(true, length, |small| small.to_host),
        (true, false) => here.by(true, length, |small| small.to_device),
        _ => String::new(),
    };
    let way = match is_staged {
        false => format!("one copy by the engine, {from} to {to}{small}"),
        true => format!(
            "staged through pinned fragments, {from} to {to}{small}, by the engine and the processor"
        ),
    };
    let way = Explanation::way(way);
    let mut way = way.not(&messages, own);
    if is_staged {
        way = way.not("one copy by the engine", "one end is ordinary host memory");
    }
    way.is_staged = is_staged;
    way.fragment = here.fragment;
    way
}

impl Core {
    /// How an operation on a connection goes.
    pub(crate) fn explain(
        &mut self,
        link: crate::LinkId,
        what: (Operation, MemoryType, MemoryType),
        length: usize,
    ) -> Option<Explanation> {
        let way = self.explain_way(link, what, length)?;
        let odd = self.peer(link)?.odd.as_ref();
        let refused = odd.iter().flat_map(|odd| &odd.refused);
        Some(refused.fold(way, |way, (name, why)| {
            way.not(name, format!("it could not be set up: {why}"))
        }))
    }

    fn explain_way(
        &mut self,
        link: crate::LinkId,
        (operation, from, to): (Operation, MemoryType, MemoryType),
        length: usize,
    ) -> Option<Explanation> {
        let types: Vec<_> = [from, to]
            .into_iter()
            .filter(|memory_type| !memory_type.is_host_accessible())
            .collect();
        // Of this side's; the peer's are its own affair.
        let here = match operation {
            Operation::Get | Operation::TagRecv | Operation::AmRecv => to,
            _ => from,
        };
        let mine: Vec<_> = types.iter().copied().filter(|held| *held == here).collect();
        let fragment = self.devices.fragment(&mine);
        let forbidden = self.devices.staging_forbidden();
        let side = Here {
            fragment: fragment.as_ref().ok().copied().flatten(),
            small: self.devices.small_copies(&mine),
            is_source: here == from,
            alone: self.devices.slot_for(&types).is_ok(),
            slot: self.devices.slot_for(&mine).ok(),
            forbidden,
        };
        let scheme = self.one_sided.scheme;
        let peer = self.peer(link)?;
        if types.is_empty() {
            return Some(peer.explain_host(operation, length, scheme));
        }
        let way = peer.explain_device(operation, (from, to), length, &side);
        Some(match fragment {
            _ if !way.is_possible => way,
            Err(error) => Explanation::never(error.to_string()),
            Ok(_) if forbidden && way.is_staged => Explanation {
                chosen: "it would be staged, which this context forbids".to_owned(),
                is_possible: false,
                ..way
            },
            Ok(_) => way,
        })
    }
}
