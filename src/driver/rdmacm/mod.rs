//! Connections between RDMA devices by IP address: `librdmacm.so.1`, found at run time.
//!
//! Comes in: the path of a library, or none; queue pairs that `verbs` made. Goes out: [`RdmaCm`], from it [`EventChannel`]s, and from these
//! [`Id`]s, which are listeners or ends of connections. Every step ends with an event ([`EventChannel::next`]). Uses `library` and `verbs`.
//! Tests: `tests/verbs/`.
//!
//! ```text
//! asks:    resolve_address → AddressResolved → resolve_route → RouteResolved → connect ─┐
//!          ConnectResponse (queue pair to RTR and RTS) → establish                      │
//! listens: bind, listen → ConnectRequest with a new Id (queue pair to RTR and RTS) → accept → Established
//! ```
//!
//! An identifier's queue pair is made on wharf's own context of [`Id::device`]; each of its changes takes [`Id::prepare`].
//!
//! # What may block
//! No step waits for the other side. Dropping an [`Id`], and [`Id::migrate`], wait for its events being acknowledged, which
//! [`EventChannel::next`] does at once.
//!
//! # Safety
//! As of `verbs`. An event is copied and acknowledged in the call that takes it, so nothing points into one.
#![allow(unsafe_code)]

mod event;
mod sys;

use std::{
    ffi::{c_int, c_void},
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::Path,
    ptr::{self, NonNull},
    sync::Arc,
};

use parking_lot::Mutex;

pub(crate) use event::{Event, EventKind, Request};

use super::{
    library::Search,
    verbs::{
        self, QueuePair, State, Verbs, failure,
        sys::{RawContext, RawQpAttr},
    },
};
use crate::error::{Error, ErrorKind, Result};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBRDMACM";

const NAMES: &[&str] = &["librdmacm.so.1"];

/// Bytes that go with a request to connect.
pub(crate) const REQUEST_BYTES: usize = 56;
/// Bytes that go with an answer.
pub(crate) const ANSWER_BYTES: usize = 196;

/// `RDMA_PS_TCP`: reliable connections.
const PORT_SPACE: u32 = 0x0106;

/// What errors name instead of a device, before there is one.
const NO_DEVICE: &str = "rdma_cm";

/// The library of this process.
pub(crate) struct RdmaCm {
    api: sys::Symbols,
    name: String,
    verbs: &'static Verbs,
}

/// Every library that was loaded, one for each file. Never shrinks; grows with the number of different files.
static LOADED: Mutex<Vec<&'static RdmaCm>> = Mutex::new(Vec::new());

impl RdmaCm {
    /// The library at `path`, else the one that `WHARF_LIBRDMACM` names, else `librdmacm.so.1`. `verbs` must be the library that it uses
    /// itself: the one found without a path. May take milliseconds.
    ///
    /// # Errors
    /// `Unsupported`: no such library, with what was tried and the loader's words; one without a required function.
    pub(crate) fn load(path: Option<&Path>, verbs: &'static Verbs) -> Result<&'static Self> {
        let search = Search {
            what: "librdmacm",
            given: path,
            variable: VARIABLE,
            names: NAMES,
        };
        let library = search.open()?;
        let find = |name: &'static str, _since: u32| library.find(name);
        // SAFETY: the names are exact.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| verbs::lacking(&library, "librdmacm", &missing))?;
        // Found in what it depends on. Devices of one library mean nothing to another.
        let theirs = library.find(verbs::ANCHOR).map(|at| at.addr().get());
        if theirs.is_some_and(|theirs| theirs != verbs.anchor()) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} uses another libibverbs than {}, which {} names",
                    library.name(),
                    verbs.library(),
                    verbs::VARIABLE
                ),
            ));
        }
        let mut loaded = LOADED.lock();
        let same = |cm: &&Self| {
            ptr::eq(cm.verbs, verbs) && ptr::fn_addr_eq(cm.api.rdma_create_id, api.rdma_create_id)
        };
        if let Some(cm) = loaded.iter().copied().find(same) {
            return Ok(cm);
        }
        tracing::debug!(target: "wharf::verbs", "loaded {}", library.name());
        let name = library.name().to_owned();
        let cm: &'static Self = Box::leak(Box::new(Self { api, name, verbs }));
        loaded.push(cm);
        Ok(cm)
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        &self.name
    }

    /// A new channel for events. Its descriptor does not block.
    ///
    /// # Errors
    /// `Unsupported`: the kernel has no such connections, or there is no device.
    pub(crate) fn event_channel(&'static self) -> Result<EventChannel> {
        // SAFETY: takes nothing.
        let raw = unsafe { (self.api.rdma_create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            return Err(match failure::last() {
                libc::ENODEV | libc::ENOENT | libc::ENOSYS => Error::new(
                    ErrorKind::Unsupported,
                    "there is no RDMA device to connect by, or the kernel has no rdma_ucm (modprobe rdma_ucm)",
                ),
                errno => failure::failed("rdma_create_event_channel", NO_DEVICE, errno),
            });
        };
        // SAFETY: a field that does not change.
        let fd = unsafe { (&raw const (*raw.as_ptr()).fd).read() };
        let channel = EventChannel(Arc::new(Channel {
            cm: self,
            raw,
            fd,
            process: std::process::id(),
        }));
        verbs::set_nonblocking(fd, NO_DEVICE)?;
        Ok(channel)
    }
}

impl fmt::Debug for RdmaCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RdmaCm").field(&self.library()).finish()
    }
}

/// Where events of identifiers are told.
#[derive(Clone)]
pub(crate) struct EventChannel(Arc<Channel>);

struct Channel {
    cm: &'static RdmaCm,
    raw: NonNull<sys::RawEventChannel>,
    fd: RawFd,
    process: u32,
}

// SAFETY: the library allows every call on a channel from every thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// In a child made by `fork` nothing of it may be touched.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    fn usable(&self) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            "the connection manager was opened before this process was forked",
        ))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: made once; its identifiers, which keep it, are gone.
            unsafe { (self.cm.api.rdma_destroy_event_channel)(self.raw.as_ptr()) };
        }
    }
}

impl EventChannel {
    /// A new identifier, for a listener or to connect.
    ///
    /// # Errors
    /// As of any call.
    pub(crate) fn id(&self) -> Result<Id> {
        self.0.usable()?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        let answer = unsafe {
            (self.0.cm.api.rdma_create_id)(
                self.0.raw.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                PORT_SPACE,
            )
        };
        answered("rdma_create_id", answer)?;
        let Some(raw) = NonNull::new(raw) else {
            return Err(failure::failed("rdma_create_id", NO_DEVICE, libc::EIO));
        };
        Ok(self.adopt(raw))
    }

    fn adopt(&self, raw: NonNull<sys::RawId>) -> Id {
        Id {
            channel: self.clone(),
            raw,
        }
    }
}

impl AsRawFd for EventChannel {
    /// Readable when there is an event. To be taken by [`EventChannel::next`], never read.
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventChannel").field(&self.0.fd).finish()
    }
}

/// What an identifier is named by in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdKey(usize);

/// What is said to the other side when connecting or accepting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connect<'a> {
    /// The queue pair of this side, by number.
    pub(crate) queue_pair: u32,
    /// Up to [`REQUEST_BYTES`] with a request, [`ANSWER_BYTES`] with an answer.
    pub(crate) data: &'a [u8],
    /// Reads and atomics that this side serves at once.
    pub(crate) reads_served: u8,
    /// Reads and atomics that this side starts at once.
    pub(crate) reads_started: u8,
    /// How often a packet without answer is sent again, up to 7.
    pub(crate) retries: u8,
    /// How often a peer without receive is tried again; 7 is for ever.
    pub(crate) not_ready_retries: u8,
    /// Whether its receives are shared.
    pub(crate) shared_receives: bool,
}

impl Connect<'_> {
    fn raw(&self, most: usize) -> Result<sys::RawConnParam> {
        let length = u8::try_from(self.data.len()).ok();
        let Some(private_data_len) = length.filter(|length| usize::from(*length) <= most) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} bytes with a connection; {most} fit", self.data.len()),
            ));
        };
        Ok(sys::RawConnParam {
            private_data: self.data.as_ptr().cast(),
            private_data_len,
            responder_resources: self.reads_served,
            initiator_depth: self.reads_started,
            flow_control: 1,
            retry_count: self.retries,
            rnr_retry_count: self.not_ready_retries,
            srq: u8::from(self.shared_receives),
            qp_num: self.queue_pair,
        })
    }
}

/// A listener, or one end of a connection. Dropping it ends either.
pub(crate) struct Id {
    channel: EventChannel,
    raw: NonNull<sys::RawId>,
}

// SAFETY: the library allows every call on an identifier from every thread.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Drop for Id {
    fn drop(&mut self) {
        if self.channel.0.is_here() {
            // SAFETY: made once, or taken over from one event.
            let answer = unsafe { (self.api().rdma_destroy_id)(self.raw.as_ptr()) };
            if let Err(error) = answered("rdma_destroy_id", answer) {
                tracing::warn!(target: "wharf::verbs", "{error}");
            }
        }
    }
}

impl Id {
    fn api(&self) -> &'static sys::Symbols {
        &self.channel.0.cm.api
    }

    /// What events name it by, as long as it lives.
    pub(crate) fn key(&self) -> IdKey {
        IdKey(self.raw.as_ptr().addr())
    }

    /// Has its events told by another channel from now on, also those that were told and not taken yet.
    ///
    /// # Errors
    /// As of any call; it then still is where it was.
    pub(crate) fn migrate(&mut self, to: &EventChannel) -> Result<()> {
        self.channel.0.usable()?;
        // SAFETY: both live; the identifier keeps the channel that it is told by.
        let answer = unsafe { (self.api().rdma_migrate_id)(self.raw.as_ptr(), to.0.raw.as_ptr()) };
        answered("rdma_migrate_id", answer)?;
        self.channel = to.clone();
        Ok(())
    }

    /// Binds it to an address of this machine; port 0 means any.
    ///
    /// # Errors
    /// `Unreachable`: no device has that address; an I/O error: it is in use.
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<()> {
        self.channel.0.usable()?;
        let mut raw = to_raw(address);
        // SAFETY: reads the address.
        let answer =
            unsafe { (self.api().rdma_bind_addr)(self.raw.as_ptr(), (&raw mut raw).cast()) };
        match answered("rdma_bind_addr", answer) {
            Err(error) if failure::errno_of(&error) == Some(libc::ENODEV) => Err(Error::new(
                ErrorKind::Unreachable,
                format!("no RDMA device has the address {}", address.ip()),
            )),
            other => other,
        }
    }

    /// Listens; requests come as events.
    ///
    /// # Errors
    /// As of any call.
    pub(crate) fn listen(&self, backlog: u16) -> Result<()> {
        self.channel.0.usable()?;
        // SAFETY: takes a number.
        let answer = unsafe { (self.api().rdma_listen)(self.raw.as_ptr(), c_int::from(backlog)) };
        answered("rdma_listen", answer)
    }

    /// Begins to look for the device that leads to `to`, from `from` if given, within so many milliseconds.
    ///
    /// # Errors
    /// As of any call; that there is none is told by event.
    pub(crate) fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        milliseconds: u32,
    ) -> Result<()> {
        self.channel.0.usable()?;
        let mut source = from.map(to_raw);
        let mut target = to_raw(to);
        let source = source
            .as_mut()
            .map_or(ptr::null_mut(), |raw| ptr::from_mut(raw).cast());
        // SAFETY: reads the addresses.
        let answer = unsafe {
            (self.api().rdma_resolve_addr)(
                self.raw.as_ptr(),
                source,
                (&raw mut target).cast(),
                c_int::try_from(milliseconds).unwrap_or(c_int::MAX),
            )
        };
        answered("rdma_resolve_addr", answer)
    }

    /// Begins to look for the way to the address found, within so many milliseconds.
    ///
    /// # Errors
    /// As of any call.
    pub(crate) fn resolve_route(&self, milliseconds: u32) -> Result<()> {
        self.channel.0.usable()?;
        let limit = c_int::try_from(milliseconds).unwrap_or(c_int::MAX);
        // SAFETY: takes a number.
        let answer = unsafe { (self.api().rdma_resolve_route)(self.raw.as_ptr(), limit) };
        answered("rdma_resolve_route", answer)
    }

    /// The name of the device that it was bound to, by now.
    pub(crate) fn device(&self) -> Option<String> {
        // SAFETY: a context that the library keeps open, of a device that it keeps.
        unsafe {
            let context = (&raw const (*self.raw.as_ptr()).verbs).read();
            if context.is_null() {
                return None;
            }
            let device = context.cast::<*mut verbs::sys::RawDevice>().read();
            let verbs = self.channel.0.cm.verbs;
            Some(verbs.name_of(device))
        }
    }

    /// The port of that device; 0: none yet.
    pub(crate) fn device_port(&self) -> u8 {
        // SAFETY: a field of the live identifier.
        unsafe { (&raw const (*self.raw.as_ptr()).port_num).read() }
    }

    /// The address of this side.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: a field of the live identifier, all of it numbers.
        from_raw(unsafe { &(*self.raw.as_ptr()).src_addr })
    }

    /// The address of the other side.
    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        from_raw(unsafe { &(*self.raw.as_ptr()).dst_addr })
    }

    /// Changes a queue pair to `state` (`INIT`, `RTR` or `RTS`) as this connection needs it.
    ///
    /// # Errors
    /// `InvalidArgument`: the connection is not that far.
    pub(crate) fn prepare(&self, queue_pair: &QueuePair, state: State) -> Result<()> {
        self.channel.0.usable()?;
        let mut attributes = RawQpAttr::of(state.0);
        let mut mask: c_int = 0;
        // SAFETY: reads the state, writes the struct and the mask.
        let answer = unsafe {
            (self.api().rdma_init_qp_attr)(self.raw.as_ptr(), &raw mut attributes, &raw mut mask)
        };
        answered("rdma_init_qp_attr", answer)?;
        queue_pair.modify(attributes, mask.cast_unsigned())
    }

    /// Asks the other side, with up to [`REQUEST_BYTES`].
    ///
    /// # Errors
    /// `InvalidArgument`: too many bytes, or the route is not resolved.
    pub(crate) fn connect(&self, connect: &Connect<'_>) -> Result<()> {
        self.channel.0.usable()?;
        let mut raw = connect.raw(REQUEST_BYTES)?;
        // SAFETY: reads the struct and the bytes.
        let answer = unsafe { (self.api().rdma_connect)(self.raw.as_ptr(), &raw mut raw) };
        answered("rdma_connect", answer)
    }

    /// Accepts a request, with up to [`ANSWER_BYTES`]. The queue pair is in `RTS` by then.
    ///
    /// # Errors
    /// `InvalidArgument`: too many bytes, or no request.
    pub(crate) fn accept(&self, connect: &Connect<'_>) -> Result<()> {
        self.channel.0.usable()?;
        let mut raw = connect.raw(ANSWER_BYTES)?;
        // SAFETY: reads the struct and the bytes.
        let answer = unsafe { (self.api().rdma_accept)(self.raw.as_ptr(), &raw mut raw) };
        answered("rdma_accept", answer)
    }

    /// Turns a request down, with up to 148 bytes of why.
    ///
    /// # Errors
    /// `InvalidArgument`: too many bytes, or no request.
    pub(crate) fn reject(&self, why: &[u8]) -> Result<()> {
        /// `IB_CM_REJ_PRIVATE_DATA_SIZE`.
        const MOST: usize = 148;
        self.channel.0.usable()?;
        let length = u8::try_from(why.len()).ok();
        let Some(length) = length.filter(|length| usize::from(*length) <= MOST) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} bytes with a rejection; {MOST} fit", why.len()),
            ));
        };
        // SAFETY: reads the bytes.
        let answer =
            unsafe { (self.api().rdma_reject)(self.raw.as_ptr(), why.as_ptr().cast(), length) };
        answered("rdma_reject", answer)
    }

    /// Tells the other side that its answer has come. The queue pair is in `RTS` by then.
    ///
    /// # Errors
    /// As of any call.
    pub(crate) fn establish(&self) -> Result<()> {
        self.channel.0.usable()?;
        // SAFETY: takes nothing more.
        answered("rdma_establish", unsafe {
            (self.api().rdma_establish)(self.raw.as_ptr())
        })
    }

    /// Ends the connection; both sides are told by event.
    ///
    /// # Errors
    /// `InvalidArgument`: there is none.
    pub(crate) fn disconnect(&self) -> Result<()> {
        self.channel.0.usable()?;
        // SAFETY: takes nothing more.
        answered("rdma_disconnect", unsafe {
            (self.api().rdma_disconnect)(self.raw.as_ptr())
        })
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Id")
            .field("local", &self.local_address())
            .field("peer", &self.peer_address())
            .finish_non_exhaustive()
    }
}

/// For calls of this library: −1 and `errno`.
fn answered(call: &str, answer: c_int) -> Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(failure::failed(call, NO_DEVICE, failure::last())),
        other => failure::check(call, NO_DEVICE, other),
    }
}

/// As the kernel writes an address.
fn to_raw(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all of it are numbers, for which zeros are values.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger, and aligned for every address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
        }
    }
    storage
}

/// An address that the kernel wrote; `None`: none, or of another family.
fn from_raw(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which it is.
            let raw = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in6>().read() };
            Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(raw.sin6_addr.s6_addr),
                u16::from_be(raw.sin6_port),
                raw.sin6_flowinfo,
                raw.sin6_scope_id,
            )))
        }
        _ => None,
    }
}
