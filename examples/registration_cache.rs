//! The registration cache before a device that really pins memory: hit, miss, merge, eviction, and a buffer that is freed and allocated again.
//!
//! `cargo run --release --example registration_cache` prints the cache's counters after each step.
//!
//! The device is the kernel itself: io_uring's fixed buffers pin pages as the driver of a network card does, and go on reading those pages whatever
//! the program does to its addresses. Where a container refuses io_uring, the memory is only locked (`mlock`), and nothing reads it.
//!
//! # Safety
//! The kernel reads memory by pages that it pinned and checked. Locking memory changes nothing of it.
#![allow(unsafe_code, clippy::print_stdout)]

use std::{
    error::Error,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::fs::FileExt,
    },
    time::Duration,
};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use wharf::{
    Access, ErrorKind,
    memory::{
        AddressRange, MonitorKind, Registrar, RegistrationCache, RegistrationCacheOptions,
        RegistrationCacheStatistics, Validity, monitor,
    },
};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const KIBIBYTE: usize = 1 << 10;
/// Registrations that the cache keeps, and that the device can have.
const KEPT: usize = 8;
const SLOTS: u16 = 64;

#[tokio::main]
async fn main() -> Outcome<()> {
    run().await
}

/// Every step.
pub(crate) async fn run() -> Outcome<()> {
    let device = Device::open();
    let monitor = monitor(MonitorKind::Auto)?;
    let keeps = monitor.classes().covers_foreign_memory();
    println!("device {}, monitor {}", device.name(), monitor.name());
    if !keeps {
        println!(
            "no monitor sees all that can happen to a Vec: each request is registered for itself"
        );
    }
    let options = RegistrationCacheOptions::new().max_regions(KEPT);
    let cache = RegistrationCache::new(device, monitor.clone(), options)?;
    let mut last = RegistrationCacheStatistics::default();

    // Memory that nobody registered yet.
    let buffer = vec![1_u8; 512 * KIBIBYTE];
    let first = AddressRange::of(&buffer[..128 * KIBIBYTE]);
    drop(cache.get(first, Access::READ).await?);
    let now = report("miss", &cache, &mut last);
    check(now.registrations == 1, "one registration")?;

    // The same again, and a part of it.
    drop(cache.get(first, Access::READ).await?);
    drop(
        cache
            .get(AddressRange::of(&buffer[5000..6000]), Access::READ)
            .await?,
    );
    let now = report("hit", &cache, &mut last);
    check(!keeps || now.hits == 2, "two hits")?;

    // Half in what is registered, half beyond: one registration takes the place of both.
    let second = AddressRange::of(&buffer[64 * KIBIBYTE..192 * KIBIBYTE]);
    let merged = cache.get(second, Access::READ).await?;
    println!("    {first} and {second}: {}", merged.range());
    check(
        !keeps || merged.range().contains(first),
        "a merged registration",
    )?;
    drop(merged);
    let now = report("merge", &cache, &mut last);
    check(!keeps || now.merges == 1, "one merge")?;

    // More buffers than the cache keeps. Each is freed at once, which would make room as well: so they stay here.
    let others: Vec<_> = (0..KEPT + 2).map(|_| vec![2_u8; 512 * KIBIBYTE]).collect();
    for other in &others {
        // From the middle: apart from each other, so nothing merges.
        let range = AddressRange::of(&other[256 * KIBIBYTE..][..4 * KIBIBYTE]);
        drop(cache.get(range, Access::READ).await?);
    }
    let now = report("eviction", &cache, &mut last);
    check(!keeps || now.evictions >= 3, "evictions")?;
    check(now.regions <= KEPT as u64, "no more than the limit")?;
    drop(others);

    freed_and_allocated_again(&cache, &mut last).await?;

    // Freed while a transfer has it: the registration stays until the transfer is done, and nobody else gets it.
    let buffer = vec![3_u8; 64 << 20];
    let in_use = cache
        .get(AddressRange::of(&buffer[..4096]), Access::READ)
        .await?;
    drop(buffer);
    // A monitor that tells afterwards may need a moment.
    while monitor.validate() == Validity::Pending {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    check(
        !keeps || !in_use.is_current(),
        "a registration that says so",
    )?;
    report("freed in use", &cache, &mut last);
    drop(in_use);
    cache.flush().await;
    let now = report("flush", &cache, &mut last);
    check(
        now.regions == 0 && now.unreleased_regions == 0,
        "nothing left",
    )?;
    check(
        now.registrations == now.deregistrations,
        "as many ended as made",
    )?;
    Ok(())
}

/// A large `Vec` goes back to the system when it is dropped, and the next one usually has its addresses, with other pages behind them.
async fn freed_and_allocated_again(
    cache: &RegistrationCache<Device>,
    last: &mut RegistrationCacheStatistics,
) -> Outcome<()> {
    let mut before = None;
    for byte in [b'A', b'B'] {
        let buffer = vec![byte; 64 << 20];
        let range = AddressRange::of(&buffer[..256 * KIBIBYTE]);
        let registration = cache.get(range, Access::READ).await?;
        match cache
            .registrar()
            .read(*registration, range.start() + 1000, 100)?
        {
            Some(seen) => {
                println!("    {range}: the device sees {:?}", char::from(seen[0]));
                check(seen == [byte; 100], "the bytes of today")?;
            }
            None => println!("    {range}: locked"),
        }
        if before.replace(range) == Some(range) {
            println!("    the same addresses as before");
        }
        drop(registration);
        report(
            if byte == b'A' { "allocated" } else { "again" },
            cache,
            last,
        );
    }
    Ok(())
}

/// Prints what the counters counted since the last step.
fn report(
    step: &str,
    cache: &RegistrationCache<Device>,
    last: &mut RegistrationCacheStatistics,
) -> RegistrationCacheStatistics {
    let now = cache.statistics();
    println!(
        "{step:12}  hits +{}  registrations +{}  merges +{}  evictions +{}  invalidated +{}  one-shot +{}  kept {} ({} KiB)  unreleased {}",
        now.hits - last.hits,
        now.registrations - last.registrations,
        now.merges - last.merges,
        now.evictions - last.evictions,
        now.invalidated_idle + now.invalidated_in_use
            - last.invalidated_idle
            - last.invalidated_in_use,
        now.uncached - last.uncached,
        now.regions,
        now.bytes / 1024,
        now.unreleased_regions,
    );
    *last = now;
    now
}

fn check(right: bool, what: &str) -> Outcome<()> {
    match right {
        true => Ok(()),
        false => Err(format!("expected {what}").into()),
    }
}

/// What memory is registered with.
pub(crate) enum Device {
    /// Pins it, and can read it.
    Uring(Box<Mutex<Uring>>),
    /// Locks it.
    Mlock,
}

pub(crate) struct Uring {
    ring: IoUring,
    /// Where what the device read comes out.
    file: File,
    free: Vec<u16>,
}

impl Device {
    fn open() -> Self {
        match Uring::new() {
            Ok(uring) => Self::Uring(Box::new(Mutex::new(uring))),
            Err(error) => {
                println!("no io_uring: {error}");
                Self::Mlock
            }
        }
    }

    /// What the device sees at `address`, which is registered in `slot`.
    fn read(&self, slot: u16, address: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Uring(uring) => uring.lock().read(slot, address, length).map(Some),
            Self::Mlock => Ok(None),
        }
    }
}

impl Registrar for Device {
    type Handle = u16;

    fn name(&self) -> &'static str {
        match self {
            Self::Uring(_) => "io_uring",
            Self::Mlock => "mlock",
        }
    }

    fn register(&self, range: AddressRange, _: Access) -> wharf::Result<u16> {
        match self {
            Self::Uring(uring) => {
                let mut uring = uring.lock();
                let slot = uring.free.pop().ok_or_else(|| {
                    wharf::Error::new(ErrorKind::Exhausted, "the device has no slot left")
                })?;
                let result = uring.update(slot, range.start(), range.len());
                if result.is_err() {
                    uring.free.push(slot);
                }
                result.map_err(|error| wharf::Error::io("the kernel does not pin it", error))?;
                Ok(slot)
            }
            Self::Mlock => {
                // SAFETY: locking changes nothing of the memory; the kernel checks that it is there.
                let done = unsafe { libc::mlock(range.start() as *const _, range.len() as usize) };
                match done {
                    0 => Ok(0),
                    _ => Err(wharf::Error::io("mlock", io::Error::last_os_error())),
                }
            }
        }
    }

    fn deregister(&self, slot: u16, range: AddressRange) -> wharf::Result<()> {
        match self {
            Self::Uring(uring) => {
                let mut uring = uring.lock();
                let result = uring.update(slot, 0, 0);
                uring.free.push(slot);
                result.map_err(|error| wharf::Error::io("the kernel does not let go", error))
            }
            Self::Mlock => {
                // SAFETY: as above. It fails when the memory is gone, and with it the lock.
                unsafe { libc::munlock(range.start() as *const _, range.len() as usize) };
                Ok(())
            }
        }
    }
}

impl Uring {
    fn new() -> io::Result<Self> {
        let ring = IoUring::new(2)?;
        ring.submitter().register_buffers_sparse(SLOTS.into())?;
        // SAFETY: the name is a string with its end.
        let fd = unsafe { libc::memfd_create(c"device".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: made above, and owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        Ok(Self {
            ring,
            file,
            free: (0..SLOTS).collect(),
        })
    }

    /// Pins memory for a slot; none, if the length is 0.
    fn update(&self, slot: u16, base: u64, length: u64) -> io::Result<()> {
        let memory = libc::iovec {
            iov_base: base as *mut libc::c_void,
            iov_len: length as usize,
        };
        let submitter = self.ring.submitter();
        // SAFETY: the kernel checks the range and pins its pages itself.
        unsafe { submitter.register_buffers_update(slot.into(), &[memory], None) }
    }

    fn read(&mut self, slot: u16, address: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::WriteFixed::new(file, address as *const u8, length as u32, slot);
        // SAFETY: the kernel reads pages of the registration; file and ring stay until it has.
        unsafe { self.ring.submission().push(&entry.build()) }.map_err(io::Error::other)?;
        self.ring.submit_and_wait(1)?;
        let done = self.ring.completion().next().map(|entry| entry.result());
        match done {
            Some(done) if done == length as i32 => {
                let mut seen = vec![0; length];
                self.file.read_exact_at(&mut seen, 0)?;
                Ok(seen)
            }
            Some(done) if done < 0 => Err(io::Error::from_raw_os_error(-done)),
            _ => Err(io::Error::other("less than asked for")),
        }
    }
}
