//! How bytes go: words for what [`Endpoint::explain`](crate::Endpoint::explain) says.

use super::text::words;

/// What moves the bytes of an operation between its two ends.
///
/// [`WorkerMetrics`](crate::WorkerMetrics) counts each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mover {
    /// The message itself, which leaves unasked: one message in [`TransportMetrics::sent`](crate::TransportMetrics::sent).
    Eager,
    /// Messages that both ends have agreed upon: fragments of a long message, requests and answers, frames of a stream; in
    /// [`TransportMetrics::sent`](crate::TransportMetrics::sent) as well.
    Messages,
    /// A processor, in memory that both processes map: [`WorkerMetrics::mapped`](crate::WorkerMetrics::mapped).
    Mapped,
    /// The kernel, between the two processes: [`WorkerMetrics::cma`](crate::WorkerMetrics::cma).
    Kernel,
    /// Network devices: [`WorkerMetrics::one_sided`](crate::WorkerMetrics::one_sided).
    NetworkDevices,
    /// The engine of an accelerator: [`WorkerMetrics::device_copies`](crate::WorkerMetrics::device_copies).
    Engine,
    /// The processor, within one process; counted nowhere.
    Processor,
}

/// Whose end of an operation it is that copies, or has it copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Party {
    /// The end that has the bytes.
    Source,
    /// The end that they go to.
    Target,
    /// Both: each a share of them, or in and out of what is between. Within one worker, where both are one.
    ///
    /// Of what is copied straight, the mover is that of the receiver, or of who puts or gets; the other takes its share by the kernel, or in mapped memory where
    /// it has that.
    Both,
}

/// What must be so for a plan to be carried out, and is known only when the bytes are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum When {
    /// The memory lies in what wharf allocated, and the other end has it: a message is all of its buffer, which is sent for the second time at least; a
    /// region was met before.
    Shared,
    /// The owner of the region has met its key: so it has from the second operation on it at the latest.
    Met,
    /// The buffer is handed over to the stream: [`ByteWriter::write_buffer`](crate::ByteWriter::write_buffer).
    Owned,
    /// Both of the above: handed over, and in memory that wharf allocated and the other end has.
    OwnedAndShared,
    /// The network devices have the memory of both ends registered.
    Registered,
    /// The engine of the end that the bytes go to can open the memory that they are in.
    Opened,
    /// The driver lets one device reach the other's memory: the first such copy finds out.
    Reached,
    /// The engine, which is not open yet, takes host memory that is not pinned.
    Pageable,
}

/// One way that an operation may go; of those in [`Explanation::plans`](crate::Explanation::plans) the first is taken whose condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Plan {
    /// What moves the bytes from one end to the other.
    pub mover: Mover,
    /// Whose it is.
    pub by: Party,
    /// How often each byte is copied from where it is to where it goes: by processors, engines and network devices. Copies that a kernel makes for its
    /// sockets are not counted.
    pub copies: u32,
    /// Whether the bytes stop in host memory at an end whose memory is a device's: [`WorkerMetrics::staged`](crate::WorkerMetrics::staged).
    pub is_staged: bool,
    /// What must be so; `None`: nothing.
    pub when: Option<When>,
}

words! {
    Mover, "mover":
    Eager = "eager",
    Messages = "messages",
    Mapped = "mapped memory",
    Kernel = "cma",
    NetworkDevices = "network devices",
    Engine = "engine",
    Processor = "processor",
}
words! { Party, "party": Source = "source", Target = "target", Both = "both" }
// As a part of a sentence: `where …`, `if …`.
words! {
    When, "condition":
    Shared = "where wharf allocated the memory and the other end has mapped it",
    Met = "where the owner has met the key of the region",
    Owned = "where the buffer is handed over",
    OwnedAndShared = "where the buffer is handed over, wharf allocated it, and the other end has mapped it",
    Registered = "where network devices have both memories registered",
    Opened = "where the engine can open the memory of the other end",
    Reached = "where the driver lets one reach the other, which was not tried yet",
    Pageable = "if the engine, which is not open yet, takes memory that is not pinned",
}
