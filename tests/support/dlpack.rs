//! Tensors as a library hands them over by DLPack, each with an owner that its deleter drops.
//!
//! # Safety
//! A tensor is a box, and its manager another one of its owner: made here, and taken apart by the deleter, once.
#![allow(unsafe_code)]

use std::ffi::c_void;

use wharf::memory::DlpackTensor;

/// `DLManagedTensor`.
#[repr(C)]
struct Tensor<O> {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
    manager: *mut O,
    deleter: Option<extern "C" fn(*mut Self)>,
}

extern "C" fn delete<O>(tensor: *mut Tensor<O>) {
    // SAFETY: a box of `tensor`, and within it another of the owner.
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.manager));
    }
}

/// One of 32-bit floats at an address, row by row, on a device: `DLDeviceType` and its number.
pub(crate) fn tensor<O: Send + Sync + 'static>(
    address: u64,
    shape: &'static [i64],
    device: [i32; 2],
    owner: O,
) -> DlpackTensor {
    let tensor = Box::new(Tensor {
        data: std::ptr::without_provenance_mut(address as usize),
        device,
        ndim: shape.len() as i32,
        code: 2,
        bits: 32,
        lanes: 1,
        shape: shape.as_ptr(),
        strides: std::ptr::null(),
        byte_offset: 0,
        manager: Box::into_raw(Box::new(owner)),
        deleter: Some(delete::<O>),
    });
    // SAFETY: such a tensor, with all that it needs.
    unsafe { DlpackTensor::from_raw(Box::into_raw(tensor).cast()) }.expect("not null")
}
