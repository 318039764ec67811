//! An open device: its ports, and what it tells.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
};

use super::{options::RcOptions, served::Served};
use crate::{
    driver::verbs::{
        AtomicSupport, Context, Device, DeviceAttributes, EventKind, GidEntry, GidKind, LinkLayer,
        Mtu, PortState, ProtectionDomain, Subject, choose_gid,
    },
    error::{Error, ErrorKind, Result},
    sys::eventfd::EventFd,
    util::lock::Mutex,
};

/// Events of queue pairs that nobody has asked for yet; more are forgotten (their completions tell too).
const MOST_EVENTS: usize = 1024;

/// A port that can be used.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// Its number; the first is 1.
    pub(crate) number: u8,
    /// What it is part of.
    pub(crate) link_layer: LinkLayer,
    /// Its address; `None` only where paths need none.
    pub(crate) gid: Option<GidEntry>,
    /// Whether paths from here name GIDs.
    pub(crate) uses_gid: bool,
    /// Its address within an InfiniBand subnet.
    pub(crate) lid: u16,
    /// Its largest packets.
    pub(crate) mtu: Mtu,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.number)?;
        match &self.gid {
            Some(entry) => write!(
                f,
                ", {} as {} (index {})",
                entry.kind, entry.gid, entry.index
            ),
            None => write!(f, ", LID {}", self.lid),
        }
    }
}

/// An open device, shared by the workers of a context.
pub(crate) struct OpenDevice {
    /// Where its memory and queues belong.
    pub(crate) domain: ProtectionDomain,
    /// The device itself.
    pub(crate) context: Context,
    /// What it can do.
    pub(crate) attributes: DeviceAttributes,
    /// Its node GUID; another number where that is 0 or a device before has it, as with some virtual functions. None of this context's devices has the
    /// same, and peers tell only those apart by it.
    pub(crate) id: u64,
    /// The ports that may be used and were up, at least one, as they were when they were looked at.
    ports: Mutex<Arc<[Port]>>,
    /// It has told of one since.
    changed: AtomicBool,
    /// Who looks at them anew does so alone.
    looking: Mutex<()>,
    lost: AtomicBool,
    /// How often queues were told to have failed.
    failed_queues: AtomicU64,
    /// Counts events that concern queue pairs, or all of them.
    news: AtomicU64,
    /// Rung when there are some. Several may sleep on the device's descriptor, and who wakes second finds its events taken: that wakes nobody.
    bells: Mutex<Vec<Weak<EventFd>>>,
    /// What was told of queue pairs, by number.
    told: Mutex<HashMap<u32, EventKind>>,
    /// Ports that went down and have not come up again.
    down: Mutex<HashSet<u8>>,
    /// How peers reach memory of this side.
    pub(super) served: Arc<Served>,
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDevice")
            .field("name", &self.name())
            .field("ports", &self.ports())
            .finish_non_exhaustive()
    }
}

impl OpenDevice {
    pub(super) fn open(device: &Device, options: &RcOptions) -> Result<Self> {
        let context = device.open()?;
        let attributes = context.attributes()?;
        if attributes.max_shared_receive_queues == 0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} has no shared receive queues", device.name()),
            ));
        }
        let gids = gids(&context);
        let mut ports = Vec::new();
        let mut why = Vec::new();
        for number in 1..=attributes.ports {
            if !options.devices.allows(device.name(), number) {
                continue;
            }
            match look(&context, &gids, number, options) {
                Ok(port) => {
                    tracing::debug!(target: "wharf::verbs", device = device.name(), "{port}");
                    ports.push(port);
                }
                Err(error) => why.push(format!("port {number}: {error}")),
            }
        }
        if ports.is_empty() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{}: no active port ({})", device.name(), why.join("; ")),
            ));
        }
        Ok(Self {
            domain: context.protection_domain()?,
            attributes,
            id: device.guid(),
            ports: Mutex::new(ports.into()),
            changed: AtomicBool::new(false),
            looking: Mutex::new(()),
            context,
            lost: AtomicBool::new(false),
            failed_queues: AtomicU64::new(0),
            news: AtomicU64::new(0),
            bells: Mutex::default(),
            told: Mutex::default(),
            down: Mutex::default(),
            served: Arc::default(),
        })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.context.name()
    }

    /// Whether it does atomics.
    pub(super) fn does_atomics(&self) -> bool {
        self.attributes.atomics != AtomicSupport::None
    }

    /// Whether it has failed or was removed.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Acquire)
    }

    /// How often queues were told to have failed. All that were made before the last time are used no longer.
    pub(super) fn failed_queues(&self) -> u64 {
        self.failed_queues.load(Acquire)
    }

    /// Whether a port went down. A device may then never tell what became of the requests over it: soft-RoCE tries for ever (Linux 6.1).
    pub(super) fn is_down(&self, port: u8) -> bool {
        self.down.lock().contains(&port)
    }

    /// The ports that may be used.
    pub(crate) fn ports(&self) -> Arc<[Port]> {
        Arc::clone(&self.ports.lock())
    }

    /// Looks at its ports anew where it has told of one: addresses change, and a port may have come up. May take milliseconds.
    pub(super) fn look_again(&self, options: &RcOptions) {
        let _alone = self.looking.lock();
        if !self.changed.swap(false, AcqRel) {
            return;
        }
        let (known, gids) = (self.ports(), gids(&self.context));
        let mut ports = Vec::new();
        for number in (1..=self.attributes.ports)
            .filter(|number| options.devices.allows(self.name(), *number))
        {
            match look(&self.context, &gids, number, options) {
                Ok(port) => {
                    tracing::debug!(target: "wharf::verbs", device = self.name(), "{port}");
                    ports.push(port);
                }
                Err(error) => {
                    tracing::debug!(target: "wharf::verbs", device = self.name(), port = number, %error, "it cannot be used now");
                    // As it was, until it has an address again: should it be asked for meanwhile, joining says what is wrong.
                    if let Some(port) = known.iter().find(|port| port.number == number) {
                        ports.push(port.clone());
                        self.changed.store(true, Release);
                    }
                }
            }
        }
        *self.ports.lock() = ports.into();
    }

    /// Readable when the device tells something.
    pub(super) fn events_fd(&self) -> RawFd {
        self.context.as_raw_fd()
    }

    /// How often something was told that may concern a queue pair. Who sees it change asks [`OpenDevice::told`].
    pub(super) fn news(&self) -> u64 {
        self.news.load(Acquire)
    }

    /// What was told of a queue pair, once.
    pub(super) fn told(&self, queue_pair: u32) -> Option<EventKind> {
        self.told.lock().remove(&queue_pair)
    }

    /// Rings this when there is news, whoever takes it, for as long as it lives.
    pub(super) fn rings(&self, bell: &Arc<EventFd>) {
        let mut bells = self.bells.lock();
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(bell));
    }

    /// Takes the device's events, for all workers.
    pub(super) fn take_events(&self) {
        // Held while they are taken: who comes second finds them noted.
        let mut told = self.told.lock();
        let before = self.news();
        self.note_events(&mut told);
        let any = self.news() != before;
        drop(told);
        if any {
            let bells = self.bells.lock();
            bells
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|bell| bell.ring());
        }
    }

    fn note_events(&self, told: &mut HashMap<u32, EventKind>) {
        loop {
            let event = match self.context.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(error) => {
                    if !self.lost.swap(true, AcqRel) {
                        tracing::warn!(target: "wharf::verbs", device = self.name(), %error, "no more events");
                        self.news.fetch_add(1, Release);
                    }
                    return;
                }
            };
            match (event.kind, event.subject) {
                (kind, _) if kind.is_device_end() => {
                    tracing::warn!(target: "wharf::verbs", device = self.name(), "{kind}");
                    self.lost.store(true, Release);
                    self.news.fetch_add(1, Release);
                }
                (
                    kind @ (EventKind::QP_FATAL | EventKind::QP_REQ_ERR | EventKind::QP_ACCESS_ERR),
                    Subject::QueuePair(number),
                ) => {
                    if told.len() >= MOST_EVENTS {
                        // Of queue pairs that are gone, all but one or two.
                        told.clear();
                    }
                    told.insert(number, kind);
                    self.news.fetch_add(1, Release);
                }
                (kind @ (EventKind::CQ_ERR | EventKind::SRQ_ERR), _) => {
                    // Nothing comes of such a queue any more, not even the ends of what is posted. Which one it is is not looked up.
                    tracing::warn!(target: "wharf::verbs", device = self.name(), "{kind}: the device's queues are made anew");
                    self.failed_queues.fetch_add(1, Release);
                    self.news.fetch_add(1, Release);
                }
                (
                    kind @ (EventKind::PORT_ERR
                    | EventKind::PORT_ACTIVE
                    | EventKind::GID_CHANGE
                    | EventKind::LID_CHANGE),
                    Subject::Port(port),
                ) => {
                    tracing::warn!(target: "wharf::verbs", device = self.name(), port, "{kind}");
                    self.changed.store(true, Release);
                    match kind {
                        EventKind::PORT_ERR => {
                            self.down.lock().insert(port);
                            self.news.fetch_add(1, Release);
                        }
                        EventKind::PORT_ACTIVE => {
                            self.down.lock().remove(&port);
                        }
                        _ => {}
                    }
                }
                (kind, _) => {
                    tracing::trace!(target: "wharf::verbs", device = self.name(), "{kind}");
                }
            }
        }
    }
}

fn gids(context: &Context) -> Vec<GidEntry> {
    context.gids().unwrap_or_else(|error| {
        tracing::debug!(target: "wharf::verbs", device = context.name(), %error, "no GIDs");
        Vec::new()
    })
}

/// A port, if it can be used.
fn look(context: &Context, gids: &[GidEntry], number: u8, options: &RcOptions) -> Result<Port> {
    let not = |why: String| Error::new(ErrorKind::Unsupported, why);
    let port = context.port(number)?;
    if port.state != PortState::ACTIVE {
        return Err(not(format!("it is {}", port.state)));
    }
    let mtu = port
        .mtu
        .ok_or_else(|| not("its packets have no known size".to_owned()))?;
    let gid = match options.gid_index {
        None => choose_gid(gids, number),
        Some(index) => gids
            .iter()
            .find(|entry| entry.port == number && entry.index == index)
            .copied(),
    };
    if gid.is_none() && port.uses_gid() {
        return Err(not(match options.gid_index {
            Some(index) => format!("there is no GID at index {index}"),
            None => "it has no GID: give its network interface an IP address".to_owned(),
        }));
    }
    if let Some(entry) = &gid
        && entry.kind == GidKind::ROCE_V1
    {
        tracing::debug!(target: "wharf::verbs", device = context.name(), port = number, "only RoCE v1, which is not routed");
    }
    Ok(Port {
        number,
        link_layer: port.link_layer,
        gid,
        uses_gid: port.uses_gid(),
        lid: port.lid,
        mtu: mtu.min(options.mtu.unwrap_or(mtu)),
    })
}
