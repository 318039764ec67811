//! The one device that a process has: acquired, described, lost, released.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU32, Ordering::SeqCst},
    },
};

use parking_lot::Mutex;
use wharf_emulated_common::{
    backing::Backing,
    gaudi::{self, Card},
    share::Process,
};

use crate::{
    abi::{Attribute, InfoV2, Outcome, Status, device_type},
    gate::runtime,
    memory::{ALIGN, Memory},
    settings,
    stream::{End, Event, Stream},
};

/// The device.
#[derive(Debug)]
pub(crate) struct Device {
    /// Its card's place in the system's order.
    pub(crate) index: u64,
    /// Its addresses, and the host's that are mapped for it.
    pub(crate) memory: Mutex<Memory>,
    /// Its bytes: those at `allocated_base` first.
    pub(crate) bytes: Backing,
    /// Streams and events by handle.
    pub(crate) objects: Mutex<Objects>,
    /// The card, as its descriptor tells it.
    pub(crate) card: Card,
    /// How many calls are under way.
    pub(crate) inside: AtomicU32,
    descriptor: File,
    lost: AtomicI32,
}

/// Everything that has a handle. Handles are never used again, and are no canonical addresses.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) streams: HashMap<u64, Arc<Stream>>,
    pub(crate) events: HashMap<u64, Arc<Event>>,
}

/// Between the start of the mapping and the pool that lies in it.
const BEFORE_POOL: u64 = 32 << 20;

/// Where SCAL of each generation puts the mapping of the pool; the first one's addresses are physical.
const fn allocated_base(generation: u64) -> u64 {
    match generation {
        1 => 0x2000_0000,
        2 => 0x1001_5000_0000_0000,
        _ => 0x0201_e000_0000_0000,
    }
}

/// What does not change of a card of `len` bytes, whoever has it.
pub(crate) fn constant(attribute: Attribute, generation: u64, len: u64) -> u64 {
    match attribute {
        Attribute::SramBase => 0x1000_0000_0000_0000,
        Attribute::DramBase if generation == 1 => allocated_base(1) + BEFORE_POOL,
        Attribute::DramBase => 0x1001_0018_0000_0000,
        Attribute::SramSize => 48 << 20,
        Attribute::DramSize => len,
        Attribute::TpcMask => 0xff_ffff,
        Attribute::DramEnabled => 1,
        Attribute::Type => u64::from(device_type(generation)),
        Attribute::ClockRate => 1650,
        Attribute::Alignment => ALIGN,
        Attribute::MaxDims => 8,
        Attribute::DramFree | Attribute::StreamsMemory => 0,
    }
}

impl Device {
    /// Takes a card.
    ///
    /// # Errors
    /// `ResourceBusy`: another process has it; else from the system.
    pub(crate) fn open(index: u64) -> io::Result<Self> {
        let descriptor = gaudi::open(index)?;
        let len = settings::MEMORY.get();
        let generation = settings::GENERATION.get();
        let allocated_base = allocated_base(generation);
        let bytes = Backing::new("emulated-gaudi-memory", BEFORE_POOL + len)?;
        let card = Card {
            index,
            generation,
            base: allocated_base + BEFORE_POOL,
            len,
            free: len,
            allocated_base,
            owner: Some(Process::this()),
            memory: bytes.fd() as u64,
            // Synapse sets SCAL up on the card.
            scal: Some(Process::this()),
            scal_fd: descriptor.as_raw_fd() as u64,
        };
        card.store(descriptor.as_raw_fd())?;
        Ok(Self {
            index,
            memory: Mutex::new(Memory::new(card.base, len)),
            bytes,
            objects: Mutex::default(),
            card,
            inside: AtomicU32::new(0),
            descriptor,
            lost: AtomicI32::new(0),
        })
    }

    /// That it is not lost.
    pub(crate) fn check(&self) -> Outcome {
        match self.lost.load(SeqCst) {
            0 => Ok(()),
            code => Err(Status(code)),
        }
    }

    /// Nothing on it goes on.
    pub(crate) fn lose(&self, status: Status) {
        let _ = self.lost.compare_exchange(0, status.0, SeqCst, SeqCst);
        self.wake();
    }

    /// Loses it because of what a program did.
    pub(crate) fn fault(&self, what: String) -> Status {
        eprintln!("emulated Synapse: the device is lost: {what}");
        runtime().journal.misuse(what);
        self.lose(Status::DEVICE_RESET);
        Status::DEVICE_RESET
    }

    /// Makes every stream look at the state.
    pub(crate) fn wake(&self) {
        for stream in self.objects.lock().streams.values() {
            stream.wake();
        }
    }

    /// What it is.
    pub(crate) fn info(&self) -> InfoV2 {
        let card = &self.card;
        let of = |attribute| constant(attribute, card.generation, card.len);
        InfoV2 {
            sram_base: of(Attribute::SramBase),
            dram_base: of(Attribute::DramBase),
            sram_size: of(Attribute::SramSize) as u32,
            dram_size: of(Attribute::DramSize),
            tpc_mask: of(Attribute::TpcMask),
            dram_enabled: of(Attribute::DramEnabled) as u8,
            // The hardware's number, not the one that the calls take.
            device_id: 0x1020,
            fd: self.descriptor.as_raw_fd() as u32,
            kind: of(Attribute::Type) as u32,
            index: card.index as u8,
            global_hbm_base: if settings::POOL_KNOWN.on() {
                card.base
            } else {
                0
            },
        }
    }

    /// One of its attributes.
    pub(crate) fn attribute(&self, attribute: Attribute) -> u64 {
        match attribute {
            Attribute::DramFree => self.memory.lock().free_bytes(),
            attribute => constant(attribute, self.card.generation, self.card.len),
        }
    }

    /// For calls that take memory away: that no copy which is not done reaches into it. Else the device is lost, as it would be
    /// as soon as that copy goes on.
    pub(crate) fn not_in_use(&self, end: End, start: u64, len: u64, call: &str) -> Outcome {
        let used = {
            let objects = self.objects.lock();
            let mut streams = objects.streams.values();
            streams.any(|stream| stream.uses(end, start, len))
        };
        if used {
            return Err(self.fault(format!("{call} of {start:#x}, which a copy under way uses")));
        }
        Ok(())
    }

    /// Tells, by the descriptor, how much is free.
    pub(crate) fn tell_free(&self, free: u64) {
        // A test's program may have closed it; that is a misuse, and told at the release.
        let _ = Card { free, ..self.card }.store(self.descriptor.as_raw_fd());
    }

    /// Ends its streams. What is left of everything is a misuse.
    pub(crate) fn release(&self) {
        if Card::of(self.descriptor.as_raw_fd()).is_none_or(|card| card.memory != self.card.memory)
        {
            runtime()
                .journal
                .misuse("the device's descriptor was closed, which was only lent".to_owned());
        } else {
            // A duplicate that somebody keeps is no card's any more.
            let _ = Card::default().store(self.descriptor.as_raw_fd());
        }
        let left = self.live();
        if !left.iter().all(|(_, count)| *count == 0) {
            runtime()
                .journal
                .misuse(format!("the device was released with {left:?}"));
        }
        // What is still queued is dropped.
        self.lose(Status::NO_DEVICE_FOUND);
        let objects = std::mem::take(&mut *self.objects.lock());
        for stream in objects.streams.values() {
            stream.end();
        }
    }

    /// How much of everything there is.
    pub(crate) fn live(&self) -> [(&'static str, u64); 6] {
        let (streams, events) = {
            let objects = self.objects.lock();
            (objects.streams.len() as u64, objects.events.len() as u64)
        };
        let memory = self.memory.lock();
        [
            ("streams", streams),
            ("events", events),
            ("allocations", memory.allocations.len() as u64),
            ("mapped", memory.mapped()),
            ("pinned", memory.pinned()),
            ("bytes", memory.used),
        ]
    }
}
