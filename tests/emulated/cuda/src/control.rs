#![allow(unsafe_code)]
//! The one exported name that is not CUDA's: a test's hand on the emulator. The crate's documentation lists the words.
//!
//! # Safety
//! The C caller gives a string that ends with a zero byte, and room for so many bytes as it says.

use std::{ffi::c_char, fmt::Write as _, sync::Arc, time::Duration};

use wharf_emulated_common::{
    control::{Answer, control, number, usual},
    pattern,
};

use crate::{
    abi::Status,
    context, copy,
    driver::driver,
    ipc,
    memory::Memory,
    settings,
    stream::{Op, Stream, write_bytes},
};

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
    let journal = &driver().journal;
    let known =
        usual(&words, journal, &driver().faults).or_else(|| settings::SETTINGS.command(&words));
    if let Some(answer) = known {
        return answer;
    }
    match words[..] {
        ["reset"] => {
            journal.clear();
            driver().faults.clear();
            for device in &driver().devices {
                device.hold(None);
            }
        }
        ["hold"] => each_device("all", |device| device.hold(Some(0)))?,
        ["hold", which] => each_device(which, |device| device.hold(Some(0)))?,
        ["release"] => each_device("all", |device| device.hold(None))?,
        ["release", which] => each_device(which, |device| device.hold(None))?,
        ["step", which, count] => {
            let count = number(count)?;
            each_device(which, |device| device.step(count))?;
        }
        ["break", which, code] => {
            let code = u32::try_from(number(code)?).map_err(|_| "no such code")?;
            let device = number(which)? as usize;
            let contexts: Vec<_> = {
                let objects = driver().objects.lock();
                objects.contexts.values().cloned().collect()
            };
            for context in contexts {
                if context.device == device {
                    context.fail(Status(code));
                }
            }
        }
        ["live"] => return Ok(live()),
        ["openings"] => return Ok(ipc::held().to_string()),
        ["memset", address, len, byte] => {
            let byte = number(byte)? as u8;
            let address = number(address)?;
            let device = owner(&driver().memory.lock(), address);
            write_bytes(address, number(len)?, device, |bytes, _| bytes.fill(byte))
                .map_err(failed)?;
        }
        ["fill", address, len, seed] => {
            let seed = number(seed)?;
            let address = number(address)?;
            let device = owner(&driver().memory.lock(), address);
            write_bytes(address, number(len)?, device, |bytes, index| {
                pattern::fill(bytes, seed, index);
            })
            .map_err(failed)?;
        }
        ["compare", address, len, seed] => {
            return compare(number(address)?, number(len)?, number(seed)?);
        }
        ["digest", address, len] => {
            let mut digest = pattern::EMPTY;
            read_pieces(number(address)?, number(len)?, |bytes, _| {
                digest = pattern::digest(digest, bytes);
                true
            })?;
            return Ok(format!("{digest:016x}"));
        }
        ["kernel", stream, micros, ..] => {
            let stream = stream_of(number(stream)?)?;
            let work = match words[3..] {
                ["fill", to, len, seed] => Op::Pattern {
                    to: number(to)?,
                    len: number(len)?,
                    seed: number(seed)?,
                },
                ["break", code] => Op::Break(Status(number(code)? as u32)),
                [] => Op::Nothing,
                _ => {
                    return Err(
                        "a kernel is: fill ADDRESS LEN SEED, break CODE, or nothing".to_owned()
                    );
                }
            };
            let time = Duration::from_micros(number(micros)?);
            stream.push(Op::Sleep(time)).map_err(failed)?;
            stream.push(work).map_err(failed)?;
        }
        _ => return Err(format!("{command:?} is no command")),
    }
    Ok(String::new())
}

fn failed(status: Status) -> String {
    format!("it failed with {}", status.0)
}

fn each_device(which: &str, run: impl Fn(&crate::device::Device)) -> Result<(), String> {
    if which == "all" {
        driver().devices.iter().for_each(run);
        return Ok(());
    }
    let device = driver().devices.get(number(which)? as usize);
    run(device.ok_or("no such device")?);
    Ok(())
}

fn stream_of(handle: u64) -> Result<Arc<Stream>, String> {
    if handle <= 2 {
        let context = context::current().ok_or("no context is current")?;
        return Ok(Arc::clone(context.default_stream()));
    }
    let found = driver().objects.lock().streams.get(&handle).cloned();
    found.ok_or_else(|| "no such stream".to_owned())
}

/// Bytes at any address, in pieces, until `look` has seen enough. Access rights are not asked for.
fn read_pieces(
    address: u64,
    len: u64,
    mut look: impl FnMut(&[u8], u64) -> bool,
) -> Result<(), String> {
    let mut piece = vec![0; len.min(1 << 20) as usize];
    let mut done = 0;
    while done < len {
        let count = (len - done).min(piece.len() as u64) as usize;
        let device = owner(&driver().memory.lock(), address);
        copy::read(address + done, &mut piece[..count], device).map_err(failed)?;
        if !look(&piece[..count], done) {
            break;
        }
        done += count as u64;
    }
    Ok(())
}

fn owner(memory: &Memory, address: u64) -> usize {
    match (memory.allocation(address), memory.mapping(address)) {
        (Some(allocation), _) => allocation.device,
        (None, Some(mapping)) => mapping.physical.device(),
        _ => 0,
    }
}

/// `same`, or the first byte that is not the pattern's.
fn compare(address: u64, len: u64, seed: u64) -> Answer {
    let mut wrong = None;
    read_pieces(address, len, |bytes, start| {
        let found = (start..)
            .zip(bytes)
            .find(|(index, byte)| pattern::byte(seed, *index) != **byte);
        wrong = found.map(|(index, byte)| (index, *byte));
        wrong.is_none()
    })?;
    Ok(match wrong {
        None => "same".to_owned(),
        Some((index, byte)) => format!(
            "byte {index} is {byte:#04x}, not {:#04x}",
            pattern::byte(seed, index)
        ),
    })
}

/// How much of everything there is: for tests that nothing is left.
fn live() -> String {
    let mut text = String::new();
    {
        let objects = driver().objects.lock();
        let _ = writeln!(text, "contexts {}", objects.contexts.len());
        let _ = writeln!(text, "streams {}", objects.streams.len());
        let _ = writeln!(text, "events {}", objects.events.len());
        let _ = writeln!(text, "pools {}", objects.pools.len());
        let _ = writeln!(text, "modules {}", objects.modules.len());
    }
    let memory = driver().memory.lock();
    let bytes: u64 = driver()
        .devices
        .iter()
        .map(crate::device::Device::used)
        .sum();
    let registered = memory
        .pinned
        .values()
        .filter(|pinned| pinned.pages.is_none())
        .count();
    let _ = writeln!(text, "bytes {bytes}");
    let _ = writeln!(text, "allocations {}", memory.allocations.len());
    let _ = writeln!(text, "pinned {}", memory.pinned.len() - registered);
    let _ = writeln!(text, "registered {registered}");
    let _ = writeln!(text, "opened {}", memory.opened.len());
    let _ = writeln!(text, "reserved {}", memory.reserved.len());
    let _ = writeln!(text, "mappings {}", memory.mappings.len());
    let _ = writeln!(text, "handles {}", memory.handles.len());
    let _ = writeln!(text, "windows {}", memory.pins.len());
    text
}
