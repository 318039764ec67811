//! Limits and rights. A limit on the length of files (`ulimit -f`) is told, and ends nobody: shared memory is a file to the system.

use nix::sys::resource::{Resource, setrlimit};
use wharf::{Access, Context, ErrorKind, MemoryType, Tag, Worker};

use crate::{
    expect,
    support::{LIMIT, again, is_alone, on_a_runtime, passes, this_test},
};

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
        let received = there.tag_recv(Tag(1), vec![0; 200_000]);
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

/// What is not here is said with what was tried.
#[test]
fn what_is_not_here() {
    if !is_alone() {
        let mut alone = again(this_test!());
        for library in ["WHARF_LIBCUDA", "WHARF_LIBHSA", "WHARF_LIBHLTHUNK"] {
            alone.env(library, "/nowhere/lib.so.1");
        }
        return passes(&mut alone);
    }
    on_a_runtime(async {
        let builder = Context::builder().transports("shm,tcp,cuda_copy,rocm_copy,gaudi_copy");
        let context = builder.expect("known").build().expect("a context");
        let missing = [
            (MemoryType::Cuda(0), "cuda_copy: *"),
            (MemoryType::Rocm(0), "rocm_copy: *"),
            (MemoryType::Gaudi(0), "gaudi_copy: *"),
        ];
        for (memory, tried) in missing {
            let error = context.allocate_on(memory, 4096).await;
            let text = format!(
                "memory: no memory domain allocates memory of type {memory}: {tried}/nowhere/lib.so.1*"
            );
            expect(
                &error.expect_err("no device"),
                ErrorKind::Unsupported,
                &text,
            );
        }
        let memory = context.allocate(4096).await.expect("memory");
        let region = context.expose(memory, Access::all()).await;
        let memory = region.expect("what any memory can").unexpose().await;
        let atomics = Access::all() | Access::DEVICE_ATOMIC;
        let error = context.expose(memory, atomics).await.map(drop);
        let text = "memory: no network device that reaches the memory does atomics";
        expect(&error.expect_err("no device"), ErrorKind::Unsupported, text);
    });
}
