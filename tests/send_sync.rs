//! Which public types may cross threads. A type that stops being `Send`, `Sync` or `Unpin` breaks programs that rely on it.

use wharf::{
    AcceptStream, Access, ActiveMessage, ActiveMessages, Admission, AmBytes, AmHandler, AmId,
    AmInbox, AmReceive, AmReceived, AmRecv, AmSend, AmSendCopy, AmSink, Atomic, Block, Blocks,
    Buffer, BufferList, BufferListMut, BufferMut, ByteReader, ByteStream, ByteWriter, Closed,
    Context, ContextBuilder, ContextMetrics, CopyBuffer, Counter, Descriptor, Endpoint, EndpointId,
    Error, ErrorKind, Explanation, Fence, Fetched, Flush, FlushAll, Get, Held, HostBufferMut,
    Incoming, IncomingInfo, Listener, Mask, Matched, MemoryType, MessageInfo, Mover, NumaNode, Op,
    OpError, OpProgress, OpenStream, Operation, Party, Plan, Priority, Progress, ProgressStream,
    Put, Queued, Reached, ReadChunk, Ready, Received, RefusalCounts, Refusals, Region,
    RemoteLayout, RemoteRegion, Report, ReuniteError, StreamAddr, StreamListener, Tag, TagMatched,
    TagRecv, TagRecvBytes, TagRecvFrom, TagSend, Traffic, Transferred, TransportMetrics,
    TransportReport, TransportState, TypeCacheReport, Via, Wait, When, Worker, WorkerAddress,
    WorkerId, WorkerMetrics, WriteBuffer,
    channel::{
        Bootstrap, Communicator, CommunicatorId, DeviceChannel, DeviceChannelHandle, DevicePort,
        DevicePortHandle, Enqueued, GpuBuffer, GpuBufferKind, Lease, MemoryChannel, PacketWidth,
        PortChannel, ProxyService, RegisteredMemory, RemoteMemory, Semaphore, SemaphoreSignal,
        SemaphoreWait, Signals, Trigger, TriggerKind,
        bootstrap::{
            BootstrapOptions, Launch, Launcher, Meeting, MemoryBootstrap, TcpBootstrap, TcpRoot,
            UniqueId, UnixBootstrap,
        },
    },
    config::{Entry, Source, UnknownVariable, Variable},
    memory::{
        AddressRange, AllocMonitor, BufferPool, DmaBuf, DomainAttributes, DomainMemory,
        GetRegistration, Hooks, HostDomain, Imported, Leasing, MemoryAttributes, MemoryDomain,
        MemoryMonitor, MemoryTypeMetrics, MlockRegistrar, MonitorKind, PoolLease, PoolStats,
        Registration, RegistrationCache, RegistrationCacheMetrics, RegistrationCacheOptions,
        RegistrationCacheStatistics, Released, Subscription, TrackedAlloc, Uffd,
    },
    transport::{
        Accelerator, Connected, Connector, CopyAttributes, CopyEngine, CopyRequest, DeviceAtomic,
        DeviceInfo, DeviceKey, DeviceRegistrar, Exposure, Interface, Link, LinkAttributes,
        LocalKeys, LocalRange, OneSidedAttributes, Opened, Place, RawSlice, Registering,
        RemoteRange, SharedMemory, Transport,
        accelerator::{DevicePlace, DeviceStream, Export, Import, ImportedMemory},
        cuda::{CudaCopy, CudaEvent, CudaStream},
        gaudi::{GaudiCard, GaudiCopy, GaudiPath},
        rocm::{RocmCopy, RocmStream},
    },
};

/// Demands auto traits of types. It runs at compile time; a line that does not hold does not compile.
macro_rules! all {
    ($($type:ty: $first:tt $(+ $bound:tt)*;)+) => {
        #[test]
        fn auto_traits() {
            $({
                fn demand<T: $first $(+ $bound)* + ?Sized>() {}
                demand::<$type>();
            })+
        }
    };
}

all! {
    Context: Send + Sync + Unpin + Clone + 'static;
    ContextBuilder: Send + Sync + Unpin + 'static;
    Progress: Send + Sync + Unpin + Copy + 'static;
    Entry: Send + Sync + Unpin + Clone + 'static;
    Source: Send + Sync + Unpin + Copy + 'static;
    UnknownVariable: Send + Sync + Unpin + Clone + 'static;
    Variable: Send + Sync + Unpin + Copy + 'static;
    Report: Send + Sync + Unpin + Clone + 'static;
    TransportReport: Send + Sync + Unpin + Clone + 'static;
    TransportState: Send + Sync + Unpin + Clone + 'static;
    TypeCacheReport: Send + Sync + Unpin + Copy + 'static;
    NumaNode: Send + Sync + Unpin + Clone + 'static;
    DeviceInfo: Send + Sync + Unpin + Clone + 'static;

    Worker: Send + Sync + Unpin + Clone + 'static;
    Endpoint: Send + Sync + Unpin + Clone + 'static;
    Listener: Send + Sync + Unpin + 'static;
    StreamListener: Send + Sync + Unpin + 'static;
    StreamAddr: Send + Sync + Unpin + Clone + 'static;
    Incoming: Send + Unpin + 'static;
    IncomingInfo: Send + Sync + Unpin + Clone + 'static;
    Admission: Send + Sync + Unpin + Clone + 'static;
    Via: Send + Sync + Unpin + Copy + 'static;
    WorkerAddress: Send + Sync + Unpin + Clone + 'static;
    Descriptor: Send + Sync + Unpin + Clone + 'static;
    Region: Send + Sync + Unpin + 'static;
    RemoteRegion: Send + Sync + Unpin + Clone + 'static;

    RegisteredMemory: Send + Sync + Unpin + Clone + 'static;
    RemoteMemory: Send + Sync + Unpin + Clone + 'static;
    Lease: Send + Sync + Unpin + 'static;
    Semaphore: Send + Sync + Unpin + Clone + 'static;
    SemaphoreSignal<'static>: Send + Sync + Unpin + 'static;
    SemaphoreWait<'static>: Send + Sync + Unpin + 'static;
    Signals: Send + Sync + Unpin + 'static;
    MemoryChannel: Send + Sync + Unpin + Clone + 'static;
    PacketWidth: Send + Sync + Unpin + Copy + 'static;
    DeviceChannel: Send + Sync + Unpin + Clone + 'static;
    DeviceChannelHandle: Send + Sync + Unpin + Copy + 'static;
    DevicePort: Send + Sync + Unpin + Clone + 'static;
    DevicePortHandle: Send + Sync + Unpin + Copy + 'static;
    GpuBuffer: Send + Sync + Unpin + 'static;
    GpuBufferKind: Send + Sync + Unpin + Copy + 'static;
    Enqueued: Send + Unpin + 'static;
    ProxyService: Send + Sync + Unpin + Clone + 'static;
    PortChannel: Send + Sync + Unpin + Clone + 'static;
    Trigger: Send + Sync + Unpin + Copy + 'static;
    TriggerKind: Send + Sync + Unpin + Copy + 'static;
    DeviceAtomic: Send + Sync + Unpin + Copy + 'static;
    DeviceKey: Send + Sync + Unpin + Copy + 'static;
    Exposure: Send + Sync + Unpin + 'static;
    LocalKeys: Send + Sync + Unpin + Clone + 'static;
    LocalRange<'static>: Send + Sync + Unpin + Copy + 'static;
    OneSidedAttributes: Send + Sync + Unpin + Copy + 'static;
    Registering<()>: Send + Unpin + 'static;
    dyn DeviceRegistrar: Send + Sync + 'static;
    RemoteRange<'static>: Send + Sync + Unpin + Copy + 'static;

    Buffer: Send + Sync + Unpin + Clone + 'static;
    BufferMut: Send + Sync + Unpin + 'static;
    BufferList: Send + Sync + Unpin + Clone + 'static;
    BufferListMut: Send + Sync + Unpin + 'static;
    RemoteLayout: Send + Sync + Unpin + Clone + 'static;
    Block: Send + Sync + Unpin + Copy + 'static;
    Blocks: Send + Sync + Unpin + Clone + 'static;
    HostBufferMut: Send + Sync + Unpin + 'static;
    Explanation: Send + Sync + Unpin + Clone + 'static;
    Plan: Send + Sync + Unpin + Copy + 'static;
    Mover: Send + Sync + Unpin + Copy + 'static;
    Party: Send + Sync + Unpin + Copy + 'static;
    When: Send + Sync + Unpin + Copy + 'static;
    WorkerMetrics: Send + Sync + Unpin + Clone + 'static;
    ContextMetrics: Send + Sync + Unpin + Clone + 'static;
    TransportMetrics: Send + Sync + Unpin + Clone + 'static;
    Traffic: Send + Sync + Unpin + Copy + 'static;
    Held: Send + Sync + Unpin + Copy + 'static;
    Refusals: Send + Sync + Unpin + Copy + 'static;
    RefusalCounts: Send + Sync + Unpin + Copy + 'static;
    MemoryTypeMetrics: Send + Sync + Unpin + Copy + 'static;
    RegistrationCacheMetrics: Send + Sync + Unpin + Clone + 'static;

    dyn Bootstrap: Send + Sync;
    MemoryBootstrap: Send + Sync + Unpin + 'static;
    TcpBootstrap: Send + Sync + Unpin + 'static;
    TcpRoot: Send + Sync + Unpin + 'static;
    UnixBootstrap: Send + Sync + Unpin + 'static;
    BootstrapOptions: Send + Sync + Unpin + Clone + 'static;
    UniqueId: Send + Sync + Unpin + Clone + 'static;
    Meeting: Send + Sync + Unpin + Clone + 'static;
    Launch: Send + Sync + Unpin + Clone + 'static;
    Launcher: Send + Sync + Unpin + Copy + 'static;
    Communicator: Send + Sync + Unpin + Clone + 'static;
    CommunicatorId: Send + Sync + Unpin + Copy + 'static;

    Export: Send + Sync + Unpin + Clone + 'static;
    Import: Send + Unpin + 'static;
    ImportedMemory: Send + Sync + Unpin + 'static;

    AddressRange: Send + Sync + Unpin + Copy + 'static;
    AllocMonitor: Send + Sync + Unpin + Copy + 'static;
    BufferPool<MlockRegistrar>: Send + Sync + Unpin + Clone + 'static;
    DmaBuf: Send + Sync + Unpin + 'static;
    DomainAttributes: Send + Sync + Unpin + Clone + 'static;
    HostDomain: Send + Sync + Unpin + Copy + 'static;
    PoolLease<MlockRegistrar>: Send + Sync + Unpin + 'static;
    Leasing<'static, MlockRegistrar>: Send + Unpin + 'static;
    MemoryAttributes: Send + Sync + Unpin + Copy + 'static;
    MlockRegistrar: Send + Sync + Unpin + 'static;
    PoolStats: Send + Sync + Unpin + Copy + 'static;
    dyn DomainMemory: Send + Sync;
    dyn MemoryDomain: Send + Sync;
    Uffd: Send + Sync + Unpin + 'static;
    MonitorKind: Send + Sync + Unpin + Copy + 'static;
    Hooks: Send + Sync + Unpin + Copy + 'static;
    Imported: Send + Sync + Unpin + Copy + 'static;
    Subscription: Send + Sync + Unpin + 'static;
    TrackedAlloc: Send + Sync + Unpin + Copy + 'static;
    dyn MemoryMonitor: Send + Sync;
    RegistrationCache<MlockRegistrar>: Send + Sync + Unpin + Clone + 'static;
    Registration<MlockRegistrar>: Send + Sync + Unpin + Clone + 'static;
    GetRegistration<MlockRegistrar>: Send + Unpin + 'static;
    Released: Send + Sync + Unpin + 'static;
    RegistrationCacheOptions: Send + Sync + Unpin + Copy + 'static;
    RegistrationCacheStatistics: Send + Sync + Unpin + Copy + 'static;

    TagSend<'static>: Send + Unpin + 'static;
    TagRecv<'static, Vec<u8>>: Send + Unpin + 'static;
    TagRecvFrom<'static, Vec<u8>>: Send + Unpin + 'static;
    TagRecvBytes<'static>: Send + Unpin + 'static;
    TagMatched<'static>: Send + Unpin + 'static;
    AmSend<'static>: Send + Unpin + 'static;
    AmSendCopy<'static>: Send + Unpin + 'static;
    AmSink: Send + Unpin + 'static;
    ActiveMessages<'static>: Send + Unpin + 'static;
    AmInbox: Send + Sync + Unpin + 'static;
    AmHandler: Send + Sync + Unpin + 'static;
    AmRecv<'static>: Send + Unpin + 'static;
    ActiveMessage: Send + Sync + Unpin + 'static;
    AmReceive<Vec<u8>>: Send + Unpin + 'static;
    AmReceived<Vec<u8>>: Send + Sync + Unpin + 'static;
    AmBytes: Send + Unpin + 'static;
    Op<AmReceived<Vec<u8>>>: Send + Unpin + 'static;
    Put<'static>: Send + Unpin + 'static;
    Get<'static, Vec<u8>>: Send + Unpin + 'static;
    CopyBuffer<'static, Vec<u8>>: Send + Unpin + 'static;
    Queued<'static, Vec<u8>>: Send + Unpin + 'static;
    Reached<'static>: Send + Unpin + 'static;
    Flush<'static>: Send + Unpin + 'static;
    FlushAll<'static>: Send + Unpin + 'static;
    Fence<'static>: Send + Unpin + 'static;
    Atomic<'static, ()>: Send + Unpin + 'static;
    Atomic<'static, u32>: Send + Unpin + 'static;
    Atomic<'static, u64>: Send + Unpin + 'static;
    Counter: Send + Sync + Unpin + Clone + 'static;
    Wait<'static>: Send + Unpin + 'static;
    OpProgress: Send + Sync + Unpin + Clone + 'static;
    ProgressStream: Send + Sync + Unpin + 'static;
    Transferred: Send + Sync + Unpin + Copy + 'static;
    Op<u32>: Send + Unpin + 'static;
    Op<u64>: Send + Unpin + 'static;
    Closed<'static>: Send + Unpin + 'static;
    ByteStream: Send + Sync + Unpin + 'static;
    ByteReader: Send + Sync + Unpin + 'static;
    ByteWriter: Send + Sync + Unpin + 'static;
    ReuniteError: Send + Sync + Unpin + 'static;
    OpenStream<'static>: Send + Unpin + 'static;
    AcceptStream<'static>: Send + Unpin + 'static;
    ReadChunk<'static>: Send + Unpin + 'static;
    WriteBuffer<'static>: Send + Unpin + 'static;
    Ready<'static>: Send + Unpin + 'static;
    Priority: Send + Sync + Unpin + Copy + 'static;
    Op<()>: Send + Unpin + 'static;
    Op<Received<Vec<u8>>>: Send + Unpin + 'static;
    Op<Fetched<Vec<u8>>>: Send + Unpin + 'static;
    Received<Vec<u8>>: Send + Sync + Unpin + 'static;
    Matched: Send + Unpin + 'static;
    MessageInfo: Send + Sync + Unpin + Copy + 'static;

    Error: Send + Sync + Unpin + 'static;
    ErrorKind: Send + Sync + Unpin + Copy + 'static;
    Operation: Send + Sync + Unpin + Copy + 'static;
    OpError<Vec<u8>>: Send + Sync + Unpin + 'static;
    Result<(), OpError<Vec<u8>>>: Send + Sync;

    AmId: Send + Sync + Unpin + Copy + 'static;
    Access: Send + Sync + Unpin + Copy + 'static;
    EndpointId: Send + Sync + Unpin + Copy + 'static;
    Mask: Send + Sync + Unpin + Copy + 'static;
    MemoryType: Send + Sync + Unpin + Copy + 'static;
    Tag: Send + Sync + Unpin + Copy + 'static;
    WorkerId: Send + Sync + Unpin + Copy + 'static;

    dyn Accelerator: Send + Sync;
    dyn CopyEngine: Send;
    CopyAttributes: Send + Sync + Unpin + Copy + 'static;
    CopyRequest: Send + Unpin + Copy + 'static;
    CudaCopy: Send + Sync + Unpin + Clone + 'static;
    GaudiCopy: Send + Sync + Unpin + Clone + 'static;
    GaudiCard: Send + Sync + Unpin + Clone + 'static;
    GaudiPath: Send + Sync + Unpin + Clone + 'static;
    RocmCopy: Send + Sync + Unpin + Clone + 'static;
    CudaEvent: Send + Sync + Unpin + Copy + 'static;
    CudaStream: Send + Sync + Unpin + Copy + 'static;
    RocmStream: Send + Sync + Unpin + Copy + 'static;
    DevicePlace: Send + Sync + Unpin + Copy + 'static;
    DeviceStream: Send + Sync + Unpin + Copy + 'static;
    dyn Transport: Send + Sync;
    dyn SharedMemory: Send + Sync + 'static;
    dyn Connector: Send + Sync;
    dyn Interface: Send;
    dyn Link: Send;
    Opened: Send + Unpin + 'static;
    Connected: Send + Unpin + 'static;
    LinkAttributes: Send + Sync + Copy + 'static;
    RawSlice: Send + Unpin + Copy + 'static;
    Place: Unpin + 'static;
}
