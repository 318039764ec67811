//! Initialisation, contexts, threads, versions, names.

use std::ffi::CString;

use super::{
    api::*,
    second::{self, Second},
};

#[test]
fn nothing_works_before_init_or_in_a_fork() {
    if second::plays("uninitialised") {
        let mut number = 0;
        let mut address = 0;
        assert_eq!(cuDriverGetVersion(&mut number), 0);
        assert_eq!(number, 13000);
        assert_eq!(cuDeviceGetCount(&mut number), 3);
        assert_eq!(cuMemAlloc_v2(&mut address, 8), 3);
        ok(cuInit(0));
        assert_eq!(cuInit(1), 1);
        ok(cuDeviceGetCount(&mut number));
        assert_eq!(forked(|| cuDeviceGetCount(&mut 0)), 3);
        second::say("done");
        return;
    }
    let mut second = Second::start(
        "state::nothing_works_before_init_or_in_a_fork",
        "uninitialised",
        &[],
    );
    assert_eq!(second.hear(), "done");
    assert!(second.end().success());
}

#[test]
fn no_device_is_an_error_of_init() {
    if second::plays("none") {
        assert_eq!(cuInit(0), 100);
        second::say("done");
        return;
    }
    let mut second = Second::start(
        "state::no_device_is_an_error_of_init",
        "none",
        &[("CUDA_VISIBLE_DEVICES", "")],
    );
    assert_eq!(second.hear(), "done");
}

#[test]
fn visible_devices_are_chosen_and_ordered() {
    if second::plays("some") {
        ok(cuInit(0));
        let mut count = 0;
        ok(cuDeviceGetCount(&mut count));
        let mut uuid = [0; 16];
        ok(cuDeviceGetUuid_v2(&mut uuid, 0));
        second::say(&format!("{count} {}", uuid[15]));
        return;
    }
    let mut second = Second::start(
        "state::visible_devices_are_chosen_and_ordered",
        "some",
        &[("CUDA_VISIBLE_DEVICES", "3,1,99,0")],
    );
    assert_eq!(second.hear(), "2 3");
}

#[test]
fn a_context_belongs_to_a_thread() {
    let ctx = Ctx::new(0);
    let address = alloc(64);
    std::thread::spawn(move || {
        let mut other = 0;
        assert_eq!(cuMemAlloc_v2(&mut other, 64), 201);
        assert_eq!(cuMemFree_v2(address), 201);
        assert_eq!(cuCtxPopCurrent_v2(std::ptr::null_mut()), 201);
        assert_eq!(cuCtxPushCurrent_v2(12345), 201);
        // What it is can be asked without a context.
        assert_eq!(attribute(9, address), Some(0));
        ok(cuCtxPushCurrent_v2(ctx.0));
        ok(cuMemFree_v2(address));
        ok(cuCtxPopCurrent_v2(&mut other));
        assert_eq!(other, ctx.0);
        ok(cuCtxPushCurrent_v2(ctx.0));
        drop(ctx);
    })
    .join()
    .expect("no panic");
    // It was destroyed elsewhere, and is on this thread's stack still.
    let mut other = 0;
    assert_eq!(cuMemAlloc_v2(&mut other, 64), 709);
    ok(cuCtxPopCurrent_v2(std::ptr::null_mut()));
}

#[test]
fn primary_contexts_are_counted_and_ids_never_come_again() {
    ok(cuInit(0));
    let device = 1;
    let state = || {
        let (mut flags, mut active) = (0, 0);
        ok(cuDevicePrimaryCtxGetState(device, &mut flags, &mut active));
        active
    };
    assert_eq!(state(), 0);
    let (mut first, mut second) = (0, 0);
    ok(cuDevicePrimaryCtxRetain(&mut first, device));
    ok(cuDevicePrimaryCtxRetain(&mut second, device));
    assert_eq!(first, second);
    let mut id = 0;
    ok(cuCtxGetId(first, &mut id));
    ok(cuDevicePrimaryCtxRelease_v2(device));
    assert_eq!(state(), 1);
    ok(cuDevicePrimaryCtxRelease_v2(device));
    assert_eq!(state(), 0);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(device), 201);
    ok(cuDevicePrimaryCtxRetain(&mut second, device));
    let mut next = 0;
    ok(cuCtxGetId(second, &mut next));
    assert_eq!(
        first, second,
        "the handle is used again, as the driver does"
    );
    assert!(next > id);
    assert_eq!(cuDevicePrimaryCtxRetain(&mut second, 77), 101);
}

#[test]
fn functions_come_with_their_versions() {
    let look = |name: &str, version| {
        let name = CString::new(name).expect("no zero bytes");
        let mut address = std::ptr::null_mut();
        let mut status = 9;
        let code = cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status);
        (code, address, status)
    };
    assert_eq!(
        look("cuMemAlloc", 12000),
        (0, symbol("cuMemAlloc_v2"), 0),
        "the base name finds the newest"
    );
    // Success, with nothing: as the driver of CUDA 13.0 answers.
    assert_eq!(look("cuMemAlloc_v2", 12000), (0, std::ptr::null_mut(), 1));
    assert_eq!(look("cuNothing", 12000), (0, std::ptr::null_mut(), 1));
    assert_eq!(
        look("cuMemcpyBatchAsync", 12000),
        (0, std::ptr::null_mut(), 2)
    );
    assert_eq!(
        look("cuMemcpyBatchAsync", 12080).1,
        symbol("cuMemcpyBatchAsync")
    );
    assert_eq!(
        look("cuMemcpyBatchAsync", 13000).1,
        symbol("cuMemcpyBatchAsync_v2")
    );
    assert_eq!(look("cuMemAlloc", 13010).0, 1, "newer than the driver");
    let mut text = std::ptr::null();
    assert_eq!(cuGetErrorName(700, &mut text), 0);
    assert!(!text.is_null());
    assert_eq!(cuGetErrorName(12345, &mut text), 1);
}

#[test]
fn an_old_driver_lacks_what_came_later() {
    if second::plays("old") {
        ok(cuInit(0));
        let _ctx = Ctx::new(0);
        let mut version = 0;
        ok(cuDriverGetVersion(&mut version));
        assert_eq!(version, 11060);
        let mut fd = 0;
        let address = alloc(2 << 20);
        assert_eq!(
            cuMemGetHandleForAddressRange(&mut fd, address, 2 << 20, 1, 0),
            801
        );
        let mut value = 1;
        ok(cuDeviceGetAttribute(&mut value, 124, 0));
        assert_eq!(value, 0);
        second::say("done");
        return;
    }
    let mut second = Second::start(
        "state::an_old_driver_lacks_what_came_later",
        "old",
        &[("EMULATED_CUDA_VERSION", "11060")],
    );
    assert_eq!(second.hear(), "done");
}

#[test]
fn a_forgotten_suffix_ends_the_process() {
    if second::plays("trapped") {
        let mut short = 0;
        let _ = cuMemAlloc(&raw mut short, 64);
        second::say("went on");
        return;
    }
    let second = Second::start("state::a_forgotten_suffix_ends_the_process", "trapped", &[]);
    assert_eq!(signal(second.end()), Some(libc::SIGABRT));
}

#[test]
fn a_copy_of_the_library_can_lack_names() {
    use crate::support::emulated;
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["cuCtxGetId", "cuGetProcAddress_v2"];
    let lacking = emulated::without(&emulated::cuda(), &names, folder.path()).expect("a copy");
    for name in names {
        assert!(!has(&lacking, name), "{name} is there");
    }
    assert!(has(&lacking, "cuInit"));
    assert!(has(&lacking, "cuGetProcAddress"));
    emulated::without(&emulated::cuda(), &["cuNothing"], folder.path()).expect_err("no such name");
}
