//! Which public types may cross threads. A type that stops being `Send`, `Sync` or `Unpin` breaks programs that rely on it.

use wharf::{
    AcceptStream, Access, ActiveMessage, ActiveMessages, AmBytes, AmHandler, AmId, AmInbox,
    AmReceive, AmReceived, AmRecv, AmSend, AmSink, Atomic, Block, Blocks, Buffer, BufferList,
    BufferListMut, BufferMut, ByteReader, ByteStream, ByteWriter, Closed, Context, ContextBuilder,
    CopyBuffer, Counter, Descriptor, Endpoint, EndpointId, Error, ErrorKind, Explanation, Fence,
    Fetched, Flush, FlushAll, Get, HostBufferMut, Incoming, Listener, Mask, Matched, MemoryType,
    MessageInfo, Op, OpError, OpenStream, Operation, Priority, Progress, Put, ReadChunk, Ready,
    Received, Region, RemoteLayout, RemoteRegion, ReuniteError, Tag, TagMatched, TagRecv, TagSend,
    Wait, Worker, WorkerAddress, WorkerId, WriteBuffer,
    memory::{
        AddressRange, AllocMonitor, BufferPool, DmaBuf, DomainAttributes, DomainMemory,
        GetRegistration, Hooks, HostDomain, Imported, Lease, Leasing, MemoryAttributes,
        MemoryDomain, MemoryMonitor, MlockRegistrar, MonitorKind, PoolStats, Registration,
        RegistrationCache, RegistrationCacheOptions, RegistrationCacheStatistics, Released,
        Subscription, TrackedAlloc, Uffd,
    },
    transport::{
        Accelerator, Connected, Connector, CopyAttributes, CopyEngine, CopyRequest, Interface,
        Link, LinkAttributes, Opened, Place, RawSlice, Transport,
        accelerator::{DevicePlace, DeviceStream, Export, Import, ImportedMemory},
        cuda::{CudaCopy, CudaEvent, CudaStream},
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

    Worker: Send + Sync + Unpin + Clone + 'static;
    Endpoint: Send + Sync + Unpin + Clone + 'static;
    Listener: Send + Sync + Unpin + 'static;
    Incoming: Send + Unpin + 'static;
    WorkerAddress: Send + Sync + Unpin + Clone + 'static;
    Descriptor: Send + Sync + Unpin + Clone + 'static;
    Region: Send + Sync + Unpin + 'static;
    RemoteRegion: Send + Sync + Unpin + Clone + 'static;

    Buffer: Send + Sync + Unpin + Clone + 'static;
    BufferMut: Send + Sync + Unpin + 'static;
    BufferList: Send + Sync + Unpin + Clone + 'static;
    BufferListMut: Send + Sync + Unpin + 'static;
    RemoteLayout: Send + Sync + Unpin + Clone + 'static;
    Block: Send + Sync + Unpin + Copy + 'static;
    Blocks: Send + Sync + Unpin + Clone + 'static;
    HostBufferMut: Send + Sync + Unpin + 'static;
    Explanation: Send + Sync + Unpin + Clone + 'static;

    Export: Send + Sync + Unpin + Clone + 'static;
    Import: Send + Unpin + 'static;
    ImportedMemory: Send + Sync + Unpin + 'static;

    AddressRange: Send + Sync + Unpin + Copy + 'static;
    AllocMonitor: Send + Sync + Unpin + Copy + 'static;
    BufferPool<MlockRegistrar>: Send + Sync + Unpin + Clone + 'static;
    DmaBuf: Send + Sync + Unpin + 'static;
    DomainAttributes: Send + Sync + Unpin + Clone + 'static;
    HostDomain: Send + Sync + Unpin + Copy + 'static;
    Lease<MlockRegistrar>: Send + Sync + Unpin + 'static;
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
    TagMatched<'static>: Send + Unpin + 'static;
    AmSend<'static>: Send + Unpin + 'static;
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
    Flush<'static>: Send + Unpin + 'static;
    FlushAll<'static>: Send + Unpin + 'static;
    Fence<'static>: Send + Unpin + 'static;
    Atomic<'static, ()>: Send + Unpin + 'static;
    Atomic<'static, u32>: Send + Unpin + 'static;
    Atomic<'static, u64>: Send + Unpin + 'static;
    Counter: Send + Sync + Unpin + Clone + 'static;
    Wait<'static>: Send + Unpin + 'static;
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
    CudaEvent: Send + Sync + Unpin + Copy + 'static;
    CudaStream: Send + Sync + Unpin + Copy + 'static;
    DevicePlace: Send + Sync + Unpin + Copy + 'static;
    DeviceStream: Send + Sync + Unpin + Copy + 'static;
    dyn Transport: Send + Sync;
    dyn Connector: Send + Sync;
    dyn Interface: Send;
    dyn Link: Send;
    Opened: Send + Unpin + 'static;
    Connected: Send + Unpin + 'static;
    LinkAttributes: Send + Sync + Copy + 'static;
    RawSlice: Send + Unpin + Copy + 'static;
    Place: Unpin + 'static;
}
