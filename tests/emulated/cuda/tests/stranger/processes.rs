//! Memory and events of another process.

use std::ffi::c_void;

use crate::{
    api::*,
    second::{self, Second, hex, unhex},
};

const LEN: usize = 3 << 20;

fn exporter(test: &str, variables: &[(&str, &str)]) -> Second {
    Second::start(test, "exporter", variables)
}

/// Opens, writes and reads memory that the second process exported; the ways of fetching it.
fn legacy(test: &str, variables: &[(&str, &str)]) {
    if second::plays("exporter") {
        let _ctx = Ctx::new(1);
        let (_before, small, large) = (alloc(100), alloc(1000), alloc(LEN));
        let mut handle = Opaque([0; 64]);
        ok(cuIpcGetMemHandle(&mut handle, small));
        control(&format!("fill {small} 1000 1"));
        second::say(&hex(&handle.0));
        ok(cuIpcGetMemHandle(&mut handle, large + 5000));
        control(&format!("fill {large} {LEN} 2"));
        second::say(&hex(&handle.0));
        // Its own cannot be opened.
        let mut address = 0;
        assert_eq!(cuIpcOpenMemHandle_v2(&mut address, handle, 1), 201);
        assert_eq!(second::hear(), "written");
        assert_eq!(control(&format!("compare {large} {LEN} 3")), "same");
        ok(cuMemFree_v2(large));
        second::say("freed");
        second::hear();
        return;
    }
    let mut second = exporter(test, variables);
    let (small, large) = (Opaque(unhex(&second.hear())), Opaque(unhex(&second.hear())));
    let ctx = Ctx::new(1);
    let (mut at_small, mut at_large, mut again) = (0, 0, 0);
    assert_eq!(
        cuIpcOpenMemHandle_v2(&mut at_small, small, 0),
        1,
        "flags must be 1"
    );
    ok(cuIpcOpenMemHandle_v2(&mut at_small, small, 1));
    ok(cuIpcOpenMemHandle_v2(&mut at_large, large, 1));
    ok(cuIpcOpenMemHandle_v2(&mut again, large, 1));
    assert_eq!(at_large, again, "one place in one context");
    assert_eq!(control(&format!("compare {at_small} 1000 1")), "same");
    assert_eq!(control(&format!("compare {at_large} {LEN} 2")), "same");
    let (mut base, mut len) = (0, 0);
    ok(cuMemGetAddressRange_v2(&mut base, &mut len, at_small + 5));
    assert_eq!((base, len), (at_small, 1000));
    assert_eq!(cuMemFree_v2(at_large), 1, "it is not ours to free");
    assert_eq!(vm_read(at_large), Some(libc::EFAULT));
    {
        let _other = Ctx::new(1);
        assert_eq!(
            cuIpcOpenMemHandle_v2(&mut again, large, 1),
            208,
            "another context"
        );
    }
    control(&format!("fill {at_large} {LEN} 3"));
    second.say("written");
    assert_eq!(second.hear(), "freed");
    ok(cuIpcCloseMemHandle(at_large));
    assert_eq!(attribute(2, at_large), Some(2), "open once more");
    ok(cuIpcCloseMemHandle(at_large));
    assert_eq!(attribute(2, at_large), None);
    assert_eq!(cuIpcCloseMemHandle(at_large), 1);
    assert_eq!(cuIpcOpenMemHandle_v2(&mut again, large, 1), 1, "freed");
    ok(cuIpcCloseMemHandle(at_small));
    let mut broken = small;
    broken.0[3] ^= 1;
    assert_eq!(cuIpcOpenMemHandle_v2(&mut again, broken, 1), 400);
    second.kill();
    assert_eq!(
        cuIpcOpenMemHandle_v2(&mut again, small, 1),
        1,
        "its process ended"
    );
    drop(ctx);
}

#[test]
fn legacy_memory_by_pidfd_or_socket() {
    legacy("processes::legacy_memory_by_pidfd_or_socket", &[]);
}

/// The same with the descriptor asked for at the socket, in a process of its own for the setting.
#[test]
fn legacy_memory_by_socket_alone() {
    const TEST: &str = "processes::legacy_memory_by_socket_alone";
    if second::plays("importer") {
        legacy(TEST, &[]);
        second::say("done");
        return;
    }
    if second::plays("exporter") {
        return legacy(TEST, &[]);
    }
    let mut second = Second::start(TEST, "importer", &[("EMULATED_CUDA_FETCH", "2")]);
    assert_eq!(second.hear(), "done");
}

#[test]
fn a_descriptor_stands_for_physical_memory() {
    let fabric = [("EMULATED_CUDA_FABRIC", "1")];
    const TEST: &str = "processes::a_descriptor_stands_for_physical_memory";
    let len = 4 << 20;
    let mut prop = Prop {
        kind: 1,
        handle_types: 1 | 8,
        location: [1, 0],
        win32: 0,
        flags: 0,
    };
    let access = Access {
        location: [1, 0],
        flags: 3,
    };
    if second::plays("exporter") {
        let _ctx = Ctx::new(0);
        let (mut handle, mut address, mut fd) = (0, 0, 0_i32);
        ok(cuMemCreate(&mut handle, len, &prop, 0));
        ok(cuMemAddressReserve(&mut address, len, 0, 0, 0));
        ok(cuMemMap(address, len, 0, handle, 0));
        ok(cuMemSetAccess(address, len, &access, 1));
        control(&format!("fill {address} {len} 4"));
        ok(cuMemExportToShareableHandle(
            (&raw mut fd).cast(),
            handle,
            1,
            0,
        ));
        let mut token = [0_u8; 64];
        ok(cuMemExportToShareableHandle(
            token.as_mut_ptr().cast(),
            handle,
            8,
            0,
        ));
        prop.handle_types = 0;
        ok(cuMemCreate(&mut handle, len, &prop, 0));
        assert_eq!(
            cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0),
            1
        );
        second::say(&format!("{} {fd}", std::process::id()));
        second::say(&hex(&token));
        second::hear();
        assert_eq!(control(&format!("compare {address} {len} 5")), "same");
        second::say("seen");
        second::hear();
        return;
    }
    if !second::plays("importer") {
        let mut second = Second::start(TEST, "importer", &fabric);
        assert_eq!(second.hear(), "done");
        return;
    }
    let mut second = exporter(TEST, &fabric);
    let words = second.hear();
    let (pid, fd) = words.split_once(' ').expect("two numbers");
    let mut token = unhex(&second.hear());
    let fd = fetch(
        pid.parse().expect("a pid"),
        fd.parse().expect("a descriptor"),
    );
    let _ctx = Ctx::new(0);
    let mut handle = 0;
    for (os_handle, kind) in [
        (std::ptr::without_provenance::<c_void>(fd as usize), 1),
        (token.as_ptr().cast(), 8),
    ] {
        ok(cuMemImportFromShareableHandle(&mut handle, os_handle, kind));
        let mut address = 0;
        ok(cuMemAddressReserve(&mut address, len, 0, 0, 0));
        ok(cuMemMap(address, len, 0, handle, 0));
        ok(cuMemRelease(handle));
        ok(cuMemSetAccess(address, len, &access, 1));
        if kind == 1 {
            assert_eq!(control(&format!("compare {address} {len} 4")), "same");
            control(&format!("fill {address} {len} 5"));
            second.say("written");
            assert_eq!(second.hear(), "seen");
        } else {
            assert_eq!(control(&format!("compare {address} {len} 5")), "same");
        }
    }
    let no_fd = std::ptr::without_provenance(9999);
    assert_eq!(cuMemImportFromShareableHandle(&mut handle, no_fd, 1), 1);
    // Another cluster's.
    token[56] ^= 1;
    assert_eq!(
        cuMemImportFromShareableHandle(&mut handle, token.as_ptr().cast(), 8),
        800
    );
    second::say("done");
}

#[test]
fn a_pool_crosses_with_its_pointers() {
    const TEST: &str = "processes::a_pool_crosses_with_its_pointers";
    if second::plays("exporter") {
        let _ctx = Ctx::new(1);
        let props = PoolProps {
            kind: 1,
            handle_types: 1,
            location: [1, 1],
            win32: 0,
            max: 64 << 20,
            reserved: [0; 56],
        };
        let (mut pool, mut address, mut fd) = (0, 0, 0_i32);
        ok(cuMemPoolCreate(&mut pool, &props));
        ok(cuMemAllocFromPoolAsync(&mut address, 700, pool, 0));
        ok(cuMemAllocFromPoolAsync(&mut address, LEN, pool, 0));
        control(&format!("fill {address} {LEN} 6"));
        ok(cuMemPoolExportToShareableHandle(
            (&raw mut fd).cast(),
            pool,
            1,
            0,
        ));
        let mut pointer = Opaque([0; 64]);
        ok(cuMemPoolExportPointer(&mut pointer, address));
        second::say(&format!("{} {fd}", std::process::id()));
        second::say(&hex(&pointer.0));
        second::hear();
        return;
    }
    let mut second = exporter(TEST, &[]);
    let words = second.hear();
    let (pid, fd) = words.split_once(' ').expect("two numbers");
    let mut pointer = Opaque(unhex(&second.hear()));
    let fd = fetch(
        pid.parse().expect("a pid"),
        fd.parse().expect("a descriptor"),
    );
    let ctx = Ctx::new(1);
    let (mut pool, mut address) = (0, 0);
    ok(cuMemPoolImportFromShareableHandle(
        &mut pool,
        std::ptr::without_provenance(fd as usize),
        1,
        0,
    ));
    ok(cuMemPoolImportPointer(&mut address, pool, &mut pointer));
    assert_eq!(
        cuMemAllocFromPoolAsync(&mut 0, 64, pool, 0),
        1,
        "an imported pool"
    );
    let access = Access {
        location: [1, 1],
        flags: 3,
    };
    ok(cuMemPoolSetAccess(pool, &access, 1));
    assert_eq!(control(&format!("compare {address} {LEN} 6")), "same");
    ok(cuMemFreeAsync(address, 0));
    ok(cuStreamSynchronize(0));
    ok(cuMemPoolDestroy(pool));
    drop(ctx);
}

#[test]
fn an_event_orders_two_processes() {
    const TEST: &str = "processes::an_event_orders_two_processes";
    if second::plays("exporter") {
        let _ctx = Ctx::new(0);
        let (stream, mut event, device) = (stream(), 0, alloc(4096));
        assert_eq!(cuEventCreate(&mut event, 4), 1, "only without timing");
        ok(cuEventCreate(&mut event, 4 | 2));
        let (mut of_event, mut of_memory) = (Opaque([0; 64]), Opaque([0; 64]));
        ok(cuIpcGetEventHandle(&mut of_event, event));
        ok(cuIpcGetMemHandle(&mut of_memory, device));
        control(&format!("kernel {stream} 300000 fill {device} 4096 8"));
        ok(cuEventRecord(event, stream));
        second::say(&hex(&of_event.0));
        second::say(&hex(&of_memory.0));
        second::hear();
        return;
    }
    let mut second = exporter(TEST, &[]);
    let (of_event, of_memory) = (Opaque(unhex(&second.hear())), Opaque(unhex(&second.hear())));
    let _ctx = Ctx::new(0);
    let (mut event, mut device, stream, host) = (0, 0, stream(), pinned(4096));
    ok(cuIpcOpenEventHandle(&mut event, of_event));
    ok(cuIpcOpenMemHandle_v2(&mut device, of_memory, 1));
    assert_eq!(cuEventQuery(event), 600);
    ok(cuStreamWaitEvent(stream, event, 0));
    ok(cuMemcpyAsync(host, device, 4096, stream));
    ok(cuStreamSynchronize(stream));
    assert_eq!(control(&format!("compare {host} 4096 8")), "same");
    ok(cuEventQuery(event));
}
