//! Jumps written over the entries of functions while threads run in them.
//!
//! ```text
//! first instruction of 5 bytes and more     shorter, with padding near            what a jump leads to
//!   munmap:  e9 rel32  → hook                 room:  e9 rel32 → hook                the hook, or within 2 GiB
//!            …rest of the function            mmap:  eb rel8  → room                a stub: jmp [rip]; address
//! ```
//!
//! A thread is never inside what is overwritten: one instruction is replaced, or the first two bytes of one, and never two. In between stands
//! a jump to itself, on which threads that come wait. `membarrier` makes every processor read the code anew. A patch is never taken away:
//! a thread may be on its way through it.
//!
//! # Safety
//! Only executable mappings listed in `/proc/self/maps` are read and written; what is written is planned in full before the first byte is.
#![allow(unsafe_code)]

use std::{
    fs, io,
    mem::MaybeUninit,
    ops::Range,
    ptr,
    sync::atomic::{AtomicU16, Ordering::SeqCst},
};

use super::{
    decode::{self, First},
    forks::NoForks,
};
use crate::error::{Error, ErrorKind, Operation, Result};

const PAGE: usize = 4096;
/// `jmp` to itself.
const WAIT: [u8; 2] = [0xeb, 0xfe];
/// Bytes of a stub: `jmp [rip + 0]` and the address, rounded up.
const STUB: usize = 16;
/// How far the functions may be from each other.
const SPAN: usize = 64 << 20;
/// How far a stub may be from the first of them, so that all reach it.
const NEAR: usize = (1 << 31) - 2 * SPAN;

// include/uapi/linux/membarrier.h
const MEMBARRIER_PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 5;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 6;

/// A function, and what shall run instead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) entry: usize,
    pub(super) hook: usize,
}

/// How a function can be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The first instruction makes room for a near jump.
    Near,
    /// A short jump to padding at this address, which holds the near jump.
    Short(usize),
    /// More than one instruction is overwritten: only while no other thread runs.
    Alone,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    target: Target,
    /// Where the first byte changes: the entry, or behind its `endbr64`.
    at: usize,
    way: Way,
}

impl Plan {
    /// Where the near jump stands.
    fn room(&self) -> usize {
        match self.way {
            Way::Short(room) => room,
            Way::Near | Way::Alone => self.at,
        }
    }
}

/// What stands at the entry of a patched function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patched {
    pub(super) name: &'static str,
    at: usize,
    head: [u8; 2],
    jump_at: usize,
    jump: [u8; 5],
}

impl Patched {
    /// What to look at for whether calls still come by: the bytes that another library would write over.
    pub(super) fn entry(&self) -> Entry {
        let [first, second, third, fourth, fifth] = match self.at == self.jump_at {
            true => self.jump,
            false => [self.head[0], self.head[1], 0, 0, 0],
        };
        Entry {
            at: self.at,
            bytes: u64::from_le_bytes([first, second, third, fourth, fifth, 0, 0, 0]),
            mask: match self.at == self.jump_at {
                true => (1 << 40) - 1,
                false => (1 << 16) - 1,
            },
        }
    }

    /// Whether the bytes are still there.
    pub(super) fn stands(&self) -> bool {
        // SAFETY: this code was written here, and code of libc's is never unmapped.
        unsafe {
            ptr::read_volatile(self.at as *const [u8; 2]) == self.head
                && ptr::read_volatile(self.jump_at as *const [u8; 5]) == self.jump
        }
    }
}

/// One load wherever it lies; that of an array would be eight.
#[repr(C, packed)]
struct Unaligned(u64);

/// The first bytes of a patched function, in one word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    at: usize,
    bytes: u64,
    mask: u64,
}

impl Entry {
    /// 0 while they stand.
    #[inline]
    pub(super) fn difference(&self) -> u64 {
        // SAFETY: this code was written here, and code of libc's is never unmapped; the shortest of these functions has more than 8 bytes.
        let Unaligned(now) = unsafe { ptr::read_volatile(self.at as *const Unaligned) };
        (now ^ self.bytes) & self.mask
    }
}

/// Patches all of `targets`, or none when one of them cannot be.
///
/// # Safety
/// Every entry is the first byte of a function with the arguments of its hook, and both stay mapped as long as the process lives.
/// Errors: `Unsupported` when a function cannot be patched safely, or is patched already; `PermissionDenied` or `Io` when the kernel does not let the
/// code be changed.
pub(super) unsafe fn patch(targets: &[Target]) -> Result<Vec<Patched>> {
    let code = executable()?;
    let alone = threads() == Some(1);
    // SAFETY: registers this process for the barrier; touches no memory.
    let barrier = unsafe { membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) };
    if let (Err(source), false) = (&barrier, alone) {
        return Err(refuse(format!(
            "without membarrier (sync_core, Linux 4.16) code is patched only before the first thread: {source}"
        )));
    }
    let mut plans = Vec::new();
    for target in targets {
        let plan = plan(target, &code, alone, &plans)?;
        plans.push(plan);
    }
    let pages = Writable::new(&plans)?;
    let stubs = Stubs::new(&plans, &code)?;
    let signals = Masked::new();
    let forks = NoForks::new();
    // SAFETY: planned on what stands there, made writable, and signals wait.
    let patched = unsafe { write(&plans, &stubs, barrier.is_ok(), &signals) };
    drop(forks);
    drop(signals);
    drop(pages);
    Ok(patched)
}

fn refuse(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, message).during(Operation::Memory)
}

fn failed(what: &'static str, source: io::Error) -> Error {
    let kind = match source.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::Io,
    };
    Error::new(kind, what)
        .during(Operation::Memory)
        .with_source(source)
}

/// `others` were planned before: their padding is taken.
fn plan(target: &Target, code: &[Range<usize>], alone: bool, others: &[Plan]) -> Result<Plan> {
    let entry = target.entry;
    let Some(mapping) = code.iter().find(|mapping| mapping.contains(&entry)) else {
        return Err(refuse(format!(
            "{} at {entry:#x} lies in no code",
            target.name
        )));
    };
    let window = entry.saturating_sub(256).max(mapping.start)..(entry + 256).min(mapping.end);
    // SAFETY: mapped, readable code.
    let bytes = unsafe { std::slice::from_raw_parts(window.start as *const u8, window.len()) };
    let landing = decode::landing(&bytes[entry - window.start..]);
    let at = entry + landing;
    let first = decode::first(&bytes[at - window.start..]);
    let length = match first {
        First::Plain(length) => length,
        First::Jump => {
            return Err(refuse(format!(
                "{} is patched already: another library watches memory (UCX, libfabric, Open MPI); use the monitor `imported`",
                target.name
            )));
        }
        First::Unknown => {
            return Err(refuse(format!(
                "{} begins with an instruction that is not known: {:02x?}",
                target.name,
                &bytes[entry - window.start..][..16.min(window.end - entry)]
            )));
        }
    };
    let way = way(at, length, alone, || {
        let taken = |start| others.iter().any(|other| other.way == Way::Short(start));
        room(bytes, window.start, entry, at, taken)
    });
    match way {
        Some(way) => Ok(Plan {
            target: *target,
            at,
            way,
        }),
        None => Err(refuse(format!(
            "{} begins with {length} bytes and has no padding near: it can be patched only before the first thread",
            target.name
        ))),
    }
}

/// How a function whose first instruction has `length` bytes can be patched at `at`.
fn way(at: usize, length: usize, alone: bool, room: impl FnOnce() -> Option<usize>) -> Option<Way> {
    // Two bytes are written at once.
    let whole = at.is_multiple_of(2);
    match length {
        5.. if whole => Some(Way::Near),
        2..5 if whole => room()
            .map(Way::Short)
            .or_else(|| alone.then_some(Way::Alone)),
        _ => alone.then_some(Way::Alone),
    }
}

/// Padding of 5 bytes and more that a short jump at `at` reaches, in front of the function itself or of a neighbour.
fn room(
    bytes: &[u8],
    base: usize,
    entry: usize,
    at: usize,
    taken: impl Fn(usize) -> bool,
) -> Option<usize> {
    let reach = (at + 2).saturating_sub(128)..at + 2 + 128;
    let before = |end: usize| {
        let length = decode::padding(&bytes[..end - base]);
        let start = end - length;
        (length >= 5 && reach.contains(&start) && !taken(start)).then_some(start)
    };
    if let Some(start) = before(entry) {
        return Some(start);
    }
    (base.next_multiple_of(16)..base + bytes.len())
        .step_by(16)
        .filter(|end| *end != entry && is_entry(*end))
        .find_map(before)
}

/// Whether a function that other libraries can call begins at `address`.
#[cfg(not(target_feature = "crt-static"))]
fn is_entry(address: usize) -> bool {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: writes the structure; any address may be asked for.
    unsafe {
        libc::dladdr(address as *const _, info.as_mut_ptr()) != 0
            && info.assume_init().dli_saddr as usize == address
    }
}

/// A program linked statically has no table to ask.
#[cfg(target_feature = "crt-static")]
fn is_entry(_: usize) -> bool {
    false
}

/// Writes the jumps, all in one go, as threads wait meanwhile.
///
/// # Safety
/// `plans` were made from what stands there now; their pages can be written; `signals` cannot run this thread into a half-made patch.
unsafe fn write(plans: &[Plan], stubs: &Stubs, barrier: bool, _signals: &Masked) -> Vec<Patched> {
    let sync = || {
        if barrier {
            // SAFETY: a barrier, registered before; it cannot fail then.
            let _ = unsafe { membarrier(MEMBARRIER_PRIVATE_EXPEDITED_SYNC_CORE) };
        }
    };
    let patched: Vec<_> = plans
        .iter()
        .enumerate()
        .map(|(index, plan)| {
            let room = plan.room();
            let jump = near_jump(room, stubs.destination(index, plan.target.hook));
            let head = match plan.way {
                Way::Short(_) => [0xeb, room.wrapping_sub(plan.at + 2) as u8],
                Way::Near | Way::Alone => [jump[0], jump[1]],
            };
            Patched {
                name: plan.target.name,
                at: plan.at,
                head,
                jump_at: room,
                jump,
            }
        })
        .collect();
    let both = || plans.iter().zip(&patched);
    for (plan, _) in both().filter(|(plan, _)| plan.way == Way::Near) {
        store_head(plan.at, WAIT);
    }
    sync();
    for (plan, patched) in both() {
        let skip = match plan.way {
            Way::Near => 2,
            Way::Short(_) | Way::Alone => 0,
        };
        let bytes = &patched.jump[skip..];
        // SAFETY: threads wait in front of these bytes or have left the instruction; or it is padding, in which nobody runs; or this thread is
        // the only one, and it is here.
        unsafe {
            ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (patched.jump_at + skip) as *mut u8,
                bytes.len(),
            );
        }
    }
    sync();
    for (_, patched) in both().filter(|(plan, _)| plan.way != Way::Alone) {
        store_head(patched.at, patched.head);
    }
    sync();
    patched
}

/// Both bytes at once.
fn store_head(at: usize, head: [u8; 2]) {
    // SAFETY: writable, and even, as planned.
    unsafe { AtomicU16::from_ptr(at as *mut u16) }.store(u16::from_le_bytes(head), SeqCst);
}

/// `jmp` from `at` to `to`, at most 2 GiB away.
fn near_jump(at: usize, to: usize) -> [u8; 5] {
    let distance = (to.wrapping_sub(at + 5) as i32).to_le_bytes();
    [0xe9, distance[0], distance[1], distance[2], distance[3]]
}

/// A page of far jumps near the functions. Never unmapped once something leads to it.
struct Stubs {
    /// 0: the hooks themselves are near enough.
    page: usize,
}

impl Stubs {
    fn new(plans: &[Plan], code: &[Range<usize>]) -> Result<Self> {
        let far = |plan: &&Plan| plan.at.abs_diff(plan.target.hook) > NEAR;
        let Some(first) = plans.iter().find(far) else {
            return Ok(Self { page: 0 });
        };
        assert!(plans.len() * STUB <= PAGE, "one page of stubs");
        if plans.iter().any(|plan| plan.at.abs_diff(first.at) > SPAN) {
            return Err(refuse("libc's functions lie far apart".to_owned()));
        }
        let page = near_page(first.at, code)?;
        for (index, plan) in plans.iter().enumerate() {
            let mut stub = [0xcc; STUB];
            stub[..6].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
            stub[6..14].copy_from_slice(&plan.target.hook.to_le_bytes());
            // SAFETY: within the new page, as asserted.
            unsafe {
                ptr::copy_nonoverlapping(stub.as_ptr(), (page + index * STUB) as *mut u8, STUB);
            }
        }
        // SAFETY: the page of our own.
        if unsafe { libc::mprotect(page as *mut _, PAGE, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
            let source = io::Error::last_os_error();
            // SAFETY: nothing leads there yet.
            unsafe { libc::munmap(page as *mut _, PAGE) };
            return Err(failed("memory for jumps cannot be made executable", source));
        }
        Ok(Self { page })
    }

    fn destination(&self, index: usize, hook: usize) -> usize {
        match self.page {
            0 => hook,
            page => page + index * STUB,
        }
    }
}

/// A new page within 2 GiB of `at`.
fn near_page(at: usize, code: &[Range<usize>]) -> Result<usize> {
    const STEP: usize = 1 << 20;
    let mapping = code.iter().find(|mapping| mapping.contains(&at));
    let (below, above) = mapping.map_or((at, at), |mapping| (mapping.start, mapping.end));
    let down = (1..NEAR / STEP).map(|step| (below & !(STEP - 1)).wrapping_sub(step * STEP));
    let up = (1..NEAR / STEP).map(|step| above.next_multiple_of(STEP) + step * STEP);
    for wanted in down.chain(up).filter(|wanted| at.abs_diff(*wanted) < NEAR) {
        // SAFETY: takes no address that is in use.
        let page = unsafe {
            libc::mmap(
                wanted as *mut _,
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            continue;
        }
        if at.abs_diff(page as usize) < NEAR {
            return Ok(page as usize);
        }
        // An old kernel took the address as a wish.
        // SAFETY: mapped just now.
        unsafe { libc::munmap(page, PAGE) };
    }
    Err(refuse(format!(
        "no free page within 2 GiB of libc at {at:#x}"
    )))
}

/// The pages of the patches, writable until dropped.
struct Writable {
    pages: Vec<usize>,
}

impl Writable {
    fn new(plans: &[Plan]) -> Result<Self> {
        let mut pages: Vec<_> = plans
            .iter()
            .flat_map(|plan| {
                let room = plan.room();
                [plan.at, plan.at + 4, room, room + 4]
            })
            .map(|address| address & !(PAGE - 1))
            .collect();
        pages.sort_unstable();
        pages.dedup();
        let mut writable = Self { pages: Vec::new() };
        for page in pages {
            let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            // SAFETY: a page of code; it stays executable.
            if unsafe { libc::mprotect(page as *mut _, PAGE, rights) } != 0 {
                return Err(failed(
                    "libc's code cannot be made writable",
                    io::Error::last_os_error(),
                ));
            }
            writable.pages.push(page);
        }
        Ok(writable)
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        for page in &self.pages {
            // SAFETY: as before, without the right to write.
            unsafe { libc::mprotect(*page as *mut _, PAGE, libc::PROT_READ | libc::PROT_EXEC) };
        }
    }
}

/// No signal reaches this thread until dropped: a handler that unmaps would wait for ever on a half-made patch.
struct Masked {
    before: libc::sigset_t,
}

impl Masked {
    fn new() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::zeroed();
        // SAFETY: both are sets of this frame; the calls fill them.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self {
                before: before.assume_init(),
            }
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the set that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

/// # Safety
/// `command` is one of membarrier's that touch no memory.
unsafe fn membarrier(command: i32) -> io::Result<()> {
    // SAFETY: as promised.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Threads of this process, when the kernel tells.
fn threads() -> Option<usize> {
    Some(fs::read_dir("/proc/self/task").ok()?.count())
}

/// The mappings that are readable and executable.
fn executable() -> Result<Vec<Range<usize>>> {
    let maps = fs::read_to_string("/proc/self/maps")
        .map_err(|source| failed("/proc/self/maps cannot be read", source))?;
    Ok(maps.lines().filter_map(code_line).collect())
}

fn code_line(line: &str) -> Option<Range<usize>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let parse = |text| usize::from_str_radix(text, 16).ok();
    rest.starts_with("r-x")
        .then_some(parse(start)?..parse(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of code of our own, with `code` at byte 256 behind `before`.
    fn page(before: &[u8], code: &[u8]) -> usize {
        // SAFETY: a new page, filled within its bounds; never unmapped.
        unsafe {
            let page = libc::mmap(
                ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            ptr::write_bytes(page.cast::<u8>(), 0xc3, PAGE);
            let entry = page as usize + 256;
            ptr::copy_nonoverlapping(
                before.as_ptr(),
                (entry - before.len()) as *mut u8,
                before.len(),
            );
            ptr::copy_nonoverlapping(code.as_ptr(), entry as *mut u8, code.len());
            libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_EXEC);
            entry
        }
    }

    extern "C" fn seven() -> i32 {
        7
    }

    fn target(entry: usize) -> Target {
        Target {
            name: "test",
            entry,
            hook: seven as *const () as usize,
        }
    }

    fn call(entry: usize) -> i32 {
        // SAFETY: a function without arguments, made by `page`.
        let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(entry) };
        function()
    }

    const NOP9: [u8; 9] = [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    /// mov eax, 3; ret
    const LONG: [u8; 6] = [0xb8, 3, 0, 0, 0, 0xc3];
    /// xor eax, eax; mov eax, edi; ret
    const SHORT: [u8; 5] = [0x31, 0xc0, 0x89, 0xf8, 0xc3];

    #[test]
    fn patched_functions_run_the_hook() {
        let endbr: Vec<u8> = [&decode::ENDBR64[..], &LONG].concat();
        let endbr_short: Vec<u8> = [&decode::ENDBR64[..], &SHORT].concat();
        for (before, code, at) in [
            (&[][..], &LONG[..], 0),
            (&[], &endbr, 4),
            (&NOP9, &SHORT, 0),
            (&NOP9, &endbr_short, 4),
        ] {
            let entry = page(before, code);
            if code == LONG {
                assert_eq!(call(entry), 3);
            }
            // SAFETY: functions of this test's own.
            let patched = unsafe { patch(&[target(entry)]) }.expect("patched");
            assert_eq!(call(entry), 7, "{code:02x?}");
            assert_eq!(patched[0].at, entry + at);
            assert!(patched[0].stands());
            // SAFETY: as above.
            let again = unsafe { patch(&[target(entry)]) }.expect_err("patched already");
            assert!(again.to_string().contains("imported"), "{again}");
        }
    }

    #[test]
    fn what_cannot_be_patched_stays() {
        // Threads of the test harness run, so nothing is alone here.
        for (before, code, says) in [
            (&[][..], &SHORT[..], "no padding"),
            (&[0x90; 9], &SHORT, "no padding"),
            // push rbp: one byte
            (&NOP9, &[0x55, 0x31, 0xc0, 0x5d, 0xc3], "no padding"),
            (&NOP9, &[0xcc, 0, 0, 0, 0xc3], "not known"),
        ] {
            let (good, bad) = (page(&[], &LONG), page(before, code));
            // SAFETY: functions of this test's own.
            let error = unsafe { patch(&[target(good), target(bad)]) }.expect_err("refused");
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(call(good), 3, "all or nothing");
        }
        // SAFETY: refused: no code.
        assert!(unsafe { patch(&[target(8)]) }.is_err());
    }

    #[test]
    fn an_overwritten_patch_is_noticed() {
        let entry = page(&[], &LONG);
        // SAFETY: a function of this test's own, in which no thread runs.
        unsafe {
            let patched = patch(&[target(entry)]).expect("patched");
            let page = (entry & !(PAGE - 1)) as *mut _;
            libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
            *(entry as *mut u8).add(4) ^= 1;
            assert!(!patched[0].stands());
        }
    }

    #[test]
    fn ways() {
        assert_eq!(way(16, 5, false, || None), Some(Way::Near));
        assert_eq!(way(16, 7, true, || None), Some(Way::Near));
        assert_eq!(way(16, 3, false, || Some(8)), Some(Way::Short(8)));
        assert_eq!(way(16, 3, false, || None), None);
        assert_eq!(way(16, 3, true, || None), Some(Way::Alone));
        assert_eq!(way(16, 1, false, || Some(8)), None);
        assert_eq!(way(17, 5, false, || Some(8)), None);
        assert_eq!(way(17, 5, true, || Some(8)), Some(Way::Alone));
    }
}
