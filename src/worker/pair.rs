//! For tests: two workers of this process, connected over shared memory.

use std::sync::Arc;

use crate::{
    Context,
    context::ContextBuilder,
    error::{Error, ErrorKind},
    types::{EndpointId, LinkId},
    worker::{Handle, connect},
};

pub(in crate::worker) struct Pair {
    pub(in crate::worker) here: Arc<Handle>,
    pub(in crate::worker) there: Arc<Handle>,
    /// From here to there.
    pub(in crate::worker) link: LinkId,
    pub(in crate::worker) endpoint: EndpointId,
}

impl Pair {
    pub(in crate::worker) async fn new() -> Self {
        Self::of(Context::builder()).await
    }

    pub(in crate::worker) async fn of(builder: ContextBuilder) -> Self {
        let builder = builder.transports("shm").expect("of this build");
        let context = builder.build().expect("a context");
        let start = || Handle::start(&context).expect("a worker");
        let (here, there) = (start(), start());
        let address = connect::address(&there.shared).expect("an address");
        let (link, endpoint) =
            connect::connect(&here.shared, connect::Destination::Worker(address))
                .await
                .expect("connected");
        Self {
            here,
            there,
            link,
            endpoint,
        }
    }

    pub(in crate::worker) fn end(&self) {
        let over = Error::new(ErrorKind::Closed, "over");
        self.here
            .shared
            .with(|engine| engine.abort(self.link, self.endpoint, over));
        self.here.shared.release_endpoint(self.link, self.endpoint);
    }
}
