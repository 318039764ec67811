#![allow(unsafe_code)]
//! T4 what addresses are; T5 ranges and numbers of allocations; T14 the host and device memory.
//!
//! # Safety
//! One process reads a device address as if it were the host's: the fault is what the test wants. The kernel checks the addresses of all other calls.

use std::{io, os::fd::AsRawFd, os::unix::process::ExitStatusExt};

use wharf::{Context, MemoryType, Progress, memory::AddressRange};

use crate::{
    device::{self, Current, DEVICE, Kernels, MIB},
    raw::{Opaque, PoolProps},
    suite::{self, Case, Verdict},
    support::Parent,
};

/// What wharf says of the memory there, asked anew.
fn type_of(context: &Context, at: u64, len: usize) -> MemoryType {
    let range = AddressRange::new(at, len as u64).expect("a range");
    let known = context.refresh_memory_attributes(range);
    known.expect("an answer").memory_type
}

/// A pool of the first device, shareable by these handles.
pub(crate) fn pool_props(handle_types: u32) -> PoolProps {
    PoolProps {
        kind: 1,
        handle_types,
        location: [1, 0],
        win32: 0,
        max: 0,
        reserved: [0; 56],
    }
}

/// T4. Every kind of memory, at its base, inside, and beyond its end.
pub(crate) fn memory_types(case: &mut Case) -> Verdict {
    let current = Current::enter();
    let raw = current.raw;
    let context = device::context(Progress::Adaptive);
    let is = |what: &str, at: u64, wanted: MemoryType| {
        assert_eq!(type_of(&context, at, 1), wanted, "{what}");
    };

    let heap = vec![0_u8; 3 * MIB];
    is("memory of malloc", device::address(&heap), MemoryType::Host);
    let file = device::pages(MIB, true);
    is("a mapped file", file, MemoryType::Host);

    let pinned = current.pinned(10_000);
    is("pinned memory", pinned, MemoryType::HostPinned);
    is(
        "pinned memory, inside",
        pinned + 9_999,
        MemoryType::HostPinned,
    );
    current.free_pinned(pinned);
    is("pinned memory that was freed", pinned, MemoryType::Host);

    let pages = device::pages(MIB, false);
    raw.ok(raw.cuMemHostRegister_v2(pages + 8192, 8192, 1));
    is("before registered memory", pages, MemoryType::Host);
    is("registered memory", pages + 8192, MemoryType::HostPinned);
    is("its last byte", pages + 16383, MemoryType::HostPinned);
    is("behind registered memory", pages + 16384, MemoryType::Host);
    case.note(
        "from before into registered memory",
        type_of(&context, pages + 4096, 8192),
    );
    raw.ok(raw.cuMemHostUnregister(pages + 8192));
    is(
        "memory that is not registered any more",
        pages + 8192,
        MemoryType::Host,
    );

    let memory = current.alloc(3 * MIB);
    is("device memory", memory, DEVICE);
    is("device memory, inside", memory + 12_345, DEVICE);
    is("its last byte", memory + (3 * MIB - 1) as u64, DEVICE);
    case.note(
        "one past its end",
        type_of(&context, memory + (3 * MIB) as u64, 1),
    );
    current.free(memory);
    is("device memory that was freed", memory, MemoryType::Host);

    if raw.device(83) == 1 {
        // Small: what does not fit beside everything else can hang a device.
        let mut managed = 0;
        raw.ok(raw.cuMemAllocManaged(&mut managed, MIB, 1));
        is("managed memory", managed + 77, MemoryType::CudaManaged);
        current.free(managed);
    } else {
        case.without("managed memory", "attribute 83 is 0");
    }

    let block = current.granularity();
    let mapped = current.mapped(block, 2, 0);
    is("mapped memory", mapped, DEVICE);
    is(
        "mapped memory, second piece",
        mapped + block as u64 + 5,
        DEVICE,
    );
    raw.ok(raw.cuMemUnmap(mapped, 2 * block));
    raw.ok(raw.cuMemAddressFree(mapped, 2 * block));
    is(
        "memory that is not mapped any more",
        mapped,
        MemoryType::Host,
    );

    let stream = current.stream();
    let mut pooled = 0;
    raw.ok(raw.cuMemAllocAsync(&mut pooled, 5000, stream));
    is("memory of the default pool", pooled, DEVICE);
    raw.ok(raw.cuMemFreeAsync(pooled, stream));
    let mut pool = 0;
    raw.ok(raw.cuMemPoolCreate(&mut pool, &pool_props(1)));
    raw.ok(raw.cuMemAllocFromPoolAsync(&mut pooled, 5000, pool, stream));
    is("memory of a pool", pooled, DEVICE);
    raw.ok(raw.cuMemFreeAsync(pooled, stream));
    current.wait(stream);
    raw.ok(raw.cuMemPoolDestroy(pool));
    raw.ok(raw.cuStreamDestroy_v2(stream));

    match Kernels::load(&current, case.emulated).global() {
        Some(variable) => is("a module's variable", variable, DEVICE),
        None => case.without(
            "a module's variable",
            "the emulated driver loads no modules",
        ),
    }
    drop(heap);
    Verdict::Ran
}

/// T5. Small allocations keep their ranges; memory that is freed and allocated anew has another number.
pub(crate) fn ranges_and_numbers(case: &mut Case) -> Verdict {
    const BUFFER_ID: u32 = 7;
    let current = Current::enter();
    let raw = current.raw;
    let sizes = [1, 100, 1000, 4096, 70_000, MIB, 5 * MIB];
    let all: Vec<(u64, usize)> = sizes
        .iter()
        .map(|len| (current.alloc(*len), *len))
        .collect();
    let mut numbers = Vec::new();
    for (at, len) in &all {
        for inside in [0, len / 2, len - 1] {
            let (mut base, mut found) = (0, 0);
            raw.ok(raw.cuMemGetAddressRange_v2(&mut base, &mut found, at + inside as u64));
            assert_eq!(base, *at, "the base of {len} bytes");
            assert!(found >= *len, "{found} of {len} bytes");
        }
        numbers.push(raw.pointer(BUFFER_ID, *at).expect("a number"));
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all.len(), "a number for each allocation");
    all.into_iter().for_each(|(at, _)| current.free(at));

    let context = device::context(Progress::Adaptive);
    let number = |at| {
        let range = AddressRange::new(at, 8).expect("a range");
        context
            .refresh_memory_attributes(range)
            .expect("an answer")
            .id
    };
    let first = current.alloc(4 * MIB);
    let (of_driver, of_wharf) = (raw.pointer(BUFFER_ID, first), number(first));
    assert_eq!(of_driver, Ok(of_wharf));
    current.free(first);
    let mut again = Vec::new();
    while again.last() != Some(&first) && again.len() < 64 {
        again.push(current.alloc(4 * MIB));
    }
    if again.last() == Some(&first) {
        assert_ne!(
            raw.pointer(BUFFER_ID, first),
            of_driver,
            "freed and allocated anew"
        );
        assert_ne!(number(first), of_wharf, "freed and allocated anew");
    } else {
        case.without("the same address again", "64 allocations got others");
    }
    again.into_iter().for_each(|at| current.free(at));
    Verdict::Ran
}

/// T14. The host reads device memory: it faults, and so does the kernel on its behalf.
pub(crate) fn the_host_cannot_touch_it(case: &mut Case) -> Verdict {
    let current = Current::enter();
    let at = current.alloc(4096);
    let pointer = std::ptr::with_exposed_provenance::<libc::c_void>(at as usize);
    let (_reader, writer) = io::pipe().expect("a pipe");
    // SAFETY: the kernel checks the address.
    let written = unsafe { libc::write(writer.as_raw_fd(), pointer, 8) };
    let error = io::Error::last_os_error().raw_os_error();
    assert_eq!((written, error), (-1, Some(libc::EFAULT)), "write(2)");

    let mut room = [0_u8; 8];
    let local = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: 8,
    };
    let remote = libc::iovec {
        iov_base: pointer.cast_mut(),
        iov_len: 8,
    };
    // SAFETY: the kernel checks both addresses.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    let error = io::Error::last_os_error().raw_os_error();
    match error {
        Some(libc::EPERM | libc::ENOSYS) if read < 0 => {
            case.without("process_vm_readv", io::Error::last_os_error())
        }
        _ => assert_eq!((read, error), (-1, Some(libc::EFAULT)), "process_vm_readv"),
    }
    current.free(at);

    // The harness's own arguments for one test in a process that is allowed to die.
    let this = std::env::current_exe().expect("this program's path");
    let status = std::process::Command::new(this)
        .args([
            "--exact",
            case.test,
            "--nocapture",
            "--include-ignored",
            "--test-threads=1",
        ])
        .env("WHARFTEST_PART", "T14 toucher")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .and_then(|child| child.wait_with_output())
        .expect("a second process");
    let signal = status.status.signal();
    assert!(
        matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)),
        "the host read device memory: {}",
        status.status
    );
    case.note("the signal", signal.unwrap_or_default());
    Verdict::Ran
}

/// A second process: reads where the host must not.
pub(crate) fn toucher(_parent: Parent) {
    suite::subject().expect("as in the first process");
    let current = Current::enter();
    let at = std::ptr::with_exposed_provenance::<u8>(current.alloc(4096) as usize);
    // SAFETY: none: the fault is what the test wants.
    let byte = unsafe { at.read_volatile() };
    suite::say(&format!("read {byte}"));
}

/// 64 bytes that are no handle.
pub(crate) fn no_handle() -> Opaque {
    Opaque([0; 64])
}
