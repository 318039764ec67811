#![allow(unsafe_code)]
//! The names of the oldest ABI, which `cuda.h` hides behind macros: device addresses of 32 bits, other arguments.
//!
//! A loader that looks them up has forgotten a suffix. The real driver would do something else than was meant; this one ends
//! the process with a message.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

macro_rules! traps {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> u32 {
                trap(stringify!($name))
            }
        )*
    };
}

traps! {
    cuDeviceTotalMem cuCtxCreate cuCtxDestroy cuCtxPushCurrent cuCtxPopCurrent
    cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset cuDevicePrimaryCtxSetFlags
    cuMemAlloc cuMemAllocPitch cuMemFree cuMemGetInfo cuMemGetAddressRange cuMemAllocHost
    cuMemHostRegister cuMemHostGetDevicePointer cuModuleGetGlobal
    cuMemcpyHtoD cuMemcpyDtoH cuMemcpyDtoD cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync
    cuMemsetD8 cuMemsetD16 cuMemsetD32
    cuStreamDestroy cuEventDestroy cuIpcOpenMemHandle cuStreamBatchMemOp
}

fn trap(name: &str) -> ! {
    eprintln!(
        "emulated CUDA driver: {name} is the oldest ABI of that name; what cuda.h means by it has a suffix (_v2)"
    );
    std::process::abort()
}
