//! Copies: late, in any order, every byte right; what goes wrong when memory has gone.

use crate::api::*;

/// A small generator, so that a failure can be had again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Random copies between pinned, pageable, managed and device memory, ordered by events, against a model.
#[test]
fn random_copies_leave_every_byte_right() {
    const LEN: u64 = 64 << 10;
    let _ctx = Ctx::new(7);
    let mut managed = 0;
    ok(cuMemAllocManaged(&mut managed, LEN as usize, 1));
    let heap = vec![0_u8; LEN as usize]
        .leak()
        .as_mut_ptr()
        .expose_provenance() as u64;
    let places = [
        alloc(LEN as usize),
        alloc(LEN as usize),
        pinned(LEN as usize),
        managed,
        heap,
    ];
    let mut model = vec![vec![0_u8; LEN as usize]; places.len()];
    let streams = [stream(), stream(), stream()];
    let mut last = event();
    let mut numbers = Numbers(0x1234_5678_9ABC_DEF1);
    for round in 0..1500 {
        let stream = streams[numbers.below(3) as usize];
        // Each after the one before, in whatever stream that was.
        ok(cuStreamWaitEvent(stream, last, 0));
        let to = numbers.below(5) as usize;
        let from = numbers.below(5) as usize;
        let len = 1 + numbers.below(2000);
        let at = numbers.below(LEN - len);
        if to == from || round % 7 == 0 {
            if to == 4 {
                continue;
            }
            ok(cuMemsetD8Async(
                places[to] + at,
                round as u8,
                len as usize,
                stream,
            ));
            model[to][at as usize..(at + len) as usize].fill(round as u8);
        } else {
            let out_of = numbers.below(LEN - len);
            // A pageable source may be read in the call: what was on its way to it has been waited for, as copies to
            // pageable memory are.
            ok(cuMemcpyAsync(
                places[to] + at,
                places[from] + out_of,
                len as usize,
                stream,
            ));
            let bytes = model[from][out_of as usize..(out_of + len) as usize].to_vec();
            model[to][at as usize..(at + len) as usize].copy_from_slice(&bytes);
        }
        let next = event();
        ok(cuEventRecord(next, stream));
        ok(cuEventDestroy_v2(last));
        last = next;
    }
    ok(cuEventSynchronize(last));
    for (place, wanted) in places.into_iter().zip(&model) {
        let mut found = vec![0_u8; LEN as usize];
        ok(copy_out(&mut found, place));
        assert!(found == *wanted, "bytes differ at {place:#x}");
    }
}

/// To pageable memory, which is waited for.
fn copy_out(to: &mut [u8], from: u64) -> u32 {
    cuMemcpyAsync(
        to.as_mut_ptr().expose_provenance() as u64,
        from,
        to.len(),
        0,
    )
}

#[test]
fn a_source_is_read_when_its_turn_comes() {
    let _ctx = Ctx::new(8);
    let (device, host, stream) = (alloc(64), pinned(64), stream());
    bytes(host, 64).fill(1);
    control("hold 8");
    ok(cuMemcpyAsync(device, host, 64, stream));
    assert_eq!(cuStreamQuery(stream), 600);
    bytes(host, 64).fill(2);
    control("step 8 1");
    ok(cuStreamSynchronize(stream));
    control("release 8");
    let mut back = [0; 64];
    ok(copy_out(&mut back, device));
    assert_eq!(back, [2; 64]);
}

#[test]
fn host_memory_that_went_breaks_the_context() {
    let _ctx = Ctx::new(9);
    let (device, stream) = (alloc(4096), stream());
    let pages = map_pages(4096);
    ok(cuMemHostRegister_v2(pages, 4096, 1));
    control("hold 9");
    ok(cuMemcpyAsync(device, pages, 4096, stream));
    unmap_pages(pages, 4096);
    control("release 9");
    assert_eq!(cuStreamSynchronize(stream), 700);
    let mut address = 0;
    assert_eq!(cuMemAlloc_v2(&mut address, 8), 700, "for good");
    assert_eq!(cuMemcpyAsync(device, pages, 8, stream), 700);
}

#[test]
fn device_memory_freed_under_a_copy_is_waited_for_or_breaks_the_context() {
    let _ctx = Ctx::new(10);
    let (device, host, stream) = (alloc(4096), pinned(4096), stream());
    control("hold 10");
    ok(cuMemcpyAsync(device, host, 4096, stream));
    let (sent, waits) = std::sync::mpsc::channel();
    let mut context = 0;
    ok(cuCtxGetCurrent(&mut context));
    std::thread::spawn(move || {
        ok(cuCtxPushCurrent_v2(context));
        ok(cuMemFree_v2(device));
        let _ = sent.send(());
    });
    let pause = std::time::Duration::from_millis(50);
    assert!(waits.recv_timeout(pause).is_err(), "it waits");
    control("release 10");
    waits.recv().expect("it ends");
    assert!(control("misuses").contains(&format!("{device:#x}")));
}

#[test]
fn what_is_not_one_allocation_is_refused() {
    let _ctx = Ctx::new(11);
    let (device, host) = (alloc(512), pinned(4096));
    assert_eq!(cuMemcpyHtoD_v2(device, host, 513), 1);
    assert_eq!(cuMemcpyHtoD_v2(device, 0, 8), 1);
    assert_eq!(
        cuMemcpyHtoD_v2(map_pages(4096), host, 8),
        1,
        "no device memory"
    );
    ok(cuMemcpyHtoD_v2(device, host, 0));
}

#[test]
fn a_wrong_fill_is_seen() {
    let _ctx = Ctx::new(11);
    let (device, stream) = (alloc(5000), stream());
    control(&format!("fill {device} 5000 7"));
    assert_eq!(control(&format!("compare {device:#x} 5000 7")), "same");
    ok(cuMemsetD32Async(device + 1000, 0x0403_0201, 2, stream));
    ok(cuStreamSynchronize(stream));
    let answer = control(&format!("compare {device} 5000 7"));
    assert!(
        answer.starts_with("byte 1000 is 0x01") || answer.starts_with("byte 1001"),
        "{answer}"
    );
}
