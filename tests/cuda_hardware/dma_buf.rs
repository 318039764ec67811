#![allow(unsafe_code)]
//! T12 device memory as dma-bufs; T20 dma-bufs that the host maps.
//!
//! # Safety
//! Descriptors that the driver gave are owned once. Numbers go to the kernel, which checks them.

use std::{
    fs::File,
    io::{Seek, SeekFrom},
    os::fd::{FromRawFd, OwnedFd},
};

use wharf::{ErrorKind, Progress, memory::AddressRange};

use crate::{
    device::{self, Current, MIB},
    raw::Raw,
    suite::{Case, Verdict},
    support::open_fds,
};

const DMA_BUF: u32 = 124;
const MMAP: u32 = 152;
const PCIE: u64 = 1;

/// What the driver gives for the range, or its code.
fn ask(raw: &Raw, at: u64, len: usize, flags: u64) -> Result<OwnedFd, u32> {
    let mut fd = -1;
    match raw.cuMemGetHandleForAddressRange(&mut fd, at, len, 1, flags) {
        // SAFETY: a new descriptor, which nobody else has.
        0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        code => Err(code),
    }
}

/// Its length, by seeking.
fn length(fd: OwnedFd) -> std::io::Result<u64> {
    File::from(fd).seek(SeekFrom::End(0))
}

/// T12.
pub(crate) fn export(case: &mut Case) -> Verdict {
    let current = Current::enter();
    let raw = current.raw;
    if raw.device(DMA_BUF) != 1 {
        let context = device::context(Progress::Adaptive);
        let at = current.alloc(2 * MIB);
        let range = AddressRange::new(at, 4096).expect("a range");
        let error = context.export(range).expect_err("the device cannot");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        current.free(at);
        return Verdict::NotRun(format!("attribute {DMA_BUF} is 0; wharf says: {error}"));
    }
    let context = device::context(Progress::Adaptive);
    let len = 4 * MIB;
    let at = current.alloc(len);
    let said = |result: Result<OwnedFd, u32>| match result {
        Ok(fd) => format!("a descriptor of {:?} bytes", length(fd).ok()),
        Err(code) => raw.name(code),
    };
    case.note("whole", said(ask(raw, at, len, 0)));
    case.note("a page inside", said(ask(raw, at + 8192, 4096, 0)));
    case.note("an odd address", said(ask(raw, at + 1, 4096, 0)));
    case.note("an odd length", said(ask(raw, at, 4095, 0)));
    case.note("beyond the end", said(ask(raw, at, 4 * len, 0)));
    case.note("with the flag for PCIe", said(ask(raw, at, len, PCIE)));
    assert!(ask(raw, at + 1, 4096, 0).is_err(), "an odd address");
    let mapped = ask(raw, at, len, 0).map(|fd| device::map_fd(&fd, 4096, 0));
    match mapped {
        Ok(Ok(address)) => device::unmap(address, 4096),
        Ok(Err(error)) => case.note("mapping it", error),
        Err(code) => panic!("the whole allocation: {}", raw.name(code)),
    }

    // By wharf: any bytes, with the place where they begin.
    for (start, bytes) in [(0, len), (8192, 4096), (12_345, 777)] {
        let range = AddressRange::new(at + start, bytes as u64).expect("a range");
        let exported = context.export(range).expect("a dma-buf");
        case.note(
            format!("wharf, {bytes} bytes at {start}"),
            format_args!(
                "offset {}, length {:?}",
                exported.offset,
                length(exported.fd).ok()
            ),
        );
    }

    let block = current.granularity();
    let mapped = current.mapped(block, 3, 1);
    case.note("mapped memory, one piece", said(ask(raw, mapped, block, 0)));
    case.note(
        "mapped memory, three pieces",
        said(ask(raw, mapped, 3 * block, 0)),
    );
    raw.ok(raw.cuMemUnmap(mapped, 3 * block));
    raw.ok(raw.cuMemAddressFree(mapped, 3 * block));

    let rounds = case.pick(10_000, 500);
    let range = AddressRange::new(at, len as u64).expect("a range");
    drop(context.export(range));
    let before = open_fds();
    for _ in 0..rounds {
        drop(context.export(range).expect("a dma-buf"));
    }
    let after = open_fds();
    // Nothing else opens or closes descriptors in thousands meanwhile.
    assert!(after < before + 100, "{before} descriptors, then {after}");
    case.figure(
        "descriptors after so many exports",
        after as f64 - before as f64,
        "descriptors",
    );

    let kept = ask(raw, at, len, 0).expect("a descriptor");
    current.free(at);
    case.note(
        "freed, while a descriptor is open",
        said(ask(raw, at, len, 0)),
    );
    case.note(
        "its length afterwards",
        format_args!("{:?}", length(kept).ok()),
    );
    Verdict::Ran
}

/// T20.
pub(crate) fn mapped(case: &mut Case) -> Verdict {
    let current = Current::enter();
    let raw = current.raw;
    let len = 2 * MIB;
    let at = current.alloc(len);
    let verdict = match ask(raw, at, len, 0) {
        Err(code) => Verdict::NotRun(format!("no dma-buf: {}", raw.name(code))),
        Ok(fd) => match device::map_fd(&fd, len, 0) {
            Err(error) if raw.device(MMAP) != 1 => {
                Verdict::NotRun(format!("attribute {MMAP} is 0, and mapping gives: {error}"))
            }
            Err(error) => panic!("attribute {MMAP} is 1, and mapping gives: {error}"),
            Ok(address) => {
                // The host writes, the device reads, and the other way round.
                let bytes = device::pattern(20, 4096);
                device::bytes(address, 4096).copy_from_slice(&bytes);
                let mut back = vec![0; 4096];
                raw.ok(raw.cuMemcpyDtoH_v2(device::address_mut(&mut back), at, 4096));
                assert!(back == bytes, "what the host wrote");
                let other = device::pattern(21, 4096);
                raw.ok(raw.cuMemcpyHtoD_v2(at, device::address(&other), 4096));
                back.copy_from_slice(device::bytes(address, 4096));
                assert!(back == other, "what the device wrote");
                device::unmap(address, len);
                case.note("attribute 152", raw.device(MMAP));
                Verdict::Ran
            }
        },
    };
    current.free(at);
    verdict
}
