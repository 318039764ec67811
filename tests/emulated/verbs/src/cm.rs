//! The exported names of `librdmacm.so.1`: connections by IP address between the two devices, which are 10.99.0.1 and 10.99.0.2.
//!
//! As strict as the library where it hangs, and quicker: an identifier that is destroyed with events taken and not acknowledged is a misuse,
//! as is a channel that is destroyed with identifiers left. Steps that end with an event have it at once. Faults as everywhere; `cm KIND` of the
//! control tells all identifiers an event.
//!
//! # Safety
//! Pointers come from a C caller; see the crate. The structs are those of `rdma/rdma_cma.h`, written from the header.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::{c_int, c_void},
    net::{Ipv4Addr, SocketAddrV4},
    ptr, slice,
};

use parking_lot::Mutex;

use crate::{
    abi::{Device, Path, QpAttr},
    device::{TABLE, words},
    plan::{errno, null, struck},
    world::{INIT, JOURNAL, RTR, RTS, counter, ring, take},
};

#[repr(C)]
pub(crate) struct EventChannel {
    fd: c_int,
}

#[repr(C)]
pub(crate) struct Id {
    /// A context of the library's own; callers read its device alone.
    verbs: *const *const Device,
    channel: *mut EventChannel,
    context: *mut c_void,
    qp: usize,
    src_addr: libc::sockaddr_storage,
    dst_addr: libc::sockaddr_storage,
    _ib: [u64; 5],
    _paths: [usize; 2],
    ps: u32,
    port_num: u8,
    event: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ConnParam {
    private_data: *const u8,
    private_data_len: u8,
    _numbers: [u8; 6],
    _srq: u8,
    qp_num: u32,
}

#[repr(C)]
pub(crate) struct Event {
    id: *mut Id,
    listen_id: *mut Id,
    event: u32,
    status: c_int,
    conn: ConnParam,
    _ud: [u64; 4],
}

const _: () = {
    assert!(size_of::<ConnParam>() == 24 && std::mem::offset_of!(ConnParam, qp_num) == 16);
    assert!(std::mem::offset_of!(Id, port_num) == 348 && std::mem::offset_of!(Id, ps) == 344);
    assert!(size_of::<Event>() == 80 && std::mem::offset_of!(Event, conn) == 24);
};

/// Kinds of events.
mod kind {
    pub(super) const ADDR_RESOLVED: u32 = 0;
    pub(super) const ADDR_ERROR: u32 = 1;
    pub(super) const ROUTE_RESOLVED: u32 = 2;
    pub(super) const CONNECT_REQUEST: u32 = 4;
    pub(super) const CONNECT_RESPONSE: u32 = 5;
    pub(super) const REJECTED: u32 = 8;
    pub(super) const ESTABLISHED: u32 = 9;
    pub(super) const DISCONNECTED: u32 = 10;
}

/// Bytes of private data, which come padded: with a request, its answer, and a rejection.
const REQUEST: usize = 56;
const ANSWER: usize = 196;
const REJECTION: usize = 148;

static CM: Mutex<Cm> = Mutex::new(Cm {
    channels: BTreeMap::new(),
    ids: BTreeMap::new(),
    port: 40_000,
});

struct Cm {
    channels: BTreeMap<usize, VecDeque<Told>>,
    ids: BTreeMap<usize, IdState>,
    port: u16,
}

struct Told {
    id: usize,
    listener: usize,
    kind: u32,
    status: c_int,
    queue_pair: u32,
    data: Vec<u8>,
}

#[derive(Default)]
struct IdState {
    channel: usize,
    bound: Option<SocketAddrV4>,
    listens: bool,
    target: Option<SocketAddrV4>,
    /// The other end.
    peer: usize,
    /// Accepted by it, or by this one.
    stands: bool,
    /// The other end's queue pair.
    queue_pair: u32,
    unacked: u32,
}

struct Contexts([*const Device; 2]);
// SAFETY: read alone.
unsafe impl Sync for Contexts {}
static CONTEXTS: Contexts = Contexts([&raw const TABLE.0[0], (&raw const TABLE.0[1])]);

/// Objects that are not destroyed.
pub(crate) fn live() -> usize {
    let cm = CM.lock();
    cm.channels.len() + cm.ids.len()
}

/// Tells every identifier something; how many there are.
pub(crate) fn tell_all(kind: u32) -> usize {
    let mut cm = CM.lock();
    let ids: Vec<usize> = cm.ids.keys().copied().collect();
    for id in &ids {
        cm.tell(*id, kind, 0, 0, &[], 0);
    }
    ids.len()
}

impl Cm {
    fn tell(
        &mut self,
        id: usize,
        kind: u32,
        status: c_int,
        queue_pair: u32,
        data: &[u8],
        padded: usize,
    ) {
        let Some(channel) = self.ids.get(&id).map(|state| state.channel) else {
            return;
        };
        let mut data = data.to_vec();
        if !data.is_empty() {
            data.resize(padded.max(data.len()), 0);
        }
        if let Some(events) = self.channels.get_mut(&channel) {
            events.push_back(Told {
                id,
                listener: 0,
                kind,
                status,
                queue_pair,
                data,
            });
            ring(fd_of(channel));
        }
    }
}

fn fd_of(channel: usize) -> c_int {
    // SAFETY: a channel that is not destroyed.
    unsafe { (*(channel as *const EventChannel)).fd }
}

/// Fails as the plan says: −1 and `errno`.
macro_rules! plan {
    ($name:literal) => {
        if let Some(code) = struck($name) {
            return failed(code as c_int);
        }
    };
}

fn failed(code: c_int) -> c_int {
    errno(code);
    -1
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    if let Some(code) = struck("rdma_create_event_channel") {
        return null(code as c_int);
    }
    let Ok(fd) = counter() else {
        return null(libc::EMFILE);
    };
    let channel = Box::into_raw(Box::new(EventChannel { fd }));
    CM.lock().channels.insert(channel as usize, VecDeque::new());
    channel
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    struck("rdma_destroy_event_channel");
    let mut cm = CM.lock();
    let at = channel as usize;
    if cm.ids.values().any(|id| id.channel == at) {
        JOURNAL.misuse("rdma_destroy_event_channel with identifiers left".to_owned());
        return;
    }
    if cm.channels.remove(&at).is_some() {
        // SAFETY: ours, and boxed.
        unsafe {
            libc::close((*channel).fd);
            drop(Box::from_raw(channel));
        }
    }
}

fn new_id(cm: &mut Cm, channel: *mut EventChannel) -> *mut Id {
    // SAFETY: all of it are numbers and pointers, for which zeros are values.
    let zeros: Id = unsafe { std::mem::zeroed() };
    let id = Box::into_raw(Box::new(Id { channel, ..zeros }));
    cm.ids.insert(
        id as usize,
        IdState {
            channel: channel as usize,
            ..IdState::default()
        },
    );
    id
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut EventChannel,
    to: *mut *mut Id,
    _context: *mut c_void,
    _space: u32,
) -> c_int {
    plan!("rdma_create_id");
    // SAFETY: given for it.
    unsafe { *to = new_id(&mut CM.lock(), channel) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut Id) -> c_int {
    plan!("rdma_destroy_id");
    let mut cm = CM.lock();
    let at = id as usize;
    let Some(state) = cm.ids.get(&at) else {
        return failed(libc::EINVAL);
    };
    if state.unacked > 0 {
        JOURNAL.misuse("rdma_destroy_id with events that were not acknowledged".to_owned());
    }
    end(&mut cm, at);
    let channel = cm.ids.remove(&at).map_or(0, |state| state.channel);
    // Events about it go with it, and requests that nobody has taken.
    let mut orphans = Vec::new();
    if let Some(events) = cm.channels.get_mut(&channel) {
        let before = events.len();
        events.retain(|told| {
            if told.listener == at {
                orphans.push(told.id);
            }
            told.id != at && told.listener != at
        });
        let fewer = before - events.len();
        for _ in 0..fewer {
            take(fd_of(channel));
        }
    }
    for orphan in orphans {
        end(&mut cm, orphan);
        cm.ids.remove(&orphan);
        // SAFETY: boxed by `new_id`, and told to nobody.
        drop(unsafe { Box::from_raw(orphan as *mut Id) });
    }
    drop(cm);
    // SAFETY: boxed by `new_id`, and given once.
    drop(unsafe { Box::from_raw(id) });
    0
}

/// Tells the other end that this one is gone.
fn end(cm: &mut Cm, id: usize) {
    let Some(state) = cm.ids.get_mut(&id) else {
        return;
    };
    let (peer, stood) = (std::mem::take(&mut state.peer), state.stands);
    state.stands = false;
    if let Some(other) = cm.ids.get_mut(&peer)
        && other.peer == id
    {
        other.peer = 0;
        other.stands = false;
        if stood {
            cm.tell(peer, kind::DISCONNECTED, 0, 0, &[], 0);
        } else {
            cm.tell(peer, kind::REJECTED, 28, 0, &[], 0);
        }
    }
}

fn address(raw: *const libc::sockaddr) -> Option<SocketAddrV4> {
    // SAFETY: an address of the caller's, as long as its family says.
    unsafe {
        if raw.is_null() || c_int::from((*raw).sa_family) != libc::AF_INET {
            return None;
        }
        let raw = raw.cast::<libc::sockaddr_in>().read_unaligned();
        let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
        Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)))
    }
}

fn write(to: &mut libc::sockaddr_storage, address: SocketAddrV4) {
    let raw = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address.ip().octets()),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: the storage is larger, and aligned for every address.
    unsafe { ptr::from_mut(to).cast::<libc::sockaddr_in>().write(raw) };
}

/// Which device has an address.
fn device_of(ip: Ipv4Addr) -> Option<usize> {
    match ip.octets() {
        [10, 99, 0, last @ 1..=2] => Some(usize::from(last) - 1),
        _ => None,
    }
}

fn ip_of(device: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, device as u8 + 1)
}

/// Puts an identifier on a device.
fn place(id: *mut Id, device: usize) {
    // SAFETY: a live identifier.
    unsafe {
        (*id).verbs = &raw const CONTEXTS.0[device];
        (*id).port_num = 1;
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut Id, to: *mut libc::sockaddr) -> c_int {
    plan!("rdma_bind_addr");
    let Some(mut to) = address(to) else {
        return failed(libc::EAFNOSUPPORT);
    };
    let mut cm = CM.lock();
    let any = to.ip().is_unspecified();
    match device_of(*to.ip()) {
        Some(device) => place(id, device),
        None if any => {}
        None => return failed(libc::ENODEV),
    }
    if to.port() == 0 {
        cm.port += 1;
        to.set_port(cm.port);
    }
    let taken = |other: &SocketAddrV4| {
        other.port() == to.port() && (any || other.ip() == to.ip() || other.ip().is_unspecified())
    };
    if cm
        .ids
        .values()
        .filter_map(|id| id.bound.as_ref())
        .any(taken)
    {
        return failed(libc::EADDRINUSE);
    }
    match cm.ids.get_mut(&(id as usize)) {
        Some(state) => state.bound = Some(to),
        None => return failed(libc::EINVAL),
    }
    // SAFETY: a live identifier.
    write(unsafe { &mut (*id).src_addr }, to);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut Id, _backlog: c_int) -> c_int {
    plan!("rdma_listen");
    match CM.lock().ids.get_mut(&(id as usize)) {
        Some(state) if state.bound.is_some() => {
            state.listens = true;
            0
        }
        _ => failed(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut Id,
    _from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    limit: c_int,
) -> c_int {
    plan!("rdma_resolve_addr");
    let Some(to) = address(to) else {
        return failed(libc::EAFNOSUPPORT);
    };
    if limit <= 0 {
        return failed(libc::EINVAL);
    }
    let mut cm = CM.lock();
    let Some(far) = device_of(*to.ip()) else {
        cm.tell(id as usize, kind::ADDR_ERROR, -libc::ETIMEDOUT, 0, &[], 0);
        return 0;
    };
    let near = 1 - far;
    place(id, near);
    cm.port += 1;
    let from = SocketAddrV4::new(ip_of(near), cm.port);
    let Some(state) = cm.ids.get_mut(&(id as usize)) else {
        return failed(libc::EINVAL);
    };
    (state.bound, state.target) = (Some(from), Some(to));
    // SAFETY: a live identifier.
    unsafe {
        write(&mut (*id).src_addr, from);
        write(&mut (*id).dst_addr, to);
    }
    cm.tell(id as usize, kind::ADDR_RESOLVED, 0, 0, &[], 0);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut Id, limit: c_int) -> c_int {
    plan!("rdma_resolve_route");
    let mut cm = CM.lock();
    match cm.ids.get(&(id as usize)) {
        Some(state) if state.target.is_some() && limit > 0 => {}
        _ => return failed(libc::EINVAL),
    }
    cm.tell(id as usize, kind::ROUTE_RESOLVED, 0, 0, &[], 0);
    0
}

/// What the caller says, with its bytes.
///
/// # Safety
/// A struct of the caller's, whose bytes are readable.
unsafe fn said(param: *const ConnParam) -> (u32, Vec<u8>) {
    // SAFETY: the caller says so.
    unsafe {
        let param = &*param;
        let length = usize::from(param.private_data_len);
        let data = match length {
            0 => Vec::new(),
            _ => slice::from_raw_parts(param.private_data, length).to_vec(),
        };
        (param.qp_num, data)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_connect(id: *mut Id, param: *mut ConnParam) -> c_int {
    plan!("rdma_connect");
    // SAFETY: the caller's.
    let (queue_pair, mut data) = unsafe { said(param) };
    let mut cm = CM.lock();
    let at = id as usize;
    let state = cm.ids.get(&at);
    let Some((from, to)) = state.and_then(|state| Some((state.bound?, state.target?))) else {
        return failed(libc::EINVAL);
    };
    if data.len() > REQUEST {
        return failed(libc::EINVAL);
    }
    let there = |state: &IdState| {
        state.listens
            && state.bound.is_some_and(|bound| {
                bound.port() == to.port() && (bound.ip() == to.ip() || bound.ip().is_unspecified())
            })
    };
    let found = cm.ids.iter().find(|(_, state)| there(state));
    let Some((listener, channel)) = found.map(|(id, state)| (*id, state.channel)) else {
        cm.tell(at, kind::REJECTED, 8, 0, &[], 0);
        return 0;
    };
    let new = new_id(&mut cm, channel as *mut EventChannel);
    place(new, device_of(*to.ip()).unwrap_or(0));
    // SAFETY: just made.
    unsafe {
        write(&mut (*new).src_addr, to);
        write(&mut (*new).dst_addr, from);
    }
    if let Some(state) = cm.ids.get_mut(&(new as usize)) {
        state.peer = at;
        state.queue_pair = queue_pair;
    }
    if let Some(state) = cm.ids.get_mut(&at) {
        state.peer = new as usize;
    }
    data.resize(REQUEST, 0);
    if let Some(events) = cm.channels.get_mut(&channel) {
        events.push_back(Told {
            id: new as usize,
            listener,
            kind: kind::CONNECT_REQUEST,
            status: 0,
            queue_pair,
            data,
        });
        ring(fd_of(channel));
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_accept(id: *mut Id, param: *mut ConnParam) -> c_int {
    plan!("rdma_accept");
    // SAFETY: the caller's.
    let (queue_pair, data) = unsafe { said(param) };
    let mut cm = CM.lock();
    let at = id as usize;
    let Some(peer) = cm.ids.get(&at).map(|state| state.peer) else {
        return failed(libc::EINVAL);
    };
    if data.len() > ANSWER || !cm.ids.contains_key(&peer) {
        return failed(libc::EINVAL);
    }
    for (one, queue_pair) in [(at, None), (peer, Some(queue_pair))] {
        if let Some(state) = cm.ids.get_mut(&one) {
            state.stands = true;
            state.queue_pair = queue_pair.unwrap_or(state.queue_pair);
        }
    }
    cm.tell(peer, kind::CONNECT_RESPONSE, 0, queue_pair, &data, ANSWER);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject(id: *mut Id, why: *const u8, length: u8) -> c_int {
    plan!("rdma_reject");
    let mut cm = CM.lock();
    let Some(state) = cm.ids.get_mut(&(id as usize)) else {
        return failed(libc::EINVAL);
    };
    let peer = std::mem::take(&mut state.peer);
    let data = match length {
        0 => &[][..],
        // SAFETY: the caller's.
        length => unsafe { slice::from_raw_parts(why, usize::from(length)) },
    };
    if let Some(other) = cm.ids.get_mut(&peer) {
        other.peer = 0;
    }
    cm.tell(peer, kind::REJECTED, 28, 0, data, REJECTION);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut Id) -> c_int {
    plan!("rdma_establish");
    let mut cm = CM.lock();
    let Some(state) = cm.ids.get(&(id as usize)) else {
        return failed(libc::EINVAL);
    };
    if !state.stands {
        return failed(libc::EINVAL);
    }
    let peer = state.peer;
    cm.tell(peer, kind::ESTABLISHED, 0, 0, &[], 0);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut Id) -> c_int {
    plan!("rdma_disconnect");
    let mut cm = CM.lock();
    let at = id as usize;
    if !cm.ids.get(&at).is_some_and(|state| state.stands) {
        return failed(libc::EINVAL);
    }
    end(&mut cm, at);
    cm.tell(at, kind::DISCONNECTED, 0, 0, &[], 0);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(id: *mut Id, to: *mut EventChannel) -> c_int {
    plan!("rdma_migrate_id");
    let mut cm = CM.lock();
    let (at, to_at) = (id as usize, to as usize);
    let Some(state) = cm.ids.get_mut(&at) else {
        return failed(libc::EINVAL);
    };
    if state.unacked > 0 {
        JOURNAL.misuse("rdma_migrate_id with events that were not acknowledged".to_owned());
    }
    let from = std::mem::replace(&mut state.channel, to_at);
    // SAFETY: a live identifier.
    unsafe { (*id).channel = to };
    let events = cm.channels.get_mut(&from).map(std::mem::take);
    let (moved, kept): (VecDeque<Told>, VecDeque<Told>) = events
        .into_iter()
        .flatten()
        .partition(|told| told.id == at && told.listener == 0);
    for _ in 0..moved.len() {
        take(fd_of(from));
        ring(fd_of(to_at));
    }
    if let Some(events) = cm.channels.get_mut(&from) {
        *events = kept;
    }
    if let Some(events) = cm.channels.get_mut(&to_at) {
        events.extend(moved);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut EventChannel,
    to: *mut *mut Event,
) -> c_int {
    plan!("rdma_get_cm_event");
    if !take(fd_of(channel as usize)) {
        return -1;
    }
    let mut cm = CM.lock();
    let told = cm
        .channels
        .get_mut(&(channel as usize))
        .and_then(VecDeque::pop_front);
    let Some(told) = told else {
        return failed(libc::EAGAIN);
    };
    if let Some(state) = cm.ids.get_mut(&told.id) {
        state.unacked += 1;
    }
    let data = told.data.into_boxed_slice();
    let private_data_len = data.len() as u8;
    let event = Box::new(Event {
        id: told.id as *mut Id,
        listen_id: told.listener as *mut Id,
        event: told.kind,
        status: told.status,
        conn: ConnParam {
            // Freed when it is acknowledged.
            private_data: Box::into_raw(data).cast::<u8>(),
            private_data_len,
            _numbers: [0; 6],
            _srq: 0,
            qp_num: told.queue_pair,
        },
        _ud: [0; 4],
    });
    // SAFETY: given for it.
    unsafe { *to = Box::into_raw(event) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut Event) -> c_int {
    struck("rdma_ack_cm_event");
    // SAFETY: boxed above, and given once.
    let event = unsafe { Box::from_raw(event) };
    let data = event.conn.private_data.cast_mut();
    let data = ptr::slice_from_raw_parts_mut(data, usize::from(event.conn.private_data_len));
    // SAFETY: boxed above, of this length.
    drop(unsafe { Box::from_raw(data) });
    if let Some(state) = CM.lock().ids.get_mut(&(event.id as usize)) {
        state.unacked = state.unacked.saturating_sub(1);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut Id,
    attr: *mut QpAttr,
    mask: *mut c_int,
) -> c_int {
    plan!("rdma_init_qp_attr");
    let peer = match CM.lock().ids.get(&(id as usize)) {
        Some(state) => state.queue_pair,
        None => return failed(libc::EINVAL),
    };
    // SAFETY: given for it.
    let (attr, mask) = unsafe { (&mut *attr, &mut *mask) };
    *mask = match attr.qp_state {
        INIT => {
            attr.pkey_index = 0;
            attr.port_num = 1;
            attr.qp_access_flags = 1;
            crate::queue::TO_INIT
        }
        RTR if peer != 0 => {
            // SAFETY: a live identifier, whose address was written by this library, or is none.
            let far = unsafe { address((&raw const (*id).dst_addr).cast()) };
            let Some(far) = far.and_then(|far| device_of(*far.ip())) else {
                return failed(libc::EINVAL);
            };
            attr.path = Path {
                dgid: words(far),
                hop_limit: 1,
                is_global: 1,
                port_num: 1,
                ..Path::default()
            };
            attr.path_mtu = 5;
            attr.dest_qp_num = peer;
            attr.max_dest_rd_atomic = 0;
            crate::queue::TO_RTR
        }
        RTS if peer != 0 => {
            attr.retry_cnt = 7;
            attr.rnr_retry = 7;
            attr.max_rd_atomic = 0;
            crate::queue::TO_RTS
        }
        _ => return failed(libc::EINVAL),
    };
    0
}
