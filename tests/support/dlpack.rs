//! Tensors as a library hands them over by DLPack, each with an owner that its deleter drops.
//!
//! # Safety
//! A tensor is a box, and its manager another one of its owner: made here, and taken apart by the deleter, once.
#![allow(unsafe_code)]

use std::ffi::c_void;

use wharf::memory::DlpackTensor;

/// `DLTensor`, by the standard.
#[repr(C)]
pub(crate) struct Tensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: [i32; 2],
    pub(crate) ndim: i32,
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
    pub(crate) shape: *const i64,
    pub(crate) strides: *const i64,
    pub(crate) byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Unversioned<O> {
    tensor: Tensor,
    manager: *mut O,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned<O> {
    version: [u32; 2],
    manager: *mut O,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

unsafe extern "C" fn delete<O>(tensor: *mut Unversioned<O>) {
    // SAFETY: a box of `unversioned`, and within it another of the owner.
    unsafe { drop(Box::from_raw(Box::from_raw(tensor).manager)) };
}

unsafe extern "C" fn delete_versioned<O>(tensor: *mut Versioned<O>) {
    // SAFETY: a box of `versioned`, and within it another of the owner.
    unsafe { drop(Box::from_raw(Box::from_raw(tensor).manager)) };
}

/// In the form without a version.
pub(crate) fn unversioned<O: Send + Sync + 'static>(tensor: Tensor, owner: O) -> DlpackTensor {
    let tensor = Box::new(Unversioned {
        tensor,
        manager: Box::into_raw(Box::new(owner)),
        deleter: Some(delete::<O>),
    });
    // SAFETY: such a tensor, with all that it needs.
    unsafe { DlpackTensor::from_raw(Box::into_raw(tensor).cast()) }.expect("not null")
}

/// In that of a version, which may be none that is taken.
pub(crate) fn versioned<O: Send + Sync + 'static>(
    version: [u32; 2],
    flags: u64,
    tensor: Tensor,
    owner: O,
) -> wharf::Result<DlpackTensor> {
    let tensor = Box::new(Versioned {
        version,
        manager: Box::into_raw(Box::new(owner)),
        deleter: Some(delete_versioned::<O>),
        flags,
        tensor,
    });
    // SAFETY: such a tensor, in this version or another.
    unsafe { DlpackTensor::from_raw_versioned(Box::into_raw(tensor).cast()) }
}

/// One of 32-bit floats at an address, row by row, on a device: `DLDeviceType` and its number.
pub(crate) fn tensor<O: Send + Sync + 'static>(
    address: u64,
    shape: &'static [i64],
    device: [i32; 2],
    owner: O,
) -> DlpackTensor {
    let tensor = Tensor {
        data: std::ptr::without_provenance_mut(address as usize),
        device,
        ndim: shape.len() as i32,
        code: 2,
        bits: 32,
        lanes: 1,
        shape: shape.as_ptr(),
        strides: std::ptr::null(),
        byte_offset: 0,
    };
    unversioned(tensor, owner)
}
