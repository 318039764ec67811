//! Synapse: absent, wrong, failing, and the emulated one through the real loader.
//!
//! A process has one device, so every test that acquires one runs in a process of its own.
//!
//! # Safety
//! Copies are between memory that outlives the stream's synchronisation, or that the test means to break. Raw functions are called with the signatures of
//! the public header. A forked child checks and leaves by `_exit`.
#![allow(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    ptr::NonNull,
};

use crate::{
    alone::{child_with, is_child},
    driver::synapse::{
        Device, DeviceAllocation, DeviceType, Direction, Event, HostMapping, MAX_COPY, Status,
        Stream, Synapse,
    },
    error::{Error, ErrorKind, Result},
    support::{Child, block_until, child, emulated, open_fds, pattern, table, this_test},
};

/// The emulated one, loaded by its path.
fn synapse() -> &'static Synapse {
    Synapse::load(Some(&emulated::synapse())).expect("the emulated Synapse loads")
}

/// Tells the emulator something, and has its answer.
fn control(text: &str) -> String {
    emulated::control_of(&emulated::synapse(), text)
}

fn calls(function: &str) -> u64 {
    control(&format!("count {function}"))
        .parse()
        .expect("a number")
}

/// The first card, acquired.
fn acquired() -> Device {
    synapse().acquire("0000:33:00.0").expect("a device")
}

/// What is said of a library that must be refused.
fn refusal(path: &Path) -> String {
    let error = Synapse::load(Some(path)).expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

/// A copy of the emulated library that lacks functions, in a folder that is removed with it.
fn lacking(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = emulated::without(&emulated::synapse(), names, folder.path()).expect("a copy");
    (folder, path)
}

/// Host memory, mapped for the device.
struct Host {
    /// Before the memory.
    _mapping: HostMapping,
    start: NonNull<u8>,
    memory: Vec<u8>,
}

// SAFETY: memory of the process, which any thread may use and free.
unsafe impl Send for Host {}

impl Host {
    fn new(device: &Device, len: u64) -> Result<Self> {
        let mut memory = vec![0; usize::try_from(len).expect("small")];
        let start = NonNull::new(memory.as_mut_ptr()).expect("an address");
        // SAFETY: the memory outlives the mapping, and never moves.
        let mapping = unsafe { device.map(start, len) }?;
        Ok(Self {
            _mapping: mapping,
            start,
            memory,
        })
    }
}

fn fill(host: &Host, bytes: &[u8]) {
    assert!(bytes.len() <= host.memory.len());
    // SAFETY: within the memory, which no stream uses now.
    unsafe { host.start.as_ptr().copy_from(bytes.as_ptr(), bytes.len()) };
}

fn content(host: &Host) -> Vec<u8> {
    // SAFETY: the whole of the memory, which no stream uses now.
    unsafe { std::slice::from_raw_parts(host.start.as_ptr(), host.memory.len()) }.to_vec()
}

/// The first byte, which a device may be writing.
fn first(host: &Host) -> u8 {
    // SAFETY: within the memory.
    unsafe { host.start.as_ptr().read_volatile() }
}

fn address(host: &Host) -> u64 {
    host.start.as_ptr().expose_provenance() as u64
}

/// Waits for all of a stream.
fn finish(stream: &Stream) {
    block_until("the stream", || stream.is_idle().expect("no error"));
}

/// Copies between memory that the callers keep until they have synchronised.
fn copy(stream: &Stream, direction: Direction, source: u64, len: u64, target: u64) -> Result<()> {
    // SAFETY: as said.
    unsafe { stream.copy(direction, source, len, target) }
}

/// A function of the emulated library, as a stranger in this process calls it.
fn raw<F: Copy>(name: &str) -> F {
    // SAFETY: the callers give the type that the header says.
    unsafe {
        let library = libloading::Library::new(emulated::synapse()).expect("is built");
        let found = *library.get::<F>(name).expect("exported");
        // Never unloaded.
        let _ = Box::leak(Box::new(library));
        found
    }
}

type Nothing = unsafe extern "C" fn() -> i32;
type ByModule = unsafe extern "C" fn(*mut u32, u32) -> i32;
type ById = unsafe extern "C" fn(u32) -> i32;

#[test]
fn objects_may_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Device>();
    crosses::<DeviceAllocation>();
    crosses::<HostMapping>();
    crosses::<Stream>();
    crosses::<Event>();
}

#[test]
fn absence_is_told() {
    assert_eq!(
        refusal(Path::new("/nowhere/libSynapse.so")),
        "Synapse is not here: /nowhere/libSynapse.so: cannot open shared object file: No such file or directory"
    );
    let text = refusal(Path::new("libm.so.6"));
    assert!(
        text.starts_with(
            "libm.so.6 is no usable Synapse: it has no synInitialize, synDeviceAcquire, "
        ),
        "{text}"
    );
    assert!(text.ends_with(" more"), "{text}");
}

#[test]
fn a_missing_function_is_named() {
    let (_folder, path) = lacking(&["synHostMap", "synEventQuery"]);
    let text = refusal(&path);
    assert!(
        text.ends_with("liblacking.so is no usable Synapse: it has no synHostMap, synEventQuery"),
        "{text}"
    );
}

#[test]
fn the_small_library_is_told_apart() {
    let (_folder, path) = lacking(&["synDeviceGetInfoV2"]);
    let text = refusal(&path);
    assert!(
        text.contains("liblacking.so is the small SynapseAI_Core or too old: it has no synDeviceGetInfoV2; give ")
            && text.contains("WHARF_LIBSYNAPSE"),
        "{text}"
    );
    assert!(
        Synapse::resident(Some(&path)).is_none(),
        "though it is loaded"
    );
}

#[test]
fn the_variable_names_the_library() {
    if !is_child() {
        return child_with(
            this_test!(),
            &[("WHARF_LIBSYNAPSE", "/named/by/variable.so")],
        );
    }
    let error = Synapse::load(None).expect_err("must be refused");
    assert!(
        error.to_string().contains("/named/by/variable.so: "),
        "{error}"
    );
    assert!(refusal(Path::new("/given.so")).contains("/given.so: "));
}

#[test]
#[ignore = "needs a machine without a Gaudi"]
fn without_a_device_file_nothing_is_loaded_or_initialised() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    assert!(Synapse::resident(None).is_none());
    let error = Synapse::load(None).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.starts_with("Synapse is not here: /dev/accel/accel_controlD*: ")
            && text.contains("; /dev/hl_controlD*: no such device file"),
        "{text}"
    );
    // Somebody else in this process loads it: now it is found by its name, still not initialised by us.
    let initialise = raw::<Nothing>("synInitialize");
    let found = Synapse::resident(None).expect("is there");
    assert!(std::ptr::eq(found, Synapse::load(None).expect("is there")));
    let error = found.acquire("0000:33:00.0").expect_err("no device file");
    assert!(error.to_string().contains("/dev/hl_controlD*"), "{error}");
    assert_eq!(calls("synInitialize"), 0);
    assert!(found.attach().expect("no error").is_none());
    // And uses it: its device is ours to use.
    let mut id = 7;
    // SAFETY: the header's signatures; writes one number.
    unsafe {
        assert_eq!(initialise(), 0);
        assert_eq!(
            raw::<ByModule>("synDeviceAcquireByModuleId")(&raw mut id, 6),
            0
        );
    }
    let device = found.attach().expect("no error").expect("its device");
    assert_eq!(device.info().expect("an answer").index, 1);
    let stream = device.stream().expect("a stream");
    drop((stream, device));
    assert_eq!(calls("synDeviceRelease"), 0, "it is not ours");
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn loading_initialises_nothing_and_one_file_is_one_library() {
    if !is_child() {
        child_with(this_test!(), &[]);
        // A second initialisation is none, or told.
        let told = [("HABANA_DISABLE_DOUBLE_SYN_INITIALIZE", "1")];
        return child_with(this_test!(), &told);
    }
    assert!(Synapse::resident(Some(&emulated::synapse())).is_none());
    let synapse = synapse();
    let resident = Synapse::resident(Some(&emulated::synapse())).expect("is there");
    assert!(std::ptr::eq(synapse, resident));
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("other.so");
    std::os::unix::fs::symlink(emulated::synapse(), &link).expect("a link");
    assert!(std::ptr::eq(
        synapse,
        Synapse::load(Some(&link)).expect("loads")
    ));
    assert_eq!(control("calls"), "0");
    assert!(synapse.attach().expect("no error").is_none());
    assert_eq!(calls("synInitialize"), 0);
    // Somebody was faster.
    // SAFETY: the header's signature.
    assert_eq!(unsafe { raw::<Nothing>("synInitialize")() }, 0);
    synapse.initialise().expect("is initialised");
    synapse.initialise().expect("once");
    assert_eq!(calls("synInitialize"), 2);
    assert!(synapse.attach().expect("no error").is_none());
}

#[test]
fn functions_are_listed_once_and_none_ends_synapse() {
    let functions = table::functions("synapse").into_iter();
    let mut names: Vec<_> = functions.map(|function| function.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    assert!(names.iter().all(|name| name != "synDestroy"));
    // SAFETY: the emulated library; no function is called.
    let library = unsafe { libloading::Library::new(emulated::synapse()) }.expect("is built");
    for name in names {
        // SAFETY: as above.
        unsafe { library.get::<Nothing>(&name) }.expect(&name);
    }
}

#[test]
fn a_library_that_fails_is_told() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_SYNAPSE_FAILING", "24")]);
    }
    let synapse = synapse();
    for error in [
        synapse.attach().expect_err("fails"),
        synapse.acquire("0000:33:00.0").expect_err("fails"),
    ] {
        assert_eq!(Status::of(&error), Some(Status::UNAVAILABLE), "{error}");
        assert!(
            error.to_string().ends_with("(synUnavailable, 24)"),
            "{error}"
        );
    }
    // What failed is tried again.
    control("set failing 0");
    acquired();
}

#[test]
fn statuses_have_names_and_kinds() {
    for (code, kind, name) in [
        (1, ErrorKind::InvalidArgument, "synInvalidArgument"),
        (2, ErrorKind::Exhausted, "synCbFull"),
        (3, ErrorKind::Exhausted, "synOutOfHostMemory"),
        (4, ErrorKind::Exhausted, "synOutOfDeviceMemory"),
        (8, ErrorKind::Unsupported, "synNoDeviceFound"),
        (17, ErrorKind::DeviceLost, "synDeviceReset"),
        (18, ErrorKind::Unsupported, "synUnsupported"),
        (20, ErrorKind::Exhausted, "synDeviceAlreadyAcquired"),
        (22, ErrorKind::WouldBlock, "synBusy"),
        (24, ErrorKind::Unsupported, "synUnavailable"),
        (26, ErrorKind::Io, "synFail"),
        (28, ErrorKind::Io, "synUninitialized"),
        (29, ErrorKind::Io, "synAlreadyInitialized"),
        (32, ErrorKind::DeviceLost, "synAssertAsync"),
        (34, ErrorKind::InvalidArgument, "synMappingNotFound"),
        (42, ErrorKind::DeadlineExceeded, "synTimeout"),
    ] {
        let error = Status(code).check("synCall").expect_err("not success");
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(Status::of(&error), Some(Status(code)));
        let text = error.to_string();
        assert!(
            text.starts_with("synCall: ") && text.ends_with(&format!("({name}, {code})")),
            "{text}"
        );
    }
    // One that nobody knows survives.
    let error = Status(-77).check("synCall").expect_err("not success");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Io, "synCall: synStatus -77")
    );
    assert!(Status(22).done("synQuery").is_ok_and(|done| !done));
    assert!(Status(0).done("synQuery").is_ok_and(|done| done));
    assert!(Status(17).done("synQuery").is_err());
}

#[test]
fn a_device_is_acquired_described_and_released() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let synapse = synapse();
    for (choice, kind) in [
        ("0000:99:00.0", ErrorKind::Unsupported),
        ("", ErrorKind::InvalidArgument),
        ("0000\0", ErrorKind::InvalidArgument),
    ] {
        let error = synapse.acquire(choice).expect_err("no such device");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(
            error.to_string().contains(&choice.to_string()) || kind != ErrorKind::Unsupported,
            "{error}"
        );
    }
    assert!(synapse.attach().expect("no error").is_none());
    let fds = open_fds();
    for round in 0..2 {
        let device = synapse.acquire("0000:44:00.0").expect("a device");
        let info = device.info().expect("an answer");
        assert_eq!(
            (info.kind, info.index, info.dram_size),
            (DeviceType::Gaudi2, 1, 1 << 30)
        );
        let base = info.global_hbm_base.expect("a new runtime");
        // No program's pointer looks like that.
        assert_ne!(base >> 47, 0);
        assert!(std::fs::read_link(format!("/proc/self/fd/{}", info.fd)).is_ok());
        let memory = device.memory().expect("an answer");
        assert_eq!((memory.free, memory.total), (1 << 30, 1 << 30));
        // The process has one.
        let error = synapse.acquire("0000:33:00.0").expect_err("has one");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert_eq!(Status::of(&error), Some(Status::DEVICE_ALREADY_ACQUIRED));
        let attached = synapse.attach().expect("no error").expect("the same");
        assert!(attached == device);
        // An older runtime does not say where its pool is.
        control("set pool_known 0");
        assert_eq!(attached.info().expect("an answer").global_hbm_base, None);
        control("set pool_known 1");
        // What was made from it keeps it.
        let stream = device.stream().expect("a stream");
        drop((device, attached));
        assert_eq!(calls("synDeviceRelease"), round as u64);
        drop(stream);
        assert_eq!(calls("synDeviceRelease"), round as u64 + 1);
        assert_eq!(open_fds(), fds);
    }
    control("set generation 3");
    assert_eq!(
        acquired().info().expect("an answer").kind,
        DeviceType::Gaudi3
    );
    control("set generation 1");
    assert_eq!(
        acquired().info().expect("an answer").kind,
        DeviceType::Gaudi
    );
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn an_answer_that_cannot_be_is_no_device() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = acquired();
    // Success, and nothing written.
    control("fault synDeviceGetInfoV2@1+=skip");
    for error in [
        device.info().expect_err("no descriptor"),
        synapse().attach().expect_err("no descriptor"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(
            error.to_string(),
            "synDeviceGetInfoV2 answered what cannot be: file descriptor 0"
        );
    }
}

#[test]
fn memory_is_allocated_and_mapped() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = acquired();
    let base = device
        .info()
        .expect("an answer")
        .global_hbm_base
        .expect("known");
    let memory: Vec<_> = [1, 128, 4097, 1 << 20]
        .map(|len| device.allocate(len).expect("memory"))
        .into_iter()
        .collect();
    for (index, one) in memory.iter().enumerate() {
        assert!(one.address() >= base);
        let others = memory.iter().skip(index + 1);
        for other in others {
            assert!(
                one.address() + one.len() <= other.address()
                    || other.address() + other.len() <= one.address()
            );
        }
    }
    let free = device.memory().expect("an answer").free;
    assert!(free <= (1 << 30) - (1 << 20) - 4097 - 129);
    let error = device.allocate(1 << 30).expect_err("too much");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    for error in [
        device.allocate(0).map(drop).expect_err("nothing"),
        // SAFETY: no memory is used.
        unsafe { device.map(NonNull::dangling(), 0) }
            .map(drop)
            .expect_err("nothing"),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    drop(memory);
    assert_eq!(device.memory().expect("an answer").free, 1 << 30);

    let mut buffer = vec![0_u8; 10_000];
    let start = NonNull::new(buffer.as_mut_ptr()).expect("an address");
    // SAFETY: the buffer outlives the mapping; what is not there is refused.
    unsafe {
        let mapping = device.map(start, 10_000).expect("mapped");
        let error = device.map(start, 100).expect_err("is mapped");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        drop(mapping);
        device.map(start, 100).expect("is not any more");
        // The kernel pins for writing.
        let constant = NonNull::from(b"constant").cast();
        device.map(constant, 8).expect_err("read-only");
        let nowhere = NonNull::new(std::ptr::without_provenance_mut(4096)).expect("not null");
        let error = device.map(nowhere, 4096).expect_err("nothing is there");
        assert!(error.to_string().starts_with("synHostMap: "), "{error}");
    }
    assert!(control("live").contains("mapped 0"));
    drop(device);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn every_byte_comes_over_in_each_direction() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_SYNAPSE_GENERATION", "3")]);
    }
    let device = acquired();
    let stream = device.stream().expect("a stream");
    let event = device.event().expect("an event");
    for (round, len) in [1_usize, 3, 127, 128, 4096, 65_537, (1 << 20) + 3]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(round as u64, len);
        let mut source = bytes.clone();
        let start = NonNull::new(source.as_mut_ptr()).expect("an address");
        let len = len as u64;
        // SAFETY: the buffer outlives the mapping.
        let mapping = unsafe { device.map(start, len) }.expect("mapped");
        let (one, other) = (
            device.allocate(len).expect("memory"),
            device.allocate(len + 64).expect("memory"),
        );
        let target = Host::new(&device, len).expect("memory");
        let from = start.as_ptr().expose_provenance() as u64;
        for (direction, source, target) in [
            (Direction::ToDevice, from, one.address()),
            (Direction::Within, one.address(), other.address() + 7),
            (Direction::ToHost, other.address() + 7, address(&target)),
        ] {
            copy(&stream, direction, source, len, target).expect("queued");
            stream.record(&event).expect("recorded");
            block_until("the copy", || event.is_done().expect("no error"));
        }
        assert_eq!(content(&target), bytes);
        finish(&stream);
        drop(mapping);
    }
    drop((stream, event, device));
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn directions_overtake_each_other_unless_events_order_them() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = acquired();
    let (stream, other) = (
        device.stream().expect("a stream"),
        device.stream().expect("a stream"),
    );
    let event = device.event().expect("an event");
    let memory = device.allocate(4096).expect("memory");
    let (new, seen) = (
        Host::new(&device, 4096).expect("memory"),
        Host::new(&device, 4096).expect("memory"),
    );
    let there = |bytes: &[u8]| {
        fill(&new, bytes);
        copy(
            &stream,
            Direction::ToDevice,
            address(&new),
            4096,
            memory.address(),
        )
        .expect("queued");
    };
    let back = |stream: &Stream| {
        copy(
            stream,
            Direction::ToHost,
            memory.address(),
            4096,
            address(&seen),
        )
        .expect("queued");
    };
    there(&[1; 4096]);
    finish(&stream);

    // The later one is done first, in one stream.
    control("hold 0");
    there(&[2; 4096]);
    back(&stream);
    block_until("the overtaking copy", || first(&seen) == 1);
    assert!(!stream.is_idle().expect("an answer"));
    stream.record(&event).expect("recorded");
    assert!(
        !event.is_done().expect("an answer"),
        "what was given before is not done"
    );
    control("release");
    block_until("the event", || event.is_done().expect("no error"));
    finish(&stream);

    // And without anybody holding anything back: by delays alone, sooner or later.
    control("set delay_us 2000");
    let mut round = 0_u8;
    block_until("a copy that overtakes", || {
        round = round.wrapping_add(1);
        there(&[round; 4096]);
        back(&stream);
        finish(&stream);
        content(&seen) != [round; 4096]
    });
    drop((memory, new, seen, stream, other, event, device));
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn wrong_copies_are_refused() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = acquired();
    let stream = device.stream().expect("a stream");
    let memory = device.allocate(4096).expect("memory");
    let host = Host::new(&device, 4096).expect("memory");
    let local = [0_u8; 64];
    let unmapped = local.as_ptr().expose_provenance() as u64;
    for (direction, source, len, target) in [
        (Direction::ToDevice, unmapped, 64, memory.address()),
        (Direction::ToHost, memory.address(), 64, unmapped),
        (
            Direction::ToDevice,
            address(&host) + 1,
            4096,
            memory.address(),
        ),
    ] {
        let error = copy(&stream, direction, source, len, target).expect_err("is not mapped");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            Status::of(&error),
            Some(Status::MAPPING_NOT_FOUND),
            "{error}"
        );
        assert!(error.to_string().contains("synHostMap"), "{error}");
    }
    // Longer than the engines count: nothing is called.
    let before = calls("synMemCopyAsync");
    let error = copy(
        &stream,
        Direction::Within,
        memory.address(),
        MAX_COPY + 1,
        0,
    )
    .expect_err("long");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("split it"), "{error}");
    assert_eq!(calls("synMemCopyAsync"), before);
    // Nothing to copy is no copy.
    copy(&stream, Direction::ToDevice, unmapped, 0, 0).expect("nothing");
    finish(&stream);
}

#[test]
fn a_lost_device_fails_everything_and_can_be_let_go() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let lost = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        assert_eq!(Status::of(&error), Some(Status::DEVICE_RESET), "{error}");
    };
    // A reset; an asynchronous failure; memory freed, and unmapped, under a queued copy.
    for way in 0..4 {
        let device = acquired();
        let (stream, event) = (
            device.stream().expect("a stream"),
            device.event().expect("an event"),
        );
        let memory = device.allocate(4096).expect("memory");
        let host = Host::new(&device, 4096).expect("memory");
        control("hold all");
        if way == 1 {
            control("fault synMemCopyAsync@1=late:17");
        }
        copy(
            &stream,
            Direction::ToDevice,
            address(&host),
            4096,
            memory.address(),
        )
        .expect("queued");
        stream.record(&event).expect("recorded");
        assert!(!event.is_done().expect("not yet"));
        let (mut memory, mut host) = (Some(memory), Some(host));
        match way {
            0 => drop(control("lose 17")),
            2 => memory = None,
            3 => host = None,
            _ => {}
        }
        control("release");
        block_until("the loss", || event.is_done().is_err());
        lost(event.is_done().expect_err("lost"));
        lost(stream.is_idle().expect_err("lost"));
        lost(stream.record(&event).expect_err("lost"));
        lost(device.info().map(drop).expect_err("lost"));
        lost(device.memory().map(drop).expect_err("lost"));
        lost(device.allocate(64).map(drop).expect_err("lost"));
        lost(Host::new(&device, 64).map(drop).expect_err("lost"));
        lost(device.stream().map(drop).expect_err("lost"));
        lost(device.event().map(drop).expect_err("lost"));
        lost(synapse().attach().map(drop).expect_err("lost"));
        lost(copy(&stream, Direction::Within, 0, 1, 0).expect_err("lost"));
        drop((memory, host, stream, event, device));
        assert_eq!(control("live"), "devices 0", "it was released all the same");
    }
    acquired();
}

/// Everything once; what was acquired is let go.
fn scenario() -> Result<()> {
    let synapse = synapse();
    {
        let device = synapse.acquire("0000:33:00.0")?;
        device.info()?;
    }
    let device = synapse.acquire("0000:33:00.0")?;
    device.memory()?;
    let (stream, event) = (device.stream()?, device.event()?);
    let memory = device.allocate(256)?;
    let host = Host::new(&device, 256)?;
    let mut buffer = pattern(5, 256);
    let start = NonNull::new(buffer.as_mut_ptr()).expect("an address");
    // SAFETY: the buffer outlives the mapping, and the copies: the stream is destroyed before it.
    let mapping = unsafe { device.map(start, 256) }?;
    // Whatever happens, nothing is under way when memory goes.
    let outcome = (|| {
        let from = start.as_ptr().expose_provenance() as u64;
        // SAFETY: as above.
        unsafe { stream.fill(memory.address(), 9, 256) }?;
        stream.record(&event)?;
        while !event.is_done()? {}
        copy(&stream, Direction::ToDevice, from, 256, memory.address())?;
        stream.record(&event)?;
        while !event.is_done()? {}
        copy(
            &stream,
            Direction::ToHost,
            memory.address(),
            256,
            address(&host),
        )?;
        while !stream.is_idle()? {}
        Ok(())
    })();
    while stream.is_idle().is_ok_and(|idle| !idle) {}
    if outcome.is_ok() {
        assert_eq!(content(&host), buffer);
    }
    drop(mapping);
    outcome
}

#[test]
fn each_call_may_fail() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    synapse().initialise().expect("initialised");
    scenario().expect("no fault");
    let fds = open_fds();
    for table::Function { name, .. } in table::functions("synapse") {
        if name == "synInitialize" {
            continue;
        }
        for code in [1, 23, 26] {
            control("forget");
            control(&format!("fault {name}@1={code}"));
            let outcome = scenario();
            assert_eq!(control("fault waiting"), "0", "{name} is not called");
            let drops = [
                "synDeviceRelease",
                "synDeviceFree",
                "synHostUnmap",
                "synStreamDestroy",
                "synEventDestroy",
            ];
            match outcome {
                // What drops cannot report is logged; a device that was not released is there still.
                Err(error) if name == "synDeviceRelease" => {
                    assert_eq!(Status::of(&error), Some(Status::DEVICE_ALREADY_ACQUIRED));
                }
                Ok(()) => assert!(drops.contains(&name.as_str()), "{name} may not fail unseen"),
                Err(error) => {
                    assert!(error.to_string().starts_with(&name), "{name}: {error}");
                    assert_eq!(Status::of(&error), Some(Status(code)), "{error}");
                    assert_eq!(error.kind(), Status(code).kind());
                }
            }
            if name == "synDeviceRelease" {
                // SAFETY: the header's signature.
                assert_eq!(unsafe { raw::<ById>("synDeviceRelease")(0) }, 0);
            }
            assert_eq!(control("live"), "devices 0", "{name}");
            scenario().expect("all is well again");
        }
    }
    assert_eq!(open_fds(), fds);
}

#[test]
fn initialising_that_failed_is_tried_again() {
    if !is_child() {
        return child_with(
            this_test!(),
            &[("EMULATED_SYNAPSE_FAULTS", "synInitialize@1=42")],
        );
    }
    let error = synapse()
        .acquire("0000:33:00.0")
        .expect_err("the first time");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(error.to_string().starts_with("synInitialize: "), "{error}");
    acquired();
    assert_eq!(calls("synInitialize"), 2);
}

#[test]
fn a_forked_child_is_told() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = acquired();
    let (stream, event) = (
        device.stream().expect("a stream"),
        device.event().expect("an event"),
    );
    let forked = |kind: Option<ErrorKind>| kind == Some(ErrorKind::Forked);
    let kind = |error: Error| error.kind();
    // SAFETY: the child takes no lock that another thread of this small process holds, and leaves by `_exit`.
    let status = unsafe {
        match libc::fork() {
            0 => {
                let all = forked(device.info().err().map(kind))
                    && forked(device.allocate(64).err().map(kind))
                    && forked(stream.record(&event).err().map(kind))
                    && forked(event.is_done().err().map(kind))
                    && forked(synapse().initialise().err().map(kind));
                // Neither destroyed nor released there.
                drop((device, stream, event));
                libc::_exit(i32::from(!all))
            }
            -1 => panic!("{}", std::io::Error::last_os_error()),
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                status
            }
        }
    };
    assert_eq!(status, 0);
    stream.record(&event).expect("the parent goes on");
}

#[tokio::test]
async fn a_card_has_one_process() {
    if let Some(mut parent) = child("holder") {
        let device = acquired();
        parent.say("has");
        parent.hear().await;
        drop(device);
        parent.say("let go");
        parent.hear().await;
        let _device = synapse().acquire("0000:44:00.0").expect("a device");
        parent.say("has another");
        return parent.wait_for_death().await;
    }
    if let Some(mut parent) = child("other") {
        let error = synapse().acquire("0000:33:00.0").expect_err("is taken");
        assert!(error.to_string().contains("0000:33:00.0"), "{error}");
        assert!(synapse().attach().expect("no error").is_none());
        drop(synapse().acquire("0000:44:00.0").expect("the other card"));
        parent.say("refused");
        parent.hear().await;
        drop(acquired());
        parent.say("acquired");
        parent.hear().await;
        // The process that had it was killed.
        drop(synapse().acquire("0000:44:00.0").expect("is free"));
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("text");
    let variables = [("EMULATED_HLTHUNK_FOLDER", folder)];
    let mut holder = Child::start(this_test!(), "holder", &variables);
    assert_eq!(holder.hear().await, "has");
    let mut other = Child::start(this_test!(), "other", &variables);
    assert_eq!(other.hear().await, "refused");
    holder.say("let it go");
    assert_eq!(holder.hear().await, "let go");
    other.say("now");
    assert_eq!(other.hear().await, "acquired");
    holder.say("another");
    assert_eq!(holder.hear().await, "has another");
    holder.kill();
    other.say("now");
    other.finish();
}

#[test]
fn descriptors_do_not_grow() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    synapse().initialise().expect("initialised");
    scenario().expect("warm");
    let fds = open_fds();
    for _ in 0..50 {
        scenario().expect("all is well");
    }
    let device = acquired();
    let with_device = open_fds();
    for _ in 0..10_000 {
        device.info().expect("an answer");
        synapse().attach().expect("no error").expect("a device");
    }
    assert_eq!(open_fds(), with_device);
    drop(device);
    assert_eq!(open_fds(), fds);
}

#[test]
fn infos_are_written_in_their_own_size() {
    type Info = unsafe extern "C" fn(u32, *mut u32) -> i32;
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = acquired();
    let fd = device.info().expect("an answer").fd.cast_unsigned();
    for (name, small, len, place) in [
        ("synDeviceGetInfo", 0, 56, 48),
        ("synDeviceGetInfo", 1, 48, 40),
        ("synDeviceGetInfoV2", 0, 72, 48),
    ] {
        control(&format!("set small {small}"));
        let mut words = [0xEEEE_EEEE_u32; 32];
        // SAFETY: the header's signature; there is room for the longest.
        let status = unsafe { raw::<Info>(name)(u32::MAX, words.as_mut_ptr()) };
        assert_eq!(status, 0);
        assert_eq!(words[place / 4], fd, "{name}");
        assert_ne!(words[len / 4 - 2], 0xEEEE_EEEE, "{name}");
        assert!(
            words[len / 4..].iter().all(|word| *word == 0xEEEE_EEEE),
            "{name}"
        );
    }
}
