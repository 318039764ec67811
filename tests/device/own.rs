//! Memory that the program allocated itself, by the functions of the emulated CUDA driver.
//!
//! # Safety
//! Its owner frees it, and nobody but the buffer that it is made has it.
#![allow(unsafe_code)]

use wharf::{BufferMut, Context, MemoryType};

use crate::support::emulated;

#[allow(dead_code)]
#[path = "../cuda_hardware/raw.rs"]
mod raw;

use raw::Raw;

type Free = fn(&Raw, u64) -> u32;

/// What is freed, by which function, on whatever thread that is.
struct Owner {
    driver: &'static Raw,
    primary: u64,
    at: u64,
    free: Free,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let driver = self.driver;
        within(driver, self.primary, || (self.free)(driver, self.at));
    }
}

/// Makes a call in this context.
fn within(driver: &Raw, primary: u64, call: impl FnOnce() -> u32) {
    let mut popped = 0;
    driver.ok(driver.cuCtxPushCurrent_v2(primary));
    driver.ok(call());
    driver.ok(driver.cuCtxPopCurrent_v2(&raw mut popped));
}

/// Memory of this type.
pub(crate) fn allocate(context: &Context, memory_type: MemoryType, len: usize) -> BufferMut {
    let driver = raw::load(&emulated::cuda()).expect("the emulated driver");
    driver.ok(driver.cuInit(0));
    let (mut device, mut primary, mut at) = (0, 0, 0);
    let ordinal = match memory_type {
        MemoryType::Cuda(ordinal) => ordinal.into(),
        _ => 0,
    };
    driver.ok(driver.cuDeviceGet(&mut device, ordinal));
    // Held for good, as a program has its device.
    driver.ok(driver.cuDevicePrimaryCtxRetain(&mut primary, device));
    let free = |driver: &Raw, at| driver.cuMemFree_v2(at);
    let (allocate, free): (&dyn Fn(&mut u64) -> u32, Free) = match memory_type {
        MemoryType::Cuda(_) => (&|at| driver.cuMemAlloc_v2(at, len), free),
        MemoryType::CudaManaged => (&|at| driver.cuMemAllocManaged(at, len, 1), free),
        MemoryType::HostPinned => (&|at| driver.cuMemHostAlloc(at, len, 3), |driver, at| {
            driver.cuMemFreeHost(at)
        }),
        other => panic!("a program has no {other} memory of this driver's"),
    };
    within(driver, primary, || allocate(&mut at));
    let owner = Owner {
        driver,
        primary,
        at,
        free,
    };
    // SAFETY: allocated above, zeroed, and freed by the owner.
    let memory = unsafe { BufferMut::foreign(context, at, len, owner) };
    let memory = memory.expect("found by its address");
    assert_eq!(memory.memory_type(), memory_type);
    memory
}
