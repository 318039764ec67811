//! Whose memory it is, for every kind that the runtime knows; what is allocated, and when it ends.

use std::sync::Arc;

use wharf::{
    Context, HostBufferMut, MemoryType,
    memory::{AddressRange, Advice, DomainCapabilities, MemoryAttributes},
    transport::accelerator::{Accelerator as _, Export},
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, accelerator, block_until, calls, control, live, own, pattern},
    program,
    support::this_test,
};

fn range(start: u64, length: u64) -> AddressRange {
    AddressRange::new(start, length).expect("a range")
}

#[test]
fn nothing_is_loaded_or_known_before_somebody_uses_it() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let accelerator = accelerator();
    let domain = accelerator.domain();
    assert!(!domain.is_loaded());
    let heap = [0_u8; 64];
    let heap = range(heap.as_ptr() as u64, 64);
    assert!(domain.detect(heap).expect("no error").is_none());
    accelerator.probe().expect("it can be loaded");
    assert!(!domain.is_loaded(), "loaded is not in use");
    assert_eq!(calls("hsa_init"), 0);
    assert_eq!(
        domain.export(heap).expect_err("not in use").kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(accelerator.device_names().expect("devices").len(), 2);
    assert!(domain.is_loaded());
    let attributes = domain.attributes();
    assert!(attributes.can(DomainCapabilities::ALLOCATE, MemoryType::Rocm(1)));
    assert!(!attributes.can(DomainCapabilities::ALLOCATE, MemoryType::Rocm(2)));
}

#[test]
fn every_kind_of_memory_is_what_it_is() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let bench = Bench::new();
    let detect = |start, length| bench.domain.detect(range(start, length));
    let type_of = |start| detect(start, 1).expect("detects").map(|it| it.memory_type);
    // The host's, ours.
    let heap = [0_u8; 64];
    assert_eq!(type_of(heap.as_ptr() as u64), None);
    // Devices', allocated by wharf and by the program, begin, interior, and past the end.
    let ours = bench.allocate(MemoryType::Rocm(1), 8192);
    let theirs = own(0, 8192);
    for (start, device) in [(ours.address(), 1), (theirs.address(), 0)] {
        for offset in [0, 1, 8191] {
            let found = detect(start + offset, 1).expect("detects").expect("known");
            assert_eq!(found.memory_type, MemoryType::Rocm(device));
            assert_eq!(found.allocation, range(start, 8192));
            assert!(found.id != 0 && found.dma_buf);
        }
        assert_eq!(type_of(start + 8192), None);
    }
    // The host's pools.
    let pinned = bench.pinned(4096);
    let found = detect(pinned.address(), 4096).expect("detects");
    assert_eq!(found.expect("known").memory_type, MemoryType::HostPinned);
    assert!(pinned.bytes().iter().all(|byte| *byte == 0));
    let host = program::on_host(4096);
    let found = detect(host.address(), 64).expect("detects").expect("known");
    assert_eq!(found.memory_type, MemoryType::HostPinned);
    assert!(!found.dma_buf);
    // Only a part of it is: nothing is said of the rest.
    assert!(
        detect(host.address() + 4000, 4096)
            .expect("detects")
            .is_none()
    );
    // Locked: at the host's address ordinary, at the devices' nothing that could be used.
    let mut page = vec![0_u8; 4096];
    let locked = program::lock(&mut page);
    assert_eq!(type_of(page.as_ptr() as u64), None);
    let error = detect(locked.agent_address, 1).expect_err("nobody's");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    drop(locked);
    // Freed.
    let gone = theirs.address();
    drop(theirs);
    assert_eq!(type_of(gone), None);
}

#[test]
fn types_that_are_not_there_are_refused() {
    let bench = Bench::new();
    for (memory_type, kind) in [
        (MemoryType::RocmManaged, ErrorKind::Unsupported),
        (MemoryType::Cuda(0), ErrorKind::Unsupported),
        (MemoryType::Rocm(9), ErrorKind::InvalidArgument),
    ] {
        let refused = bench.domain.allocate(memory_type, 8).map(drop);
        let error = refused.expect_err("refused");
        assert_eq!(error.kind(), kind, "{error}");
    }
    for length in [usize::MAX, 1 << 50] {
        let refused = bench.domain.allocate(MemoryType::Rocm(0), length);
        let error = refused.map(drop).expect_err("too much");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    }
}

/// Memory that was freed and allocated again at the same address is other memory.
#[test]
fn a_number_is_never_used_again() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_REUSE", "1")]);
    }
    let bench = Bench::new();
    let mut seen = std::collections::BTreeSet::new();
    let mut again = 0;
    let mut last = 0;
    for _ in 0..100 {
        let memory = own(0, 4096);
        let at = memory.address();
        again += u32::from(at == last);
        last = at;
        for _ in 0..2 {
            let found = bench.domain.detect(range(at, 64)).expect("detects");
            seen.insert(found.expect("known").id);
        }
    }
    assert!(again > 50, "the addresses are used again: {again}");
    assert_eq!(seen.len(), 100);
    block_until("the end", || live("notifiers") == 0);
}

/// Once for each allocation, not for each look or copy.
#[test]
fn access_is_allowed_once() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let pinned = bench.pinned(4096);
    let memory = own(0, 4096);
    let all = range(memory.address(), 4096);
    control("forget");
    for _ in 0..20 {
        bench.domain.detect(all).expect("detects");
        let end = crate::fixture::device_end(memory.address(), 0);
        bench.copy(pinned.end(0), end, 64).expect("copies");
    }
    assert_eq!(calls("hsa_amd_agents_allow_access"), 1);
    assert_eq!(calls("hsa_amd_register_deallocation_callback"), 1);
}

#[test]
fn device_memory_is_zeroed_where_the_library_can() {
    let mut bench = Bench::new();
    let mut memory = bench.allocate(MemoryType::Rocm(0), 5000);
    assert!(bench.get(&memory, 5000).iter().all(|byte| *byte == 0));
    bench.put(&mut memory, &pattern(3, 5000));
    assert!(bench.get(&memory, 5000) == pattern(3, 5000));
    assert!(calls("hsa_amd_memory_fill") > 0);
}

/// A dma-buf begins before the memory: the offset leads to it.
#[test]
fn a_dma_buf_and_its_offset() {
    use std::os::unix::fs::FileExt;
    let mut bench = Bench::new();
    let mut memory = bench.allocate(MemoryType::Rocm(1), 20_000);
    bench.put(&mut memory, &pattern(5, 20_000));
    for (skip, length) in [(0, 20_000), (777, 300)] {
        let part = range(memory.address() + skip as u64, length as u64);
        let exported = bench.domain.export(part).expect("exports");
        assert!(exported.offset > 0, "the emulated one never begins at 0");
        let mut bytes = vec![0; length];
        let file = std::fs::File::from(exported.fd);
        file.read_exact_at(&mut bytes, exported.offset)
            .expect("reads");
        assert!(bytes == pattern(5, 20_000)[skip..skip + length]);
    }
    for refused in [
        range(memory.address(), 20_001),
        range(bench.pinned(64).address(), 64),
        range(4096, 64),
    ] {
        assert!(bench.domain.export(refused).is_err());
    }
}

/// By a context: what the program frees is forgotten by the caches, by the runtime's callback.
#[test]
fn the_caches_hear_that_memory_is_freed() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_REUSE", "1")]);
    }
    let builder = Context::builder().accelerator(Arc::new(accelerator()));
    let context = builder.build().expect("a context");
    let detect = |at| context.memory_attributes(range(at, 64)).expect("an answer");
    let (mut again, mut last) = (0, None);
    for turn in 0..20 {
        let memory = own(turn % 2, 4096);
        let at = memory.address();
        let found = detect(at);
        assert_eq!(found.memory_type, MemoryType::Rocm(turn % 2));
        if let Some((_, id)) = last.filter(|(there, _)| *there == at) {
            assert_ne!(found.id, id);
            again += 1;
        }
        last = Some((at, found.id));
        drop(memory);
        assert_eq!(detect(at).memory_type, MemoryType::Host);
    }
    assert!(again > 0, "the addresses are used again");
}

#[test]
fn chosen_and_left_out_by_name() {
    let context = Context::builder().transports("self,rocm").expect("names");
    drop(context.build().expect("a context"));
    let out = accelerator().ipc(false);
    let memory = out
        .domain()
        .allocate(MemoryType::Rocm(0), 64)
        .expect("memory");
    let export = out.export(memory.range().start(), 64).expect("a value");
    assert!(matches!(export, Export::Impossible(why) if why.contains("rocm_ipc")));
}

/// The kernel's own moves of the host's memory (SVM): what was said is asked of the runtime itself.
#[test]
fn advice_on_memory_that_moves() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_DEVICES", "1")]);
    }
    let bench = Bench::new();
    // As `hipMallocManaged` has it, which the program says: 12 KiB of pages, from within the first on.
    let memory = HostBufferMut::allocate(1 << 16).expect("memory");
    let start = memory.as_ptr() as u64;
    let managed = range(start + 100, 12_000);
    let preferred = |at| program::svm(start + at, 4096);
    assert_eq!(preferred(0), [0, 0]);
    let signals = live("signals");
    let advise = |advice| bench.domain.advise(managed, advice);
    advise(Advice::WillNeed).expect("moved");
    let gpu = program::devices()[0];
    assert_eq!((preferred(0), preferred(8192)), ([gpu; 2], [gpu; 2]));
    assert_eq!(preferred(12_288), [0, 0], "behind it");
    assert_eq!(calls("hsa_amd_svm_prefetch_async"), 1);
    advise(Advice::Normal).expect("taken back");
    assert_eq!(preferred(0), [0, gpu], "where it is, it stays");
    assert_eq!(calls("hsa_amd_svm_prefetch_async"), 1);
    assert_eq!(live("signals"), signals);
    // What the program prefers is not changed.
    program::prefer(start, 4096, program::host());
    let first = range(start, 4096);
    bench.domain.advise(first, Advice::WillNeed).expect("moved");
    assert_eq!(preferred(0), [program::host(); 2]);
    // Memory that is nobody's, or does not move.
    let error = bench.domain.advise(range(1 << 40, 4096), Advice::WillNeed);
    let error = error.expect_err("nobody's");
    assert!(
        error.to_string().contains("hsa_amd_svm_attributes_get"),
        "{error}"
    );
    let (device, pinned) = (own(0, 4096), bench.pinned(4096));
    for address in [device.address(), pinned.address()] {
        for advice in [Advice::Normal, Advice::WillNeed] {
            let error = bench.domain.advise(range(address, 4096), advice);
            assert_eq!(error.expect_err("stays").kind(), ErrorKind::Unsupported);
        }
    }
    // A context hands it on for what it was told is managed.
    let context = Context::builder()
        .accelerator(Arc::new(accelerator()))
        .build()
        .expect("a context");
    let attributes = MemoryAttributes::new(MemoryType::RocmManaged, managed);
    context.notify_allocated(&attributes);
    context.advise(managed, Advice::WillNeed).expect("moved");
    assert_eq!(preferred(8192), [gpu; 2]);
    context.notify_freed(managed);
}

#[test]
fn advice_that_cannot_be_followed_is_refused() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let bench = Bench::new();
    let memory = HostBufferMut::allocate(4096).expect("memory");
    let page = range(memory.as_ptr() as u64, 4096);
    // Two devices, and none preferred.
    let error = bench.domain.advise(page, Advice::WillNeed);
    let error = error.expect_err("which");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("hipMemAdvise"), "{error}");
    control("fault hsa_amd_svm_attributes_set@1=4096");
    let error = bench.domain.advise(page, Advice::Normal);
    let error = error.expect_err("refused");
    assert!(
        error.to_string().contains("hsa_amd_svm_attributes_set"),
        "{error}"
    );
    control("set svm 0");
    for advice in [Advice::Normal, Advice::WillNeed] {
        let error = bench.domain.advise(page, advice).expect_err("no SVM");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("SVM"), "{error}");
    }
}
