//! What tests tell the emulator.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    ffi::{CStr, c_char},
    sync::atomic::Ordering,
};

use wharf_emulated_common::backing::is_mapped;

use crate::{
    device::NETS,
    world::{FAULTS, JOURNAL, WORLD},
};

/// Does what `text` says and writes the answer; its length, or −1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn wharf_emulated_verbs_control(
    text: *const c_char,
    to: *mut c_char,
    room: usize,
) -> isize {
    // SAFETY: a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let answer = control(&text);
    let (text, fine) = match &answer {
        Ok(text) => (text, true),
        Err(text) => (text, false),
    };
    let length = text.len().min(room.saturating_sub(1));
    // SAFETY: so much room is given.
    unsafe {
        to.copy_from(text.as_ptr().cast(), length);
        to.add(length).write(0);
    }
    if fine { length as isize } else { -1 }
}

fn control(text: &str) -> Result<String, String> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match word {
        "fault" => FAULTS
            .add(rest)
            .map(|()| String::new())
            .map_err(|error| error.to_string()),
        "clear" => {
            FAULTS.clear();
            JOURNAL.clear();
            Ok(String::new())
        }
        "misuses" => Ok(JOURNAL.misuses()),
        "live" => Ok((WORLD.lock().live() + crate::cm::live()).to_string()),
        "break" => {
            let Some((device, what)) = rest.split_once(' ') else {
                return Err("break DEVICE cq|srq|qp".to_owned());
            };
            let device = device.parse().map_err(|_| "no device".to_owned())?;
            Ok(WORLD.lock().break_all(device, what).to_string())
        }
        "port" => {
            let numbers: Vec<u32> = rest
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect();
            let [device, state] = numbers[..] else {
                return Err("port DEVICE STATE".to_owned());
            };
            let mut world = WORLD.lock();
            let Some(port) = world.ports.get_mut(device as usize) else {
                return Err("no such device".to_owned());
            };
            *port = state;
            // IBV_PORT_ACTIVE; IBV_EVENT_PORT_ACTIVE and PORT_ERR.
            let kind = if state == 4 { 9 } else { 10 };
            let open = world.contexts_of(device as usize);
            for context in &open {
                world.tell(*context, 1, kind);
            }
            Ok(open.len().to_string())
        }
        "gid" => {
            let Some((device, net)) = rest.split_once(' ') else {
                return Err("gid DEVICE NET".to_owned());
            };
            let device: usize = device.parse().map_err(|_| "no device".to_owned())?;
            let net = net.parse().map_err(|_| "no net".to_owned())?;
            let Some(place) = NETS.get(device) else {
                return Err("no such device".to_owned());
            };
            place.store(net, Ordering::Relaxed);
            let mut world = WORLD.lock();
            let open = world.contexts_of(device);
            for context in &open {
                // IBV_EVENT_GID_CHANGE.
                world.tell(*context, 1, 18);
            }
            Ok(open.len().to_string())
        }
        "left" => {
            let world = WORLD.lock();
            let counts = [
                ("contexts", world.contexts.len()),
                ("pds", world.pds.len()),
                ("mrs", world.mrs.len()),
                ("channels", world.channels.len()),
                ("cqs", world.cqs.len()),
                ("srqs", world.srqs.len()),
                ("qps", world.qps.len()),
                ("cm", crate::cm::live()),
            ];
            let left = counts.iter().filter(|(_, count)| *count > 0);
            let left: Vec<String> = left
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            Ok(left.join(", "))
        }
        "lost" => {
            WORLD.lock().lost = rest == "1";
            Ok(String::new())
        }
        "late" => {
            let mut world = WORLD.lock();
            world.late = rest == "1";
            world.arrive(None);
            Ok(String::new())
        }
        "old" => {
            WORLD.lock().old = rest == "1";
            Ok(String::new())
        }
        "peermem" => {
            WORLD.lock().peermem = rest == "1";
            Ok(String::new())
        }
        "behind" => Ok(WORLD.lock().behind.len().to_string()),
        "dmabuf" => {
            WORLD.lock().dmabuf = rest == "1";
            Ok(String::new())
        }
        "writable" => Ok(WORLD.lock().writable().to_string()),
        "unmapped" => {
            let world = WORLD.lock();
            let gone = world.mrs.values();
            let gone = gone.filter(|mr| mr.file.is_none() && !is_mapped(mr.addr, mr.length));
            Ok(gone.count().to_string())
        }
        "cm" => match rest.parse() {
            Ok(kind) => Ok(crate::cm::tell_all(kind).to_string()),
            Err(_) => Err("cm KIND".to_owned()),
        },
        "count" => Ok(JOURNAL.count(rest).to_string()),
        "event" => {
            let numbers: Vec<usize> = rest
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect();
            let [device, kind, element] = numbers[..] else {
                return Err("event DEVICE KIND ELEMENT".to_owned());
            };
            let mut world = WORLD.lock();
            let open = world.contexts_of(device);
            for context in &open {
                world.tell(*context, element, kind as u32);
            }
            Ok(open.len().to_string())
        }
        other => Err(format!("no such command: {other}")),
    }
}

/// Whoever has the memory that the devices wrote has what is behind come: called by emulated drivers.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn wharf_emulated_flush_writes() {
    WORLD.lock().arrive(None);
}
