//! What a program of a stranger's writes with wharf, by its public API and nothing else. Each
//! function is one thing that such a program has in its hands, in every form in which it may have
//! it: what compiles here a user can write. `tests/between.rs` runs them between two workers.

use std::{
    borrow::Cow,
    collections::HashSet,
    fmt::{Debug, Display},
    hash::Hash,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    str::FromStr,
    sync::Arc,
};

use axum::{Router, extract::ConnectInfo, routing::get};
use bytes::{Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{
    Access, ActiveMessage, Admission, AmId, AmInbox, Arm, Buffer, BufferMut, ByteStream, Context,
    Descriptor, Destination, Endpoint, EndpointId, Error, ErrorKind, HostBufferMut, Incoming,
    IncomingInfo, Listener, Mask, MemoryType, Mover, OpError, Operation, Party, Priority, Progress,
    Received, Result, SocketAddresses, StreamAddr, StreamListener, Tag, TransportState, Via, When,
    Worker, WorkerAddress, WorkerId,
    channel::{
        CommunicatorId, GpuBufferKind, PacketWidth, TriggerKind,
        bootstrap::{Launcher, Meeting, RootPlace, UniqueId},
    },
    config::{Limits, RelaxedOrdering, RendezvousScheme, Source},
    memory::{
        AddressRange, Advice, Cause, DomainCapabilities, EventClasses, MonitorKind, OverLimit,
        Timing, Validity,
    },
    transport::{CopyEnd, DeviceAtomic, DevicePlace, Export, Reach, Role, SendError, Stop, Zcopy},
};

/// Two workers of one program; two processes look the same.
pub fn two_workers(transports: &str) -> Result<(Worker, Worker)> {
    let context = Context::builder().transports(transports)?.build()?;
    Ok((Worker::new(&context)?, Worker::new(&context)?))
}

/// Where to listen, in every form.
pub async fn every_place(worker: &Worker) -> Result<Vec<Listener>> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Ok(vec![
        worker.listen("127.0.0.1:0").await?,
        worker.listen("127.0.0.1:0".to_owned()).await?,
        worker.listen(("localhost", 0)).await?,
        worker.listen((Ipv4Addr::LOCALHOST, 0)).await?,
        worker.listen(any).await?,
        worker.listen(&any).await?,
        worker.listen([any]).await?,
        worker.listen(vec![any]).await?,
    ])
}

/// Connects to one address in every form, of which each is tried in turn; how many there were.
pub async fn every_address(here: &Worker, address: SocketAddr) -> Result<usize> {
    let (text, ip, port) = (address.to_string(), address.ip(), address.port());
    let (pair, all, words) = (("127.0.0.1", port), [address], &*text);
    let four = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let mut count = 0;
    macro_rules! connect {
        ($($form:expr),* $(,)?) => {$(
            let endpoint = to(here, $form).await?;
            assert_eq!(endpoint.peer_addr(), Some(address));
            count += 1;
        )*};
    }
    connect!(
        words,
        &words,
        &text,
        text.clone(),
        text.clone().into_boxed_str(),
        Cow::Borrowed(words),
        address,
        &address,
        four,
        &four,
        pair,
        &pair,
        ("127.0.0.1".to_owned(), port),
        (ip, port),
        (Ipv4Addr::LOCALHOST, port),
        (IpAddr::from(Ipv4Addr::LOCALHOST), port),
        all,
        &all,
        &all[..],
        vec![address],
        &vec![address],
    );
    Ok(count)
}

async fn to(here: &Worker, address: impl SocketAddresses) -> Result<Endpoint> {
    here.connect(address).await
}

/// A worker's address goes as text, as bytes, and by any format of serde's.
pub async fn by_worker(here: &Worker, address: WorkerAddress) -> Result<[Endpoint; 3]> {
    async fn dial(here: &Worker, destination: impl Destination) -> Result<Endpoint> {
        here.connect(destination).await
    }
    let text: WorkerAddress = address.to_string().parse()?;
    let bytes = WorkerAddress::from_bytes(&address.to_bytes())?;
    Ok([
        dial(here, &text).await?,
        dial(here, bytes).await?,
        dial(here, address).await?,
    ])
}

/// Where both ends are, by one name on all that has ends.
pub type Ends = (Option<SocketAddr>, Option<SocketAddr>, Option<u32>);

/// Of a request, and of the endpoint that it becomes; `accept` takes a listener that many share.
pub async fn accepted(listener: &Listener) -> Result<(Ends, Endpoint)> {
    let incoming: Incoming = listener.accept().await?;
    let process = incoming.peer_credentials().map(|peer| peer.pid);
    let ends = (incoming.local_addr(), incoming.peer_addr(), process);
    let info: &IncomingInfo = incoming.info().ok_or(ErrorKind::Closed).map_err(said)?;
    assert_eq!((info.local_addr(), info.peer_addr()), (ends.0, ends.1));
    Ok((ends, incoming.accept().await?))
}

fn said(kind: ErrorKind) -> Error {
    Error::new(kind, kind.to_string())
}

/// Of an endpoint.
pub fn of_endpoint(endpoint: &Endpoint) -> Ends {
    let process = endpoint.peer_credentials().map(|peer| peer.pid);
    (endpoint.local_addr(), endpoint.peer_addr(), process)
}

/// Of a stream and its halves, which answers what it reads.
pub async fn echo(stream: ByteStream) -> io::Result<Ends> {
    let process = stream.peer_credentials().map(|peer| peer.pid);
    let ends = (stream.local_addr(), stream.peer_addr(), process);
    let (mut reader, mut writer) = stream.into_split();
    assert_eq!((reader.peer_addr(), writer.local_addr()), (ends.1, ends.0));
    let mut word = [0; 5];
    reader.read_exact(&mut word).await?;
    writer.write_all(&word).await?;
    Ok(ends)
}

/// An HTTP server that says who asks.
pub async fn serve(listener: Listener) -> io::Result<()> {
    let hello = async |ConnectInfo(caller): ConnectInfo<StreamAddr>| {
        format!(
            "{caller} {:?} {:?}",
            caller.peer_addr(),
            caller.peer_credentials()
        )
    };
    let router = Router::new().route("/", get(hello));
    let service = router.into_make_service_with_connect_info::<StreamAddr>();
    axum::serve(StreamListener::new(listener), service).await
}

/// What is sent, in every form in which a program has bytes; how many there are.
pub async fn send_all(endpoint: &Endpoint, tag: u64) -> Result<usize> {
    let shared: Arc<[u8]> = Arc::from(*b"hello");
    let buffer = Buffer::from(Bytes::from_static(b"hello"));
    let mut memory = HostBufferMut::allocate(5)?;
    memory.as_mut().copy_from_slice(b"hello");
    endpoint.tag_send(tag, *b"hello").await?;
    endpoint.tag_send(tag, b"hello").await?;
    endpoint.tag_send(tag, "hello").await?;
    endpoint.tag_send(tag, "hello".to_owned()).await?;
    endpoint.tag_send(tag, b"hello".to_vec()).await?;
    endpoint.tag_send(tag, Box::<[u8]>::from(*b"hello")).await?;
    endpoint.tag_send(tag, shared).await?;
    endpoint.tag_send(tag, Bytes::from_static(b"hello")).await?;
    endpoint.tag_send(tag, BytesMut::from("hello")).await?;
    endpoint.tag_send(tag, Cow::Borrowed(&b"hello"[..])).await?;
    endpoint.tag_send(Tag::from(tag), &buffer).await?;
    endpoint.tag_send(Tag(tag), buffer).await?;
    endpoint.tag_send(tag, memory).await?;
    Ok(13)
}

/// What is received: from anybody, from one peer, with a mask or without, into what the program has
/// or what wharf allocates.
pub async fn receive(worker: &Worker, from: &Endpoint, tag: u64) -> Result<Vec<Bytes>> {
    let first: Received<Vec<u8>> = worker.tag_recv(tag, vec![0; 64]).await?;
    assert_eq!(
        (first.bytes(), first.as_ref()),
        (&b"hello"[..], &b"hello"[..])
    );
    assert_eq!(worker.endpoint(first.from).as_ref(), Some(from));
    let memory = worker.context().allocate(64).await?;
    let second: Received<HostBufferMut> = from.tag_recv(tag, memory).await?;
    assert_eq!(
        (second.bytes(), second.as_ref()),
        (&b"hello"[..], &b"hello"[..])
    );
    let mask = Mask::from(u64::MAX);
    let third = from.tag_recv(tag, BytesMut::zeroed(64)).mask(mask).await?;
    let fourth = worker.tag_recv(tag, BufferMut::from(vec![0; 64])).await?;
    let bytes = Bytes::try_from(fourth.buffer.freeze().slice(..fourth.len));
    let bytes = bytes.map_err(|_| said(ErrorKind::Unsupported))?;
    let received = worker.tag_recv_bytes(tag, 64).await?;
    assert_eq!(received.bytes(), b"hello");
    Ok(vec![
        first.into(),
        second.into(),
        third.into(),
        bytes,
        received.into(),
    ])
}

/// An active message with a header of the program's own words, and what came of it.
pub async fn call(endpoint: &Endpoint, id: u16, body: Bytes) -> Result<()> {
    endpoint
        .am_send(AmId::from(id), 7_u32.to_le_bytes(), body)
        .await
}

/// The header, and the payload in one piece.
pub async fn answer(mut inbox: AmInbox) -> Result<(u32, Bytes)> {
    let came: Option<ActiveMessage> = inbox.recv().await;
    let message = came.ok_or_else(|| said(ErrorKind::Closed))?;
    let header = message
        .header()
        .try_into()
        .map_err(|_| said(ErrorKind::Malformed))?;
    Ok((u32::from_le_bytes(header), message.bytes().await?))
}

/// Errors are the system's, and the system's errors are errors; a clone goes to each who waits.
pub fn errors() -> io::Result<[Error; 2]> {
    fn mine() -> Result<()> {
        std::fs::read("/nothing/here")?;
        Ok(())
    }
    fn lost(error: OpError<Vec<u8>>) -> Result<Vec<u8>> {
        let (error, buffer) = error.into_parts();
        buffer.ok_or(error)
    }
    lost(OpError::new(said(ErrorKind::Truncated), Some(Vec::new())))?;
    match mine() {
        Ok(()) => Err(said(ErrorKind::Protocol).into()),
        Err(error) => Ok([error.clone(), Error::from(io::Error::from(error))]),
    }
}

/// Endpoints are keys of a program's own tables, and so are ids.
#[allow(
    clippy::mutable_key_type,
    reason = "which endpoint it is never changes"
)]
pub fn distinct(ends: &[Endpoint]) -> (usize, usize) {
    let endpoints: HashSet<Endpoint> = ends.iter().cloned().collect();
    let workers: HashSet<WorkerId> = ends.iter().filter_map(Endpoint::peer).collect();
    (endpoints.len(), workers.len())
}

/// For people.
pub fn displayed<T: Display + Debug>() {}

/// On a command line, in a file, in a table.
pub fn parsed<T: FromStr<Err = Error> + Serialize + DeserializeOwned + Display + Debug + Clone>() {}

/// The numbers that ids are.
pub fn numbered<N: From<T> + Copy, T: From<N> + FromStr + Hash + Ord + Copy>() {}

/// Every id, kind and option.
pub fn words() {
    macro_rules! all {
        ($of:ident: $($Type:ty),* $(,)?) => { $($of::<$Type>();)* };
    }
    all!(parsed: Tag, Mask, AmId, EndpointId, WorkerId, CommunicatorId, UniqueId);
    all!(parsed: WorkerAddress, Descriptor, AddressRange, Limits, Source, MemoryType, Progress);
    all!(parsed: Access, DomainCapabilities, EventClasses, TriggerKind);
    all!(parsed: ErrorKind, Operation, Priority, Via, Arm, Mover, Party, When, Reach, Role, Zcopy);
    all!(parsed: Admission, TransportState, MonitorKind, OverLimit, Advice, Timing, Cause);
    all!(parsed: Validity, Launcher, PacketWidth, GpuBufferKind, RendezvousScheme, RelaxedOrdering);
    all!(displayed: Error, StreamAddr, Export, Stop, CopyEnd, DeviceAtomic, DevicePlace, SendError);
    all!(displayed: Meeting, RootPlace);
    numbered::<u64, Tag>();
    numbered::<u64, EndpointId>();
    numbered::<u16, AmId>();
}
