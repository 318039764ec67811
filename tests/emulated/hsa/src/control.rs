#![allow(unsafe_code)]
//! The one exported name that is not HSA's: a test's hand on the emulator. The crate's documentation lists the words.
//!
//! # Safety
//! The C caller gives a string that ends with a zero byte, and room for so many bytes as it says.

use std::ffi::c_char;

use wharf_emulated_common::{
    backing::copy_host,
    control::{Answer, control, number, usual},
    pattern,
};

use crate::{
    agent::{self, Index},
    event,
    memory::Place,
    runtime::runtime,
    settings, share,
};

/// Carries out a command; the answer's length in bytes, or -1 when the command was not understood, with a reason.
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
    let journal = &runtime().journal;
    let known =
        usual(&words, journal, &runtime().faults).or_else(|| settings::SETTINGS.command(&words));
    if let Some(answer) = known {
        return answer;
    }
    match words[..] {
        ["reset"] => {
            journal.clear();
            runtime().faults.clear();
            for by in agent::all() {
                runtime().work.lock().hold(by, None);
            }
        }
        ["hold"] => each_device(None, |by| runtime().work.lock().hold(by, Some(0)))?,
        ["hold", which] => each_device(Some(which), |by| runtime().work.lock().hold(by, Some(0)))?,
        ["release"] => each_device(None, |by| runtime().work.lock().hold(by, None))?,
        ["release", which] => each_device(Some(which), |by| runtime().work.lock().hold(by, None))?,
        ["step", which, count] => {
            let count = number(count)?;
            each_device(Some(which), |by| runtime().work.lock().step(by, count))?;
        }
        ["break", which] => each_device(Some(which), event::hardware_failed)?,
        ["live"] => return Ok(live()),
        ["memset", address, len, byte] => {
            let byte = number(byte)? as u8;
            write(number(address)?, number(len)?, |bytes, _| bytes.fill(byte))?;
        }
        ["fill", address, len, seed] => {
            let seed = number(seed)?;
            write(number(address)?, number(len)?, |bytes, index| {
                pattern::fill(bytes, seed, index);
            })?;
        }
        ["compare", address, len, seed] => {
            return compare(number(address)?, number(len)?, number(seed)?);
        }
        ["digest", address, len] => {
            let bytes = read(number(address)?, number(len)?)?;
            return Ok(format!("{:016x}", pattern::digest(pattern::EMPTY, &bytes)));
        }
        _ => return Err(format!("{command:?} is not understood")),
    }
    Ok(String::new())
}

/// All devices, or one.
fn each_device(which: Option<&str>, run: impl Fn(Index)) -> Result<(), String> {
    let Some(which) = which else {
        agent::all().skip(1).for_each(run);
        return Ok(());
    };
    let index = number(which)? as usize + 1;
    if !agent::all().contains(&index) {
        return Err(format!("there is no device {which}"));
    }
    run(index);
    Ok(())
}

fn place(address: u64, len: u64) -> Result<Place, String> {
    let found = runtime().memory.lock().any_place(address, len);
    found.ok_or_else(|| format!("no {len} bytes at {address:#x}"))
}

fn write(address: u64, len: u64, fill: impl Fn(&mut [u8], u64)) -> Result<(), String> {
    let mut bytes = vec![0; len as usize];
    fill(&mut bytes, 0);
    match place(address, len)? {
        Place::Device(backing, offset) => backing.write(offset, &bytes),
        Place::Host(at) => copy_host(at, bytes.as_ptr().expose_provenance() as u64, len),
    }
    .map_err(|error| error.to_string())
}

fn read(address: u64, len: u64) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len as usize];
    match place(address, len)? {
        Place::Device(backing, offset) => backing.read(offset, &mut bytes),
        Place::Host(at) => copy_host(bytes.as_mut_ptr().expose_provenance() as u64, at, len),
    }
    .map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// `same`, or the first byte that is not the pattern's.
fn compare(address: u64, len: u64, seed: u64) -> Answer {
    let bytes = read(address, len)?;
    let wrong = (0..)
        .zip(&bytes)
        .find(|(at, byte)| pattern::byte(seed, *at) != **byte);
    Ok(match wrong {
        None => "same".to_owned(),
        Some((at, byte)) => format!(
            "byte {at} is {byte:#04x}, not {:#04x}",
            pattern::byte(seed, at)
        ),
    })
}

/// How much of everything there is: for tests that nothing is left.
fn live() -> String {
    let memory = runtime().memory.lock().live();
    let work = runtime().work.lock();
    let (copies, handlers) = work.waiting();
    format!(
        "{memory}dmabufs {}\nsignals {}\ncopies {copies}\nhandlers {handlers}\ninitialised {}\n",
        share::exported(),
        work.signals.0.len(),
        runtime().count()
    )
}
