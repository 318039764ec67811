//! Without a library, with a wrong one, and without a device.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use crate::{
    driver::{
        rdmacm::RdmaCm,
        verbs::{VARIABLE, Verbs},
    },
    error::ErrorKind,
    fake::Fakes,
    support::table,
};

fn refusal(path: &Path) -> String {
    let error = Verbs::load(Some(path)).expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

/// A library with every required function, all of which answer 0, but for `own`, which has some of them.
fn stub(fakes: &Fakes, name: &str, own: &str) -> PathBuf {
    let mut source = String::new();
    let functions = table::functions("verbs").into_iter();
    for function in functions.filter(|function| function.required) {
        let function = function.name;
        if !own.contains(&format!("fn {function}(")) {
            writeln!(
                source,
                "#[unsafe(no_mangle)] pub extern \"C\" fn {function}() -> usize {{ 0 }}"
            )
            .expect("a string takes it");
        }
    }
    source.push_str("unsafe extern \"C\" { fn __errno_location() -> *mut i32; }");
    source.push_str(own);
    fakes.compile(name, &source)
}

#[test]
fn a_missing_library_is_told_in_the_loaders_words() {
    assert_eq!(VARIABLE, "WHARF_LIBIBVERBS");
    assert_eq!(
        refusal(Path::new("/nowhere/libibverbs.so.1")),
        "libibverbs is not here: /nowhere/libibverbs.so.1: cannot open shared object file: No such file or directory"
    );
}

#[test]
fn another_library_is_told_by_what_it_lacks() {
    let text = refusal(Path::new("libm.so.6"));
    assert!(
        text.starts_with(
            "libm.so.6 is no libibverbs that can be used: it has no ibv_get_device_list, "
        ),
        "{text}"
    );
    assert!(
        text.ends_with(" more; rdma-core 28 or newer is needed"),
        "{text}"
    );
}

#[test]
fn an_old_library_is_told_by_what_it_lacks() {
    let fakes = Fakes::new();
    let path = stub(&fakes, "old", "/* fn ibv_reg_mr_iova2( */");
    let text = refusal(&path);
    assert!(
        text.ends_with("it has no ibv_reg_mr_iova2; rdma-core 28 or newer is needed"),
        "{text}"
    );
}

#[test]
fn a_library_without_device_says_why() {
    let fakes = Fakes::new();
    let answers = [
        ("enosys", 38, "the kernel has no InfiniBand support"),
        ("enodev", 19, "the kernel has no InfiniBand support"),
        ("enomem", 12, "ibv_get_device_list on "),
    ];
    for (name, errno, words) in answers {
        let own = format!(
            "#[unsafe(no_mangle)] pub extern \"C\" fn ibv_get_device_list(_: *mut i32) -> usize {{ unsafe {{ *__errno_location() = {errno} }}; 0 }}
             #[unsafe(no_mangle)] pub extern \"C\" fn ibv_open_device() -> usize {{ {errno} }}"
        );
        let verbs = Verbs::load(Some(&stub(&fakes, name, &own))).expect("loads");
        let error = verbs.devices().expect_err("there is none");
        assert!(error.to_string().starts_with(words), "{error}");
        let expected = match errno {
            12 => ErrorKind::Exhausted,
            _ => ErrorKind::Unsupported,
        };
        assert_eq!(error.kind(), expected);
    }
}

#[test]
fn an_empty_list_says_so() {
    let fakes = Fakes::new();
    let own = "static LIST: [usize; 1] = [0];
        #[unsafe(no_mangle)] pub extern \"C\" fn ibv_get_device_list(n: *mut i32) -> usize { unsafe { *n = 0 }; LIST.as_ptr() as usize }";
    let verbs = Verbs::load(Some(&stub(&fakes, "empty", own))).expect("loads");
    let error = verbs.devices().expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .to_string()
            .starts_with("there is no InfiniBand or RoCE device"),
        "{error}"
    );
}

#[test]
fn a_device_without_rights_says_which() {
    let fakes = Fakes::new();
    let own = "#[repr(C)] struct Device([u8; 664]);
        static DEVICE: Device = Device([0; 664]);
        struct List([*const Device; 2]); unsafe impl Sync for List {}
        static LIST: List = List([&DEVICE, std::ptr::null()]);
        #[unsafe(no_mangle)] pub extern \"C\" fn ibv_get_device_list(n: *mut i32) -> usize { unsafe { *n = 1 }; &LIST as *const List as usize }
        #[unsafe(no_mangle)] pub extern \"C\" fn ibv_get_device_name(_: usize) -> *const u8 { b\"shut0\\0\".as_ptr() }
        #[unsafe(no_mangle)] pub extern \"C\" fn ibv_open_device(_: usize) -> usize { unsafe { *__errno_location() = 13 }; 0 }";
    let verbs = Verbs::load(Some(&stub(&fakes, "shut", own))).expect("loads");
    let devices = verbs.devices().expect("one");
    assert_eq!((devices.len(), devices[0].name()), (1, "shut0"));
    let error = devices[0].open().expect_err("no rights");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(
        error.to_string().contains("ibv_open_device on shut0"),
        "{error}"
    );
    assert!(error.to_string().contains("/dev/infiniband"), "{error}");
}

/// The real library, as installed, on a machine without devices.
#[test]
#[ignore = "needs the package librdmacm1, and a machine without RDMA devices"]
fn the_real_library_without_a_device_says_so() {
    let verbs = Verbs::load(None).expect("the package libibverbs1");
    let error = verbs.devices().expect_err("no device");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let cm = RdmaCm::load(None, verbs).expect("the package librdmacm1");
    let error = cm.event_channel().expect_err("no device");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn a_missing_connection_manager_is_told() {
    let fakes = Fakes::new();
    let verbs = Verbs::load(Some(&stub(&fakes, "cm", ""))).expect("loads");
    let error = RdmaCm::load(Some(Path::new("/nowhere/librdmacm.so.1")), verbs);
    let error = error.expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().starts_with("librdmacm is not here: "),
        "{error}"
    );
    let error = RdmaCm::load(Some(Path::new("libm.so.6")), verbs);
    let text = error.expect_err("must be refused").to_string();
    assert!(
        text.contains("no librdmacm that can be used: it has no rdma_create_event_channel"),
        "{text}"
    );
}
