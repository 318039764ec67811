//! Groups of two ranks in this process, over each carrier.

use std::{future::Future, sync::Arc, time::Duration};

use wharf::{
    Access, BufferMut, Context, ContextBuilder, MemoryType, Worker,
    channel::{
        Communicator, MemoryChannel, RegisteredMemory,
        bootstrap::{Bootstrap, MemoryBootstrap},
    },
    transport::{cuda::CudaCopy, rocm::RocmCopy},
};

use crate::support::{self, LIMIT, block_on, emulated};

pub(crate) const BOTH: Access = Access::READ.union(Access::WRITE);

/// Over what two ranks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// A rank and itself.
    Own,
    Shm,
    ShmWithoutCma,
    Tcp,
    /// Over emulated RDMA devices, or those of the virtual machine.
    RcVerbs,
}

impl Carrier {
    pub(crate) const ALL: [Self; 5] = [
        Self::Own,
        Self::Shm,
        Self::ShmWithoutCma,
        Self::Tcp,
        Self::RcVerbs,
    ];

    pub(crate) fn builder(self) -> ContextBuilder {
        let builder = Context::builder();
        let named = |list| builder.transports(list).expect("transports of this build");
        match self {
            Self::Own => named("self,shm"),
            Self::Shm => named("self,shm,cma"),
            Self::ShmWithoutCma => named("self,shm").cma(false),
            Self::Tcp => named("self,tcp"),
            Self::RcVerbs => {
                emulated::find_rdma_devices();
                named("self,rc_verbs")
            }
        }
    }

    /// Two ranks, or one twice.
    pub(crate) async fn ranks(self) -> [Communicator; 2] {
        self.ranks_of(self.builder().build().expect("a context"))
            .await
    }

    pub(crate) async fn ranks_of(self, context: Context) -> [Communicator; 2] {
        if self == Self::Own {
            let [only] = group::<1>(&context).await;
            return [only.clone(), only];
        }
        group::<2>(&context).await
    }

    /// The rank that the first of these talks to, and the one that the second does.
    pub(crate) fn peers(self) -> [usize; 2] {
        match self {
            Self::Own => [0, 0],
            _ => [1, 0],
        }
    }
}

/// A group of ranks, each with a worker of its own.
pub(crate) async fn group<const N: usize>(context: &Context) -> [Communicator; N] {
    let deadline = Duration::from_secs(20);
    let group = MemoryBootstrap::group_with_deadline(N, deadline).expect("a group");
    let ranks = group.into_iter().map(|bootstrap| {
        let worker = Worker::new(context).expect("a worker");
        let bootstrap: Arc<dyn Bootstrap> = Arc::new(bootstrap);
        async move { Communicator::new(bootstrap, &worker).await }
    });
    let ranks = futures::future::try_join_all(ranks).await;
    let ranks = ranks.expect("communicators");
    ranks.try_into().expect("as many")
}

pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    block_on(&runtime.expect("a runtime"), 3 * LIMIT, future)
}

/// Bytes that tell where they are and which they are.
pub(crate) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    support::pattern(seed as u64, length)
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Allocated by wharf.
    Own,
    /// The program's.
    Vec,
    /// On the emulated device.
    Cuda,
    Rocm,
}

impl Place {
    pub(crate) const ALL: [Self; 4] = [Self::Own, Self::Vec, Self::Cuda, Self::Rocm];

    pub(crate) fn context(self, carrier: Carrier) -> Context {
        let builder = carrier.builder();
        let builder = match self {
            Self::Own | Self::Vec => builder,
            Self::Cuda => {
                let library = CudaCopy::with_library(emulated::cuda());
                builder.accelerator(Arc::new(library))
            }
            Self::Rocm => {
                let library = RocmCopy::with_library(emulated::hsa());
                builder.accelerator(Arc::new(library))
            }
        };
        builder.build().expect("a context")
    }

    /// Registered memory with these bytes.
    pub(crate) async fn memory(self, rank: &Communicator, bytes: Vec<u8>) -> RegisteredMemory {
        let memory: BufferMut = match self {
            Self::Vec => bytes.into(),
            _ => {
                let kind = match self {
                    Self::Cuda => MemoryType::Cuda(0),
                    Self::Rocm => MemoryType::Rocm(0),
                    _ => MemoryType::Host,
                };
                let context = rank.worker().context();
                let room = context.allocate_on(kind, bytes.len()).await;
                let copied = rank.worker().copy(bytes, room.expect("memory")).await;
                copied.expect("filled")
            }
        };
        rank.register(memory, BOTH).await.expect("registered")
    }
}

/// What is in registered memory, wherever it is: read by way of the channel itself, by a rank's own memory of the host.
pub(crate) async fn content(rank: &Communicator, memory: &RegisteredMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    if memory.memory_type().is_host_accessible() {
        memory.read_at(0, &mut bytes).expect("within");
        return bytes;
    }
    let remote = rank.deserialize(&memory.serialize().expect("bytes")).await;
    let remote = remote.expect("its own");
    let part = remote.part(0, memory.len()).expect("within");
    let got = remote.endpoint().get(part, bytes).await;
    got.expect("got")
}

/// Channels of two ranks to each other, over memory with these bytes.
pub(crate) async fn channels(
    ranks: &[Communicator; 2],
    peers: [usize; 2],
    memories: [&RegisteredMemory; 2],
) -> [MemoryChannel; 2] {
    if ranks[0].size() == 1 {
        // A message to itself is received by the same call: one channel, whose ends are the same.
        let channel = MemoryChannel::connect(&ranks[0], 0, 3, memories[0]).await;
        let channel = channel.expect("a channel");
        return [channel.clone(), channel];
    }
    let (one, two) = tokio::join!(
        MemoryChannel::connect(&ranks[0], peers[0], 3, memories[0]),
        MemoryChannel::connect(&ranks[1], peers[1], 3, memories[1]),
    );
    [one.expect("a channel"), two.expect("a channel")]
}
