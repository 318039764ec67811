//! Every call goes wrong, in every way: an error that names the call, nothing lost, and the next attempt goes well.

use std::time::Duration;

use super::{Bench, Emulated, finish};
use crate::{
    alone::{child_with, is_child},
    error::{Error, ErrorKind, Result},
    support::{open_fds, table, this_test},
};

/// All that there is, once.
fn everything(own: &Emulated) -> Result<()> {
    for card in own.thunk.discover() {
        card?;
    }
    let card = own.open(0)?;
    let notifier = card.notifier()?;
    notifier.receive()?;
    let mut bench = Bench::new(&card, 2, 8192)?;
    bench.host.fill(0x5A);
    let mut copy = bench.put(0, 0, 4096)?;
    while card.wait_any(&[copy.seq()], Duration::from_millis(100))? == 0 {}
    finish(&mut copy)?;
    finish(&mut bench.get(0, 4096, 4096)?)?;
    drop(bench.device.export(0, 4096)?);
    bench.device.free()
}

#[test]
fn each_call_may_fail_in_each_way() {
    if !is_child() {
        child_with(this_test!(), &[("EMULATED_HLTHUNK_CHIP", "1")]);
        return child_with(this_test!(), &[("EMULATED_HLTHUNK_CHIP", "2")]);
    }
    let own = Emulated::new(&[("delay_us", 0)]);
    everything(&own).expect("nothing goes wrong");
    let before = open_fds();
    // Their own results are no errors, they are not called then, or they close what must be closed.
    let silent = [
        "hlthunk_get_version",
        "hlthunk_free",
        "hlthunk_get_device_name_from_fd",
        "hlthunk_close",
    ];
    // What only a drop calls is told to the log.
    let dropped = [
        "hlthunk_notifier_release",
        "hlthunk_destroy_command_buffer",
        "hlthunk_device_memory_free",
    ];
    let gone = [libc::EBUSY, libc::EIO, libc::ENODEV, libc::ETIMEDOUT];
    let mut struck = 0;
    let functions = table::functions("hlthunk").into_iter();
    let names = functions.map(|function| function.name);
    for name in names.filter(|name| !silent.contains(&name.as_str())) {
        for errno in [
            libc::EINVAL,
            libc::ENOMEM,
            libc::EFAULT,
            libc::EPERM,
            0x7FFF,
        ]
        .into_iter()
        .chain(gone)
        {
            own.control(&format!("fault {name}@1={errno}"));
            let result = everything(&own);
            let waits = own.number("fault waiting");
            own.control("fault clear");
            if waits > 0 {
                // A call of the other generation.
                result.expect("nothing went wrong");
                continue;
            }
            struck += 1;
            check(&name, errno, result, &dropped);
            assert_eq!(own.live("sessions"), 0, "{name} {errno}");
            everything(&own).unwrap_or_else(|error| panic!("after {name} {errno}: {error}"));
            assert_eq!(open_fds(), before, "{name} {errno}");
        }
    }
    assert!(struck > 135, "{struck}");
}

fn chip() -> String {
    std::env::var("EMULATED_HLTHUNK_CHIP").expect("set")
}

fn check(name: &str, errno: i32, result: Result<()>, dropped: &[&str]) {
    let error: Error = match result {
        Err(error) => error,
        Ok(()) if dropped.contains(&name) => return,
        // A wait for several that failed asks each.
        Ok(()) if name == "hlthunk_wait_for_multi_cs" => return,
        // On the first Gaudi only drops call it.
        Ok(()) if name == "hlthunk_memory_unmap" && chip() == "1" => return,
        // No node there.
        Ok(()) if name == "hlthunk_open_control" => return,
        Ok(()) => panic!("{name} failed with {errno}, and nobody says so"),
    };
    let text = error.to_string();
    let named =
        text.contains(name) || (name == "hlthunk_wait_for_cs" && text.contains("submission"));
    assert!(named && text.contains("Gaudi"), "{name} {errno}: {text}");
    let works = !name.contains("_get_") && !name.contains("_open");
    if works && [libc::EBUSY, libc::EIO, libc::ENODEV].contains(&errno) {
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{text}");
    }
}

#[test]
fn a_card_may_be_lost_at_each_call() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let own = Emulated::new(&[("delay_us", 0)]);
    everything(&own).expect("nothing goes wrong");
    let before = open_fds();
    for name in [
        "hlthunk_notifier_create",
        "hlthunk_device_memory_alloc",
        "hlthunk_device_memory_map",
        "hlthunk_host_memory_map",
        "hlthunk_command_submission",
        "hlthunk_wait_for_cs",
        "hlthunk_wait_for_multi_cs",
        "hlthunk_memory_unmap",
        "hlthunk_device_mapped_memory_export_dmabuf_fd",
    ] {
        for how in ["die", "late"] {
            if how == "late" && name != "hlthunk_command_submission" {
                continue;
            }
            own.control(&format!("fault {name}@1={how}:0"));
            let error = everything(&own).expect_err("the card is lost");
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{name}: {error}");
            assert_eq!(own.number("fault waiting"), 0);
            everything(&own).expect("a new card");
            assert_eq!(open_fds(), before, "{name}");
        }
    }
}
