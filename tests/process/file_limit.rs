//! A limit on the length of files (`ulimit -f`) is told, and ends nobody: shared memory is a file to the system.

use nix::sys::resource::{Resource, setrlimit};
use wharf::{Context, ErrorKind, Mask, Tag, Worker};

use crate::support::{LIMIT, again, is_alone, on_a_runtime, passes, this_test};

#[test]
fn a_limit_on_files_ends_nobody() {
    if !is_alone() {
        return passes(&mut again(this_test!()));
    }
    setrlimit(Resource::RLIMIT_FSIZE, 64 << 10, 64 << 10).expect("one's own");
    on_a_runtime(async {
        // What needs no file goes on: the transport that does is left out, with the reason.
        let context = Context::builder().build().expect("a context");
        let left_out = context.unavailable();
        let shm = left_out.iter().find(|(name, _)| name == "shm");
        let reason = format!("{:?}", shm.expect("left out").1);
        assert!(reason.contains("ulimit -f"), "{reason}");
        let (here, there) = (Worker::new(&context), Worker::new(&context));
        let (here, there) = (here.expect("a worker"), there.expect("a worker"));
        let address = there.address().expect("an address");
        let endpoint = here.connect(&address).await.expect("connected");
        let received = there.tag_recv(Tag(1), Mask::ALL, vec![0; 200_000]);
        let (sent, received) = tokio::join!(endpoint.tag_send(Tag(1), vec![7; 200_000]), received);
        sent.expect("sent");
        assert!(
            received
                .expect("received")
                .bytes()
                .iter()
                .all(|byte| *byte == 7)
        );
        let error = context.allocate(1 << 20).await.expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(format!("{error:?}").contains("ulimit -f"), "{error:?}");
        context.allocate(60 << 10).await.expect("short enough");
        drop(endpoint);
        here.shutdown(LIMIT).await.expect("shut down");
        there.shutdown(LIMIT).await.expect("shut down");
    });
}
