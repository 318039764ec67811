//! What the worker does over links with one-sided operations, on a transport made up for it: messages by TCP, and a device that copies within
//! this process. It checks keys as a device does, and moves bytes only when their completion is told.
//!
//! # Safety
//! The made-up device copies between ranges that are registered with it, when an operation ends. What the contract says of their memory is what
//! is tested.
#![allow(unsafe_code)]

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{Endpoint, RemoteRegion, Worker};
use crate::{
    Context, ContextBuilder,
    config::RendezvousScheme,
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, Buffer, BufferMut, LocalMemory, Region},
    transport::{
        Connected, Connector, DeviceAtomic, DeviceRegistrar, Exposure, Interface, Link,
        LinkAttributes, LocalKeys, LocalRange, OneSided, OneSidedAttributes, Opened, PeerInfo,
        Reach, Registering, Registry, RemoteRange, Role, SendError, Sink, Transport, Zcopy,
        channel::Channel,
        tcp::{Tcp, TcpOptions},
    },
    types::{Access, DeviceKey, LinkId},
    util::{lock::Mutex, testing::run},
};

const NAME: &str = "made_up";
/// The one device.
const DEVICE: u64 = 0xd0;
const PIECE: usize = 64 << 10;
const SHORT: usize = 256;

/// A device: what is registered with it, and what it was asked for.
#[derive(Debug, Default)]
struct Device {
    keys: Mutex<BTreeMap<u32, (AddressRange, Access)>>,
    next: AtomicU32,
    /// Registers nothing.
    refuses: AtomicBool,
    /// Ends nothing.
    stopped: AtomicBool,
    /// Registers nothing for writing before this is taken back; and how often it was asked to.
    waits: AtomicBool,
    writers: AtomicUsize,
    /// Says of puts that they are done, and writes nothing.
    lies: AtomicBool,
    /// It was to register for writing what was not clear.
    uncleared: AtomicBool,
    /// Has no room for short puts, for which these links wait.
    full: AtomicBool,
    waiting: Mutex<Vec<LinkId>>,
    puts: AtomicUsize,
    gets: AtomicUsize,
    shorts: AtomicUsize,
    atomics: AtomicUsize,
    asked: AtomicUsize,
    cache: Mutex<Vec<LocalKeys>>,
}

/// A key; without it the memory is registered no longer.
#[derive(Debug)]
struct Key(u32, Arc<Device>);

impl Drop for Key {
    fn drop(&mut self) {
        self.1.keys.lock().remove(&self.0);
    }
}

impl Device {
    fn key(self: &Arc<Self>, range: AddressRange, access: Access) -> Result<Key> {
        if self.refuses.load(SeqCst) {
            let text = "this process may lock 0 KiB";
            return Err(Error::new(ErrorKind::Exhausted, text));
        }
        let key = self.next.fetch_add(1, SeqCst) + 1;
        self.keys.lock().insert(key, (range, access));
        Ok(Key(key, self.clone()))
    }

    /// As a device checks what a peer asks for.
    fn check(&self, keys: &[DeviceKey], address: u64, length: usize, access: Access) -> Result<()> {
        let refused = || Error::new(ErrorKind::AccessDenied, "the device refuses");
        let key = keys.iter().find(|key| key.device == DEVICE);
        let table = self.keys.lock();
        let (range, rights) = key
            .and_then(|key| table.get(&key.key))
            .ok_or_else(refused)?;
        let asked = AddressRange::new(address, length as u64)?;
        match range.contains(asked) && rights.contains(access) {
            true => Ok(()),
            false => Err(refused()),
        }
    }
}

fn local_keys(range: AddressRange, key: Key) -> LocalKeys {
    let keys = vec![DeviceKey {
        device: DEVICE,
        key: key.0,
    }];
    LocalKeys::new(range, keys.clone(), keys, Arc::new(key))
}

#[derive(Debug)]
struct Memory(Arc<Device>);

impl DeviceRegistrar for Memory {
    fn find(&self, memory: &LocalMemory, _: Access, devices: &[u64]) -> Option<LocalKeys> {
        let range = memory.range;
        assert_eq!(devices, [DEVICE]);
        let cache = self.0.cache.lock();
        cache.iter().find(|keys| keys.range() == range).cloned()
    }

    fn register(&self, memory: LocalMemory, _: Access, _: &[u64]) -> Registering<LocalKeys> {
        let range = memory.range;
        let device = self.0.clone();
        device.asked.fetch_add(1, SeqCst);
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let keys = local_keys(range, device.key(range, Access::READ)?);
            device.cache.lock().push(keys.clone());
            Ok(keys)
        })
    }

    fn register_for_writing(&self, range: AddressRange, _: &[u64]) -> Registering<LocalKeys> {
        let device = self.0.clone();
        Box::pin(async move {
            device.writers.fetch_add(1, SeqCst);
            while device.waits.load(SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (start, length) = (range.start(), range.len() as usize);
            // SAFETY: the memory is a receive's that stays until this has ended.
            let memory = unsafe { std::slice::from_raw_parts(at(start), length) };
            let is_clear = memory.iter().all(|byte| *byte == 0);
            device.uncleared.fetch_or(!is_clear, SeqCst);
            Ok(local_keys(range, device.key(range, Access::WRITE)?))
        })
    }

    fn end_writing(&self, keys: LocalKeys) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { drop(keys) })
    }

    fn end_writing_now(&self, _: &LocalKeys) {
        // With the keys.
    }

    unsafe fn expose(&self, memory: &LocalMemory, access: Access) -> Result<Exposure> {
        let key = self.0.key(memory.range, access)?;
        let keys = vec![DeviceKey {
            device: DEVICE,
            key: key.0,
        }];
        Ok(Exposure::new(keys, Box::new(key)))
    }
}

/// What the device has to do.
#[derive(Debug)]
enum Job {
    Put { from: u64, to: u64, length: usize },
    Copy { from: u64, to: u64, length: usize },
    Write(u64, Vec<u8>),
    Read(u64, usize),
    Atomic(u64, DeviceAtomic),
}

type Jobs = Arc<Mutex<VecDeque<(LinkId, u64, Result<Job>)>>>;

#[derive(Debug)]
struct MadeUp {
    tcp: Tcp,
    device: Arc<Device>,
}

impl Transport for MadeUp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn reach(&self) -> Reach {
        Reach::Network
    }
    fn probe(&self) -> Result<()> {
        Ok(())
    }
    fn open(&self) -> Result<Opened> {
        let Opened {
            interface,
            connector,
        } = self.tcp.open()?;
        Ok(Opened {
            interface: Box::new(Face {
                tcp: interface,
                device: self.device.clone(),
                jobs: Jobs::default(),
            }),
            connector: Arc::new(Control(connector)),
        })
    }
    fn is_one_sided(&self) -> bool {
        true
    }
    fn remote_memory(&self) -> Option<Arc<dyn DeviceRegistrar>> {
        Some(Arc::new(Memory(self.device.clone())))
    }
}

#[derive(Debug)]
struct Control(Arc<dyn Connector>);

#[async_trait]
impl Connector for Control {
    fn can_use(&self, channel: &Channel, peer: &PeerInfo) -> Result<()> {
        self.0.can_use(channel, peer)
    }
    fn admits(&self, channel: &Channel) -> Result<()> {
        self.0.admits(channel)
    }
    async fn connect(
        &self,
        channel: &mut Channel,
        role: Role,
        peer: &PeerInfo,
    ) -> Result<Connected> {
        self.0.connect(channel, role, peer).await
    }
}

#[derive(Debug)]
struct Face {
    tcp: Box<dyn Interface>,
    device: Arc<Device>,
    jobs: Jobs,
}

impl Interface for Face {
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>> {
        Ok(Box::new(DeviceLink {
            id,
            tcp: self.tcp.attach(id, connected)?,
            memory: Arc::new(Memory(self.device.clone())),
            device: self.device.clone(),
            jobs: self.jobs.clone(),
        }))
    }
    fn detach(&mut self, id: LinkId) {
        self.jobs.lock().retain(|(link, ..)| *link != id);
        self.tcp.detach(id);
    }
    fn register(&mut self, registry: Registry) -> Result<()> {
        self.tcp.register(registry)
    }
    fn ready(&mut self, token: usize, readable: bool, writable: bool) {
        self.tcp.ready(token, readable, writable);
    }
    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut moved = self.tcp.progress(budget, sink);
        if !self.device.full.load(SeqCst) {
            let waiting = std::mem::take(&mut *self.device.waiting.lock());
            waiting.into_iter().for_each(|link| sink.writable(link));
        }
        while !self.device.stopped.load(SeqCst) {
            let Some((link, token, job)) = self.jobs.lock().pop_front() else {
                break;
            };
            moved += 1;
            match job {
                Err(error) => sink.refused(link, token, error),
                Ok(Job::Put { .. }) if self.device.lies.load(SeqCst) => sink.sent(link, token),
                Ok(Job::Put { from, to, length } | Job::Copy { from, to, length }) => {
                    // SAFETY: both registered when it was posted, and to be kept until now.
                    unsafe { std::ptr::copy_nonoverlapping(at(from), at(to), length) };
                    sink.sent(link, token);
                }
                Ok(Job::Write(to, data)) => {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at(to), data.len()) };
                    sink.sent(link, token);
                }
                Ok(Job::Read(from, length)) => {
                    // SAFETY: as above.
                    let data = unsafe { std::slice::from_raw_parts(at(from), length) }.to_vec();
                    sink.fetched(link, token, &data);
                }
                Ok(Job::Atomic(word, atomic)) => {
                    // SAFETY: as above; one device, which does one after the other.
                    let old = unsafe { at(word).cast::<u64>().read() };
                    let new = match atomic {
                        DeviceAtomic::FetchAdd(add) => old.wrapping_add(add),
                        DeviceAtomic::CompareSwap { compare, swap } if compare == old => swap,
                        DeviceAtomic::CompareSwap { .. } => old,
                    };
                    // SAFETY: as above.
                    unsafe { at(word).cast::<u64>().write(new) };
                    sink.fetched(link, token, &old.to_ne_bytes());
                }
            }
        }
        moved
    }
    fn arm(&mut self) -> bool {
        self.jobs.lock().is_empty() && self.tcp.arm()
    }
    fn disarm(&mut self) {
        self.tcp.disarm();
    }
}

fn at(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[derive(Debug)]
struct DeviceLink {
    id: LinkId,
    tcp: Box<dyn Link>,
    memory: Arc<dyn DeviceRegistrar>,
    device: Arc<Device>,
    jobs: Jobs,
}

impl Link for DeviceLink {
    fn attributes(&self) -> LinkAttributes {
        LinkAttributes {
            transport: NAME,
            max_bcopy: 8 << 10,
            max_zcopy: 0,
            ..self.tcp.attributes()
        }
    }
    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        self.tcp.am_short(id, header, body)
    }
    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.tcp.am_bcopy(id, header, prefix, payload)
    }
    fn flush(&mut self, sink: &mut dyn Sink) {
        self.tcp.flush(sink);
    }
    fn is_flushed(&self) -> bool {
        self.tcp.is_flushed()
    }
    fn one_sided(&mut self) -> Option<&mut dyn OneSided> {
        Some(self)
    }
}

impl DeviceLink {
    fn post(&self, token: u64, job: Result<Job>) {
        self.jobs.lock().push_back((self.id, token, job));
    }
}

impl OneSided for DeviceLink {
    fn attributes(&self) -> OneSidedAttributes {
        OneSidedAttributes {
            max_put: 1 << 20,
            max_get: 1 << 20,
            max_short: SHORT,
            piece: PIECE,
            rails: 1,
            atomics: true,
        }
    }
    fn memory(&self) -> &Arc<dyn DeviceRegistrar> {
        &self.memory
    }
    fn devices(&self) -> &[u64] {
        &[DEVICE]
    }
    fn reaches(&self, remote: &[DeviceKey]) -> bool {
        remote.iter().any(|key| key.device == DEVICE)
    }
    unsafe fn put(
        &mut self,
        local: LocalRange<'_>,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        self.device.puts.fetch_add(1, SeqCst);
        let (device, length) = (&self.device, local.length);
        let mine = device.check(local.keys, local.address, length, Access::empty());
        let checked =
            mine.and_then(|()| device.check(remote.keys, remote.address, length, Access::WRITE));
        let (from, to) = (local.address, remote.address);
        self.post(token, checked.map(|()| Job::Put { from, to, length }));
        Ok(Zcopy::Pending)
    }
    fn put_short(
        &mut self,
        data: &[u8],
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        if self.device.full.load(SeqCst) {
            self.device.waiting.lock().push(self.id);
            return Err(SendError::Full);
        }
        self.device.shorts.fetch_add(1, SeqCst);
        let device = &self.device;
        let checked = device.check(remote.keys, remote.address, data.len(), Access::WRITE);
        let job = Job::Write(remote.address, data.to_vec());
        self.post(token, checked.map(|()| job));
        Ok(Zcopy::Pending)
    }
    unsafe fn get(
        &mut self,
        local: LocalRange<'_>,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        self.device.gets.fetch_add(1, SeqCst);
        let (device, length) = (&self.device, local.length);
        let mine = device.check(local.keys, local.address, length, Access::empty());
        let checked =
            mine.and_then(|()| device.check(remote.keys, remote.address, length, Access::READ));
        let (from, to) = (remote.address, local.address);
        self.post(token, checked.map(|()| Job::Copy { from, to, length }));
        Ok(Zcopy::Pending)
    }
    fn get_short(
        &mut self,
        length: usize,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<(), SendError> {
        self.device.shorts.fetch_add(1, SeqCst);
        let device = &self.device;
        let checked = device.check(remote.keys, remote.address, length, Access::READ);
        self.post(token, checked.map(|()| Job::Read(remote.address, length)));
        Ok(())
    }
    fn atomic(
        &mut self,
        atomic: DeviceAtomic,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<(), SendError> {
        self.device.atomics.fetch_add(1, SeqCst);
        let device = &self.device;
        let checked = device.check(remote.keys, remote.address, 8, Access::DEVICE_ATOMIC);
        self.post(token, checked.map(|()| Job::Atomic(remote.address, atomic)));
        Ok(())
    }
}

/// Two workers, connected.
struct Bed {
    device: Arc<Device>,
    context: Context,
    _here: Worker,
    there: Worker,
    to: Endpoint,
}

impl Bed {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(change: impl FnOnce(ContextBuilder) -> ContextBuilder) -> Self {
        let device = Arc::new(Device::default());
        let transport = Arc::new(MadeUp {
            tcp: Tcp::new(TcpOptions::default()),
            device: device.clone(),
        });
        let builder = Context::builder().transport(transport);
        let builder = builder.transports(NAME).expect("just added");
        let context = change(builder).build().expect("a context");
        let (here, there) = (
            Worker::new(&context).expect("a worker"),
            Worker::new(&context).expect("a worker"),
        );
        let address = there.address().expect("an address");
        let to = here.connect(&address).await.expect("connected");
        assert_eq!(to.transports(), [NAME]);
        Self {
            device,
            context,
            _here: here,
            there,
            to,
        }
    }

    async fn exposed(&self, length: usize, access: Access) -> (Region, RemoteRegion) {
        let buffer = BufferMut::from(vec![0; length]);
        let region = self.context.expose(buffer, access).await.expect("exposed");
        let remote = self.to.import(&region.descriptor().expect("its range"));
        (region, remote.expect("the peer's"))
    }

    /// Shorts, puts, gets.
    fn counts(&self) -> (usize, usize, usize) {
        let device = &self.device;
        (
            device.shorts.load(SeqCst),
            device.puts.load(SeqCst),
            device.gets.load(SeqCst),
        )
    }

    /// Sends and receives a message, by tag.
    async fn carry(&self, length: usize, seed: u8) {
        let data = bytes(length, seed);
        let send = self.to.tag_send(u64::from(seed), data.clone());
        let receive = self.there.tag_recv(u64::from(seed), vec![0; length]);
        let (sent, received) = tokio::join!(send, receive);
        sent.expect("sent");
        assert!(received.expect("received").buffer == data, "{length} bytes");
    }
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).expect("within");
    bytes
}

const BOTH: Access = Access::READ.union(Access::WRITE);
/// Short, registered, in pieces of which not all are in flight at once.
const LENGTHS: [usize; 5] = [1, SHORT, SHORT + 1, PIECE, 9 * PIECE + 5];

#[test]
fn short_ones_do_not_overtake_what_waits_for_room() {
    run(async {
        let bed = Bed::new().await;
        let (region, remote) = bed.exposed(SHORT, BOTH).await;
        bed.device.full.store(true, SeqCst);
        let put = |byte: u8| bed.to.put(vec![byte; SHORT], remote.clone());
        let first = put(1).post().expect("posted");
        // There is room for this one, but not before it has its turn.
        let got = bed.to.get(remote.clone(), vec![0; SHORT]).post();
        let got = got.expect("posted");
        let second = put(2).post().expect("posted");
        assert_eq!(bed.counts(), (0, 0, 0));
        bed.device.full.store(false, SeqCst);
        first.await.expect("put");
        assert!(got.await.expect("got") == [1; SHORT]);
        second.await.expect("put");
        assert!(content(&region) == [2; SHORT]);
        assert_eq!(bed.counts(), (3, 0, 0));
    });
}

/// A put that is complete on this side goes another way than the message that closes.
#[test]
fn a_close_waits_for_what_the_device_has() {
    run(async {
        let bed = Bed::new().await;
        let (region, remote) = bed.exposed(SHORT, BOTH).await;
        bed.device.stopped.store(true, SeqCst);
        let put = bed.to.put(vec![7; SHORT], remote).local().post();
        let put = put.expect("posted");
        let mut close = std::pin::pin!(bed.to.close());
        let early = tokio::time::timeout(Duration::from_millis(50), &mut close);
        early.await.expect_err("the device has the put");
        assert!(content(&region) == [0; SHORT]);
        bed.device.stopped.store(false, SeqCst);
        close.await.expect("closed");
        put.await.expect("put");
        assert!(content(&region) == [7; SHORT]);
    });
}

#[test]
fn puts_and_gets_go_by_the_device() {
    run(async {
        let bed = Bed::new().await;
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let (region, remote) = bed.exposed(length + 2, BOTH).await;
            let data = bytes(length, index as u8);
            let before = bed.counts();
            bed.to
                .put(data.clone(), remote.slice(1..))
                .await
                .expect("put");
            let all = content(&region);
            assert!(all[1..=length] == data, "{length} bytes put");
            assert_eq!((all[0], all[length + 1]), (0, 0));
            let got = bed.to.get(remote.slice(1..=length), vec![0; length]);
            assert!(got.await.expect("got") == data, "{length} bytes got");
            let pieces = if length <= SHORT {
                0
            } else {
                length.div_ceil(PIECE)
            };
            let shorts = if length <= SHORT { 2 } else { 0 };
            let after = bed.counts();
            let grown = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
            assert_eq!(grown, (shorts, pieces, pieces), "{length} bytes");
        }
    });
}

#[test]
fn a_signal_follows_its_put() {
    run(async {
        let bed = Bed::new().await;
        for length in LENGTHS {
            let (region, remote) = bed.exposed(length, BOTH).await;
            let counter = bed._here.counter().await.expect("a counter");
            let far = bed.to.import(&counter.descriptor().expect("its range"));
            let put = bed
                .to
                .put(bytes(length, 3), remote)
                .signal(&far.expect("the peer's"));
            let put = put.post().expect("posted");
            counter.wait(1).await.expect("raised");
            assert!(content(&region) == bytes(length, 3), "{length} bytes");
            put.await.expect("put");
        }
    });
}

#[test]
fn what_is_taken_back_is_touched_no_more() {
    run(async {
        let bed = Bed::new().await;
        for length in LENGTHS {
            let (region, remote) = bed.exposed(length, BOTH).await;
            let memory = region.unexpose().await;
            let error = bed.to.put(bytes(length, 1), remote.clone()).await;
            assert_eq!(
                error.expect_err("gone").kind(),
                ErrorKind::StaleKey,
                "{length}"
            );
            let error = bed.to.get(remote, vec![0; length]).await;
            assert_eq!(
                error.expect_err("gone").kind(),
                ErrorKind::StaleKey,
                "{length}"
            );
            assert!(
                memory
                    .as_slice()
                    .expect("the host's")
                    .iter()
                    .all(|byte| *byte == 0)
            );
        }
        // The connection goes on.
        bed.carry(10, 9).await;
    });
}

#[test]
fn a_posted_put_that_is_refused_is_told_by_the_flush() {
    run(async {
        let bed = Bed::new().await;
        let (region, remote) = bed.exposed(8, BOTH).await;
        region.unexpose().await;
        let put = bed.to.put(vec![1; 8], remote).local();
        put.await.expect("the source is free");
        let error = bed.to.flush().await.expect_err("it was refused");
        assert_eq!(error.kind(), ErrorKind::StaleKey);
    });
}

#[test]
fn what_cannot_be_registered_goes_by_messages() {
    run(async {
        let bed = Bed::new().await;
        let (region, remote) = bed.exposed(4 * PIECE, BOTH).await;
        bed.device.refuses.store(true, SeqCst);
        let data = bytes(4 * PIECE, 7);
        bed.to.put(data.clone(), remote.clone()).await.expect("put");
        assert!(content(&region) == data);
        let got = bed.to.get(remote, vec![0; 4 * PIECE]).await.expect("got");
        assert!(got == data);
        bed.carry(4 * PIECE, 2).await;
        assert_eq!(bed.counts(), (0, 0, 0));
        // Exposed memory is then reached by messages.
        let (region, remote) = bed.exposed(100, BOTH).await;
        bed.to.put(vec![3; 100], remote).await.expect("put");
        assert_eq!(content(&region), [3; 100]);
        let none = bed.context.expose(vec![0; 8], Access::DEVICE_ATOMIC).await;
        assert_eq!(none.expect_err("no atomics").kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn announced_messages_are_read() {
    run(async {
        let bed = Bed::new().await;
        // The keys are asked for the first time, and told with the message the second.
        let data = Buffer::from(bytes(3 * PIECE + 1, 5));
        for round in 0..3 {
            let send = bed.to.tag_send(4, data.clone());
            let receive = bed.there.tag_recv(4, vec![0; data.len()]);
            let (sent, received) = tokio::join!(send, receive);
            sent.expect("sent");
            assert!(received.expect("received").buffer == bytes(data.len(), 5));
            assert_eq!(bed.counts(), (0, 0, 4 * (round + 1)));
        }
        // Unexpected, and short of the receive's room.
        let send = bed.to.tag_send(6, data.clone()).post().expect("posted");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let received = bed.there.tag_recv(6, vec![0; data.len() + 7]).await;
        assert_eq!(received.expect("received").len, data.len());
        send.await.expect("sent");
    });
}

#[test]
fn announced_messages_are_written() {
    run(async {
        let bed = Bed::new().await;
        bed.prefer_writing();
        for (round, length) in [PIECE / 2, 5 * PIECE].into_iter().enumerate() {
            bed.carry(length, round as u8).await;
        }
        assert_eq!(bed.counts(), (0, 1 + 5, 0));
        let rights = bed.device.keys.lock();
        assert!(
            rights
                .values()
                .all(|(_, access)| !access.contains(Access::WRITE)),
            "a peer may still write: {rights:?}"
        );
    });
}

/// The link ends while memory is being registered for the peer's devices: it is given back when they cannot write it.
#[test]
fn memory_that_is_being_registered_is_given_back_after_that() {
    run(async {
        for refuses in [false, true] {
            let bed = Bed::new().await;
            bed.prefer_writing();
            bed.device.waits.store(true, SeqCst);
            let send = bed.to.tag_send(1, bytes(PIECE, 1)).post();
            let mut receive = bed.there.tag_recv(1, vec![0; PIECE]).post();
            while bed.device.writers.load(SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            bed.to.abort();
            let error = send.expect("posted").await.expect_err("over");
            assert_eq!(error.kind(), ErrorKind::Closed);

            let early = tokio::time::timeout(Duration::from_millis(100), &mut receive).await;
            assert!(early.is_err(), "it is being registered: {early:?}");
            bed.device.refuses.store(refuses, SeqCst);
            bed.device.waits.store(false, SeqCst);
            let error = receive.await.expect_err("over").into_parts().0;
            assert_eq!(error.kind(), ErrorKind::AbortedByPeer, "{error}");
            assert!(bed.device.keys.lock().is_empty(), "a peer may still write");
        }
    });
}

/// A peer that would rather write gets no keys to write with, unless this side would have it so: it cannot tell what was written.
#[test]
fn who_would_rather_write_is_read() {
    run(async {
        for receiver in [RendezvousScheme::Auto, RendezvousScheme::Get] {
            let bed = Bed::new().await;
            bed.schemes(RendezvousScheme::Put, receiver);
            bed.device.lies.store(true, SeqCst);
            for (round, length) in [PIECE / 2, 5 * PIECE].into_iter().enumerate() {
                bed.carry(length, round as u8).await;
            }
            assert_eq!(bed.counts(), (0, 0, 1 + 5), "{receiver:?}");
            // What cannot be registered for that comes in messages.
            bed.device.refuses.store(true, SeqCst);
            bed.carry(PIECE, 2).await;
            assert_eq!(bed.device.writers.load(SeqCst), 0);
        }
    });
}

/// A peer that was asked to write, writes nothing and says that it has: nothing of what was in the buffer is taken for its message, or was there
/// to be seen when it got the keys.
#[test]
fn what_was_not_written_is_nothing() {
    const CANARY: u8 = 0xc5;
    run(async {
        let bed = Bed::new().await;
        bed.prefer_writing();
        bed.device.lies.store(true, SeqCst);
        for length in [PIECE / 2, 9 * PIECE + 5] {
            let send = bed.to.tag_send(1, bytes(length, 1));
            let buffer = vec![CANARY; length + 3];
            let receive = bed.there.tag_recv(1, buffer);
            let (sent, received) = tokio::join!(send, receive);
            sent.expect("sent");
            let received = received.expect("received");
            assert_eq!(received.len, length);
            let (message, rest) = received.buffer.split_at(length);
            assert!(message.iter().all(|byte| *byte == 0), "{length}: old bytes");
            assert_eq!(rest, [CANARY; 3], "not the message's");
        }
        assert!(
            !bed.device.uncleared.load(SeqCst),
            "keys before it is clear"
        );
    });
}

impl Bed {
    fn prefer_writing(&self) {
        self.schemes(RendezvousScheme::Put, RendezvousScheme::Put);
    }

    fn schemes(&self, sender: RendezvousScheme, receiver: RendezvousScheme) {
        for (worker, scheme) in [(&self._here, sender), (&self.there, receiver)] {
            worker
                .shared()
                .inside(|engine| engine.core.movers.scheme = scheme);
        }
    }
}

#[test]
fn memory_is_kept_until_the_device_is_done() {
    run(async {
        let bed = Bed::new().await;
        let (region, remote) = bed.exposed(2 * PIECE, BOTH).await;
        bed.device.stopped.store(true, SeqCst);
        let dropped = Arc::new(());
        struct Owned(Vec<u8>, #[allow(dead_code)] Arc<()>);
        impl AsRef<[u8]> for Owned {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let source = Owned(bytes(2 * PIECE, 8), dropped.clone());
        let source = Buffer::from(bytes::Bytes::from_owner(source));
        let put = bed.to.put(source, remote.clone()).post().expect("posted");
        while bed.counts().1 < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(put);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(Arc::strong_count(&dropped), 2, "the device still reads it");
        bed.device.stopped.store(false, SeqCst);
        bed.to.flush().await.expect("flushed");
        assert!(content(&region) == bytes(2 * PIECE, 8));
        assert_eq!(Arc::strong_count(&dropped), 1);
    });
}

#[test]
fn a_link_that_ends_in_the_middle_gives_the_memory_back() {
    run(async {
        let bed = Bed::new().await;
        let (_region, remote) = bed.exposed(2 * PIECE, BOTH).await;
        bed.device.stopped.store(true, SeqCst);
        let get = bed
            .to
            .get(remote, vec![0; 2 * PIECE])
            .post()
            .expect("posted");
        while bed.counts().2 < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        bed.to.abort();
        let error = get.await.expect_err("over");
        assert_eq!(error.kind(), ErrorKind::Closed);
        bed.device.stopped.store(false, SeqCst);
    });
}

#[test]
fn atomics_of_devices_are_apart() {
    run(async {
        let bed = Bed::new().await;
        let (region, words) = bed.exposed(64, Access::DEVICE_ATOMIC).await;
        assert_eq!(words.fetch_add(8, 5_u64).await.expect("added"), 0);
        words.add(8, 2_u64).await.expect("added");
        assert_eq!(words.compare_swap(8, 7_u64, 1).await.expect("swapped"), 7);
        assert_eq!(
            words.compare_swap(8, 7_u64, 3).await.expect("not swapped"),
            1
        );
        assert_eq!(bed.device.atomics.load(SeqCst), 4);
        for refused in [
            words.fetch_add(8, 1_u32).await.map(u64::from),
            words.swap(8, 1_u64).await,
            words.fetch_or(8, 1_u64).await,
        ] {
            assert_eq!(
                refused.expect_err("of no device").kind(),
                ErrorKind::Unsupported
            );
        }
        let error = words.fetch_add(4, 1_u64).await.expect_err("misaligned");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            bed.to.put(vec![1; 8], words.clone()).await.is_err(),
            "it was not exposed for that"
        );
        region.unexpose().await;
        let error = words.fetch_add(8, 1_u64).await.expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::StaleKey);
        // A processor's word stays the processor's.
        let (_region, words) = bed.exposed(64, BOTH).await;
        assert_eq!(words.fetch_add(0, 5_u64).await.expect("added"), 0);
        assert_eq!(bed.device.atomics.load(SeqCst), 5);
    });
}
