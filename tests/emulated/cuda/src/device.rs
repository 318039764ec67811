//! The devices: what they are called, what they can do, how much memory they have and what holds them up.
//!
//! `CUDA_VISIBLE_DEVICES` hides and reorders them as on the real driver: names, PCI places and UUIDs stay with the device.

use std::{
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use wharf_emulated_common::pace::takes;

use crate::{
    abi::{Outcome, Status},
    context::Context,
    driver::driver,
    settings,
};

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    /// Its number on the machine, whatever is visible.
    pub(crate) physical: u32,
    /// The primary context.
    pub(crate) primary: Mutex<Primary>,
    used: AtomicU64,
    engines: [Mutex<Option<Instant>>; 3],
    gate: Gate,
    /// What its kernels have written and read.
    pub(crate) floor: wharf_emulated_ptx::Device,
}

/// A device's primary context.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    /// How often it is retained.
    pub(crate) retained: u32,
    /// Its flags, kept while it is not there.
    pub(crate) flags: u32,
    /// It, while it is retained.
    pub(crate) context: Option<Arc<Context>>,
}

/// Which engine carries a copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Engine {
    /// Host to device.
    In,
    /// Device to host.
    Out,
    /// Within and between devices.
    Across,
}

/// Stops queued operations for a test: `None` lets all pass, a number lets so many pass.
#[derive(Debug, Default)]
struct Gate {
    permits: Mutex<Option<u64>>,
    changed: Condvar,
}

/// Bytes of a device's memory that are in use. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Used {
    device: usize,
    bytes: u64,
}

impl Drop for Used {
    fn drop(&mut self) {
        driver().devices[self.device]
            .used
            .fetch_sub(self.bytes, SeqCst);
    }
}

impl Device {
    /// The devices that the settings and `CUDA_VISIBLE_DEVICES` make visible.
    pub(crate) fn all() -> Vec<Self> {
        let count = settings::DEVICES.get().min(16) as u32;
        let visible: Vec<u32> = match std::env::var("CUDA_VISIBLE_DEVICES") {
            // The list ends before the first entry that is no device, as the driver's documentation says.
            Ok(list) => list
                .split(',')
                .map_while(|entry| {
                    let entry = entry.trim();
                    entry
                        .parse()
                        .ok()
                        .filter(|physical| *physical < count)
                        .or_else(|| (0..count).find(|physical| uuid_text(*physical) == entry))
                })
                .collect(),
            Err(_) => (0..count).collect(),
        };
        visible.into_iter().map(Self::new).collect()
    }

    fn new(physical: u32) -> Self {
        Self {
            physical,
            primary: Mutex::default(),
            used: AtomicU64::new(0),
            engines: [Mutex::new(None), Mutex::new(None), Mutex::new(None)],
            gate: Gate::default(),
            floor: wharf_emulated_ptx::Device::new(settings::SEED.get() << 8 | u64::from(physical)),
        }
    }

    /// Takes `bytes` of the memory of `device`.
    pub(crate) fn take(device: usize, bytes: u64) -> Outcome<Used> {
        let used = &driver().devices[device].used;
        used.try_update(SeqCst, SeqCst, |used| {
            used.checked_add(bytes)
                .filter(|sum| *sum <= settings::MEMORY.get())
        })
        .map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok(Used { device, bytes })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(SeqCst)
    }

    /// 16 bytes that tell it from every other device.
    pub(crate) const fn uuid(&self) -> [u8; 16] {
        uuid(self.physical)
    }

    /// PCI domain, bus and device.
    pub(crate) const fn pci(&self) -> (u32, u32, u32) {
        (0, 0x1B + 0x10 * self.physical, 0)
    }

    /// `CUdevice_attribute`, as an H100 has them. Attributes that are not listed are 0, as for a device that lacks the feature.
    pub(crate) fn attribute(&self, attribute: u32) -> Outcome<i32> {
        let version = settings::VERSION.get();
        Ok(match attribute {
            1..=3 | 111 => 1024,
            4 => 64,
            5 | 11 => 0x7FFF_FFFF,
            6 | 7 => 65535,
            8 => 49152,
            9 | 12 | 23 | 57 | 82 => 65536,
            10 | 51 | 106 => 32,
            13 => 1_980_000,
            14 | 30 => 512,
            15 | 19 | 31 | 32 | 41 | 78 | 79 | 80 | 83 | 89 | 90 | 91 | 95 | 96 | 99 => 1,
            16 => 132,
            // Textures and surfaces, which nothing here has.
            21 | 22 | 56 | 70 => 131_072,
            24..=26 | 58..=60 => 16384,
            27 | 28 | 42 | 45 | 46 | 49 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => {
                32768
            }
            29 | 43 | 62 | 65 => 2048,
            47 | 48 => 8192,
            54 | 68 => 2046,
            69 => 268_435_456,
            71 => 65000,
            72 => 2_097_120,
            33 => self.pci().1 as i32,
            34 => self.pci().2 as i32,
            50 => self.pci().0 as i32,
            36 => 2_619_000,
            37 => 5120,
            38 => 52_428_800,
            39 => 2048,
            40 => 3,
            75 => 9,
            81 => 233_472,
            87 => 2,
            97 => 232_448,
            108 => 32_768_000,
            109 => 134_217_728,
            126 => 4,
            44 | 107 | 112 | 114 | 120 | 121 | 127 | 129 => 1,
            // Memory operations in streams: 92 to 94 are the first ABI's, which a driver of CUDA 13 denies; 122 and 123 the second's.
            92..=94 => 0,
            122 => i32::from(settings::WORDS64.on()),
            123 => 1,
            // Memory management, POSIX descriptors, RDMA with it, memory pools, GPUDirect RDMA.
            102 | 103 | 110 | 113 | 115 | 116 => 1,
            // Flushing of GPUDirect RDMA writes: by the host.
            117 => settings::FLUSH.get() as i32,
            118 => settings::ORDERING.get() as i32,
            119 => 1 | if settings::FABRIC.on() { 8 } else { 0 },
            124 => i32::from(version >= 11070 && settings::DMABUF.on()),
            125 => 1,
            128 => i32::from(version >= 12030 && settings::FABRIC.on()),
            130 => 0,
            132 => i32::from(version >= 12010 && settings::MULTICAST.on()),
            134 => 0,
            // dma-buf with mmap came in 13.3.
            152 => i32::from(crate::memory::maps_dma_bufs()),
            0 | 162.. => return Err(Status::INVALID_VALUE),
            _ => 0,
        })
    }

    /// Waits until `bytes` have passed the engine, after what passes before them.
    pub(crate) fn pass(&self, engine: Engine, bytes: u64) {
        let latency = settings::LATENCY_NS.get();
        let bandwidth = settings::BANDWIDTH_MBS.get();
        if latency == 0 && bandwidth == 0 {
            return;
        }
        // Bytes by megabytes a second are microseconds.
        let wire = bytes
            .saturating_mul(1000)
            .checked_div(bandwidth)
            .unwrap_or(0);
        let end = {
            let mut free = self.engines[engine as usize].lock();
            let now = Instant::now();
            let start = free.map_or(now, |free| free.max(now));
            let end = start + Duration::from_nanos(latency.saturating_add(wire));
            *free = Some(end);
            end
        };
        takes(end.saturating_duration_since(Instant::now()));
    }

    /// Lets no more than `permits` queued operations pass; `None`: all.
    pub(crate) fn hold(&self, permits: Option<u64>) {
        *self.gate.permits.lock() = permits;
        self.gate.changed.notify_all();
    }

    /// Lets `more` operations pass.
    pub(crate) fn step(&self, more: u64) {
        if let Some(permits) = &mut *self.gate.permits.lock() {
            *permits += more;
        }
        self.gate.changed.notify_all();
    }

    /// Waits for a permit, unless `stop` says that nobody wants it any more.
    pub(crate) fn wait_for_permit(&self, stop: impl Fn() -> bool) {
        let mut permits = self.gate.permits.lock();
        loop {
            match &mut *permits {
                None => return,
                Some(0) => {}
                Some(left) => {
                    *left -= 1;
                    return;
                }
            }
            if stop() {
                return;
            }
            self.gate
                .changed
                .wait_for(&mut permits, Duration::from_millis(5));
        }
    }
}

/// Whether `from` can reach the memory of `to`.
pub(crate) fn can_reach(from: usize, to: usize) -> bool {
    match settings::PEERS.get() {
        0 => false,
        1 => from != to,
        _ => from != to && from / 2 == to / 2,
    }
}

const fn uuid(physical: u32) -> [u8; 16] {
    let mut uuid = *b"wharf-emulated\0\0";
    uuid[15] = physical as u8;
    uuid
}

/// As `nvidia-smi` writes it: `GPU-8-4-4-4-12`.
fn uuid_text(physical: u32) -> String {
    let mut text = "GPU-".to_owned();
    for (index, byte) in uuid(physical).iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
