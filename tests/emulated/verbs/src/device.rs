//! Devices: the list, opening and closing, what they tell and what they can do.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    collections::{VecDeque, btree_map::Entry},
    ffi::{c_char, c_int},
    ptr,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

use crate::{
    abi::{AsyncEvent, Context, Device, GidEntry},
    completion, environment, extended,
    plan::{errno, null, plan, struck},
    post, wire,
    world::{ACKNOWLEDGED, ContextState, JOURNAL, WORLD, counter, take},
};

const DEVICES: usize = 2;
/// Work requests in a queue, pieces in one, bytes inline, completions in a queue.
pub(crate) const MOST: u32 = 4096;
pub(crate) const PIECES: u32 = 16;
pub(crate) const MOST_INLINE: u32 = 512;
pub(crate) const MOST_COMPLETIONS: u32 = 1 << 16;

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

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    environment::read();
    let none = match struck("ibv_get_device_list") {
        // No device, and no error.
        Some(0) => true,
        Some(code) => return null(code as c_int),
        None => false,
    };
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
        None => guid(index_of(device)),
    }
}

fn guid(device: usize) -> u64 {
    (device as u64 + 1).to_be()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut Device) -> c_int {
    index_of(device) as c_int
}

pub(crate) fn index_of(device: *const Device) -> usize {
    usize::from(ptr::eq(device, &TABLE.0[1]))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    plan!("ibv_open_device", pointer);
    if let Err(error) = wire::enter() {
        return null(error.raw_os_error().unwrap_or(libc::EIO));
    }
    let Ok(fd) = counter() else {
        wire::leave();
        return null(libc::EMFILE);
    };
    let mut ops = [0; 32];
    ops[11] = completion::poll_cq as *const () as usize;
    ops[12] = completion::req_notify_cq as *const () as usize;
    ops[20] = post::post_srq_recv as *const () as usize;
    ops[25] = post::post_send as *const () as usize;
    ops[26] = post::post_recv as *const () as usize;
    let mut world = WORLD.lock();
    let extended = Box::into_raw(Box::new(extended::table(
        Context {
            device,
            ops,
            cmd_fd: -1,
            async_fd: fd,
            num_comp_vectors: 1,
            mutex: [0; 5],
            abi_compat: 0,
        },
        world.old,
    )));
    // SAFETY: just made.
    let context = unsafe { &raw mut (*extended).context };
    let state = ContextState {
        device: index_of(device),
        fd,
        events: VecDeque::new(),
        over: false,
    };
    world.contexts.insert(context as usize, state);
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
        Some(state) => {
            // SAFETY: ours, and boxed with the table before it.
            unsafe {
                libc::close(state.fd);
                drop(Box::from_raw(extended::of(context)));
            }
            drop(world);
            wire::leave();
            0
        }
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
pub(crate) unsafe extern "C" fn ibv_query_device(context: *mut Context, to: *mut u8) -> c_int {
    plan!("ibv_query_device", number);
    // SAFETY: a live context, and 232 bytes.
    unsafe {
        attributes(index_of((*context).device), to);
    }
    0
}

/// Writes `ibv_device_attr`.
///
/// # Safety
/// 232 bytes are given, aligned to 8.
pub(crate) unsafe fn attributes(device: usize, to: *mut u8) {
    let atomics = u32::from(struck("no_atomics").is_none());
    // SAFETY: all of it are numbers; the offsets are the header's.
    unsafe {
        to.write_bytes(0, 232);
        to.copy_from(b"1.0.0".as_ptr(), 5);
        for (offset, value) in [
            (64, guid(device)),
            (72, guid(device)),
            (80, 1 << 40),
            // Pages of 4 KiB and larger.
            (88, !0xfff),
        ] {
            to.add(offset).cast::<u64>().write(value);
        }
        for (offset, value) in [
            (96, 0xe0e0e0),
            (108, 1024),
            (112, MOST),
            (120, PIECES),
            (124, PIECES),
            (128, 1024),
            (132, MOST_COMPLETIONS),
            (136, 1 << 16),
            (140, 1 << 16),
            (144, 16),
            (152, 16 * 1024),
            (156, 16),
            (164, atomics),
            (212, 64),
            (216, MOST),
            (220, PIECES),
        ] {
            to.add(offset).cast::<u32>().write(value);
        }
        // One partition, one port.
        to.add(224).cast::<u16>().write(1);
        to.add(227).write(1);
    }
}

/// The struct as far as old libraries know it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port: u8,
    to: *mut u8,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { port_attributes(context, port, to, 48) }
}

/// Writes so much of `ibv_port_attr`.
///
/// # Safety
/// A live context; so many bytes are given, aligned to 4.
pub(crate) unsafe fn port_attributes(
    context: *mut Context,
    port: u8,
    to: *mut u8,
    size: usize,
) -> c_int {
    plan!("ibv_query_port", number);
    if port != 1 || size < 48 {
        return libc::EINVAL;
    }
    // SAFETY: the caller says so; the offsets are the header's.
    unsafe {
        let state = WORLD.lock().ports[index_of((*context).device)];
        to.write_bytes(0, size);
        for (offset, value) in [(0, state), (4, 5), (8, 5), (12, 1), (20, 1 << 31)] {
            to.add(offset).cast::<u32>().write(value);
        }
        // One partition.
        to.add(32).cast::<u16>().write(1);
        // VL0 alone.
        to.add(39).write(1);
        to.add(43).write(2);
        to.add(44).write(32);
        // The link is up, or polled for one.
        to.add(45).write(if state == 4 { 5 } else { 2 });
        to.add(46).write(2);
    }
    0
}

/// The second byte of each device's address.
pub(crate) static NETS: [AtomicU8; DEVICES] = [const { AtomicU8::new(99) }; DEVICES];

/// 10.99.0.1 and 10.99.0.2, mapped, or in another net.
pub(crate) fn gid(device: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    let net = NETS[device].load(Relaxed);
    (gid[10], gid[11], gid[12], gid[13]) = (0xff, 0xff, 10, net);
    gid[15] = device as u8 + 1;
    gid
}

/// The same in two words, as it stands in the way to a port.
pub(crate) fn words(device: usize) -> [u64; 2] {
    let number = u128::from_ne_bytes(gid(device));
    match cfg!(target_endian = "little") {
        true => [number as u64, (number >> 64) as u64],
        false => [(number >> 64) as u64, number as u64],
    }
}

/// Which device has a GID.
pub(crate) fn device_with(gid: [u64; 2]) -> Option<usize> {
    (0..DEVICES).find(|device| words(*device) == gid)
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
    // SAFETY: a live context, and 16 bytes.
    unsafe { to.write(gid(index_of((*context).device))) };
    0
}

/// Private to the library and its programs: 1 is RoCE v2.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    _context: *mut Context,
    port: u8,
    index: u32,
    to: *mut u32,
) -> c_int {
    if port != 1 || index != 0 {
        errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: given for it.
    unsafe { to.write(1) };
    0
}

/// Writes the only entry of a port's table.
///
/// # Safety
/// A live context, and room for it.
unsafe fn entry(context: *mut Context, to: *mut GidEntry) {
    // SAFETY: the caller says so.
    unsafe {
        to.write(GidEntry {
            gid: gid(index_of((*context).device)),
            gid_index: 0,
            port_num: 1,
            // RoCE v2.
            gid_type: 2,
            ndev_ifindex: 0,
        });
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    to: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    plan!("ibv_query_gid_ex", number);
    if port != 1 || index != 0 || flags != 0 || size < size_of::<GidEntry>() {
        return libc::EINVAL;
    }
    // SAFETY: given for it.
    unsafe { entry(context, to) };
    0
}

/// How many entries there are, or a negative error number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    to: *mut GidEntry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    if let Some(code) = struck("ibv_query_gid_table") {
        return -(code as isize);
    }
    if WORLD.lock().old {
        return -(libc::EOPNOTSUPP as isize);
    }
    if flags != 0 || room == 0 || size < size_of::<GidEntry>() {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: room for one is given.
    unsafe { entry(context, to) };
    1
}

/// Every port is in the default partition alone.
const DEFAULT_PARTITION: u16 = 0xffff;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut Context,
    port: u8,
    index: c_int,
    to: *mut u16,
) -> c_int {
    if port != 1 || index != 0 || struck("ibv_query_pkey").is_some() {
        errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: given for it.
    unsafe { to.write(DEFAULT_PARTITION) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    _context: *mut Context,
    port: u8,
    key: u16,
) -> c_int {
    match port == 1 && key == DEFAULT_PARTITION {
        true => 0,
        false => {
            errno(libc::EINVAL);
            -1
        }
    }
}
