//! UCX's own programs.

use super::{
    Ucx,
    programs::{Running, perftest},
};

#[test]
#[ignore = "needs the package libucx-cu12: UCX_WHEEL"]
fn ucx_info_finds_the_devices() {
    let ucx = Ucx::find();
    let info = Running::start(&ucx, "ucx_info", "-d", &[("UCX_TLS", "cuda,tcp,self")]);
    let (text, journal) = info.end();
    for part in [
        "# Memory domain: cuda_cpy",
        "# Memory domain: cuda_ipc",
        "#      Transport: cuda_copy",
        "#      Transport: cuda_ipc",
        "cuda (access,alloc,reg,detect,dmabuf)",
        "cuda-managed (access,alloc,reg,cache,detect)",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(journal.counts.contains_key("cuInit"), "{journal:?}");
}

const LOCAL: &str = "cuda_copy,cuda_ipc,sm,self";
const REMOTE: &str = "cuda_copy,tcp,self";

/// Transports, test, memory of the two ends, bytes, and a function that must have been called by one of them.
const RUNS: &[(&str, &str, &str, u32, &str)] = &[
    (LOCAL, "tag_bw", "cuda", 8, "cuMemcpyAsync"),
    (LOCAL, "tag_bw", "cuda", 1 << 20, "cuIpcOpenMemHandle_v2"),
    (
        LOCAL,
        "tag_bw",
        "host,cuda",
        1 << 20,
        "cuMemHostRegister_v2",
    ),
    (LOCAL, "tag_lat", "cuda,host", 4096, "cuMemcpyAsync"),
    (LOCAL, "tag_lat", "cuda-managed", 65536, "cuMemAllocManaged"),
    (LOCAL, "ucp_put_bw", "cuda", 1 << 20, "cuMemcpyDtoDAsync_v2"),
    (LOCAL, "ucp_put_lat", "cuda", 4096, "cuMemcpyDtoDAsync_v2"),
    (LOCAL, "ucp_get", "cuda", 1 << 20, "cuIpcOpenMemHandle_v2"),
    (LOCAL, "ucp_get", "host,cuda", 4096, "cuMemcpyAsync"),
    (REMOTE, "tag_bw", "cuda", 1 << 20, "cuMemcpyAsync"),
    (REMOTE, "ucp_am_bw", "cuda,host", 65536, "cuMemcpyAsync"),
    (REMOTE, "stream_bw", "host,cuda", 65536, "cuMemcpyAsync"),
];

#[test]
#[ignore = "needs the package libucx-cu12: UCX_WHEEL"]
fn perftest_runs_between_two_processes() {
    let ucx = Ucx::find();
    for &(transports, test, memory, len, function) in RUNS {
        let words = format!("-t {test} -m {memory} -s {len} -n 50 -w 5");
        let ends = perftest(&ucx, &words, &[("UCX_TLS", transports)]);
        let called = ends
            .iter()
            .any(|(_, journal)| journal.counts.contains_key(function));
        assert!(
            called,
            "{transports} {words}: nobody called {function}\n{ends:?}"
        );
        for (text, _) in &ends {
            assert!(!text.contains("ERROR"), "{transports} {words}\n{text}");
        }
    }
}
