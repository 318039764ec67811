//! Sets connections up over a channel.
//!
//! ```text
//! both ends:  queue pairs made;  offer {window, longest message, rails} ⇄ offer;  queue pairs joined;  verdict ⇄ verdict;
//!             the socket stays: the control socket
//! ```

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
};

use async_trait::async_trait;
use socket2::{Socket, TcpKeepalive};

use super::{
    buffers::Memory,
    connection::{Connection, RING, SPARE_SLOTS},
    device::{OpenDevice, Port},
    options::{NAME, RcOptions},
    pairs::pairs,
    queues::SEGMENT,
    rail::{Rail, retire},
    room::Room,
    wire::{HEADER, Offer, RailOffer, read_verdict, verdict},
};
use crate::{
    driver::verbs::{
        Access, Capacity, Gid, GlobalRoute, InitAttributes, PathAttributes, QueuePair,
        QueuePairOptions, ReceiveAttributes, SendAttributes,
    },
    error::{Error, ErrorKind, Result},
    sys::{blocking::blocking, fd_socket},
    transport::{Connected, Connector, MAX_DEVICES, PeerInfo, Role, channel::Channel},
};

/// Rails for messages.
const RAILS: usize = 4;
/// Rails for one-sided operations, beside those of messages: one for each device, so that memory has one near it. A request that a peer refuses ends the
/// rail that it went over; messages go on.
const DATA_RAILS: usize = MAX_DEVICES;
/// Bytes that are sent inline, where the device has no less; it may say more.
const INLINE: [u32; 3] = [144, 60, 0];
/// Reads and atomics that are under way at once, at most.
const READS: u8 = 16;
/// What a peer waits when it finds no receive, which the windows prevent: 0.64 ms.
const NOT_READY_TIMER: u8 = 12;

/// What [`super::iface::RcInterface`] attaches.
pub(super) struct Established(pub(super) Arc<Connection>);

/// Sets links up.
#[derive(Debug)]
pub(super) struct RcConnector {
    room: Arc<Room>,
}

impl RcConnector {
    /// For a worker.
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self { room }
    }
}

/// This end's rails, before and after they are joined to the other's. Those that end here do so by the interface: a peer that was told of its
/// connection before may have sent over them.
struct Half {
    rails: Vec<(Rail, Arc<OpenDevice>, Port, u32)>,
    /// What is offered: the smallest of the rails', of which some may be given up.
    window: u32,
}

impl Drop for Half {
    fn drop(&mut self) {
        retire(self.rails.drain(..).map(|(rail, ..)| rail));
    }
}

impl Half {
    /// Makes the queue pairs.
    fn make(room: &Room) -> Result<Self> {
        let devices = room.devices.open()?;
        let mut this = Self {
            rails: Vec::new(),
            window: 0,
        };
        let mut last = None;
        for device in devices.iter().filter(|device| !device.is_lost()) {
            // Nobody else may have looked since the last connection.
            device.take_events();
            device.look_again(&room.devices.options);
        }
        let ports = ports(&devices);
        for (device, port) in &ports {
            if this.rails.len() == RAILS {
                break;
            }
            if device.is_lost() {
                last = Some(lost(device));
                continue;
            }
            if device.is_down(port.number) {
                let text = format!("{}: port {} is down", device.name(), port.number);
                last = Some(Error::new(ErrorKind::Unreachable, text));
                continue;
            }
            match rail(room, device, port, true) {
                Ok(rail) => {
                    let packet = random()?;
                    this.rails
                        .push((rail, Arc::clone(device), port.clone(), packet));
                }
                Err(error) => last = Some(error),
            }
        }
        if let Some(error) = last
            && this.rails.is_empty()
        {
            return Err(error);
        }
        let windows = this.rails.iter().map(|(rail, ..)| rail.reservation.window);
        this.window = windows.min().unwrap_or(0);
        this.add_data_rails(room, &ports)?;
        Ok(this)
    }

    /// Adds rails for one-sided operations, over the same ports: which of them go together with the other end's, only both ends know.
    fn add_data_rails(&mut self, room: &Room, ports: &[(Arc<OpenDevice>, Port)]) -> Result<()> {
        let ports = ports
            .iter()
            .filter(|(device, port)| !device.is_lost() && !device.is_down(port.number));
        for (device, port) in ports.take(DATA_RAILS) {
            match rail(room, device, port, false) {
                Ok(rail) => {
                    let packet = random()?;
                    self.rails
                        .push((rail, Arc::clone(device), port.clone(), packet));
                }
                Err(error) => {
                    tracing::debug!(target: "wharf::verbs", device = device.name(), %error, "no rail for one-sided operations");
                }
            }
        }
        Ok(())
    }

    /// Rails for messages, which stand before those for one-sided operations.
    fn messages(&self) -> usize {
        self.rails.iter().filter(|(rail, ..)| !rail.data).count()
    }

    fn offer(&self) -> Offer {
        let rail = |(rail, device, port, packet): &(Rail, Arc<OpenDevice>, Port, u32)| RailOffer {
            guid: device.id,
            port: port.number,
            link_layer: port.link_layer,
            mtu: port.mtu,
            reads: device.attributes.max_reads_served.min(READS),
            lid: port.lid,
            gid: port.gid.map_or_else(Gid::default, |entry| entry.gid),
            queue_pair: rail.queue_pair.number(),
            first_packet: *packet,
            data: rail.data,
        };
        Offer {
            window: self.window as u16,
            segment: SEGMENT as u32,
            rails: self.rails.iter().map(rail).collect(),
        }
    }

    /// Joins the rails to the other end's, as [`pairs`] says. Which of them could be joined, as bits; at least one.
    fn join(&mut self, theirs: &Offer, role: Role, options: &RcOptions) -> Result<u16> {
        let ours = self.offer().rails;
        let pairs = pairs(&ours, &theirs.rails, role, RAILS, DATA_RAILS);
        let mut all: Vec<_> = self.rails.drain(..).map(Some).collect();
        let own = pairs.iter().filter_map(|(own, _)| all[*own].take());
        self.rails.extend(own);
        retire(all.into_iter().flatten().map(|(rail, ..)| rail));
        let peers = pairs.iter().map(|(_, peer)| &theirs.rails[*peer]);
        let messages = self.messages();
        let (mut joined, mut why) = (0, None);
        let pairs = self.rails.iter_mut().zip(peers);
        for (index, ((rail, device, port, packet), peer)) in pairs.enumerate() {
            rail.peer_device = peer.guid;
            match join(rail, device, port, *packet, peer, options) {
                Ok(()) => joined |= 1 << index,
                Err(error) => {
                    let text = format!("{} {port} to {}: {error}", device.name(), peer.gid);
                    tracing::debug!(target: "wharf::verbs", "no rail from {text}");
                    why.get_or_insert_with(|| Error::new(error.kind(), text).with_source(error));
                }
            }
        }
        match why {
            Some(error) if joined == 0 => Err(error),
            _ if joined & ((1 << messages) - 1) == 0 => Err(Error::new(
                ErrorKind::Unreachable,
                "no rail for messages could be joined",
            )),
            _ => Ok(joined),
        }
    }

    /// The rails that both ends could join; the others end.
    fn keep(&mut self, joined: u16) -> Vec<Rail> {
        let all = std::mem::take(&mut self.rails).into_iter().enumerate();
        let (kept, surplus): (Vec<_>, Vec<_>) =
            all.partition(|(index, _)| joined >> index & 1 == 1);
        retire(surplus.into_iter().map(|(_, (rail, ..))| rail));
        kept.into_iter().map(|(_, (rail, ..))| rail).collect()
    }
}

/// Those of all devices, in their order.
fn ports(devices: &[Arc<OpenDevice>]) -> Vec<(Arc<OpenDevice>, Port)> {
    let mut all = Vec::new();
    for device in devices {
        let ports = device.ports();
        all.extend(ports.iter().map(|port| (Arc::clone(device), port.clone())));
    }
    all
}

fn lost(device: &OpenDevice) -> Error {
    Error::new(
        ErrorKind::DeviceLost,
        format!("{} has failed or was removed", device.name()),
    )
}

/// A number of 24 bits.
fn random() -> Result<u32> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes[..3])
        .map_err(|error| Error::new(ErrorKind::Io, format!("random bytes: {error}")))?;
    Ok(u32::from_le_bytes(bytes))
}

/// Makes a queue pair at a port, with its ring; for messages, or for one-sided operations alone.
fn rail(room: &Room, device: &Arc<OpenDevice>, port: &Port, messages: bool) -> Result<Rail> {
    let sends = room.devices.options.sends + SPARE_SLOTS;
    let reservation = room.reserve(device, sends, messages)?;
    let queues = &reservation.queues;
    let make = |inline_bytes| {
        device.domain.queue_pair(&QueuePairOptions {
            sends: &queues.completions,
            receives: &queues.completions,
            shared_receives: Some(queues.receive_queue()),
            capacity: Capacity {
                sends,
                receives: 0,
                send_pieces: 3,
                receive_pieces: 1,
                inline_bytes,
            },
            signal_all: false,
        })
    };
    let mut made = Err(lost(device));
    for inline in INLINE {
        made = make(inline);
        if !made
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::InvalidArgument)
        {
            break;
        }
    }
    let queue_pair: Arc<QueuePair> = Arc::new(made?);
    if !messages {
        device.served.add(&queue_pair)?;
    }
    // Of one before it that had the same number.
    let _ = device.told(queue_pair.number());
    let access = match messages {
        true => Access::LOCAL_WRITE,
        false => {
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
        }
    };
    queue_pair.to_init(&InitAttributes {
        port: port.number,
        partition_index: 0,
        access,
    })?;
    reservation.expect(queue_pair.number());
    let ring = Memory::new(&device.domain, RING, Access::LOCAL_WRITE)?;
    let capacity = queue_pair.capacity();
    Ok(Rail {
        port: port.number,
        inline: match capacity.send_pieces {
            3.. => capacity.inline_bytes as usize,
            _ => 0,
        },
        queue_pair,
        ring,
        reservation,
        peer_device: 0,
        over: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        data: !messages,
        retired: Arc::clone(&room.retired),
    })
}

/// Joins a queue pair to the other end's. On RoCE the peer's hardware address is asked for, which may take a second.
fn join(
    rail: &Rail,
    device: &OpenDevice,
    port: &Port,
    packet: u32,
    peer: &RailOffer,
    options: &RcOptions,
) -> Result<()> {
    let unfit = |why: String| Err(Error::new(ErrorKind::Unreachable, why));
    if port.link_layer != peer.link_layer {
        return unfit(format!(
            "{} here, {} there",
            port.link_layer, peer.link_layer
        ));
    }
    let global = match (port.uses_gid, port.gid) {
        (true, Some(own)) if !peer.gid.is_empty() => Some(GlobalRoute {
            gid: peer.gid,
            source_index: own.index,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
        }),
        (true, _) => return unfit("the peer has no GID".to_owned()),
        (false, _) => None,
    };
    rail.queue_pair.to_receive(&ReceiveAttributes {
        path: PathAttributes {
            port: port.number,
            lid: peer.lid,
            service_level: 0,
            source_bits: 0,
            global,
        },
        mtu: port.mtu.min(peer.mtu),
        queue_pair: peer.queue_pair,
        first_packet: peer.first_packet,
        reads: device.attributes.max_reads_served.min(READS),
        not_ready_timer: NOT_READY_TIMER,
    })?;
    rail.queue_pair.to_send(&SendAttributes {
        first_packet: packet,
        timeout: options.timeout,
        retries: options.retries,
        // For ever: the windows see to it that there is a receive.
        not_ready_retries: 7,
        reads: device
            .attributes
            .max_reads_started
            .min(READS)
            .min(peer.reads)
            // Of none the device would wait for ever; a peer that serves none refuses.
            .max(1),
    })
}

#[async_trait]
impl Connector for RcConnector {
    fn can_use(&self, _channel: &Channel, _peer: &PeerInfo) -> Result<()> {
        let devices = self.room.devices.open()?;
        match devices.iter().any(|device| !device.is_lost()) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::DeviceLost, "all devices have failed").over(NAME)),
        }
    }

    async fn connect(
        &self,
        channel: &mut Channel,
        role: Role,
        peer: &PeerInfo,
    ) -> Result<Connected> {
        let named = |error: Error| error.with_peer(&peer.name).over(NAME);
        let room = Arc::clone(&self.room);
        let made = blocking(move || Half::make(&room)).await;
        let message = match &made {
            Ok(half) => half.offer().encode(),
            Err(error) => Offer::refuse(&error.to_string()),
        };
        channel.send(&message, &[]).await?;
        let message = channel.receive_alone().await?;
        let offer = Offer::decode(&message);
        let refused = offer
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Unreachable);
        if made.is_err() || refused {
            // No verdict follows.
            channel.give_up();
        }
        let mut half = made.map_err(named)?;
        let joined = match offer {
            Err(error) if refused => return Err(named(error)),
            Err(error) => Err(error),
            Ok(theirs) => {
                let room = Arc::clone(&self.room);
                blocking(move || {
                    let joined = half.join(&theirs, role, &room.devices.options)?;
                    Ok(((half, theirs), joined))
                })
                .await
            }
        };
        channel.send(&verdict(&joined), &[]).await?;
        let message = channel.receive_alone().await?;
        let verdict = read_verdict(&message);
        let refused = |error: &Error| error.kind() == ErrorKind::Unreachable;
        if joined.is_err() || verdict.as_ref().is_err_and(refused) {
            // Each has the other's word.
            channel.give_up();
        }
        let ((mut half, theirs), joined) = joined.map_err(named)?;
        let joined = joined & verdict.map_err(named)?;
        let messages = half.messages();
        if joined & ((1 << messages) - 1) == 0 {
            // Both ends see so.
            channel.give_up();
            return Err(named(Error::new(
                ErrorKind::Unreachable,
                "no rail for messages could be joined at both ends",
            )));
        }
        let is_tcp = channel.is_tcp();
        let control = fd_socket::Socket::new(Socket::from(channel.take_stream()?));
        let set_up = |error: io::Error| named(Error::io("setting up the control socket", error));
        control.set_nonblocking(true).map_err(set_up)?;
        if is_tcp && let Some(time) = self.room.devices.options.keepalive {
            // As tcp does: a host that has gone silent is given up after three times this.
            let probes = TcpKeepalive::new().with_time(time).with_interval(time);
            control.set_tcp_keepalive(&probes).map_err(set_up)?;
            control
                .set_tcp_user_timeout(Some(time * 5 / 2))
                .map_err(set_up)?;
        }
        let windows = (half.window, u32::from(theirs.window));
        let rails = half.keep(joined);
        Ok(Connected(Box::new(Established(Arc::new(Connection::new(
            &peer.name,
            control,
            rails,
            windows,
            (theirs.segment as usize).min(SEGMENT) - HEADER,
            &self.room.devices,
        ))))))
    }
}
