#![allow(unsafe_code)]
//! What the exported functions have in common by which tests control emulators.
//!
//! # Safety
//! The C caller gives a string that ends with a zero byte, and room for so many bytes as it says.

use std::ffi::{CStr, c_char};

use crate::{faults::Faults, journal::Journal};

/// The answer to a command, or why it was not understood.
pub type Answer = Result<String, String>;

/// Carries out a command by `run`; the answer's length in bytes, or -1 when the command was not understood, with a reason.
///
/// The answer is cut to `room` bytes, its zero byte among them; its length is the whole one.
///
/// # Safety
/// `command` is null or a string that ends with a zero byte; `answer` is null or has room for `room` bytes.
pub unsafe fn control(
    command: *const c_char,
    answer: *mut c_char,
    room: usize,
    run: impl FnOnce(&str) -> Answer,
) -> isize {
    if command.is_null() {
        return -1;
    }
    // SAFETY: not null, and the caller's string ends with a zero byte.
    let command = unsafe { CStr::from_ptr(command) }.to_string_lossy();
    let (text, understood) = match run(&command) {
        Ok(text) => (text, true),
        Err(reason) => (reason, false),
    };
    if !answer.is_null() && room > 0 {
        let count = text.len().min(room - 1);
        // SAFETY: the caller's room is `room` bytes; the text is another place.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), answer.cast(), count) };
        // SAFETY: count is less than room.
        unsafe { answer.add(count).write(0) };
    }
    if understood { text.len() as isize } else { -1 }
}

/// Carries out a command about the journal or the fault plan. `None`: it is about something else.
pub fn usual(words: &[&str], journal: &Journal, faults: &Faults) -> Option<Answer> {
    let text = match *words {
        ["count", name] => journal.count(name).to_string(),
        ["counts"] => journal.counts(),
        ["calls"] => journal.total().to_string(),
        ["trace"] => journal.calls(),
        ["misuses"] => journal.misuses(),
        ["misused"] => journal.misused().to_string(),
        ["forget"] => {
            journal.clear();
            String::new()
        }
        ["fault", "clear"] => {
            faults.clear();
            String::new()
        }
        ["fault", "waiting"] => faults.waiting().to_string(),
        ["fault", ref plan @ ..] => {
            let mut plan = plan.iter();
            let added = plan.try_for_each(|fault| faults.add(fault));
            return Some(
                added
                    .map(|()| String::new())
                    .map_err(|error| error.to_string()),
            );
        }
        _ => return None,
    };
    Some(Ok(text))
}

/// A number, decimal or after `0x`.
///
/// # Errors
/// It is none.
pub fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no number"))
}
