//! A worker's life: started on a runtime, shared by handles, stopped when it is told to or when the last handle goes.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tracing::Instrument;

use crate::{
    Context,
    error::{Error, ErrorKind, Operation, Result},
    memory::region::RegionWatcher,
    protocol::{goodbye::Leaves, ledger::Ledger},
    sys::fork,
    util::tasks::spawn,
    worker::{
        aside::Aside,
        connect::{self, wireup::Wireup},
        core::Core,
        device::Devices,
        drivers,
        engine::Engine,
        held::quotas,
        peer::Peer,
        reactor::{self, Reactor},
        shared::{RUNTIME_ENDED, Shared, Transport},
    },
};

/// Why nothing begins on a worker any more.
const SHUT_DOWN: &str = "the worker was shut down";

/// What the last handle's drop leaves the connections to say goodbye.
const DROP_DEADLINE: Duration = Duration::from_secs(5);

/// What all handles of a worker hold together. The reactor holds [`Shared`] alone, so this one's end is the end of the handles.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    /// Locked for moments, by the futures of posted operations.
    pub(crate) aside: Aside,
}

impl Handle {
    pub(crate) fn start(context: &Context) -> Result<Arc<Self>> {
        fork::check(Operation::Connect)?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::new(
                ErrorKind::InvalidArgument,
                "a worker is made on a Tokio runtime: call this in its context",
            )
        })?;
        drivers::are_here()?;
        let rendezvous = context.config().rendezvous_threshold.value;
        let mut core = Core::new(context.regions().clone(), rendezvous);
        core.movers.ctx.ledger = Ledger::new(quotas(&context.config().limits));
        let mut engine = Engine::new(core)?;
        let mut transports = Vec::new();
        for transport in context.message_transports() {
            let opened = transport
                .open()
                .map_err(|error| error.over(transport.name()))?;
            engine.install(transport.name(), opened.interface)?;
            transports.push(Transport {
                name: transport.name(),
                reach: transport.reach(),
                connector: opened.connector,
            });
        }
        let shared = Arc::new(Shared::new(
            engine,
            connect::new_key()?,
            context.clone(),
            transports,
            runtime,
            Wireup::new(context.config().progress.value),
        )?);
        let me = shared.me.set(Arc::downgrade(&shared));
        debug_assert!(me.is_ok(), "it was made here");
        shared.with(|engine| {
            let movers = &mut engine.core.movers;
            movers.scheme = *context.config().rendezvous_scheme;
            if !context.accelerators().is_empty() {
                movers.devices = Devices::new(context);
            }
        });
        let watcher: Arc<dyn RegionWatcher> = shared.clone();
        context.regions().watch(Arc::downgrade(&watcher));
        // Of no other: a worker outlives what it was made in.
        let span =
            tracing::debug_span!(target: "wharf::worker", parent: None, "worker", id = %shared.id);
        if shared.spin.is_thread() {
            let driver = shared.clone();
            let bells = reactor::bells(&shared)?;
            std::thread::Builder::new()
                .name("wharf-worker".into())
                .spawn(move || span.in_scope(|| reactor::run_thread(&driver, &bells)))
                .map_err(|error| Error::io("the worker's thread", error))?;
            let mut stopped = shared.stopped.subscribe();
            let ends = Ends(shared.clone());
            spawn(&shared.runtime, async move {
                let _ends = ends;
                drop(stopped.wait_for(|stopped| *stopped).await);
            });
        } else {
            let _runtime = shared.runtime.enter();
            let reactor = Reactor::new(shared.clone())?;
            let ends = Ends(shared.clone());
            let drives = async move {
                let _ends = ends;
                reactor.await;
            };
            spawn(&shared.runtime, drives.instrument(span));
        }
        Ok(Arc::new(Self {
            shared,
            aside: Aside::default(),
        }))
    }

    /// Closes all connections, waits until they have said goodbye or the deadline passes, then stops for good.
    pub(crate) async fn shutdown(shared: &Arc<Shared>, deadline: Duration) -> Result<()> {
        fork::check(Operation::Close)?;
        let links = shared.with(|engine| {
            engine.closing.get_or_insert(SHUT_DOWN);
            let core = &mut engine.core;
            let links = core.movers.ctx.connections();
            let links: Vec<_> = links.map(|peer| (peer.slot, peer.id)).collect();
            for (link, _) in &links {
                let peer = core.movers.ctx.peer(*link);
                if peer.is_some_and(|peer| peer.is_open()) {
                    core.begin_close(*link, Leaves::ShutDown, None);
                }
            }
            core.wake_who_looks();
            links
        });
        let all = async {
            for (link, id) in &links {
                let mut ticket = None;
                std::future::poll_fn(|cx| shared.poll_closed(cx, *link, *id, &mut ticket)).await;
            }
        };
        let all = async { Ok(tokio::time::timeout(deadline, all).await.is_ok()) };
        // Whatever stops it meanwhile, or has before, leaves nothing to wait for.
        let all = shared.unless_stopped(Operation::Close, all).await;
        let in_time = all.unwrap_or(true);
        Self::stop(shared, SHUT_DOWN);
        if in_time {
            Ok(())
        } else {
            Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!("not all connections had closed within {deadline:?}; they were cut"),
            )
            .during(Operation::Close))
        }
    }

    /// Ends everything that is left.
    fn stop(shared: &Arc<Shared>, why: &'static str) {
        shared.with(|engine| {
            let why = *engine.closing.get_or_insert(why);
            engine.fail_all(why);
            engine.core.end_all(&Error::new(ErrorKind::Closed, why));
        });
        shared.end_devices();
        shared.stopping.store(true, Ordering::Release);
        shared.stopped.send_replace(true);
        shared.wake_reactor();
    }
}

/// Stops a worker, at the latest when this is dropped: nobody has it any more, or its runtime drops its tasks.
struct Stops(Arc<Shared>, &'static str);

impl Drop for Stops {
    fn drop(&mut self) {
        if !fork::forked() && !self.0.stopping.load(Ordering::Acquire) {
            Handle::stop(&self.0, self.1);
        }
    }
}

/// Of a task of the worker's runtime: the worker stops with it, and before the runtime's timers do.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        drop(Stops(self.0.clone(), RUNTIME_ENDED));
        if !fork::forked() {
            self.0.runtime_ends();
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.shared.id).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        // In a child the connections are the parent's still.
        if fork::forked() || shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let pending = shared.with(|engine| engine.ctx().connections().any(Peer::is_alive));
        if !pending {
            Self::stop(&shared, SHUT_DOWN);
            return;
        }
        let runtime = shared.runtime.clone();
        let stops = Stops(shared, SHUT_DOWN);
        // On a runtime that is gone the task is dropped at once, else with the runtime, and with it the connections.
        spawn(&runtime, async move {
            if let Err(error) = Self::shutdown(&stops.0, DROP_DEADLINE).await {
                tracing::warn!(target: "wharf::worker", %error, "a worker was dropped with connections open");
            }
        });
    }
}
