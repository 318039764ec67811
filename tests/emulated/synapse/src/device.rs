//! The one device that a process has: acquired, described, lost, released.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering::SeqCst},
    },
};

use parking_lot::Mutex;
use wharf_emulated_common::{
    backing::Backing,
    gaudi::{self, Card},
    share::Process,
};

use crate::{
    abi::{InfoV2, Outcome, Status},
    gate::runtime,
    memory::Memory,
    settings,
    stream::{Event, Stream},
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

impl Device {
    /// Takes a card.
    ///
    /// # Errors
    /// `ResourceBusy`: another process has it; else from the system.
    pub(crate) fn open(index: u64) -> io::Result<Self> {
        let descriptor = gaudi::open(index)?;
        let len = settings::MEMORY.get();
        // Where SCAL of each generation puts the pool; the first one's addresses are physical.
        let generation = settings::GENERATION.get();
        let allocated_base = match generation {
            1 => 0x2000_0000,
            2 => 0x1001_5000_0000_0000,
            _ => 0x0201_e000_0000_0000,
        };
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
        InfoV2 {
            sram_base: 0x1000_0000_0000_0000,
            dram_base: match card.generation {
                1 => card.base,
                _ => 0x1001_0018_0000_0000,
            },
            sram_size: 48 << 20,
            dram_size: card.len,
            tpc_mask: 0xff_ffff,
            dram_enabled: 1,
            // The hardware's number, not the one that the calls take.
            device_id: 0x1020,
            fd: self.descriptor.as_raw_fd() as u32,
            kind: match card.generation {
                1 => 2,
                2 => 4,
                _ => 5,
            },
            index: card.index as u8,
            global_hbm_base: if settings::POOL_KNOWN.on() {
                card.base
            } else {
                0
            },
        }
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
    pub(crate) fn live(&self) -> [(&'static str, u64); 5] {
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
            ("bytes", memory.used),
        ]
    }
}
