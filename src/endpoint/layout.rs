//! Blocks of remote memory, as one put or get takes them.

use std::{borrow::Cow, sync::Arc};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    protocol::{
        Blocks,
        layout::{Indexed, Shape, Strided, outside},
    },
    types::Access,
    worker::{device::admit_staging, layout::Plan},
};

use super::{Endpoint, RemoteRegion};

/// Bytes of a peer that one put or get touches: a [`RemoteRegion`] from its beginning on, or many blocks of it, strided or indexed. The buffer
/// holds the bytes of all blocks, one behind the other, and has to be exactly as long.
///
/// # What it costs
/// Preparing it costs the same for one block and for a million. To move a million blocks of 8 bytes takes 2 to 10 ms in memory that the owner
/// allocated by wharf on the same host, as the copies by themselves do, and 2 to 30 ms by messages (November 2026); in-order blocks the least,
/// strided ones less than listed ones. The kernel copies (`cma`) where blocks are few or long.
///
/// Where the region or the buffer is device memory, the bytes stop in pinned fragments of the host, of at most 256 blocks each, and the device's
/// engine makes one copy for each block; blocks that follow each other are one. Where staging is forbidden (`forbid_staging`), it is refused
/// with `Unsupported`.
///
/// A cheap clone. Blocks that overlap are read as often as they are named; a put leaves in the bytes that several of its blocks cover those
/// of any of them.
#[derive(Clone, Debug)]
#[doc(alias(
    "ucp_dt_make_sgl",
    "UCP_DATATYPE_SGL",
    "ucp_dt_remote_sgl_t",
    "ucp_dt_local_sgl_t",
    "UCP_DATATYPE_STRIDED"
))]
pub struct RemoteLayout {
    pub(super) region: RemoteRegion,
    /// `None`: as many bytes of the region as the buffer has.
    pub(super) shape: Option<Arc<Shape>>,
}

impl From<RemoteRegion> for RemoteLayout {
    #[inline]
    fn from(region: RemoteRegion) -> Self {
        Self {
            region,
            shape: None,
        }
    }
}

// A put or a get takes any of these; one that is lent is neither counted nor moved.

impl From<RemoteRegion> for Cow<'_, RemoteLayout> {
    #[inline]
    fn from(region: RemoteRegion) -> Self {
        Self::Owned(region.into())
    }
}

/// As a clone of it.
impl From<&RemoteRegion> for Cow<'_, RemoteLayout> {
    #[inline]
    fn from(region: &RemoteRegion) -> Self {
        region.clone().into()
    }
}

impl From<RemoteLayout> for Cow<'_, RemoteLayout> {
    #[inline]
    fn from(layout: RemoteLayout) -> Self {
        Self::Owned(layout)
    }
}

impl<'a> From<&'a RemoteLayout> for Cow<'a, RemoteLayout> {
    #[inline]
    fn from(layout: &'a RemoteLayout) -> Self {
        Self::Borrowed(layout)
    }
}

impl RemoteRegion {
    /// `count` blocks of `block` bytes each, the first at `offset`, and from one block's beginning to the next `stride` bytes. A column of a
    /// matrix, for one. Costs the same for any number of blocks.
    ///
    /// # Errors
    /// `OutOfBounds` when a block leaves the region.
    #[doc(alias = "ucp_dt_make_strided")]
    pub fn strided(
        &self,
        offset: usize,
        block: usize,
        stride: usize,
        count: usize,
    ) -> Result<RemoteLayout> {
        let strided = Strided::new(offset as u64, block as u64, stride as u64, count as u64);
        RemoteLayout::of_strided(self.clone(), strided)
    }

    /// Blocks in any order. The list is shared, not copied, and nothing is looked at here: preparing a million blocks costs what
    /// preparing one does.
    ///
    /// The first put or get checks the blocks, before anything moves (about 1 ns each), and fails with `OutOfBounds` and the number of
    /// the first block that leaves the region, or with `InvalidArgument` when the buffer is not as long as all of them. Clones of
    /// the layout remember the check.
    pub fn indexed(&self, blocks: impl Into<Blocks>) -> RemoteLayout {
        let indexed = Indexed::new(blocks.into(), self.len() as u64);
        RemoteLayout {
            region: self.clone(),
            shape: Some(Arc::new(Shape::Indexed(indexed))),
        }
    }
}

impl RemoteLayout {
    fn of_strided(region: RemoteRegion, strided: Strided) -> Result<Self> {
        let inside = strided
            .extent()
            .is_some_and(|(_, end)| end <= region.len() as u64);
        if !inside {
            return Err(outside().during(Operation::Memory));
        }
        Ok(Self {
            region,
            shape: Some(Arc::new(Shape::Strided(strided))),
        })
    }

    /// All blocks of a strided layout again and again: `count` times, each `stride` bytes after the one before. Rows of a block of a matrix
    /// repeated are a box in a volume. Possible twice, which makes three nested loops.
    ///
    /// # Errors
    /// `OutOfBounds` when a block leaves the region, `Unsupported` for a third time and for what is not strided.
    pub fn repeated(&self, stride: usize, count: usize) -> Result<Self> {
        let nested = match self.shape.as_deref() {
            Some(Shape::Strided(strided)) => strided.repeated(stride as u64, count as u64),
            _ => None,
        };
        match nested {
            Some(strided) => Self::of_strided(self.region.clone(), strided),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                "only strided layouts can be repeated, and those twice",
            )
            .during(Operation::Memory)),
        }
    }

    /// As [`RemoteRegion::check`]; of a list that was never used, the blocks are checked by the worker.
    #[inline]
    pub(super) fn check(
        &self,
        endpoint: &Endpoint,
        length: usize,
        access: Access,
        operation: Operation,
    ) -> Result<()> {
        match &self.shape {
            None => self.region.check(endpoint, length, access, operation),
            Some(shape) => self.check_shape(shape, endpoint, length, access, operation),
        }
    }

    /// Whether network devices may reach it: it is one run, and the owner gave keys.
    pub(super) fn is_in_reach_of_devices(&self) -> bool {
        self.shape.is_none() && self.region.route().is_some()
    }

    #[cold]
    /// # Errors
    /// `Unsupported`: device memory at an end without a way that needs no stop, and staging is forbidden.
    pub(super) fn check_blocks(&self, on_device: bool, operation: Operation) -> Result<()> {
        let there = self.region.is_on_device();
        if on_device || there {
            // Between two devices there may be a way, for bytes in one run; within a worker to and from pinned memory too.
            let endpoint = self.region.endpoint();
            let direct = self.shape.is_none() && (on_device && there || endpoint.is_own())
                || self.is_in_reach_of_devices();
            admit_staging(&endpoint.shared().context, direct, operation)?;
        }
        Ok(())
    }

    fn check_shape(
        &self,
        shape: &Shape,
        endpoint: &Endpoint,
        length: usize,
        access: Access,
        operation: Operation,
    ) -> Result<()> {
        self.region.check(endpoint, 0, access, operation)?;
        match shape.total() {
            None => Ok(()),
            Some(Ok(total)) if total == length as u64 => Ok(()),
            Some(Ok(total)) => {
                Err(crate::worker::layout::mismatch(length, total).during(operation))
            }
            Some(Err(error)) => Err(error.during(operation)),
        }
    }

    /// How it is reached by an operation that is not one run on both sides; `listed` when the buffer is not.
    pub(super) fn plan(&self, listed: bool, length: usize) -> Option<Box<Plan>> {
        let shape = match &self.shape {
            Some(shape) => shape.clone(),
            None if listed => Arc::new(Shape::block(length as u64)),
            None => return None,
        };
        Some(Box::new(Plan::new(
            self.region.target(),
            self.region.len(),
            shape,
        )))
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Context, Region, Worker,
        error::Result,
        protocol::{
            control::{self, LayoutAnswer, LayoutHeader},
            layout::{MAX_BLOCKS, encode_block},
        },
        transport::{Place, Sink},
        types::Access,
    };

    use super::*;

    /// An endpoint to oneself, whose peer does what no worker does.
    struct Hostile {
        endpoint: Endpoint,
        region: Region,
        _worker: Worker,
    }

    const SIZE: usize = 100;

    impl Hostile {
        async fn new() -> Self {
            let context = Context::builder()
                .transports("self")
                .unwrap()
                .build()
                .unwrap();
            let worker = Worker::new(&context).unwrap();
            let endpoint = worker.connect(&worker.address().unwrap()).await.unwrap();
            let access = Access::READ | Access::WRITE;
            let region = context.expose(vec![0; SIZE], access).await.unwrap();
            Self {
                endpoint,
                region,
                _worker: worker,
            }
        }

        fn remote(&self) -> RemoteRegion {
            self.endpoint
                .import(&self.region.descriptor().unwrap())
                .unwrap()
        }

        fn header(&self, length: u64, blocks: u32) -> LayoutHeader {
            LayoutHeader {
                generation: self.region.exposed().generation,
                position: 0,
                length,
                slot: self.region.exposed().slot,
                blocks,
                last: 0,
            }
        }

        fn message(&self, id: u8, header: u64, parts: &[&[u8]]) -> Result<()> {
            let (link, _) = self.endpoint.place();
            let body = parts.concat();
            self.endpoint
                .shared()
                .inside(|engine| engine.core.message(link, id, header, &body))
        }

        /// Demands that a message ends the connection, whole or with its payload to come.
        #[track_caller]
        fn violates(&self, id: u8, parts: &[&[u8]]) {
            let error = self.message(id, 1, parts).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol);
            self.untouched();
        }

        #[track_caller]
        fn untouched(&self) {
            let mut bytes = [1; SIZE];
            self.region.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; SIZE]);
        }

        fn is_open(&self) -> bool {
            let (link, _) = self.endpoint.place();
            self.endpoint.shared().inside(|engine| {
                engine.progress();
                engine.ctx().peer(link).is_some_and(|peer| peer.is_open())
            })
        }
    }

    fn list(blocks: &[(u64, u32)]) -> Vec<u8> {
        let mut list = Vec::new();
        for (offset, length) in blocks {
            encode_block(*offset, *length, &mut list);
        }
        list
    }

    fn form(offset: u64, block: u64, stride: u64, count: u64) -> [u8; Strided::FORM] {
        Strided::new(offset, block, stride, count).form()
    }

    /// Lies about lengths.
    #[tokio::test]
    async fn what_is_no_message_ends_the_connection() {
        for case in 0.. {
            let hostile = Hostile::new().await;
            let two = list(&[(0, 4), (10, 4)]);
            let header = |length, blocks| hostile.header(length, blocks).encode();
            let loops = form(0, 4, 8, 2);
            let (put, get) = (control::PUT_LAYOUT, control::GET_LAYOUT);
            match case {
                0 => hostile.violates(put, &[&header(8, 2)[1..]]),
                1 => hostile.violates(get, &[]),
                // Payloads shorter and longer than the blocks.
                2 => hostile.violates(put, &[&header(8, 2), &two, &[1; 7]]),
                3 => hostile.violates(put, &[&header(8, 2), &two, &[1; 9]]),
                4 => hostile.violates(put, &[&header(9, 2), &two, &[1; 9]]),
                5 => hostile.violates(put, &[&header(8, control::NONE), &loops, &[1; 7]]),
                6 => hostile.violates(put, &[&header(8, control::NONE), &loops[1..]]),
                // Lists that are not there, or too long.
                7 => hostile.violates(put, &[&header(8, 3), &two]),
                8 => hostile.violates(
                    put,
                    &[
                        &header(8, MAX_BLOCKS as u32 + 1),
                        &vec![0; 12 * (MAX_BLOCKS + 1)],
                    ],
                ),
                9 => hostile.violates(put, &[&header(8, u32::MAX - 1), &two]),
                10 => hostile.violates(get, &[&header(8, 1), &two]),
                11 => hostile.violates(get, &[&header(7, 2), &two]),
                12 => hostile.violates(get, &[&header(8, control::NONE), &loops, &[1]]),
                // Answers that nobody asked for.
                13 => hostile.violates(control::LAYOUT_DATA, &[&[0; 11]]),
                // Marks that there are not, a signal that ends too early.
                14..=16 => {
                    let mut header = hostile.header(8, 2);
                    header.last = [2, 4, 3][case - 14];
                    let body: [&[u8]; 2] = if case < 16 {
                        [&two, &[1; 8]]
                    } else {
                        [&two, &[]]
                    };
                    hostile.violates(put, &[&header.encode(), body[0], body[1]]);
                }
                17 => {
                    let mut header = hostile.header(8, 2);
                    header.last = 1;
                    hostile.violates(get, &[&header.encode(), &two]);
                }
                18 => {
                    let answer = LayoutAnswer {
                        position: 0,
                        status: 1,
                        code: 0,
                    };
                    hostile.violates(control::LAYOUT_DATA, &[&answer.encode()]);
                }
                _ => return,
            }
            assert!(!hostile.is_open(), "case {case}");
        }
    }

    /// What leaves the region, or overflows, is refused, and nothing is touched.
    #[tokio::test]
    async fn what_is_outside_is_refused() {
        let hostile = Hostile::new().await;
        let (put, get) = (control::PUT_LAYOUT, control::GET_LAYOUT);
        for bad in [
            (97, 4),
            (u64::MAX, 4),
            (u64::MAX - 3, 4),
            (101, 0),
            (0, 101),
        ] {
            let list = list(&[(0, 4), bad]);
            let length = 4 + u64::from(bad.1);
            let header = hostile.header(length, 2).encode();
            hostile
                .message(put, 1, &[&header, &list, &vec![1; length as usize]])
                .unwrap();
            hostile.message(get, 1, &[&header, &list]).unwrap();
        }
        for (offset, block, stride, count, position) in [
            (97, 4, 0, 1, 0),
            (0, 4, 97, 2, 0),
            (0, 4, u64::MAX, 2, 0),
            (0, 4, 1 << 63, 3, 0),
            (0, 4, 1, u64::MAX, 0),
            (0, 1 << 40, 0, 1 << 40, 0),
            (u64::MAX, 4, 0, 1, 0),
            // The part leaves the stream.
            (0, 4, 8, 2, 5),
            (0, 4, 8, 2, u64::MAX),
            (0, 0, 0, 5, 0),
            (0, 4, 8, 0, 0),
        ] {
            let mut header = hostile.header(4, control::NONE);
            header.position = position;
            let form = form(offset, block, stride, count);
            hostile
                .message(put, 1, &[&header.encode(), &form, &[1; 4]])
                .unwrap();
            hostile.message(get, 1, &[&header.encode(), &form]).unwrap();
            hostile.untouched();
        }
        let mut stale = hostile.header(4, control::NONE);
        stale.generation += 1;
        hostile
            .message(put, 1, &[&stale.encode(), &form(0, 4, 8, 2), &[1; 4]])
            .unwrap();
        stale.slot = u32::MAX;
        hostile
            .message(get, 1, &[&stale.encode(), &form(0, 4, 8, 2)])
            .unwrap();
        hostile.untouched();
        // Nor does anything arrive whose signal has no counter.
        let mut signalling = hostile.header(4, control::NONE);
        signalling.last = 3;
        let signal = control::Signal {
            generation: 1,
            offset: 0,
            add: 1,
            slot: 0,
        };
        let parts: [&[u8]; 4] = [
            &signalling.encode(),
            &signal.encode(),
            &form(0, 4, 8, 2),
            &[1; 4],
        ];
        hostile.message(put, 1, &parts).unwrap();
        hostile.untouched();
        // What is inside does arrive.
        let mut good = hostile.header(4, control::NONE);
        good.position = 2;
        hostile
            .message(put, 1, &[&good.encode(), &form(90, 4, 6, 2), &[1; 4]])
            .unwrap();
        let mut bytes = [0; 10];
        hostile.region.read_at(90, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]);
    }

    /// Only so many requests are held.
    #[tokio::test]
    async fn requests_are_bounded() {
        let hostile = Hostile::new().await;
        let header = hostile.header(8, 2).encode();
        let two = list(&[(0, 4), (10, 4)]);
        let (link, _) = hostile.endpoint.place();
        // Nothing is answered before the pass ends.
        let taken = hostile.endpoint.shared().inside(|engine| {
            let core = &mut engine.core;
            let idle = core.movers.ctx.peer(link).unwrap().link.take();
            let body = [&header[..], &two].concat();
            let taken = (0..1000)
                .take_while(|_| core.message(link, control::GET_LAYOUT, 1, &body).is_ok())
                .count();
            core.movers.ctx.peer(link).unwrap().link = idle;
            taken
        });
        assert_eq!(taken, 64);
        assert!(!hostile.is_open());
    }

    /// Bytes for a get that it did not ask for.
    #[tokio::test]
    async fn answers_are_held_to_the_request() {
        for (position, length) in [(9, 1), (5, 4), (u64::MAX, 1), (0, 9)] {
            for whole in [true, false] {
                let hostile = Hostile::new().await;
                let layout = hostile.remote().strided(0, 4, 8, 2).unwrap();
                let get = hostile.endpoint.get(layout, vec![0; 8]).post().unwrap();
                let (_, key, _) = get.place().expect("not over at once");
                let (link, _) = hostile.endpoint.place();
                let prefix = LayoutAnswer {
                    position,
                    status: 0,
                    code: 0,
                }
                .encode();
                let refused = if whole {
                    hostile
                        .message(control::LAYOUT_DATA, key.0, &[&prefix, &vec![1; length]])
                        .is_err()
                } else {
                    hostile.endpoint.shared().inside(|engine| {
                        match engine
                            .core
                            .place(link, control::LAYOUT_DATA, key.0, &prefix, length)
                        {
                            // It comes back as a whole one.
                            Ok(place) => matches!(place, Place::Whole),
                            Err(_) => true,
                        }
                    })
                };
                assert!(refused, "{length} bytes at {position}");
            }
        }
    }
}
