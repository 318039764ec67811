//! Device ports: rings that kernels push triggers to.

use std::{
    fmt,
    future::poll_fn,
    mem::ManuallyDrop,
    pin::Pin,
    sync::{Arc, Weak},
};

use futures::Stream as _;
use tokio::task::AbortHandle;

use crate::{
    channel::{
        Semaphore,
        cuda::{self, unsupported},
    },
    context::Context,
    error::{Error, ErrorKind, Operation, Result},
    sys::blocking::blocking,
    transport::cuda::CudaStream,
    util::lock::Mutex,
};

use super::{Trigger, handle::DevicePortHandle, proxy::Shared, ring::Ring};

/// A ring in host memory that kernels of a CUDA device push triggers to, and that a proxy empties; made by
/// [`ProxyService::device_port`](super::ProxyService::device_port). A cheap clone. So a kernel asks for transfers over any carrier, to memory that its device does
/// not reach, and needs nothing but stores.
///
/// ```text
/// kernels of the program ── push, 16 bytes ──▶ ring in pinned memory ──▶ the proxy: put, signal, flush ──▶ shm, cuda_ipc, rc_verbs, tcp
///          ▲ wait ◀── a word in pinned memory ◀── signals of the peer
/// ```
///
/// The program's kernels are its own. [`FUNCTIONS`](Self::FUNCTIONS) is PTX for them to call, to be put behind the directives that begin a module:
///
/// ```no_run
/// # async fn run(proxy: wharf::channel::ProxyService, channel: wharf::channel::PortChannel, context: wharf::Context, stream: wharf::transport::cuda::CudaStream) -> wharf::Result<()> {
/// use wharf::channel::DevicePort;
/// let kernel = "
/// .visible .entry ask(.param .u64 port)
/// {
///     .reg .b64 %port, %ticket, %at, %length, %kind, %looks;
///     .reg .b32 %status;
///     ld.param.u64 %port, [port];
///     mov.u64 %at, 0; mov.u64 %length, 4096; mov.u64 %looks, 100000000;
///     mov.u64 %kind, 7; // put, signal, flush
///     {
///         .param .b64 a; .param .b64 b; .param .b64 c; .param .b64 d; .param .b64 e; .param .b64 f; .param .b64 g;
///         st.param.b64 [a], %port; st.param.b64 [b], %at; st.param.b64 [c], %at; st.param.b64 [d], %length;
///         st.param.b64 [e], %kind; st.param.b64 [f], %looks;
///         call.uni (g), wharf_port_put, (a, b, c, d, e, f);
///         ld.param.b64 %ticket, [g];
///     }
///     {
///         .param .b64 a; .param .b64 b; .param .b64 c; .param .b32 d;
///         st.param.b64 [a], %port; st.param.b64 [b], %ticket; st.param.b64 [c], %looks;
///         call.uni (d), wharf_port_flush, (a, b, c);
///         ld.param.b32 %status, [d];
///     }
///     ret;
/// }";
/// let text = [".version 7.0\n.target sm_70\n.address_size 64\n", DevicePort::FUNCTIONS, kernel].concat();
/// let port = proxy.device_port(&context, stream).await?;
/// let handle = channel.on_device(&port).await?;
/// // Load `text`, launch `ask` in the stream with `handle.address`, and:
/// port.expect();
/// # drop((text, handle));
/// # Ok(())
/// # }
/// ```
///
/// # When the proxy looks
/// No device wakes a thread by a store: the proxy looks. It does so all the time for a millisecond after a trigger or [`expect`](Self::expect), then once in
/// a millisecond, and after a second without triggers once in ten. It takes a runtime with timers.
///
/// # What the ends owe each other
/// Triggers of one port are done in order, as those of one producer of the proxy's own ring; of two rings neither waits for the other. What a trigger names is
/// checked as any other: one that is wrong fails, and the next flush of its channel with it, a kernel's or the host's.
#[derive(Clone)]
#[doc(alias("mscclpp::Fifo", "FifoDeviceHandle", "PortChannelDeviceHandle"))]
pub struct DevicePort {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    ring: Arc<Ring>,
    /// Keeps the proxy. `None` only while this is dropped.
    service: Option<Arc<dyn Send + Sync>>,
    /// Tasks that hand signals on.
    tasks: Mutex<Vec<AbortHandle>>,
}

impl DevicePort {
    /// PTX (ISA 7.0, `sm_70` and newer) of `wharf_port_push`, `wharf_port_put`, `wharf_port_flush` and `wharf_port_wait`, without the directives that begin a module.
    pub const FUNCTIONS: &'static str = include_str!("port.ptx");

    /// See [`ProxyService::device_port`](super::ProxyService::device_port).
    pub(super) async fn open(
        shared: Arc<Shared>,
        service: Arc<dyn Send + Sync>,
        context: &Context,
        stream: CudaStream,
    ) -> Result<Self> {
        shared.admits(Operation::Memory)?;
        let accelerator = cuda::accelerator(context);
        let lacking = || unsupported("CUDA is not in use by this context");
        let accelerator = accelerator.ok_or_else(lacking)?;
        let ring = blocking(move || {
            let cuda = cuda::cuda(&accelerator).ok_or_else(lacking)?;
            Ring::new(cuda.adopt(stream)?).map(Arc::new)
        });
        let ring = ring.await?;
        shared.add_ring(Arc::clone(&ring));
        let inner = Inner {
            shared,
            ring,
            service: Some(service),
            tasks: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// See [`PortChannel::on_device`](super::PortChannel::on_device). With a semaphore its signals go to the kernels.
    pub(super) async fn handle(
        &self,
        shared: &Arc<Shared>,
        trigger: Trigger,
        semaphore: Option<&Semaphore>,
    ) -> Result<DevicePortHandle> {
        self.inner.shared.admits(Operation::Memory)?;
        if !Arc::ptr_eq(shared, &self.inner.shared) {
            let text = "a channel of another proxy than the port's";
            return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory));
        }
        let [_, base] = trigger.to_words()?;
        let ring = Arc::clone(&self.inner.ring);
        let (handle, number) = blocking(move || ring.handle(base)).await?;
        if let Some(semaphore) = semaphore {
            let ring = Arc::downgrade(&self.inner.ring);
            let task = tokio::spawn(hand_on(semaphore.clone(), ring, number));
            self.inner.tasks.lock().push(task.abort_handle());
        }
        Ok(handle)
    }

    /// Says that kernels which push are on their way: the proxy looks for their triggers all the time, for a millisecond and as long as some come.
    pub fn expect(&self) {
        self.inner.shared.expect_triggers();
    }

    /// Triggers of this port that were done.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.inner.ring.done()
    }

    /// Whether all that kernels have flushed went well since this was last asked.
    ///
    /// # Errors
    /// The first of what went wrong; kernels are told of it (by 2) until then. `Forked` in a child made by `fork`.
    pub fn check(&self) -> Result<()> {
        self.inner.shared.admits(Operation::Flush)?;
        self.inner.ring.take_error().map_or(Ok(()), Err)
    }
}

/// Hands the signals of a semaphore on to kernels.
async fn hand_on(semaphore: Semaphore, ring: Weak<Ring>, number: usize) {
    let mut signals = semaphore.signals();
    let mut count = 0;
    loop {
        match poll_fn(|cx| Pin::new(&mut signals).poll_next(cx)).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(target: "wharf::channel", %error, "kernels get no more signals of a port channel");
                return;
            }
            None => return,
        }
        count += 1;
        match ring.upgrade() {
            Some(ring) => ring.signal(number, count),
            None => return,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().drain(..) {
            task.abort();
        }
        if self.shared.admits(Operation::Memory).is_err() {
            // A driver does nothing in a child made by `fork`, and the kernels and the proxy are its parent's.
            let _kept = ManuallyDrop::new(self.service.take());
            return;
        }
        let (shared, service) = (Arc::clone(&self.shared), self.service.take());
        Arc::clone(&self.ring).free_when_unused(move || {
            shared.expect_triggers();
            drop(service);
        });
    }
}

impl fmt::Debug for DevicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePort")
            .field("done", &self.done())
            .finish_non_exhaustive()
    }
}
