#![allow(unsafe_code)]
//! Memory pools and stream-ordered allocation.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::os::fd::IntoRawFd;

use super::{ordinal, vmm::shared};
use crate::{
    abi::{AccessDesc, In, Location, Opaque, Out, PoolProps, Status, handle_type, location},
    driver::driver,
    gate::exports,
    ipc::{Of, Token},
    memory::Kind,
    objects,
    pool::{self, Pool},
    stream::Op,
};

exports! {
    ["cuDeviceGetDefaultMemPool", 11020, Init]
    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) |_call| {
        pool.set(Pool::default_of(ordinal(device)?)?.handle)
    }

    ["cuDeviceGetMemPool", 11020, Init]
    fn cuDeviceGetMemPool(pool: Out<u64>, device: i32) |_call| {
        pool.set(Pool::default_of(ordinal(device)?)?.handle)
    }

    ["cuMemPoolCreate", 11020, Init]
    fn cuMemPoolCreate(pool: Out<u64>, props: In<PoolProps>) |_call| {
        pool.set(0)?;
        pool.set(Pool::create(&props.get()?)?.handle)
    }

    ["cuMemPoolDestroy", 11020, Init]
    fn cuMemPoolDestroy(pool: u64) |_call| {
        Pool::destroy(pool)
    }

    ["cuMemPoolTrimTo", 11020, Init]
    fn cuMemPoolTrimTo(pool: u64, _keep: usize) |_call| {
        objects::pool(pool).map(drop)
    }

    ["cuMemPoolSetAccess", 11020, Init]
    fn cuMemPoolSetAccess(pool: u64, access: In<AccessDesc>, count: usize) |_call| {
        objects::pool(pool)?.set_access(&access.list(count)?)
    }

    ["cuMemPoolGetAccess", 11020, Init]
    fn cuMemPoolGetAccess(flags: Out<u32>, pool: u64, at: In<Location>) |_call| {
        let at = at.get()?;
        if at.kind != location::DEVICE {
            return Err(Status::INVALID_VALUE);
        }
        flags.set(objects::pool(pool)?.access(ordinal(at.id)?))
    }

    ["cuMemPoolGetAttribute", 11020, Init]
    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u64>) |_call| {
        let found = objects::pool(pool)?.attribute(attribute)?;
        // The first three are ints.
        if attribute <= 3 { value.cast::<i32>().set(found as i32) } else { value.set(found) }
    }

    ["cuMemPoolSetAttribute", 11020, Init]
    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u32>) |_call| {
        let value = if attribute <= 3 {
            u64::from(value.get()?)
        } else {
            value.cast::<u64>().get()?
        };
        objects::pool(pool)?.set_attribute(attribute, value)
    }

    ["cuMemAllocAsync", 11020, Context]
    fn cuMemAllocAsync(address: Out<u64>, len: usize, stream: u64) |call| {
        let context = call.context()?;
        objects::stream(stream, context)?;
        address.set(pool::current(context)?.allocate(len as u64)?)
    }

    ["cuMemAllocFromPoolAsync", 11020, Context]
    fn cuMemAllocFromPoolAsync(address: Out<u64>, len: usize, pool: u64, stream: u64) |call| {
        objects::stream(stream, call.context()?)?;
        address.set(objects::pool(pool)?.allocate(len as u64)?)
    }

    ["cuMemFreeAsync", 11020, Context]
    fn cuMemFreeAsync(address: u64, stream: u64) |call| {
        let stream = objects::stream(stream, call.context()?)?;
        {
            let memory = driver().memory.lock();
            match memory.allocations.get(&address).map(|allocation| &allocation.kind) {
                Some(Kind::Pooled(_)) => {}
                _ => return Err(Status::INVALID_VALUE),
            }
        }
        stream.push(Op::Free(address)).map(|_| ())
    }

    ["cuMemPoolExportToShareableHandle", 11020, Init]
    fn cuMemPoolExportToShareableHandle(out: Out<u8>, pool: u64, kind: u32, flags: u64) |_call| {
        let pool = objects::pool(pool)?;
        if flags != 0 || !pool.allows(kind) {
            return Err(Status::INVALID_VALUE);
        }
        match kind {
            handle_type::POSIX_FD => {
                let fd = pool.backing.duplicate().map_err(|_| Status::OPERATING_SYSTEM)?;
                out.cast::<i32>().set(fd.into_raw_fd())
            }
            handle_type::FABRIC => {
                let token = Token::new(Of::FabricPool, &pool.backing, 0, pool.backing.len(), pool.device);
                out.cast().set(token.bytes())
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    // A descriptor comes as the value of the pointer.
    ["cuMemPoolImportFromShareableHandle", 11020, Init]
    fn cuMemPoolImportFromShareableHandle(pool: Out<u64>, os_handle: In<u8>, kind: u32, flags: u64) |_call| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let fd = shared(&os_handle, kind, Of::FabricPool)?;
        pool.set(Pool::import(fd, kind)?.handle)
    }

    ["cuMemPoolExportPointer", 11020, Init]
    fn cuMemPoolExportPointer(out: Out<Opaque>, address: u64) |_call| {
        let memory = driver().memory.lock();
        let allocation = memory.allocation(address).ok_or(Status::INVALID_VALUE)?;
        match &allocation.kind {
            Kind::Pooled(pool) if pool.handle_types != handle_type::NONE => {}
            _ => return Err(Status::INVALID_VALUE),
        }
        let token = Token::new(
            Of::PoolPointer,
            &allocation.backing,
            allocation.offset,
            allocation.len,
            allocation.device,
        );
        out.set(token.bytes())
    }

    ["cuMemPoolImportPointer", 11020, Init]
    fn cuMemPoolImportPointer(address: Out<u64>, pool: u64, data: In<Opaque>) |_call| {
        let token = Token::parse(&data.get()?.0, Of::PoolPointer).map_err(|_| Status::INVALID_VALUE)?;
        address.set(objects::pool(pool)?.import_pointer(&token)?)
    }
}
