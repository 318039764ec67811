//! How an operation goes, and why no better way: for people.

use std::fmt;

use crate::{
    Operation,
    types::MemoryType,
    worker::{
        core::Core,
        peer::{JOIN_FROM, ONE_COPY_FROM, Peer},
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

impl Peer {
    /// How an operation of this length goes between host memories.
    fn explain_host(&self, operation: Operation, length: usize) -> Explanation {
        let name = self.attributes.transport;
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
                Explanation::way(format!("messages over {name}, served by the owner"))
                    .not("a direct copy", no_cma)
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
                Explanation::way(format!("messages over {name}, served by the owner"))
            }
            _ if length <= self.short => Explanation::way(format!("eager, inline over {name}")),
            _ if length <= self.eager => Explanation::way(format!("eager over {name}"))
                .not("inline", format!("longer than {} bytes", self.short)),
            _ => {
                let eager = format!("longer than {} bytes", self.eager);
                if cma && length >= ONE_COPY_FROM {
                    let way = "rendezvous, both ends copy, mapped memory or cma";
                    Explanation::way(way.to_owned()).not("eager", eager)
                } else {
                    let why = match cma {
                        true => format!("shorter than {ONE_COPY_FROM} bytes"),
                        false => no_cma,
                    };
                    Explanation::way(format!("rendezvous, fragments over {name}"))
                        .not("eager", eager)
                        .not("a direct copy", why)
                }
            }
        }
    }

    /// The same where one end or both are out of the host's reach. `fragment`: length of the pieces.
    fn explain_device(
        &self,
        operation: Operation,
        from: MemoryType,
        to: MemoryType,
        fragment: Option<usize>,
    ) -> Explanation {
        let name = self.attributes.transport;
        let (out, into) = (!from.is_host_accessible(), !to.is_host_accessible());
        let device = if out { from } else { to };
        let pieces = match fragment {
            Some(length) => format!("pinned fragments of {length} bytes"),
            None => "pinned fragments".to_owned(),
        };
        let how = match (operation, into) {
            (Operation::Atomic | Operation::Signal, _) => {
                let text =
                    format!("no processor reaches {device}: no atomic operations or signals on it");
                return Explanation::never(text);
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
            (_, true) => format!(
                "announced where it is long or from a device, and pulled by the receiver over {name}"
            ),
            (_, false) => format!("announced, then fragments over {name}"),
        };
        let copies = match (out, into) {
            (true, true) => format!("copied out of {from} and into {to}"),
            (true, false) => format!("copied out of {from}"),
            _ => format!("copied into {to}"),
        };
        let mut way = Explanation::way(format!("staged through {pieces}, {copies}: {how}"));
        way.is_staged = true;
        way.fragment = fragment;
        let reach = format!("the host does not reach {device}");
        if out
            && !matches!(
                operation,
                Operation::Put | Operation::Get | Operation::Stream
            )
        {
            let why = format!(
                "a message out of {from} is announced, whatever its length, so that its place is kept"
            );
            way = way.not("eager", why);
        }
        match &self.one_copy {
            Some(one_copy) if one_copy.cma.is_some() => {
                way.not("mapped memory", reach.clone()).not(
                    "cma",
                    format!("the kernel copies host memory only, and {reach}"),
                )
            }
            Some(_) => way.not("mapped memory", reach),
            None => way.not(
                "a direct copy",
                format!("{name} shares no memory with the peer"),
            ),
        }
    }
}

/// The way between device memories of two processes of a host.
const OPENED: &str = "opening the peer's memory";

impl Core {
    /// Whether the peer's memory is opened, or why not. `None`: these accelerators, or operations, do not do that at all.
    fn route_explained(
        &mut self,
        link: crate::LinkId,
        operation: Operation,
        types: &[MemoryType],
        length: usize,
    ) -> Option<Result<Explanation, String>> {
        let pulled = matches!(
            operation,
            Operation::TagSend
                | Operation::TagRecv
                | Operation::AmSend
                | Operation::AmRecv
                | Operation::Put
                | Operation::Get
        );
        let slot = self.devices.sharing_slot(types).filter(|_| pulled)?;
        if self.has_route(link, slot, length) {
            let who = match operation {
                Operation::TagRecv | Operation::AmRecv | Operation::Get => "this side",
                _ => "the peer",
            };
            let text = format!(
                "{who} opens the other's memory, and its engine copies device to device; staged where that memory cannot be opened"
            );
            let why = "the host's memory is on no path between the two";
            return Some(Ok(Explanation::way(text).not("staging", why)));
        }
        let peer = self.peer(link)?;
        Some(Err(match &peer.unrouted {
            Some(error) => error.to_string(),
            None if peer.one_copy.is_none() => {
                let name = peer.attributes.transport;
                format!("{name} does not show that the peer is on this host")
            }
            None => format!("{length} bytes go through one fragment as fast"),
        }))
    }

    /// How an operation on a connection goes.
    pub(crate) fn explain(
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
        let route = match types.len() {
            2 => self.route_explained(link, operation, &types, length),
            _ => None,
        };
        let peer = self.peer(link)?;
        if types.is_empty() {
            return Some(peer.explain_host(operation, length));
        }
        let way = peer.explain_device(
            operation,
            from,
            to,
            fragment.as_ref().ok().copied().flatten(),
        );
        let way = match route {
            Some(Ok(route)) if fragment.is_ok() && way.is_possible => return Some(route),
            Some(Err(why)) => way.not(OPENED, why),
            _ => way,
        };
        Some(match fragment {
            _ if !way.is_possible => way,
            Err(error) => Explanation::never(error.to_string()),
            Ok(_) if forbidden => Explanation {
                chosen: "it would be staged, which this context forbids".to_owned(),
                is_possible: false,
                ..way
            },
            Ok(_) => way,
        })
    }
}
