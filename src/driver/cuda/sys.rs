//! What `cuda.h` says: types, numbers, structs and the table of functions.
//!
//! The source is `cuda.h` and `cudaTypedefs.h` of CUDA 12.9 and 13.5 (packages `nvidia-cuda-runtime-cu12` 12.9.79 and
//! `nvidia-cuda-runtime` 13.5.37); sizes and offsets were printed by a C compiler from both, and are the same. Names are the exported
//! ones: the header's macros turn `cuMemAlloc` into `cuMemAlloc_v2`, and the plain name is the CUDA 3 function with 32-bit addresses.

use std::{
    ffi::{c_char, c_void},
    fmt,
    mem::offset_of,
    ops::{Add, Sub},
};

use super::status::Status;
use crate::driver::library::symbols;

/// An address that the device's driver gave or knows: memory of a device, managed memory, or pinned host memory. A number, never a
/// pointer: most of them cannot be read by the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct DevicePtr(pub(crate) u64);

impl DevicePtr {
    /// The address of host memory, which the driver knows under the same number (unified addressing).
    pub(crate) fn of_host<T>(pointer: *const T) -> Self {
        Self(pointer.addr() as u64)
    }
}

impl Add<u64> for DevicePtr {
    type Output = Self;
    fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl Sub for DevicePtr {
    type Output = u64;
    fn sub(self, other: Self) -> u64 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Declares opaque handles: a pointer into the driver that is never followed here.
macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident;)+) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) usize);

        impl $name {
            /// No such object; for a stream, the default stream.
            pub(crate) const NULL: Self = Self(0);
        }
    )+ };
}

handles! {
    /// `CUcontext`.
    RawContext;
    /// `CUstream`.
    RawStream;
    /// `CUevent`.
    RawEvent;
    /// `CUmemoryPool`.
    RawPool;
    /// `CUmodule`.
    RawModule;
    /// `CUfunction`.
    RawFunction;
}

/// `CUdevice`: a device's ordinal as the driver counts them.
pub(super) type RawDevice = i32;
/// `CUmemGenericAllocationHandle`: physical memory of the virtual memory management calls.
pub(super) type RawMemory = u64;
/// `CUhostFn`.
pub(super) type HostFn = unsafe extern "C" fn(*mut c_void);

/// `CUuuid`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `CUipcMemHandle`, given and taken by value: 64 bytes that mean something to the driver alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// `CUmemFabricHandle`: memory or a pool, for other nodes of the fabric too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct FabricHandle(pub(crate) [u8; 64]);

/// `CUmemPoolPtrExportData`: where in a shared pool an allocation lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct PoolPointer(pub(crate) [u8; 64]);

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Location {
    pub(super) kind: u32,
    pub(super) id: i32,
}

impl Location {
    /// A device.
    pub(super) const fn device(ordinal: i32) -> Self {
        Self {
            kind: LOCATION_DEVICE,
            id: ordinal,
        }
    }
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AllocationProperties {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`: 1, the only one.
    pub(super) kind: u32,
    pub(super) handle_types: u32,
    pub(super) location: Location,
    pub(super) win32: u64,
    pub(super) compression: u8,
    pub(super) rdma_capable: u8,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 4],
}

/// `CUmulticastObjectProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct MulticastProperties {
    pub(super) devices: u32,
    pub(super) size: usize,
    pub(super) handle_types: u64,
    pub(super) flags: u64,
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AccessDescription {
    pub(super) location: Location,
    pub(super) flags: u32,
}

const _: () = {
    assert!(size_of::<Status>() == 4 && size_of::<DevicePtr>() == 8 && size_of::<RawMemory>() == 8);
    assert!(size_of::<RawContext>() == size_of::<*mut c_void>());
    assert!(size_of::<Uuid>() == 16 && align_of::<Uuid>() == 1);
    assert!(size_of::<IpcHandle>() == 64 && align_of::<IpcHandle>() == 1);
    assert!(size_of::<PoolPointer>() == 64 && align_of::<PoolPointer>() == 1);
    assert!(size_of::<FabricHandle>() == 64 && align_of::<FabricHandle>() == 1);
    assert!(size_of::<Location>() == 8 && offset_of!(Location, id) == 4);
    assert!(size_of::<AllocationProperties>() == 32);
    assert!(offset_of!(AllocationProperties, rdma_capable) == 25);
    assert!(size_of::<MulticastProperties>() == 32 && offset_of!(MulticastProperties, size) == 8);
    assert!(size_of::<AccessDescription>() == 12 && offset_of!(AccessDescription, flags) == 8);
};

/// `CUdevice_attribute`, as far as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(crate) enum Attribute {
    /// Host and device may access managed memory at once.
    ConcurrentManagedAccess = 89,
    /// Physical memory and addresses can be had apart.
    VirtualMemory = 102,
    /// Network cards reach memory that was had so.
    VirtualMemoryRdma = 110,
    /// Read-only host memory can be registered.
    ReadOnlyHostRegister = 113,
    /// Who can flush writes of network cards: bit 0 the host.
    GpuDirectFlushOptions = 117,
    /// To whom writes of network cards are visible without a flush.
    GpuDirectWritesOrdering = 118,
    /// Streams can write and wait for 64-bit words.
    StreamMemoryOps64 = 122,
    /// Memory can be exported as a dma-buf.
    DmaBuf = 124,
    /// Physical memory can be shared with other nodes of a fabric.
    FabricHandles = 128,
    /// Memory of several devices can be had at one address (NVLink SHARP).
    Multicast = 132,
    /// A dma-buf of device memory can be mapped by the host.
    DmaBufMmap = 152,
}

/// Numbers of `CUpointer_attribute`.
pub(super) mod pointer {
    pub(in super::super) const CONTEXT: u32 = 1;
    pub(in super::super) const MEMORY_TYPE: u32 = 2;
    pub(in super::super) const SYNC_MEMOPS: u32 = 6;
    pub(in super::super) const BUFFER_ID: u32 = 7;
    pub(in super::super) const IS_MANAGED: u32 = 8;
    pub(in super::super) const DEVICE_ORDINAL: u32 = 9;
    pub(in super::super) const LEGACY_IPC: u32 = 10;
    pub(in super::super) const RANGE_START: u32 = 11;
    pub(in super::super) const RANGE_SIZE: u32 = 12;
    pub(in super::super) const ALLOWED_HANDLE_TYPES: u32 = 14;
    pub(in super::super) const MEMPOOL: u32 = 17;
    pub(in super::super) const MAPPING_SIZE: u32 = 18;
    pub(in super::super) const MAPPING_BASE: u32 = 19;
}

/// `CU_MEMORYTYPE_*`.
pub(super) const MEMORY_HOST: u32 = 1;
pub(super) const MEMORY_DEVICE: u32 = 2;
pub(super) const MEMORY_UNIFIED: u32 = 4;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(super) const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const HANDLE_POSIX_FD: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(super) const HANDLE_FABRIC: u32 = 8;
/// `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED` and `CU_MULTICAST_GRANULARITY_RECOMMENDED`.
pub(super) const GRANULARITY_RECOMMENDED: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(super) const ACCESS_READ_WRITE: u32 = 3;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`.
pub(super) const FLUSH_CURRENT_CONTEXT: u32 = 0;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES`.
pub(super) const FLUSH_TO_ALL_DEVICES: u32 = 200;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(super) const RANGE_DMA_BUF_FD: u32 = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`.
pub(super) const RANGE_PCIE: u64 = 1;
/// `CU_MEMHOSTREGISTER_*` and `CU_MEMHOSTALLOC_*`: known to every context; has an address on the device.
pub(super) const HOST_PORTABLE: u32 = 1;
pub(super) const HOST_DEVICE_MAP: u32 = 2;
/// `CU_MEMHOSTREGISTER_READ_ONLY`.
pub(super) const HOST_READ_ONLY: u32 = 8;
/// `CU_MEM_ATTACH_GLOBAL`.
pub(super) const ATTACH_GLOBAL: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`: no order with the default stream.
pub(super) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(super) const CAPTURE_NONE: u32 = 0;
/// `CU_EVENT_*`.
pub(super) const EVENT_BLOCKING_SYNC: u32 = 1;
pub(super) const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which opening demands.
pub(super) const IPC_LAZY_PEER_ACCESS: u32 = 1;
/// `CU_CTX_SYNC_MEMOPS`.
pub(super) const CTX_SYNC_MEMOPS: u32 = 0x80;
/// `CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION`.
pub(super) const RANGE_PREFERRED_LOCATION: u32 = 2;
/// `CU_DEVICE_CPU`: a managed range prefers the host.
pub(super) const DEVICE_CPU: i32 = -1;
/// `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`.
pub(super) const P2P_NATIVE_ATOMICS: u32 = 3;

symbols! {
    /// The functions of `libcuda.so.1`. `since` is 1000 × major + 10 × minor of the CUDA version that brought this ABI.
    struct Symbols;
    required {
        cuInit(u32) -> Status, since 2000;
        cuDeviceGetCount(*mut i32) -> Status, since 2000;
        cuDeviceGet(*mut RawDevice, i32) -> Status, since 2000;
        cuDeviceGetAttribute(*mut i32, u32, RawDevice) -> Status, since 2000;
        cuDeviceGetName(*mut c_char, i32, RawDevice) -> Status, since 2000;
        cuDeviceGetPCIBusId(*mut c_char, i32, RawDevice) -> Status, since 4010;
        cuDevicePrimaryCtxGetState(RawDevice, *mut u32, *mut i32) -> Status, since 7000;
        cuDevicePrimaryCtxRetain(*mut RawContext, RawDevice) -> Status, since 7000;
        cuDevicePrimaryCtxRelease_v2(RawDevice) -> Status, since 11000;
        cuCtxPushCurrent_v2(RawContext) -> Status, since 4000;
        cuCtxPopCurrent_v2(*mut RawContext) -> Status, since 4000;
        cuCtxGetDevice(*mut RawDevice) -> Status, since 2000;
        cuMemGetAddressRange_v2(*mut DevicePtr, *mut usize, DevicePtr) -> Status, since 3020;
        cuPointerGetAttributes(u32, *mut u32, *mut *mut c_void, DevicePtr) -> Status, since 7000;
        cuPointerGetAttribute(*mut c_void, u32, DevicePtr) -> Status, since 4000;
        cuPointerSetAttribute(*const c_void, u32, DevicePtr) -> Status, since 6000;
        cuMemAlloc_v2(*mut DevicePtr, usize) -> Status, since 3020;
        cuMemFree_v2(DevicePtr) -> Status, since 3020;
        cuMemHostAlloc(*mut *mut c_void, usize, u32) -> Status, since 2020;
        cuMemFreeHost(*mut c_void) -> Status, since 2000;
        cuMemHostRegister_v2(*mut c_void, usize, u32) -> Status, since 6050;
        cuMemHostUnregister(*mut c_void) -> Status, since 4000;
        cuMemHostGetDevicePointer_v2(*mut DevicePtr, *mut c_void, u32) -> Status, since 3020;
        cuMemcpyAsync(DevicePtr, DevicePtr, usize, RawStream) -> Status, since 4000;
        cuStreamCreate(*mut RawStream, u32) -> Status, since 2000;
        cuStreamDestroy_v2(RawStream) -> Status, since 4000;
        cuStreamQuery(RawStream) -> Status, since 2000;
        cuStreamSynchronize(RawStream) -> Status, since 2000;
        cuStreamWaitEvent(RawStream, RawEvent, u32) -> Status, since 3020;
        cuLaunchHostFunc(RawStream, HostFn, *mut c_void) -> Status, since 10000;
        cuEventCreate(*mut RawEvent, u32) -> Status, since 2000;
        cuEventDestroy_v2(RawEvent) -> Status, since 4000;
        cuEventRecord(RawEvent, RawStream) -> Status, since 2000;
        cuEventQuery(RawEvent) -> Status, since 2000;
        cuEventSynchronize(RawEvent) -> Status, since 2000;
        cuIpcGetMemHandle(*mut IpcHandle, DevicePtr) -> Status, since 4010;
        cuIpcOpenMemHandle_v2(*mut DevicePtr, IpcHandle, u32) -> Status, since 11000;
        cuIpcCloseMemHandle(DevicePtr) -> Status, since 4010;
    }
    optional {
        cuDeviceGetUuid(*mut Uuid, RawDevice) -> Status, since 9020;
        cuDeviceGetUuid_v2(*mut Uuid, RawDevice) -> Status, since 11040;
        cuDeviceCanAccessPeer(*mut i32, RawDevice, RawDevice) -> Status, since 4000;
        cuDeviceGetP2PAttribute(*mut i32, u32, RawDevice, RawDevice) -> Status, since 8000;
        cuCtxGetId(RawContext, *mut u64) -> Status, since 12000;
        cuCtxGetFlags(*mut u32) -> Status, since 7000;
        cuCtxSetFlags(u32) -> Status, since 12010;
        cuCtxGetStreamPriorityRange(*mut i32, *mut i32) -> Status, since 5050;
        cuCtxEnablePeerAccess(RawContext, u32) -> Status, since 4000;
        cuMemAllocManaged(*mut DevicePtr, usize, u32) -> Status, since 6000;
        cuMemRangeGetAttribute(*mut c_void, usize, u32, DevicePtr, usize) -> Status, since 8000;
        cuMemsetD8Async(DevicePtr, u8, usize, RawStream) -> Status, since 3020;
        cuMemcpyHtoDAsync_v2(DevicePtr, DevicePtr, usize, RawStream) -> Status, since 3020;
        cuMemcpyDtoHAsync_v2(DevicePtr, DevicePtr, usize, RawStream) -> Status, since 3020;
        cuMemcpyDtoDAsync_v2(DevicePtr, DevicePtr, usize, RawStream) -> Status, since 3020;
        cuMemPrefetchAsync(DevicePtr, usize, RawDevice, RawStream) -> Status, since 8000;
        cuFlushGPUDirectRDMAWrites(u32, u32) -> Status, since 11030;
        cuMemGetHandleForAddressRange(*mut c_void, DevicePtr, usize, u32, u64) -> Status, since 11070;
        cuStreamCreateWithPriority(*mut RawStream, u32, i32) -> Status, since 5050;
        cuStreamGetCtx(RawStream, *mut RawContext) -> Status, since 9020;
        cuStreamIsCapturing(RawStream, *mut u32) -> Status, since 10000;
        cuStreamWriteValue64_v2(RawStream, DevicePtr, u64, u32) -> Status, since 11070;
        cuStreamWaitValue64_v2(RawStream, DevicePtr, u64, u32) -> Status, since 11070;
        cuMemAddressReserve(*mut DevicePtr, usize, usize, DevicePtr, u64) -> Status, since 10020;
        cuMemAddressFree(DevicePtr, usize) -> Status, since 10020;
        cuMemCreate(*mut RawMemory, usize, *const AllocationProperties, u64) -> Status, since 10020;
        cuMemGetAllocationGranularity(*mut usize, *const AllocationProperties, u32) -> Status, since 10020;
        cuMulticastGetGranularity(*mut usize, *const MulticastProperties, u32) -> Status, since 12010;
        cuMemRelease(RawMemory) -> Status, since 10020;
        cuMemMap(DevicePtr, usize, usize, RawMemory, u64) -> Status, since 10020;
        cuMemUnmap(DevicePtr, usize) -> Status, since 10020;
        cuMemSetAccess(DevicePtr, usize, *const AccessDescription, usize) -> Status, since 10020;
        cuMemExportToShareableHandle(*mut c_void, RawMemory, u32, u64) -> Status, since 10020;
        cuMemImportFromShareableHandle(*mut RawMemory, *mut c_void, u32) -> Status, since 10020;
        cuMemRetainAllocationHandle(*mut RawMemory, *mut c_void) -> Status, since 11000;
        cuMemPoolDestroy(RawPool) -> Status, since 11020;
        cuMemPoolSetAccess(RawPool, *const AccessDescription, usize) -> Status, since 11020;
        cuMemPoolExportToShareableHandle(*mut c_void, RawPool, u32, u64) -> Status, since 11020;
        cuMemPoolImportFromShareableHandle(*mut RawPool, *mut c_void, u32, u64) -> Status, since 11020;
        cuMemPoolExportPointer(*mut PoolPointer, DevicePtr) -> Status, since 11020;
        cuMemPoolImportPointer(*mut DevicePtr, RawPool, *mut PoolPointer) -> Status, since 11020;
        cuModuleLoadData(*mut RawModule, *const c_void) -> Status, since 2000;
        cuModuleUnload(RawModule) -> Status, since 2000;
        cuModuleGetFunction(*mut RawFunction, RawModule, *const c_char) -> Status, since 2000;
        cuLaunchKernel(RawFunction, u32, u32, u32, u32, u32, u32, u32, RawStream, *mut *mut c_void, *mut *mut c_void) -> Status, since 4000;
    }
}

/// `cuGetProcAddress_v2` (12.0): base name, where the address goes, version, flags, what was found.
pub(super) type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> Status;
