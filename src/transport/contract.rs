//! What a transport is: the traits that every path implements and the worker drives.
//!
//! ```text
//! Transport ── open() ──▶ Interface (data path, one for each worker, behind the worker's lock)
//!     │                   Connector (control path, async, no lock)
//!     │                        │ connect(channel, role, peer)      both ends run it at once
//!     │                        ▼
//!     │                   Connected ── Interface::attach(id, connected) ──▶ Link (sends)
//!     ▼
//!   probe(): attributes, or the reason why it cannot be used here
//! ```
//!
//! # Duties
//! * Nothing on the data path blocks, allocates for a short message, or calls a waker.
//! * [`Interface::arm`] follows *arm, then drain, then await*: after it returned `true`, an arrival makes the interface's fd readable.
//! * A send that returns [`SendError::Full`] took nothing. The link owes the worker one [`Sink::writable`] once there is room again.
//! * After [`SendError::Failed`] or [`Sink::failed`] a link is only dropped. Dropping it ends all use of memory that it was lent.

use std::{
    any::Any,
    fmt,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use async_trait::async_trait;

use crate::{
    error::{Error, ErrorKind, Result},
    transport::{
        DeviceInfo, Hold,
        channel::Channel,
        channel::Origin,
        one_sided::{DeviceRegistrar, DeviceWays, OneSided},
        shared_memory::SharedMemory,
        tls::Certificates,
    },
    types::{Identity, LinkId},
};

pub use super::{
    path::{Reach, Role},
    send::{SendError, Zcopy},
    wanted::{InPlace, Taken, Wanted},
};

/// A transport: a way to move bytes. Lives as long as the context.
pub trait Transport: Send + Sync + fmt::Debug + 'static {
    /// The name used in configuration (`shm`, `tcp`, ...).
    fn name(&self) -> &'static str;
    /// What it is between.
    fn reach(&self) -> Reach;
    /// Whether it can work on this machine.
    ///
    /// # Errors
    /// The reason why not, with the remedy where there is one.
    fn probe(&self) -> Result<()>;
    /// Opens it for one worker.
    ///
    /// # Errors
    /// What the system said.
    fn open(&self) -> Result<Opened>;
    /// What it has on this machine, used or not: its devices, with their place. May block.
    ///
    /// # Errors
    /// What the system or a library said.
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(Vec::new())
    }
    /// What else there is to say of it, in one line, such as what it could have and has not. May load libraries.
    fn note(&self) -> Option<String> {
        None
    }
    /// Whether [`Transport::remote_memory`] may have something.
    fn is_one_sided(&self) -> bool {
        false
    }
    /// Registers memory for one-sided operations over this transport; `None` where it has none, or no device can be opened. May block.
    fn remote_memory(&self) -> Option<Arc<dyn DeviceRegistrar>> {
        None
    }
}

/// The two faces of an opened transport.
#[derive(Debug)]
pub struct Opened {
    /// The data path.
    pub interface: Box<dyn Interface>,
    /// The control path.
    pub connector: Arc<dyn Connector>,
}

/// What is known of the peer when a link is set up.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Where it lives.
    pub identity: Identity,
    /// How to name it in errors.
    pub name: String,
    /// What it has shown over TLS.
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    pub(crate) certificates: Option<Certificates>,
    /// Where both ends are.
    pub(crate) origin: Origin,
}

/// A link that both ends agreed on and that [`Interface::attach`] of the same transport takes.
#[derive(Debug)]
pub struct Connected(pub Box<dyn Any + Send>);

impl Connected {
    /// What `transport` has put there.
    /// Errors: `InvalidArgument`: it is another transport's.
    pub(crate) fn of<T: 'static>(self, transport: &'static str) -> Result<Box<T>> {
        self.0.downcast().map_err(|_| {
            let text = format!("a link of another transport was attached to {transport}");
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }
}

/// The control path: sets links up. Slow, asynchronous, outside the worker's lock.
#[async_trait]
pub trait Connector: Send + Sync + fmt::Debug + 'static {
    /// Whether the channel can carry this set-up (shared memory needs one that passes fds).
    fn can_use(&self, channel: &Channel, peer: &PeerInfo) -> Result<()>;
    /// Whether anything could come of the channel, as far as that is known before its peer has said who it is. Asked of a transport that stays on one
    /// host for each peer that comes to its Unix socket: whom all of them refuse is sent away at once. By default yes.
    ///
    /// # Errors
    /// Why not.
    fn admits(&self, channel: &Channel) -> Result<()> {
        let _ = channel;
        Ok(())
    }
    /// Sets a link up over `channel`. Both ends call it, and both fail or both succeed: each tells the other its verdict
    /// before it returns. An end that could not hear what the other would object to finds its link at its end instead. The caller sets the deadline. May take the channel's socket for the link ([`Channel::take_tcp`], [`Channel::take_unix`]).
    ///
    /// # Cancel safety
    /// Dropping it drops the half-made link.
    async fn connect(
        &self,
        channel: &mut Channel,
        role: Role,
        peer: &PeerInfo,
    ) -> Result<Connected>;
}

/// What a link can do; fixed when it is attached. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct LinkAttributes {
    /// Name of the transport.
    pub transport: &'static str,
    /// Longest body of [`Link::am_short`]. At least 48: so long are messages of the protocol itself.
    pub max_short: usize,
    /// Longest prefix and payload together of [`Link::am_bcopy`]. At least 8192.
    pub max_bcopy: usize,
    /// Longest payload of [`Link::am_zcopy`]; 0 when it has none.
    pub max_zcopy: usize,
}

/// Bytes of a fragment of most links: 10 Gb/s take 210 µs for it.
pub const FRAGMENT: usize = 256 << 10;

/// Longest prefix of [`Link::am_zcopy`], in bytes.
pub const MAX_PREFIX: usize = 64;

/// The sending half. Called with the worker's lock held.
///
/// Messages of one link arrive in the order in which they were accepted.
pub trait Link: Send + fmt::Debug {
    /// What it can do.
    fn attributes(&self) -> LinkAttributes;

    /// Sends a message whose body is at most [`LinkAttributes::max_short`] bytes, copied before the call returns.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Failed`].
    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError>;

    /// Whether [`Link::am_bcopy`] would give a message to the system from where it lies now, and copy no more than what that has no room for.
    fn sends_in_place(&self) -> bool {
        false
    }

    /// The protocol cuts long payloads of [`Link::am_zcopy`] into fragments of so many bytes, between which short messages have their turn: of as
    /// many as take 200 µs or less, say. Fewer than 32 KiB count as that, and blocks of a layout are never longer than [`FRAGMENT`]. Asked before each.
    fn fragment(&self) -> usize {
        FRAGMENT
    }

    /// Sends a message with body `prefix` + `payload`, copied before the call returns.
    ///
    /// # Errors
    /// As [`Link::am_short`].
    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError>;

    /// Sends a message with body `prefix` (copied, at most [`MAX_PREFIX`] bytes) + `payload` (not copied when that pays).
    ///
    /// # Safety
    /// `payload` must stay valid and unchanged until the call returned [`Zcopy::Done`], or [`Sink::sent`] was called with `token`,
    /// or the link was dropped.
    ///
    /// # Errors
    /// As [`Link::am_short`].
    #[allow(unsafe_code)]
    unsafe fn am_zcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: RawSlice,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        let _ = (id, header, prefix, payload, token);
        Err(SendError::Failed(Error::new(
            ErrorKind::Unsupported,
            "zero-copy send",
        )))
    }

    /// Pushes out what was accepted but not yet handed to the system. Called when the interface reported
    /// [`Sink::writable`], and at the end of a batch.
    fn flush(&mut self, sink: &mut dyn Sink);

    /// Whether everything accepted has left this process.
    fn is_flushed(&self) -> bool;

    /// What both ends have in common, so that either copies for both straight from the other's memory; `None` where they have nothing. Both ends answer
    /// alike. Asked once, when the link was attached.
    ///
    /// The peer's memory is then reached in segments that [`Link::share`] has passed, and by the kernel (`cma`) where the link was set up over a Unix
    /// socket and stays on one host ([`Reach::Host`]). Without either nothing is lost: the bytes go as messages.
    fn shared_memory(&self) -> Option<Arc<dyn SharedMemory>> {
        None
    }

    /// One-sided operations over this link; `None` where it has none.
    fn one_sided(&mut self) -> Option<&mut dyn OneSided> {
        None
    }

    /// How its devices do one-sided operations, for people; `None` where the transport has none.
    fn device_ways(&self) -> Option<DeviceWays> {
        None
    }

    /// Gives the peer a memory segment of `length` bytes: it gets a descriptor of its own by [`Sink::shared`]. Not ordered with
    /// messages: a message that names the segment may arrive before it.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Failed`]; `Unsupported` where the link passes no descriptors.
    fn share(&mut self, segment_id: u64, fd: BorrowedFd<'_>, length: u64) -> Result<(), SendError> {
        let _ = (segment_id, fd, length);
        Err(SendError::Failed(Error::new(
            ErrorKind::Unsupported,
            "sharing memory over this link",
        )))
    }
}

/// An address range without ownership.
#[derive(Clone, Copy, Debug)]
pub struct RawSlice {
    /// First byte.
    pub address: *const u8,
    /// Bytes.
    pub length: usize,
}

#[allow(unsafe_code)]
// SAFETY: a plain address; whoever dereferences it vouches for it.
unsafe impl Send for RawSlice {}

/// Where the payload of a long message goes.
#[derive(Debug)]
pub enum Place {
    /// Straight to this address; [`Sink::placed`] follows when all of it is there.
    Memory {
        /// First byte; valid for the whole payload until [`Sink::placed`] or [`Sink::failed`] was called, or the link was dropped.
        address: *mut u8,
        /// Given back to [`Sink::placed`].
        token: u64,
    },
    /// Buffer it and deliver it as one [`Sink::message`].
    Whole,
    /// Read it and throw it away; nothing follows.
    Discard,
}

/// Where an interface reports what arrived. Implemented by the worker; called with its lock held.
pub trait Sink {
    /// A message. `body` is valid during the call. Nothing here is trusted.
    ///
    /// # Errors
    /// The peer broke the protocol: the interface closes the link and reports nothing more of it.
    fn message(&mut self, from: LinkId, id: u8, header: u64, body: &[u8]) -> Result<()>;

    /// As [`Sink::message`], of a message that may stay where it lies: while the sink has what `hold` gives it for `body`. The interface looks
    /// whether it has.
    ///
    /// # Errors
    /// As [`Sink::message`].
    fn message_in_place(
        &mut self,
        from: LinkId,
        id: u8,
        header: u64,
        body: &[u8],
        hold: &Arc<Hold>,
    ) -> Result<()> {
        let _ = hold;
        self.message(from, id, header, body)
    }

    /// The beginning of a message whose payload is long and has not been read yet: `prefix` as sent, `length` bytes to come.
    ///
    /// # Errors
    /// As [`Sink::message`].
    fn place(
        &mut self,
        from: LinkId,
        id: u8,
        header: u64,
        prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        let _ = (from, id, header, prefix, length);
        Ok(Place::Whole)
    }

    /// A payload that [`Sink::place`] gave memory for is complete.
    fn placed(&mut self, from: LinkId, token: u64);

    /// A pending zero-copy send is complete; its memory is free.
    fn sent(&mut self, from: LinkId, token: u64);

    /// A pending one-sided operation was not done: the peer's device refused it (`StaleKey`, `AccessDenied`), or its rail failed with it. Its
    /// local memory is free; of a put any part may have arrived. The link goes on, unless messages went over that rail too: then
    /// [`Sink::failed`] follows. What else was under way on the rail is refused with it (`ConnectionReset`), and nobody knows whether an atomic
    /// among that was done. The rail is not made anew.
    fn refused(&mut self, from: LinkId, token: u64, error: Error) {
        let _ = error;
        self.sent(from, token);
    }

    /// What a short get or an atomic brought. `data` is valid during the call.
    fn fetched(&mut self, from: LinkId, token: u64, data: &[u8]) {
        let _ = (from, token, data);
    }

    /// A link that had said [`SendError::Full`] has room again: the worker calls [`Link::flush`] and retries.
    fn writable(&mut self, from: LinkId);

    /// The peer shares a memory segment. Nothing of it is checked yet, neither what `fd` is, nor its seals, nor its size.
    fn shared(&mut self, from: LinkId, segment_id: u64, fd: OwnedFd, length: u64) {
        let _ = (from, segment_id, fd, length);
    }

    /// The link broke; nothing more follows from it.
    fn failed(&mut self, from: LinkId, error: Error);
}

/// The receiving half of a worker's links over one transport. Called with the worker's lock held.
pub trait Interface: Send + fmt::Debug {
    /// Takes a link that the transport's [`Connector`] made.
    ///
    /// # Errors
    /// What the system said.
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>>;

    /// Forgets a link; nothing is reported of it any more. The worker drops the [`Link`] right after. A message of it that is [`HeldBytes`](super::HeldBytes) stays.
    fn detach(&mut self, id: LinkId);

    /// Registers its fds. `fd` events come back through [`Interface::ready`].
    /// Edge-triggered; the token space is the interface's own.
    ///
    /// # Errors
    /// What the system said.
    fn register(&mut self, registry: Registry) -> Result<()>;

    /// An fd registered under `token` became ready. Notes it only; [`Interface::progress`] does the work.
    fn ready(&mut self, token: usize, readable: bool, writable: bool) {
        let _ = (token, readable, writable);
    }

    /// Takes what has arrived, at most about `budget` messages, reporting to `sink`. Returns how many things happened.
    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize;

    /// Takes one message, if one is there, of the link that brought the last one, and looks at nothing else. `true`: it did. For who waits for
    /// messages in a row: now and then it is `false` all the same, so that [`Interface::progress`], which follows then, has its turn.
    fn glance(&mut self, sink: &mut dyn Sink) -> bool {
        let _ = sink;
        false
    }

    /// Takes one message as [`Interface::glance`] does, if it is the one that is wanted, straight to where it is wanted, and tells no sink of it. For
    /// who waits for one message and knows what it looks like.
    ///
    /// # Safety
    /// `wanted.room` bytes at `wanted.address` may be written, and nobody else reaches them meanwhile.
    #[allow(unsafe_code)]
    unsafe fn take(&mut self, wanted: &mut Wanted) -> Taken {
        let _ = wanted;
        Taken::Nothing
    }

    /// As [`Interface::take`], of a message of this id, with this header in the bits of `mask`, that stays where it lies until it was looked at. `None`
    /// as well while an earlier one of that link stays. `looks`: of [`Wanted`].
    ///
    /// # Safety
    /// The [`HeldBytes`](super::HeldBytes) is dropped before the interface.
    #[allow(unsafe_code)]
    unsafe fn take_in_place(
        &mut self,
        id: u8,
        header: u64,
        mask: u64,
        looks: u32,
    ) -> Option<InPlace> {
        let _ = (id, header, mask, looks);
        None
    }

    /// Asks to be woken through the fds by the next arrival. `false`: something has arrived already, drain and ask again.
    fn arm(&mut self) -> bool;

    /// Takes back [`Interface::arm`]: this side polls again.
    fn disarm(&mut self);

    /// Whether a message is [`HeldBytes`](super::HeldBytes). Nothing tells of the end, which may be what a peer without room waits for: who sleeps looks again before long.
    fn is_held(&self) -> bool {
        false
    }

    /// Whether a pass that finds nothing makes a system call all the same.
    fn looks_cost(&self) -> bool {
        false
    }

    /// The doorbell was rung: the next pass looks everywhere.
    fn rung(&mut self) {}

    /// The doorbells that shared-memory peers ring, when it has some, as one epoll: the worker waits on it directly.
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// An interface's share of the worker's `mio::Poll`.
#[derive(Debug)]
pub struct Registry {
    /// The poll's registry.
    pub(crate) registry: mio::Registry,
    /// High bits of every token of this interface.
    pub(crate) base: usize,
}

impl Registry {
    /// Bits of a token that belong to the interface.
    pub const TOKEN_BITS: u32 = 40;

    /// For those who drive an interface or an engine by hand: it registers with the poll of this registry, under `base | token`.
    #[must_use]
    pub fn new(registry: mio::Registry, base: usize) -> Self {
        Self { registry, base }
    }

    /// Registers `source` for edge-triggered events under `token` (at most 40 bits).
    ///
    /// # Errors
    /// What the system said.
    pub fn register(
        &self,
        source: &mut impl mio::event::Source,
        token: usize,
        interest: mio::Interest,
    ) -> Result<()> {
        self.registry
            .register(source, mio::Token(self.base | token), interest)
            .map_err(|error| Error::io("registering with the worker's poll", error))
    }

    /// Takes `source` out again.
    pub fn deregister(&self, source: &mut impl mio::event::Source) {
        // A source that is already gone needs no taking out.
        let _ = self.registry.deregister(source);
    }
}
