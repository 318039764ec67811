//! `gaudi_gdr`: device memory as dma-bufs, for whoever asks who knows an address. No transport names Gaudi.

use std::{fs, os::fd::AsRawFd as _, path::Path, sync::Arc};

use wharf::{
    Context, ErrorKind,
    memory::{AddressRange, DomainCapabilities},
    transport::Accelerator as _,
};

use crate::{
    machine::{DEVICE, Machine},
    stranger::{Stranger, alone, gaudi, thunk_calls},
    support::{block_until, child, emulated, open_fds, this_test},
};

const QUERIES: usize = 10_000;

#[test]
fn ten_thousand_queries_leave_no_descriptor() {
    if child("alone").is_none() {
        return alone(this_test!(), &[]);
    }
    let machine = Machine::new(&[]);
    let context = machine.builder().build().expect("a context");
    let mut domains = context.memory_domains().iter();
    let domain = domains.find(|domain| domain.name() == "gaudi_copy");
    let memory = domain
        .expect("Gaudi's")
        .allocate(DEVICE, 1 << 20)
        .expect("memory");
    let start = memory.range().start();
    let first = context.export(memory.range()).expect("a dma-buf");
    let of = machine.control(&format!("dmabuf {}", first.fd.as_raw_fd()));
    let fds = open_fds();
    for query in 0..QUERIES as u64 {
        let at = query * 97 % (1 << 20);
        let range = AddressRange::new(start + at, (1 << 20) - at).expect("a range");
        let answer = context.export(range).expect("a dma-buf");
        assert_eq!(answer.offset, first.offset + at);
        if query % 1000 == 0 {
            let same = machine.control(&format!("dmabuf {}", answer.fd.as_raw_fd()));
            assert_eq!(same, of);
        }
    }
    assert_eq!(open_fds(), fds);
    assert_eq!(
        machine.calls("hlthunk_device_mapped_memory_export_dmabuf_fd"),
        1
    );
    drop((first, memory, context));
    machine.check_gone();
}

#[test]
fn the_pool_of_synapse_is_exported_once() {
    if child("alone").is_none() {
        alone(this_test!(), &[]);
        return alone(this_test!(), &[("EMULATED_SYNAPSE_POOL_KNOWN", "0")]);
    }
    let stranger = Stranger::with_card();
    let builder = Context::builder().transports("self").expect("known");
    let context = builder.accelerator(Arc::new(gaudi())).build();
    let context = context.expect("a context");
    let address = stranger.allocate(1 << 20);
    let range = |at: u64, length| AddressRange::new(address + at, length).expect("a range");
    let first = context.export(range(0, 1)).expect("a dma-buf");
    let text = format!("dmabuf {}", first.fd.as_raw_fd());
    let of = emulated::control_of(&emulated::hlthunk(), &text);
    let fds = open_fds();
    for query in 0..QUERIES as u64 {
        let at = query * 97 % (1 << 20);
        let answer = context.export(range(at, 1)).expect("a dma-buf");
        assert_eq!(answer.offset, first.offset + at);
    }
    assert_eq!(open_fds(), fds);
    assert_eq!(
        thunk_calls("hlthunk_device_mapped_memory_export_dmabuf_fd"),
        1
    );
    // Place, first address, offset and length: where the offset leads to is the program's memory.
    let words: Vec<&str> = of.split(' ').collect();
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("hex");
    assert_eq!(words[0], "0000:33:00.0");
    assert_eq!(number(words[1]) + number(words[2]) + first.offset, address);
    stranger.free(address);
}

#[test]
fn it_can_be_left_out() {
    let machine = Machine::new(&[]);
    let gaudi = machine.gaudi().gdr(false);
    let domain = gaudi.domain();
    let attributes = domain.attributes();
    assert!(!attributes.can(DomainCapabilities::EXPORT, DEVICE));
    let memory = machine.allocate(&domain, DEVICE, 4096);
    let known = domain.detect(memory.range()).expect("no error");
    assert!(!known.expect("known").dma_buf);
    let error = domain.export(memory.range()).expect_err("left out");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("gaudi_gdr"), "{error}");
    drop((memory, domain, gaudi));
    machine.check_gone();
}

#[test]
fn memory_that_is_not_there() {
    let machine = Machine::new(&[]);
    let gaudi = machine.gaudi();
    let domain = gaudi.domain();
    let memory = machine.allocate(&domain, DEVICE, 4096);
    let start = memory.range().start();
    for (at, length) in [(start, 4097), (start + 4096, 1), (start - 1, 1), (8, 8)] {
        let range = AddressRange::new(at, length).expect("a range");
        let error = domain.export(range).expect_err("not there");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let range = memory.range();
    drop(memory);
    block_until("it is freed", || {
        domain
            .export(range)
            .is_err_and(|error| error.kind() == ErrorKind::InvalidArgument)
    });
    drop((domain, gaudi));
    machine.check_gone();
}

/// Who moves bytes between peers asks the memory domains, and knows no vendor.
#[test]
fn no_transport_and_no_protocol_names_gaudi() {
    /// The vendor's own room; the list of rooms; where memory types have their numbers and names; tests that need some device.
    const MAY: [&str; 15] = [
        "transport/gaudi/",
        "transport/mod.rs",
        "transport/registry.rs",
        "driver/",
        "types/memory_type.rs",
        "config/",
        "memory/type_cache/slot.rs",
        "protocol/descriptor.rs",
        "worker/device/hostile.rs",
        // Every decoder, by the name of what it decodes for.
        "fuzz.rs",
        // What is built with which feature.
        "lib.rs",
        "transport/accelerator/mod.rs",
        "util/features.rs",
        // What people read.
        "bin/",
        "guide/",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut looked_at = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&root).expect("within");
            let name = name.to_str().expect("text");
            if MAY.iter().any(|may| name.starts_with(may)) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("text").to_lowercase();
            for word in ["gaudi", "habana", "hlthunk"] {
                assert!(!text.contains(word), "{name} names {word}");
            }
            looked_at += 1;
        }
    }
    assert!(looked_at > 100, "{looked_at} files");
}
