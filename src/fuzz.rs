//! The doors of the fuzz targets: every decoder of what comes from outside, given any bytes.
//!
//! Built for `tests/fuzz` (`--cfg fuzzing`, which `.ci/fuzz` passes) and for tests; a build for use has
//! nothing of it. Whatever the bytes are, a decoder neither panics nor takes long, and what it takes
//! comes back from its own encoder. Bytes behind a checksum or a length are given a second time with
//! one that is right, so that what lies behind it is reached.
//!
//! Tests: below, which replay the seeds of `tests/fuzz/seeds` and changes of them.

use crate::{
    channel,
    error::Result,
    protocol::{
        Descriptor, WorkerAddress, am, atomic,
        control::{self, Announcement},
        hello::{Acceptance, Arrival, Elsewhere, Introduction, Message},
        layout::{BLOCK, Block, Indexed, Places, Shape, Strided, decode_blocks, split_blocks},
        offer::Offer,
        registered::Registered,
        stream::StreamName,
    },
    transport::{by_hand, cma, cuda, gaudi, rdmacm, rocm, tcp, verbs},
};

/// A decoder by the name of its fuzz target.
pub type Decoder = (&'static str, fn(&[u8]));

/// All of them.
pub const DECODERS: [Decoder; 14] = [
    ("address", address),
    ("hello", hello),
    ("descriptor", descriptor),
    ("registered", registered),
    ("offer", offer),
    ("control", control_frames),
    ("layout", layout),
    ("bootstrap", bootstrap),
    ("tcp", tcp::fuzz),
    ("verbs", verbs::fuzz),
    ("rdmacm", rdmacm::fuzz),
    ("cma", cma::fuzz),
    ("by_hand", by_hand::fuzz),
    ("ipc", ipc),
];

/// Gives `bytes` to the decoder of that name.
///
/// # Panics
/// When there is none, or the decoder breaks its promise.
pub fn decode(name: &str, bytes: &[u8]) {
    let found = DECODERS.iter().find(|(known, _)| *known == name);
    found.expect("a decoder of that name").1(bytes);
}

/// What is taken comes back from its encoder.
#[track_caller]
fn goes_round<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    if let Ok(value) = decode(bytes) {
        let again = decode(&encode(&value)).expect("its own bytes");
        assert_eq!(again, value, "changed by its own encoder");
    }
}

/// The bytes as an envelope whose length and checksum are right.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let length = bytes.len() as u16;
    if let Some(place) = bytes.get_mut(6..8) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    summed(bytes)
}

/// The bytes with a right checksum at their end.
fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some((rest, sum)) = bytes.split_last_chunk_mut::<4>() {
        *sum = crc32fast::hash(rest).to_le_bytes();
    }
    bytes
}

/// The bytes with their length, as four bytes, at `at`.
fn measured(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let length = bytes.len() as u32;
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    bytes
}

fn address(bytes: &[u8]) {
    for bytes in [bytes, &sealed(bytes)] {
        goes_round(bytes, WorkerAddress::from_bytes, WorkerAddress::to_bytes);
    }
    if let Ok(text) = str::from_utf8(bytes)
        && let Ok(address) = text.parse::<WorkerAddress>()
    {
        assert_eq!(address.to_string().parse().ok(), Some(address));
    }
}

fn hello(bytes: &[u8]) {
    for bytes in [bytes, &measured(bytes, 8)] {
        goes_round(bytes, Message::decode, Message::encode);
    }
    // What comes out of a seal is its maker's as well.
    goes_round(
        bytes,
        Introduction::decode_fields,
        Introduction::encode_fields,
    );
    goes_round(bytes, Acceptance::decode, Acceptance::encode_fields);
    goes_round(bytes, Elsewhere::decode_fields, Elsewhere::encode_fields);
    goes_round(bytes, Arrival::decode_fields, Arrival::encode_fields);
}

fn descriptor(bytes: &[u8]) {
    for bytes in [bytes, &sealed(bytes)] {
        goes_round(bytes, Descriptor::from_bytes, Descriptor::to_bytes);
    }
}

fn registered(bytes: &[u8]) {
    for bytes in [bytes, &sealed(bytes)] {
        goes_round(bytes, Registered::from_bytes, Registered::to_bytes);
    }
}

fn offer(bytes: &[u8]) {
    for bytes in [bytes, &sealed(bytes)] {
        goes_round(bytes, Offer::from_bytes, Offer::to_bytes);
    }
}

/// Bodies of messages, by an id in front; and words that are headers.
fn control_frames(bytes: &[u8]) {
    let Some(([id, head @ ..], body)) = bytes.split_first_chunk::<9>() else {
        return;
    };
    let header = u64::from_le_bytes(*head);
    macro_rules! fixed {
        ($body:ident) => {
            if let Ok(read) = control::$body::decode(body) {
                assert_eq!(read.encode(), body[..control::$body::SIZE]);
            }
        };
    }
    match *id {
        control::TAG_RTS | control::TAG_LENT | control::AM_RTS => {
            if let Ok((rts, length)) = Announcement::decode(body) {
                assert!(length <= body.len(), "read behind the end");
                assert!(rts.keys.len() <= control::MAX_KEYS);
            }
        }
        control::TAG_RTR => fixed!(Rtr),
        control::PUT => fixed!(PutHeader),
        control::GET => fixed!(GetRequest),
        control::JOIN => fixed!(Join),
        control::STREAM_RTS => fixed!(StreamRts),
        control::SIGNAL => fixed!(Signal),
        control::PULL => fixed!(Pull),
        control::PUT_RTS => fixed!(PutRts),
        control::ROUTE => fixed!(Route),
        control::PUT_LAYOUT | control::GET_LAYOUT | control::LAYOUT_RTS => fixed!(LayoutHeader),
        control::LAYOUT_DATA => fixed!(LayoutAnswer),
        control::ATOMIC => {
            if let Ok(read) = control::Atomic::decode(body)
                && let Ok((request, fetch)) = atomic::request(&read)
            {
                assert_eq!(atomic::code(&request, fetch), read.code);
            }
        }
        control::KEYS => {
            let _ = control::keys(body);
        }
        _ => {
            let _ = control::error_of(body).to_string();
        }
    }
    if let Ok((id, length)) = am::parse(header, body.len()) {
        assert!(length <= body.len());
        assert_eq!(
            am::parse(am::word(id, length), length).ok(),
            Some((id, length))
        );
    }
    let (id, messages, lost) = am::parse_credit(header);
    assert_eq!(
        am::parse_credit(am::credit(id, messages, lost)),
        (id, messages, lost)
    );
    assert_eq!(StreamName::of(header).header(), header);
}

/// Blocks: walking them by turns and finding a place in them are the same, and none leaves its bounds.
fn layout(bytes: &[u8]) {
    let Some(([count, at @ ..], body)) = bytes.split_first_chunk::<9>() else {
        return;
    };
    let position = u64::from_le_bytes(*at);
    if let Ok(strided) = Strided::of(body) {
        assert!(body.starts_with(&strided.form()));
        if let Some((total, end)) = strided.extent()
            && total > 0
        {
            let from = position % total;
            walk(
                &Shape::Strided(strided),
                Shape::Strided(strided),
                from,
                total,
                end,
            );
        }
    }
    if let Ok((list, rest)) = split_blocks(body, u32::from(*count)) {
        assert_eq!(list.len() + rest.len(), body.len());
        assert_eq!(list.len(), usize::from(*count) * BLOCK);
        let blocks = || -> Vec<Block> {
            let block = |(offset, len): (u64, u64)| Block {
                offset: (offset as u32) as usize,
                len: len as usize,
            };
            decode_blocks(list).map(block).collect()
        };
        let total = blocks().iter().map(|block| block.len as u64).sum();
        let shape = || Shape::Indexed(Indexed::trusted(blocks(), total));
        walk(&shape(), shape(), 0, total, u64::MAX);
    }
}

fn walk(shape: &Shape, same: Shape, from: u64, total: u64, end: u64) {
    let places = Places::new(same, from);
    let mut cursor = match shape {
        Shape::Strided(strided) => strided.seek(from),
        Shape::Indexed(_) => shape.cursor(),
    };
    let mut at = from;
    for _ in 0..1000 {
        let Some((offset, length)) = shape.run(&cursor) else {
            assert_eq!(at, total, "the blocks end elsewhere");
            return;
        };
        assert!(
            offset.saturating_add(length) <= end,
            "a block leaves its bounds"
        );
        if length > 0 {
            let (place, run) = places.run(at - from).expect("within the stream");
            assert_eq!(place, offset, "byte {at}");
            assert!(run >= length);
        }
        shape.advance(&mut cursor, length);
        at += length;
    }
}

/// What the ranks of a group tell each other.
fn bootstrap(bytes: &[u8]) {
    channel::fuzz(bytes);
    channel::fuzz(&summed(bytes.to_vec()));
}

/// Exported device memory, as each vendor has it.
fn ipc(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), summed(bytes.to_vec())] {
        cuda::fuzz(&bytes);
        rocm::fuzz(&bytes);
        gaudi::fuzz(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// How many changes of each seed are tried.
    const CHANGES: usize = 300;

    fn folder(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fuzz")
            .join(name)
    }

    fn names(folder: &Path, end: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("read").file_name();
        let names = entries.map(name).filter_map(|name| {
            let name = name.into_string().expect("ASCII names");
            name.strip_suffix(end).map(str::to_owned)
        });
        names.collect()
    }

    #[test]
    fn every_decoder_has_a_target_and_seeds() {
        let known: BTreeSet<String> = DECODERS
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        let targets = names(&folder("fuzz_targets"), ".rs");
        assert!(known.is_subset(&targets), "{known:?} and {targets:?}");
        let manifest = fs::read_to_string(folder("Cargo.toml")).expect("a manifest");
        for name in &targets {
            assert!(
                manifest.contains(&format!("name = \"{name}\"")),
                "{name} is not built"
            );
        }
        for name in &known {
            assert!(
                !names(&folder("seeds").join(name), "").is_empty(),
                "{name} has no seeds"
            );
        }
    }

    /// Seeds, what is left of them when they are cut, and changes of a few bytes at a time.
    #[test]
    fn seeds_and_changes_of_them_do_no_harm() {
        for (name, decode) in DECODERS {
            let folder = folder("seeds").join(name);
            for file in names(&folder, "") {
                let seed = fs::read(folder.join(&file)).expect("a seed");
                decode(&seed);
                let mut state = crc32fast::hash(file.as_bytes()).into();
                let mut dice = move |below: usize| {
                    state = u64::wrapping_mul(state, 6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) as usize % below.max(1)
                };
                for _ in 0..CHANGES {
                    let mut bytes = seed.clone();
                    bytes.truncate(dice(2 * bytes.len() + 1).max(1));
                    for _ in 0..=dice(4) {
                        let at = dice(bytes.len());
                        let odd = [0, 1, 0x7f, 0x80, 0xff, dice(256) as u8];
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte = odd[dice(odd.len())];
                        }
                    }
                    decode(&bytes);
                }
            }
        }
    }
}
