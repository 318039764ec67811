//! Buffers that a peer has mapped because messages go from and into them: what it can see of them, and until when.

use std::{
    fs::{File, read_dir, read_to_string},
    os::unix::fs::{FileExt, MetadataExt},
};

use wharf::{Access, AmId, BufferListMut, BufferMut};

use crate::{
    fixture::{Pair, Way, connect, pattern, run, same},
    rma::{BOTH, content},
};

const LENGTH: usize = 1 << 20;

/// The file under the memory at `address`, and how often this process maps it: both ends of the tests do.
fn file_at(address: *const u8) -> (u64, usize) {
    let maps = read_to_string("/proc/self/maps").expect("own mappings");
    let files: Vec<_> = maps
        .lines()
        .filter(|line| line.contains("memfd:wharf-buffer"))
        .map(|line| {
            let mut fields = line.split_whitespace();
            let (start, end) = fields
                .next()
                .and_then(|range| range.split_once('-'))
                .expect("a range");
            let [start, end] = [start, end].map(|end| usize::from_str_radix(end, 16).expect("hex"));
            let inode: u64 = fields.nth(3).expect("an inode").parse().expect("a number");
            (start..end, inode)
        })
        .collect();
    let here = files
        .iter()
        .find(|(range, _)| range.contains(&(address as usize)));
    let (_, inode) = here.expect("memory that wharf allocated");
    let times = files.iter().filter(|(_, other)| other == inode).count();
    (*inode, times)
}

/// Mappings in this process of the memory at `address`, by whomever.
pub(crate) fn mappings_of(address: *const u8) -> usize {
    file_at(address).1
}

/// The memory at `address` as whoever was given it has it, for as long as it likes.
pub(crate) fn given(address: *const u8) -> File {
    let (inode, _) = file_at(address);
    let descriptor = read_dir("/proc/self/fd")
        .expect("own descriptors")
        .flatten()
        .map(|entry| entry.path())
        // Those of other tests may be gone meanwhile.
        .find(|path| path.metadata().is_ok_and(|file| file.ino() == inode))
        .expect("the segment's");
    let mut options = File::options();
    let both = options.read(true).write(true).open(&descriptor);
    // What is sealed against writing cannot be opened otherwise on every kernel.
    both.or_else(|_| File::open(descriptor))
        .expect("the memory")
}

fn seen(memory: &File) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    memory.read_exact_at(&mut bytes, 0).expect("the memory");
    bytes
}

/// Memory of `there` that `here` may write because it has sent into it, as the owner and as the peer has it.
async fn lent(pair: &Pair) -> (BufferMut, File) {
    let memory = pair.there.context.allocate(LENGTH).await;
    let mut target: BufferMut = memory.expect("memory").into();
    // The peer maps it when it comes to it.
    while mappings_of(target.address()) < 2 {
        let receive = pair.there.worker.tag_recv(1, target);
        let send = pair.here.endpoint.tag_send(1, pattern(LENGTH, 1).to_vec());
        let (sent, received) = tokio::join!(send, receive);
        sent.expect("sent");
        target = received.expect("received").buffer;
    }
    let file = given(target.address());
    same(&seen(&file), pattern(LENGTH, 1), "the message");
    (target, file)
}

fn bytes(buffer: &BufferMut) -> &[u8] {
    buffer.as_slice().expect("host memory")
}

/// A peer that has closed its connection, or was cut off, does not see what is written into the buffer afterwards; nor what is in it by then that
/// it did not write.
#[test]
fn a_loan_ends_with_its_connection() {
    run(async {
        let pair = Way::Shm.pair().await;
        let (mut target, file) = lent(&pair).await;
        let (mut other, second) = lent(&pair).await;
        let address = target.address();
        pair.here.endpoint.close().await.expect("closed");
        pair.there.endpoint.closed().await;
        same(bytes(&target), pattern(LENGTH, 1), "it stays what it was");
        target
            .as_mut_slice()
            .expect("host memory")
            .copy_from_slice(pattern(LENGTH, 2));
        same(&seen(&file), pattern(LENGTH, 1), "what the peer has");
        file.write_all_at(pattern(LENGTH, 9), 0).expect("written");
        same(bytes(&target), pattern(LENGTH, 2), "what the owner has");
        assert_eq!(target.address(), address);
        // A page that was not written either.
        other.as_mut_slice().expect("host memory")[..4096].fill(7);
        assert_eq!(seen(&second), pattern(LENGTH, 1));
    });
}

/// Bytes of another come into the buffer by every operation that takes it.
#[test]
fn a_loan_ends_when_bytes_of_another_come() {
    run(async {
        let pair = Way::Shm.pair().await;
        let worker = Way::Shm.worker();
        let (other, accepted) = connect(&worker, &pair.there.worker).await;
        let secret = || pattern(LENGTH, 5).to_vec();

        let (target, file) = lent(&pair).await;
        let region = worker.context().expose(secret(), Access::READ).await;
        let descriptor = region.as_ref().expect("exposed").descriptor();
        let remote = accepted.import(&descriptor.expect("a descriptor"));
        let target = accepted.get(remote.expect("the peer's"), target).await;
        same(bytes(&target.expect("got")), &secret(), "got");
        same(&seen(&file), pattern(LENGTH, 1), "a get");

        let (target, file) = lent(&pair).await;
        let list = BufferListMut::from([BufferMut::from(vec![0; 100]), target]);
        let receive = pair.there.worker.tag_recv(2, list);
        let (sent, received) = tokio::join!(other.tag_send(2, secret()), receive);
        sent.expect("sent");
        let pieces = received.expect("received").buffer.into_inner();
        same(
            &bytes(&pieces[1])[..LENGTH - 100],
            &secret()[100..],
            "a list",
        );
        same(&seen(&file), pattern(LENGTH, 1), "a list");

        let inbox = pair.there.worker.active_messages(AmId(3)).open();
        let mut inbox = inbox.expect("an inbox");
        for length in [100, LENGTH] {
            let (target, file) = lent(&pair).await;
            let send = other.am_send(AmId(3), Vec::new(), secret()[..length].to_vec());
            let receive = async {
                let message = inbox.recv().await.expect("a message");
                message.receive(target).await.expect("received").buffer
            };
            let (sent, target) = tokio::join!(send, receive);
            sent.expect("sent");
            same(&bytes(&target)[..length], &secret()[..length], "active");
            same(&seen(&file), pattern(LENGTH, 1), "an active message");
        }

        // A message that came before its receive.
        let (target, file) = lent(&pair).await;
        other
            .tag_send(4, secret()[..100].to_vec())
            .await
            .expect("sent");
        let receive = pair.there.worker.tag_recv(4, target);
        let target = receive.await.expect("received").buffer;
        same(&bytes(&target)[..100], &secret()[..100], "waited");
        same(&seen(&file), pattern(LENGTH, 1), "one that waited");
    });
}

/// Memory that a peer has is not what another is given to put into.
#[test]
fn exposed_memory_is_not_lent() {
    run(async {
        let pair = Way::Shm.pair().await;
        let worker = Way::Shm.worker();
        let (other, _accepted) = connect(&worker, &pair.there.worker).await;
        let (target, file) = lent(&pair).await;
        let region = pair.there.context.expose(target, BOTH).await;
        let region = region.expect("exposed");
        same(
            &content(&region),
            pattern(LENGTH, 1),
            "it stays what it was",
        );
        let descriptor = region.descriptor().expect("a descriptor");
        let remote = other.import(&descriptor).expect("the peer's");
        for seed in 0..4 {
            let put = other.put(pattern(LENGTH, seed).to_vec(), remote.clone());
            put.await.expect("put");
        }
        same(&content(&region), pattern(LENGTH, 3), "put");
        same(&seen(&file), pattern(LENGTH, 1), "what the peer has");
    });
}

/// One connection has it; who else sends into it in turn is not lent it, and all messages arrive.
#[test]
fn it_is_lent_to_one() {
    run(async {
        let pair = Way::Shm.pair().await;
        let worker = Way::Shm.worker();
        let (other, _accepted) = connect(&worker, &pair.there.worker).await;
        let (mut target, _file) = lent(&pair).await;
        let address = target.address();
        for round in 0..6 {
            let from = if round % 2 == 0 {
                &other
            } else {
                &pair.here.endpoint
            };
            let receive = pair.there.worker.tag_recv(1, target);
            let send = from.tag_send(1, pattern(LENGTH, round).to_vec());
            let (sent, received) = tokio::join!(send, receive);
            sent.expect("sent");
            target = received.expect("received").buffer;
            same(bytes(&target), pattern(LENGTH, round), round);
            assert_eq!(target.address(), address, "it stays where it is");
        }
    });
}

/// A peer gets nothing that lies beside what it is sent.
#[test]
fn parts_are_not_given() {
    run(async {
        let pair = Way::Shm.pair().await;
        let mut source = pair
            .here
            .context
            .allocate(2 * LENGTH)
            .await
            .expect("memory");
        source[..LENGTH].copy_from_slice(pattern(LENGTH, 1));
        let source = source.freeze();
        for _ in 0..4 {
            let receive = pair.there.worker.tag_recv(1, vec![0; LENGTH]);
            let send = pair.here.endpoint.tag_send(1, source.slice(..LENGTH));
            let (sent, received) = tokio::join!(send, receive);
            sent.expect("sent");
            same(
                &received.expect("received").buffer,
                pattern(LENGTH, 1),
                "received",
            );
        }
        assert_eq!(mappings_of(source.address()), 1);
    });
}

/// What was received from one and is passed on to another is read by that one, and not written.
#[test]
fn what_is_passed_on_is_sealed() {
    run(async {
        let pair = Way::Shm.pair().await;
        let worker = Way::Shm.worker();
        let (_other, accepted) = connect(&worker, &pair.there.worker).await;
        let (target, file) = lent(&pair).await;
        let passed = target.freeze();
        for _ in 0..3 {
            let receive = worker.tag_recv(1, vec![0; LENGTH]);
            let (sent, received) = tokio::join!(accepted.tag_send(1, passed.clone()), receive);
            sent.expect("sent");
            same(
                &received.expect("received").buffer,
                pattern(LENGTH, 1),
                "passed on",
            );
        }
        let error = file.write_at(b"forged", 0).expect_err("sealed");
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied,
            "{error}"
        );
    });
}
