//! Blocks of device memory.

use crate::{
    error::Result,
    types::{Access, LinkId, OpKey},
    worker::{
        blocks::parse_put,
        ctx::Ctx,
        device::blocks::RUNS,
        layout::REQUESTS,
        movers::{Movers, pull::Announced},
        operations::Work,
        peer::at,
        violation::violation,
    },
};

impl Ctx {
    /// Length of the part that begins at `next`: at most `most`, as many runs as an engine is asked for at once, and as many blocks of the peer as one
    /// turn looks at. 0: nothing but empty blocks was found.
    pub(in crate::worker) fn part_length(
        &mut self,
        key: OpKey,
        next: usize,
        most: usize,
        load: bool,
    ) -> usize {
        let mut length = 0;
        for _ in 0..RUNS {
            let run = match load {
                true => self.source_run(key, next + length),
                false => self.target_run(key, next + length),
            };
            match run {
                Some(run) if run.length > 0 => length += run.length.min(most - length),
                // Whoever moves it says what is wrong.
                _ => length = most,
            }
            if length == most {
                break;
            }
        }
        match self.operations.work(key).and_then(Work::layout) {
            Some(plan) => plan.cut(next, length),
            None => length,
        }
    }

    /// A put of a peer is answered: if its blocks were announced, the peer may announce others.
    pub(crate) fn fill_answered(&mut self, link: LinkId, key: OpKey) {
        if let Some(Work::Fill(fill)) = self.operations.work(key)
            && fill.places.is_some()
            && let Some(peer) = self.peer(link)
        {
            peer.requests().serving = peer.requests().serving.saturating_sub(1);
        }
    }
}

impl Movers {
    /// Begins a put or get, in the table, between blocks that were checked and memory of which an end is out of its processor's reach.
    pub(crate) fn begin_device_layout(&mut self, link: LinkId, key: OpKey) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let Some(target) = entry.work.layout().map(|plan| plan.target) else {
            return;
        };
        if let Work::Put(put) = &mut *entry.work
            && target.on_device
        {
            put.announced = true;
            return self.submit(link, key);
        }
        self.begin_parts(key, target);
    }

    /// A peer puts into blocks of memory that this side has to fill itself.
    pub(crate) fn layout_announced(&mut self, link: LinkId, op: u64, body: &[u8]) -> Result<()> {
        let (header, shape, signal, rest) = parse_put(body)?;
        if header.last == 0 || !rest.is_empty() {
            return Err(violation("an announcement that is longer than its blocks"));
        }
        if at(&mut self.ctx.peers, link).is_some_and(|peer| peer.requests().serving >= REQUESTS) {
            return Err(violation("more requests than are allowed at a time"));
        }
        let announced = Announced {
            op,
            found: self.ctx.admit(&header, &shape, Access::WRITE),
            signal,
            offset: 0,
            length: header.length as usize,
            blocks: Some(shape),
            first: header.position,
            of_device: None,
        };
        self.fill_announced(link, announced);
        Ok(())
    }
}
