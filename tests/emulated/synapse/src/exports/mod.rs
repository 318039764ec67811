#![allow(unsafe_code)]
//! The exported names: how one is defined, and how it answers.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is Synapse itself. Pointers come from a C caller, whose
//! duty is that they are good for the call; null is checked.

use std::{
    ffi::{c_char, c_int},
    sync::Arc,
};

use crate::{
    abi::{Outcome, Status},
    device::Device,
    stream::{Event, Stream},
};

mod devices;
mod memory;
mod order;
mod system;
mod work;

/// Defines exported functions: `[what it needs] fn name(arguments) |call| { work }`.
macro_rules! exports {
    ($([$needs:ident] fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$call:ident| $work:block)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> i32 {
            let words: &[u64] = &[$($argument as u64),*];
            let mut arguments = [0; 4];
            for (place, word) in arguments.iter_mut().zip(words) {
                *place = *word;
            }
            $crate::gate::enter(
                stringify!($name),
                $crate::gate::Needs::$needs,
                arguments,
                move |$call: &$crate::gate::Call| $work,
            )
        }
    )* };
}
use exports;

/// That what a caller points to is there.
fn given<T>(at: *const T) -> Outcome {
    if at.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    Ok(())
}

/// Writes a result where the caller wants it.
fn put<T>(to: *mut T, value: T) -> Outcome {
    given(to)?;
    // SAFETY: not null, and the C caller's duty is that it points to room for a T; it may be unaligned.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes one of several results.
fn put_at<T>(to: *mut T, index: usize, value: T) -> Outcome {
    given(to)?;
    // SAFETY: the C caller's duty is that there is room for so many.
    unsafe { to.add(index).write_unaligned(value) };
    Ok(())
}

/// One of several values that a caller gives.
fn take<T: Copy>(from: *const T, index: usize) -> Outcome<T> {
    given(from)?;
    // SAFETY: the C caller's duty is that there are so many.
    Ok(unsafe { from.add(index).read_unaligned() })
}

/// Writes a text, cut to the room that there is, with the zero byte that ends it.
fn put_text(to: *mut c_char, room: usize, text: &str) -> Outcome {
    given(to)?;
    let last = room.checked_sub(1).ok_or(Status::INVALID_ARGUMENT)?;
    let bytes = text.bytes().take(last).chain([0]);
    for (index, byte) in bytes.enumerate() {
        put_at(to, index, byte as c_char)?;
    }
    Ok(())
}

/// The room for a text that a caller counts in an `int`.
fn room(len: c_int) -> usize {
    usize::try_from(len).unwrap_or(0)
}

/// Flags of which there are none.
fn none(flags: u32, refused: Status) -> Outcome {
    if flags != 0 {
        return Err(refused);
    }
    Ok(())
}

fn find_stream(device: &Device, handle: u64) -> Outcome<Arc<Stream>> {
    let objects = device.objects.lock();
    let found = objects.streams.get(&handle).cloned();
    found.ok_or(Status::INVALID_ARGUMENT)
}

fn find_event(device: &Device, handle: u64) -> Outcome<Arc<Event>> {
    let objects = device.objects.lock();
    let found = objects.events.get(&handle).cloned();
    found.ok_or(Status::INVALID_EVENT_HANDLE)
}
