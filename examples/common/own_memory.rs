//! Device memory that the program allocates by the vendor's own calls, as a program has that got it from a framework. wharf has no part in it but for the last step,
//! [`BufferMut::foreign`], which makes it a buffer; the buffer's owner frees it, by the vendor's calls again.
//!
//! # Safety
//! Functions have the types of the vendors' headers, in libraries that are never unloaded; pointers are to live locals. Memory is zeroed before it becomes a
//! buffer, nobody else has it, and it is freed by its owner, which the buffer keeps.
#![allow(unsafe_code)]

use std::{env, ffi::c_void};

use libloading::Library;
use parking_lot::Mutex;
use wharf::{BufferMut, Context, MemoryType, transport::gaudi::GaudiCopy};

use super::accelerator::Outcome;

/// Memory of a device, zeroed.
pub(crate) fn allocate(context: &Context, device: MemoryType, length: usize) -> Outcome<BufferMut> {
    // SAFETY: as of the file. The types are not told: wharf finds whose memory it is by the address.
    let buffer = unsafe {
        match device {
            MemoryType::Cuda(device) => {
                let owner = Cuda::allocate(device, length)?;
                BufferMut::foreign(context, owner.address, length, owner)
            }
            MemoryType::Rocm(device) => {
                let owner = Rocm::allocate(device, length)?;
                BufferMut::foreign(context, owner.address, length, owner)
            }
            MemoryType::Gaudi(card) => {
                let owner = Gaudi::allocate(card, length)?;
                BufferMut::foreign(context, owner.address, length, owner)
            }
            other => return Err(format!("{other} is of no device").into()),
        }
    };
    Ok(buffer?)
}

/// A vendor's library: that of the variable by which wharf is told of it, else by its name.
fn library(variable: &str, name: &str) -> Outcome<&'static Library> {
    let path = env::var_os(variable).unwrap_or_else(|| name.into());
    // SAFETY: what wharf loads, too.
    let library = unsafe { Library::new(path) }?;
    Ok(Box::leak(Box::new(library)))
}

/// Calls a function of a library, whose result is 0 when it went well.
macro_rules! call {
    ($library:expr, $name:ident($($value:expr => $of:ty),*)) => {
        // SAFETY: as of the file.
        match unsafe { $library.get::<unsafe extern "C" fn($($of),*) -> i32>(stringify!($name)) } {
            // SAFETY: as of the file.
            Ok(function) => match unsafe { function($($value),*) } {
                0 => Ok(()),
                status => Err(format!("{}: status {status}", stringify!($name)).into()),
            },
            Err(error) => Outcome::Err(error.into()),
        }
    };
}

/// Of `cuMemAlloc`, in the device's primary context.
struct Cuda {
    driver: &'static Library,
    device: i32,
    context: usize,
    address: u64,
}

impl Cuda {
    fn allocate(ordinal: u16, length: usize) -> Outcome<Self> {
        let driver = library("WHARF_LIBCUDA", "libcuda.so.1")?;
        let (mut device, mut context, mut address) = (0, 0, 0);
        call!(driver, cuInit(0 => u32))?;
        call!(driver, cuDeviceGet(&raw mut device => *mut i32, ordinal.into() => i32))?;
        call!(driver, cuDevicePrimaryCtxRetain(&raw mut context => *mut usize, device => i32))?;
        call!(driver, cuCtxPushCurrent_v2(context => usize))?;
        call!(driver, cuMemAlloc_v2(&raw mut address => *mut u64, length => usize))?;
        call!(driver, cuMemsetD8_v2(address => u64, 0 => u8, length => usize))?;
        call!(driver, cuCtxSynchronize())?;
        call!(driver, cuCtxPopCurrent_v2(&raw mut context => *mut usize))?;
        Ok(Self {
            driver,
            device,
            context,
            address,
        })
    }

    fn free(&mut self) -> Outcome<()> {
        call!(self.driver, cuCtxPushCurrent_v2(self.context => usize))?;
        call!(self.driver, cuMemFree_v2(self.address => u64))?;
        call!(self.driver, cuCtxPopCurrent_v2(&raw mut self.context => *mut usize))?;
        call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.device => i32))
    }
}

/// Of `hsa_amd_memory_pool_allocate`, in the coarse-grained pool of the device.
struct Rocm {
    runtime: &'static Library,
    address: u64,
}

impl Rocm {
    fn allocate(ordinal: u16, length: usize) -> Outcome<Self> {
        const DEVICE: u32 = 17; // HSA_AGENT_INFO_DEVICE, of which 1 is a GPU
        const SEGMENT: u32 = 0; // HSA_AMD_MEMORY_POOL_INFO_SEGMENT, of which 0 is the global one
        const FLAGS: u32 = 1; // HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, of which 4 is coarse-grained
        type Each = extern "C" fn(u64, &mut Vec<u64>) -> i32;
        extern "C" fn each(handle: u64, list: &mut Vec<u64>) -> i32 {
            list.push(handle);
            0
        }
        let runtime = library("WHARF_LIBHSA", "libhsa-runtime64.so.1")?;
        call!(runtime, hsa_init())?;
        let (mut agents, mut gpus) = (Vec::new(), Vec::new());
        call!(runtime, hsa_iterate_agents(each => Each, &mut agents => &mut Vec<u64>))?;
        for agent in agents {
            let mut kind = 0;
            call!(runtime, hsa_agent_get_info(agent => u64, DEVICE => u32, &mut kind => &mut u32))?;
            gpus.extend((kind == 1).then_some(agent));
        }
        let gpu = *gpus.get(usize::from(ordinal)).ok_or("no such device")?;
        let mut pools = Vec::new();
        call!(runtime, hsa_amd_agent_iterate_memory_pools(gpu => u64, each => Each, &mut pools => &mut Vec<u64>))?;
        for pool in pools {
            let (mut segment, mut flags, mut at) = (0, 0, std::ptr::null_mut::<c_void>());
            call!(runtime, hsa_amd_memory_pool_get_info(pool => u64, SEGMENT => u32, &mut segment => &mut u32))?;
            call!(runtime, hsa_amd_memory_pool_get_info(pool => u64, FLAGS => u32, &mut flags => &mut u32))?;
            if segment != 0 || flags & 4 == 0 {
                continue;
            }
            // It is filled by words.
            let words = length.div_ceil(4);
            call!(runtime, hsa_amd_memory_pool_allocate(pool => u64, words * 4 => usize, 0 => u32, &mut at => &mut *mut c_void))?;
            call!(runtime, hsa_amd_memory_fill(at => *mut c_void, 0 => u32, words => usize))?;
            let address = at.expose_provenance() as u64;
            return Ok(Self { runtime, address });
        }
        Err("the device has no coarse-grained pool".into())
    }

    fn free(&mut self) -> Outcome<()> {
        call!(self.runtime, hsa_amd_memory_pool_free(self.address => u64))?;
        call!(self.runtime, hsa_shut_down())
    }
}

/// Of `synDeviceMalloc`, on the card that this program acquires.
struct Gaudi {
    synapse: &'static Library,
    card: u32,
    address: u64,
}

impl Gaudi {
    fn allocate(ordinal: u16, length: usize) -> Outcome<Self> {
        let (synapse, card) = Self::acquired(ordinal)?;
        let (mut stream, mut address) = (0, 0);
        call!(synapse, synDeviceMalloc(card => u32, length as u64 => u64, 0 => u64, 0 => u32, &raw mut address => *mut u64))?;
        call!(synapse, synStreamCreateGeneric(&raw mut stream => *mut usize, card => u32, 0 => u32))?;
        call!(synapse, synMemsetD8Async(address => u64, 0 => u8, length => usize, stream => usize))?;
        call!(synapse, synStreamSynchronize(stream => usize))?;
        call!(synapse, synStreamDestroy(stream => usize))?;
        Ok(Self {
            synapse,
            card,
            address,
        })
    }

    /// Acquires the card, of which a process has one: for the first memory, and for good.
    fn acquired(ordinal: u16) -> Outcome<(&'static Library, u32)> {
        static ACQUIRED: Mutex<Option<(&'static Library, u32)>> = Mutex::new(None);
        let mut acquired = ACQUIRED.lock();
        if let Some(acquired) = *acquired {
            return Ok(acquired);
        }
        let cards = GaudiCopy::new().cards()?;
        let module = cards
            .get(usize::from(ordinal))
            .ok_or("no such card")?
            .module_id();
        let synapse = library("WHARF_LIBSYNAPSE", "libSynapse.so")?;
        let mut card = 0;
        call!(synapse, synInitialize())?;
        call!(synapse, synDeviceAcquireByModuleId(&raw mut card => *mut u32, module => u32))?;
        Ok(*acquired.insert((synapse, card)))
    }

    fn free(&mut self) -> Outcome<()> {
        call!(self.synapse, synDeviceFree(self.card => u32, self.address => u64, 0 => u32))
    }
}

/// Frees it when the buffer is done with it.
macro_rules! free_on_drop {
    ($($owner:ty)*) => {$(
        impl Drop for $owner {
            fn drop(&mut self) {
                if let Err(error) = self.free() {
                    eprintln!("memory at {:#x} was not freed: {error}", self.address);
                }
            }
        }
    )*};
}

free_on_drop!(Cuda Rocm Gaudi);
