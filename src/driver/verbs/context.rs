//! An open device: what it can do, its ports, and what it tells of itself.
//!
//! # Safety
//! The functions in the context's tables are copied when it is opened; they stay the library's. See `verbs`.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    fmt,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{EventKind, LinkLayer, Mtu, PortState, Verbs, failure, sys};
use crate::error::{Error, ErrorKind, Result};

/// An open device. Clones are the same; it is closed with the last of them and of all that was made from it.
#[derive(Clone)]
pub(crate) struct Context(Arc<Open>);

pub(super) struct Open {
    pub(super) verbs: &'static Verbs,
    raw: NonNull<sys::RawContext>,
    name: Arc<str>,
    /// The process that opened it.
    process: u32,
    pub(super) poll_cq: sys::PollCq,
    pub(super) req_notify_cq: sys::ReqNotifyCq,
    pub(super) post_send: sys::PostSend,
    pub(super) post_recv: sys::PostRecv,
    pub(super) post_srq_recv: sys::PostSrqRecv,
}

// SAFETY: the library allows every call on a context from every thread.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Drop for Open {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: opened once, and nothing made from it is left.
            let answer = unsafe { (self.verbs.api.ibv_close_device)(self.raw.as_ptr()) };
            self.ended("ibv_close_device", answer);
        }
    }
}

impl Open {
    pub(super) fn raw(&self) -> *mut sys::RawContext {
        self.raw.as_ptr()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is the process that opened it: in a child nothing of it may be touched.
    pub(super) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// That calls may be made.
    /// Errors: `Forked`.
    pub(super) fn usable(&self) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            format!(
                "{} was opened before this process was forked; open it again",
                self.name
            ),
        ))
    }

    /// The error of a call that left its number in `errno`. To be asked at once.
    #[cold]
    pub(super) fn failed(&self, call: &str) -> Error {
        failure::failed(call, &self.name, failure::last())
    }

    pub(super) fn check(&self, call: &str, answer: c_int) -> Result<()> {
        failure::check(call, &self.name, answer)
    }

    /// Says in the log that something could not be destroyed. It goes with the process.
    pub(super) fn ended(&self, call: &str, answer: c_int) {
        if let Err(error) = self.check(call, answer) {
            tracing::warn!(target: "wharf::verbs", "{error}");
        }
    }

    /// A function of the extended table; `None` where the library or the provider has none.
    ///
    /// # Safety
    /// `F` is the function's type.
    pub(super) unsafe fn extended<F: Copy>(&self, distance: usize) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        // SAFETY: a field of the live context. All ones tell that the table stands before it, with its size right before.
        unsafe {
            if (&raw const (*self.raw()).abi_compat).read() != usize::MAX {
                return None;
            }
            let size = self
                .raw()
                .byte_sub(sys::before::SIZE)
                .cast::<usize>()
                .read();
            if size < size_of::<sys::RawContext>() + distance {
                return None;
            }
            let word = self.raw().byte_sub(distance).cast::<usize>();
            if word.read() == 0 {
                return None;
            }
            // The caller vouches for the type; the table holds a function here.
            Some(word.cast::<F>().read())
        }
    }
}

impl Context {
    /// Takes over an open context.
    /// Errors: `Unsupported`: the provider lacks a call that is needed.
    ///
    /// # Safety
    /// `raw` was opened by this library and belongs to nobody else.
    pub(super) unsafe fn own(
        verbs: &'static Verbs,
        raw: *mut sys::RawContext,
        name: Arc<str>,
    ) -> Result<Self> {
        // SAFETY: just opened; the tables are filled by then.
        let ops = unsafe { (&raw const (*raw).ops).read() };
        let (
            Some(raw),
            Some(poll_cq),
            Some(req_notify_cq),
            Some(post_send),
            Some(post_recv),
            Some(post_srq_recv),
        ) = (
            NonNull::new(raw),
            ops.poll_cq,
            ops.req_notify_cq,
            ops.post_send,
            ops.post_recv,
            ops.post_srq_recv,
        )
        else {
            // SAFETY: nobody has it.
            unsafe { (verbs.api.ibv_close_device)(raw) };
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{name} lacks calls to post, poll or arm"),
            ));
        };
        let context = Self(Arc::new(Open {
            verbs,
            raw,
            name,
            process: std::process::id(),
            poll_cq,
            req_notify_cq,
            post_send,
            post_recv,
            post_srq_recv,
        }));
        set_nonblocking(context.as_raw_fd(), context.name())?;
        Ok(context)
    }

    pub(super) fn open(&self) -> &Arc<Open> {
        &self.0
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// What the device can do.
    /// Errors: as of any call: `DeviceLost`, `Forked`, `Io`.
    pub(crate) fn attributes(&self) -> Result<DeviceAttributes> {
        let open = &*self.0;
        open.usable()?;
        let mut raw = MaybeUninit::<sys::RawDeviceAttrEx>::zeroed();
        // SAFETY: the function's type is that of the header.
        let extended = unsafe { open.extended::<sys::QueryDeviceEx>(sys::before::QUERY_DEVICE_EX) };
        let answer = extended.map(|call| {
            // SAFETY: writes no more than the size given.
            unsafe {
                call(
                    open.raw(),
                    ptr::null(),
                    raw.as_mut_ptr(),
                    size_of::<sys::RawDeviceAttrEx>(),
                )
            }
        });
        if answer != Some(0) {
            raw = MaybeUninit::zeroed();
            // SAFETY: writes the first part of the struct.
            let answer =
                unsafe { (open.verbs.api.ibv_query_device)(open.raw(), raw.as_mut_ptr().cast()) };
            open.check("ibv_query_device", answer)?;
        }
        // SAFETY: all of it are numbers, for which zeros are values.
        Ok(DeviceAttributes::of(&unsafe { raw.assume_init() }))
    }

    /// The state of a port; the first is 1.
    /// Errors: `InvalidArgument`: there is no such port; else as of any call.
    pub(crate) fn port(&self, port: u8) -> Result<PortAttributes> {
        let open = &*self.0;
        open.usable()?;
        let mut raw = sys::RawPortAttr::default();
        // SAFETY: the function's type is that of the header.
        let extended = unsafe { open.extended::<sys::QueryPort>(sys::before::QUERY_PORT) };
        let answer = match extended {
            // SAFETY: writes no more than the size given.
            Some(call) => unsafe {
                call(
                    open.raw(),
                    port,
                    &raw mut raw,
                    size_of::<sys::RawPortAttr>(),
                )
            },
            // SAFETY: writes an older, shorter struct.
            None => unsafe { (open.verbs.api.ibv_query_port)(open.raw(), port, &raw mut raw) },
        };
        open.check("ibv_query_port", answer)?;
        Ok(PortAttributes::of(&raw))
    }

    /// The next thing that the device tells, or `None` when there is none now; the descriptor is then readable again when there is.
    /// Never waits.
    /// Errors: `DeviceLost`: nothing more will come.
    pub(crate) fn next_event(&self) -> Result<Option<AsyncEvent>> {
        let open = &*self.0;
        let mut raw = sys::RawAsyncEvent::default();
        // SAFETY: writes the event.
        let answer = unsafe { (open.verbs.api.ibv_get_async_event)(open.raw(), &raw mut raw) };
        if answer != 0 {
            return match failure::last() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(failure::failed("ibv_get_async_event", open.name(), errno)),
            };
        }
        let kind = EventKind(raw.event_type);
        // SAFETY: the kind tells which object it is, and an object stays until its events are acknowledged.
        let subject = unsafe {
            match kind {
                EventKind::CQ_ERR => {
                    let cq = raw.element as *const sys::RawCq;
                    Subject::CompletionQueue((&raw const (*cq).cq_context).read() as u64)
                }
                EventKind::QP_FATAL
                | EventKind::QP_REQ_ERR
                | EventKind::QP_ACCESS_ERR
                | EventKind::COMM_EST
                | EventKind::SQ_DRAINED
                | EventKind::PATH_MIG
                | EventKind::PATH_MIG_ERR
                | EventKind::QP_LAST_WQE_REACHED => {
                    let qp = raw.element as *const sys::RawQp;
                    Subject::QueuePair((&raw const (*qp).qp_num).read())
                }
                EventKind::SRQ_ERR | EventKind::SRQ_LIMIT_REACHED => {
                    let srq = raw.element as *const sys::RawSrq;
                    Subject::SharedReceiveQueue((&raw const (*srq).srq_context).read() as u64)
                }
                EventKind::PORT_ACTIVE
                | EventKind::PORT_ERR
                | EventKind::LID_CHANGE
                | EventKind::PKEY_CHANGE
                | EventKind::SM_CHANGE
                | EventKind::CLIENT_REREGISTER
                | EventKind::GID_CHANGE => Subject::Port((raw.element & 0xff) as u8),
                _ => Subject::Device,
            }
        };
        // SAFETY: the event just got; each is acknowledged once.
        unsafe { (open.verbs.api.ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(AsyncEvent { kind, subject }))
    }
}

impl AsRawFd for Context {
    /// Readable when the device tells something. Does not block.
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: a field of the live context.
        unsafe { (&raw const (*self.0.raw()).async_fd).read() }
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the context is.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.name()).finish()
    }
}

/// Has a descriptor of the library's answer `EAGAIN` instead of waiting.
pub(in crate::driver) fn set_nonblocking(fd: RawFd, device: &str) -> Result<()> {
    // SAFETY: open while the caller, who has its object, runs.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let set = || {
        let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
        fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))
    };
    set().map(drop).map_err(|errno| {
        Error::io(
            format!("{device}: its events cannot be awaited: {errno}"),
            std::io::Error::from(errno),
        )
    })
}

/// What a device tells without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncEvent {
    /// What.
    pub(crate) kind: EventKind,
    /// Of what.
    pub(crate) subject: Subject,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The whole device.
    Device,
    /// A port, by number.
    Port(u8),
    /// A queue pair, by number.
    QueuePair(u32),
    /// A completion queue, by the token given to it.
    CompletionQueue(u64),
    /// A shared receive queue, by the token given to it.
    SharedReceiveQueue(u64),
}

/// What atomics of a device exclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicSupport {
    /// There are none.
    None,
    /// Others by the same device; not the processor's.
    Device,
    /// Those of the processor too.
    Everything,
}

/// What a device can fetch when it needs it, of reliable connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnDemand {
    /// Registrations with `ON_DEMAND` are possible at all.
    pub(crate) supported: bool,
    /// The whole address space can be registered at once.
    pub(crate) implicit: bool,
    /// Bits: send 1, receive 2, write 4, read 8, atomics 16, shared receive 32.
    pub(crate) reliable: u32,
}

/// What a device can do.
#[derive(Clone, Debug)]
pub(crate) struct DeviceAttributes {
    /// The version of its firmware.
    pub(crate) firmware: String,
    /// Entries of a completion queue.
    pub(crate) max_completions: u32,
    /// Reads and atomics of a peer's that a queue pair serves at once.
    pub(crate) max_reads_served: u8,
    /// Reads and atomics that a queue pair may have under way.
    pub(crate) max_reads_started: u8,
    /// Shared receive queues; 0: none.
    pub(crate) max_shared_receive_queues: u32,
    /// Receives in one of them.
    pub(crate) max_shared_receives: u32,
    /// What atomics exclude.
    pub(crate) atomics: AtomicSupport,
    /// What it fetches when needed.
    pub(crate) on_demand: OnDemand,
    /// How many ports it has; they count from 1.
    pub(crate) ports: u8,
}

impl DeviceAttributes {
    fn of(raw: &sys::RawDeviceAttrEx) -> Self {
        let count = |number: c_int| u32::try_from(number).unwrap_or(0);
        let few = |number: c_int| u8::try_from(number.clamp(0, 255)).unwrap_or(0);
        let orig = &raw.orig;
        let firmware: Vec<u8> = orig
            .fw_ver
            .iter()
            .map(|byte| byte.to_ne_bytes()[0])
            .take_while(|byte| *byte != 0)
            .collect();
        Self {
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            max_completions: count(orig.max_cqe),
            max_reads_served: few(orig.max_qp_rd_atom),
            max_reads_started: few(orig.max_qp_init_rd_atom),
            max_shared_receive_queues: count(orig.max_srq),
            max_shared_receives: count(orig.max_srq_wr),
            atomics: match orig.atomic_cap {
                0 => AtomicSupport::None,
                1 => AtomicSupport::Device,
                _ => AtomicSupport::Everything,
            },
            on_demand: OnDemand {
                supported: raw.odp_general & 1 != 0,
                implicit: raw.odp_general & 2 != 0,
                reliable: raw.odp_rc,
            },
            ports: orig.phys_port_cnt,
        }
    }
}

/// The state of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortAttributes {
    /// Whether it is up.
    pub(crate) state: PortState,
    /// What it is part of.
    pub(crate) link_layer: LinkLayer,
    /// The largest packets now; `None` when the number is unknown.
    pub(crate) mtu: Option<Mtu>,
    /// Its address within an InfiniBand subnet; 0 on Ethernet.
    pub(crate) lid: u16,
    /// Entries of its table of GIDs.
    pub(crate) gids: u32,
    /// Whether every path needs GIDs.
    pub(crate) needs_gid: bool,
}

impl PortAttributes {
    fn of(raw: &sys::RawPortAttr) -> Self {
        Self {
            state: PortState(raw.state),
            link_layer: LinkLayer(u32::from(raw.link_layer)),
            mtu: Mtu::from_code(raw.active_mtu),
            lid: raw.lid,
            gids: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            needs_gid: raw.flags & 1 != 0,
        }
    }

    /// Whether paths from here name GIDs: on Ethernet always.
    pub(crate) fn uses_gid(&self) -> bool {
        self.needs_gid || self.link_layer == LinkLayer::ETHERNET
    }
}
