#![allow(unsafe_code)]
//! The exported names. Their work is done in the files beside it.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is an HSA runtime itself. Functions that a caller passes are
//! called within the call, with the argument that came with them.

use std::{
    os::fd::{FromRawFd, OwnedFd, RawFd},
    sync::atomic::Ordering::SeqCst,
};

use wharf_emulated_common::backing::borrow_fd;

use crate::{
    abi::{In, LinkInfo, OnEach, OnEvent, OnFree, OnSignal, Out, Outcome, PointerInfo, Status},
    agent::{self, HOST, Index},
    copy::{self, Copy},
    gate::{Call, exports},
    memory::{self, Kind},
    runtime::runtime,
    settings,
    share::{self, Handle},
    signal, svm,
};

exports! {
    [true, None] fn hsa_init() |_call| { runtime().initialise() }

    [false, None] fn hsa_shut_down() |_call| { runtime().shut_down() }

    [false, None] fn hsa_system_get_info(what: u32, value: Out<u64>) |_call| {
        match what {
            0 | 1 => value.cast::<u16>().set(1),
            // A clock of a gigahertz.
            3 => value.set(1_000_000_000),
            0x201 => value.cast::<bool>().set(settings::SVM.on()),
            0x204 if settings::DMABUF_ASKED.on() => value.cast::<bool>().set(settings::DMABUF.on()),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    [false, None] fn hsa_iterate_agents(each: OnEach, argument: usize) |_call| {
        iterate(agent::all().map(agent::handle), each, argument)
    }

    [false, None] fn hsa_agent_get_info(agent: u64, what: u32, value: Out<u8>) |_call| {
        agent_info(agent::find(agent)?, what, &value)
    }

    [false, None] fn hsa_amd_agent_iterate_memory_pools(agent: u64, each: OnEach, argument: usize) |_call| {
        iterate(agent::pools(agent::find(agent)?), each, argument)
    }

    [false, None] fn hsa_amd_memory_pool_get_info(pool: u64, what: u32, value: Out<u8>) |_call| {
        let pool = agent::pool(pool)?;
        match what {
            0 => value.cast::<u32>().set(if pool.flags.is_some() { 0 } else { 3 }),
            1 => value.cast::<u32>().set(pool.flags.ok_or(Status::INVALID_ARGUMENT)?),
            2 | 16 => value.cast::<u64>().set(pool.size()),
            5 => value.cast::<bool>().set(pool.flags.is_some()),
            6 | 7 => value.cast::<u64>().set(if pool.flags.is_some() { 4096 } else { 0 }),
            15 => value.cast::<bool>().set(pool.agent == HOST),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    [false, None] fn hsa_amd_agent_memory_pool_get_info(agent: u64, pool: u64, what: u32, value: Out<u8>) |_call| {
        let (by, pool) = (agent::find(agent)?, agent::pool(pool)?);
        let hops = u32::from(by != pool.agent && agent::access(by, pool) != 0);
        match what {
            0 => value.cast::<u32>().set(agent::access(by, pool)),
            1 => value.cast::<u32>().set(hops),
            2 if hops == 0 => Ok(()),
            2 => value.cast::<LinkInfo>().set(LinkInfo {
                link_type: if by == HOST || pool.agent == HOST { 2 } else { settings::LINK.get() as u32 },
                distance: 20,
                ..LinkInfo::default()
            }),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    [false, None] fn hsa_amd_memory_pool_allocate(pool: u64, len: usize, flags: u32, address: Out<u64>) |_call| {
        if flags != 0 || !address.is_wanted() {
            return Err(Status::INVALID_ARGUMENT);
        }
        let given = runtime().memory.lock().allocate(agent::pool(pool)?, len as u64)?;
        address.set(given)
    }

    [false, None] fn hsa_amd_memory_pool_free(address: u64) |_call| { memory::free(address) }

    [false, None] fn hsa_amd_memory_fill(address: u64, word: u32, count: usize) |_call| {
        memory::fill(address, word, count as u64)
    }

    [false, None] fn hsa_amd_agents_allow_access(count: u32, agents: In<u64>, flags: In<u32>, address: u64) |_call| {
        if count == 0 || agents.is_null() || !flags.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        let agents = agent::find_all(&agents.list(count as usize)?)?;
        runtime().memory.lock().allow(address, &agents)
    }

    [false, None] fn hsa_amd_memory_lock(host: u64, len: usize, agents: In<u64>, count: i32, address: Out<u64>) |_call| {
        let count = usize::try_from(count).map_err(|_| Status::INVALID_ARGUMENT)?;
        if len == 0 || host == 0 || agents.is_null() != (count == 0) {
            return Err(Status::INVALID_ARGUMENT);
        }
        address.set(0)?;
        let agents = agent::find_all(&agents.list(count)?)?;
        let given = runtime().memory.lock().lock(host, len as u64, agents)?;
        address.set(given)
    }

    [false, None] fn hsa_amd_memory_unlock(host: u64) |_call| {
        let done = runtime().memory.lock().unlock(host);
        // The real one succeeds whatever is unlocked.
        if done.is_err() {
            runtime().journal.misuse(format!("{host:#x} was unlocked and is not locked"));
        }
        Ok(())
    }

    [false, None] fn hsa_amd_pointer_info(
        address: u64, info: Out<PointerInfo>, allocate: OnAllocate, count: Out<u32>, agents: Out<u64>,
    ) |_call| {
        let size = info.cast::<u32>().get()?;
        if address == 0 || size == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let memory = runtime().memory.lock();
        let (mut found, reach) = (memory.inspect(address), memory.accessible(address));
        drop(memory);
        found.size = size.min(settings::INFO_SIZE.get() as u32).min(56);
        info.set_bytes(&found, found.size as usize)?;
        match allocate {
            Some(allocate) if count.is_wanted() && agents.is_wanted() && found.kind != 0 => {
                // SAFETY: see the head of the file.
                let list = unsafe { allocate(reach.len() * 8) };
                agents.set(list)?;
                count.set(reach.len() as u32)?;
                for (place, agent) in reach.into_iter().enumerate() {
                    Out::<u64>::at(list + 8 * place as u64).set(agent::handle(agent))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    [false, None] fn hsa_signal_create(initial: i64, count: u32, agents: In<u64>, handle: Out<u64>) |_call| {
        agent::find_all(&agents.list(count as usize)?)?;
        if !handle.is_wanted() {
            return Err(Status::INVALID_ARGUMENT);
        }
        handle.set(signal::create(initial))
    }

    [false, None] fn hsa_signal_destroy(handle: u64) |_call| { signal::destroy(handle) }

    [false, None] fn hsa_amd_signal_async_handler(
        handle: u64, condition: u32, bound: i64, run: OnSignal, argument: usize,
    ) |_call| {
        if condition > 3 {
            return Err(Status::INVALID_ARGUMENT);
        }
        copy::watch(handle, condition, bound, run, argument)
    }

    [false, maker_of(to_agent, from_agent)] fn hsa_amd_memory_async_copy(
        to: u64, to_agent: u64, from: u64, from_agent: u64, len: usize,
        count: u32, after: In<u64>, done: u64,
    ) |call| {
        submit(call, (to, to_agent), (from, from_agent), len, (count, &after), done)
    }

    [false, None] fn hsa_amd_ipc_memory_create(address: u64, len: usize, handle: Out<Handle>) |_call| {
        if !handle.is_wanted() {
            return Err(Status::INVALID_ARGUMENT);
        }
        handle.set(share::create(address, len as u64)?)
    }

    [false, None] fn hsa_amd_ipc_memory_attach(
        handle: In<Handle>, len: usize, count: u32, agents: In<u64>, address: Out<u64>,
    ) |_call| {
        let mut agents = if count == 0 { Vec::new() } else { agent::find_all(&agents.list(count as usize)?)? };
        if agents.is_empty() {
            agents = agent::all().skip(1).collect();
        }
        if !address.is_wanted() {
            return Err(Status::INVALID_ARGUMENT);
        }
        address.set(share::attach(handle.get()?, len as u64, agents)?)
    }

    [false, None] fn hsa_amd_ipc_memory_detach(address: u64) |_call| {
        runtime().memory.lock().unmap(Kind::Ipc, address)
    }

    [false, None] fn hsa_amd_portable_export_dmabuf(address: u64, len: usize, fd: Out<i32>, offset: Out<u64>) |_call| {
        if !fd.is_wanted() || !offset.is_wanted() {
            return Err(Status::INVALID_ARGUMENT);
        }
        let (exported, at) = share::export(address, len as u64)?;
        fd.set(exported)?;
        offset.set(at)
    }

    [false, None] fn hsa_amd_portable_close_dmabuf(fd: i32) |_call| {
        share::close(fd)?;
        // SAFETY: exported by this library, given up by its caller, and closed once: it was in the list.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(())
    }

    [false, None] fn hsa_amd_interop_map_buffer(
        count: u32, agents: In<u64>, fd: i32, flags: u32, len: Out<usize>, address: Out<u64>,
        _metadata_len: Out<usize>, _metadata: Out<u64>,
    ) |_call| {
        let agents = agent::find_all(&agents.list(count as usize)?)?;
        if flags != 0 || !len.is_wanted() || !address.is_wanted() || !is_open(fd) {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: open a moment ago, and the caller keeps it open through the call.
        let (size, at) = share::map(unsafe { borrow_fd(fd) }, agents)?;
        len.set(size as usize)?;
        address.set(at)
    }

    [false, None] fn hsa_amd_interop_unmap_buffer(address: u64) |_call| {
        runtime().memory.lock().unmap(Kind::DmaBuf, address)
    }

    [false, None] fn hsa_amd_svm_attributes_set(address: u64, len: usize, pairs: In<svm::Pair>, count: usize) |_call| {
        svm::set(address, len as u64, &pairs.list(count)?)
    }

    [false, None] fn hsa_amd_svm_attributes_get(address: u64, len: usize, pairs: Out<svm::Pair>, count: usize) |_call| {
        let place = |index: usize| Out::<svm::Pair>::at(pairs.address() + (index * size_of::<svm::Pair>()) as u64);
        if !pairs.is_wanted() && count > 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let asked = (0..count).map(|index| place(index).get()).collect::<Outcome<Vec<_>>>()?;
        let answered = svm::get(address, len as u64, &asked)?;
        answered.into_iter().enumerate().try_for_each(|(index, pair)| place(index).set(pair))
    }

    [false, None] fn hsa_amd_svm_prefetch_async(
        address: u64, len: usize, agent: u64, count: u32, after: In<u64>, done: u64,
    ) |_call| {
        if after.is_null() != (count == 0) {
            return Err(Status::INVALID_ARGUMENT);
        }
        for handle in after.list(count as usize)?.iter().chain([&done]) {
            signal::check(*handle)?;
        }
        svm::prefetch(address, len as u64, agent)?;
        signal::change(done, |word| { word.fetch_sub(1, SeqCst); });
        Ok(())
    }

    [false, None] fn hsa_amd_register_deallocation_callback(address: u64, run: OnFree, argument: usize) |_call| {
        runtime().memory.lock().notify(address, run, argument)
    }

    [false, None] fn hsa_amd_deregister_deallocation_callback(address: u64, run: OnFree) |_call| {
        runtime().memory.lock().forget(address, run)
    }

    [false, None] fn hsa_amd_register_system_event_handler(run: OnEvent, argument: usize) |_call| {
        runtime().events.register(run, argument)
    }
}

/// The allocator that a caller passes.
type OnAllocate = Option<unsafe extern "C" fn(usize) -> u64>;

/// A call without a status, for the journal.
fn count(name: &'static str, handle: u64, value: i64) {
    let arguments = [handle, value as u64, 0, 0];
    runtime().journal.call(name, arguments, 0);
}

#[unsafe(no_mangle)]
extern "C" fn hsa_signal_load_scacquire(handle: u64) -> i64 {
    let value = signal::load(handle);
    count("hsa_signal_load_scacquire", handle, value);
    value
}

#[unsafe(no_mangle)]
extern "C" fn hsa_signal_store_screlease(handle: u64, value: i64) {
    count("hsa_signal_store_screlease", handle, value);
    signal::change(handle, |word| word.store(value, SeqCst));
}

#[unsafe(no_mangle)]
extern "C" fn hsa_signal_wait_scacquire(
    handle: u64,
    condition: u32,
    bound: i64,
    nanos: u64,
    _state: u32,
) -> i64 {
    count("hsa_signal_wait_scacquire", handle, bound);
    copy::wait(handle, condition, bound, nanos)
}

fn maker_of(to: u64, from: u64) -> Option<Index> {
    copy::maker(agent::find(to).ok()?, agent::find(from).ok()?).ok()
}

fn submit(
    call: &Call,
    (to, to_agent): (u64, u64),
    (from, from_agent): (u64, u64),
    len: usize,
    (count, after): (u32, &In<u64>),
    done: u64,
) -> Outcome {
    if to == 0 || from == 0 || after.is_null() != (count == 0) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let (to_agent, from_agent) = (agent::find(to_agent)?, agent::find(from_agent)?);
    let after = after.list(count as usize)?;
    for handle in after.iter().chain([&done]) {
        signal::check(*handle)?;
    }
    if len == 0 {
        return Ok(());
    }
    copy::submit(Copy {
        by: copy::maker(to_agent, from_agent)?,
        to,
        from,
        len: len as u64,
        after,
        done,
        late: call.late,
        number: 0,
    });
    Ok(())
}

fn iterate(handles: impl Iterator<Item = u64>, each: OnEach, argument: usize) -> Outcome {
    let each = each.ok_or(Status::INVALID_ARGUMENT)?;
    for handle in handles {
        // SAFETY: see the head of the file.
        match Status(unsafe { each(handle, argument) }) {
            Status::SUCCESS => {}
            other => return Err(other),
        }
    }
    Ok(())
}

fn agent_info(agent: Index, what: u32, value: &Out<u8>) -> Outcome {
    let device = agent != HOST;
    let number = agent::physical(agent);
    let text = |text: String| {
        let mut room = [0_u8; 64];
        for (place, byte) in room.iter_mut().zip(text.bytes().take(63)) {
            *place = byte;
        }
        value.cast::<[u8; 64]>().set(room)
    };
    let word = |word: u32| value.cast::<u32>().set(word);
    match what {
        0 if device => text("gfx942".to_owned()),
        0 => text("Emulated CPU".to_owned()),
        1 => text("AMD".to_owned()),
        16 | 0xA004 => word(if device { number + 1 } else { 0 }),
        17 => word(u32::from(device)),
        0xA000 => word(if device { 0x74A1 } else { 0 }),
        // Bus, device, function.
        0xA006 => word(if device {
            (0x11 + number * 0x10) << 8
        } else {
            0
        }),
        0xA009 if device => text("Emulated Instinct".to_owned()),
        0xA009 => text("Emulated CPU".to_owned()),
        0xA00F => word(0),
        0xA011 => {
            let id = if device && settings::UUIDS.on() {
                format!("GPU-{:016x}", 0x9E37_79B9_0000_0001_u64 + u64::from(number))
            } else {
                format!("{}-XX", if device { "GPU" } else { "CPU" })
            };
            let mut room = [0_u8; 21];
            room[..id.len()].copy_from_slice(id.as_bytes());
            value.cast::<[u8; 21]>().set(room)
        }
        0xA10A if device => word(settings::ENGINES.get() as u32),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: numbers alone.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}
