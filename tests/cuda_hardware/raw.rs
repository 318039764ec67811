#![allow(unsafe_code)]
//! The driver's functions as they are exported, for loops without wharf and for what wharf never does.
//!
//! # Safety
//! Each function's type is written from the public header. The library is never unloaded. The pointers that tests pass live through the call;
//! device addresses are the driver's to check, and what it reads or writes later the tests keep until then.

#![allow(non_snake_case)]

use std::{
    ffi::{CStr, CString, c_char, c_void},
    fmt,
    path::Path,
    sync::OnceLock,
};

use libloading::Library;

/// What a call gives when the library lacks the function: no code of the driver's.
pub(crate) const MISSING: u32 = u32::MAX;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        struct Functions {
            $($name: Option<extern "C" fn($($type),*) -> u32>,)*
        }

        impl Functions {
            fn find(library: &Library) -> Self {
                Self {
                    // SAFETY: the type is the public header's, and the library stays loaded.
                    $($name: unsafe {
                        library.get::<extern "C" fn($($type),*) -> u32>(concat!(stringify!($name), "\0").as_bytes())
                    }
                    .ok()
                    .map(|found| *found),)*
                }
            }
        }

        #[allow(dead_code, clippy::too_many_arguments, reason = "the header's")]
        impl Raw {
            $(pub(crate) fn $name(&self, $($argument: $type),*) -> u32 {
                self.functions.$name.map_or(MISSING, |call| call($($argument),*))
            })*
        }
    };
}

functions! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: &mut i32);
    cuGetErrorName(error: u32, text: &mut *const c_char);
    cuGetProcAddress_v2(name: *const c_char, function: &mut *mut c_void, version: i32, flags: u64, status: &mut u32);
    cuDeviceGetCount(count: &mut i32);
    cuDeviceGet(device: &mut i32, number: i32);
    cuDeviceGetName(text: *mut u8, len: i32, device: i32);
    cuDeviceTotalMem_v2(len: &mut usize, device: i32);
    cuDeviceGetAttribute(value: &mut i32, attribute: u32, device: i32);
    cuDevicePrimaryCtxRetain(context: &mut u64, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuDevicePrimaryCtxGetState(device: i32, flags: &mut u32, active: &mut i32);
    cuCtxPushCurrent_v2(context: u64);
    cuCtxPopCurrent_v2(context: *mut u64);
    cuCtxGetCurrent(context: &mut u64);
    cuCtxGetDevice(device: &mut i32);
    cuCtxGetId(context: u64, id: &mut u64);
    cuCtxGetFlags(flags: &mut u32);
    cuCtxSynchronize();
    cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    cuMemAlloc_v2(address: &mut u64, len: usize);
    cuMemFree_v2(address: u64);
    cuMemAllocManaged(address: &mut u64, len: usize, flags: u32);
    cuMemGetAddressRange_v2(base: &mut u64, len: &mut usize, address: u64);
    cuPointerGetAttribute(value: *mut c_void, attribute: u32, address: u64);
    cuPointerGetAttributes(count: u32, attributes: *const u32, values: *const *mut c_void, address: u64);
    cuPointerSetAttribute(value: *const c_void, attribute: u32, address: u64);
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
    cuStreamCreate(stream: &mut u64, flags: u32);
    cuStreamDestroy_v2(stream: u64);
    cuStreamQuery(stream: u64);
    cuStreamSynchronize(stream: u64);
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
    cuLaunchHostFunc(stream: u64, function: extern "C" fn(*mut c_void), data: *mut c_void);
    cuStreamAddCallback(stream: u64, function: extern "C" fn(u64, u32, *mut c_void), data: *mut c_void, flags: u32);
    cuStreamWriteValue64_v2(stream: u64, to: u64, value: u64, flags: u32);
    cuEventCreate(event: &mut u64, flags: u32);
    cuEventDestroy_v2(event: u64);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
    cuEventElapsedTime(milliseconds: &mut f32, start: u64, end: u64);
    cuIpcGetMemHandle(handle: &mut Opaque, address: u64);
    cuIpcOpenMemHandle_v2(address: &mut u64, handle: Opaque, flags: u32);
    cuIpcCloseMemHandle(address: u64);
    cuMemAddressReserve(address: &mut u64, len: usize, align: usize, wish: u64, flags: u64);
    cuMemAddressFree(address: u64, len: usize);
    cuMemCreate(handle: &mut u64, len: usize, prop: &Prop, flags: u64);
    cuMemRelease(handle: u64);
    cuMemMap(address: u64, len: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(address: u64, len: usize);
    cuMemSetAccess(address: u64, len: usize, access: &Access, count: usize);
    cuMemRetainAllocationHandle(handle: &mut u64, address: u64);
    cuMemExportToShareableHandle(out: *mut c_void, handle: u64, kind: u32, flags: u64);
    cuMemGetAllocationGranularity(granularity: &mut usize, prop: &Prop, option: u32);
    cuMemPoolCreate(pool: &mut u64, props: &PoolProps);
    cuMemPoolDestroy(pool: u64);
    cuMemAllocFromPoolAsync(address: &mut u64, len: usize, pool: u64, stream: u64);
    cuMemAllocAsync(address: &mut u64, len: usize, stream: u64);
    cuMemFreeAsync(address: u64, stream: u64);
    cuModuleLoadData(module: &mut u64, image: *const c_char);
    cuModuleGetFunction(function: &mut u64, module: u64, name: *const c_char);
    cuModuleGetGlobal_v2(address: &mut u64, len: &mut usize, module: u64, name: *const c_char);
    cuLaunchKernel(function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64, arguments: *const *mut c_void, extra: *const *mut c_void);
}

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

/// A loaded driver.
pub(crate) struct Raw {
    library: Library,
    functions: Functions,
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw").finish_non_exhaustive()
    }
}

/// Loads the driver of this process; initialises nothing. One process has one.
pub(crate) fn load(path: &Path) -> Result<&'static Raw, String> {
    static LOADED: OnceLock<Result<Raw, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: a driver's start does nothing that a program must prepare for.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|error| {
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            reason.unwrap_or_else(|| error.to_string())
        })?;
        let functions = Functions::find(&library);
        Ok(Raw { library, functions })
    });
    loaded.as_ref().map_err(Clone::clone)
}

impl Raw {
    /// The address of an exported name.
    pub(crate) fn address(&self, name: &str) -> Option<usize> {
        // SAFETY: the address alone is looked at.
        let found = unsafe { self.library.get::<*const c_void>(name.as_bytes()) };
        found.ok().map(|found| (*found).addr())
    }

    /// Whether the library exports it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.address(name).is_some()
    }

    /// What the driver calls a code.
    pub(crate) fn name(&self, code: u32) -> String {
        let mut text = std::ptr::null();
        match code {
            MISSING => "no such function".to_owned(),
            _ if self.cuGetErrorName(code, &mut text) != 0 || text.is_null() => code.to_string(),
            _ => {
                // SAFETY: a static string of the driver's.
                let text = unsafe { CStr::from_ptr(text) };
                format!("{code} {}", text.to_string_lossy())
            }
        }
    }

    /// Demands success.
    #[track_caller]
    pub(crate) fn ok(&self, code: u32) {
        assert!(code == 0, "the driver says {}", self.name(code));
    }

    /// One attribute of an address as a word, or the code.
    pub(crate) fn pointer(&self, attribute: u32, address: u64) -> Result<u64, u32> {
        let mut value = 0_u64;
        match self.cuPointerGetAttribute((&raw mut value).cast(), attribute, address) {
            0 => Ok(value),
            code => Err(code),
        }
    }

    /// An attribute of the first device; 0 when the driver does not know it.
    pub(crate) fn device(&self, attribute: u32) -> i32 {
        let mut value = 0;
        match self.cuDeviceGetAttribute(&mut value, attribute, 0) {
            0 => value,
            _ => 0,
        }
    }

    /// A command to the emulated driver.
    pub(crate) fn control(&self, command: &str) -> String {
        type Control = extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
        // SAFETY: the emulated driver's one function of its own has this type.
        let call = unsafe { self.library.get::<Control>(b"wharf_emulated_control\0") };
        let call = call.expect("the emulated driver");
        let command = CString::new(command).expect("no zero");
        let mut answer = vec![0_u8; 1 << 16];
        let len = call(command.as_ptr(), answer.as_mut_ptr().cast(), answer.len());
        let answer = CStr::from_bytes_until_nul(&answer).expect("ends with a zero");
        let answer = answer.to_string_lossy().into_owned();
        assert!(len >= 0, "{command:?}: {answer}");
        answer
    }
}
