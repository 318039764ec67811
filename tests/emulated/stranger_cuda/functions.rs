//! The driver's functions and structs with their types from the public header, for those who look them up each in its own way.

/// `CUipcMemHandle` and others of its size.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Opaque(pub(crate) [u8; 64]);

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Prop {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: [i32; 2],
    pub(crate) win32: usize,
    pub(crate) flags: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) location: [i32; 2],
    pub(crate) flags: u32,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: [i32; 2],
    pub(crate) win32: usize,
    pub(crate) max: usize,
    pub(crate) reserved: [u8; 56],
}

/// Hands all functions to a macro.
macro_rules! cuda_functions {
    ($each:ident) => {
        $each! {
            cuInit(flags: u32);
            cuDriverGetVersion(version: &mut i32);
            cuGetErrorName(error: u32, text: &mut *const c_char);
            cuGetProcAddress_v2(name: *const c_char, function: &mut *mut c_void, version: i32, flags: u64, status: &mut u32);
            cuDeviceGetCount(count: &mut i32);
            cuDeviceGet(device: &mut i32, number: i32);
            cuDeviceGetAttribute(value: &mut i32, attribute: u32, device: i32);
            cuDeviceGetUuid_v2(uuid: &mut [u8; 16], device: i32);
            cuDeviceGetPCIBusId(text: *mut u8, len: i32, device: i32);
            cuDeviceCanAccessPeer(can: &mut i32, device: i32, peer: i32);
            cuDevicePrimaryCtxRetain(context: &mut u64, device: i32);
            cuDevicePrimaryCtxRelease_v2(device: i32);
            cuDevicePrimaryCtxGetState(device: i32, flags: &mut u32, active: &mut i32);
            cuCtxCreate_v2(context: &mut u64, flags: u32, device: i32);
            cuCtxDestroy_v2(context: u64);
            cuCtxPushCurrent_v2(context: u64);
            cuCtxPopCurrent_v2(context: *mut u64);
            cuCtxGetCurrent(context: &mut u64);
            cuCtxGetDevice(device: &mut i32);
            cuCtxGetId(context: u64, id: &mut u64);
            cuCtxSynchronize();
            cuMemAlloc_v2(address: &mut u64, len: usize);
            cuMemFree_v2(address: u64);
            cuMemAllocManaged(address: &mut u64, len: usize, flags: u32);
            cuMemGetAddressRange_v2(base: &mut u64, len: &mut usize, address: u64);
            cuPointerGetAttribute(value: *mut c_void, attribute: u32, address: u64);
            cuPointerGetAttributes(count: u32, attributes: *const u32, values: *const *mut c_void, address: u64);
            cuMemGetHandleForAddressRange(fd: &mut i32, address: u64, len: usize, kind: u32, flags: u64);
            cuMemHostAlloc(address: &mut u64, len: usize, flags: u32);
            cuMemFreeHost(address: u64);
            cuMemHostRegister_v2(address: u64, len: usize, flags: u32);
            cuMemHostUnregister(address: u64);
            cuMemHostGetDevicePointer_v2(device: &mut u64, address: u64, flags: u32);
            cuMemcpyAsync(to: u64, from: u64, len: usize, stream: u64);
            cuMemcpyHtoD_v2(to: u64, from: u64, len: usize);
            cuMemcpyDtoH_v2(to: u64, from: u64, len: usize);
            cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64);
            cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64);
            cuStreamCreate(stream: &mut u64, flags: u32);
            cuStreamDestroy_v2(stream: u64);
            cuStreamQuery(stream: u64);
            cuStreamSynchronize(stream: u64);
            cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
            cuLaunchHostFunc(stream: u64, function: extern "C" fn(*mut c_void), data: *mut c_void);
            cuStreamAddCallback(stream: u64, function: extern "C" fn(u64, u32, *mut c_void), data: *mut c_void, flags: u32);
            cuStreamWriteValue32_v2(stream: u64, to: u64, value: u32, flags: u32);
            cuStreamWriteValue64_v2(stream: u64, to: u64, value: u64, flags: u32);
            cuStreamWaitValue32_v2(stream: u64, at: u64, value: u32, flags: u32);
            cuStreamWaitValue64_v2(stream: u64, at: u64, value: u64, flags: u32);
            cuEventCreate(event: &mut u64, flags: u32);
            cuEventDestroy_v2(event: u64);
            cuEventRecord(event: u64, stream: u64);
            cuEventQuery(event: u64);
            cuEventSynchronize(event: u64);
            cuEventElapsedTime(milliseconds: &mut f32, start: u64, end: u64);
            cuIpcGetMemHandle(handle: &mut Opaque, address: u64);
            cuIpcOpenMemHandle_v2(address: &mut u64, handle: Opaque, flags: u32);
            cuIpcCloseMemHandle(address: u64);
            cuIpcGetEventHandle(handle: &mut Opaque, event: u64);
            cuIpcOpenEventHandle(event: &mut u64, handle: Opaque);
            cuMemAddressReserve(address: &mut u64, len: usize, align: usize, wish: u64, flags: u64);
            cuMemAddressFree(address: u64, len: usize);
            cuMemCreate(handle: &mut u64, len: usize, prop: *const Prop, flags: u64);
            cuMemRelease(handle: u64);
            cuMemMap(address: u64, len: usize, offset: usize, handle: u64, flags: u64);
            cuMemUnmap(address: u64, len: usize);
            cuMemSetAccess(address: u64, len: usize, access: *const Access, count: usize);
            cuMemRetainAllocationHandle(handle: &mut u64, address: u64);
            cuMemExportToShareableHandle(out: *mut c_void, handle: u64, kind: u32, flags: u64);
            cuMemImportFromShareableHandle(handle: &mut u64, os_handle: *const c_void, kind: u32);
            cuMemPoolCreate(pool: &mut u64, props: *const PoolProps);
            cuMemPoolDestroy(pool: u64);
            cuMemPoolSetAccess(pool: u64, access: *const Access, count: usize);
            cuMemAllocFromPoolAsync(address: &mut u64, len: usize, pool: u64, stream: u64);
            cuMemAllocAsync(address: &mut u64, len: usize, stream: u64);
            cuMemFreeAsync(address: u64, stream: u64);
            cuMemPoolExportToShareableHandle(out: *mut c_void, pool: u64, kind: u32, flags: u64);
            cuMemPoolImportFromShareableHandle(pool: &mut u64, os_handle: *const c_void, kind: u32, flags: u64);
            cuMemPoolExportPointer(out: &mut Opaque, address: u64);
            cuMemPoolImportPointer(address: &mut u64, pool: u64, data: &mut Opaque);
            cuMemAlloc(address: *mut u32, len: u32);
            cuDeviceGetName(text: *mut u8, len: i32, device: i32);
            cuDeviceTotalMem_v2(len: &mut usize, device: i32);
            cuCtxGetFlags(flags: &mut u32);
            cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
            cuPointerSetAttribute(value: *const c_void, attribute: u32, address: u64);
            cuMemGetAllocationGranularity(granularity: &mut usize, prop: &Prop, option: u32);
            cuModuleLoadData(module: &mut u64, image: *const c_char);
            cuModuleGetFunction(function: &mut u64, module: u64, name: *const c_char);
            cuModuleGetGlobal_v2(address: &mut u64, len: &mut usize, module: u64, name: *const c_char);
            cuLaunchKernel(function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64, arguments: *const *mut c_void, extra: *const *mut c_void);
        }
    };
}
pub(crate) use cuda_functions;
