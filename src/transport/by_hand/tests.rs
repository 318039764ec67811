//! Two drivers of one process over each transport, and a peer that keeps to nothing: what it writes is made by the link itself.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{Driver, Posted, RemoteKey, driver::Brought, wire};
#[cfg(feature = "verbs")]
use crate::{
    driver::rdmacm::Libraries,
    transport::verbs::{RcOptions, RcVerbs},
};
use crate::{
    error::{ErrorKind, Result},
    memory::{BufferMut, HostBufferMut, Region},
    transport::{
        Role, SendError, Transport,
        conformance::{tcp_channel, unix_channel},
        shm::{Shm, ShmOptions},
        tcp::{Tcp, TcpOptions},
    },
    types::{Access, LinkId, Mover},
    util::testing::run,
};

const LENGTH: usize = (1 << 20) + 13;
const WATCHDOG: Duration = Duration::from_secs(60);

/// Over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Tcp,
    /// Memory that the peer maps.
    Mapped,
    Kernel,
    /// Shared memory without a way into the peer's.
    ShmMessages,
    #[cfg(feature = "verbs")]
    Verbs,
}

impl Over {
    const ALL: &[Self] = &[
        Self::Tcp,
        Self::Mapped,
        Self::Kernel,
        Self::ShmMessages,
        #[cfg(feature = "verbs")]
        Self::Verbs,
    ];

    fn way(self) -> Mover {
        match self {
            Self::Tcp | Self::ShmMessages => Mover::Messages,
            Self::Mapped => Mover::Mapped,
            Self::Kernel => Mover::Kernel,
            #[cfg(feature = "verbs")]
            Self::Verbs => Mover::NetworkDevices,
        }
    }

    fn transport(self) -> Arc<dyn Transport> {
        match self {
            Self::Tcp => Arc::new(Tcp::new(TcpOptions::default())),
            #[cfg(feature = "verbs")]
            Self::Verbs => {
                let program = std::env::current_exe().expect("this program");
                // In the virtual machine, its devices.
                let emulated = std::env::var_os("RDMA_VM").is_none();
                let options = RcOptions {
                    libraries: Libraries {
                        verbs: emulated
                            .then(|| program.with_file_name("libwharf_emulated_verbs.so")),
                        cm: None,
                    },
                    ..RcOptions::default()
                };
                Arc::new(RcVerbs::new(options))
            }
            _ => Arc::new(Shm::new(ShmOptions::default())),
        }
    }

    fn memory(self, length: usize) -> BufferMut {
        match self {
            Self::Mapped => HostBufferMut::allocate(length).expect("memory").into(),
            _ => vec![0; length].into(),
        }
    }
}

/// Two ends; the second has exposed memory.
struct Bed {
    here: Driver,
    there: Driver,
    to_there: LinkId,
    to_here: LinkId,
    region: Option<Region>,
    key: RemoteKey,
}

impl Bed {
    async fn new(over: Over, access: Access) -> Self {
        let transport = over.transport();
        let open = || {
            let driver = Driver::open(&transport).expect("opens");
            driver.by_kernel(over == Over::Kernel)
        };
        let (mut here, mut there) = (open(), open());
        let channels = match over {
            Over::Mapped | Over::Kernel | Over::ShmMessages => unix_channel(),
            _ => tcp_channel(),
        };
        let (to_there, to_here) = tokio::try_join!(
            here.connect(channels.0, Role::Client),
            there.connect(channels.1, Role::Server)
        )
        .expect("met");
        let region = there.expose(over.memory(LENGTH), access).await;
        let region = region.expect("exposed");
        let key = RemoteKey::from_bytes(&there.pack(&region).to_bytes()).expect("a key");
        Self {
            here,
            there,
            to_there,
            to_here,
            region: Some(region),
            key,
        }
    }

    /// Drives both until it is over.
    async fn wait<T: Brought>(&mut self, posted: Posted<T>) -> Result<T> {
        let Self { here, there, .. } = self;
        let serve = async {
            loop {
                there.turn().await.expect("serves");
            }
        };
        let both = async {
            tokio::select! {
                done = here.wait(posted) => done,
                () = serve => unreachable!("it serves for ever"),
            }
        };
        timeout(WATCHDOG, both).await.expect("in time")
    }

    async fn open(&mut self) -> Result<()> {
        let Self {
            here,
            there,
            to_there,
            key,
            ..
        } = self;
        let serve = async {
            loop {
                there.turn().await.expect("serves");
            }
        };
        let both = async {
            tokio::select! {
                done = here.open_key(*to_there, key) => done,
                () = serve => unreachable!("it serves for ever"),
            }
        };
        timeout(WATCHDOG, both).await.expect("in time")
    }

    async fn put(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let posted = self
            .here
            .put_zcopy(self.to_there, bytes.to_vec(), &self.key, offset);
        let posted = posted.await?;
        let back = self.wait(posted).await?;
        assert_eq!(back.as_slice(), Some(bytes));
        Ok(())
    }

    async fn get(&mut self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let posted = self
            .here
            .get_zcopy(self.to_there, vec![0xee; length], &self.key, offset);
        let posted = posted.await?;
        let got = self.wait(posted).await?;
        Ok(got.as_slice().expect("host memory").to_vec())
    }

    /// Progresses both ends until it is so.
    fn until(&mut self, so: impl Fn(&mut Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            assert!(start.elapsed() < WATCHDOG, "waited too long");
            self.here.progress();
            self.there.progress();
        }
    }

    /// Says something that no driver would.
    fn say(&mut self, id: u8, token: u64, body: &[u8]) {
        loop {
            let link = self.here.links.get_mut(&self.to_there).expect("a link");
            match link.am_bcopy(id, token, &[], body) {
                Ok(()) => break,
                Err(SendError::Full) => drop(self.here.progress()),
                Err(SendError::Failed(_)) => return,
            }
        }
        let Driver { links, state, .. } = &mut self.here;
        links.get_mut(&self.to_there).expect("a link").flush(state);
    }

    /// That the other end has ended the link for this.
    #[track_caller]
    fn is_cut(&mut self, text: &str) {
        self.until(|bed| bed.there.failure(bed.to_here).is_some());
        let error = self.there.failure(self.to_here).expect("failed");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn puts_and_gets_over_each() {
    for over in Over::ALL {
        run(async {
            let mut bed = Bed::new(*over, Access::all()).await;
            bed.open().await.expect("opened");
            assert_eq!(
                bed.here.way(bed.to_there, &bed.key).ok(),
                Some(over.way()),
                "{over:?}"
            );
            let longest = bed.here.max_short(bed.to_there, &bed.key).expect("a link");
            assert!(longest >= 28, "{over:?}: {longest}");
            let short = pattern(longest);
            let posted = bed.here.put_short(bed.to_there, &short, &bed.key, 3);
            bed.wait(posted.expect("posted")).await.expect("put");
            assert_eq!(bed.get(3, longest).await.expect("got"), short, "{over:?}");
            let error = bed
                .here
                .put_short(bed.to_there, &pattern(longest + 1), &bed.key, 0);
            assert_eq!(
                error.expect_err("too long").kind(),
                ErrorKind::InvalidArgument
            );
            for length in [0, 1, 27, 28, 29, 8191, 8192, 300_000, LENGTH] {
                let bytes = pattern(length);
                let offset = (LENGTH - length) as u64;
                bed.put(&bytes, offset).await.expect("put");
                let mut seen = vec![0; length];
                let region = bed.region.as_ref().expect("exposed");
                region.read_at(offset as usize, &mut seen).expect("within");
                assert!(seen == bytes, "{over:?}, {length} bytes, at the target");
                assert!(
                    bed.get(offset, length).await.expect("got") == bytes,
                    "{over:?}, {length} bytes"
                );
            }
        });
    }
}

/// More than the window has room for, at once and both ways.
#[test]
fn many_at_once() {
    for over in Over::ALL {
        run(async {
            let mut bed = Bed::new(*over, Access::all()).await;
            let mut posted = Vec::new();
            for number in 0..300_u64 {
                let bytes = vec![number as u8; 1000];
                let put = bed
                    .here
                    .put_zcopy(bed.to_there, bytes, &bed.key, number * 1000);
                posted.push(put.await.expect("posted"));
            }
            for put in posted {
                bed.wait(put).await.expect("put");
            }
            let mut posted = Vec::new();
            for number in 0..300_u64 {
                let get = bed
                    .here
                    .get_zcopy(bed.to_there, vec![0; 1000], &bed.key, number * 1000);
                posted.push((number, get.await.expect("posted")));
            }
            for (number, get) in posted {
                let got = bed.wait(get).await.expect("got");
                assert_eq!(got.as_slice(), Some(&[number as u8; 1000][..]), "{over:?}");
            }
        });
    }
}

#[test]
fn what_was_taken_back_is_stale() {
    for over in Over::ALL {
        run(async {
            let mut bed = Bed::new(*over, Access::all()).await;
            bed.open().await.expect("opened");
            bed.put(&[1; 100], 0).await.expect("put");
            let memory = bed.region.take().expect("exposed").unexpose().await;
            assert_eq!(memory.as_slice().expect("host")[..100], [1; 100]);
            let error = bed.put(&[2; 100], 0).await.expect_err("taken back");
            let by_devices = over.way() == Mover::NetworkDevices;
            // A device cannot tell why, and not all say the same.
            let kinds = match by_devices {
                true => vec![
                    ErrorKind::AccessDenied,
                    ErrorKind::Protocol,
                    ErrorKind::StaleKey,
                ],
                false => vec![ErrorKind::StaleKey],
            };
            assert!(kinds.contains(&error.kind()), "{over:?}: {error}");
            // Its rail ends with that: the next request goes by another, and by messages once there is none, or the connection ends as well.
            let mut last = error;
            for _ in 0..20 {
                last = bed.get(0, LENGTH).await.expect_err("taken back");
                if by_devices && bed.here.failure(bed.to_there).is_some() {
                    break;
                }
                assert!(kinds.contains(&last.kind()), "{over:?}: {last}");
            }
            match bed.here.failure(bed.to_there) {
                Some(ended) => assert!(by_devices && ended.is_peer_failure(), "{ended}"),
                None => assert_eq!(last.kind(), ErrorKind::StaleKey, "{over:?}: {last}"),
            }
            assert_eq!(
                memory.as_slice().expect("host")[..100],
                [1; 100],
                "{over:?}"
            );
            if !by_devices {
                let opened = bed.open().await;
                let is_near = !matches!(over, Over::Tcp);
                assert_eq!(opened.is_err(), is_near, "{over:?}");
            }
        });
    }
}

#[test]
fn rights_and_bounds_are_the_keys_and_the_owners() {
    for over in [Over::Tcp, Over::ShmMessages] {
        run(async {
            let mut bed = Bed::new(over, Access::READ).await;
            let refused = bed.put(&[1], 0).await.expect_err("read only");
            assert_eq!(refused.kind(), ErrorKind::AccessDenied);
            let refused = bed.get(LENGTH as u64, 1).await.expect_err("behind the end");
            assert_eq!(refused.kind(), ErrorKind::OutOfBounds);
            // A key that lies is believed by nobody but who holds it.
            let honest = bed.key.clone();
            (bed.key.access, bed.key.length) = (Access::all(), u64::MAX / 2);
            let refused = bed.put(&[1], 0).await.expect_err("read only");
            assert_eq!(refused.kind(), ErrorKind::AccessDenied, "{over:?}");
            let refused = bed
                .get(LENGTH as u64 - 1, 2)
                .await
                .expect_err("behind the end");
            assert_eq!(refused.kind(), ErrorKind::OutOfBounds, "{over:?}");
            let refused = bed.get(u64::MAX / 4, 2).await.expect_err("behind the end");
            assert_eq!(refused.kind(), ErrorKind::OutOfBounds, "{over:?}");
            bed.key.generation ^= 1;
            let refused = bed.get(0, 2).await.expect_err("another key");
            assert_eq!(refused.kind(), ErrorKind::StaleKey, "{over:?}");
            bed.key.slot = u32::MAX;
            let refused = bed.get(0, 2).await.expect_err("another slot");
            assert_eq!(refused.kind(), ErrorKind::StaleKey, "{over:?}");
            // The link is as good as before.
            bed.key = honest;
            assert_eq!(bed.get(0, 2).await.expect("got"), [0; 2]);
        });
    }
}

/// What is exposed for reading alone is mapped for that alone, whatever who has the key says of it.
#[test]
fn what_may_only_be_read_is_mapped_for_reading() {
    run(async {
        let mut bed = Bed::new(Over::Mapped, Access::READ).await;
        bed.open().await.expect("opened");
        let region = bed.region.as_ref().expect("exposed");
        region.write_at(0, &[7; 64]).expect("the owner writes");
        let way = bed.here.way(bed.to_there, &bed.key);
        assert_eq!(way.ok(), Some(Mover::Mapped));
        assert_eq!(bed.get(0, 64).await.expect("got"), [7; 64]);
        bed.key.access = Access::all();
        let refused = bed.put(&[1], 0).await.expect_err("read only");
        assert_eq!(refused.kind(), ErrorKind::AccessDenied);
        assert_eq!(bed.get(0, 64).await.expect("got"), [7; 64]);
    });
}

/// In a mapping a key that lies of its place stays within what was mapped.
#[test]
fn a_mapping_is_not_left() {
    run(async {
        let mut bed = Bed::new(Over::Mapped, Access::all()).await;
        bed.open().await.expect("opened");
        let (segment, _) = bed.key.segment.expect("a segment");
        bed.key.segment = Some((segment, 1 << 30));
        assert_eq!(
            bed.here.way(bed.to_there, &bed.key).ok(),
            Some(Mover::Messages)
        );
        bed.put(&[5; 64], 0).await.expect("by messages");
        let mut seen = [0; 64];
        let region = bed.region.as_ref().expect("exposed");
        region.read_at(0, &mut seen).expect("within");
        assert_eq!(seen, [5; 64]);
    });
}

/// What a peer says that is not so, or not in order: its link ends, and nothing else.
#[test]
fn a_peer_that_keeps_to_nothing() {
    let place = |key: &RemoteKey, length: u64| wire::Place {
        slot: key.slot,
        generation: key.generation,
        offset: 0,
        length,
    };
    for over in [Over::Tcp, Over::ShmMessages] {
        let lies: &[(u8, &[u8], &str)] = &[
            (0, &[], "no driver sends"),
            (77, &[1; 40], "no driver sends"),
            (wire::PUT, &[0; 19], "too short"),
            (wire::GET, &[0; 27], "too short"),
            (wire::GET, &[0; 28], "a get of nothing"),
            (wire::GET, &[1; 29], "with more than it says"),
            (wire::OPEN, &[0; 11], "too short"),
            (wire::BYTES, &[1; 30], "not asked"),
            (wire::DONE, &[0, 0], "not asked"),
            (wire::DONE, &[9, 0], "means nothing"),
            (wire::DONE, &[0], "another length"),
        ];
        for (id, body, text) in lies {
            run(async {
                let mut bed = Bed::new(over, Access::all()).await;
                bed.say(*id, 1, body);
                bed.is_cut(text);
            });
        }
        // Answers that are not taken, without end: what is kept for them has a limit.
        run(async {
            let mut bed = Bed::new(over, Access::all()).await;
            let get = place(&bed.key, LENGTH as u64).get();
            for token in 0..200 {
                bed.say(wire::GET, token, &get);
                bed.there.progress();
                if bed.there.failure(bed.to_here).is_some() {
                    break;
                }
            }
            bed.until(|bed| bed.there.failure(bed.to_here).is_some());
            let error = bed.there.failure(bed.to_here).expect("failed");
            assert_eq!(error.kind(), ErrorKind::Protocol, "{over:?}: {error}");
        });
        // A get that is answered with more than was asked for, or with an end before its bytes.
        for (id, body) in [
            (wire::BYTES, &[1; 11][..]),
            (wire::DONE, &[0, 0]),
            (wire::BYTES, &[]),
        ] {
            run(async {
                let mut bed = Bed::new(over, Access::all()).await;
                let key = bed.key.clone();
                // The one that lies is asked, so the two change places; its own answer never comes.
                let asked = bed.there.get_zcopy(bed.to_here, vec![0; 10], &key, 0).await;
                let asked = asked.expect("posted");
                bed.there.progress();
                bed.say(id, asked.token(), body);
                bed.until(|bed| bed.there.failure(bed.to_here).is_some());
                let error = bed.there.wait(asked).await.expect_err("cut");
                assert_eq!(error.kind(), ErrorKind::Protocol, "{over:?}: {error}");
            });
        }
    }
}

#[test]
fn a_peer_that_is_gone_ends_what_is_under_way() {
    for over in Over::ALL {
        run(async {
            let bed = Bed::new(*over, Access::all()).await;
            let Bed {
                mut here,
                there,
                to_there,
                key,
                region,
                ..
            } = bed;
            let posted = here.get_zcopy(to_there, vec![0; LENGTH], &key, 0).await;
            drop((there, region));
            let ended = timeout(WATCHDOG, here.wait(posted.expect("posted"))).await;
            // Devices may have been faster.
            if over.way() != Mover::NetworkDevices {
                let error = ended.expect("in time").expect_err("gone");
                assert!(error.is_peer_failure(), "{over:?}: {error}");
            }
            let error = here.put_zcopy(LinkId(12345), vec![1], &key, 0).await;
            assert_eq!(
                error.expect_err("no link").kind(),
                ErrorKind::InvalidArgument
            );
            here.disconnect(to_there);
            assert!(here.put_short(to_there, &[1], &key, 0).is_err());
        });
    }
}

#[test]
fn keys_are_read_back_and_nothing_else_is() {
    run(async {
        for over in [Over::Tcp, Over::Mapped] {
            let bed = Bed::new(over, Access::READ).await;
            let bytes = bed.key.to_bytes();
            assert_eq!(RemoteKey::from_bytes(&bytes).expect("a key"), bed.key);
            assert_eq!(
                (bed.key.len(), bed.key.access()),
                (LENGTH as u64, Access::READ)
            );
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 0x40;
                RemoteKey::from_bytes(&changed).expect_err("changed");
                RemoteKey::from_bytes(&bytes[..at]).expect_err("short");
            }
            RemoteKey::from_bytes(&[bytes, vec![0]].concat()).expect_err("long");
        }
    });
}
