//! Drivers and devices that lack something: each way round is taken.

use std::time::Instant;

use wharf::MemoryType;

use crate::{
    alone::{child_with, is_child},
    fixture::{Bench, Parked, calls, context, control, number},
    support::{LIMIT, emulated::without, this_test},
};

/// All that an engine does, and its bytes.
fn works(bench: &mut Bench) {
    let mut parked = Parked::new(bench);
    let (device, far) = (
        bench.allocate(MemoryType::Cuda(0), 4096),
        bench.allocate(MemoryType::Cuda(1), 4096),
    );
    let (mut source, target) = (bench.pinned(4096), bench.pinned(4096));
    for round in 1..20_u8 {
        source.bytes_mut().fill(round);
        for (from, to) in [
            (source.end(0), device.end(0)),
            (device.end(0), far.end(0)),
            (far.end(0), target.end(0)),
        ] {
            bench.begin(from, to, 4096, 1).expect("begins");
            bench.engine.flush();
            if round % 2 == 0 {
                parked.drain(bench, 1);
            } else {
                bench.drain(1);
            }
            bench.sink.done.pop().expect("told").1.expect("copied");
        }
        assert!(target.bytes().iter().all(|byte| *byte == round));
    }
}

#[test]
fn devices_that_do_not_reach_each_other() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_CUDA_PEERS", "0")]);
    }
    works(&mut Bench::new());
    assert_eq!(calls("cuCtxEnablePeerAccess"), 0);
}

#[test]
fn devices_that_do() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    works(&mut Bench::new());
    assert_eq!(calls("cuCtxEnablePeerAccess"), 2, "each the other, once");
}

#[test]
fn streams_that_write_no_words() {
    if !is_child() {
        child_with(this_test!(), &[("EMULATED_CUDA_WORDS64", "0")]);
        return child_with(this_test!(), &[("EMULATED_CUDA_VERSION", "11060")]);
    }
    let mut bench = Bench::new();
    works(&mut bench);
    // Its memory is freed in a thread of its own.
    let start = Instant::now();
    while calls("cuMemFree_v2") < 2
        || calls("cuMemHostUnregister") < 2
        || calls("cuCtxPushCurrent_v2") != calls("cuCtxPopCurrent_v2")
    {
        assert!(start.elapsed() < LIMIT, "{}", control("counts"));
        std::thread::yield_now();
    }
    // Host functions do it: one for a batch, and polling calls nothing then either.
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 64), bench.pinned(64));
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    control("reset");
    for token in 0..8 {
        bench
            .begin(pinned.end(0), device.end(0), 8, token)
            .expect("begins");
    }
    bench.engine.flush();
    assert_eq!(calls("cuLaunchHostFunc"), 1);
    assert_eq!(number("calls"), 8 + 3, "{}", control("counts"));
    bench.drain(8);
    assert_eq!(number("calls"), 8 + 3, "{}", control("counts"));
    // Streams wait for events: no words are needed for that.
    let own = context(0);
    let stream = own.enter().expect("enters").stream().expect("a stream");
    #[allow(unsafe_code)]
    // SAFETY: the stream outlives the engine's use of it.
    let handle = unsafe {
        let raw = std::ptr::with_exposed_provenance_mut(stream.raw() as usize);
        wharf::transport::cuda::CudaStream::from_raw(raw, 0)
    };
    bench
        .begin(pinned.end(0), device.end(0), 8, 9)
        .expect("begins");
    assert!(bench.engine.then(handle.into(), &[9]).is_ok());
    bench.drain(1);
    drop(bench);
}

#[test]
fn words_that_fail_on_the_way() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    works(&mut bench);
    control("fault cuStreamWriteValue64_v2@1=801");
    works(&mut bench);
    assert!(calls("cuLaunchHostFunc") > 0);
}

#[test]
fn libraries_without_the_optional_functions() {
    if !is_child() {
        let folder = tempfile::tempdir().expect("a folder");
        let (all, _) = (
            crate::support::emulated::cuda(),
            "each set of names lacks what one way round is for",
        );
        for names in [
            &[
                "cuMemcpyHtoDAsync_v2",
                "cuMemcpyDtoHAsync_v2",
                "cuMemcpyDtoDAsync_v2",
            ][..],
            &["cuStreamWriteValue64_v2"],
            &["cuStreamWaitValue64_v2"],
            &["cuCtxEnablePeerAccess", "cuDeviceCanAccessPeer"],
            &[
                "cuCtxGetId",
                "cuStreamCreateWithPriority",
                "cuMemPrefetchAsync",
            ],
        ] {
            // The driver's own look-up is a way round as well: it goes too.
            let lacking = [names, &["cuGetProcAddress_v2"]].concat();
            let path = without(&all, &lacking, folder.path()).expect("is patched");
            let path = path.to_str().expect("UTF-8");
            child_with(this_test!(), &[("WHARF_LIBCUDA", path)]);
        }
        return;
    }
    let accelerator = wharf::transport::cuda::CudaCopy::new();
    works(&mut Bench::with(accelerator));
}
