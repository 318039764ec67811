//! Cards: counted, named, acquired by each of the ways, described.

use std::ptr;

use super::api::*;
use crate::support::this_test;

/// Cards of the emulated machine, and their places on the bus.
const CARDS: [(u32, &std::ffi::CStr); 2] = [(7, c"0000:33:00.0"), (6, c"0000:44:00.0")];

#[test]
fn cards_are_counted_without_being_acquired() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    ok(synInitialize());
    let mut count = 9;
    ok(synDeviceGetCount(&mut count));
    assert_eq!(count, 2);
    for (kind, cards) in [(GAUDI2, 2), (GAUDI3, 0), (1, 0)] {
        ok(synDeviceGetCountByDeviceType(&mut count, kind));
        assert_eq!(count, cards, "type {kind}");
    }
    let mut counts = [77; TYPES];
    ok(synDeviceCount(counts.as_mut_ptr()));
    assert_eq!(counts, [0, 0, 0, 0, 2, 0, 0, 77]);
    let (mut modules, mut len) = ([77; 3], 3);
    ok(synDeviceGetModuleIDs(modules.as_mut_ptr(), &mut len));
    assert_eq!((modules, len), ([6, 7, 77], 2));
    for (room, there) in [(0, true), (1, true), (2, false)] {
        len = room;
        let modules = if there {
            modules.as_mut_ptr()
        } else {
            ptr::null_mut()
        };
        assert_eq!(
            synDeviceGetModuleIDs(modules, &mut len),
            INVALID_ARGUMENT,
            "{room}"
        );
    }
    for refused in [
        synDeviceGetCount(ptr::null_mut()),
        synDeviceGetCountByDeviceType(ptr::null_mut(), GAUDI2),
        synDeviceCount(ptr::null_mut()),
        synDeviceGetModuleIDs(modules.as_mut_ptr(), ptr::null_mut()),
    ] {
        assert_eq!(refused, INVALID_ARGUMENT);
    }
    // What is known of a type, and of a card that nobody has.
    let mut values = [9; 4];
    let which = [
        attribute::ALIGNMENT,
        attribute::MAX_DIMS,
        attribute::CLOCK_RATE,
        attribute::DEVICE_TYPE,
    ];
    let status = synDeviceTypeGetAttribute(values.as_mut_ptr(), which.as_ptr(), 4, GAUDI2);
    assert_eq!((status, values), (UNSUPPORTED, [128, 8, 9, 4]));
    assert_eq!(
        synDeviceTypeGetAttribute(values.as_mut_ptr(), which.as_ptr(), 4, ANY_TYPE),
        UNSUPPORTED
    );
    let which = [
        attribute::DRAM_SIZE,
        attribute::DRAM_FREE,
        attribute::ALIGNMENT,
        attribute::MAX_DIMS,
    ];
    ok(synDeviceGetAttributeByModuleId(
        values.as_mut_ptr(),
        which.as_ptr(),
        4,
        6,
    ));
    assert_eq!(values, [1 << 30, 0, 128, 8]);
    assert_eq!(
        synDeviceGetAttributeByModuleId(values.as_mut_ptr(), which.as_ptr(), 4, 0),
        NO_DEVICE
    );
    noticed(&[]);
}

#[test]
fn each_way_acquires_one_card() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    ok(synInitialize());
    // No such card; the number says so.
    let absent: [&dyn Fn(&mut u32) -> i32; 2] = [
        &|id| synDeviceAcquire(id, c"0000:99:00.0".as_ptr()),
        &|id| synDeviceAcquireByModuleId(id, 3),
    ];
    for acquire in absent {
        let mut id = 9;
        assert_eq!((acquire(&mut id), id), (NO_DEVICE, NO_ID));
    }
    let mut id = 9;
    assert_eq!(synDeviceAcquireByDeviceType(&mut id, GAUDI3), TYPE_MISMATCH);
    for refused in [
        synDeviceAcquire(ptr::null_mut(), ptr::null()),
        synDeviceAcquireByModuleId(ptr::null_mut(), 7),
        synDeviceAcquireByDeviceType(ptr::null_mut(), GAUDI2),
    ] {
        assert_eq!(refused, INVALID_ARGUMENT);
    }
    assert_eq!(control("live"), "devices 0");
    let ways: [&dyn Fn(&mut u32) -> i32; 6] = [
        &|id| synDeviceAcquire(id, ptr::null()),
        &|id| synDeviceAcquire(id, c"".as_ptr()),
        &|id| synDeviceAcquire(id, CARDS[1].1.as_ptr()),
        &|id| synDeviceAcquireByModuleId(id, CARDS[1].0),
        &|id| synDeviceAcquireByDeviceType(id, GAUDI2),
        &|id| synDeviceAcquireByDeviceType(id, ANY_TYPE),
    ];
    for (way, acquire) in ways.into_iter().enumerate() {
        let card = usize::from([2, 3].contains(&way));
        ok(acquire(&mut id));
        assert_eq!(id, 0, "way {way}");
        let mut info = Info::default();
        ok(synDeviceGetInfoV2(id, &mut info));
        assert_eq!((usize::from(info.index), info.kind), (card, GAUDI2));
        let bus = text(13, |to| ok(synDeviceGetPCIBusId(to, 13, id)));
        assert_eq!(bus.as_bytes(), CARDS[card].1.to_bytes());
        // A process has one, whichever way it asks for another; its number stays as it was.
        for again in ways {
            let mut second = 5;
            assert_eq!((again(&mut second), second), (ALREADY_ACQUIRED, 5));
        }
        released(&[]);
        assert_eq!(synDeviceRelease(id), NO_DEVICE, "once is enough");
    }
}

#[test]
fn a_card_is_described() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let mut info = Info::default();
    ok(synDeviceGetInfoV2(0, &mut info));
    assert_eq!((info.dram_size, info.dram_enabled), (1 << 30, 1));
    assert!(info.hbm_base >> 47 != 0, "no program's pointer");
    let name = |len| text(len, |to| ok(synDeviceGetName(to, len as i32, 0)));
    assert_eq!([name(32), name(7), name(4)], ["GAUDI2", "GAUDI2", "GAU"]);
    let mut room = [0; 16];
    let to = room.as_mut_ptr();
    for refused in [
        synDeviceGetName(to, 0, 0),
        synDeviceGetName(to, -1, 0),
        synDeviceGetName(ptr::null_mut(), 16, 0),
        synDeviceGetPCIBusId(to, 12, 0),
        synDeviceGetPCIBusId(ptr::null_mut(), 16, 0),
        synDeviceGetInfoV2(0, ptr::null_mut()),
        synDeviceGetMemoryInfo(0, &mut 0, ptr::null_mut()),
        synDeviceGetMemoryInfo(0, ptr::null_mut(), &mut 0),
        synDeviceGetAttribute(ptr::null_mut(), [0].as_ptr(), 1, 0),
        synDeviceGetAttribute(&mut 0, ptr::null(), 1, 0),
    ] {
        assert_eq!(refused, INVALID_ARGUMENT);
    }
    // One that nobody knows spoils the answer, not the others.
    let which = [attribute::DRAM_SIZE, 99, attribute::SRAM_BASE];
    let mut values = [9; 3];
    let status = synDeviceGetAttribute(values.as_mut_ptr(), which.as_ptr(), 3, 0);
    assert_eq!(
        (status, values),
        (UNSUPPORTED, [1 << 30, 9, info.sram_base])
    );
    // A type's attributes are the device's once there is one, but for what is taken of it.
    let mut value = 0;
    ok(synDeviceTypeGetAttribute(
        &mut value,
        &attribute::DRAM_SIZE,
        1,
        GAUDI2,
    ));
    assert_eq!(value, 1 << 30);
    assert_eq!(
        synDeviceTypeGetAttribute(&mut value, &attribute::DRAM_FREE, 1, GAUDI2),
        UNSUPPORTED
    );
    noticed(&[]);
    // The one device of a process is 0.
    let (mut free, mut total) = (0, 0);
    for refused in [
        synDeviceGetMemoryInfo(1, &mut free, &mut total),
        synDeviceRelease(NO_ID),
    ] {
        assert_eq!(refused, NO_DEVICE);
    }
    released(&["device number 1", "device number 4294967295"]);
}

#[test]
fn versions_and_statuses_are_told_before_anything() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    let version = text(64, |to| ok(synDriverGetVersion(to, 64)));
    assert_eq!(version.split('.').count(), 4, "{version}");
    let short = text(3, |to| ok(synDriverGetVersion(to, 3)));
    assert_eq!(short, version[..2]);
    let of = |status, len| text(len, |to| ok(synStatusGetBriefDescription(status, to, len)));
    let mut all: Vec<String> = (0..=43).map(|status| of(status, DESCRIPTION)).collect();
    assert!(all.iter().all(|text| !text.is_empty()));
    assert_eq!(of(22, 4), all[22][..3]);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 44);
    let mut room = [0; DESCRIPTION];
    let to = room.as_mut_ptr();
    assert_eq!(synStatusGetBriefDescription(99, to, DESCRIPTION), FAIL);
    assert_eq!(synStatusGetBriefDescription(-1, to, DESCRIPTION), FAIL);
    for refused in [
        synStatusGetBriefDescription(0, ptr::null_mut(), DESCRIPTION),
        synStatusGetBriefDescription(0, to, 0),
        synDriverGetVersion(ptr::null_mut(), 64),
        synDriverGetVersion(to, 0),
    ] {
        assert_eq!(refused, INVALID_ARGUMENT);
    }
}
