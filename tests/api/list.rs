//! Lists of buffers: messages gathered and scattered.

use wharf::{Buffer, BufferList, BufferListMut, BufferMut, ErrorKind, ReceiveBuffer, Tag};

use crate::{
    fixture::{SIZES, Side, Way, a_while, pattern, run, run_on_threads, same},
    rma::{BOTH, content, exposed},
};

/// Cuts: one piece, halves, unequal ones with empty ones between, pieces of a length.
fn cuts(length: usize) -> Vec<Vec<usize>> {
    let even = |piece: usize| {
        let mut pieces = vec![piece; length / piece];
        pieces.push(length % piece);
        pieces
    };
    let mut cuts = vec![
        vec![length],
        vec![length / 2, length - length / 2],
        vec![
            0,
            length / 3,
            0,
            0,
            length / 5,
            length - length / 3 - length / 5,
            0,
        ],
        even(10_000),
        even(100_000),
    ];
    if length <= 300_000 {
        cuts.push(even(37));
    }
    if length == 0 {
        cuts.push(vec![]);
    }
    cuts
}

fn list(bytes: &'static [u8], cut: &[usize]) -> BufferList {
    let mut rest = bytes;
    cut.iter()
        .map(|piece| {
            let (front, back) = rest.split_at(*piece);
            rest = back;
            front
        })
        .collect()
}

fn room(cut: &[usize]) -> BufferListMut {
    cut.iter().map(|piece| vec![0xee; *piece]).collect()
}

#[track_caller]
fn joined(list: BufferListMut, cut: &[usize]) -> Vec<u8> {
    let pieces: Vec<Vec<u8>> = list.into_inner().into_iter().map(Vec::restore).collect();
    let lengths: Vec<usize> = pieces.iter().map(Vec::len).collect();
    assert_eq!(lengths, cut, "other pieces came back");
    pieces.concat()
}

async fn receive(side: &Side, tag: u64, cut: &[usize]) -> Vec<u8> {
    let received = side
        .worker
        .tag_recv(Tag(tag), room(cut))
        .await
        .expect("a message");
    let mut bytes = joined(received.buffer, cut);
    assert!(
        bytes[received.len..].iter().all(|byte| *byte == 0xee),
        "bytes behind the message were touched"
    );
    bytes.truncate(received.len);
    bytes
}

scenarios! { everywhere:
    /// Lists to buffers, buffers to lists, lists to lists.
    async fn messages(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        for (seed, size) in SIZES.into_iter().enumerate() {
            let bytes = pattern(size, seed);
            for cut in cuts(size) {
                let what = format!("{size} bytes, {} pieces", cut.len());
                let (sent, got) = tokio::join!(endpoint.tag_send(1, list(bytes, &cut)), pair.there.receive(1, size + 3));
                sent.expect("sent");
                same(&got, bytes, &what);
                let (sent, got) = tokio::join!(endpoint.tag_send(2, bytes), receive(&pair.there, 2, &cut));
                sent.expect("sent");
                same(&got, bytes, &what);
                // The other way round, into a list with room, synchronously, and posted before it is received.
                let mut other: Vec<usize> = cut.iter().rev().copied().collect();
                other.push(5);
                let send = endpoint.tag_send(3, list(bytes, &cut)).sync().post().expect("room");
                let (sent, got) = tokio::join!(send, receive(&pair.there, 3, &other));
                sent.expect("sent");
                same(&got, bytes, &what);
            }
        }
    }

    /// Received by a receive that was posted first.
    async fn posted_first(way: Way) {
        let pair = way.pair().await;
        for (seed, size) in SIZES.into_iter().enumerate().filter(|(_, size)| *size < 2_000_000) {
            let bytes = pattern(size, seed);
            let cut = [size / 3, 0, size - size / 3, 9];
            let receive = pair.there.worker.tag_recv(Tag(1), room(&cut)).post();
            a_while_once(seed).await;
            let (sent, received) = tokio::join!(pair.here.endpoint.tag_send(1, bytes), receive);
            sent.expect("sent");
            let received = received.expect("a message");
            assert_eq!(received.len, size);
            let got = joined(received.buffer, &cut);
            same(&got[..size], bytes, size);
            assert_eq!(got[size..], [0xee; 9]);
        }
    }

    /// Ten thousand pieces, of 8 bytes and of 100.
    async fn many_pieces(way: Way) {
        let pair = way.pair().await;
        for piece in [8, 100] {
            let cut = vec![piece; 10_000];
            let bytes = pattern(piece * cut.len(), piece);
            let (sent, got) = tokio::join!(pair.here.endpoint.tag_send(1, list(bytes, &cut)), receive(&pair.there, 1, &cut));
            sent.expect("sent");
            same(&got, bytes, piece);
            let (region, remote) = exposed(&pair, vec![0; bytes.len()], BOTH).await;
            pair.here.endpoint.put(list(bytes, &cut), remote.clone()).await.expect("put");
            same(&content(&region), bytes, piece);
            let got = pair.here.endpoint.get(remote, room(&cut)).await.expect("got");
            same(&joined(got, &cut), bytes, piece);
        }
        // More than a table has entries.
        let cut = vec![9; 40_000];
        let bytes = pattern(9 * cut.len(), 5);
        let (sent, got) = tokio::join!(pair.here.endpoint.tag_send(1, list(bytes, &cut)), receive(&pair.there, 1, &[200_000, 160_000]));
        sent.expect("sent");
        same(&got, bytes, "more");
    }

    /// Payloads of active messages.
    async fn active_messages(way: Way) {
        let pair = way.pair().await;
        let id = wharf::AmId(3);
        let mut inbox = pair.there.worker.active_messages(id).open().expect("an inbox");
        for (seed, size) in SIZES.into_iter().enumerate() {
            let bytes = pattern(size, seed);
            for cut in cuts(size) {
                let send = pair.here.endpoint.am_send(id, "head", list(bytes, &cut));
                let receive = async {
                    let message = inbox.recv().await.expect("a message");
                    assert_eq!(message.header(), b"head");
                    let received = message.receive(room(&cut)).await.expect("received");
                    assert_eq!(received.len, size);
                    same(&joined(received.buffer, &cut), bytes, size);
                };
                let (sent, ()) = tokio::join!(send, receive);
                sent.expect("sent");
            }
        }
    }

    async fn too_long_for_a_list(way: Way) {
        let pair = way.pair().await;
        for size in [10, 5_000, 50_000, 500_000] {
            let cut = [size / 2, size - size / 2 - 1];
            let send = pair.here.endpoint.tag_send(1, list(pattern(size, 1), &[size / 3, size - size / 3])).post().expect("room");
            let error = pair.there.worker.tag_recv(Tag(1), room(&cut)).await.expect_err("too long");
            let (error, buffer) = error.into_parts();
            assert_eq!(error.kind(), ErrorKind::Truncated);
            assert!(joined(buffer.expect("given back"), &cut).iter().all(|byte| *byte == 0xee));
            send.await.expect("sent");
        }
    }

    /// A receive into a list that is dropped gives its message to the next.
    async fn dropped(way: Way) {
        let pair = way.pair().await;
        for size in [10, 5_000, 200_000] {
            let bytes = pattern(size, 2);
            let cut = [size / 2, size - size / 2];
            let receive = pair.there.worker.tag_recv(Tag(1), room(&cut)).post();
            let send = pair.here.endpoint.tag_send(1, bytes).post().expect("room");
            a_while().await;
            drop(receive);
            same(&pair.there.receive(1, size).await, bytes, size);
            send.await.expect("sent");
        }
    }

    /// Slices and clones of a list; a list that goes through places that want one run.
    async fn parts(way: Way) {
        let pair = way.pair().await;
        let bytes = pattern(300_000, 3);
        let whole: Buffer = list(bytes, &[100_000, 1, 50_000, 149_999]).into();
        for (start, end) in [(0, 300_000), (99_999, 100_003), (5, 290_000), (300_000, 300_000)] {
            let (sent, got) = tokio::join!(pair.here.endpoint.tag_send(1, whole.slice(start..end)), pair.there.receive(1, 300_000));
            sent.expect("sent");
            same(&got, &bytes[start..end], start);
        }
        // Exposed, it is one run of memory.
        let room: BufferMut = room(&[1000, 2000]).into();
        let (region, remote) = exposed(&pair, room, BOTH).await;
        pair.here.endpoint.put(pattern(3000, 1), remote).await.expect("put");
        let list = BufferListMut::restore(region.unexpose().await);
        same(&joined(list, &[1000, 2000]), pattern(3000, 1), "exposed");
    }
}

/// Lets the other side see that a receive is there, for some of the cases.
async fn a_while_once(seed: usize) {
    if seed.is_multiple_of(5) {
        a_while().await;
    }
}
