//! The same operations where the device makes none by itself: a task that waits for the stream, and then uses the memory channel. One after the other, as
//! a stream would.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::{
    channel::{MemoryChannel, PacketWidth},
    error::{Error, ErrorKind, Operation, Result},
    transport::cuda::CudaStream,
};

use super::side::WINDOW;

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Put {
        remote_at: usize,
        local_at: usize,
        length: usize,
        signals: bool,
    },
    Signal,
    Wait {
        looks: u64,
    },
    PutPackets(Packets),
    UnpackPackets(Packets, u64),
}

/// Arguments of packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packets {
    pub(super) packets_at: usize,
    pub(super) local_at: usize,
    pub(super) length: usize,
    pub(super) width: PacketWidth,
    pub(super) flag: u32,
}

pub(super) struct Hosted {
    /// Why the device does not do it.
    pub(super) reason: String,
    queue: mpsc::Sender<(Work, oneshot::Sender<Result<()>>)>,
}

impl Hosted {
    /// Starts the task, which ends with the channel and what was begun.
    pub(super) fn start(channel: MemoryChannel, stream: CudaStream, reason: String) -> Self {
        let (queue, mut works) = mpsc::channel::<(Work, oneshot::Sender<_>)>(WINDOW);
        tokio::spawn(async move {
            while let Some((work, done)) = works.recv().await {
                let result = run(&channel, stream, work).await;
                // Nobody may want to know.
                let _ = done.send(result);
            }
        });
        Self { reason, queue }
    }

    pub(super) fn enqueue(&self, work: Work) -> Result<oneshot::Receiver<Result<()>>> {
        let (done, result) = oneshot::channel();
        let sent = self.queue.try_send((work, done));
        sent.map(|()| result).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                let text = format!("{WINDOW} operations of the channel are under way");
                Error::new(ErrorKind::WouldBlock, text).during(Operation::Put)
            }
            mpsc::error::TrySendError::Closed(_) => {
                let text = "the runtime of the channel is gone";
                Error::new(ErrorKind::Closed, text).during(Operation::Put)
            }
        })
    }
}

async fn run(channel: &MemoryChannel, stream: CudaStream, work: Work) -> Result<()> {
    channel.semaphore().worker().reached(stream).await?;
    match work {
        Work::Put {
            remote_at,
            local_at,
            length,
            signals: true,
        } => channel.put_with_signal(remote_at, local_at, length).await,
        Work::Put {
            remote_at,
            local_at,
            length,
            signals: false,
        } => channel.put(remote_at, local_at, length).await,
        Work::Signal => channel.signal().await,
        Work::Wait { looks } => within(looks, channel.wait()).await,
        Work::PutPackets(of) => {
            channel
                .put_packets(of.packets_at, of.local_at, of.length, of.width, of.flag)
                .await
        }
        Work::UnpackPackets(of, looks) => {
            let unpack =
                channel.unpack_packets(of.packets_at, of.local_at, of.length, of.width, of.flag);
            within(looks, unpack).await
        }
    }
}

/// A look is a microsecond.
async fn within<T>(looks: u64, wait: impl Future<Output = Result<T>>) -> Result<()> {
    match tokio::time::timeout(Duration::from_micros(looks), wait).await {
        Ok(result) => result.map(drop),
        Err(_) => Err(in_vain(looks)),
    }
}

#[cold]
pub(super) fn in_vain(looks: u64) -> Error {
    let text = format!("the device has looked {looks} times and more for what the peer was to do");
    Error::new(ErrorKind::DeadlineExceeded, text).during(Operation::Signal)
}
