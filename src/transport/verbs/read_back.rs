//! What a device wrote into memory of another device is there once it has read it back: a read pushes the writes before it through the bus (PCI
//! Express, "Transaction Ordering": a read request does not pass a posted one). NCCL relies on the same.
//!
//! For that a queue pair is joined to itself, made when it is first needed. Tests: `tests/rc_faults/gpudirect.rs`.
//!
//! # Safety
//! The device writes one byte into memory of this file's own, which nothing else uses and which ends after the queue pair.
#![allow(unsafe_code)]

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{buffers::Memory, device::OpenDevice};
use crate::{
    driver::verbs::{
        Access, Capacity, Completion, CompletionQueue, GlobalRoute, InitAttributes, PathAttributes,
        QueuePair, QueuePairOptions, ReceiveAttributes, SendAttributes, SendFlags, SendRequest,
    },
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// After this long the device is believed to be lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// That of one device.
#[derive(Debug, Default)]
pub(super) struct ReadBack(Mutex<Option<Ring>>);

/// A queue pair joined to itself. The fields end in this order.
#[derive(Debug)]
struct Ring {
    queue_pair: QueuePair,
    completions: CompletionQueue,
    byte: Memory,
}

impl ReadBack {
    /// Reads the byte at `address` under a remote key of this device's. Blocks: some microseconds.
    /// Errors: what the device said.
    pub(super) fn read(&self, device: &OpenDevice, address: u64, rkey: u32) -> Result<()> {
        let mut ring = self.0.lock();
        let made = match ring.take() {
            Some(made) => made,
            None => Ring::new(device)?,
        };
        made.read(address, rkey)?;
        // One that has failed is not kept.
        *ring = Some(made);
        Ok(())
    }
}

impl Ring {
    fn new(device: &OpenDevice) -> Result<Self> {
        let completions = device.context.completion_queue(2, None, 0, 0)?;
        let queue_pair = device.domain.queue_pair(&QueuePairOptions {
            sends: &completions,
            receives: &completions,
            shared_receives: None,
            capacity: Capacity {
                sends: 1,
                receives: 0,
                send_pieces: 1,
                receive_pieces: 0,
                inline_bytes: 0,
            },
            signal_all: true,
        })?;
        let ports = device.ports();
        let mut ports = ports.iter();
        let Some(port) = ports.find(|port| !device.is_down(port.number)) else {
            let text = format!("no port of {} is up", device.name());
            return Err(Error::new(ErrorKind::DeviceLost, text));
        };
        queue_pair.to_init(&InitAttributes {
            port: port.number,
            partition_index: 0,
            access: Access::REMOTE_READ,
        })?;
        let global = port.gid.filter(|_| port.uses_gid);
        queue_pair.to_receive(&ReceiveAttributes {
            path: PathAttributes {
                port: port.number,
                lid: port.lid,
                service_level: 0,
                source_bits: 0,
                global: global.map(|own| GlobalRoute {
                    gid: own.gid,
                    source_index: own.index,
                    hop_limit: 1,
                    traffic_class: 0,
                    flow_label: 0,
                }),
            },
            mtu: port.mtu,
            queue_pair: queue_pair.number(),
            first_packet: 0,
            reads: 1,
            not_ready_timer: 12,
        })?;
        queue_pair.to_send(&SendAttributes {
            first_packet: 0,
            timeout: 14,
            retries: 7,
            not_ready_retries: 7,
            reads: 1,
        })?;
        Ok(Self {
            queue_pair,
            completions,
            byte: Memory::new(&device.domain, 1, Access::LOCAL_WRITE)?,
        })
    }

    fn read(&self, address: u64, rkey: u32) -> Result<()> {
        let piece = [self.byte.piece(0, 1)];
        let request = SendRequest::read(0, &piece, SendFlags::SIGNALED, address, rkey);
        // SAFETY: the byte is this file's, and nobody looks at it.
        unsafe { self.queue_pair.post_send(&mut [request]) }
            .map_err(|refused| refused.error("ibv_post_send", self.queue_pair.device()))?;
        let end = Instant::now() + PATIENCE;
        let mut found = [Completion::default()];
        while self.completions.poll(&mut found)? == 0 {
            if Instant::now() > end {
                let text = format!("{} does not read back", self.queue_pair.device());
                return Err(Error::new(ErrorKind::DeviceLost, text));
            }
            thread::yield_now();
        }
        found[0].error().map_or(Ok(()), Err)
    }
}
