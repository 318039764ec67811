//! Copies behind a program's own HIP streams.
//!
//! # Safety
//! The library that is loaded runs nothing when it is.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use wharf::{
    MemoryType,
    transport::{SendError, accelerator::DevicePlace},
};

use crate::{
    alone::{child_with, is_child},
    error::{Error, ErrorKind},
    fake::Fakes,
    fixture::{Bench, Parked, accelerator},
    hip::{Hip, alone, compile, stream},
    support::this_test,
};

fn after(bench: &mut Bench, number: usize, token: u64) -> Result<(), Error> {
    match bench.engine.after(stream(number).into(), token) {
        Ok(()) => Ok(()),
        Err(SendError::Full) => Err(Error::new(ErrorKind::WouldBlock, "full")),
        Err(SendError::Failed(error)) => Err(error),
    }
}

#[test]
fn without_hip_there_is_no_stream() {
    let mut bench = Bench::new();
    let error = after(&mut bench, 16, 1).expect_err("no HIP");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("HIP"), "{error}");
    let then = bench.engine.then(stream(16).into(), &[]);
    let Err(SendError::Failed(error)) = then else {
        panic!("{then:?}");
    };
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("HIP"), "{error}");
}

#[test]
fn a_place_is_told_when_it_is_reached() {
    if !is_child() {
        return alone(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    after(&mut bench, 16, 1).expect_err("the program has not loaded it yet");
    let hip = Hip::load();
    let mut parked = Parked::new(&mut bench);
    // Polled, parked, and several at once, each with its own.
    after(&mut bench, 16 * 7, 1).expect("marks");
    bench.drain(1);
    after(&mut bench, 16 * 7, 2).expect("marks");
    parked.drain(&mut bench, 1);
    for (token, number) in [(3, 16 * 40), (4, 0), (5, 16 * 20), (6, 16), (7, 16 * 30)] {
        after(&mut bench, number, token).expect("marks");
    }
    bench.drain(5);
    let tokens = bench.sink.done.iter().map(|(token, result)| {
        assert!(result.is_ok());
        *token
    });
    assert!(tokens.eq([1, 2, 4, 6, 5, 7, 3]));
    let error = after(&mut bench, 999, 8).expect_err("no stream");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let (pinned, device) = (bench.pinned(64), bench.allocate(MemoryType::Rocm(0), 64));
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("copies");
    // Left behind at the end.
    after(&mut bench, 16 * 1_000_000, 9).expect("marks");
    bench
        .engine
        .quiesce(Instant::now() + Duration::from_millis(300));
    let place: DevicePlace = stream(0).into();
    assert_eq!(place.accelerator(), "rocm_copy");
    drop(bench);
    assert_eq!(hip.events(), 0, "every event is destroyed");
}

/// The program's word comes before the variable's, and the library is found where the program has it.
#[test]
fn the_program_names_hip() {
    if !is_child() {
        let fakes = Fakes::new();
        let path = compile(&fakes);
        let variables = [
            ("WHARF_LIBHIP", "/nowhere/libamdhip64.so"),
            ("WHARFTEST_HIP", path.to_str().expect("UTF-8")),
        ];
        return child_with(this_test!(), &variables);
    }
    let path = std::env::var("WHARFTEST_HIP").expect("given");
    // SAFETY: the library that was compiled for it, which runs nothing when it is loaded.
    let _library = unsafe { libloading::Library::new(&path) }.expect("loads");
    let mut bench = Bench::new();
    let error = after(&mut bench, 16, 1).expect_err("not the one that is named");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let mut bench = Bench::with(accelerator().hip(path));
    after(&mut bench, 16, 1).expect("marks");
    bench.drain(1);
}
