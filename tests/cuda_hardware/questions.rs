//! T17: the same questions to the device's driver and to the emulated one, each in a process of its own. Where the answers to rules differ, the emulated
//! driver is wrong. What a device has and another lacks is recorded.

use std::{collections::BTreeMap, ffi::CString};

use crate::{
    addresses::{no_handle, pool_props},
    device::{self, Current, MIB, hex, runtime},
    raw::{self, Raw},
    suite::{self, Case, Verdict},
    support::Parent,
};

/// Begins the name of what may differ from device to device.
const OWN: &str = "device: ";

/// Asks one driver; by name.
fn ask(case: &Case, variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut child = case.child("T17 questions", variables);
    let answers = runtime().block_on(async {
        let mut answers = BTreeMap::new();
        loop {
            let line = child.hear().await;
            let Some((question, answer)) = line.split_once(" = ") else {
                break answers;
            };
            answers.insert(question.to_owned(), answer.to_owned());
        }
    });
    child.finish();
    answers
}

/// What one says and the other does not.
pub(crate) fn differences(
    one: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
) -> Vec<(String, String)> {
    let silent = "no answer".to_owned();
    let all = one
        .keys()
        .chain(other.keys().filter(|question| !one.contains_key(*question)));
    all.filter_map(|question| {
        let [one, other] = [one, other].map(|answers| answers.get(question).unwrap_or(&silent));
        (one != other).then(|| {
            (
                question.clone(),
                format!("{one}; the emulated driver: {other}"),
            )
        })
    })
    .collect()
}

/// T17.
pub(crate) fn compared(case: &mut Case) -> Verdict {
    let raw = suite::raw();
    let (mut version, mut count) = (0, 0);
    raw.ok(raw.cuDriverGetVersion(&mut version));
    raw.ok(raw.cuDeviceGetCount(&mut count));
    let (version, count) = (version.to_string(), count.to_string());
    let this = ask(case, &[]);
    let emulated = ask(
        case,
        &[
            ("WHARFTEST_HARDWARE", "emulated"),
            ("EMULATED_CUDA_VERSION", &version),
            ("EMULATED_CUDA_DEVICES", &count),
        ],
    );
    case.figure("questions", this.len() as f64, "questions");
    assert!(this.len() > 60, "{} answers", this.len());
    let (own, rules): (Vec<_>, Vec<_>) = differences(&this, &emulated)
        .into_iter()
        .partition(|(question, _)| question.starts_with(OWN));
    for (question, answers) in own.iter().chain(&rules) {
        case.note(question, answers);
    }
    assert!(
        rules.is_empty(),
        "the emulated driver answers otherwise:\n{}",
        rules
            .iter()
            .map(|(question, answers)| format!("{question}: {answers}\n"))
            .collect::<String>()
    );
    Verdict::Ran
}

/// A second process: asks, in an order in which no answer changes another.
pub(crate) fn answers(parent: Parent) {
    let raw = raw::load(&suite::library()).expect("a driver");
    let say = |question: &str, answer: String| parent.say(format_args!("{question} = {answer}"));
    let code = |question: &str, code: u32| say(question, raw.name(code));
    let mut number = 0;
    code("count before init", raw.cuDeviceGetCount(&mut number));
    code("device before init", raw.cuDeviceGet(&mut number, 0));
    code("allocate before init", raw.cuMemAlloc_v2(&mut 0, 8));
    code("flags of init", raw.cuInit(1));
    let subject = suite::subject().expect("a device");
    assert!(std::ptr::eq(subject.raw, raw));
    code("init again", raw.cuInit(0));
    functions(raw, &say);
    for attribute in 1..=130 {
        say(
            &format!("{OWN}attribute {attribute}"),
            raw.device(attribute).to_string(),
        );
    }
    code("attribute 0", raw.cuDeviceGetAttribute(&mut number, 0, 0));
    code(
        "attribute 9999",
        raw.cuDeviceGetAttribute(&mut number, 9999, 0),
    );
    code(
        "attribute of no device",
        raw.cuDeviceGetAttribute(&mut number, 41, 999),
    );
    code("device 999", raw.cuDeviceGet(&mut number, 999));
    code(
        "retain no device",
        raw.cuDevicePrimaryCtxRetain(&mut 0, 999),
    );
    let (mut flags, mut active) = (0, 7);
    code(
        "state of the primary context",
        raw.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active),
    );
    say("active before", active.to_string());
    code(
        "release what is not held",
        raw.cuDevicePrimaryCtxRelease_v2(0),
    );
    without_a_context(raw, &code);
    let current = Current::enter();
    raw.ok(raw.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    say("active then", active.to_string());
    pointers(&current, &say);
    host_memory(&current, &code);
    allocations(&current, &code, &say);
    shared(&current, &code);
    queued(&current, &code);
    parent.say("end");
}

type Say<'a> = &'a dyn Fn(&str, String);
type Code<'a> = &'a dyn Fn(&str, u32);

fn functions(raw: &Raw, say: Say<'_>) {
    let mut version = 0;
    raw.ok(raw.cuDriverGetVersion(&mut version));
    for (name, wanted) in [
        ("cuMemAlloc", 12000),
        ("cuMemAlloc", 3020),
        ("cuMemAlloc_v2", 12000),
        ("cuNothing", 12000),
        ("cuMemGetHandleForAddressRange", 11060),
        ("cuMemGetHandleForAddressRange", 11070),
        ("cuMemcpyBatchAsync", 12000),
        ("cuMemAlloc", version + 1000),
    ] {
        let text = CString::new(name).expect("no zero");
        let (mut at, mut status) = (std::ptr::null_mut(), 9);
        let code = raw.cuGetProcAddress_v2(text.as_ptr(), &mut at, wanted, 0, &mut status);
        let found = if at.is_null() { "none" } else { "found" };
        // On an error the rest is nobody's.
        let rest = if code == 0 {
            format!(", {found}, status {status}")
        } else {
            String::new()
        };
        say(
            &format!(
                "search {name} {}",
                if wanted > version { 0 } else { wanted }
            ),
            raw.name(code) + &rest,
        );
    }
    for code in [
        0, 1, 3, 100, 201, 400, 600, 700, 704, 712, 713, 719, 800, 801, 999,
    ] {
        say(&format!("name of {code}"), raw.name(code));
    }
}

fn without_a_context(raw: &Raw, code: Code<'_>) {
    let (mut number, mut word, mut len) = (0, 0, 0);
    code("no context: device", raw.cuCtxGetDevice(&mut number));
    code("no context: current", raw.cuCtxGetCurrent(&mut word));
    code("no context: allocate", raw.cuMemAlloc_v2(&mut word, 8));
    code("no context: pinned", raw.cuMemHostAlloc(&mut word, 8, 0));
    code("no context: stream", raw.cuStreamCreate(&mut word, 1));
    code("no context: event", raw.cuEventCreate(&mut word, 2));
    code("no context: synchronize", raw.cuCtxSynchronize());
    code("no context: info", raw.cuMemGetInfo_v2(&mut len, &mut 0));
    code(
        "no context: pop",
        raw.cuCtxPopCurrent_v2(std::ptr::null_mut()),
    );
}

/// What the driver says of addresses of each kind. Numbers that are this run's alone are only told from 0.
fn pointers(current: &Current, say: Say<'_>) {
    let raw = current.raw;
    let heap = vec![0_u8; 64];
    let (memory, pinned) = (current.alloc(3 * MIB), current.pinned(4096));
    let mut managed = 0;
    let has_managed = raw.device(83) == 1 && raw.cuMemAllocManaged(&mut managed, MIB, 1) == 0;
    let mapped = current.mapped(current.granularity(), 1, 1);
    let mut pooled = 0;
    let has_pool = raw.cuMemAllocAsync(&mut pooled, 4096, 0) == 0;
    raw.ok(raw.cuCtxSynchronize());
    let places = [
        ("heap", Some(device::address(&heap))),
        ("device", Some(memory)),
        ("device, inside", Some(memory + 12_345)),
        ("pinned", Some(pinned)),
        ("pinned, inside", Some(pinned + 100)),
        ("managed", has_managed.then_some(managed)),
        ("mapped", Some(mapped)),
        ("pool", has_pool.then_some(pooled)),
    ];
    for (place, at) in places {
        let Some(at) = at else { continue };
        for (attribute, name) in [
            (1, "context"),
            (2, "type"),
            (3, "device pointer"),
            (4, "host pointer"),
            (7, "buffer id"),
            (8, "managed"),
            (9, "ordinal"),
            (10, "legacy handles"),
            (11, "start"),
            (12, "size"),
            (13, "mapped"),
        ] {
            let answer = match raw.pointer(attribute, at) {
                Err(code) => raw.name(code),
                Ok(value) => match attribute {
                    1 | 7 => (if value == 0 { "none" } else { "some" }).to_owned(),
                    3 | 4 | 11 => format!("{} from it", value.wrapping_sub(at).cast_signed()),
                    _ => value.to_string(),
                },
            };
            say(&format!("{place}: {name}"), answer);
        }
    }
    let (mut kind, mut ordinal) = (9_u32, 9_i32);
    let values = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
    let code =
        raw.cuPointerGetAttributes(2, [2, 9].as_ptr(), values.as_ptr(), device::address(&heap));
    say(
        "heap: several",
        format!("{}, type {kind}, ordinal {ordinal}", raw.name(code)),
    );
    let code = raw.cuPointerGetAttributes(2, [2, 7777].as_ptr(), values.as_ptr(), memory);
    say("device: an unknown attribute among several", raw.name(code));
    current.free(memory);
    say(
        "freed: type",
        raw.pointer(2, memory)
            .map_or_else(|code| raw.name(code), |value| value.to_string()),
    );
    current.free_pinned(pinned);
}

fn host_memory(current: &Current, code: Code<'_>) {
    let raw = current.raw;
    let pages = device::pages(MIB, false);
    code("register", raw.cuMemHostRegister_v2(pages + 8192, 8192, 1));
    code(
        "register again",
        raw.cuMemHostRegister_v2(pages + 8192, 8192, 1),
    );
    code(
        "register an overlap",
        raw.cuMemHostRegister_v2(pages + 12_288, 8192, 1),
    );
    code(
        "register a neighbour",
        raw.cuMemHostRegister_v2(pages + 16_384, 8192, 1),
    );
    code(
        "unregister another address",
        raw.cuMemHostUnregister(pages + 8200),
    );
    code("free what is registered", raw.cuMemFreeHost(pages + 8192));
    code("unregister", raw.cuMemHostUnregister(pages + 8192));
    code("unregister twice", raw.cuMemHostUnregister(pages + 8192));
    code(
        "unregister the neighbour",
        raw.cuMemHostUnregister(pages + 16_384),
    );
    code("register nothing", raw.cuMemHostRegister_v2(pages, 0, 1));
    code(
        "device pointer of ordinary memory",
        raw.cuMemHostGetDevicePointer_v2(&mut 0, pages, 0),
    );
    code("free ordinary memory as pinned", raw.cuMemFreeHost(pages));
    device::unmap(pages, MIB);
}

fn allocations(current: &Current, code: Code<'_>, say: Say<'_>) {
    let (raw, block) = (current.raw, current.granularity());
    code("allocate nothing", raw.cuMemAlloc_v2(&mut 0, 0));
    code("allocate too much", raw.cuMemAlloc_v2(&mut 0, 1 << 46));
    let (memory, mut base, mut len) = (current.alloc(3 * MIB), 0, 0);
    raw.ok(raw.cuMemGetAddressRange_v2(&mut base, &mut len, memory + 500));
    say(
        "range",
        format!("{} from it, {len}", base.wrapping_sub(memory)),
    );
    code("free inside", raw.cuMemFree_v2(memory + 256));
    code(
        "dma-buf of an odd address",
        raw.cuMemGetHandleForAddressRange(&mut 0, memory + 1, 4096, 1, 0),
    );
    code("free", raw.cuMemFree_v2(memory));
    code("free twice", raw.cuMemFree_v2(memory));
    code(
        "range of freed memory",
        raw.cuMemGetAddressRange_v2(&mut base, &mut len, memory),
    );
    code("free nothing", raw.cuMemFree_v2(0));
    say("granularity", block.to_string());
    code(
        "physical memory of an odd length",
        raw.cuMemCreate(&mut 0, 4096, &device::prop(1), 0),
    );
    let mut range = 0;
    code(
        "reserve an odd length",
        raw.cuMemAddressReserve(&mut range, 4096, 0, 0, 0),
    );
    raw.ok(raw.cuMemAddressReserve(&mut range, 2 * block, 0, 0, 0));
    let mut handle = 0;
    raw.ok(raw.cuMemCreate(&mut handle, block, &device::prop(0), 0));
    raw.ok(raw.cuMemMap(range, block, 0, handle, 0));
    let mut fd = -1_i32;
    code(
        "export what is not to be exported",
        raw.cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0),
    );
    code(
        "retain a handle",
        raw.cuMemRetainAllocationHandle(&mut 0, range + 77),
    );
    code(
        "retain where nothing is mapped",
        raw.cuMemRetainAllocationHandle(&mut 0, range + block as u64),
    );
    code(
        "free reserved addresses that are mapped",
        raw.cuMemAddressFree(range, 2 * block),
    );
    code("unmap", raw.cuMemUnmap(range, block));
    code(
        "free reserved addresses",
        raw.cuMemAddressFree(range, 2 * block),
    );
}

fn shared(current: &Current, code: Code<'_>) {
    let raw = current.raw;
    let (memory, mapped) = (
        current.alloc(4096),
        current.mapped(current.granularity(), 1, 1),
    );
    let mut handle = no_handle();
    code(
        "legacy handle of mapped memory",
        raw.cuIpcGetMemHandle(&mut handle, mapped),
    );
    code(
        "legacy handle of no memory",
        raw.cuIpcGetMemHandle(&mut handle, 4096),
    );
    code(
        "legacy handle inside",
        raw.cuIpcGetMemHandle(&mut handle, memory + 100),
    );
    code("legacy handle", raw.cuIpcGetMemHandle(&mut handle, memory));
    code("open its own", raw.cuIpcOpenMemHandle_v2(&mut 0, handle, 1));
    code("close what was not opened", raw.cuIpcCloseMemHandle(memory));
    let mut twice = no_handle();
    raw.ok(raw.cuIpcGetMemHandle(&mut twice, memory));
    code(
        if hex(&handle.0) == hex(&twice.0) {
            "handles of one memory: the same"
        } else {
            "handles of one memory: others"
        },
        0,
    );
    let (mut pool, stream) = (0, current.stream());
    code("pool", raw.cuMemPoolCreate(&mut pool, &pool_props(1)));
    let mut pooled = 0;
    code(
        "memory of a pool",
        raw.cuMemAllocFromPoolAsync(&mut pooled, 4096, pool, stream),
    );
    current.wait(stream);
    code(
        "legacy handle of pool memory",
        raw.cuIpcGetMemHandle(&mut handle, pooled),
    );
    code("free pool memory", raw.cuMemFreeAsync(pooled, stream));
    current.wait(stream);
    current.free(memory);
}

fn queued(current: &Current, code: Code<'_>) {
    let raw = current.raw;
    let (stream, mut event) = (current.stream(), 0);
    code(
        "event for processes with timing",
        raw.cuEventCreate(&mut event, 4),
    );
    let event = current.event(2);
    code("query an event never recorded", raw.cuEventQuery(event));
    code(
        "elapsed time without timing",
        raw.cuEventElapsedTime(&mut 0.0, event, event),
    );
    code("flags of a stream", raw.cuStreamCreate(&mut 0, 0x8000));
    code("query an idle stream", raw.cuStreamQuery(stream));
    let (memory, host) = (current.alloc(4096), current.pinned(4096));
    code("copy nothing", raw.cuMemcpyAsync(memory, host, 0, stream));
    code("copy", raw.cuMemcpyAsync(memory, host, 64, stream));
    code(
        "a word at an odd address",
        raw.cuStreamWriteValue64_v2(stream, host + 3, 1, 0),
    );
    code("a word", raw.cuStreamWriteValue64_v2(stream, host, 1, 0));
    code(
        "wait for an event never recorded",
        raw.cuStreamWaitEvent(stream, event, 0),
    );
    code("synchronize", raw.cuStreamSynchronize(stream));
    let mut id = 0;
    code("id of the current context", raw.cuCtxGetId(0, &mut id));
    code("destroy an event", raw.cuEventDestroy_v2(event));
    code("destroy a stream", raw.cuStreamDestroy_v2(stream));
}
