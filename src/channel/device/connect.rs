//! How two ends of a device channel agree, and open each other's memory.
//!
//! ```text
//! each end:  load and try the kernels, a block of counters, exports ──▶ message: all that, or why not ──▶ the peer
//!            open what the peer sent ──▶ last word: done, or why not ──▶ the peer
//! ```
//! The device does it when both ends have said yes twice; else both do it from the host. The message goes along with an attempt at a semaphore: so it is of
//! the same attempt as the last word, and what is left of attempts that were given up is passed by. Its signals are those of the host.
//!
//! Both begin with a byte: 1, and in the message three parts behind their lengths (2 bytes, little-endian): the block as registered memory, what lets
//! another process open this rank's memory, and the block. Or 0, and the reason. Nothing that a peer sends is trusted but as other registered memory is;
//! what it exported is opened only for a peer of this host.

use std::sync::Arc;

use crate::{
    channel::{
        Communicator, MemoryChannel, RegisteredMemory, Semaphore,
        cuda::{self, unsupported},
        semaphore::meet,
    },
    driver::cuda::{CudaContext, DevicePtr, PinnedAllocation, Stream},
    error::{Error, ErrorKind, Operation, Result},
    sys::{
        blocking::{Offloaded, blocking},
        identity::identity,
    },
    transport::{Accelerator, Export, cuda::CudaStream},
    types::{Access, MemoryType},
    util::lock::Mutex,
};

use super::{
    DeviceChannel, Inner, Path,
    hosted::Hosted,
    kernels::Kernels,
    side::{Addresses, Flight, Side, block},
};

/// Longest reason that is sent, in bytes.
const REASON: usize = 512;
/// What a block of counters and packets begins at a multiple of, in bytes.
const ALIGNMENT: u64 = 16;

/// What this end has.
struct Prepared {
    accelerator: Arc<dyn Accelerator>,
    stream: Stream,
    kernels: Arc<Kernels>,
    status: PinnedAllocation,
    block: RegisteredMemory,
    exports: [Vec<u8>; 2],
}

impl DeviceChannel {
    /// Makes the operations of `channel` possible in a stream; the other end of the channel does the same. They exchange messages under `tag` of the
    /// communicator. `packets`: bytes of an area for packets at each end, the same at both, a multiple of 16; or 0.
    ///
    /// Where the devices do not do it themselves, operations are done from the host: see [`reason`](Self::reason).
    ///
    /// # Errors
    /// `InvalidArgument`: `packets` is no multiple of 16, or the peer makes something else under the tag. As [`MemoryChannel::with_packets`].
    ///
    /// # Cancel safety
    /// Dropped, the other rank's attempt ends at its deadline, or with `InvalidArgument` when this rank begins another one under the same tag. Or it has
    /// succeeded: after a drop, as after an error, the memory stays lent to the peer's kernels until `channel` and its clones are dropped.
    pub async fn connect(
        channel: &MemoryChannel,
        communicator: &Communicator,
        tag: u32,
        stream: CudaStream,
        packets: usize,
    ) -> Result<Self> {
        if !packets.is_multiple_of(16) {
            let text = "an area of packets that is no multiple of 16 bytes";
            return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory));
        }
        let peer = channel.remote().owner();
        let prepared = prepare(channel, communicator, stream, packets).await;
        let mine = match &prepared {
            Ok(prepared) => prepared.message()?,
            Err(reason) => refusal(reason),
        };
        let paired = meet(communicator, peer, tag, mine).await?;
        if !matches!(paired.along.first(), Some(0 | 1)) {
            let text =
                format!("rank {peer} makes something else than a device channel under tag {tag}");
            return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory));
        }
        let path = match (prepared, parts(&paired.along)) {
            (Err(reason), _) => Err(reason),
            (_, Err(reason)) => Err(format!("the peer cannot: {reason}")),
            (Ok(prepared), Ok(theirs)) => {
                let side = open(channel, communicator, prepared, &theirs).await;
                let side = side.map(|side| Promised {
                    side: Some(side),
                    channel,
                });
                let side = side.map_err(|error| error.to_string());
                let mine = match &side {
                    Ok(_) => vec![1],
                    Err(reason) => refusal(reason),
                };
                let theirs = paired.last_word(communicator, peer, tag, &mine).await?;
                match (side, theirs.split_first()) {
                    (Ok(mut side), Some((1, _))) => Ok(Path::Device(side.side.take())),
                    (Ok(mut side), _) => {
                        // Nothing was enqueued, here or there.
                        drop(Path::Device(side.side.take()));
                        Err(format!("the peer cannot: {}", said(&theirs)))
                    }
                    (Err(reason), _) => Err(reason),
                }
            }
        };
        let (channel, path) = match path {
            Ok(path) => (channel.clone(), path),
            Err(reason) => {
                tracing::debug!(target: "wharf::channel", reason, "a device channel goes from the host");
                // With signals of its own, as on the device.
                let (local, remote) = (channel.local().clone(), channel.remote().clone());
                let own = MemoryChannel::new(Semaphore::of(paired), local, remote)?;
                let channel = match packets {
                    0 => own,
                    _ => own.with_packets(communicator, tag, packets).await?,
                };
                let hosted = Hosted::start(channel.clone(), stream, reason);
                (channel, Path::Host(hosted))
            }
        };
        Ok(Self {
            inner: Arc::new(Inner {
                channel,
                stream,
                packets,
                path,
            }),
        })
    }
}

/// A side whose memory the peer may have begun to use, while this rank has not heard what it says. Dropped, it lives as long as the memory channel:
/// kernels of the peer ask nobody.
struct Promised<'a> {
    side: Option<Side>,
    channel: &'a MemoryChannel,
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        if let Some(side) = self.side.take() {
            self.channel.keep(Path::Device(Some(side)));
        }
    }
}

/// This end's part, or why it cannot.
async fn prepare(
    channel: &MemoryChannel,
    communicator: &Communicator,
    stream: CudaStream,
    packets: usize,
) -> Result<Offloaded<Prepared>, String> {
    let context = communicator.worker().context();
    let Some(accelerator) = cuda::accelerator(context) else {
        return Err("CUDA is not in use by this context".to_owned());
    };
    if !matches!(channel.remote().memory_type(), MemoryType::Cuda(_)) {
        return Err(format!(
            "the peer's memory is {:?}",
            channel.remote().memory_type()
        ));
    }
    let loading = {
        let accelerator = Arc::clone(&accelerator);
        let memory_type = channel.local().memory_type();
        // Compiles, and may take long.
        blocking(move || {
            let Some(cuda) = cuda::cuda(&accelerator) else {
                return Err(unsupported("CUDA is not in use by this context"));
            };
            let stream = cuda.adopt(stream)?;
            let context = stream.context();
            let device = context.device().ordinal();
            if memory_type != MemoryType::Cuda(device) {
                let text =
                    format!("this rank's memory is {memory_type:?}, its stream of device {device}");
                return Err(unsupported(text));
            }
            let kernels = Kernels::of(context)?;
            let status = Side::status(&context.enter()?)?;
            Ok(Offloaded::new((stream, kernels, status, device)))
        })
    };
    let made = async {
        let loaded = loading.await?;
        let device = loaded.3;
        let room = usize::try_from(block::PACKETS).unwrap_or(usize::MAX);
        let room = context
            .allocate_on(MemoryType::Cuda(device), room.saturating_add(packets))
            .await?;
        let block = communicator
            .register(room, Access::READ | Access::WRITE)
            .await?;
        let mut exports = [Vec::new(), Vec::new()];
        if !is_here(channel)? {
            for (export, memory) in exports.iter_mut().zip([channel.local(), &block]) {
                *export = self::export(&accelerator, memory.clone()).await?;
            }
        }
        let (stream, kernels, status, _) = loaded.take();
        Ok(Offloaded::new(Prepared {
            accelerator,
            stream,
            kernels,
            status,
            block,
            exports,
        }))
    };
    made.await.map_err(|error: Error| error.to_string())
}

/// What lets another process open memory.
async fn export(accelerator: &Arc<dyn Accelerator>, memory: RegisteredMemory) -> Result<Vec<u8>> {
    let accelerator = Arc::clone(accelerator);
    let exported = blocking(move || {
        let at = memory.region().address_of(0);
        accelerator.export(at, memory.len() as u64)
    });
    match exported.await? {
        Export::Descriptor(descriptor) => Ok(descriptor),
        Export::Impossible(why) => Err(unsupported(why)),
    }
}

/// Opens what the peer has.
async fn open(
    channel: &MemoryChannel,
    communicator: &Communicator,
    prepared: Offloaded<Prepared>,
    [registered, remote, remote_block]: &[&[u8]; 3],
) -> Result<Side> {
    let peers = communicator.deserialize(registered).await?;
    if peers.owner() != channel.remote().owner() || peers.len() != prepared.block.len() {
        return Err(unsupported(
            "the peer's area for packets has another length",
        ));
    }
    let own = prepared.stream.context().clone();
    let mut opened = Vec::new();
    let mut addresses = Vec::new();
    for (memory, descriptor) in [(channel.remote(), remote), (&peers, remote_block)] {
        let (address, device) = if is_here(channel)? {
            let part = memory.part(0, memory.len())?;
            (part.address(), memory.memory_type())
        } else {
            let identity = channel.remote().endpoint().identity()?;
            let import = prepared.accelerator.import(descriptor, &identity).await?;
            if import.len() < memory.len() as u64 {
                return Err(unsupported("the peer has exported less than it registered"));
            }
            let found = (import.address(), import.memory_type());
            opened.push(import);
            found
        };
        let MemoryType::Cuda(ordinal) = device else {
            return Err(unsupported(format!("the peer's memory is {device:?}")));
        };
        let own = own.clone();
        let atomics = blocking(move || reach(&own, ordinal)).await?;
        addresses.push((DevicePtr(address), atomics));
    }
    let &[(remote, _), (remote_block, atomics)] = &addresses[..] else {
        return Err(unsupported("two memories are two"));
    };
    // The block's words are reached as what they are: on a device a wrong address costs the whole context.
    if !remote_block.0.is_multiple_of(ALIGNMENT) {
        let text = format!("the peer's block of counters is not aligned to {ALIGNMENT} bytes");
        return Err(unsupported(text));
    }
    let local = channel.local();
    let prepared = prepared.take();
    Ok(Side {
        at: Addresses {
            local: DevicePtr(local.region().address_of(0)),
            remote,
            block: DevicePtr(prepared.block.region().address_of(0)),
            remote_block,
        },
        stream: prepared.stream,
        kernels: prepared.kernels,
        atomics,
        status: prepared.status,
        flight: Mutex::new(Flight::default()),
        is_lent: false.into(),
        _memory: [local.clone(), prepared.block],
        _imported: opened,
    })
}

/// Lets a context reach the memory of a device. Whether that takes atomics.
fn reach(own: &CudaContext, ordinal: u16) -> Result<bool> {
    let device = own.device();
    if device.ordinal() == ordinal {
        return Ok(true);
    }
    let other = own.cuda().device(ordinal)?;
    if !device.can_access(&other)? {
        return Err(unsupported(format!("{device:?} does not reach {other:?}")));
    }
    own.enter()?.enable_peer(&other.primary_context()?)?;
    device.has_atomics_on(&other)
}

/// Whether the peer is of this process, whose addresses are its own. What a peer says of that counts where the kernel vouches for it: on connections
/// through shared memory.
/// Errors: `Unsupported`: it is no process of this host, as far as is known. Nothing is exported for such a one.
fn is_here(channel: &MemoryChannel) -> Result<bool> {
    let endpoint = channel.remote().endpoint();
    if !endpoint.reaches_devices() {
        let text = "no shared memory with the peer: nobody vouches for its being on this host";
        return Err(unsupported(text));
    }
    let (peer, own) = (endpoint.identity()?, identity());
    Ok((peer.boot, peer.pid_namespace, peer.pid) == (own.boot, own.pid_namespace, own.pid))
}

impl Prepared {
    fn message(&self) -> Result<Vec<u8>> {
        let mut message = vec![1];
        let registered = self.block.serialize()?;
        for part in [&registered, &self.exports[0], &self.exports[1]] {
            let length = u16::try_from(part.len())
                .map_err(|_| unsupported("a descriptor of more than 65,535 bytes"))?;
            message.extend_from_slice(&length.to_le_bytes());
            message.extend_from_slice(part);
        }
        Ok(message)
    }
}

/// The parts of a peer's message, or its reason.
fn parts(message: &[u8]) -> Result<[&[u8]; 3], String> {
    let malformed = || "its message is malformed".to_owned();
    let Some((1, mut rest)) = message.split_first() else {
        return Err(said(message));
    };
    let mut parts: [&[u8]; 3] = [&[]; 3];
    for part in &mut parts {
        let (length, behind) = rest.split_first_chunk().ok_or_else(malformed)?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (found, behind) = behind.split_at_checked(length).ok_or_else(malformed)?;
        (*part, rest) = (found, behind);
    }
    match rest {
        [] => Ok(parts),
        _ => Err(malformed()),
    }
}

/// A peer's reason, as far as it can be shown.
fn said(message: &[u8]) -> String {
    match message.split_first() {
        Some((0, reason)) => {
            let reason = &reason[..reason.len().min(REASON)];
            String::from_utf8_lossy(reason).escape_debug().to_string()
        }
        _ => "its message is malformed".to_owned(),
    }
}

fn refusal(reason: &str) -> Vec<u8> {
    let mut message = vec![0];
    message.extend_from_slice(&reason.as_bytes()[..reason.len().min(REASON)]);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_peer() {
        let good = [1, 2, 0, 7, 8, 0, 0, 1, 0, 9];
        assert_eq!(parts(&good), Ok([&[7, 8][..], &[], &[9]]));
        for end in 1..good.len() {
            assert!(parts(&good[..end]).is_err(), "{end} bytes");
        }
        assert!(parts(&[&good[..], &[0]].concat()).is_err());
        assert_eq!(parts(&refusal("no\n")), Err("no\\n".to_owned()));
        for bad in [&[][..], &[2], &[255, 1]] {
            assert_eq!(parts(bad), Err("its message is malformed".to_owned()));
        }
    }
}
