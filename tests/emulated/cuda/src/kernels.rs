//! The kernels of wharf's device channels, known by their names and by the digest of their text.
//!
//! No PTX is run here: what a kernel's comment says is done by the stream's thread, in one go. That shows how wharf loads, launches and orders its kernels,
//! what it passes them and what it makes of their results; not that the PTX is right, nor anything of a device's memory order. An assembler checks
//! the text, and a device what it does. Any other text is refused as by a driver whose compiler is missing.

use std::time::Duration;

use parking_lot::Mutex;
use wharf_emulated_common::{pace::Looks, pattern};

use crate::{
    abi::{Outcome, Status},
    copy,
    driver::driver,
    memory::{Class, Place},
    stream::{read_word, write_word},
};

/// The digest of `src/channel/device/channel.ptx`. Who changes that text looks whether what is done here is still what it says.
const TEXT: u64 = 0xAA16_6BBB_3627_1EC6;

/// A launch, as it is queued.
#[derive(Debug)]
pub(crate) enum Kernel {
    Signal {
        token: u64,
        inc: u64,
    },
    SignalStore {
        token: u64,
        sent: u64,
        inc: u64,
    },
    Wait {
        token: u64,
        taken: u64,
        looks: u64,
        status: u64,
    },
    Put {
        to: u64,
        from: u64,
        len: u64,
        done: u64,
        token: u64,
        inc: u64,
    },
    PacketsPut {
        to: u64,
        from: u64,
        len: u64,
        words: u64,
        flag: u32,
    },
    PacketsGet {
        to: u64,
        from: u64,
        len: u64,
        flag: u32,
        looks: u64,
        status: u64,
    },
}

/// What an operation touches by its address: where, and how many bytes.
pub(crate) type Touched = [Option<(u64, u64)>; 4];

/// Names, and how many bytes each argument has.
pub(crate) const NAMES: [(&str, &[usize]); 6] = [
    ("wharf_signal", &[8, 8]),
    ("wharf_signal_store", &[8, 8, 8]),
    ("wharf_wait", &[8, 8, 8, 8]),
    ("wharf_put", &[8, 8, 8, 8, 8, 8]),
    ("wharf_packets_put", &[8, 8, 8, 8, 4]),
    ("wharf_packets_get", &[8, 8, 8, 4, 8, 8]),
];

/// Additions of this process: two of its streams may add to one word.
static ADDING: Mutex<()> = Mutex::new(());

/// Whether a text is the one that is known here.
pub(crate) fn is_known(text: &str) -> bool {
    let digest = pattern::digest(pattern::EMPTY, text.as_bytes());
    if digest != TEXT {
        eprintln!("emulated CUDA driver: kernels with the digest {digest:#x} are unknown");
    }
    digest == TEXT
}

impl Kernel {
    /// What a launch of the kernel with this number means, checked.
    pub(crate) fn new(index: usize, arguments: &[u64], grid: (u32, u32)) -> Outcome<Self> {
        let kernel = match (NAMES[index].0, arguments) {
            ("wharf_signal", &[token, inc]) => Self::Signal { token, inc },
            ("wharf_signal_store", &[token, sent, inc]) => Self::SignalStore { token, sent, inc },
            ("wharf_wait", &[token, taken, looks, status]) => Self::Wait {
                token,
                taken,
                looks,
                status,
            },
            ("wharf_put", &[to, from, len, done, token, inc]) => Self::Put {
                to,
                from,
                len,
                done,
                token,
                inc,
            },
            ("wharf_packets_put", &[to, from, len, words, flag]) => Self::PacketsPut {
                to,
                from,
                len,
                words,
                flag: flag as u32,
            },
            ("wharf_packets_get", &[to, from, len, flag, looks, status]) => Self::PacketsGet {
                to,
                from,
                len,
                flag: flag as u32,
                looks,
                status,
            },
            _ => return Err(Status::INVALID_VALUE),
        };
        match kernel.complaint(grid) {
            None => Ok(kernel),
            Some(complaint) => {
                driver()
                    .journal
                    .misuse(format!("{complaint}: {kernel:x?} with {grid:?}"));
                Err(Status::INVALID_VALUE)
            }
        }
    }

    /// What is wrong with it.
    fn complaint(&self, grid: (u32, u32)) -> Option<&'static str> {
        // Address, bytes, alignment.
        let (ranges, alone): (&[(u64, u64, u64)], bool) = match self {
            Self::Signal { token, .. } => (&[(*token, 8, 8)], true),
            Self::SignalStore { token, sent, .. } => (&[(*token, 8, 8), (*sent, 8, 8)], true),
            Self::Wait {
                token,
                taken,
                status,
                ..
            } => (&[(*token, 8, 8), (*taken, 8, 8), (*status, 4, 4)], true),
            Self::Put {
                to,
                from,
                len,
                done,
                token,
                ..
            } => {
                let signal = if *token == 0 { 0 } else { 8 };
                let ranges = &[
                    (*to, *len, 1),
                    (*from, *len, 1),
                    (*done, 4, 4),
                    (*token, signal, 8),
                ];
                return ranges_complaint(ranges);
            }
            Self::PacketsPut {
                to,
                from,
                len,
                words,
                flag,
            } => {
                if *flag == 0 || words * 4 < *len {
                    return Some("a flag of 0, or more data than words");
                }
                (&[(*to, words * 8, 8), (*from, *len, 1)], false)
            }
            Self::PacketsGet {
                to,
                from,
                len,
                flag,
                status,
                ..
            } => {
                if *flag == 0 {
                    return Some("a flag of 0");
                }
                let words = len.div_ceil(4);
                (
                    &[(*to, *len, 1), (*from, words * 8, 8), (*status, 4, 4)],
                    false,
                )
            }
        };
        if alone && grid != (1, 1) {
            return Some("more than one thread would do it more than once");
        }
        ranges_complaint(ranges)
    }

    /// Where it reads and writes, and how many bytes.
    pub(crate) fn touches(&self) -> Touched {
        match *self {
            Self::Signal { token, .. } => [Some((token, 8)), None, None, None],
            Self::SignalStore { token, sent, .. } => {
                [Some((token, 8)), Some((sent, 8)), None, None]
            }
            Self::Wait {
                token,
                taken,
                status,
                ..
            } => [Some((token, 8)), Some((taken, 8)), Some((status, 4)), None],
            Self::Put {
                to,
                from,
                len,
                done,
                token,
                ..
            } => [
                Some((to, len)),
                Some((from, len)),
                Some((done, 4)),
                (token != 0).then_some((token, 8)),
            ],
            Self::PacketsPut {
                to,
                from,
                len,
                words,
                ..
            } => [Some((to, words * 8)), Some((from, len)), None, None],
            Self::PacketsGet {
                to,
                from,
                len,
                status,
                ..
            } => [
                Some((to, len)),
                Some((from, len.div_ceil(4) * 8)),
                Some((status, 4)),
                None,
            ],
        }
    }

    /// Does it. `is_over` tells that the context has ended.
    pub(crate) fn run(self, device: usize, is_over: impl Fn() -> bool) -> Outcome {
        match self {
            Self::Signal { token, inc } => add(token, inc, device).map(drop),
            Self::SignalStore { token, sent, inc } => {
                let value = add(sent, inc, device)?;
                write_word(token, value, 8, device)
            }
            Self::Wait {
                token,
                taken,
                looks,
                status,
            } => {
                let passed = until(looks, is_over, || {
                    let _adding = ADDING.lock();
                    let seen = read_word(taken, 8, device)?;
                    let passed = read_word(token, 8, device)?
                        .wrapping_sub(seen)
                        .cast_signed()
                        > 0;
                    if passed {
                        write_word(taken, seen.wrapping_add(1), 8, device)?;
                    }
                    Ok(passed)
                })?;
                say(passed, status, device)
            }
            Self::Put {
                to,
                from,
                len,
                done,
                token,
                inc,
            } => {
                if read_word(done, 4, device)? != 0 {
                    return Err(Status::LAUNCH_FAILED);
                }
                if len > 0 {
                    copy::execute(&Place::At(to), &Place::At(from), len, device)?;
                }
                match token {
                    0 => Ok(()),
                    token => add(token, inc, device).map(drop),
                }
            }
            Self::PacketsPut {
                to,
                from,
                len,
                words,
                flag,
            } => {
                let mut data = vec![0; (words * 4) as usize];
                copy::read(from, &mut data[..len as usize], device)?;
                // Bytes may be seen to come one by one: the data is there before its flag.
                for flag in [0, flag] {
                    let packets: Vec<u8> = data
                        .chunks(4)
                        .flat_map(|four| four.iter().copied().chain(flag.to_le_bytes()))
                        .collect();
                    copy::write(to, &packets, device)?;
                }
                Ok(())
            }
            Self::PacketsGet {
                to,
                from,
                len,
                flag,
                looks,
                status,
            } => {
                let mut packets = vec![0; (len.div_ceil(4) * 8) as usize];
                let passed = until(looks, is_over, || {
                    copy::read(from, &mut packets, device)?;
                    let mut flags = packets.chunks(8).map(|word| &word[4..]);
                    Ok(flags.all(|found| found == flag.to_le_bytes()))
                })?;
                if passed {
                    // The flags were read with the data, but not before it.
                    copy::read(from, &mut packets, device)?;
                    let data = packets.chunks(8).flat_map(|word| &word[..4]).copied();
                    let data: Vec<u8> = data.take(len as usize).collect();
                    copy::write(to, &data, device)?;
                }
                say(passed, status, device)
            }
        }
    }
}

fn ranges_complaint(ranges: &[(u64, u64, u64)]) -> Option<&'static str> {
    let memory = driver().memory.lock();
    for (at, len, align) in ranges {
        if !at.is_multiple_of(*align) {
            return Some("an address that is not aligned");
        }
        let class = memory.classify(*at, *len);
        if *len > 0 && !matches!(class, Ok(Class::Device { .. } | Class::Pinned)) {
            return Some("a range that is no memory of a device nor pinned");
        }
    }
    None
}

fn add(at: u64, inc: u64, device: usize) -> Outcome<u64> {
    let _adding = ADDING.lock();
    let value = read_word(at, 8, device)?.wrapping_add(inc);
    write_word(at, value, 8, device)?;
    Ok(value)
}

/// Looks again and again; a look counts as a microsecond.
fn until(
    looks: u64,
    is_over: impl Fn() -> bool,
    mut so: impl FnMut() -> Outcome<bool>,
) -> Outcome<bool> {
    let (mut looked, mut pauses) = (Duration::ZERO, Looks::new());
    loop {
        if so()? {
            return Ok(true);
        }
        if looked.as_micros() >= u128::from(looks) || is_over() {
            return Ok(false);
        }
        looked += pauses.pause();
    }
}

/// Writes the word that says that it was in vain.
fn say(passed: bool, status: u64, device: usize) -> Outcome {
    if passed {
        return Ok(());
    }
    write_word(status, 1, 4, device)
}
