//! T6: registering host memory: its rules and what it costs.

use std::time::Instant;

use crate::{
    device::{self, Current, MIB},
    suite::{Case, Verdict},
};

const ALREADY_REGISTERED: u32 = 712;
const NOT_REGISTERED: u32 = 713;

pub(crate) fn registration(case: &mut Case) -> Verdict {
    let current = Current::enter();
    let raw = current.raw;
    let register = |at, len| raw.cuMemHostRegister_v2(at, len, 1);
    let pages = device::pages(MIB, false);
    raw.ok(register(pages + 100, 1000));
    assert_eq!(register(pages + 100, 1000), ALREADY_REGISTERED, "the same");
    assert_eq!(register(pages + 1099, 10), ALREADY_REGISTERED, "an overlap");
    case.note(
        "a neighbour in the same page",
        raw.name(register(pages + 1100, 100)),
    );
    assert_eq!(
        raw.cuMemHostUnregister(pages),
        NOT_REGISTERED,
        "another address"
    );
    case.note(
        "its second half",
        raw.name(raw.cuMemHostUnregister(pages + 600)),
    );
    raw.ok(raw.cuMemHostUnregister(pages + 100));
    // Fails when the neighbour was refused.
    let _ = raw.cuMemHostUnregister(pages + 1100);
    assert_eq!(
        raw.cuMemHostUnregister(pages + 100),
        NOT_REGISTERED,
        "twice"
    );
    device::unmap(pages, MIB);

    let sizes = case.pick(
        &[MIB, 64 * MIB, 1024 * MIB, 4096 * MIB][..],
        &[MIB, 16 * MIB],
    );
    for len in sizes {
        for huge in [false, true] {
            let at = device::pages(*len, false);
            if huge && let Err(error) = device::want_huge_pages(at, *len) {
                case.without("huge pages", error);
                device::unmap(at, *len);
                continue;
            }
            device::bytes(at, *len).fill(1);
            let start = Instant::now();
            raw.ok(register(at, *len));
            let registered = start.elapsed();
            raw.ok(raw.cuMemHostUnregister(at));
            let both = start.elapsed();
            device::unmap(at, *len);
            let gib = *len as f64 / (1 << 30) as f64;
            let what = format!(
                "{} MiB{}",
                len / MIB,
                if huge { ", huge pages" } else { "" }
            );
            case.figure(
                format!("register {what}"),
                registered.as_secs_f64() / gib,
                "s/GiB",
            );
            let unregistered = both - registered;
            case.figure(
                format!("unregister {what}"),
                unregistered.as_secs_f64() / gib,
                "s/GiB",
            );
        }
    }
    Verdict::Ran
}
