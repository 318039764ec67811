//! The one exported name that is not SCAL's: a test's hand on the emulator. The crate's documentation lists the words.
//!
//! # Safety
//! The C caller gives a string that ends with a zero byte, and room for so many bytes as it says.

use std::{ffi::c_char, sync::atomic::Ordering::SeqCst};

use wharf_emulated_common::control::{Answer, control, number, usual};

use crate::scal;

/// Carries out a command; the answer's length in bytes, or -1 when the command was not understood, with a reason.
#[unsafe(no_mangle)]
extern "C" fn wharf_emulated_control(
    command: *const c_char,
    answer: *mut c_char,
    room: usize,
) -> isize {
    // SAFETY: as the C caller says.
    unsafe { control(command, answer, room, run) }
}

fn run(command: &str) -> Answer {
    let words: Vec<&str> = command.split_ascii_whitespace().collect();
    let scal = scal();
    if let Some(answer) = usual(&words, &scal.journal, &scal.faults) {
        return answer;
    }
    match words[..] {
        ["live"] => return Ok(scal.handles.lock().len().to_string()),
        ["reset"] => {
            scal.journal.clear();
            scal.faults.clear();
            scal.lies.lock().clear();
            scal.failing.store(0, SeqCst);
        }
        ["failing", code] => scal.failing.store(number(code)?, SeqCst),
        ["lie", word, value] => {
            let word = number(word)? as usize;
            if word > 8 {
                return Err("an info has 9 words".to_owned());
            }
            scal.lies.lock().push((word, number(value)?));
        }
        _ => return Err(format!("{command:?} is no command")),
    }
    Ok(String::new())
}
