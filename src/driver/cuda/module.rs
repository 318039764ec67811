//! Kernels: a module of PTX text that the driver compiles for its device, and launches of what is in it.
//!
//! To load is to compile: some tens of milliseconds, unless the driver has kept what it compiled before. It needs the driver's compiler, a library of its
//! own, which may be missing. The first launch of a kernel may load it into the device and wait for the device meanwhile; later launches take
//! microseconds, as long as the stream has room for them (about a thousand).
//!
//! # Safety
//! A module is unloaded once, by drop, in the context that made it; a [`Kernel`] is used while its module lives, which it holds.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_void},
    fmt, ptr,
    sync::Arc,
};

use super::{
    ContextGuard, CudaContext, Stream,
    sys::{RawFunction, RawModule},
};
use crate::error::Result;

/// Kernels that were loaded into a context. Unloaded on drop.
pub(crate) struct Module {
    context: CudaContext,
    raw: RawModule,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    module: Arc<Module>,
    raw: RawFunction,
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// 4 bytes.
    Word(u32),
    /// 8 bytes: an address or a length.
    Long(u64),
}

impl ContextGuard<'_> {
    /// Compiles and loads kernels. May take long.
    /// Errors: `Unsupported`: no compiler, or one that does not take this text; `Exhausted`, `DeviceLost`.
    pub(crate) fn load_module(&self, text: &CStr) -> Result<Arc<Module>> {
        let cuda = self.cuda();
        let call = cuda.optional(cuda.api.cuModuleLoadData, "cuModuleLoadData")?;
        let mut raw = RawModule::NULL;
        // SAFETY: writes one handle; the text ends with a zero, and is read during the call alone.
        let status = unsafe { call(&raw mut raw, text.as_ptr().cast::<c_void>()) };
        status.check("cuModuleLoadData")?;
        Ok(Arc::new(Module {
            context: self.context().clone(),
            raw,
        }))
    }
}

impl Module {
    /// A kernel by its name.
    /// Errors: `InvalidArgument`: the module has none of this name.
    pub(crate) fn kernel(
        self: &Arc<Self>,
        guard: &ContextGuard<'_>,
        name: &CStr,
    ) -> Result<Kernel> {
        guard.check(&self.context)?;
        let cuda = guard.cuda();
        let call = cuda.optional(cuda.api.cuModuleGetFunction, "cuModuleGetFunction")?;
        let mut raw = RawFunction::NULL;
        // SAFETY: writes one handle; the module lives, the name ends with a zero.
        let status = unsafe { call(&raw mut raw, self.raw, name.as_ptr()) };
        status.check("cuModuleGetFunction")?;
        Ok(Kernel {
            module: Arc::clone(self),
            raw,
        })
    }
}

impl Stream {
    /// Enqueues a kernel: `blocks` of `threads` each, in one dimension.
    /// Errors: `InvalidArgument`, `Exhausted`, `DeviceLost`. An error may also be of earlier work.
    ///
    /// # Safety
    /// The arguments are as many as the kernel takes, and of its types. What it reads and writes by them is valid until the stream has passed it, and
    /// others use it meanwhile only as the kernel allows.
    pub(crate) unsafe fn launch(
        &self,
        guard: &ContextGuard<'_>,
        kernel: &Kernel,
        (blocks, threads): (u32, u32),
        arguments: &[Argument],
    ) -> Result<()> {
        guard.check(self.context())?;
        guard.check(&kernel.module.context)?;
        let cuda = guard.cuda();
        let call = cuda.optional(cuda.api.cuLaunchKernel, "cuLaunchKernel")?;
        let mut pointers: Vec<*mut c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Word(word) => ptr::from_ref(word).cast_mut().cast(),
                Argument::Long(long) => ptr::from_ref(long).cast_mut().cast(),
            })
            .collect();
        // SAFETY: the pointers lead to values that live through the call, which copies them and writes none; the caller vouches for the rest.
        let status = unsafe {
            call(
                kernel.raw,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.raw(),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        status.check("cuLaunchKernel")
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let raw = self.raw;
        self.context.on_drop("unloading kernels", |guard| {
            let cuda = guard.cuda();
            let call = cuda.optional(cuda.api.cuModuleUnload, "cuModuleUnload")?;
            // SAFETY: unloaded once.
            let status = unsafe { call(raw) };
            status.check("cuModuleUnload")
        });
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module {:#x} of {:?}", self.raw.0, self.context)
    }
}
