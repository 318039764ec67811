//! Synapse itself: its start and its end, what it is called, and which cards there are.

use std::{
    ffi::{c_char, c_int},
    sync::atomic::Ordering::SeqCst,
};

use wharf_emulated_common::gaudi;

use super::{exports, given, put, put_at, put_text, room, take};
use crate::{
    abi::{STATUSES, Status, device_type},
    gate::runtime,
    settings,
};

/// What `synDriverGetVersion` says: four parts, the last of them no number.
const VERSION: &str = "1.22.0.emulated";

/// `synDeviceTypeInvalid`, `synDeviceTypeSize`.
const TYPES: u32 = 7;
const ALL_TYPES: u32 = 8;

exports! {
    [Nothing] fn synInitialize() |_call| {
        let before = runtime().initialised_in.swap(std::process::id(), SeqCst);
        // Twice is once, unless the program has asked to be told.
        if before != 0 && is_set("HABANA_DISABLE_DOUBLE_SYN_INITIALIZE") {
            return Err(Status::ALREADY_INITIALIZED);
        }
        Ok(())
    }

    [Init] fn synDestroy() |_call| {
        let device = runtime().device.lock().take();
        if let Some(device) = device {
            runtime().journal.misuse("synDestroy was called while a device was acquired".to_owned());
            device.release();
        }
        runtime().initialised_in.store(0, SeqCst);
        Ok(())
    }

    [Nothing] fn synDriverGetVersion(version: *mut c_char, len: c_int) |_call| {
        put_text(version, room(len), VERSION)
    }

    [Nothing] fn synStatusGetBriefDescription(status: i32, text: *mut c_char, len: usize) |_call| {
        given(text)?;
        let known = usize::try_from(status).ok().and_then(|status| STATUSES.get(status));
        put_text(text, len, known.ok_or(Status::FAIL)?)
    }

    [Init] fn synDeviceGetCount(count: *mut u32) |_call| {
        put(count, cards() as u32)
    }

    [Init] fn synDeviceGetCountByDeviceType(count: *mut u32, kind: u32) |_call| {
        put(count, cards_of(kind))
    }

    [Init] fn synDeviceCount(counts: *mut u32) |_call| {
        // The array has one place more, which stays as it was.
        (0..TYPES).try_for_each(|kind| put_at(counts, kind as usize, cards_of(kind)))
    }

    [Init] fn synDeviceGetModuleIDs(modules: *mut u32, len: *mut u32) |_call| {
        given(modules)?;
        if u64::from(take(len, 0)?) < cards().max(1) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let mut all: Vec<u64> = (0..cards()).map(gaudi::module_id).collect();
        all.sort_unstable();
        for (index, module) in all.into_iter().enumerate() {
            put_at(modules, index, module as u32)?;
        }
        put(len, cards() as u32)
    }
}

/// How many cards there are.
pub(super) fn cards() -> u64 {
    settings::DEVICES.get().min(8)
}

/// How many cards of a type there are.
fn cards_of(kind: u32) -> u32 {
    let is_theirs = kind == device_type(settings::GENERATION.get());
    if is_theirs || kind == ALL_TYPES {
        cards() as u32
    } else {
        0
    }
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value != "0")
}
