//! Work requests, in the caller's storage, and what is told of their end.
//!
//! # Safety
//! A request is the library's struct. It names memory by address and key and is inert until it is posted, which is `unsafe`; see `queue`.
#![allow(unsafe_code)]

use std::{marker::PhantomData, ptr};

use super::{
    SendFlags, Sge, Status,
    sys::{RawCompletion, RawReceive, RawSend, Second},
};
use crate::error::Error;

/// `enum ibv_wr_opcode`.
mod opcode {
    pub(super) const RDMA_WRITE: u32 = 0;
    pub(super) const SEND: u32 = 2;
    pub(super) const RDMA_READ: u32 = 4;
    pub(super) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(super) const ATOMIC_FETCH_AND_ADD: u32 = 6;
}

/// Something to do for the send queue. `pieces` are where the bytes come from, or go to for reads and atomics; they are read when the
/// request is posted, so it does not outlive them.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct SendRequest<'a>(pub(super) RawSend, PhantomData<&'a [Sge]>);

// SAFETY: numbers and addresses; it does nothing before it is posted, and who posts vouches for the addresses.
unsafe impl Send for SendRequest<'_> {}
// SAFETY: as above.
unsafe impl Sync for SendRequest<'_> {}

impl<'a> SendRequest<'a> {
    fn new(id: u64, opcode: u32, pieces: &'a [Sge], flags: SendFlags) -> Self {
        let raw = RawSend {
            wr_id: id,
            sg_list: pieces.as_ptr(),
            num_sge: i32::try_from(pieces.len()).unwrap_or(i32::MAX),
            opcode,
            send_flags: flags.bits(),
            ..RawSend::EMPTY
        };
        Self(raw, PhantomData)
    }

    fn remote(mut self, address: u64, key: u32) -> Self {
        self.0.remote_addr = address;
        self.0.second = Second { operand: 0 };
        self.0.second.rkey = key;
        self
    }

    /// A message, which takes a receive of the peer's.
    pub(crate) fn send(id: u64, pieces: &'a [Sge], flags: SendFlags) -> Self {
        Self::new(id, opcode::SEND, pieces, flags)
    }

    /// Writes into the peer's memory at `address` under its `key`.
    pub(crate) fn write(
        id: u64,
        pieces: &'a [Sge],
        flags: SendFlags,
        address: u64,
        key: u32,
    ) -> Self {
        Self::new(id, opcode::RDMA_WRITE, pieces, flags).remote(address, key)
    }

    /// Reads the peer's memory at `address` under its `key`.
    pub(crate) fn read(
        id: u64,
        pieces: &'a [Sge],
        flags: SendFlags,
        address: u64,
        key: u32,
    ) -> Self {
        Self::new(id, opcode::RDMA_READ, pieces, flags).remote(address, key)
    }

    /// Adds to the 8 bytes at `address`, a multiple of 8; what was there goes into the one piece, of 8 bytes.
    pub(crate) fn fetch_add(
        id: u64,
        piece: &'a [Sge; 1],
        flags: SendFlags,
        address: u64,
        key: u32,
        add: u64,
    ) -> Self {
        let mut this = Self::new(id, opcode::ATOMIC_FETCH_AND_ADD, piece, flags);
        this.0.remote_addr = address;
        this.0.second = Second { operand: add };
        this.0.atomic_rkey = key;
        this
    }

    /// Puts `swap` into the 8 bytes at `address`, a multiple of 8, if `compare` is there; what was there goes into the one piece.
    pub(crate) fn compare_swap(
        id: u64,
        piece: &'a [Sge; 1],
        flags: SendFlags,
        address: u64,
        key: u32,
        compare: u64,
        swap: u64,
    ) -> Self {
        let mut this = Self::new(id, opcode::ATOMIC_CMP_AND_SWP, piece, flags);
        this.0.remote_addr = address;
        this.0.second = Second { operand: compare };
        this.0.swap = swap;
        this.0.atomic_rkey = key;
        this
    }
}

/// Memory for one message, or for the notice of one write with a number. Does not outlive its pieces, which are read when it is posted.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct ReceiveRequest<'a>(pub(super) RawReceive, PhantomData<&'a [Sge]>);

// SAFETY: numbers and addresses; it does nothing before it is posted, and who posts vouches for the addresses.
unsafe impl Send for ReceiveRequest<'_> {}
// SAFETY: as above.
unsafe impl Sync for ReceiveRequest<'_> {}

impl<'a> ReceiveRequest<'a> {
    /// Memory for a message.
    pub(crate) fn new(id: u64, pieces: &'a [Sge]) -> Self {
        let raw = RawReceive {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: pieces.as_ptr(),
            num_sge: i32::try_from(pieces.len()).unwrap_or(i32::MAX),
        };
        Self(raw, PhantomData)
    }
}

/// The end of a work request. Where it failed only number, status, vendor's code and queue pair mean something.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Completion(RawCompletion);

impl Completion {
    /// The number given with the request.
    pub(crate) fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended.
    pub(crate) fn status(&self) -> Status {
        Status(self.0.status)
    }

    /// Whether it went well.
    pub(crate) fn is_success(&self) -> bool {
        self.0.status == Status::SUCCESS.0
    }

    /// Bytes received.
    pub(crate) fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// The queue pair of this side.
    pub(crate) fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The error that it ended with; the [`Status`] is its source. `None` where it went well.
    pub(crate) fn error(&self) -> Option<Error> {
        if self.is_success() {
            return None;
        }
        Some(self.make_error())
    }

    #[cold]
    fn make_error(&self) -> Error {
        let status = self.status();
        let remedy = match status {
            Status::RETRY_EXC_ERR => {
                "; the peer has ended, or the way to it is broken: compare both ends' GIDs and MTU, and whether UDP port 4791 passes"
            }
            Status::RNR_RETRY_EXC_ERR => "; the peer does not keep up",
            _ => "",
        };
        let text = format!(
            "queue pair {:#x}: {status}{remedy} [vendor code {:#x}]",
            self.0.qp_num, self.0.vendor_err
        );
        Error::new(status.kind(), text).with_source(status)
    }
}
