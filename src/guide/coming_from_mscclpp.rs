//! Coming from MSCCL++: name by name.
//!
//! | MSCCL++ | here |
//! |---|---|
//! | `Bootstrap`, `TcpBootstrap`, `createUniqueId`, `initialize` | [`Bootstrap`](crate::channel::Bootstrap), [`TcpRoot::bind`](crate::channel::bootstrap::TcpRoot::bind) and [`TcpBootstrap::join`](crate::channel::bootstrap::TcpBootstrap::join); in process, by Unix socket, etcd, or a launcher's variables too |
//! | `send`, `recv`, `allGather`, `barrier` | the same, awaited, with deadlines that name who is missing |
//! | `Communicator`, `connect` | [`Communicator`](crate::channel::Communicator), [`Communicator::endpoint`](crate::channel::Communicator::endpoint) |
//! | `Transport`, `TransportFlags`, `EndpointConfig` | none: the worker chooses, [`Endpoint::explain`](crate::Endpoint::explain) says what |
//! | `registerMemory`, `sendMemory`, `recvMemory` | [`Communicator::register`](crate::channel::Communicator::register), [`RegisteredMemory::send`](crate::channel::RegisteredMemory::send), [`Communicator::receive_memory`](crate::channel::Communicator::receive_memory) |
//! | `GpuBuffer` | [`GpuBuffer`](crate::channel::GpuBuffer): its [`kind`](crate::channel::GpuBuffer::kind) says how far it can be shared |
//! | `RegisteredMemory::serialize`, `deserialize` | the same; versioned, with leases and [`revoke`](crate::channel::RegisteredMemory::revoke) |
//! | `buildSemaphore`, `SemaphoreStub`, `Host2HostSemaphore` | [`Semaphore::pair`](crate::channel::Semaphore::pair) |
//! | `signal`, `wait`, `poll` | [`signal`](crate::channel::Semaphore::signal), [`wait`](crate::channel::Semaphore::wait) (sleeps; the ticket is taken when it succeeds, so a dropped wait loses none), [`poll`](crate::channel::Semaphore::poll) |
//! | `MemoryChannel`: `put`, `get`, `putWithSignal` | [`MemoryChannel`](crate::channel::MemoryChannel), from the host |
//! | `putPackets`, `unpackPackets`, LL8, LL16 | [`MemoryChannel::put_packets`](crate::channel::MemoryChannel::put_packets), [`unpack_packets`](crate::channel::MemoryChannel::unpack_packets), [`PacketWidth`](crate::channel::PacketWidth) |
//! | `PortChannel`, `ProxyService`, `ProxyTrigger`, the FIFO | [`PortChannel`](crate::channel::PortChannel), [`ProxyService`](crate::channel::ProxyService), [`Trigger`](crate::channel::Trigger): 16 bytes, the same layout of fields |
//! | `PortChannelDeviceHandle`, `FifoDeviceHandle`: `put`, `signal`, `flush`, `wait` in a kernel | [`DevicePort`](crate::channel::DevicePort): a ring that your kernels push to by the PTX functions of [`DevicePort::FUNCTIONS`](crate::channel::DevicePort::FUNCTIONS), with a [`DevicePortHandle`](crate::channel::DevicePortHandle) for each channel; every wait is bounded |
//! | `putWithSignalAndFlush` | [`PortChannel::put_with_signal_and_flush`](crate::channel::PortChannel::put_with_signal_and_flush) |
//! | a kernel that calls `put`, `signal`, `wait` on a `DeviceHandle` | [`DeviceChannel`](crate::channel::DeviceChannel) enqueues wharf's kernels in your stream; [`DeviceChannelHandle`](crate::channel::DeviceChannelHandle) is for your own |
//! | `SwitchChannel` (NVLS) | not here |
//!
//! What to unlearn: no `connect` is deferred until `.get()`: futures run when they are awaited, in any order, under a tag. A signal is one 8-byte
//! count, on every transport, and whoever waits for it sleeps. Where the device has no path of its own a channel goes from the host and
//! [`explain`](crate::channel::DeviceChannel::explain) says why.
//!
//! The shortest program is in [the chapter on groups](super::processes#groups-and-channels); `examples/ring_all_reduce.rs` and
//! `examples/perf_memory_channel.rs` are whole ones.
