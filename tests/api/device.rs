//! Memory that the host does not reach: refused by every operation at once, and given back. Nothing is touched: its addresses lead nowhere.
//!
//! # Safety
//! Nothing dereferences the addresses: the type of the memory is none that the host reaches.
#![allow(unsafe_code)]

use wharf::{
    Access, Buffer, BufferList, BufferListMut, BufferMut, Endpoint, ErrorKind, MemoryType, OpError,
    Tag,
    memory::{AddressRange, DomainMemory},
};

use crate::{
    fixture::{Side, Way, run, run_on_threads},
    rma::{BOTH, exposed},
};

#[derive(Debug)]
struct Device(u64);

// SAFETY: the type is not accessible for the host.
unsafe impl DomainMemory for Device {
    fn range(&self) -> AddressRange {
        AddressRange::new(0x4000_0000_0000, self.0).expect("a range")
    }
    fn memory_type(&self) -> MemoryType {
        MemoryType::Gaudi(0)
    }
}

fn unique(length: u64) -> BufferMut {
    let memory: Box<dyn DomainMemory> = Box::new(Device(length));
    memory.into()
}

/// Alone, a part, and among others.
fn sources(length: u64) -> Vec<Buffer> {
    let device = unique(length).freeze();
    let list = BufferList::from([Buffer::from("host"), device.slice(1..), "more".into()]);
    vec![device.clone(), device.slice(..1), list.into()]
}

fn targets(length: u64) -> Vec<BufferMut> {
    let list = BufferListMut::from([vec![0; 100].into(), unique(length)]);
    vec![unique(length), list.into()]
}

#[track_caller]
fn unsupported<T>(result: wharf::Result<T>) {
    let error = result.map(drop).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("gaudi:0"), "{error}");
}

#[track_caller]
fn given_back<T, B: Into<BufferMut>>(result: Result<T, OpError<B>>) {
    let (error, buffer) = result.map(drop).expect_err("refused").into_parts();
    unsupported::<()>(Err(error));
    let buffer: BufferMut = buffer.expect("given back").into();
    assert_eq!(buffer.memory_type(), MemoryType::Gaudi(0));
}

/// Host memory still goes.
async fn works(here: &Side, there: &Side) {
    here.send(9, "as before").await;
    assert_eq!(there.receive(9, 64).await, b"as before");
}

/// One that fits into an eager message, and one that does not.
const LENGTHS: [u64; 2] = [64, 4 << 20];

scenarios! {
    everywhere:

    async fn messages(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        for length in LENGTHS {
            for source in sources(length) {
                unsupported(endpoint.tag_send(Tag(1), source.clone()).await);
                unsupported(endpoint.tag_send(Tag(1), source.clone()).sync().await);
                unsupported(endpoint.am_send(3, "header", source.clone()).await);
                if source.len() <= Endpoint::AM_MAX_HEADER {
                    unsupported(endpoint.am_send(3, source.clone(), "payload").await);
                }
                let posted = endpoint.tag_send(Tag(1), source.clone()).post();
                let (error, back) = posted.map(drop).expect_err("refused").into_parts();
                unsupported::<()>(Err(error));
                assert_eq!(back.expect("given back").len(), source.len());
                let posted = endpoint.am_send(3, "header", source.clone()).post();
                let (error, back) = posted.map(drop).expect_err("refused").into_parts();
                unsupported::<()>(Err(error));
                assert_eq!(back.expect("given back").len(), source.len());
            }
            for target in targets(length) {
                given_back(pair.there.worker.tag_recv(Tag(1), target).await);
            }
            for target in targets(length) {
                given_back(pair.there.worker.tag_recv(Tag(1), target).post().await);
            }
        }
        works(&pair.here, &pair.there).await;
    }

    async fn one_sided(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        let (region, remote) = exposed(&pair, vec![7; 5 << 20], BOTH).await;
        for length in LENGTHS {
            for source in sources(length) {
                unsupported(endpoint.put(source.clone(), remote.clone()).await);
                let posted = endpoint.put(source.clone(), remote.clone()).post();
                let (error, back) = posted.map(drop).expect_err("refused").into_parts();
                unsupported::<()>(Err(error));
                assert_eq!(back.expect("given back").len(), source.len());
            }
            for target in targets(length) {
                given_back(endpoint.get(remote.clone(), target).await);
            }
            for target in targets(length) {
                given_back(endpoint.get(remote.clone(), target).post());
            }
            for target in targets(length) {
                unsupported(pair.there.context.expose(target, Access::READ).await);
            }
        }
        let mut bytes = vec![0; region.len()];
        region.read_at(0, &mut bytes).expect("within");
        assert!(bytes.iter().all(|byte| *byte == 7), "nothing was written");
        works(&pair.here, &pair.there).await;
    }

    async fn streams(way: Way) {
        let pair = way.pair().await;
        let mut stream = pair.here.endpoint.stream().await.expect("a stream");
        for length in LENGTHS {
            for source in sources(length) {
                unsupported(stream.write_buffer(source).await);
            }
        }
        stream.write_buffer("as before").await.expect("host memory");
        works(&pair.here, &pair.there).await;
    }

    async fn an_active_message(way: Way) {
        let pair = way.pair().await;
        let mut inbox = pair.there.worker.active_messages(4).open().expect("an inbox");
        for length in [10, 300_000] {
            loop {
                match pair.here.endpoint.am_send(4, "", vec![1; length]).post() {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Rejected, "{error}"),
                }
                let soon = std::time::Duration::from_millis(50);
                if let Ok(message) = tokio::time::timeout(soon, inbox.recv()).await {
                    let message = message.expect("a message");
                    break given_back(message.receive(unique(1 << 20)).await);
                }
            }
        }
        works(&pair.here, &pair.there).await;
    }

    async fn a_claimed_message(way: Way) {
        let pair = way.pair().await;
        pair.here.endpoint.tag_send(Tag(5), "claimed").await.expect("sent");
        let matched = pair.there.worker.tag_matched(Tag(5)).await.expect("here");
        given_back(matched.recv(unique(64)).await);
        // It went back to its place.
        assert_eq!(pair.there.receive(5, 64).await, b"claimed");
    }
}
