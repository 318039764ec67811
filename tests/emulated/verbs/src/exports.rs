//! The exported names of `libibverbs.so.1`, the calls in a context's table, and the control.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    collections::{VecDeque, btree_map::Entry},
    ffi::{CStr, c_char, c_int, c_void},
    fs::File,
    io::Seek,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd},
    ptr, slice,
    sync::Once,
};

use wharf_emulated_common::{
    backing::{is_mapped, is_pinnable},
    faults::Fault,
    gaudi,
    loaded::Library,
};

use crate::{
    abi::{
        AsyncEvent, Channel, Context, Cq, Device, Mr, Pd, Qp, QpAttr, QpInit, RecvWr, SendWr, Sge,
        Srq, SrqInit, Wc,
    },
    world::{
        ACKNOWLEDGED, ChannelState, ContextState, CqState, ERR, FAULTS, INIT, INLINE, JOURNAL,
        MrState, QpState, RESET, RTR, RTS, Receive, Send, SrqState, WORLD, World, bytes_at,
        counter, take,
    },
};

const DEVICES: usize = 2;
/// Work requests in a queue, pieces in one, bytes inline.
const MOST: u32 = 4096;
const PIECES: u32 = 16;
const MOST_INLINE: u32 = 512;

pub(crate) struct Shared<T>(pub(crate) T);
// SAFETY: read alone.
unsafe impl<T> Sync for Shared<T> {}

pub(crate) static TABLE: Shared<[Device; DEVICES]> = Shared([device(b'0'), device(b'1')]);

const fn device(digit: u8) -> Device {
    let mut name = [0; 64];
    (name[0], name[1], name[2], name[3]) = (b'e', b'm', b'u', digit);
    Device {
        ops: [0; 2],
        node_type: 1,
        transport_type: 0,
        name,
        dev_name: name,
        dev_path: [0; 256],
        ibdev_path: [0; 256],
    }
}

/// The code with which a call of `name` is to fail.
pub(crate) fn struck(name: &'static str) -> Option<u32> {
    JOURNAL.call(name, [0; 4], 0);
    let mut code = None;
    for fault in FAULTS.strike(name, None) {
        match fault {
            Fault::Code(errno) | Fault::Die(errno) | Fault::Late(errno) => code = Some(errno),
            Fault::Skip => code = Some(0),
        }
    }
    code
}

pub(crate) fn errno(code: c_int) {
    // SAFETY: this thread's variable.
    unsafe { *libc::__errno_location() = code };
}

pub(crate) fn null<T>(code: c_int) -> *mut T {
    errno(code);
    ptr::null_mut()
}

/// Returns what the plan says.
macro_rules! plan {
    ($name:literal, pointer) => {
        if let Some(code) = struck($name) {
            return null(code as c_int);
        }
    };
    ($name:literal, number) => {
        if let Some(code) = struck($name) {
            return code as c_int;
        }
    };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    let none = match struck("ibv_get_device_list") {
        // No device, and no error.
        Some(0) => true,
        Some(code) => return null(code as c_int),
        None => false,
    };
    static ENVIRONMENT: Once = Once::new();
    ENVIRONMENT.call_once(|| {
        let says = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        let mut world = WORLD.lock();
        world.dmabuf |= says("EMULATED_VERBS_DMABUF");
        world.late |= says("EMULATED_VERBS_LATE");
    });
    let devices = TABLE
        .0
        .iter()
        .map(|device| ptr::from_ref(device).cast_mut());
    let mut list: Vec<*mut Device> = devices.chain([ptr::null_mut()]).collect();
    if none {
        list.fill(ptr::null_mut());
    }
    if !count.is_null() {
        // SAFETY: given for it.
        unsafe { *count = if none { 0 } else { DEVICES as c_int } };
    }
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    // SAFETY: made above, of this length.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, DEVICES + 1)) });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: a device of the table.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut Device) -> u64 {
    // As of a virtual function that has been given none, or the same.
    match struck("ibv_get_device_guid") {
        Some(code) => u64::from(code).to_be(),
        None => (index_of(device) as u64 + 1).to_be(),
    }
}

fn index_of(device: *const Device) -> usize {
    usize::from(ptr::eq(device, &TABLE.0[1]))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    plan!("ibv_open_device", pointer);
    let Ok(fd) = counter() else {
        return null(libc::EMFILE);
    };
    let mut ops = [0; 32];
    ops[11] = poll_cq as *const () as usize;
    ops[12] = req_notify_cq as *const () as usize;
    ops[20] = post_srq_recv as *const () as usize;
    ops[25] = post_send as *const () as usize;
    ops[26] = post_recv as *const () as usize;
    let context = Box::into_raw(Box::new(Context {
        device,
        ops,
        cmd_fd: -1,
        async_fd: fd,
        num_comp_vectors: 1,
        mutex: [0; 5],
        abi_compat: 0,
    }));
    let state = ContextState {
        device: index_of(device),
        fd,
        events: VecDeque::new(),
        over: false,
    };
    WORLD.lock().contexts.insert(context as usize, state);
    context
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    plan!("ibv_close_device", number);
    let mut world = WORLD.lock();
    let at = context as usize;
    let used = world.pds.values().any(|of| *of == at)
        || world.channels.values().any(|channel| channel.context == at)
        || world.cqs.values().any(|cq| cq.context == at);
    if used {
        JOURNAL.misuse("ibv_close_device with objects left".to_owned());
        return libc::EBUSY;
    }
    match world.contexts.remove(&at) {
        // SAFETY: ours, and the context was boxed.
        Some(state) => unsafe {
            libc::close(state.fd);
            drop(Box::from_raw(context));
            0
        },
        None => libc::EINVAL,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut Context,
    to: *mut AsyncEvent,
) -> c_int {
    if let Some(code) = struck("ibv_get_async_event") {
        errno(code as c_int);
        return -1;
    }
    // SAFETY: a live context.
    if !take(unsafe { (*context).async_fd }) {
        return -1;
    }
    let mut world = WORLD.lock();
    let state = world.contexts.get_mut(&(context as usize));
    match state.and_then(|state| state.events.pop_front()) {
        Some(event) => {
            *world.taken.entry(event.element).or_insert(0) += 1;
            // SAFETY: given for it.
            unsafe { to.write(event) };
            0
        }
        None => {
            errno(libc::EAGAIN);
            -1
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    // SAFETY: given for it.
    let at = unsafe { (*event).element };
    match WORLD.lock().taken.entry(at) {
        Entry::Occupied(one) if *one.get() == 1 => drop(one.remove()),
        Entry::Occupied(mut more) => *more.get_mut() -= 1,
        Entry::Vacant(_) => {
            JOURNAL.misuse("ibv_ack_async_event of an event that was not got".to_owned())
        }
    }
    ACKNOWLEDGED.notify_all();
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(_context: *mut Context, to: *mut u32) -> c_int {
    plan!("ibv_query_device", number);
    // SAFETY: 232 bytes are given, all of them numbers; the offsets are the header's.
    unsafe {
        to.cast::<u8>().write_bytes(0, 232);
        let put = |offset: usize, value: u32| to.byte_add(offset).write(value);
        to.byte_add(80).cast::<u64>().write_unaligned(1 << 40);
        put(96, 0xe0e0e0);
        for (offset, value) in [
            (108, 1024),
            (112, MOST),
            (120, PIECES),
            (124, PIECES),
            (128, 1024),
            (132, 1 << 16),
            (136, 1 << 16),
            (144, 16),
            (156, 16),
            (164, u32::from(struck("no_atomics").is_none())),
            (212, 64),
            (216, MOST),
            (220, PIECES),
        ] {
            put(offset, value);
        }
        to.cast::<u8>().add(227).write(1);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port: u8,
    to: *mut u8,
) -> c_int {
    plan!("ibv_query_port", number);
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: a live context.
    let state = WORLD.lock().ports[index_of(unsafe { (*context).device })];
    // SAFETY: the old struct of 48 bytes is given.
    unsafe {
        to.write_bytes(0, 48);
        for (offset, value) in [(0, state), (4, 5), (8, 5), (12, 1), (20, 1 << 31)] {
            to.add(offset).cast::<u32>().write(value);
        }
        to.add(43).write(2);
        to.add(44).write(32);
        to.add(46).write(2);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    to: *mut [u8; 16],
) -> c_int {
    if port != 1 || index != 0 || struck("ibv_query_gid").is_some() {
        errno(libc::EINVAL);
        return -1;
    }
    // 10.99.0.1 and 10.99.0.2, mapped.
    let mut gid = [0; 16];
    (gid[10], gid[11], gid[12], gid[13]) = (0xff, 0xff, 10, 99);
    // SAFETY: a live context, and 16 bytes.
    unsafe {
        gid[15] = index_of((*context).device) as u8 + 1;
        to.write(gid);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    plan!("ibv_alloc_pd", pointer);
    let pd = Box::into_raw(Box::new(Pd { context, handle: 0 }));
    WORLD.lock().pds.insert(pd as usize, context as usize);
    pd
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    plan!("ibv_dealloc_pd", number);
    let mut world = WORLD.lock();
    let at = pd as usize;
    let used = world.mrs.values().any(|mr| mr.pd == at)
        || world.qps.values().any(|qp| qp.pd == at)
        || world.srqs.values().any(|srq| srq.pd == at);
    if used {
        JOURNAL.misuse("ibv_dealloc_pd with objects left".to_owned());
        return libc::EBUSY;
    }
    if world.pds.remove(&at).is_none() {
        return libc::EINVAL;
    }
    // SAFETY: boxed above.
    drop(unsafe { Box::from_raw(pd) });
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut Mr {
    plan!("ibv_reg_mr_iova2", pointer);
    let access = access & 0xf_ffff;
    // Remote writes and atomics need local ones.
    if length == 0 || iova != addr as u64 || (access & 10 != 0 && access & 1 == 0) || access > 31 {
        return null(libc::EINVAL);
    }
    let mut world = WORLD.lock();
    let pinned = is_pinnable(addr as u64, length as u64);
    let file = match world.peermem && !pinned {
        true => peers(addr as u64, length as u64),
        false => None,
    };
    if !pinned && file.is_none() {
        return null(libc::EFAULT);
    }
    let key = world.number();
    let state = MrState {
        pd: pd as usize,
        addr: addr as u64,
        length: length as u64,
        access,
        file,
    };
    world.mrs.insert(key, state);
    // SAFETY: a live domain.
    unsafe { region(pd, addr, length, key) }
}

/// # Safety
/// A live domain.
unsafe fn region(pd: *mut Pd, addr: *mut c_void, length: usize, key: u32) -> *mut Mr {
    // SAFETY: the caller says so.
    let context = unsafe { (*pd).context };
    Box::into_raw(Box::new(Mr {
        context,
        pd,
        addr,
        length,
        handle: key,
        lkey: key,
        rkey: key,
    }))
}

/// The file behind memory of the emulated CUDA driver's, and where in it the bytes are: what `nvidia_peermem` knows.
fn peers(address: u64, length: u64) -> Option<(File, Vec<(u64, u64)>)> {
    type Pin = extern "C" fn(u64, u64, u64, extern "C" fn(u64), *mut c_int, *mut u64) -> c_int;
    const PAGE: u64 = 64 << 10;
    extern "C" fn revoked(_: u64) {}
    let number = u64::MAX;
    let start = address / PAGE * PAGE;
    let whole = (address + length).next_multiple_of(PAGE) - start;
    let (mut fd, mut offset) = (-1, 0);
    for driver in Library::with(c"wharf_emulated_pin") {
        // SAFETY: the emulator's functions, of these types.
        let pin: Pin = unsafe { std::mem::transmute(driver.symbol(c"wharf_emulated_pin")) };
        let unpin = driver.symbol(c"wharf_emulated_unpin");
        // SAFETY: as above.
        let unpin: extern "C" fn(u64) = unsafe { std::mem::transmute(unpin) };
        if pin(number, start, whole, revoked, &raw mut fd, &raw mut offset) == 0 {
            // The file keeps what is behind it.
            unpin(number);
            // SAFETY: a descriptor that the call gave to this one.
            let file = unsafe { File::from_raw_fd(fd) };
            return Some((file, vec![(offset + (address - start), length)]));
        }
    }
    None
}

/// The file behind a dma-buf, and where in it `length` bytes from `offset` on are. The files that emulated drivers give for dma-bufs are the memory
/// itself, and where in it a dma-buf begins is the position in the file; those of Gaudi cards tell.
fn behind(given: BorrowedFd<'_>, offset: u64, length: u64) -> Option<(File, Vec<(u64, u64)>)> {
    let mut file = File::from(given.try_clone_to_owned().ok()?);
    if file.metadata().ok()?.is_file() {
        let room = file.metadata().ok()?.len();
        let at = file.stream_position().ok()?.checked_add(offset)?;
        return (at.checked_add(length)? <= room).then(|| (file, vec![(at, length)]));
    }
    let (size, mut runs, start, memory) = gaudi::look(given.as_raw_fd()).ok()?;
    if offset.checked_add(length)? > size {
        return None;
    }
    if runs.is_empty() {
        runs.push((start, size));
    }
    let (mut skip, mut left) = (offset, length);
    for (at, run) in &mut runs {
        let here = run.saturating_sub(skip).min(left);
        let skipped = skip.min(*run);
        (*at, *run) = (*at + skipped, here);
        (skip, left) = (skip - skipped, left - here);
    }
    Some((File::from(memory), runs))
}

/// In the order of the kernel's checks: whether the device can, the descriptor, the range.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    const PAGE: u64 = 4096;
    plan!("ibv_reg_dmabuf_mr", pointer);
    let mut world = WORLD.lock();
    if !world.dmabuf {
        return null(libc::EOPNOTSUPP);
    }
    let access = access as u32 & 0xf_ffff;
    let malformed = length == 0 || (offset ^ iova) & (PAGE - 1) != 0;
    if malformed || (access & 10 != 0 && access & 1 == 0) || access > 31 {
        return null(libc::EINVAL);
    }
    if fd < 0 {
        return null(libc::EBADF);
    }
    // SAFETY: open by the caller's word; it stays the caller's.
    let given = unsafe { BorrowedFd::borrow_raw(fd) };
    let Some(file) = behind(given, offset, length as u64) else {
        return null(libc::EINVAL);
    };
    let key = world.number();
    let state = MrState {
        pd: pd as usize,
        addr: iova,
        length: length as u64,
        access,
        file: Some(file),
    };
    world.mrs.insert(key, state);
    // SAFETY: a live domain.
    unsafe { region(pd, ptr::null_mut(), length, key) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    plan!("ibv_dereg_mr", number);
    // SAFETY: boxed above, and given once.
    let mr = unsafe { Box::from_raw(mr) };
    match WORLD.lock().mrs.remove(&mr.lkey) {
        Some(_) => 0,
        None => libc::EINVAL,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut Channel {
    plan!("ibv_create_comp_channel", pointer);
    let Ok(fd) = counter() else {
        return null(libc::EMFILE);
    };
    let channel = Box::into_raw(Box::new(Channel {
        context,
        fd,
        refcnt: 0,
    }));
    let state = ChannelState {
        context: context as usize,
        fd,
        events: VecDeque::new(),
    };
    WORLD.lock().channels.insert(channel as usize, state);
    channel
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut Channel) -> c_int {
    plan!("ibv_destroy_comp_channel", number);
    let mut world = WORLD.lock();
    if world.cqs.values().any(|cq| cq.channel == channel as usize) {
        JOURNAL.misuse("ibv_destroy_comp_channel with queues left".to_owned());
        return libc::EBUSY;
    }
    match world.channels.remove(&(channel as usize)) {
        // SAFETY: ours, and boxed.
        Some(state) => unsafe {
            libc::close(state.fd);
            drop(Box::from_raw(channel));
            0
        },
        None => libc::EINVAL,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut Channel,
    vector: c_int,
) -> *mut Cq {
    plan!("ibv_create_cq", pointer);
    if !(1..=1 << 16).contains(&entries) || vector != 0 {
        return null(libc::EINVAL);
    }
    let cq = Box::into_raw(Box::new(Cq {
        context,
        channel,
        cq_context,
        handle: 0,
        cqe: entries,
        rest: [0; 12],
    }));
    let state = CqState {
        context: context as usize,
        channel: channel as usize,
        room: entries as usize,
        entries: VecDeque::new(),
        armed: 0,
        unacked: 0,
        failed: false,
    };
    WORLD.lock().cqs.insert(cq as usize, state);
    cq
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    plan!("ibv_destroy_cq", number);
    let at = cq as usize;
    let mut world = WORLD.lock();
    loop {
        if world
            .qps
            .values()
            .any(|qp| qp.send_cq == at || qp.recv_cq == at)
        {
            JOURNAL.misuse("ibv_destroy_cq with queue pairs left".to_owned());
            return libc::EBUSY;
        }
        match world.cqs.get(&at) {
            None => return libc::EINVAL,
            Some(state) => {
                // Events that nobody has taken go with the queue.
                let channel = state.channel;
                let unacked = state.unacked;
                let waiting = world.channels.get_mut(&channel).map_or(0, |channel| {
                    let before = channel.events.len();
                    channel.events.retain(|event| *event != at);
                    for _ in channel.events.len()..before {
                        take(channel.fd);
                    }
                    before - channel.events.len()
                });
                if unacked as usize == waiting {
                    world.cqs.remove(&at);
                    World::gone(world, at);
                    // SAFETY: boxed above.
                    drop(unsafe { Box::from_raw(cq) });
                    return 0;
                }
                if let Some(state) = world.cqs.get_mut(&at) {
                    state.unacked -= waiting as u32;
                }
            }
        }
        // As the library: until somebody acknowledges.
        ACKNOWLEDGED.wait(&mut world);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut Channel,
    cq: *mut *mut Cq,
    context: *mut *mut c_void,
) -> c_int {
    if let Some(code) = struck("ibv_get_cq_event") {
        errno(code as c_int);
        return -1;
    }
    // SAFETY: a live channel.
    if !take(unsafe { (*channel).fd }) {
        return -1;
    }
    let mut world = WORLD.lock();
    let state = world.channels.get_mut(&(channel as usize));
    match state.and_then(|state| state.events.pop_front()) {
        Some(event) => {
            // SAFETY: a live queue, and variables given for it.
            unsafe {
                *cq = event as *mut Cq;
                *context = (**cq).cq_context;
            }
            0
        }
        None => {
            errno(libc::EAGAIN);
            -1
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: u32) {
    struck("ibv_ack_cq_events");
    let mut world = WORLD.lock();
    match world.cqs.get_mut(&(cq as usize)) {
        Some(state) if state.unacked >= count => state.unacked -= count,
        _ => JOURNAL.misuse("ibv_ack_cq_events of events that were not got".to_owned()),
    }
    ACKNOWLEDGED.notify_all();
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, init: *mut SrqInit) -> *mut Srq {
    plan!("ibv_create_srq", pointer);
    // SAFETY: given for it, as is the domain.
    let (init, context) = unsafe { (&mut *init, (*pd).context) };
    if init.max_wr > MOST || init.max_sge > PIECES {
        return null(libc::EINVAL);
    }
    let srq = Box::into_raw(Box::new(Srq {
        context,
        srq_context: init.srq_context,
        pd,
        handle: 0,
        rest: [0; 12],
    }));
    let state = SrqState {
        pd: pd as usize,
        room: init.max_wr as usize,
        receives: VecDeque::new(),
    };
    WORLD.lock().srqs.insert(srq as usize, state);
    srq
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    plan!("ibv_destroy_srq", number);
    let mut world = WORLD.lock();
    if world.qps.values().any(|qp| qp.srq == srq as usize) {
        JOURNAL.misuse("ibv_destroy_srq with queue pairs left".to_owned());
        return libc::EBUSY;
    }
    if world.srqs.remove(&(srq as usize)).is_none() {
        return libc::EINVAL;
    }
    World::gone(world, srq as usize);
    // SAFETY: boxed above.
    drop(unsafe { Box::from_raw(srq) });
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, init: *mut QpInit) -> *mut Qp {
    plan!("ibv_create_qp", pointer);
    // SAFETY: given for it, as is the domain.
    let (init, context) = unsafe { (&mut *init, (*pd).context) };
    let cap = init.cap;
    let fits = cap.max_send_wr <= MOST
        && cap.max_recv_wr <= MOST
        && cap.max_send_sge <= PIECES
        && cap.max_recv_sge <= PIECES
        && cap.max_inline_data <= MOST_INLINE;
    let mut world = WORLD.lock();
    let known = |cq: *mut Cq| {
        let state = world.cqs.get(&(cq as usize));
        state.is_some_and(|state| state.context == context as usize)
    };
    if !fits || init.qp_type != 2 || !known(init.send_cq) || !known(init.recv_cq) {
        return null(libc::EINVAL);
    }
    let number = world.number();
    let qp = Box::into_raw(Box::new(Qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: number,
        qp_num: number,
        state: RESET,
        qp_type: init.qp_type,
        rest: [0; 12],
    }));
    let state = QpState {
        raw: qp as usize,
        pd: pd as usize,
        send_cq: init.send_cq as usize,
        recv_cq: init.recv_cq as usize,
        srq: init.srq as usize,
        cap,
        signal_all: init.sq_sig_all != 0,
        state: RESET,
        peer: 0,
        access: 0,
        rnr_retry: 0,
        receives: VecDeque::new(),
        sends: VecDeque::new(),
        used: 0,
        untold: 0,
    };
    world.qps.insert(number, state);
    qp
}

/// The bits that each step needs, as in the manual of `ibv_modify_qp`.
pub(crate) const TO_INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
pub(crate) const TO_RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
pub(crate) const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut Qp,
    attr: *const QpAttr,
    mask: c_int,
) -> c_int {
    plan!("ibv_modify_qp", number);
    // SAFETY: a live queue pair, and a struct given for it.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
    let mut world = WORLD.lock();
    let Some(state) = world.qps.get_mut(&number) else {
        return libc::EINVAL;
    };
    match (state.state, attr.qp_state) {
        (RESET | INIT, INIT) if mask == TO_INIT && attr.port_num == 1 && attr.pkey_index == 0 => {
            state.access = attr.qp_access_flags;
            state.state = INIT;
        }
        (INIT, RTR)
            if mask == TO_RTR
                && (1..=5).contains(&attr.path_mtu)
                && attr.max_dest_rd_atomic <= 16 =>
        {
            state.peer = attr.dest_qp_num;
            state.state = RTR;
        }
        (RTR, RTS)
            if mask == TO_RTS
                && attr.retry_cnt <= 7
                && attr.rnr_retry <= 7
                && attr.max_rd_atomic <= 16 =>
        {
            state.rnr_retry = attr.rnr_retry;
            state.state = RTS;
        }
        (_, ERR) if mask == 1 => world.fail(number),
        _ => return libc::EINVAL,
    }
    world.progress();
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    plan!("ibv_destroy_qp", number);
    // SAFETY: boxed above, and given once.
    let qp = unsafe { Box::from_raw(qp) };
    let mut world = WORLD.lock();
    if world.qps.remove(&qp.qp_num).is_none() {
        return libc::EINVAL;
    }
    world.clean(qp.qp_num);
    world.progress();
    World::gone(world, ptr::from_ref(&*qp) as usize);
    0
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, room: c_int, to: *mut Wc) -> c_int {
    if let Some(code) = struck("ibv_poll_cq") {
        return -(code as c_int);
    }
    let mut world = WORLD.lock();
    let mut found = 0;
    while found < room {
        match world.poll(cq as usize) {
            // SAFETY: room for so many is given.
            Some(wc) => unsafe { to.add(found as usize).write(wc) },
            None => break,
        }
        found += 1;
    }
    match world.cqs.get(&(cq as usize)) {
        Some(state) if state.failed && found == 0 => -1,
        Some(_) => found,
        None => -libc::EINVAL,
    }
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited: c_int) -> c_int {
    plan!("ibv_req_notify_cq", number);
    let world = &mut *WORLD.lock();
    match world.cqs.get_mut(&(cq as usize)) {
        // Where that is a call of the kernel's, as with soft-RoCE.
        Some(state)
            if world
                .contexts
                .get(&state.context)
                .is_some_and(|context| context.over) =>
        {
            libc::EIO
        }
        Some(state) => {
            state.armed = if solicited == 0 {
                1
            } else {
                state.armed.max(2)
            };
            0
        }
        None => libc::EINVAL,
    }
}

/// # Safety
/// An array of the caller's.
unsafe fn pieces(list: *const Sge, count: c_int) -> Vec<Sge> {
    match usize::try_from(count) {
        // SAFETY: the caller says so.
        Ok(count) if count > 0 => unsafe { slice::from_raw_parts(list, count) }.to_vec(),
        _ => Vec::new(),
    }
}

unsafe extern "C" fn post_send(
    qp: *mut Qp,
    mut request: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).qp_num };
    let mut answer = 0;
    let mut world = WORLD.lock();
    while !request.is_null() {
        // SAFETY: a request of the caller's, with the pieces that it names.
        let (wr, list) = unsafe { (&*request, pieces((*request).sg_list, (*request).num_sge)) };
        let struck = struck("ibv_post_send");
        let Some(state) = world.qps.get_mut(&number) else {
            return libc::EINVAL;
        };
        let length: u32 = list.iter().map(|piece| piece.length).sum();
        let inline = wr.send_flags & INLINE != 0;
        answer = match struck {
            Some(code) => code as c_int,
            None if !matches!(state.state, RTS | ERR) => libc::EINVAL,
            None if wr.opcode > 6 || list.len() > state.cap.max_send_sge as usize => libc::EINVAL,
            None if inline && (length > state.cap.max_inline_data || wr.opcode > 3) => libc::EINVAL,
            None if state.used >= state.cap.max_send_wr => libc::ENOMEM,
            None => 0,
        };
        if answer != 0 {
            // SAFETY: given for it.
            unsafe { *bad = request };
            break;
        }
        let copied = |piece: &Sge| {
            // SAFETY: inline bytes are readable while they are posted.
            unsafe { bytes_at(piece.addr, piece.length as usize) }
        };
        const KINDS: [&str; 7] = [
            "RDMA_WRITE",
            "RDMA_WRITE_WITH_IMM",
            "SEND",
            "SEND_WITH_IMM",
            "RDMA_READ",
            "ATOMIC_CMP_AND_SWP",
            "ATOMIC_FETCH_AND_ADD",
        ];
        // What was posted, for tests that ask how bytes travelled: `count RDMA_READ`.
        JOURNAL.call(KINDS[wr.opcode as usize], [0; 4], 0);
        let failed = state.state == ERR;
        state.used += 1;
        state.sends.push_back(Send {
            id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            imm: wr.imm_data,
            inline: inline.then(|| list.iter().flat_map(copied).collect()),
            pieces: list,
            wr: wr.wr,
        });
        if failed {
            world.fail(number);
        }
        request = wr.next;
    }
    world.progress();
    answer
}

/// Posts receives where `place` says.
unsafe fn post_receives(
    mut request: *mut RecvWr,
    bad: *mut *mut RecvWr,
    mut place: impl FnMut(Receive) -> c_int,
) -> c_int {
    while !request.is_null() {
        // SAFETY: a request of the caller's, with the pieces that it names.
        let (wr, list) = unsafe { (&*request, pieces((*request).sg_list, (*request).num_sge)) };
        let answer = match struck("ibv_post_recv") {
            Some(code) => code as c_int,
            None => place(Receive {
                id: wr.wr_id,
                pieces: list,
            }),
        };
        if answer != 0 {
            // SAFETY: given for it.
            unsafe { *bad = request };
            return answer;
        }
        request = wr.next;
    }
    0
}

unsafe extern "C" fn post_recv(qp: *mut Qp, request: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).qp_num };
    let mut world = WORLD.lock();
    let place = |receive: Receive| {
        let Some(state) = world.qps.get_mut(&number) else {
            return libc::EINVAL;
        };
        if state.state == RESET
            || state.srq != 0
            || receive.pieces.len() > state.cap.max_recv_sge as usize
        {
            return libc::EINVAL;
        }
        if state.receives.len() >= state.cap.max_recv_wr as usize {
            return libc::ENOMEM;
        }
        state.receives.push_back(receive);
        if state.state == ERR {
            world.fail(number);
        }
        0
    };
    // SAFETY: the caller's requests.
    let answer = unsafe { post_receives(request, bad, place) };
    world.progress();
    answer
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    request: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    let mut world = WORLD.lock();
    let place = |receive: Receive| match world.srqs.get_mut(&(srq as usize)) {
        Some(state) if state.receives.len() >= state.room => libc::ENOMEM,
        Some(state) => {
            state.receives.push_back(receive);
            0
        }
        None => libc::EINVAL,
    };
    // SAFETY: the caller's requests.
    let answer = unsafe { post_receives(request, bad, place) };
    world.progress();
    answer
}

/// Does what `text` says and writes the answer; its length, or −1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn wharf_emulated_verbs_control(
    text: *const c_char,
    to: *mut c_char,
    room: usize,
) -> isize {
    // SAFETY: a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let answer = control(&text);
    let (text, fine) = match &answer {
        Ok(text) => (text, true),
        Err(text) => (text, false),
    };
    let length = text.len().min(room.saturating_sub(1));
    // SAFETY: so much room is given.
    unsafe {
        to.copy_from(text.as_ptr().cast(), length);
        to.add(length).write(0);
    }
    if fine { length as isize } else { -1 }
}

fn control(text: &str) -> Result<String, String> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match word {
        "fault" => FAULTS
            .add(rest)
            .map(|()| String::new())
            .map_err(|error| error.to_string()),
        "clear" => {
            FAULTS.clear();
            JOURNAL.clear();
            Ok(String::new())
        }
        "misuses" => Ok(JOURNAL.misuses()),
        "live" => Ok((WORLD.lock().live() + crate::cm::live()).to_string()),
        "break" => {
            let Some((device, what)) = rest.split_once(' ') else {
                return Err("break DEVICE cq|srq|qp".to_owned());
            };
            let device = device.parse().map_err(|_| "no device".to_owned())?;
            Ok(WORLD.lock().break_all(device, what).to_string())
        }
        "port" => {
            let numbers: Vec<u32> = rest
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect();
            let [device, state] = numbers[..] else {
                return Err("port DEVICE STATE".to_owned());
            };
            let mut world = WORLD.lock();
            let Some(port) = world.ports.get_mut(device as usize) else {
                return Err("no such device".to_owned());
            };
            *port = state;
            // IBV_PORT_ACTIVE; IBV_EVENT_PORT_ACTIVE and PORT_ERR.
            let kind = if state == 4 { 9 } else { 10 };
            let open = world.contexts_of(device as usize);
            for context in &open {
                world.tell(*context, 1, kind);
            }
            Ok(open.len().to_string())
        }
        "left" => {
            let world = WORLD.lock();
            let counts = [
                ("contexts", world.contexts.len()),
                ("pds", world.pds.len()),
                ("mrs", world.mrs.len()),
                ("channels", world.channels.len()),
                ("cqs", world.cqs.len()),
                ("srqs", world.srqs.len()),
                ("qps", world.qps.len()),
                ("cm", crate::cm::live()),
            ];
            let left = counts.iter().filter(|(_, count)| *count > 0);
            let left: Vec<String> = left
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            Ok(left.join(", "))
        }
        "lost" => {
            WORLD.lock().lost = rest == "1";
            Ok(String::new())
        }
        "late" => {
            let mut world = WORLD.lock();
            world.late = rest == "1";
            world.arrive(None);
            Ok(String::new())
        }
        "peermem" => {
            WORLD.lock().peermem = rest == "1";
            Ok(String::new())
        }
        "behind" => Ok(WORLD.lock().behind.len().to_string()),
        "dmabuf" => {
            WORLD.lock().dmabuf = rest == "1";
            Ok(String::new())
        }
        "writable" => Ok(WORLD.lock().writable().to_string()),
        "unmapped" => {
            let world = WORLD.lock();
            let gone = world.mrs.values();
            let gone = gone.filter(|mr| mr.file.is_none() && !is_mapped(mr.addr, mr.length));
            Ok(gone.count().to_string())
        }
        "cm" => match rest.parse() {
            Ok(kind) => Ok(crate::cm::tell_all(kind).to_string()),
            Err(_) => Err("cm KIND".to_owned()),
        },
        "count" => Ok(JOURNAL.count(rest).to_string()),
        "event" => {
            let numbers: Vec<usize> = rest
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect();
            let [device, kind, element] = numbers[..] else {
                return Err("event DEVICE KIND ELEMENT".to_owned());
            };
            let mut world = WORLD.lock();
            let open = world.contexts_of(device);
            for context in &open {
                world.tell(*context, element, kind as u32);
            }
            Ok(open.len().to_string())
        }
        other => Err(format!("no such command: {other}")),
    }
}

/// Whoever has the memory that the devices wrote has what is behind come: called by emulated drivers.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn wharf_emulated_flush_writes() {
    WORLD.lock().arrive(None);
}
