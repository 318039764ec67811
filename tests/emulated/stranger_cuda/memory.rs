//! What addresses are: kinds, ranges, numbers, and what the host may not do with them.

use super::{
    api::*,
    second::{self, Second},
};

const MIB: usize = 1 << 20;

#[test]
fn the_host_cannot_touch_device_memory() {
    let _ctx = Ctx::new(2);
    let address = alloc(4096);
    if second::plays("toucher") {
        second::say("touching");
        peek(address);
        second::say("went on");
        return;
    }
    assert_eq!(write_from(address), Some(libc::EFAULT));
    assert_eq!(vm_read(address), Some(libc::EFAULT));
    let mut second = Second::start(
        "memory::the_host_cannot_touch_device_memory",
        "toucher",
        &[],
    );
    assert_eq!(second.hear(), "touching");
    assert_eq!(signal(second.end()), Some(libc::SIGSEGV));
}

#[test]
fn small_allocations_share_a_room_and_keep_their_ranges() {
    let _ctx = Ctx::new(2);
    let (first, second) = (alloc(1000), alloc(24));
    assert_eq!(second - first, 1024);
    let (mut base, mut len) = (0, 0);
    ok(cuMemGetAddressRange_v2(&mut base, &mut len, first + 999));
    assert_eq!((base, len), (first, 1000));
    assert_eq!(
        cuMemGetAddressRange_v2(&mut base, &mut len, first + 1000),
        500
    );
    assert_ne!(attribute(7, first), attribute(7, second));
    assert_eq!(cuMemFree_v2(first + 1), 1);
    ok(cuMemFree_v2(first));
    assert_eq!(cuMemFree_v2(first), 1, "twice");
    assert_eq!(attribute(2, first), None, "freed memory is unknown");
    assert_eq!(cuMemcpyHtoD_v2(first, base, 8), 1);
    ok(cuMemFree_v2(second));
}

/// The decision table: kind, managed, ordinal, context, range, pool, legacy IPC.
#[test]
fn every_kind_of_address_is_known() {
    let ctx = Ctx::new(3);
    let device = alloc(3 * MIB);
    assert_eq!(attribute(2, device + 5), Some(2));
    assert_eq!(attribute(1, device + 5), Some(ctx.0));
    assert_eq!(attribute(8, device), Some(0));
    assert_eq!(attribute(9, device), Some(3));
    assert_eq!(attribute(10, device), Some(1));
    assert_eq!(attribute(11, device + 5), Some(device));
    assert_eq!(attribute(12, device), Some(3 * MIB as u64));
    assert_eq!(attribute(4, device), None);

    let host = pinned(4096);
    assert_eq!(attribute(2, host + 1), Some(1));
    assert_eq!(attribute(4, host + 1), Some(host + 1));
    bytes(host, 4096).fill(3);

    let mut managed = 0;
    ok(cuMemAllocManaged(&mut managed, 100, 1));
    assert_eq!(
        (attribute(2, managed), attribute(8, managed)),
        (Some(2), Some(1))
    );
    bytes(managed, 100).fill(7);
    let mut back = vec![0_u8; 100];
    ok(cuMemcpyDtoH_v2(
        back.as_mut_ptr().expose_provenance() as u64,
        managed,
        100,
    ));
    assert_eq!(back, vec![7; 100]);

    let mut pooled = 0;
    ok(cuMemAllocAsync(&mut pooled, 5000, 0));
    assert_eq!(
        (attribute(2, pooled), attribute(1, pooled)),
        (Some(2), Some(0))
    );
    assert_ne!(attribute(17, pooled), Some(0));
    assert_eq!(attribute(10, pooled), Some(0));

    let heap = [0_u8; 64];
    let heap = heap.as_ptr().expose_provenance() as u64;
    assert_eq!(attribute(2, heap), None);
    let (mut kind, mut ordinal) = (9_u32, 9_i32);
    let values = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
    ok(cuPointerGetAttributes(
        2,
        [2, 9].as_ptr(),
        values.as_ptr(),
        heap,
    ));
    assert_eq!((kind, ordinal), (0, -2), "unknown, with success");
    assert_eq!(
        cuPointerGetAttributes(2, [2, 77].as_ptr(), values.as_ptr(), heap),
        1
    );
}

#[test]
fn host_memory_is_registered_at_exact_bytes() {
    let _ctx = Ctx::new(4);
    let pages = map_pages(8192);
    ok(cuMemHostRegister_v2(pages + 100, 1000, 1));
    assert_eq!(cuMemHostRegister_v2(pages + 1099, 10, 1), 712);
    assert_eq!(cuMemHostRegister_v2(pages, 101, 1), 712);
    ok(cuMemHostRegister_v2(pages + 1100, 10, 1));
    assert_eq!(attribute(2, pages + 99), None);
    assert_eq!(attribute(2, pages + 100), Some(1));
    let mut device = 0;
    ok(cuMemHostGetDevicePointer_v2(&mut device, pages + 104, 0));
    assert_eq!(device, pages + 104);
    assert_eq!(cuMemHostUnregister(pages), 713, "outside");
    assert_eq!(cuMemHostUnregister(pages + 600), 1, "inside");
    assert_eq!(cuMemFreeHost(pages + 100), 1);
    ok(cuMemHostUnregister(pages + 100));
    ok(cuMemHostUnregister(pages + 1100));
    assert_eq!(cuMemHostUnregister(pages + 100), 713);
    assert_eq!(cuMemHostRegister_v2(pages, 0, 1), 1);
    assert_eq!(cuMemHostRegister_v2(alloc(8), 8, 1), 1);
    // No process has memory at the lowest addresses.
    assert_eq!(cuMemHostRegister_v2(4096, 4096, 1), 1);
}

#[test]
fn a_dma_buf_stands_for_whole_pages() {
    let _ctx = Ctx::new(4);
    let address = alloc(4 * MIB);
    control(&format!("fill {address} {} 9", 4 * MIB));
    let mut fd = -1;
    assert_eq!(
        cuMemGetHandleForAddressRange(&mut fd, address + 1, 4096, 1, 0),
        1
    );
    assert_eq!(
        cuMemGetHandleForAddressRange(&mut fd, address, 4095, 1, 0),
        1
    );
    assert_eq!(
        cuMemGetHandleForAddressRange(&mut fd, address, 8 * MIB, 1, 0),
        1
    );
    ok(cuMemGetHandleForAddressRange(
        &mut fd,
        address + 8192,
        4096,
        1,
        0,
    ));
    assert_eq!(position_and_size(fd), (8192, 4 * MIB as i64));
    let mut there = [0; 16];
    read_at(fd, 8192, &mut there);
    let wanted: Vec<u8> = (8192..8208)
        .map(|index: u64| ((9 + index).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect();
    assert_eq!(there[..], wanted);
    close(fd);
}

#[test]
fn memory_runs_out_and_comes_back() {
    let _ctx = Ctx::new(5);
    let mut address = 0;
    assert_eq!(cuMemAlloc_v2(&mut address, 17 << 30), 2);
    assert_eq!(cuMemAlloc_v2(&mut address, 0), 1);
    let half = alloc(9 << 30);
    assert_eq!(cuMemAlloc_v2(&mut address, 9 << 30), 2);
    ok(cuMemFree_v2(half));
    ok(cuMemFree_v2(alloc(9 << 30)));
}

fn prop(types: u32, device: i32) -> Prop {
    Prop {
        kind: 1,
        handle_types: types,
        location: [1, device],
        win32: 0,
        flags: 0,
    }
}

#[test]
fn mapped_memory_needs_access_and_may_have_parts() {
    let ctx = Ctx::new(5);
    let block = 2 * MIB;
    let (mut handles, mut range) = ([0; 2], 0);
    assert_eq!(cuMemCreate(&mut handles[0], 4096, &prop(1, 5), 0), 1);
    for handle in &mut handles {
        ok(cuMemCreate(handle, block, &prop(1, 5), 0));
    }
    assert_eq!(cuMemAddressReserve(&mut range, 4096, 0, 0, 0), 1);
    ok(cuMemAddressReserve(&mut range, 2 * block, 0, 0, 0));
    assert_eq!(attribute(2, range), None, "nothing is mapped");
    ok(cuMemMap(range, block, 0, handles[0], 0));
    assert_eq!(cuMemMap(range, block, 0, handles[1], 0), 208);
    ok(cuMemMap(range + block as u64, block, 0, handles[1], 0));
    let access = Access {
        location: [1, 5],
        flags: 3,
    };
    ok(cuMemSetAccess(range, 2 * block, &access, 1));
    let mut again = 0;
    ok(cuMemRetainAllocationHandle(&mut again, range + 77));
    assert_eq!(again, handles[0]);
    ok(cuMemRelease(again));
    for handle in handles {
        ok(cuMemRelease(handle));
    }
    // Across the two parts.
    let middle = range + block as u64 - 500;
    let source: Vec<u8> = (0..1000_u32).map(|byte| byte as u8).collect();
    let mut back = vec![0_u8; 1000];
    ok(cuMemcpyHtoD_v2(
        middle,
        source.as_ptr().expose_provenance() as u64,
        1000,
    ));
    ok(cuMemcpyDtoH_v2(
        back.as_mut_ptr().expose_provenance() as u64,
        middle,
        1000,
    ));
    assert_eq!(source, back);
    assert_eq!(cuMemUnmap(range + 4096, block), 1);
    assert_eq!(cuMemAddressFree(range, 2 * block), 1, "mapped still");
    ok(cuMemUnmap(range + block as u64, block));
    assert_eq!(
        cuMemcpyHtoD_v2(middle, source.as_ptr().expose_provenance() as u64, 1000),
        1
    );
    // Without access a copy breaks the context.
    ok(cuMemMap(
        range + block as u64,
        block,
        0,
        {
            let mut handle = 0;
            ok(cuMemCreate(&mut handle, block, &prop(1, 5), 0));
            handle
        },
        0,
    ));
    let no_access = range + block as u64;
    assert_eq!(
        cuMemcpyDtoH_v2(back.as_mut_ptr().expose_provenance() as u64, no_access, 8),
        700
    );
    assert_eq!(cuCtxSynchronize(), 700);
    drop(ctx);
    ok(cuMemUnmap(range, 2 * block));
    ok(cuMemAddressFree(range, 2 * block));
}

#[test]
fn a_pool_reuses_addresses_with_new_numbers() {
    let _ctx = Ctx::new(6);
    let stream = stream();
    let mut address = 0;
    ok(cuMemAllocAsync(&mut address, 5000, stream));
    let id = attribute(7, address);
    assert_eq!(cuMemFreeAsync(address + 1, stream), 1);
    ok(cuMemFreeAsync(address, stream));
    ok(cuStreamSynchronize(stream));
    assert_eq!(attribute(7, address), None);
    let mut next = 0;
    ok(cuMemAllocAsync(&mut next, 5000, stream));
    assert_eq!(next, address);
    assert_ne!(attribute(7, next), id);
    let mut pool = 0;
    let props = PoolProps {
        kind: 1,
        handle_types: 8,
        location: [1, 6],
        win32: 0,
        max: 0,
        reserved: [0; 56],
    };
    assert_eq!(cuMemPoolCreate(&mut pool, &props), 801, "no fabric here");
}
