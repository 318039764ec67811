//! The program's own use of CUDA, by the functions that the driver exports: nothing of it goes through wharf.
//! What streams work with the tests keep until they have waited for the stream.

use std::{marker::PhantomData, ptr::NonNull, sync::Arc};

use crate::{fixture::raw, raw::Raw};

/// What a call that failed said.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Success, or what the driver calls the code.
fn check(code: u32) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(raw().name(code)),
    }
}

/// The primary context of a device, held until the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct CudaContext(Arc<Primary>);

#[derive(Debug)]
struct Primary {
    raw: u64,
    device: i32,
}

impl CudaContext {
    /// That of a device, made if there is none.
    pub(crate) fn primary(ordinal: u16) -> Self {
        let driver: &Raw = raw();
        driver.ok(driver.cuInit(0));
        let (mut device, mut context) = (0, 0);
        driver.ok(driver.cuDeviceGet(&mut device, i32::from(ordinal)));
        driver.ok(driver.cuDevicePrimaryCtxRetain(&mut context, device));
        Self(Arc::new(Primary {
            raw: context,
            device,
        }))
    }

    /// Makes it the current one of this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Guard<'_>> {
        check(raw().cuCtxPushCurrent_v2(self.0.raw))?;
        Ok(Guard {
            context: self,
            thread: PhantomData,
        })
    }

    /// Runs a drop's work in it. Its failure is the test's to look for.
    fn on_drop(&self, work: impl FnOnce(&Raw) -> u32) {
        if let Ok(_guard) = self.enter() {
            let _ = work(raw());
        }
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        let _ = raw().cuDevicePrimaryCtxRelease_v2(self.device);
    }
}

/// A context that is current on this thread.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    context: &'a CudaContext,
    thread: PhantomData<*const ()>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut popped = 0;
        let _ = raw().cuCtxPopCurrent_v2(&raw mut popped);
    }
}

impl Guard<'_> {
    /// Device memory.
    pub(crate) fn allocate(&self, len: usize) -> Result<Memory> {
        let mut at = 0;
        check(raw().cuMemAlloc_v2(&mut at, len))?;
        Ok(self.owned(at, |driver, at| driver.cuMemFree_v2(at)))
    }

    /// Managed memory.
    pub(crate) fn allocate_managed(&self, len: usize) -> Result<Memory> {
        let mut at = 0;
        check(raw().cuMemAllocManaged(&mut at, len, 1))?;
        Ok(self.owned(at, |driver, at| driver.cuMemFree_v2(at)))
    }

    /// Pinned memory, for every context and for the device itself.
    pub(crate) fn allocate_pinned(&self, len: usize) -> Result<Memory> {
        let mut at = 0;
        check(raw().cuMemHostAlloc(&mut at, len, 3))?;
        Ok(self.owned(at, |driver, at| driver.cuMemFreeHost(at)))
    }

    /// Registers host memory, which the caller keeps until the result is dropped.
    pub(crate) fn register_host(&self, host: NonNull<u8>, len: usize) -> Result<Memory> {
        let at = host.as_ptr().expose_provenance() as u64;
        check(raw().cuMemHostRegister_v2(at, len, 3))?;
        Ok(self.owned(at, |driver, at| driver.cuMemHostUnregister(at)))
    }

    fn owned(&self, at: u64, free: fn(&Raw, u64) -> u32) -> Memory {
        Memory {
            context: self.context.clone(),
            at,
            free,
        }
    }

    /// A stream without order against the default one.
    pub(crate) fn stream(&self) -> Result<Stream> {
        let mut raw_stream = 0;
        check(raw().cuStreamCreate(&mut raw_stream, 1))?;
        Ok(Stream {
            context: self.context.clone(),
            raw: raw_stream,
            owned: true,
        })
    }

    /// An event without times.
    pub(crate) fn event(&self) -> Result<Event> {
        let mut event = 0;
        check(raw().cuEventCreate(&mut event, 2))?;
        Ok(Event {
            context: self.context.clone(),
            raw: event,
        })
    }
}

/// Memory that is freed, or unregistered, on drop.
#[derive(Debug)]
pub(crate) struct Memory {
    context: CudaContext,
    at: u64,
    free: fn(&Raw, u64) -> u32,
}

impl Memory {
    /// Where it begins. Host memory has the same address for the device, as the emulated driver and those of 64 bits have it.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The same, by the name that it has with every vendor.
    pub(crate) fn address(&self) -> u64 {
        self.at
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.context.on_drop(|driver| (self.free)(driver, self.at));
    }
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    context: CudaContext,
    raw: u64,
    owned: bool,
}

impl Stream {
    /// Somebody else's stream, which lives longer.
    pub(crate) fn adopt(context: &CudaContext, raw: u64) -> Self {
        Self {
            context: context.clone(),
            raw,
            owned: false,
        }
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> u64 {
        self.raw
    }

    /// Enqueues a copy.
    pub(crate) fn copy(&self, _guard: &Guard<'_>, to: u64, from: u64, len: usize) -> Result<()> {
        check(raw().cuMemcpyAsync(to, from, len, self.raw))
    }

    /// Enqueues waiting until the word of 8 bytes is at least `value`.
    pub(crate) fn wait_value(&self, _guard: &Guard<'_>, at: u64, value: u64) -> Result<()> {
        check(raw().cuStreamWaitValue64_v2(self.raw, at, value, 0))
    }

    /// Enqueues marking this place.
    pub(crate) fn record(&self, _guard: &Guard<'_>, event: &Event) -> Result<()> {
        check(raw().cuEventRecord(event.raw, self.raw))
    }

    /// Whether all is done.
    pub(crate) fn is_idle(&self, _guard: &Guard<'_>) -> Result<bool> {
        /// `CUDA_ERROR_NOT_READY`.
        const NOT_READY: u32 = 600;
        match raw().cuStreamQuery(self.raw) {
            NOT_READY => Ok(false),
            code => check(code).map(|()| true),
        }
    }

    /// Waits until all is done.
    pub(crate) fn synchronize(&self, _guard: &Guard<'_>) -> Result<()> {
        check(raw().cuStreamSynchronize(self.raw))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            self.context
                .on_drop(|driver| driver.cuStreamDestroy_v2(self.raw));
        }
    }
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    context: CudaContext,
    raw: u64,
}

impl Event {
    /// The driver's handle.
    pub(crate) fn raw(&self) -> u64 {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context
            .on_drop(|driver| driver.cuEventDestroy_v2(self.raw));
    }
}
