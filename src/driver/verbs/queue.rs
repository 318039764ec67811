//! Queue pairs of reliable connections, and receive queues that many of them share.
//!
//! # Safety
//! A queue pair keeps the queues that it uses, and its domain. Posting is `unsafe`: the device reads and writes what the requests name.
//! See `verbs`.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    fmt, io,
    ptr::{self, NonNull},
    sync::Arc,
};

use super::{
    Access, CompletionQueue, Gid, Mtu, ProtectionDomain, ReceiveRequest, SendRequest, State,
    context::Open,
    failure,
    memory::Domain,
    sys::{
        RawAh, RawQp, RawQpAttr, RawQpCap, RawQpInit, RawReceive, RawRoute, RawSend, RawSrq,
        RawSrqAttr, RawSrqInit, mask,
    },
};
use crate::error::{Error, ErrorKind, Result};

/// `IBV_QPT_RC`.
const RELIABLE: u32 = 2;

/// That not all of some requests were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// How many were, from the first on.
    pub(crate) posted: usize,
    /// The error number; `ENOMEM`: the queue is full.
    pub(crate) errno: i32,
}

impl Refused {
    /// Whether there is no room now: some of what was posted has to complete first.
    pub(crate) fn is_full(self) -> bool {
        self.errno == libc::ENOMEM
    }

    /// As an error. `WouldBlock` where there was no room.
    #[cold]
    pub(crate) fn error(self, call: &str, device: &str) -> Error {
        let source = io::Error::from_raw_os_error(self.errno);
        if self.is_full() {
            return Error::new(
                ErrorKind::WouldBlock,
                format!("{call} on {device}: the queue is full"),
            )
            .with_source(source);
        }
        failure::failed(call, device, self.errno)
    }
}

/// What a device answered to requests posted in a row.
///
/// # Safety
/// `bad` points into `requests` where the answer is no success, or nowhere.
fn posted<T>(answer: c_int, requests: &[T], bad: *const T) -> Result<(), Refused> {
    if answer == 0 {
        return Ok(());
    }
    let errno = match answer {
        -1 => failure::last(),
        other => other.saturating_abs(),
    };
    let index = bad
        .addr()
        .checked_sub(requests.as_ptr().addr())
        .map_or(0, |bytes| bytes / size_of::<T>());
    // A library that does not say which: none counts as posted, and the queue pair had better be given up.
    let posted = if index < requests.len() { index } else { 0 };
    Err(Refused { posted, errno })
}

/// Links requests, as the library wants them.
fn link_receives(requests: &mut [ReceiveRequest<'_>]) {
    let mut next: *mut RawReceive = ptr::null_mut();
    for request in requests.iter_mut().rev() {
        request.0.next = next;
        next = &raw mut request.0;
    }
}

/// Receives that many queue pairs take from.
#[derive(Clone)]
pub(crate) struct SharedReceiveQueue(Arc<Shared>);

struct Shared {
    domain: Arc<Domain>,
    raw: NonNull<RawSrq>,
    capacity: u32,
}

// SAFETY: the library allows every call on a queue from every thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        let open = &self.domain.open;
        if open.is_here() {
            // SAFETY: made once; the queue pairs that use it keep it, and are gone.
            let answer = unsafe { (open.verbs.api.ibv_destroy_srq)(self.raw.as_ptr()) };
            open.ended("ibv_destroy_srq", answer);
        }
    }
}

impl ProtectionDomain {
    /// A shared receive queue for `receives` requests of up to `pieces` pieces (there may be room for more). `token` comes back in events.
    /// Errors: `Unsupported`: the device has none; `InvalidArgument`: more than it has; `Exhausted`, with the remedy.
    pub(crate) fn shared_receive_queue(
        &self,
        receives: u32,
        pieces: u32,
        token: u64,
    ) -> Result<SharedReceiveQueue> {
        let domain = self.domain();
        domain.open.usable()?;
        let mut init = RawSrqInit {
            srq_context: token as usize,
            attr: RawSrqAttr {
                max_wr: receives,
                max_sge: pieces,
                srq_limit: 0,
            },
        };
        // SAFETY: reads and writes the struct; the domain lives.
        let raw = unsafe { (domain.open.verbs.api.ibv_create_srq)(domain.raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| domain.open.failed("ibv_create_srq"))?;
        Ok(SharedReceiveQueue(Arc::new(Shared {
            domain: Arc::clone(domain),
            raw,
            capacity: init.attr.max_wr.max(receives),
        })))
    }

    /// A queue pair of a reliable connection, reset.
    /// Errors: `InvalidArgument`: more than the device has, or queues of another device or domain; `Exhausted`, with the remedy.
    pub(crate) fn queue_pair(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair> {
        let domain = self.domain();
        let open = &domain.open;
        open.usable()?;
        let shared = options.shared_receives;
        if !Arc::ptr_eq(options.sends.open(), open)
            || !Arc::ptr_eq(options.receives.open(), open)
            || shared.is_some_and(|shared| !Arc::ptr_eq(&shared.0.domain.open, open))
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a queue pair's queues must be of its own device",
            ));
        }
        let capacity = options.capacity;
        let mut init = RawQpInit {
            qp_context: 0,
            send_cq: options.sends.raw(),
            recv_cq: options.receives.raw(),
            srq: shared.map_or(ptr::null_mut(), |shared| shared.0.raw.as_ptr()),
            cap: RawQpCap {
                max_send_wr: capacity.sends,
                max_recv_wr: if shared.is_some() {
                    0
                } else {
                    capacity.receives
                },
                max_send_sge: capacity.send_pieces,
                max_recv_sge: capacity.receive_pieces,
                max_inline_data: capacity.inline_bytes,
            },
            qp_type: RELIABLE,
            sq_sig_all: c_int::from(options.signal_all),
        };
        // SAFETY: reads and writes the struct; all that it names lives.
        let raw = unsafe { (open.verbs.api.ibv_create_qp)(domain.raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| open.failed("ibv_create_qp"))?;
        // SAFETY: a field that does not change.
        let number = unsafe { (&raw const (*raw.as_ptr()).qp_num).read() };
        Ok(QueuePair {
            raw,
            number,
            post_send: open.post_send,
            post_recv: open.post_recv,
            capacity: Capacity {
                sends: init.cap.max_send_wr,
                receives: init.cap.max_recv_wr,
                send_pieces: init.cap.max_send_sge,
                receive_pieces: init.cap.max_recv_sge,
                inline_bytes: init.cap.max_inline_data,
            },
            domain: Arc::clone(domain),
            _sends: options.sends.clone(),
            _receives: options.receives.clone(),
            _shared: shared.cloned(),
        })
    }
}

impl SharedReceiveQueue {
    /// How many receives it has room for.
    pub(crate) fn capacity(&self) -> u32 {
        self.0.capacity
    }

    /// Posts receives, all with one call. They are linked to each other for it.
    /// Errors: [`Refused`], with how many were posted.
    ///
    /// # Safety
    /// The memory that the requests name is used by nobody else until their completion was polled, or every queue pair that takes from
    /// here was destroyed, or its registration ended. The arrays of pieces are readable during the call.
    pub(crate) unsafe fn post(&self, requests: &mut [ReceiveRequest<'_>]) -> Result<(), Refused> {
        if requests.is_empty() {
            return Ok(());
        }
        link_receives(requests);
        let mut bad: *mut RawReceive = ptr::null_mut();
        // SAFETY: requests that end with a null link; the caller vouches for what they name.
        let answer = unsafe {
            (self.0.domain.open.post_srq_recv)(
                self.0.raw.as_ptr(),
                requests.as_mut_ptr().cast(),
                &raw mut bad,
            )
        };
        posted(answer, requests, bad.cast_const().cast())
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// How much a queue pair has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Requests in the send queue.
    pub(crate) sends: u32,
    /// Requests in its own receive queue; nothing with a shared one.
    pub(crate) receives: u32,
    /// Pieces of memory in a send.
    pub(crate) send_pieces: u32,
    /// Pieces of memory in a receive.
    pub(crate) receive_pieces: u32,
    /// Bytes that can be sent inline.
    pub(crate) inline_bytes: u32,
}

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairOptions<'a> {
    /// Where the ends of sends are told.
    pub(crate) sends: &'a CompletionQueue,
    /// Where the ends of receives are told.
    pub(crate) receives: &'a CompletionQueue,
    /// Receives that it shares with others, instead of its own.
    pub(crate) shared_receives: Option<&'a SharedReceiveQueue>,
    /// What it has room for at least.
    pub(crate) capacity: Capacity,
    /// Whether the end of every send is told, signaled or not.
    pub(crate) signal_all: bool,
}

/// For `INIT`: the port, and what peers may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitAttributes {
    /// The port, from 1 on.
    pub(crate) port: u8,
    /// Where the partition's key stands in the port's table.
    pub(crate) partition_index: u16,
    /// What the peer may do by this queue pair, as far as a registration allows it too.
    pub(crate) access: Access,
}

/// The way to a peer's port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathAttributes {
    /// The port of this side.
    pub(crate) port: u8,
    /// The peer's LID; 0 on Ethernet.
    pub(crate) lid: u16,
    /// Service level.
    pub(crate) service_level: u8,
    /// Low bits of this side's LID.
    pub(crate) source_bits: u8,
    /// By GIDs: always on Ethernet.
    pub(crate) global: Option<GlobalRoute>,
}

/// The way to a peer by GIDs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalRoute {
    /// The peer's.
    pub(crate) gid: Gid,
    /// Where this side's stands in its port's table.
    pub(crate) source_index: u8,
    /// Routers on the way.
    pub(crate) hop_limit: u8,
    /// DSCP in the upper six bits.
    pub(crate) traffic_class: u8,
    /// For routers that spread flows.
    pub(crate) flow_label: u32,
}

impl PathAttributes {
    fn raw(&self) -> RawAh {
        let grh = self
            .global
            .map_or_else(RawRoute::default, |route| RawRoute {
                dgid: route.gid.words(),
                flow_label: route.flow_label,
                sgid_index: route.source_index,
                hop_limit: route.hop_limit,
                traffic_class: route.traffic_class,
            });
        RawAh {
            grh,
            dlid: self.lid,
            sl: self.service_level,
            src_path_bits: self.source_bits,
            static_rate: 0,
            is_global: u8::from(self.global.is_some()),
            port_num: self.port,
        }
    }
}

/// For `RTR`: where the peer is, and what comes from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveAttributes {
    /// The way there.
    pub(crate) path: PathAttributes,
    /// The largest packets; the smaller of both ports'.
    pub(crate) mtu: Mtu,
    /// The peer's queue pair.
    pub(crate) queue_pair: u32,
    /// The peer's first packet's number, 24 bits.
    pub(crate) first_packet: u32,
    /// How many of the peer's reads and atomics are served at once.
    pub(crate) reads: u8,
    /// What a peer waits before it sends again to one that has no receive, as a code: 1 is 0.01 ms, 12 is 0.64 ms, 0 is 655 ms.
    pub(crate) not_ready_timer: u8,
}

/// For `RTS`: how sends are tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendAttributes {
    /// This side's first packet's number, 24 bits.
    pub(crate) first_packet: u32,
    /// How long an answer may take: 4.096 µs × 2^t; 14 is 67 ms, 18 is 1.07 s, 0 is for ever.
    pub(crate) timeout: u8,
    /// How often a packet without answer is sent again, up to 7.
    pub(crate) retries: u8,
    /// How often a peer without receive is tried again; 7 is for ever.
    pub(crate) not_ready_retries: u8,
    /// How many reads and atomics are under way at once; no more than the peer serves.
    pub(crate) reads: u8,
}

/// One end of a reliable connection. What was posted and not polled is lost when it is dropped; no memory is touched then any more.
pub(crate) struct QueuePair {
    raw: NonNull<RawQp>,
    number: u32,
    post_send: super::sys::PostSend,
    post_recv: super::sys::PostRecv,
    capacity: Capacity,
    domain: Arc<Domain>,
    // After the queue pair's own end.
    _sends: CompletionQueue,
    _receives: CompletionQueue,
    _shared: Option<SharedReceiveQueue>,
}

// SAFETY: the library allows every call on a queue pair from every thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let open = &self.domain.open;
        if open.is_here() {
            // SAFETY: made once. Its events are acknowledged when taken, so this does not wait long.
            let answer = unsafe { (open.verbs.api.ibv_destroy_qp)(self.raw.as_ptr()) };
            open.ended("ibv_destroy_qp", answer);
        }
    }
}

impl QueuePair {
    fn open(&self) -> &Open {
        &self.domain.open
    }

    /// The name of its device.
    pub(crate) fn device(&self) -> &str {
        self.open().name()
    }

    /// Its number, by which the peer names it. 24 bits.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// What it has room for, as the device made it.
    pub(crate) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Changes it as `attributes` say, as far as `mask` says.
    pub(in crate::driver) fn modify(&self, mut attributes: RawQpAttr, mask: u32) -> Result<()> {
        let open = self.open();
        open.usable()?;
        let state = State(attributes.qp_state);
        // SAFETY: reads the struct.
        let answer = unsafe {
            (open.verbs.api.ibv_modify_qp)(
                self.raw.as_ptr(),
                &raw mut attributes,
                mask.cast_signed(),
            )
        };
        let call = || format!("ibv_modify_qp to the state {state:?}");
        if answer == 0 {
            return Ok(());
        }
        open.check(&call(), answer)
    }

    /// From reset on: takes receives.
    /// Errors: `InvalidArgument`: no such port or partition, or not reset.
    pub(crate) fn to_init(&self, attributes: &InitAttributes) -> Result<()> {
        let raw = RawQpAttr {
            qp_state: State::INIT.0,
            pkey_index: attributes.partition_index,
            port_num: attributes.port,
            qp_access_flags: attributes.access.bits(),
            ..RawQpAttr::default()
        };
        let mask = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        self.modify(raw, mask)
    }

    /// Then: receives from its peer. Receives are posted before.
    /// Errors: `InvalidArgument`: something does not fit the device; an I/O error: there is no way to the GID (a RoCE peer's hardware address is
    /// asked for here, which may take a second).
    pub(crate) fn to_receive(&self, attributes: &ReceiveAttributes) -> Result<()> {
        let raw = RawQpAttr {
            qp_state: State::RTR.0,
            ah_attr: attributes.path.raw(),
            path_mtu: attributes.mtu.code(),
            dest_qp_num: attributes.queue_pair,
            rq_psn: attributes.first_packet & 0xff_ffff,
            max_dest_rd_atomic: attributes.reads,
            min_rnr_timer: attributes.not_ready_timer,
            ..RawQpAttr::default()
        };
        let mask = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        self.modify(raw, mask)
    }

    /// Then: sends too.
    /// Errors: `InvalidArgument`: something does not fit the device.
    pub(crate) fn to_send(&self, attributes: &SendAttributes) -> Result<()> {
        let raw = RawQpAttr {
            qp_state: State::RTS.0,
            sq_psn: attributes.first_packet & 0xff_ffff,
            timeout: attributes.timeout,
            retry_cnt: attributes.retries,
            rnr_retry: attributes.not_ready_retries,
            max_rd_atomic: attributes.reads,
            ..RawQpAttr::default()
        };
        let mask = mask::STATE
            | mask::SQ_PSN
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::MAX_QP_RD_ATOMIC;
        self.modify(raw, mask)
    }

    /// Gives it up: all that is posted, now or later, completes as flushed.
    /// Errors: as of any call.
    pub(crate) fn to_error(&self) -> Result<()> {
        self.modify(RawQpAttr::of(State::ERR.0), mask::STATE)
    }

    /// Posts sends, writes, reads and atomics, all with one call. They are linked to each other for it. Nobody is told here that the
    /// queue pair has failed: the requests then complete as flushed.
    /// Errors: [`Refused`], with how many were posted.
    ///
    /// # Safety
    /// The memory that the requests name, except inline, is left alone until their completion (or that of a later signaled one) was
    /// polled, or the queue pair was destroyed, or its registration ended: not written where it is sent, not used at all where it is
    /// received into. The arrays of pieces are readable during the call, and so are bytes that are sent inline.
    pub(crate) unsafe fn post_send(&self, requests: &mut [SendRequest<'_>]) -> Result<(), Refused> {
        if requests.is_empty() {
            return Ok(());
        }
        let mut next: *mut RawSend = ptr::null_mut();
        for request in requests.iter_mut().rev() {
            request.0.next = next;
            next = &raw mut request.0;
        }
        let mut bad: *mut RawSend = ptr::null_mut();
        // SAFETY: requests that end with a null link; the caller vouches for what they name.
        let answer = unsafe {
            (self.post_send)(
                self.raw.as_ptr(),
                requests.as_mut_ptr().cast(),
                &raw mut bad,
            )
        };
        posted(answer, requests, bad.cast_const().cast())
    }

    /// Posts receives, all with one call. They are linked to each other for it.
    /// Errors: [`Refused`], with how many were posted.
    ///
    /// # Safety
    /// The memory that the requests name is used by nobody else until their completion was polled, or the queue pair was destroyed, or
    /// its registration ended. The arrays of pieces are readable during the call.
    pub(crate) unsafe fn post_receive(
        &self,
        requests: &mut [ReceiveRequest<'_>],
    ) -> Result<(), Refused> {
        if requests.is_empty() {
            return Ok(());
        }
        link_receives(requests);
        let mut bad: *mut RawReceive = ptr::null_mut();
        // SAFETY: requests that end with a null link; the caller vouches for what they name.
        let answer = unsafe {
            (self.post_recv)(
                self.raw.as_ptr(),
                requests.as_mut_ptr().cast(),
                &raw mut bad,
            )
        };
        posted(answer, requests, bad.cast_const().cast())
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("device", &self.device())
            .field("number", &format_args!("{:#x}", self.number))
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
