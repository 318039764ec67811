//! What runs instead of libc's functions: it tells of the change, then makes the system call.
//!
//! Arguments, results and `errno` are those of glibc. Nothing here takes a lock, allocates, logs or panics: it runs inside the allocator and
//! in signal handlers.
//!
//! # Safety
//! Every function is called with the arguments of the libc function whose place it takes, and hands them to the kernel unchanged, which checks
//! them. Nothing that they point to is read here; what has to be known of it, the kernel copies (`process_vm_readv`).
#![allow(unsafe_code)]

use std::{
    arch::asm,
    ffi::{c_int, c_uint},
    mem,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32,
        Ordering::{Acquire, Relaxed},
    },
};

use crate::memory::{AddressRange, Cause, invalidate};

const PAGE: usize = 4096;
/// Sizes of huge pages on x86-64, from the smaller on.
const HUGE: [usize; 2] = [2 << 20, 1 << 30];
/// What the self-test calls the functions with: no page begins here, so the kernel would answer `EINVAL`.
pub(super) const PROBE: usize = 0x7ff8_5afe_0000_0001;

/// Whether events are delivered.
pub(super) static ENABLED: AtomicBool = AtomicBool::new(false);
/// Which functions met [`PROBE`], a bit for each.
pub(super) static PROBED: AtomicU32 = AtomicU32::new(0);
/// Where glibc keeps the program break (`__curbrk`), which `sbrk` reads.
pub(super) static BREAK: AtomicPtr<usize> = AtomicPtr::new(std::ptr::null_mut());

pub(super) const MUNMAP: u32 = 1;
pub(super) const MMAP: u32 = 1 << 1;
pub(super) const MREMAP: u32 = 1 << 2;
pub(super) const MADVISE: u32 = 1 << 3;
pub(super) const SHMAT: u32 = 1 << 4;
pub(super) const SHMDT: u32 = 1 << 5;
pub(super) const PROCESS_MADVISE: u32 = 1 << 6;

// include/uapi/asm-generic/mman-common.h
const MADV_DONTNEED_LOCKED: c_int = 24;
const MADV_GUARD_INSTALL: c_int = 102;

/// Advice after which the pages hold something else, or nothing.
fn discards(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | MADV_DONTNEED_LOCKED
            | MADV_GUARD_INSTALL
    )
}

#[inline]
fn page_up(address: usize) -> Option<usize> {
    Some(address.checked_add(PAGE - 1)? & !(PAGE - 1))
}

/// Tells of the pages of `length` bytes at `start`, unless the kernel will refuse the call for these two.
#[inline]
fn tell(start: usize, length: usize, cause: Cause) {
    if start & (PAGE - 1) != 0 {
        return;
    }
    let Some(end) = start.checked_add(length).and_then(page_up) else {
        return;
    };
    tell_range(start, end, cause);
}

/// As [`tell`], where the memory may be of huge pages (hugetlbfs): of these the kernel takes whole ones, however short `length` is. They begin
/// at multiples of their size, so what begins elsewhere is told of as it is.
#[inline]
fn tell_huge(start: usize, length: usize, cause: Cause) {
    tell(start, huge_length(start, length), cause);
}

/// `length`, up to the end of the largest page that can begin at `start`.
#[inline]
fn huge_length(start: usize, length: usize) -> usize {
    HUGE.iter()
        .filter(|size| start.is_multiple_of(**size) && length != 0)
        .fold(length, |_, size| {
            length.checked_next_multiple_of(*size).unwrap_or(length)
        })
}

#[inline]
fn tell_range(start: usize, end: usize, cause: Cause) {
    if start >= end || !ENABLED.load(Relaxed) {
        return;
    }
    // Never fails: an error would allocate.
    if let Ok(range) = AddressRange::new(start as u64, (end - start) as u64) {
        invalidate(range, cause);
    }
}

/// Tells of all memory of the host's: what exactly will change could not be learned.
#[cold]
pub(super) fn tell_everything(cause: Cause) {
    tell_range(PAGE, AddressRange::HOST_END as usize, cause);
}

/// Whether this is the self-test's call.
#[inline]
fn probed(address: usize, function: u32) -> bool {
    if address != PROBE {
        return false;
    }
    PROBED.fetch_or(function, Relaxed);
    true
}

/// One system call. Results from -4095 on are negated error numbers.
#[inline(always)]
unsafe fn system_call(number: i64, arguments: [usize; 6]) -> isize {
    let result;
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: the kernel's convention on x86-64: number in rax, arguments in these registers; rcx and r11 are overwritten.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The result as libc gives it.
#[inline]
fn finish(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        return fail(-result as c_int);
    }
    result
}

#[cold]
fn fail(number: c_int) -> isize {
    // SAFETY: libc's errno of this thread is always there.
    unsafe { *libc::__errno_location() = number };
    -1
}

pub(super) unsafe extern "C" fn munmap(address: usize, length: usize) -> c_int {
    if probed(address, MUNMAP) {
        return fail(libc::EINVAL) as c_int;
    }
    tell(address, length, Cause::Unmapped);
    // SAFETY: the caller's own call.
    finish(unsafe { system_call(libc::SYS_munmap, [address, length, 0, 0, 0, 0]) }) as c_int
}

pub(super) unsafe extern "C" fn mmap(
    address: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    if probed(address, MMAP) {
        return fail(libc::EINVAL);
    }
    if flags & libc::MAP_FIXED != 0 && offset as usize & (PAGE - 1) == 0 {
        match flags & (libc::MAP_ANONYMOUS | libc::MAP_HUGETLB) {
            libc::MAP_ANONYMOUS => tell(address, length, Cause::Unmapped),
            _ => tell_huge(address, length, Cause::Unmapped),
        }
    }
    let arguments = [
        address,
        length,
        protection as usize,
        flags as usize,
        fd as usize,
        offset as usize,
    ];
    // SAFETY: the caller's own call.
    finish(unsafe { system_call(libc::SYS_mmap, arguments) })
}

/// libc's is variadic: the fifth argument, in its register all the same, is there with the flags that need it.
pub(super) unsafe extern "C" fn mremap(
    old: usize,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    new: usize,
) -> isize {
    if probed(old, MREMAP) {
        return fail(libc::EINVAL);
    }
    let placed = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    if flags & libc::MREMAP_FIXED != 0 {
        tell_huge(new, new_length, Cause::Unmapped);
    }
    if placed || (new_length > old_length && flags & libc::MREMAP_MAYMOVE != 0) {
        tell_huge(old, old_length, Cause::Moved);
    } else if let (Some(kept), Some(end)) = (
        old.checked_add(new_length).and_then(page_up),
        old.checked_add(huge_length(old, old_length))
            .and_then(page_up),
    ) && new_length < old_length
        && kept < end
    {
        tell(kept, end - kept, Cause::Unmapped);
    }
    let new = if placed { new } else { 0 };
    let arguments = [old, old_length, new_length, flags as usize, new, 0];
    // SAFETY: the caller's own call.
    finish(unsafe { system_call(libc::SYS_mremap, arguments) })
}

pub(super) unsafe extern "C" fn madvise(address: usize, length: usize, advice: c_int) -> c_int {
    if probed(address, MADVISE) {
        return fail(libc::EINVAL) as c_int;
    }
    if discards(advice) {
        tell(address, length, Cause::Discarded);
    }
    let arguments = [address, length, advice as usize, 0, 0, 0];
    // SAFETY: the caller's own call.
    finish(unsafe { system_call(libc::SYS_madvise, arguments) }) as c_int
}

/// `sbrk` comes here as well.
pub(super) unsafe extern "C" fn brk(address: usize) -> c_int {
    let kept = BREAK.load(Acquire);
    // SAFETY: glibc's variable lives as long as the process. Threads that move the break at once are a race in glibc too.
    let current = unsafe { kept.read_volatile() };
    if let (Some(start), Some(end)) = (page_up(address), page_up(current)) {
        tell_range(start, end, Cause::Unmapped);
    }
    // SAFETY: the caller's own call. The kernel answers with the break as it is afterwards.
    let now = unsafe { system_call(libc::SYS_brk, [address, 0, 0, 0, 0, 0]) } as usize;
    // SAFETY: as above.
    unsafe { kept.write_volatile(now) };
    if now < address {
        return fail(libc::ENOMEM) as c_int;
    }
    0
}

pub(super) unsafe extern "C" fn shmat(id: c_int, address: usize, flags: c_int) -> isize {
    if probed(address, SHMAT) {
        return fail(libc::EINVAL);
    }
    if flags & libc::SHM_REMAP != 0 {
        tell_overlaid(id, address, flags);
    }
    // SAFETY: the caller's own call.
    finish(unsafe {
        system_call(
            libc::SYS_shmat,
            [id as usize, address, flags as usize, 0, 0, 0],
        )
    })
}

/// Tells of the memory that the segment `id` is about to cover.
#[cold]
fn tell_overlaid(id: c_int, address: usize, flags: c_int) {
    let address = match flags & libc::SHM_RND {
        0 => address,
        _ => address & !(PAGE - 1),
    };
    // SAFETY: numbers only, for which all zeros are right.
    let mut segment: libc::shmid_ds = unsafe { mem::zeroed() };
    let arguments = [
        id as usize,
        libc::IPC_STAT as usize,
        &raw mut segment as usize,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel writes the structure of this call, which is libc's `shmid_ds`.
    match unsafe { system_call(libc::SYS_shmctl, arguments) } {
        0.. => tell_huge(address, segment.shm_segsz, Cause::Unmapped),
        error if matches!(-error as c_int, libc::EINVAL | libc::EIDRM) => {}
        _ => tell_everything(Cause::Unmapped),
    }
}

pub(super) unsafe extern "C" fn shmdt(address: usize) -> c_int {
    if probed(address, SHMDT) {
        return fail(libc::EINVAL) as c_int;
    }
    if address & (PAGE - 1) == 0 && ENABLED.load(Relaxed) {
        match attached_end(address) {
            Some(end) => tell_range(address, end, Cause::Unmapped),
            None => tell_everything(Cause::Unmapped),
        }
    }
    // SAFETY: the caller's own call.
    finish(unsafe { system_call(libc::SYS_shmdt, [address, 0, 0, 0, 0, 0]) }) as c_int
}

/// Where the segment that was attached at `start` ends: the last mapping that lies as far behind `start` as what it shows lies behind the start
/// of its file. `start` itself when there is none, `None` when the kernel did not tell.
///
/// That is how the kernel finds what to detach: parts, the first among them, may be unmapped already. A mapping of another file may lie so by
/// chance; then more is told of than goes away.
fn attached_end(start: usize) -> Option<usize> {
    let path = c"/proc/self/maps".as_ptr() as usize;
    let arguments = [
        libc::AT_FDCWD as usize,
        path,
        (libc::O_RDONLY | libc::O_CLOEXEC) as usize,
        0,
        0,
        0,
    ];
    // SAFETY: a string that ends with a zero.
    let fd = unsafe { system_call(libc::SYS_openat, arguments) };
    if fd < 0 {
        return None;
    }
    let mut lines = Lines::new(start);
    let mut buffer = [0u8; 512];
    let complete = loop {
        let arguments = [
            fd as usize,
            buffer.as_mut_ptr() as usize,
            buffer.len(),
            0,
            0,
            0,
        ];
        // SAFETY: the kernel writes at most the buffer's length.
        match unsafe { system_call(libc::SYS_read, arguments) } {
            0 => break true,
            error if error == -(libc::EINTR as isize) => {}
            error if error < 0 => break false,
            count => buffer[..(count as usize).min(512)]
                .iter()
                .for_each(|byte| lines.take(*byte)),
        }
    };
    // SAFETY: opened above.
    unsafe { system_call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
    complete.then_some(lines.end)
}

/// Reads `/proc/self/maps` byte by byte: `start-end rights offset device inode path`.
struct Lines {
    wanted: usize,
    end: usize,
    /// Start, end, rights, offset.
    fields: [usize; 4],
    field: usize,
}

impl Lines {
    fn new(wanted: usize) -> Self {
        Self {
            wanted,
            end: wanted,
            fields: [0; 4],
            field: 0,
        }
    }

    fn take(&mut self, byte: u8) {
        match byte {
            b'\n' => {
                self.line();
                (self.fields, self.field) = ([0; 4], 0);
            }
            b'-' if self.field == 0 => self.field = 1,
            b' ' => self.field = (self.field + 1).min(4),
            _ => {
                if let (Some(field), Some(digit)) =
                    (self.fields.get_mut(self.field), (byte as char).to_digit(16))
                {
                    *field = field.wrapping_mul(16) + digit as usize;
                }
            }
        }
    }

    fn line(&mut self) {
        let [start, end, _, offset] = self.fields;
        if start.checked_sub(self.wanted) == Some(offset) {
            self.end = end;
        }
    }
}

pub(super) unsafe extern "C" fn process_madvise(
    process: c_int,
    vector: usize,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    if probed(vector, PROCESS_MADVISE) {
        return fail(libc::EINVAL);
    }
    // The kernel discards the memory of the calling process only, so `process` is this one, or nothing happens.
    if discards(advice) && ENABLED.load(Relaxed) {
        tell_vector(vector, count);
    }
    let arguments = [
        process as usize,
        vector,
        count,
        advice as usize,
        flags as usize,
        0,
    ];
    // SAFETY: the caller's own call.
    finish(unsafe { system_call(libc::SYS_process_madvise, arguments) })
}

/// Tells of `count` ranges, which lie at `vector`, if they lie there.
#[cold]
fn tell_vector(vector: usize, count: usize) {
    // SAFETY: answers the number of this process.
    let process = unsafe { system_call(libc::SYS_getpid, [0; 6]) } as usize;
    // More are refused (UIO_MAXIOV).
    for index in 0..count.min(1024) {
        let mut range = [0usize; 2];
        let into = [&raw mut range as usize, size_of_val(&range)];
        let from = [
            vector.wrapping_add(index * size_of_val(&range)),
            size_of_val(&range),
        ];
        let arguments = [
            process,
            into.as_ptr() as usize,
            1,
            from.as_ptr() as usize,
            1,
            0,
        ];
        // SAFETY: the kernel writes at most the two words of `range`, and answers an error when nothing can be read at `vector`.
        match unsafe { system_call(libc::SYS_process_vm_readv, arguments) } {
            16 => tell(range[0], range[1], Cause::Discarded),
            // Nothing there: the call itself will fail.
            error if error == -(libc::EFAULT as isize) => return,
            _ => return tell_everything(Cause::Discarded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str, start: usize) -> usize {
        let mut lines = Lines::new(start);
        text.bytes().for_each(|byte| lines.take(byte));
        lines.end
    }

    #[test]
    fn segments_in_maps() {
        let text = "\
1000-2000 r--p 00000000 fe:00 77                   /usr/bin/x y - z:1\n\
7f0000000000-7f0000002000 rw-s 00000000 00:01 32769 /SYSV00000000 (deleted)\n\
7f0000002000-7f0000003000 r--s 00002000 00:01 32769 /SYSV00000000 (deleted)\n\
7f0000003000-7f0000004000 rw-s 00000000 00:01 32770 /SYSV00000000 (deleted)\n\
7f0000009000-7f000000a000 rw-p 00000000 00:00 0 \n";
        assert_eq!(end(text, 0x7f00_0000_0000), 0x7f00_0000_3000);
        assert_eq!(end(text, 0x7f00_0000_3000), 0x7f00_0000_4000);
        assert_eq!(
            end(text, 0x7f00_0000_2000),
            0x7f00_0000_2000,
            "not its start"
        );
        // What is left of one whose first part was unmapped.
        let (_, rest) = text.split_at(text.find("7f0000002000-").expect("there"));
        assert_eq!(end(rest, 0x7f00_0000_0000), 0x7f00_0000_3000);
        assert_eq!(end(text, 0x1000), 0x2000);
        assert_eq!(end(text, 0x7f00_0001_0000), 0x7f00_0001_0000);
        assert_eq!(end("", 0x1000), 0x1000);
    }

    /// What is unmapped another thread may map anew before it is looked at: it must have gone well once.
    #[test]
    fn a_segment_of_this_process() {
        let mut found = Vec::new();
        for _ in 0..100 {
            // SAFETY: a new segment, attached wherever the kernel likes, and marked to go with its last user.
            let address = unsafe {
                let id = libc::shmget(libc::IPC_PRIVATE, 3 * PAGE, 0o600);
                assert!(id >= 0);
                let address = libc::shmat(id, std::ptr::null(), 0) as usize;
                libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
                address
            };
            let whole = attached_end(address);
            assert_eq!(whole, Some(address + 3 * PAGE));
            // SAFETY: attached above, and used by nobody.
            assert_eq!(unsafe { libc::munmap(address as *mut _, PAGE) }, 0);
            let rest = attached_end(address);
            // SAFETY: attached above.
            assert_eq!(unsafe { libc::shmdt(address as *const _) }, 0);
            let gone = attached_end(address);
            if (rest, gone) == (whole, Some(address)) {
                return;
            }
            found.push((address, rest, gone));
        }
        panic!("{found:x?}");
    }

    #[test]
    fn huge_pages_are_whole() {
        const M: usize = 1 << 20;
        for (start, length, expected) in [
            (PAGE, 1, 1),
            (3 * M, PAGE, PAGE),
            (2 * M, 0, 0),
            (2 * M, 1, 2 * M),
            (2 * M, 2 * M + 1, 4 * M),
            (6 * M, 4 * M, 4 * M),
            (1 << 30, PAGE, 1 << 30),
            (1 << 30, usize::MAX, usize::MAX),
        ] {
            assert_eq!(
                huge_length(start, length),
                expected,
                "{start:#x} {length:#x}"
            );
        }
    }

    #[test]
    fn probes_reach_no_kernel() {
        // SAFETY: the self-test's address, at which nothing happens.
        unsafe {
            assert_eq!(munmap(PROBE, 1), -1);
            assert_eq!(madvise(PROBE, 1, libc::MADV_DONTNEED), -1);
        }
        assert!(PROBED.load(Relaxed) & MUNMAP != 0);
    }
}
