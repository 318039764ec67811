//! Identifiers: listeners, and ends of connections.
//!
//! # Safety
//! As of `verbs`. An identifier keeps the channel that it is told by, and is destroyed once.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    fmt,
    net::SocketAddr,
    ptr::{self, NonNull},
};

use super::{
    EventChannel,
    address::{from_raw, to_raw},
    driver::{NO_DEVICE, answered},
    sys,
};
use crate::{
    driver::verbs::{self, QueuePair, State, failure, sys::RawQpAttr},
    error::{Error, ErrorKind, Result},
};

/// Bytes that go with a request to connect.
pub(crate) const REQUEST_BYTES: usize = 56;
/// Bytes that go with an answer.
pub(crate) const ANSWER_BYTES: usize = 196;

/// `RDMA_PS_TCP`: reliable connections.
const PORT_SPACE: u32 = 0x0106;

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

impl EventChannel {
    /// A new identifier, for a listener or to connect.
    /// Errors: as of any call.
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

    pub(super) fn adopt(&self, raw: NonNull<sys::RawId>) -> Id {
        Id {
            channel: self.clone(),
            raw,
        }
    }
}

impl Id {
    fn api(&self) -> &'static sys::Symbols {
        &self.channel.0.cm.api
    }

    /// Has its events told by another channel from now on, also those that were told and not taken yet.
    /// Errors: as of any call; it then still is where it was.
    pub(crate) fn migrate(&mut self, to: &EventChannel) -> Result<()> {
        self.channel.0.usable()?;
        // SAFETY: both live; the identifier keeps the channel that it is told by.
        let answer = unsafe { (self.api().rdma_migrate_id)(self.raw.as_ptr(), to.0.raw.as_ptr()) };
        answered("rdma_migrate_id", answer)?;
        self.channel = to.clone();
        Ok(())
    }

    /// Binds it to an address of this machine; port 0 means any.
    /// Errors: `Unreachable`: no device has that address; an I/O error: it is in use.
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
    /// Errors: as of any call.
    pub(crate) fn listen(&self, backlog: u16) -> Result<()> {
        self.channel.0.usable()?;
        // SAFETY: takes a number.
        let answer = unsafe { (self.api().rdma_listen)(self.raw.as_ptr(), c_int::from(backlog)) };
        answered("rdma_listen", answer)
    }

    /// Begins to look for the device that leads to `to`, from `from` if given, within so many milliseconds.
    /// Errors: as of any call; that there is none is told by event.
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
    /// Errors: as of any call.
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
    /// Errors: `InvalidArgument`: the connection is not that far.
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
    /// Errors: `InvalidArgument`: too many bytes, or the route is not resolved.
    pub(crate) fn connect(&self, connect: &Connect<'_>) -> Result<()> {
        self.channel.0.usable()?;
        let mut raw = connect.raw(REQUEST_BYTES)?;
        // SAFETY: reads the struct and the bytes.
        let answer = unsafe { (self.api().rdma_connect)(self.raw.as_ptr(), &raw mut raw) };
        answered("rdma_connect", answer)
    }

    /// Accepts a request, with up to [`ANSWER_BYTES`]. The queue pair is in `RTS` by then.
    /// Errors: `InvalidArgument`: too many bytes, or no request.
    pub(crate) fn accept(&self, connect: &Connect<'_>) -> Result<()> {
        self.channel.0.usable()?;
        let mut raw = connect.raw(ANSWER_BYTES)?;
        // SAFETY: reads the struct and the bytes.
        let answer = unsafe { (self.api().rdma_accept)(self.raw.as_ptr(), &raw mut raw) };
        answered("rdma_accept", answer)
    }

    /// Turns a request down, with up to 148 bytes of why.
    /// Errors: `InvalidArgument`: too many bytes, or no request.
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
    /// Errors: as of any call.
    pub(crate) fn establish(&self) -> Result<()> {
        self.channel.0.usable()?;
        // SAFETY: takes nothing more.
        answered("rdma_establish", unsafe {
            (self.api().rdma_establish)(self.raw.as_ptr())
        })
    }

    /// Ends the connection; both sides are told by event.
    /// Errors: `InvalidArgument`: there is none.
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
