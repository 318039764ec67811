//! What watching costs: a hit that asks the monitor, and giving memory back; and what memory is, by its address.
//!
//! # Safety
//! The memory is mapped here, nobody has a reference to it, and it is unmapped once.
#![allow(unsafe_code)]

use std::{
    hint::black_box,
    io, ptr,
    time::{Duration, Instant},
};

use criterion::Criterion;
use wharf::{
    Access, Context, MemoryType,
    memory::{
        AddressRange, MemoryAttributes, MemoryMonitor, MonitorKind, RegistrationCache,
        RegistrationCacheOptions, Validity, announce_device_runtime, install_hooks, monitor,
    },
};

use crate::{
    cache::{Nothing, block_on},
    summary::Summary,
};

pub(crate) fn rows(criterion: &mut Criterion, summary: &Summary) {
    let sizes = [("4 KiB", 4 << 10), ("1 MiB", 1 << 20)];
    for (name, length) in sizes {
        unmapping(
            criterion,
            summary,
            &format!("munmap/{name}/unwatched"),
            length,
            |_| (),
        );
    }
    match monitor(MonitorKind::Uffd) {
        Err(error) => summary.note(format!("no rows with userfaultfd: {error}")),
        Ok(uffd) => {
            for (name, length) in sizes {
                unmapping(
                    criterion,
                    summary,
                    &format!("munmap/{name}/watched"),
                    length,
                    |range| {
                        uffd.watch(range).expect("memory that can be watched");
                    },
                );
            }
            checked_hits(criterion, summary, uffd);
        }
    }
    // The last rows: the patches stay.
    // SAFETY: this thread alone runs, and nothing else changes code.
    match unsafe { install_hooks() } {
        Err(error) => summary.note(format!(
            "no rows with hooks (--features mem-hooks): {error}"
        )),
        Ok(()) => {
            for (name, length) in sizes {
                let id = format!("munmap/{name}/hooks");
                unmapping(criterion, summary, &id, length, |_| ());
            }
        }
    }
}

/// What a context remembers of memory by its address.
pub(crate) fn types(criterion: &mut Criterion, summary: &Summary) {
    let context = Context::builder().build().expect("a context");
    let place = |index: u64| AddressRange::new(PLACE + ((index % 64) << 20), 64).expect("a range");
    let mut next = 0;
    timed(criterion, summary, "memory type/no device runtime", || {
        next += 1;
        black_box(context.known_memory_attributes(black_box(place(next))));
    });
    announce_device_runtime();
    for index in 0..64 {
        let whole = AddressRange::new(place(index).start(), 1 << 20).expect("a range");
        context.notify_allocated(&MemoryAttributes::new(MemoryType::Cuda(0), whole));
    }
    timed(criterion, summary, "memory type/hit", || {
        next += 1;
        let known = context.known_memory_attributes(black_box(place(next)));
        assert!(known.is_some(), "told above");
    });
}

/// Where memory of a device would be.
const PLACE: u64 = 0x3000_0000_0000;

/// The median of single calls, on memory that has been written to.
fn unmapping(
    criterion: &mut Criterion,
    summary: &Summary,
    id: &str,
    length: usize,
    before: impl Fn(AddressRange),
) {
    criterion.bench_function(id, |bencher| {
        bencher.iter_custom(|count| {
            // A call takes microseconds, mapping and writing before it takes more.
            let calls = count.clamp(50, 2000);
            let mut times: Vec<Duration> = (0..calls)
                .map(|_| {
                    let base = map(length);
                    before(AddressRange::new(base as u64, length as u64).expect("a range"));
                    let start = Instant::now();
                    unmap(base, length);
                    start.elapsed()
                })
                .collect();
            times.sort_unstable();
            let median = times[times.len() / 2];
            summary.add(id, median, 1);
            median.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
        });
    });
}

/// Hits of memory that userfaultfd watches, and the question whether it has told all by itself.
fn checked_hits(
    criterion: &mut Criterion,
    summary: &Summary,
    uffd: std::sync::Arc<dyn MemoryMonitor>,
) {
    let length = 64 << 10;
    let base = map(length);
    let range = AddressRange::new(base as u64, length as u64).expect("a range");
    timed(criterion, summary, "system call/getppid", || {
        // SAFETY: has no arguments.
        black_box(unsafe { libc::syscall(libc::SYS_getppid) });
    });
    timed(criterion, summary, "uffd/validate", || {
        assert_eq!(uffd.validate(), Validity::Valid, "nothing changes here");
    });
    let cache = RegistrationCache::new(Nothing, uffd.clone(), RegistrationCacheOptions::default())
        .expect("a cache");
    drop(block_on(cache.get(range, Access::READ)).expect("a registration"));
    timed(criterion, summary, "uffd/checked hit", || {
        assert!(cache.lookup(range, Access::READ).is_some(), "cached");
    });
    drop(cache);
    unmap(base, length);
}

pub(crate) fn timed(
    criterion: &mut Criterion,
    summary: &Summary,
    id: &str,
    mut work: impl FnMut(),
) {
    criterion.bench_function(id, |bencher| {
        bencher.iter_custom(|count| {
            let start = Instant::now();
            for _ in 0..count {
                work();
            }
            let time = start.elapsed();
            summary.add(id, time, count);
            time
        });
    });
}

fn map(length: usize) -> usize {
    // SAFETY: new memory where nothing is.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    // SAFETY: mapped above.
    unsafe { ptr::write_bytes(base.cast::<u8>(), 1, length) };
    base as usize
}

fn unmap(base: usize, length: usize) {
    // SAFETY: mapped by `map`, and unmapped once.
    let done = unsafe { libc::munmap(base as *mut libc::c_void, length) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}
