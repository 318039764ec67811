//! Buffers of memory that the program allocated itself, where no device is: ordinary memory, tensors by DLPack, arrays by what they say of themselves.
//! Devices': `tests/support/foreign.rs`. Tensors of real libraries: `tests/ecosystem/python.rs`.
//!
//! # Safety
//! What buffers are made of is kept by their owners.
#![allow(unsafe_code)]

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use wharf::{
    Buffer, BufferMut, Context, ErrorKind, MemoryType,
    memory::{ArrayInterface, DlpackTensor},
};

use crate::support::dlpack::{self, Tensor};

fn context() -> Context {
    let builder = Context::builder().transports("self").expect("known");
    builder.build().expect("a context")
}

/// Tells when it is dropped.
struct Owner(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.fetch_add(self.0.len(), SeqCst);
    }
}

#[test]
fn ordinary_memory_and_its_owner() {
    let (context, dropped) = (context(), Arc::new(AtomicUsize::new(0)));
    let owner = Owner((0..100).collect(), Arc::clone(&dropped));
    let address = owner.0.as_ptr().expose_provenance() as u64;
    // SAFETY: the owner has these bytes.
    let buffer = unsafe { Buffer::foreign(&context, address + 10, 80, owner) }.expect("found");
    assert_eq!(buffer.memory_type(), MemoryType::Host);
    let part = buffer.slice(5..7);
    drop(buffer);
    assert_eq!(
        (part.as_slice(), dropped.load(SeqCst)),
        (Some(&[15, 16][..]), 0)
    );
    drop(part);
    assert_eq!(dropped.load(SeqCst), 100);
    for (address, len) in [(0, 1), (u64::MAX, 2)] {
        let owner = Owner(vec![0], Arc::clone(&dropped));
        // SAFETY: refused.
        let refused = unsafe { BufferMut::foreign(&context, address, len, owner) };
        let error = refused.expect_err("no memory there");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    assert_eq!(dropped.load(SeqCst), 102, "the owner goes with the error");
    assert_eq!(
        context.metrics().memory_types.asked,
        0,
        "without devices nobody is"
    );
}

thread_local! {
    static DELETED: Cell<u32> = const { Cell::new(0) };
}

/// What a tensor's deleter drops.
struct Lent;

impl Drop for Lent {
    fn drop(&mut self) {
        DELETED.set(DELETED.get() + 1);
    }
}

const CPU: i32 = 1;
static BYTES: [u8; 240] = {
    let mut bytes = [0; 240];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};

/// Of static bytes, with these dimensions; `strides` empty: none are said.
fn tensor(bits: u8, shape: &'static [i64], strides: &'static [i64]) -> Tensor {
    Tensor {
        data: BYTES.as_ptr().cast_mut().cast(),
        device: [CPU, 0],
        ndim: shape.len() as i32,
        code: 1,
        bits,
        lanes: 1,
        shape: shape.as_ptr(),
        strides: match strides {
            [] => std::ptr::null(),
            strides => strides.as_ptr(),
        },
        byte_offset: 0,
    }
}

fn unversioned(tensor: Tensor) -> DlpackTensor {
    dlpack::unversioned(tensor, Lent)
}

fn versioned(version: [u32; 2], flags: u64, tensor: Tensor) -> wharf::Result<DlpackTensor> {
    dlpack::versioned(version, flags, tensor, Lent)
}

#[test]
fn tensors_in_one_run() {
    let context = context();
    let cases: [(u8, &[i64], &[i64], usize); 10] = [
        (8, &[240], &[], 240),
        (32, &[2, 3, 10], &[30, 10, 1], 240),
        (32, &[2, 3, 10], &[], 240),
        // Of one row it does not matter where the next would be.
        (16, &[1, 5], &[999, 1], 10),
        (64, &[], &[], 8),
        (64, &[0, 7], &[], 0),
        (64, &[7, 0], &[-1, 5], 0),
        (4, &[3, 5], &[], 8),
        (6, &[4], &[], 3),
        (128, &[15], &[1], 240),
    ];
    for (bits, shape, strides, len) in cases {
        let made = unversioned(tensor(bits, shape, strides));
        assert_eq!(made.byte_len().expect("in one run"), len, "{made:?}");
        assert_eq!(made.shape(), shape);
        let buffer = made.into_buffer(&context).expect("a buffer");
        assert_eq!(buffer.as_slice(), Some(&BYTES[..len]));
    }
    let mut later = tensor(8, &[10], &[]);
    later.byte_offset = 100;
    let made = versioned([1, 7], 0, later).expect("of this version");
    let buffer = made.into_buffer(&context).expect("a buffer");
    assert_eq!(buffer.as_slice(), Some(&BYTES[100..110]));
    drop(buffer);
    // Elements of 4 bits, each in a byte of its own.
    let padded = versioned([1, 1], 4, tensor(4, &[3, 5], &[])).expect("of this version");
    assert_eq!(padded.byte_len().expect("in one run"), 15);
    drop(padded);
    assert_eq!(DELETED.get(), cases.len() as u32 + 2, "each once");
}

#[test]
fn tensors_that_are_refused() {
    let context = context();
    let cases: [(u8, &[i64], &[i64]); 7] = [
        (8, &[10, 10], &[1, 10]),
        (8, &[10, 10], &[20, 1]),
        (8, &[10], &[-1]),
        (8, &[10], &[0]),
        (8, &[-1], &[]),
        (8, &[i64::MAX, 3], &[]),
        (64, &[i64::MAX / 4], &[]),
    ];
    for (bits, shape, strides) in cases {
        let refused = unversioned(tensor(bits, shape, strides)).into_buffer(&context);
        let error = refused.expect_err("not in one run");
        assert_eq!(
            error.kind(),
            ErrorKind::InvalidArgument,
            "{shape:?}: {error}"
        );
    }
    let mut beyond = tensor(8, &[10], &[]);
    beyond.byte_offset = u64::MAX;
    assert!(unversioned(beyond).into_buffer(&context).is_err());
    let mut shapeless = tensor(8, &[10], &[]);
    shapeless.shape = std::ptr::null();
    assert!(unversioned(shapeless).byte_len().is_err());
    // Memory of devices that nobody here has: its address is not to be taken for the host's.
    for device in [2, 4, 10, 12, 14, 99] {
        let mut elsewhere = tensor(8, &[10], &[]);
        elsewhere.device = [device, 0];
        let refused = unversioned(elsewhere).into_buffer(&context);
        let error = refused.expect_err("not of this context");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{device}: {error}");
    }
    // Pinned is the host's, whoever pinned it.
    for device in [3, 11] {
        let mut pinned = tensor(8, &[10], &[]);
        pinned.device = [device, 0];
        unversioned(pinned)
            .into_buffer(&context)
            .expect("the host's");
    }
    let newer = versioned([2, 0], 0, tensor(8, &[10], &[]));
    assert_eq!(newer.expect_err("newer").kind(), ErrorKind::Unsupported);
    let read_only = versioned([1, 0], 1, tensor(8, &[10], &[])).expect("of this version");
    assert!(read_only.is_read_only());
    // SAFETY: refused.
    let refused = unsafe { read_only.into_buffer_mut(&context) };
    assert_eq!(
        refused.expect_err("read-only").kind(),
        ErrorKind::AccessDenied
    );
    assert_eq!(
        DELETED.get(),
        7 + 2 + 6 + 2 + 2,
        "each goes back, refused or not"
    );
    // SAFETY: null is refused.
    assert!(unsafe { DlpackTensor::from_raw(std::ptr::null_mut()) }.is_err());
    // SAFETY: as above.
    assert!(unsafe { DlpackTensor::from_raw_versioned(std::ptr::null_mut()) }.is_err());
}

#[test]
fn arrays_by_what_they_say() {
    let context = context();
    let array = |typestr: &str, shape: &[i64], strides: Option<&[i64]>| ArrayInterface {
        data: BYTES.as_ptr().expose_provenance() as u64,
        read_only: false,
        shape: shape.to_vec(),
        typestr: typestr.to_owned(),
        strides: strides.map(<[i64]>::to_vec),
    };
    for (typestr, shape, strides, len) in [
        ("<f4", &[2, 3][..], None, 24),
        ("<f4", &[2, 3], Some(&[12, 4][..]), 24),
        ("|u1", &[240], None, 240),
        (">c16", &[15], Some(&[16]), 240),
        ("<U5", &[12], None, 240),
        ("|V7", &[3], None, 21),
        ("|b1", &[], None, 1),
        ("<i8", &[0], None, 0),
    ] {
        let array = array(typestr, shape, strides);
        // SAFETY: static bytes.
        let buffer = unsafe { Buffer::from_array(&context, &array, ()) }.expect(typestr);
        assert_eq!(buffer.as_slice(), Some(&BYTES[..len]), "{array:?}");
    }
    for (typestr, shape, strides) in [
        ("<f4", &[2, 3][..], Some(&[4, 8][..])),
        ("<f4", &[2, 3], Some(&[12][..])),
        ("<f4", &[-2], None),
        ("f4", &[2], None),
        ("<f", &[2], None),
        ("|O8", &[2], None),
        ("", &[2], None),
        ("<f8", &[i64::MAX / 2], None),
        ("<é4", &[2], None),
    ] {
        let array = array(typestr, shape, strides);
        // SAFETY: refused.
        let refused = unsafe { Buffer::from_array(&context, &array, ()) };
        let error = refused.expect_err("no run of bytes");
        assert_eq!(
            error.kind(),
            ErrorKind::InvalidArgument,
            "{array:?}: {error}"
        );
    }
    let read_only = ArrayInterface {
        read_only: true,
        ..array("|u1", &[1], None)
    };
    // SAFETY: refused.
    let refused = unsafe { BufferMut::from_array(&context, &read_only, ()) };
    assert_eq!(
        refused.expect_err("read-only").kind(),
        ErrorKind::AccessDenied
    );
}
