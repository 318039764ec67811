//! Which library is taken, and what is said of one that is not there or not right.

use std::path::Path;

use crate::{
    alone::{child_with, is_child},
    driver::hlthunk::HlThunk,
    error::ErrorKind,
    fake::Fakes,
    support::{emulated, table, this_test},
};

fn refusal(path: &Path) -> String {
    let error = HlThunk::load(Some(path)).expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

/// What the library says of itself, as it is shown.
fn version(thunk: &HlThunk) -> String {
    let text = format!("{thunk:?}");
    let (_, rest) = text.split_once("version: \"").expect("a version");
    rest.split('"').next().expect("its end").to_owned()
}

/// The emulated library without some names.
fn lacking(names: &[&str]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = emulated::without(&emulated::hlthunk(), names, folder.path()).expect("a copy");
    (folder, path)
}

#[test]
fn a_missing_library_is_told_in_the_loaders_words() {
    assert_eq!(
        refusal(Path::new("/nowhere/libhl-thunk.so")),
        "libhl-thunk is not here: /nowhere/libhl-thunk.so: cannot open shared object file: No such file or directory"
    );
}

#[test]
fn another_library_is_refused() {
    let text = refusal(Path::new("libm.so.6"));
    let start = "libm.so.6 is no libhl-thunk of 2023 or newer: it has no hlthunk_get_version, ";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn a_missing_function_is_named() {
    let (_folder, path) = lacking(&["hlthunk_wait_for_cs"]);
    let text = refusal(&path);
    assert!(text.ends_with("it has no hlthunk_wait_for_cs"), "{text}");
}

#[test]
fn the_interface_of_2021_is_refused_with_its_version() {
    // A call of the library of then would take other arguments: it must not come to one.
    let source = r#"
        #[unsafe(no_mangle)] pub extern "C" fn hlthunk_get_version() -> *mut u8 {
            Box::leak(Box::new(*b"0.15.0-c46ca55\0")).as_mut_ptr()
        }
        #[unsafe(no_mangle)] pub extern "C" fn hlthunk_free(_: *mut u8) {}
        #[unsafe(no_mangle)] pub extern "C" fn hlthunk_open() -> i32 { std::process::abort() }
        #[unsafe(no_mangle)] pub extern "C" fn hlthunk_device_memory_alloc() -> u64 { std::process::abort() }
    "#;
    let fakes = Fakes::new();
    let text = refusal(&fakes.compile("old", source));
    assert!(
        text.contains("with the interface of 2021 (version 0.15.0-c46ca55, "),
        "{text}"
    );
    assert!(text.contains("2023 (1.10) or newer"), "{text}");
    // What is complete but for the mark of the generation is of the older one too.
    let (_folder, path) = lacking(&["hlthunk_device_mapped_memory_export_dmabuf_fd"]);
    let text = refusal(&path);
    assert!(text.contains("2021 (version 1.19.0-emulated, "), "{text}");
}

/// Every required function answers 0, and the version is no text.
fn stub(fakes: &Fakes) -> std::path::PathBuf {
    let mut source = String::new();
    let generation = "hlthunk_device_mapped_memory_export_dmabuf_fd";
    for table::Function { name, required, .. } in table::functions("hlthunk") {
        if required || name == generation {
            source.push_str(&format!(
                "#[unsafe(no_mangle)] pub extern \"C\" fn {name}() -> u64 {{ 0 }}\n"
            ));
        }
    }
    fakes.compile("stub", &source)
}

#[test]
fn a_stub_shows_no_cards_and_no_harm() {
    let fakes = Fakes::new();
    let thunk = HlThunk::load(Some(&stub(&fakes))).expect("it has all that is required");
    assert_eq!(version(thunk), "unknown");
    for card in thunk.discover() {
        let error = card.expect_err("a card without a place");
        assert!(error.to_string().contains("for a PCI place"), "{error}");
    }
}

#[test]
fn the_real_names_are_there_and_no_invented_ones() {
    let thunk = HlThunk::load(Some(&emulated::hlthunk())).expect("loads");
    assert_eq!(version(thunk), "1.19.0-emulated");
    let bytes = std::fs::read(emulated::hlthunk()).expect("readable");
    for function in table::functions("hlthunk") {
        assert!(!function.name.starts_with("hlthunk_dma_"));
        let name = format!("\0{}\0", function.name).into_bytes();
        let there = bytes.windows(name.len()).any(|window| window == name);
        assert!(there, "the emulated library lacks {function:?}");
    }
    let holds = |name: &[u8]| bytes.windows(name.len()).any(|window| window == name);
    // Their absence is normal: no library has them.
    assert!(holds(b"\0hlthunk_command_submission\0"));
    assert!(!holds(b"hlthunk_dma_") && !holds(b"hlthunk_ipc_"));
}

#[test]
fn one_file_is_one_library() {
    let fakes = Fakes::new();
    let path = stub(&fakes);
    let first = HlThunk::load(Some(&path)).expect("loads");
    let other = path.with_file_name("other.so");
    std::os::unix::fs::symlink(&path, &other).expect("a link");
    for path in [&path, &other] {
        assert!(std::ptr::eq(
            first,
            HlThunk::load(Some(path)).expect("loads")
        ));
    }
}

#[test]
fn a_version_that_says_nothing_is_no_reason_to_refuse() {
    if is_child() {
        let thunk = HlThunk::load(Some(&emulated::hlthunk())).expect("loads");
        let told = std::env::var("EMULATED_HLTHUNK_VERSION").expect("set");
        let wanted = if told.is_empty() { "unknown" } else { &told };
        assert_eq!(version(thunk), wanted);
        return;
    }
    for version in ["", "next year's", "99.0"] {
        child_with(this_test!(), &[("EMULATED_HLTHUNK_VERSION", version)]);
    }
}

#[test]
fn the_variable_names_the_library() {
    if is_child() {
        let error = HlThunk::load(None).expect_err("must be refused");
        assert!(
            error.to_string().contains("/named/by/variable.so: "),
            "{error}"
        );
        let given = refusal(Path::new("/given/by/program.so"));
        assert!(
            given.contains("/given/") && !given.contains("/named/"),
            "{given}"
        );
        return;
    }
    child_with(
        this_test!(),
        &[("WHARF_LIBHLTHUNK", "/named/by/variable.so")],
    );
}

#[test]
#[ignore = "needs a machine without Gaudi's libraries"]
fn without_a_library_both_places_are_told() {
    if !is_child() {
        return child_with(this_test!(), &[("WHARF_LIBHLTHUNK", "")]);
    }
    let error = HlThunk::load(None).expect_err("no library");
    let text = error.to_string();
    assert!(
        text.starts_with("libhl-thunk is not here: libhl-thunk.so: "),
        "{text}"
    );
    assert!(
        text.contains("; /usr/lib/habanalabs/libhl-thunk.so: "),
        "{text}"
    );
}
