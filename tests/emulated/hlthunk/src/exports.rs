#![allow(unsafe_code)]
//! The exported names.
//!
//! # Safety
//! A C caller gives pointers to what the headers say, or null where they allow it; every one is checked for null and then used for just that.

use std::{
    ffi::{CStr, c_char, c_void},
    time::Duration,
};

use crate::{
    abi::{self, Chip, CsIn, CsOut, DONT_CARE, MultiIn, MultiOut, Outcome},
    dmabuf,
    gate::{emulator, enter, set_errno},
    node::{Card, Node},
    settings, submit,
};

/// An argument, for the journal.
trait Word {
    fn word(&self) -> u64;
}

macro_rules! words {
    ($($type:ty),*) => { $(impl Word for $type { fn word(&self) -> u64 { *self as u64 } })* };
}
words!(u8, u16, u32, u64, i32, bool);

impl<T> Word for *mut T {
    fn word(&self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl<T> Word for *const T {
    fn word(&self) -> u64 {
        self.expose_provenance() as u64
    }
}

/// Defines exported functions: `[the descriptor, or none] fn name(arguments) -> result |call| { work }`.
macro_rules! exports {
    ($([$fd:expr] fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty |$call:ident| $work:block)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> $result {
            let mut arguments = [0; 4];
            let words: &[u64] = &[$($argument.word()),*];
            for (place, word) in arguments.iter_mut().zip(words) {
                *place = *word;
            }
            let fd: Option<i32> = $fd;
            enter(stringify!($name), fd, arguments, |$call| -> Outcome<$result> {
                let _ = $call;
                $work
            })
        }
    )* };
}

/// Writes a result where the caller wants it.
fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: not null; see the head of the file.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// A string of the caller's.
fn text(from: *const c_char) -> Option<String> {
    if from.is_null() {
        return None;
    }
    // SAFETY: not null; see the head of the file.
    let text = unsafe { CStr::from_ptr(from) };
    Some(text.to_string_lossy().into_owned())
}

fn card_of(fd: i32) -> Outcome<(&'static Card, Node)> {
    let machine = &emulator().machine;
    let node = machine.node(fd)?;
    Ok((&machine.cards[node.card()], node))
}

#[unsafe(no_mangle)]
extern "C" fn hlthunk_get_version() -> *mut c_char {
    let version = std::env::var("EMULATED_HLTHUNK_VERSION");
    let version = version.unwrap_or_else(|_| "1.19.0-emulated".to_owned());
    emulator().journal.call("hlthunk_get_version", [0; 4], 0);
    let bytes = version.as_bytes();
    // SAFETY: room for the text and its zero, which the caller gives back to hlthunk_free.
    unsafe {
        let room = libc::malloc(bytes.len() + 1).cast::<u8>();
        if !room.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len());
            room.add(bytes.len()).write(0);
        }
        room.cast()
    }
}

#[unsafe(no_mangle)]
extern "C" fn hlthunk_free(pointer: *mut c_void) {
    emulator().journal.call("hlthunk_free", [0; 4], 0);
    // SAFETY: what hlthunk_get_version or hlthunk_malloc gave.
    unsafe { libc::free(pointer) };
}

exports! {
    [None] fn hlthunk_open(kind: u32, bus_id: *const c_char) -> i32 |call| {
        let machine = &emulator().machine;
        if let Some(bus_id) = text(bus_id) {
            return machine.by_bus_id(&bus_id).ok_or(libc::EINVAL)?.open();
        }
        let mut last = libc::ENOENT;
        if kind == DONT_CARE || kind == Chip::now().name() {
            for card in &machine.cards {
                match card.open() {
                    Ok(fd) => return Ok(fd),
                    Err(errno) => last = errno,
                }
            }
        }
        // Without a place it is -1 and the number.
        set_errno(last);
        Ok(-1)
    }

    [None] fn hlthunk_open_by_module_id(module: u32) -> i32 |call| {
        let cards = &emulator().machine.cards;
        match cards.iter().find(|card| card.module_id() == module) {
            Some(card) => card.open(),
            None => {
                set_errno(libc::ENOENT);
                Ok(-1)
            }
        }
    }

    [None] fn hlthunk_open_control(number: i32, bus_id: *const c_char) -> i32 |call| {
        let machine = &emulator().machine;
        let number = match text(bus_id) {
            Some(bus_id) => machine.by_bus_id(&bus_id).ok_or(libc::EINVAL)?.index,
            None => usize::try_from(number).map_err(|_| libc::EINVAL)?,
        };
        machine.open_control(number)
    }

    [Some(fd)] fn hlthunk_close(fd: i32) -> i32 |call| {
        emulator().machine.close(fd)?;
        Ok(0)
    }

    [None] fn hlthunk_get_device_count(kind: u32) -> i32 |call| {
        let all = emulator().machine.cards.len() as i32;
        match kind {
            abi::INVALID => Err(libc::EINVAL),
            DONT_CARE => Ok(all),
            kind if kind == Chip::now().name() => Ok(all),
            _ => Ok(0),
        }
    }

    [Some(fd)] fn hlthunk_get_device_id_from_fd(fd: i32) -> u32 |call| {
        card_of(fd)?;
        Ok(Chip::now().pci_id())
    }

    [Some(fd)] fn hlthunk_get_pci_bus_id_from_fd(fd: i32, to: *mut c_char, len: i32) -> i32 |call| {
        let (card, _) = card_of(fd)?;
        if to.is_null() || len < 13 {
            return Err(libc::EINVAL);
        }
        for (index, byte) in card.bus_id().bytes().chain([0]).enumerate() {
            // SAFETY: 13 bytes at most, for which there is room.
            unsafe { to.add(index).write(byte as c_char) };
        }
        Ok(0)
    }

    [None] fn hlthunk_get_device_index_from_pci_bus_id(bus_id: *const c_char) -> i32 |call| {
        let bus_id = text(bus_id).ok_or(libc::EINVAL)?;
        let card = emulator().machine.by_bus_id(&bus_id);
        Ok(card.ok_or(libc::ENOENT)?.index as i32)
    }

    [Some(fd)] fn hlthunk_get_hw_ip_info(fd: i32, to: *mut u8) -> i32 |call| {
        if to.is_null() {
            return Err(libc::EINVAL);
        }
        let (card, _) = card_of(fd)?;
        for (index, byte) in hw_ip(card).into_iter().enumerate() {
            // SAFETY: the library writes its own struct's size, whatever the caller has.
            unsafe { to.add(index).write(byte) };
        }
        Ok(0)
    }

    [Some(fd)] fn hlthunk_get_device_status_info(fd: i32) -> i32 |call| {
        let (card, node) = card_of(fd)?;
        let down = matches!(&node, Node::Compute(_, session) if session.tables.lock().down);
        let state = card.state.load(std::sync::atomic::Ordering::SeqCst);
        Ok(if down { 1 } else { state })
    }

    [Some(fd)] fn hlthunk_device_memory_alloc(fd: i32, size: u64, page: u64, contiguous: bool, shared: bool) -> u64 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        let handle = session.tables()?.memory.allocate(size, page)?;
        Ok(handle)
    }

    [Some(fd)] fn hlthunk_device_memory_free(fd: i32, handle: u64) -> i32 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        session.tables()?.memory.free(handle)?;
        Ok(0)
    }

    [Some(fd)] fn hlthunk_device_memory_map(fd: i32, handle: u64, hint: u64) -> u64 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        let address = session.tables()?.memory.map(handle, hint)?;
        Ok(address)
    }

    [Some(fd)] fn hlthunk_host_memory_map(fd: i32, host: *mut c_void, hint: u64, size: u64) -> u64 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        let address = session.tables()?.memory.map_host(host.word(), size)?;
        Ok(address)
    }

    [Some(fd)] fn hlthunk_memory_unmap(fd: i32, address: u64) -> i32 |call| {
        let (card, session) = emulator().machine.compute(fd)?;
        let mut tables = session.tables()?;
        if dmabuf::is_open(card, &mut tables.exports, address) {
            return Err(libc::EINVAL);
        }
        tables.memory.unmap(address)?;
        Ok(0)
    }

    [Some(fd)] fn hlthunk_device_memory_export_dmabuf_fd(fd: i32, address: u64, size: u64, flags: u32) -> i32 |call| {
        let machine = &emulator().machine;
        if let Some(lent) = machine.lent(fd).filter(|lent| lent.generation == 1) {
            return dmabuf::lent(&machine.cards[lent.index as usize], &lent, address, size, 0);
        }
        let (card, session) = machine.compute(fd)?;
        dmabuf::physical(card, &session, address, size)
    }

    [Some(fd)] fn hlthunk_device_mapped_memory_export_dmabuf_fd(fd: i32, address: u64, size: u64, offset: u64, flags: u32) -> i32 |call| {
        let machine = &emulator().machine;
        if let Some(lent) = machine.lent(fd).filter(|lent| lent.generation != 1) {
            if flags != dmabuf::FLAGS {
                return Err(libc::EINVAL);
            }
            return dmabuf::lent(&machine.cards[lent.index as usize], &lent, address, size, offset);
        }
        let (card, session) = machine.compute(fd)?;
        dmabuf::mapped(card, &session, address, size, offset, flags)
    }

    [Some(fd)] fn hlthunk_request_command_buffer(fd: i32, size: u32, to: *mut u64) -> i32 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        let mut tables = session.tables()?;
        let size = u64::from(size);
        let room = size.next_multiple_of(4096);
        if size == 0 || size > (2 << 20) - 32 || tables.next_buffer + room > crate::node::FILE {
            return Err(libc::EINVAL);
        }
        let handle = tables.next_buffer;
        put(to, handle)?;
        tables.next_buffer += room;
        tables.buffers.insert(handle, size);
        Ok(0)
    }

    [Some(fd)] fn hlthunk_destroy_command_buffer(fd: i32, handle: u64) -> i32 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        let known = session.tables.lock().buffers.remove(&handle);
        known.ok_or(libc::EINVAL)?;
        Ok(0)
    }

    [Some(fd)] fn hlthunk_command_submission(fd: i32, input: *const CsIn, output: *mut CsOut) -> i32 |call| {
        command(fd, input, output, None, call.late)
    }

    [Some(fd)] fn hlthunk_command_submission_timeout(fd: i32, input: *const CsIn, output: *mut CsOut, seconds: u32) -> i32 |call| {
        command(fd, input, output, Some(Duration::from_secs(u64::from(seconds))), call.late)
    }

    [Some(fd)] fn hlthunk_wait_for_cs(fd: i32, seq: u64, timeout_us: u64, status: *mut u32) -> i32 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        let (outcome, word) = submit::wait(&session, seq, Duration::from_micros(timeout_us));
        put(status, word)?;
        outcome.map(|()| 0)
    }

    [Some(fd)] fn hlthunk_wait_for_multi_cs(fd: i32, input: *const MultiIn, output: *mut MultiOut) -> i32 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        if input.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: not null; see the head of the file.
        let input = unsafe { input.read_unaligned() };
        if input.seq.is_null() || input.len == 0 || input.len > 32 {
            return Err(libc::EINVAL);
        }
        // SAFETY: not null, and so many.
        let seqs = unsafe { std::slice::from_raw_parts(input.seq, input.len as usize) };
        let set = submit::wait_any(&session, seqs, Duration::from_micros(input.timeout_us))?;
        let status = if set == 0 { abi::BUSY } else { abi::COMPLETED };
        let completed = set.count_ones() as u8;
        put(output, MultiOut { status, seq_set: set, completed })?;
        Ok(0)
    }

    [Some(fd)] fn hlthunk_notifier_create(fd: i32) -> i32 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        session.notifier_create()
    }

    [Some(fd)] fn hlthunk_notifier_release(fd: i32, notifier: i32) -> i32 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        session.notifier_release(notifier)?;
        Ok(0)
    }

    [Some(fd)] fn hlthunk_notifier_recv(fd: i32, notifier: i32, events: *mut u64, count: *mut u64, flags: u32, timeout: u32) -> i32 |call| {
        let (_, session) = emulator().machine.compute(fd)?;
        put(count, 0)?;
        let mut poll = libc::pollfd { fd: notifier, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, timeout as i32) };
        if ready <= 0 {
            return Ok(0);
        }
        let mut read = 0_u64;
        // SAFETY: eight bytes, which live through the call.
        if unsafe { libc::read(notifier, (&raw mut read).cast(), 8) } != 8 {
            return Ok(-1);
        }
        put(events, session.take_events())?;
        put(count, read)?;
        Ok(0)
    }
}

#[unsafe(no_mangle)]
extern "C" fn hlthunk_get_device_name_from_fd(fd: i32) -> u32 {
    let known = card_of(fd);
    let answer = enter(
        "hlthunk_get_device_name_from_fd",
        Some(fd),
        [fd.word(), 0, 0, 0],
        |_| known.map(|_| Chip::now().name()),
    );
    // Faults and strangers' descriptors are of no known kind.
    if answer == 0 { abi::INVALID } else { answer }
}

#[unsafe(no_mangle)]
extern "C" fn hlthunk_is_device_idle(fd: i32) -> bool {
    let running = |node: &Node| match node {
        Node::Compute(_, session) => session.tables.lock().fences.running(),
        Node::Control(_) => 0,
    };
    card_of(fd).is_ok_and(|(_, node)| running(&node) == 0)
}

fn command(
    fd: i32,
    input: *const CsIn,
    output: *mut CsOut,
    limit: Option<Duration>,
    late: Option<u64>,
) -> Outcome<i32> {
    let (_, session) = emulator().machine.compute(fd)?;
    if input.is_null() || output.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: not null; see the head of the file.
    let input = unsafe { input.read_unaligned() };
    let wanted = 1..=512;
    if input.execute.is_null() || input.num_restore != 0 || !wanted.contains(&input.num_execute) {
        return Err(libc::EINVAL);
    }
    // SAFETY: not null, and so many.
    let chunks =
        unsafe { std::slice::from_raw_parts(input.execute, input.num_execute as usize) }.to_vec();
    let seq = submit::submit(&session, &chunks, input.flags, limit, late)?;
    put(
        output,
        CsOut {
            seq,
            status: 0,
            sob_count: 0,
        },
    )?;
    Ok(0)
}

/// `struct hlthunk_hw_ip_info`, by offsets; beyond its 336 bytes what a newer library may write.
fn hw_ip(card: &Card) -> Vec<u8> {
    let chip = Chip::now();
    let mut bytes = vec![0_u8; 336];
    let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    set(8, &chip.dram_base().to_ne_bytes());
    set(16, &settings::MEMORY.get().to_ne_bytes());
    set(24, &(48_u32 << 20).to_ne_bytes());
    set(32, &chip.pci_id().to_ne_bytes());
    set(56, &0xFFFF_u16.to_ne_bytes());
    set(58, &[1]);
    set(59, b"emulated");
    set(188, &card.module_id().to_ne_bytes());
    set(192, format!("HL-emulated-{}", card.index).as_bytes());
    set(224, &chip.page().to_ne_bytes());
    let first_interrupt: u16 = if chip == Chip::Gaudi { 0xFFFF } else { 1 };
    set(232, &first_interrupt.to_ne_bytes());
    if chip != Chip::Gaudi {
        set(236, &(settings::EDMA.get() as u32).to_ne_bytes());
    }
    bytes.resize(settings::HW_IP_BYTES.get().max(336) as usize, 0xEE);
    bytes
}
