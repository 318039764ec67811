//! Workers and the connections between them, over scripted links, in this thread.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use tokio::runtime::Runtime;
use wharf::{
    Access, AmId, AmInbox, Context, Counter, Endpoint, EndpointId, Progress, Region, RemoteRegion,
    Worker, config::Limits,
};

use super::wire::{Kind, NAME, Scripted, Shared};

/// Exposed memory of a worker: slots for puts and gets, and words for atomic operations.
pub(crate) const SLOT: usize = 20_480;
pub(crate) const SLOTS: usize = 4;
pub(crate) const WORD: usize = SLOT * SLOTS;
pub(crate) const EXPOSED: usize = WORD + 64;

/// Ids of active messages that are received; that of the next one nobody receives.
pub(crate) const IDS: usize = 2;

/// Every way that links can be like.
pub(crate) const KINDS: [Kind; 4] = [
    Kind {
        name: "copied",
        zcopy: 0,
        long: usize::MAX,
        in_place: false,
        shares: false,
    },
    Kind {
        name: "lent",
        zcopy: 12_000,
        long: 3000,
        in_place: false,
        shares: false,
    },
    Kind {
        name: "in place",
        zcopy: 0,
        long: 6000,
        in_place: true,
        shares: false,
    },
    // Words in common, segments, and copies by the kernel.
    Kind {
        name: "shared",
        zcopy: 0,
        long: usize::MAX,
        in_place: true,
        shares: true,
    },
];

pub(crate) type Slot = Rc<RefCell<Option<AmInbox>>>;

pub(crate) struct Node {
    pub(crate) worker: Worker,
    pub(crate) region: Region,
    /// What is to be in it.
    pub(crate) shadow: Vec<u8>,
    pub(crate) counter: Counter,
    pub(crate) inboxes: [Slot; IDS],
    /// Killed, or shut down.
    pub(crate) is_over: bool,
}

/// A connection: side 0 has dialled.
pub(crate) struct Conn {
    pub(crate) nodes: [usize; 2],
    pub(crate) ends: [Option<Endpoint>; 2],
    pub(crate) ids: [EndpointId; 2],
    /// What each side may reach of the other.
    pub(crate) remotes: [Option<RemoteRegion>; 2],
    pub(crate) counters: [Option<RemoteRegion>; 2],
    pub(crate) wire: Shared,
    /// Something was done to it after which nothing is promised but an end.
    pub(crate) is_faulty: bool,
    /// Messages of it were changed on their way.
    pub(crate) is_hostile: bool,
}

/// How a bed is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) nodes: usize,
    /// Who dials whom.
    pub(crate) dials: &'static [[usize; 2]],
    pub(crate) rendezvous: usize,
    pub(crate) limits: fn(Limits) -> Limits,
}

/// Two workers with two links.
pub(crate) const TWO: &[[usize; 2]] = &[[0, 1], [1, 0]];
/// Five, of which one has a link to each.
pub(crate) const FIVE: &[[usize; 2]] = &[[0, 1], [0, 2], [3, 0], [4, 0], [1, 2]];

impl Plan {
    pub(crate) fn two(kind: Kind) -> Self {
        Self {
            kind,
            nodes: 2,
            dials: TWO,
            rendezvous: 5000,
            limits: |limits| limits,
        }
    }

    pub(crate) fn five(kind: Kind) -> Self {
        Self {
            nodes: 5,
            dials: FIVE,
            ..Self::two(kind)
        }
    }
}

pub(crate) struct Bed {
    pub(crate) conns: Vec<Conn>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) plan: Plan,
    transport: Scripted,
    pub(crate) runtime: Arc<Runtime>,
}

pub(crate) fn runtime() -> Arc<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Arc::new(builder.enable_all().build().expect("a runtime"))
}

impl Bed {
    pub(crate) fn new(plan: Plan) -> Self {
        let runtime = runtime();
        let inside = runtime.enter();
        let transport = Scripted::new(plan.kind);
        let nodes = (0..plan.nodes).map(|_| Self::node(&runtime, &transport, &plan));
        let nodes = nodes.collect();
        drop(inside);
        let mut bed = Self {
            conns: Vec::new(),
            nodes,
            plan,
            transport,
            runtime,
        };
        bed.connect();
        bed
    }

    fn node(runtime: &Runtime, transport: &Scripted, plan: &Plan) -> Node {
        let context = Context::builder().transport(Arc::new(transport.clone()));
        let names = if plan.kind.shares {
            format!("{NAME},cma")
        } else {
            NAME.to_owned()
        };
        let context = context.transports(&names).expect("its own transport");
        let context = context
            .progress(Progress::EventDriven)
            .rendezvous_threshold(plan.rendezvous)
            .limits((plan.limits)(Limits::default()))
            .build()
            .expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let (region, counter) = runtime.block_on(async {
            let memory = context.allocate(EXPOSED).await.expect("memory");
            let all = Access::READ | Access::WRITE;
            let region = context.expose(memory, all).await.expect("a region");
            (region, worker.counter().await.expect("a counter"))
        });
        let inbox = |id| {
            let inbox = worker.active_messages(AmId(id)).capacity(4).open();
            Rc::new(RefCell::new(Some(inbox.expect("an inbox"))))
        };
        Node {
            region,
            shadow: vec![0; EXPOSED],
            counter,
            inboxes: [inbox(0), inbox(1)],
            worker,
            is_over: false,
        }
    }

    /// Makes all connections, which were none.
    pub(crate) fn connect(&mut self) {
        assert!(self.conns.is_empty(), "connected");
        let runtime = self.runtime.clone();
        for nodes in self.plan.dials {
            let conn = runtime.block_on(self.dial(*nodes));
            self.conns.push(conn);
        }
    }

    async fn dial(&self, nodes: [usize; 2]) -> Conn {
        let [client, server] = nodes.map(|node| &self.nodes[node]);
        let before = server.worker.metrics().accepted;
        let address = server.worker.address().expect("an address");
        let near = client.worker.connect(&address).await.expect("connected");
        while server.worker.metrics().accepted == before {
            tokio::task::yield_now().await;
        }
        // Takes over what the client has made.
        let address = client.worker.address().expect("an address");
        let far = server.worker.connect(&address).await.expect("claimed");
        let mut made = self.transport.made();
        assert_eq!(made.len(), 1, "one wire for a connection");
        let import = |endpoint: &Endpoint, node: &Node| {
            let region = node.region.descriptor().expect("a descriptor");
            let counter = node.counter.descriptor().expect("a descriptor");
            let [region, counter] =
                [region, counter].map(|descriptor| endpoint.import(&descriptor).expect("imported"));
            (Some(region), Some(counter))
        };
        let (there, up) = import(&near, server);
        let (here, down) = import(&far, client);
        Conn {
            nodes,
            ids: [near.id(), far.id()],
            ends: [Some(near), Some(far)],
            remotes: [there, here],
            counters: [up, down],
            wire: made.remove(0),
            is_faulty: false,
            is_hostile: false,
        }
    }
}
