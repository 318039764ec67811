//! What the types of the interface are made from, made into and compared by, as a program would write it.

use std::{
    borrow::Cow,
    collections::HashSet,
    fmt::{Debug, Display},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4},
    str::FromStr,
    sync::Arc,
    task::{Context as TaskContext, Poll, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
#[cfg(feature = "channel")]
use wharf::channel::{
    CommunicatorId, GpuBufferKind, PacketWidth, TriggerKind,
    bootstrap::{Launcher, Meeting, RootPlace, TcpRoot},
};
use wharf::{
    Access, Admission, AmId, Arm, Buffer, BufferMut, Context, Descriptor, EndpointId, Error,
    ErrorKind, HostBufferMut, Mask, MemoryType, Mover, Operation, Tag, TransportState, Via, When,
    Worker,
    config::{Limits, Source},
    memory::{
        AddressRange, Advice, Cause, DomainCapabilities, EventClasses, MonitorKind, OverLimit,
        Timing, Validity,
    },
    transport::{CopyEnd, DeviceAtomic, Export, Reach, Role, SendError, Stop, Zcopy},
};
#[cfg(feature = "serde")]
use wharf::{Priority, Progress};

use crate::support::{LIMIT, on_a_runtime};

fn worker(transports: &str) -> Worker {
    let builder = Context::builder().transports(transports).expect("known");
    Worker::new(&builder.build().expect("a context")).expect("a worker")
}

#[test]
fn what_becomes_a_buffer() {
    let buffers: [Buffer; 9] = [
        [1_u8, 2, 3].into(),
        vec![1, 2, 3].into(),
        vec![1, 2, 3].into_boxed_slice().into(),
        Arc::<[u8]>::from([1, 2, 3]).into(),
        Bytes::from_static(&[1, 2, 3]).into(),
        (&[1, 2, 3]).into(),
        "\u{1}\u{2}\u{3}".into(),
        Cow::Borrowed(&[1, 2, 3][..]).into(),
        Cow::<[u8]>::Owned(vec![1, 2, 3]).into(),
    ];
    for buffer in buffers {
        let address = buffer.address();
        let bytes = Bytes::try_from(buffer).expect("the host's");
        assert_eq!(&bytes[..], [1, 2, 3]);
        assert_eq!(bytes.as_ptr(), address, "without a copy");
    }
    on_a_runtime(async {
        let context = Context::builder().build().expect("a context");
        let mut memory = context.allocate(5000).await.expect("memory");
        memory[4999] = 7;
        let bytes = Bytes::try_from(memory.freeze()).expect("the host's");
        assert_eq!((bytes.len(), bytes[4999]), (5000, 7));
    });
}

#[test]
fn errors_of_the_system_and_back() {
    fn opened() -> wharf::Result<()> {
        std::fs::File::open("/nothing/here")?;
        Ok(())
    }
    let error = opened().expect_err("nothing there");
    assert_eq!(error.kind(), ErrorKind::Io);
    let source = error.get_ref().expect("the system's");
    assert!(source.downcast_ref::<io::Error>().is_some(), "{error:?}");
    let refused = Error::from(io::Error::from(io::ErrorKind::ConnectionRefused));
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let clone = error.clone();
    assert_eq!(
        (clone.kind(), clone.to_string()),
        (error.kind(), error.to_string())
    );
    assert!(clone.get_ref().is_some());
    // Through a function that gives the system's errors.
    let system = io::Error::from(Error::new(ErrorKind::StaleKey, "exposed no longer"));
    assert_eq!(system.kind(), io::ErrorKind::InvalidData);
    assert_eq!(Error::from(system).kind(), ErrorKind::StaleKey);
}

#[test]
fn every_form_of_an_address() {
    on_a_runtime(async {
        let there = worker("tcp");
        let here = worker("tcp");
        let listener = there
            .listen((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("listens");
        let address = listener.local_addr();
        let port = address.port();
        let (text, all) = (address.to_string(), [address]);
        let (pair, borrowed) = (("127.0.0.1", port), &*text);
        let SocketAddr::V4(four) = address else {
            panic!("{address}")
        };
        macro_rules! connects {
            ($($to:expr),* $(,)?) => {$(
                // Boxed: all of them beside each other are more than a stack has.
                let connects = Box::pin(here.connect($to));
                let (connected, accepted) = tokio::join!(connects, async {
                    listener.accept().await.expect("a peer").accept().await
                });
                let (connected, accepted) = (connected.expect("connected"), accepted.expect("accepted"));
                assert_eq!(connected.peer_addr(), Some(address));
                assert_eq!(accepted.peer_addr().expect("from where").ip(), address.ip());
                assert_eq!(connected.peer_credentials(), None);
                drop((connected, accepted));
            )*};
        }
        connects!(
            &*text,
            &text,
            text.clone(),
            address,
            four,
            SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            ("127.0.0.1", port),
            ("localhost".to_owned(), port),
            (IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            (Ipv4Addr::LOCALHOST, port),
            vec![address],
            &all[..],
            all,
            &all,
            &address,
            &pair,
            &borrowed,
            text.clone().into_boxed_str(),
            Cow::Borrowed(&*text),
        );
        let none = here.connect(Vec::<SocketAddr>::new()).await;
        assert_eq!(none.expect_err("none").kind(), ErrorKind::InvalidArgument);
        for listens in [
            here.listen("127.0.0.1:0").await,
            here.listen(("localhost", 0)).await,
            here.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
                .await,
            here.listen(vec![address, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))])
                .await,
        ] {
            listens.expect("listens");
        }
        // Without IPv6 that cannot be had, whatever form names it.
        if let Ok(listener) = there.listen((Ipv6Addr::LOCALHOST, 0)).await {
            let port = listener.local_addr().port();
            let (connected, accepted) = tokio::join!(here.connect(("::1", port)), async {
                listener.accept().await.expect("a peer").accept().await
            });
            let both = (connected.expect("connected"), accepted.expect("accepted"));
            assert_eq!(
                both.0.peer_addr(),
                Some(SocketAddr::from((Ipv6Addr::LOCALHOST, port)))
            );
        }
        here.shutdown(LIMIT).await.expect("shut down");
        there.shutdown(LIMIT).await.expect("shut down");
    });
}

/// Several tasks accept at one listener; each peer is one's.
#[test]
#[allow(
    clippy::mutable_key_type,
    reason = "which endpoint it is never changes"
)]
fn a_listener_is_shared() {
    on_a_runtime(async {
        let there = worker("shm");
        let here = worker("shm");
        let listener = Arc::new(there.listen("127.0.0.1:0").await.expect("listens"));
        let address = listener.local_addr();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let listener = Arc::clone(&listener);
                tokio::spawn(async move {
                    let incoming = listener.accept().await.expect("a peer");
                    incoming.accept().await.expect("accepted")
                })
            })
            .collect();
        let mut ends = HashSet::new();
        for _ in 0..4 {
            ends.insert(here.connect(address).await.expect("connected"));
        }
        for task in tasks {
            ends.insert(task.await.expect("no panic"));
        }
        assert_eq!(ends.len(), 8, "each is another");
        for end in &ends {
            assert!(ends.contains(&end.clone()), "a clone is the same");
            if let Some(peer) = end.peer_credentials() {
                assert_eq!(peer.pid, std::process::id());
            }
        }
        let by_socket = ends.iter().filter(|end| end.peer_credentials().is_some());
        assert_eq!(by_socket.count(), 8, "all over the Unix socket");
        drop(ends);
        here.shutdown(LIMIT).await.expect("shut down");
        there.shutdown(LIMIT).await.expect("shut down");
    });
}

#[test]
fn what_was_received() {
    on_a_runtime(async {
        let worker = worker("self");
        let address = worker.address().expect("an address");
        let endpoint = worker.connect(&address).await.expect("oneself");
        endpoint
            .tag_send(Tag(1), *b"twelve bytes")
            .await
            .expect("sent");
        let received = worker.tag_recv(Tag(1), vec![0; 100]).await;
        let received = received.expect("received");
        assert_eq!(received.bytes(), b"twelve bytes");
        assert_eq!(received.as_ref(), b"twelve bytes");
        let at = received.buffer.as_ptr();
        let bytes = Bytes::from(received);
        assert_eq!((&bytes[..], bytes.as_ptr()), (&b"twelve bytes"[..], at));
        // And memory that wharf allocated.
        let memory = worker.context().allocate(100).await.expect("memory");
        endpoint
            .tag_send(Tag(1), *b"twelve bytes")
            .await
            .expect("sent");
        let received = worker.tag_recv(Tag(1), memory).await;
        let mut received = received.expect("received");
        received.buffer.as_mut()[0] = b'T';
        assert_eq!(received.as_ref(), b"Twelve bytes");
        let at = received.buffer.as_ptr();
        let bytes = Bytes::from(received);
        assert_eq!((&bytes[..], bytes.as_ptr()), (&b"Twelve bytes"[..], at));
        assert!(Bytes::from(HostBufferMut::default()).is_empty());
        let _ = BufferMut::from(vec![0; 3]);
        worker.shutdown(LIMIT).await.expect("shut down");
    });
}

/// Every kind and option is read from what it is displayed as.
#[test]
fn kinds_as_text() {
    fn back<T: FromStr<Err = Error> + Display + PartialEq + Debug>(values: &[T]) {
        for value in values {
            let read: T = value.to_string().parse().expect("its own text");
            assert_eq!(&read, value);
        }
        assert!("no such kind".parse::<T>().is_err());
    }
    back(&[Arm::Armed, Arm::Ready]);
    back(&[Via::Tcp, Via::Unix, Via::Rdma]);
    back(&[Mover::Eager, Mover::Kernel, Mover::NetworkDevices]);
    back(&[When::Shared, When::Pageable]);
    back(&[Reach::Worker, Reach::Host, Reach::Network]);
    back(&[Role::Client, Role::Server]);
    back(&[Timing::Before, Timing::After]);
    back(&[Cause::Unmapped, Cause::Notified]);
    back(&[Validity::Valid, Validity::Pending]);
    back(&[OverLimit::Uncached, OverLimit::Fail]);
    back(&[Advice::Normal, Advice::WillNeed]);
    back(&MonitorKind::ALL);
    back(&[ErrorKind::ConnectionReset, ErrorKind::Io]);
    back(&[Operation::TagSend, Operation::Atomic]);
    back(&[Zcopy::Done, Zcopy::Pending]);
    back(&[
        DomainCapabilities::empty(),
        DomainCapabilities::DETECT | DomainCapabilities::EXPORT,
    ]);
    back(&[EventClasses::all(), EventClasses::RUST_HEAP]);
    back(&[
        AddressRange::new(0x1000, 0x20).expect("a range"),
        AddressRange::new(7, 0).expect("a range"),
    ]);
    assert!("0x20..0x10".parse::<AddressRange>().is_err());
    back(&[
        TransportState::Usable,
        TransportState::Unavailable("no device: none".to_owned()),
        TransportState::LeftOut("UCX_TLS".to_owned()),
    ]);
    back(&[Admission::Accept, Admission::Refuse("full: 7".to_owned())]);
    #[cfg(feature = "channel")]
    back(&[GpuBufferKind::Multicast, GpuBufferKind::Plain]);
    #[cfg(feature = "channel")]
    back(&[
        TriggerKind::empty(),
        TriggerKind::DATA | TriggerKind::FLUSH,
        TriggerKind::all(),
    ]);
    #[cfg(feature = "channel")]
    back(&[PacketWidth::Eight, PacketWidth::Sixteen]);
    #[cfg(feature = "channel")]
    back(&[Launcher::Wharf, Launcher::OpenMpi, Launcher::Kubernetes]);
    back(&[
        Limits::default(),
        Limits::default().each_source(|quota| quota.connections(7)),
    ]);
    back(&[
        Source::Default,
        Source::Builder,
        Source::Env("WHARF_TLS"),
        Source::Env("UCX_TLS"),
    ]);
}

/// What is a number is made of one, and made into one.
#[test]
fn numbers_and_back() {
    assert_eq!(u64::from(Tag::from(7_u64)), 7);
    assert_eq!(u64::from(Mask::from(u64::MAX)), Mask::ALL.0);
    assert_eq!(u16::from(AmId::from(7_u16)), 7);
    assert_eq!(u64::from(EndpointId::from(7)), 7);
}

/// What holds more than a word is displayed for people, or is of one stable form.
#[test]
fn as_people_read_it() {
    fn is(value: &dyn Display, text: &str) {
        assert_eq!(value.to_string(), text);
    }
    is(&ErrorKind::ConnectionReset, "connection reset");
    is(
        &TransportState::LeftOut("UCX_TLS".to_owned()),
        "left out: UCX_TLS",
    );
    is(&Admission::Refuse("full".to_owned()), "refused: full");
    is(&Export::Descriptor(vec![0; 12]), "a descriptor of 12 bytes");
    is(
        &Export::Impossible("no handle".to_owned()),
        "impossible: no handle",
    );
    is(&Stop::Certain("two roots".to_owned()), "two roots");
    is(&Stop::Untried, "not tried yet");
    is(&DeviceAtomic::FetchAdd(3), "fetch-add 3");
    is(
        &DeviceAtomic::CompareSwap {
            compare: 1,
            swap: 2,
        },
        "compare-swap 1 2",
    );
    is(&SendError::Full, "no room now");
    let failed = Error::new(ErrorKind::ConnectionReset, "gone").over("tcp");
    is(&SendError::Failed(failed), "gone over tcp");
    let end = CopyEnd::Device {
        address: 0x20,
        memory_type: MemoryType::Cuda(1),
    };
    is(&end, "cuda:1 0x20");
    let end = CopyEnd::Host {
        address: std::ptr::without_provenance_mut(0x30),
        pinned: false,
    };
    is(&end, "host 0x30");
    #[cfg(feature = "channel")]
    {
        is(&Meeting::from("node0:29500"), "node0:29500");
        is(&RootPlace::Nowhere, "nowhere");
        is(&RootPlace::Name("job 7".to_owned()), "job 7 on this host");
        is(&RootPlace::Address("node0:29500".to_owned()), "node0:29500");
        // An id's secret is for those who are to join.
        on_a_runtime(async {
            let root = TcpRoot::bind("127.0.0.1:0").await.expect("listens");
            let id = root.unique_id();
            let place = id.addresses()[0].to_string();
            is(&RootPlace::Id(id.clone()), &place);
            is(&Meeting::Id(id.clone()), &place);
            #[cfg(feature = "serde")]
            in_serde(id, serde_json::json!(id.to_string()));
        });
    }
}

/// Any memory can be exposed with all rights.
#[test]
fn all_rights() {
    on_a_runtime(async {
        let worker = worker("self");
        let address = worker.address().expect("an address");
        let endpoint = worker.connect(&address).await.expect("oneself");
        let region = worker.context().expose(vec![0; 8], Access::all()).await;
        let region = region.expect("exposed");
        let descriptor = region.descriptor().expect("a descriptor");
        assert_eq!(descriptor.access(), Access::READ | Access::WRITE);
        // As text, for a configuration or a command line.
        let text = descriptor.to_string();
        assert_eq!(text.parse::<Descriptor>().expect("its text"), descriptor);
        for wrong in ["", "0", "xx", &text[2..], &text.replace('0', "1")] {
            assert!(wrong.parse::<Descriptor>().is_err(), "{wrong}");
        }
        let remote = endpoint.import(&descriptor).expect("its own");
        endpoint
            .put(vec![7; 8], remote.clone())
            .await
            .expect("written");
        let got = endpoint.get(remote, vec![0; 8]).await.expect("read");
        assert_eq!(got, [7; 8]);
        worker.shutdown(LIMIT).await.expect("shut down");
    });
}

#[cfg(feature = "serde")]
fn in_serde<T>(value: &T, as_json: serde_json::Value)
where
    T: serde_core::Serialize + serde_core::de::DeserializeOwned + PartialEq + Debug,
{
    assert_eq!(serde_json::to_value(value).expect("written"), as_json);
    assert_eq!(&serde_json::from_value::<T>(as_json).expect("read"), value);
}

#[cfg(feature = "serde")]
#[test]
fn in_json() {
    use in_serde as is;
    use serde_json::{from_value, json};
    is(&Tag(u64::MAX), json!(u64::MAX));
    is(&Mask(6), json!(6));
    is(&AmId(7), json!(7));
    is(&Priority::High, json!("high"));
    is(&MemoryType::Cuda(1), json!("cuda:1"));
    is(&Access::all(), json!("read+write"));
    is(
        &Progress::Spin(Duration::from_micros(20)),
        json!("spin:20us"),
    );
    is(&Limits::default(), json!(Limits::default().to_string()));
    #[cfg(feature = "channel")]
    is(&PacketWidth::Eight, json!("8"));
    is(&MonitorKind::Uffd, json!("uffd"));
    is(&ErrorKind::PeerDied, json!("peer died"));
    is(&Operation::Get, json!("get"));
    is(&Admission::Accept, json!("accepted"));
    is(&TransportState::Usable, json!("usable"));
    is(&Source::Env("UCX_TLS"), json!("UCX_TLS"));
    #[cfg(feature = "channel")]
    {
        let text = "00112233445566778899aabbccddeeff";
        let id: CommunicatorId = text.parse().expect("an id");
        is(&id, json!(text));
    }
    assert!(from_value::<AmId>(json!(65536)).is_err());
    assert!(from_value::<Priority>(json!("urgent")).is_err());
    on_a_runtime(async {
        let worker = worker("self,tcp");
        is(&worker.id(), json!(worker.id().to_string()));
        let address = worker.address().expect("an address");
        is(&address, json!(address.to_string()));
        let region = worker
            .context()
            .expose(vec![0; 8], Access::READ)
            .await
            .expect("exposed");
        let descriptor = region.descriptor().expect("a descriptor");
        is(&descriptor, json!(descriptor.to_string()));
        assert!(from_value::<Descriptor>(json!("00")).is_err());
        worker.shutdown(LIMIT).await.expect("shut down");
    });
}

/// Waits on this thread, in no runtime.
fn outside<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = TaskContext::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(LIMIT),
        }
    }
}

/// A deadline runs by the clock of the worker's runtime where whoever waits is in none.
#[test]
fn deadlines_outside_every_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let worker = runtime.block_on(async { worker("self") });
    let endpoint = runtime.block_on(async {
        let address = worker.address().expect("an address");
        worker.connect(&address).await.expect("oneself")
    });
    let soon = Duration::from_millis(10);
    let never = worker.tag_recv(Tag(1), vec![0; 8]).deadline(soon);
    let error = outside(never).expect_err("nobody sends");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    let posted = worker.tag_recv(Tag(1), vec![0; 8]).deadline(soon).post();
    let error = outside(posted).expect_err("nobody sends");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    let sent = endpoint.tag_send(Tag(2), *b"at once!").deadline(LIMIT);
    outside(sent).expect("sent");
    let came = worker.tag_recv(Tag(2), vec![0; 8]).deadline(LIMIT);
    assert_eq!(outside(came).expect("received").bytes(), b"at once!");
    drop(endpoint);
    runtime.block_on(worker.shutdown(LIMIT)).expect("shut down");
}
