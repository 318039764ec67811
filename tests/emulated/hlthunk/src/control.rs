#![allow(unsafe_code)]
//! The one exported name that is not the vendor's: a test's hand on the emulator. The crate's documentation lists the words.
//!
//! # Safety
//! The C caller gives a string that ends with a zero byte, and room for so many bytes as it says. `recv` writes into a local of its length.

use std::{
    ffi::c_char,
    fmt::Write as _,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use wharf_emulated_common::{
    control::{Answer, control, number, usual},
    pattern,
};

use crate::{gate::emulator, memory::Place, node::Card, session::Session, settings};

/// Carries out a command; the answer's length in bytes, or -1 when the command was not understood, with a reason.
///
/// The answer is cut to `room` bytes, its zero byte among them; its length is the whole one.
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
    settings::load();
    let words: Vec<&str> = command.split_ascii_whitespace().collect();
    // Before anything else begins: the number of cards cannot be changed later.
    if let Some(answer) = settings::SETTINGS.command(&words) {
        return answer;
    }
    let emulator = emulator();
    let journal = &emulator.journal;
    if let Some(answer) = usual(&words, journal, &emulator.faults) {
        return answer;
    }
    match words[..] {
        ["reset"] => {
            journal.clear();
            emulator.faults.clear();
            for card in &emulator.machine.cards {
                card.hold.set(None);
            }
        }
        ["hold"] => all(|card| card.hold.set(Some(0))),
        ["hold", which] => card(which)?.hold.set(Some(0)),
        ["release"] => all(|card| card.hold.set(None)),
        ["release", which] => card(which)?.hold.set(None),
        ["step", which, count] => card(which)?.hold.step(number(count)?),
        ["state", which, state] => card(which)?.state.store(number(state)? as i32, SeqCst),
        ["busy", which, busy] => card(which)?.busy.store(number(busy)? != 0, SeqCst),
        ["break", which, events] => session(which)?.reset(number(events)?),
        ["abort", which] => session(which)?.abort(),
        ["fill", which, address, len, seed] => {
            let seed = number(seed)?;
            pieces(
                which,
                number(address)?,
                number(len)?,
                |session, at, len, index| {
                    let mut bytes = vec![0; len as usize];
                    pattern::fill(&mut bytes, seed, index);
                    session
                        .backing
                        .write(at, &bytes)
                        .map_err(|error| error.to_string())
                },
            )?;
        }
        ["compare", which, address, len, seed] => {
            let seed = number(seed)?;
            let mut wrong = None;
            pieces(
                which,
                number(address)?,
                number(len)?,
                |session, at, len, index| {
                    let mut bytes = vec![0; len as usize];
                    session
                        .backing
                        .read(at, &mut bytes)
                        .map_err(|error| error.to_string())?;
                    let mut places = (index..).zip(&bytes);
                    let found = places.find(|(index, byte)| pattern::byte(seed, *index) != **byte);
                    wrong = wrong.or_else(|| found.map(|(index, byte)| (index, *byte)));
                    Ok(())
                },
            )?;
            return Ok(match wrong {
                None => "same".to_owned(),
                Some((index, byte)) => format!(
                    "byte {index} is {byte:#04x}, not {:#04x}",
                    pattern::byte(seed, index)
                ),
            });
        }
        ["dmabuf", fd] => return dmabuf(number(fd)? as i32),
        ["live"] => return Ok(live()),
        _ => return Err(format!("{command:?} is no command")),
    }
    Ok(String::new())
}

fn all(run: impl Fn(&Card)) {
    emulator().machine.cards.iter().for_each(run);
}

fn card(which: &str) -> Result<&'static Card, String> {
    let card = emulator().machine.cards.get(number(which)? as usize);
    card.ok_or_else(|| "no such card".to_owned())
}

fn session(which: &str) -> Result<Arc<Session>, String> {
    let session = card(which)?.session.lock().clone();
    session.ok_or_else(|| "the card is not open here".to_owned())
}

/// Device memory at a mapped address, in pieces of at most 1 MiB.
fn pieces(
    which: &str,
    address: u64,
    len: u64,
    mut run: impl FnMut(&Session, u64, u64, u64) -> Result<(), String>,
) -> Result<(), String> {
    let session = session(which)?;
    let places = session.tables.lock().memory.resolve(address, len);
    let places = places.map_err(|()| "not in one mapping".to_owned())?;
    let mut index = 0;
    for (place, len) in places {
        let Place::Device(at) = place else {
            return Err("host memory".to_owned());
        };
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(1 << 20);
            run(&session, at + done, piece, index)?;
            done += piece;
            index += piece;
        }
    }
    Ok(())
}

/// The line of text that lies in a dma-buf; it stays there.
fn dmabuf(fd: i32) -> Answer {
    let mut bytes = [0_u8; 256];
    // SAFETY: a local of this length.
    let got = unsafe {
        libc::recv(
            fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    let len = usize::try_from(got).map_err(|_| "no dma-buf".to_owned())?;
    let text = String::from_utf8_lossy(&bytes[..len]);
    let line = text.split_once('\n').ok_or("no dma-buf")?.0;
    Ok(line.to_owned())
}

/// How much of everything there is: for tests that nothing is left.
fn live() -> String {
    let mut sum = [0_u64; 8];
    for card in &emulator().machine.cards {
        // A child that was being started had its descriptor for a moment when it was closed here.
        card.settle();
        let session = card.session.lock().clone();
        let Some(session) = session else { continue };
        let tables = session.tables.lock();
        sum[0] += 1;
        sum[1] += tables.memory.allocations.len() as u64;
        sum[2] += tables.memory.host.len() as u64;
        sum[3] += tables.buffers.len() as u64;
        sum[4] += tables.fences.running() as u64;
        sum[5] += u64::from(tables.has_notifier());
        sum[6] = sum[6].max(session.waiting_peak.load(SeqCst) as u64);
        sum[7] += session.held_up.load(SeqCst);
    }
    let names = [
        "sessions",
        "allocations",
        "mappings",
        "buffers",
        "running",
        "notifiers",
        "waits_peak",
        "held_up",
    ];
    let mut text = String::new();
    for (name, number) in names.iter().zip(sum) {
        let _ = writeln!(text, "{name} {number}");
    }
    let exported = emulator().machine.cards.iter();
    let exported = exported.filter(|card| card.is_exported(None)).count();
    let _ = writeln!(text, "exported {exported}");
    text
}
