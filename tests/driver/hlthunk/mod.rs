//! libhl-thunk: which library is taken; cards, memory, copies, faults, on emulated cards.
//!
//! # Safety
//! Copies are submitted between memory that the test holds until it has seen them end. An emulated library that is loaded stays so.
#![allow(unsafe_code)]

mod cards;
mod copies;
mod faults;
mod loader;
mod packets;
mod strict;

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    driver::hlthunk::{
        Allocation, Card, CommandRing, HlThunk, HostMapping, LinDma, Queue, Submission,
    },
    error::Result,
    support::{LIMIT, Looks, emulated},
};

/// An emulated library of the test's own, with cards that nobody else sees.
struct Emulated {
    path: PathBuf,
    thunk: &'static HlThunk,
    _folder: tempfile::TempDir,
}

impl Emulated {
    /// With settings, by name.
    fn new(settings: &[(&str, u64)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("libown.so");
        // A copy is another library; a link would be the same.
        fs::copy(emulated::hlthunk(), &path).expect("a copy");
        // SAFETY: the emulator; its constructors do nothing.
        let library = unsafe { libloading::Library::new(&path) }.expect("loads");
        Box::leak(Box::new(library));
        for (name, value) in settings {
            emulated::control_of(&path, &format!("set {name} {value}"));
        }
        let thunk = HlThunk::load(Some(&path)).expect("loads");
        Self {
            path,
            thunk,
            _folder: folder,
        }
    }

    fn control(&self, text: &str) -> String {
        emulated::control_of(&self.path, text)
    }

    fn calls(&self, name: &str) -> u64 {
        self.number(&format!("count {name}"))
    }

    fn number(&self, text: &str) -> u64 {
        self.control(text).parse().expect("a number")
    }

    /// One line of `live`.
    fn live(&self, name: &str) -> u64 {
        let text = self.control("live");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("{name} in {text}"))
    }

    fn open(&self, index: usize) -> Result<Arc<Card>> {
        let bus_id = ["0000:33:00.0", "0000:44:00.0"][index];
        self.thunk
            .open(&bus_id.parse().expect("a place"), Duration::ZERO)
    }

    /// The first card, or another. A process that another test is just starting has copies of this one's descriptors until it runs its own
    /// program: a card that was closed may be busy for that long.
    fn card(&self) -> Arc<Card> {
        self.patiently(0)
    }

    fn patiently(&self, index: usize) -> Arc<Card> {
        patiently(|| self.open(index))
    }
}

/// Tries until it goes well.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    let start = Instant::now();
    let mut looks = Looks::new("a free card");
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => assert!(start.elapsed() < LIMIT, "watchdog: {error}"),
        }
        looks.block();
    }
}

/// Waits for the end of a submission.
fn finish(submission: &mut Submission) -> Result<()> {
    let start = Instant::now();
    while !submission.wait(Duration::from_millis(100))? {
        assert!(start.elapsed() < LIMIT, "watchdog: {submission:?}");
    }
    Ok(())
}

/// Device memory, host memory and a ring, for copies.
struct Bench {
    card: Arc<Card>,
    ring: CommandRing,
    device: Allocation,
    mapping: HostMapping,
    host: Vec<u8>,
}

impl Bench {
    fn new(card: &Arc<Card>, slots: usize, len: usize) -> Result<Self> {
        let host = vec![0_u8; len];
        let start = host.as_ptr().expose_provenance() as u64;
        Ok(Self {
            ring: card.command_ring(slots)?,
            device: card.allocate(len as u64)?,
            mapping: card.map_host(start, len as u64)?,
            card: Arc::clone(card),
            host,
        })
    }

    /// Submits packets.
    fn submit(&self, queue: Queue, packets: &[LinDma]) -> Result<Submission> {
        // SAFETY: the tests keep the bench until they have seen the end, or mean the fault.
        unsafe { self.ring.submit(queue, packets) }
    }

    /// From a place of the host memory to one of the device's.
    fn put(&self, from: u64, to: u64, len: u32) -> Result<Submission> {
        let (source, target) = (self.mapping.device() + from, self.device.address() + to);
        let packet = LinDma::copy(source, target, len);
        self.submit(self.card.queue_in(), &[packet])
    }

    /// Back.
    fn get(&self, from: u64, to: u64, len: u32) -> Result<Submission> {
        let (source, target) = (self.device.address() + from, self.mapping.device() + to);
        let packet = LinDma::copy(source, target, len);
        self.submit(self.card.queue_out(), &[packet])
    }
}
