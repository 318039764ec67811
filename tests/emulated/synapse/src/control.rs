#![allow(unsafe_code)]
//! The one exported name that is not Synapse's: a test's hand on the emulator. The crate's documentation lists the words.
//!
//! # Safety
//! The C caller gives a string that ends with a zero byte, and room for so many bytes as it says.

use std::{ffi::c_char, fmt::Write as _, sync::Arc, sync::atomic::Ordering::SeqCst};

use wharf_emulated_common::{
    control::{Answer, control, number, usual},
    pattern,
};

use crate::{abi::Status, device::Device, gate::runtime, settings, stream::HELD};

/// Carries out a command; the answer's length in bytes, or -1 when the command was not understood, with a reason.
///
/// The answer is cut to `room` bytes, its zero byte among them; its length is the whole one.
#[unsafe(no_mangle)]
extern "C" fn wharf_emulated_control(
    command: *const c_char,
    answer: *mut c_char,
    room: usize,
) -> isize {
    settings::load();
    // SAFETY: as the C caller says.
    unsafe { control(command, answer, room, run) }
}

fn run(command: &str) -> Answer {
    let words: Vec<&str> = command.split_ascii_whitespace().collect();
    let runtime = runtime();
    let journal = &runtime.journal;
    let known =
        usual(&words, journal, &runtime.faults).or_else(|| settings::SETTINGS.command(&words));
    if let Some(answer) = known {
        return answer;
    }
    match words[..] {
        ["reset"] => {
            journal.clear();
            runtime.faults.clear();
            HELD.store(0, SeqCst);
        }
        ["hold", "all"] => HELD.store(7, SeqCst),
        ["hold", direction] => {
            let direction = number(direction)?;
            if direction > 2 {
                return Err("directions are 0, 1 and 2".to_owned());
            }
            HELD.fetch_or(1 << direction, SeqCst);
        }
        ["release"] => HELD.store(0, SeqCst),
        ["lose", code] => {
            let code = i32::try_from(number(code)?).map_err(|_| "no such code")?;
            device()?.lose(Status(code));
        }
        ["inside"] => return Ok(device()?.inside.load(SeqCst).to_string()),
        ["live"] => {
            let mut text = String::new();
            let Ok(device) = device() else {
                return Ok("devices 0".to_owned());
            };
            for (what, count) in device.live() {
                let _ = writeln!(text, "{what} {count}");
            }
            return Ok(text);
        }
        ["fill", address, len, seed] => {
            let mut bytes = vec![0; number(len)? as usize];
            pattern::fill(&mut bytes, number(seed)?, 0);
            let device = device()?;
            let offset = offset(&device, number(address)?)?;
            device
                .bytes
                .write(offset, &bytes)
                .map_err(|error| error.to_string())?;
        }
        ["compare", address, len, seed] => {
            let bytes = read(address, len)?;
            let seed = number(seed)?;
            let wrong = (0..)
                .zip(&bytes)
                .find(|(index, byte)| pattern::byte(seed, *index) != **byte);
            return Ok(match wrong {
                None => "same".to_owned(),
                Some((index, byte)) => format!(
                    "byte {index} is {byte:#04x}, not {:#04x}",
                    pattern::byte(seed, index)
                ),
            });
        }
        ["digest", address, len] => {
            let digest = pattern::digest(pattern::EMPTY, &read(address, len)?);
            return Ok(format!("{digest:016x}"));
        }
        _ => return Err(format!("{command:?} is no command")),
    }
    Ok(String::new())
}

fn device() -> Result<Arc<Device>, String> {
    let device = runtime().device.lock().clone();
    device.ok_or_else(|| "no device is acquired".to_owned())
}

fn offset(device: &Device, address: u64) -> Result<u64, String> {
    let offset = address.checked_sub(device.card.allocated_base);
    offset.ok_or_else(|| format!("{address:#x} is no address of the device"))
}

fn read(address: &str, len: &str) -> Result<Vec<u8>, String> {
    let device = device()?;
    let offset = offset(&device, number(address)?)?;
    let mut bytes = vec![0; number(len)? as usize];
    device
        .bytes
        .read(offset, &mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}
