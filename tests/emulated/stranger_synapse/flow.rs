//! The ordinary flow of a program that copies, from the start to the end, every byte looked at.

use super::api::*;
use crate::support::this_test;

#[test]
fn a_program_copies_there_within_and_back() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[("EMULATED_SYNAPSE_DELAY_US", "500")]);
    }
    const LEN: usize = (1 << 20) + 77;
    let len = LEN as u64;
    ok(synInitialize());
    let (mut count, mut id) = (0, NO_ID);
    ok(synDeviceGetCountByDeviceType(&mut count, GAUDI2));
    assert!(count > 0);
    ok(synDeviceAcquireByDeviceType(&mut id, GAUDI2));
    let (mut before, mut total) = (0, 0);
    ok(synDeviceGetMemoryInfo(id, &mut before, &mut total));
    let mut values = [0; 3];
    let which = [
        attribute::DRAM_SIZE,
        attribute::DRAM_FREE,
        attribute::DEVICE_TYPE,
    ];
    ok(synDeviceGetAttribute(
        values.as_mut_ptr(),
        which.as_ptr(),
        3,
        id,
    ));
    assert_eq!(values, [total, before, u64::from(GAUDI2)]);

    let (one, other) = (malloc(len), malloc(len));
    let mut free = 0;
    ok(synDeviceGetMemoryInfo(id, &mut free, &mut total));
    assert!(free <= before - 2 * len);
    let (mut source, mut target) = (Host::pinned(LEN), Host::mapped(LEN));
    let wanted = pattern(1, LEN);
    source.bytes().copy_from_slice(&wanted);

    let streams = [stream(), stream(), stream()];
    let events = [event(COLLECT_TIME), event(COLLECT_TIME), event(0)];
    ok(synMemCopyAsync(
        streams[0],
        source.address(),
        len,
        one,
        TO_DEVICE,
    ));
    ok(synEventRecord(events[0], streams[0]));
    ok(synStreamWaitEvent(streams[1], events[0], 0));
    ok(synMemCopyAsync(streams[1], one, len, other, WITHIN));
    ok(synEventRecord(events[1], streams[1]));
    ok(synStreamWaitEvent(streams[2], events[1], 0));
    ok(synMemCopyAsync(
        streams[2],
        other,
        len,
        target.address(),
        TO_HOST,
    ));
    ok(synEventRecord(events[2], streams[2]));
    ok(synEventSynchronize(events[2]));
    for event in events {
        ok(synEventQuery(event));
    }
    for stream in streams {
        ok(synStreamQuery(stream));
        ok(synStreamSynchronize(stream));
    }
    assert_eq!(target.bytes(), wanted);
    let mut nanos = u64::MAX;
    ok(synEventElapsedTime(&mut nanos, events[0], events[1]));
    assert!(nanos < 60_000_000_000, "{nanos}");

    ok(synMemsetD32Async(one, 0x0403_0201, LEN / 4, streams[0]));
    ok(synStreamSynchronize(streams[0]));
    ok(synMemCopyAsync(
        streams[0],
        one,
        len,
        target.address(),
        TO_HOST,
    ));
    ok(synDeviceSynchronize(id));
    let filled = LEN / 4 * 4;
    assert!(
        target.bytes()[..filled]
            .chunks(4)
            .all(|word| word == [1, 2, 3, 4])
    );
    assert_eq!(target.bytes()[filled..], wanted[filled..]);

    for event in events {
        ok(synEventDestroy(event));
    }
    for stream in streams {
        ok(synStreamDestroy(stream));
    }
    ok(synDeviceFree(id, one, 0));
    ok(synDeviceFree(id, other, 0));
    ok(synHostFree(id, source.pointer(), 0));
    ok(synHostUnmap(id, target.pointer()));
    ok(synDeviceGetMemoryInfo(id, &mut free, &mut total));
    assert_eq!(free, before);
    released(&[]);
    ok(synDestroy());
    noticed(&[]);
}
