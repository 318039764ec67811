//! The emulated library is as strict as the kernel's driver: asked directly, by a stranger who keeps no rule.
//!
//! # Safety
//! Functions are called with the signatures of the vendor's header, and with pointers to live locals.
#![allow(unsafe_code)]

use std::{ffi::c_void, fs, ptr};

use super::Emulated;
use crate::support::emulated;

#[repr(C)]
struct Chunk {
    handle: u64,
    queue: u32,
    size: u32,
    flags: u32,
    rest: [u32; 11],
}

#[repr(C)]
struct Input {
    restore: *mut c_void,
    execute: *mut Chunk,
    restores: u32,
    executes: u32,
    flags: u32,
}

/// A library, and a card opened behind the driver's back.
struct Raw {
    own: Emulated,
    fd: i32,
}

impl Raw {
    fn new(chip: u64) -> Self {
        let own = Emulated::new(&[("chip", chip), ("delay_us", 0)]);
        // SAFETY: takes a number.
        let fd = unsafe {
            Self::find::<unsafe extern "C" fn(u32) -> i32>(&own, "hlthunk_open_by_module_id")(7)
        };
        assert!(fd >= 0);
        Self { own, fd }
    }

    fn find<F: Copy>(own: &Emulated, name: &str) -> F {
        // SAFETY: the caller's type belongs to the name; the library stays loaded.
        unsafe {
            let library = libloading::Library::new(&own.path).expect("loads");
            *library.get::<F>(name).expect("exported")
        }
    }

    fn function<F: Copy>(&self, name: &str) -> F {
        Self::find(&self.own, name)
    }

    /// Result and number of a submission.
    fn submit(&self, chunks: &mut [Chunk]) -> (i32, u64) {
        type Submit = unsafe extern "C" fn(i32, *mut Input, *mut [u64; 2]) -> i32;
        let mut input = Input {
            restore: ptr::null_mut(),
            execute: chunks.as_mut_ptr(),
            restores: 0,
            executes: chunks.len() as u32,
            flags: 0,
        };
        let mut output = [0_u64; 2];
        let call: Submit = self.function("hlthunk_command_submission");
        // SAFETY: see the head of the file.
        let result = unsafe { call(self.fd, &raw mut input, &raw mut output) };
        (result, output[0])
    }

    /// Result and status of a wait.
    fn wait(&self, seq: u64, micros: u64) -> (i32, u32) {
        type Wait = unsafe extern "C" fn(i32, u64, u64, *mut u32) -> i32;
        let mut status = 77;
        let call: Wait = self.function("hlthunk_wait_for_cs");
        // SAFETY: see the head of the file.
        let result = unsafe { call(self.fd, seq, micros, &raw mut status) };
        (result, status)
    }

    /// The card's address of host memory.
    fn map(&self, bytes: &[u8]) -> u64 {
        type Map = unsafe extern "C" fn(i32, *mut c_void, u64, u64) -> u64;
        let call: Map = self.function("hlthunk_host_memory_map");
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: see the head of the file.
        let address = unsafe { call(self.fd, start, 0, bytes.len() as u64) };
        assert_ne!(address, 0);
        address
    }
}

const fn chunk(handle: u64, size: u32, flags: u32) -> Chunk {
    Chunk {
        handle,
        queue: 0,
        size,
        flags,
        rest: [0; 11],
    }
}

/// A packet that copies 8 bytes within host memory at `at`.
fn packet(at: u64, ctl: u32) -> Vec<u8> {
    let mut bytes = 8_u32.to_le_bytes().to_vec();
    bytes.extend(ctl.to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend((at + 8).to_le_bytes());
    bytes
}

#[test]
fn what_a_gaudi_2_takes() {
    let raw = Raw::new(2);
    let mut page = vec![0_u8; 4096];
    let at = raw.map(&page);
    page[64..72].copy_from_slice(b"8 bytes!");
    page[..24].copy_from_slice(&packet(at + 64, 0xA900_0000));
    assert_eq!(raw.submit(&mut []).0, -libc::EINVAL);
    // A buffer of the kernel's; an address that is nothing; a size that is none; a queue that takes nothing.
    assert_eq!(raw.submit(&mut [chunk(1 << 32, 24, 0)]).0, -libc::EINVAL);
    assert_eq!(raw.submit(&mut [chunk(at + 4096, 24, 1)]).0, -libc::EFAULT);
    assert_eq!(raw.submit(&mut [chunk(at, 0, 1)]).0, -libc::EINVAL);
    let mut wrong = chunk(at, 24, 1);
    wrong.queue = 260;
    assert_eq!(raw.submit(&mut [wrong]).0, -libc::EINVAL);
    let mut many: Vec<Chunk> = (0..513).map(|_| chunk(at, 24, 1)).collect();
    assert_eq!(raw.submit(&mut many).0, -libc::EINVAL);
    // Several of them are one submission.
    let (result, seq) = raw.submit(&mut many[..3]);
    assert_eq!((result, seq), (0, 1));
    assert_eq!(raw.wait(seq, 60_000_000), (0, 0));
    assert_eq!(page[72..80], *b"8 bytes!");
}

#[test]
fn waits_answer_as_the_kernel_does() {
    let raw = Raw::new(2);
    let mut page = vec![0_u8; 4096];
    let at = raw.map(&page);
    page[..24].copy_from_slice(&packet(at + 64, 0xA900_0000));
    for seq in [0, 1, u64::MAX] {
        // The status of a refused question is that of a completed submission.
        assert_eq!(raw.wait(seq, 0), (-libc::EINVAL, 0), "{seq}");
    }
    raw.own.control("hold");
    let (_, held) = raw.submit(&mut [chunk(at, 24, 1)]);
    assert_eq!(raw.wait(held, 0), (0, 1));
    assert_eq!(raw.wait(held, 1000), (0, 1));
    raw.own.control("abort 0");
    assert_eq!(raw.wait(held, 0), (-libc::EIO, 3));
    raw.own.control("release");
    // The kernel remembers 64.
    for count in 1..=64 {
        let (_, seq) = raw.submit(&mut [chunk(at, 24, 1)]);
        assert_eq!(raw.wait(seq, 60_000_000), (0, 0));
        let told = if count < 64 { (-libc::EIO, 3) } else { (0, 0) };
        assert_eq!(raw.wait(held, 0), told, "after {count}");
    }
    raw.own.control("break 0 0");
    // The low half of the number stands where the status is to be.
    assert_eq!(raw.wait(0x5_0000_0002, 0), (-libc::EBUSY, 2));
    assert_eq!(raw.submit(&mut [chunk(at, 24, 1)]).0, -libc::EBUSY);
}

#[test]
fn a_full_ring_holds_the_submission_up() {
    let raw = Raw::new(2);
    let mut page = vec![0_u8; 4096];
    let at = raw.map(&page);
    page[..24].copy_from_slice(&packet(at + 64, 0xA900_0000));
    raw.own.control("hold");
    for _ in 0..64 {
        assert_eq!(raw.submit(&mut [chunk(at, 24, 1)]).0, 0);
    }
    assert_eq!(raw.own.live("held_up"), 0);
    std::thread::scope(|scope| {
        let one_more = scope.spawn(|| raw.submit(&mut [chunk(at, 24, 1)]));
        while raw.own.live("held_up") == 0 {
            std::thread::yield_now();
        }
        raw.own.control("release");
        assert_eq!(one_more.join().expect("no panic"), (0, 65));
    });
    // Until then the card reads packets in the page, and copies within it: it must not be another test's memory by then.
    assert_eq!(raw.wait(65, 60_000_000), (0, 0));
    assert!(raw.own.control("misuses").contains("held up"));
}

#[test]
fn packets_are_read_when_their_turn_comes() {
    let raw = Raw::new(2);
    let mut page = vec![0_u8; 4096];
    let at = raw.map(&page);
    page[64..72].copy_from_slice(b"8 bytes!");
    page[..24].copy_from_slice(&packet(at + 64, 0xA900_0000));
    raw.own.control("hold");
    let (_, seq) = raw.submit(&mut [chunk(at, 24, 1)]);
    // The buffer is used again too early: what was submitted is what stands there then.
    page[..24].copy_from_slice(&packet(at + 128, 0xA900_0000));
    raw.own.control("release");
    assert_eq!(raw.wait(seq, 60_000_000), (0, 0));
    assert_eq!(page[72..80], [0; 8]);
}

#[test]
fn wrong_packets_reset_a_gaudi_2() {
    // Another opcode, no opcode, bits that a copy does not have, a packet that ends early.
    for (ctl, size) in [
        (0xAA00_0000, 24),
        (0, 24),
        (0xA900_0008, 24),
        (0xE900_0000, 24),
        (0xA900_0000, 20),
    ] {
        let raw = Raw::new(2);
        let mut page = vec![0_u8; 4096];
        let at = raw.map(&page);
        page[..24].copy_from_slice(&packet(at + 64, ctl));
        let (result, seq) = raw.submit(&mut [chunk(at, size, 1)]);
        assert_eq!(result, 0, "the driver does not look at them");
        let (result, _) = raw.wait(seq, 60_000_000);
        assert!(
            [-libc::EIO, -libc::EBUSY].contains(&result),
            "{ctl:#x}: {result}"
        );
        assert_eq!(raw.own.number("misused"), 1, "{ctl:#x}");
    }
}

#[test]
fn the_first_gaudis_driver_reads_the_packets_itself() {
    type Request = unsafe extern "C" fn(i32, u32, *mut u64) -> i32;
    let raw = Raw::new(1);
    let request: Request = raw.function("hlthunk_request_command_buffer");
    let mut handle = 0;
    // SAFETY: see the head of the file.
    let mut request = |size| unsafe { request(raw.fd, size, &raw mut handle) };
    assert_eq!(request(0), -libc::EINVAL);
    assert_eq!(request(2 << 20), -libc::EINVAL);
    assert_eq!(request(4096), 0);
    let page = vec![0_u8; 4096];
    let at = raw.map(&page);
    let file = fs::File::options()
        .write(true)
        .open(format!("/proc/self/fd/{}", raw.fd))
        .expect("the card's file");
    let put = |bytes: &[u8]| {
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, handle).expect("written");
    };
    // MSG_PROT, CP_DMA, STOP, WREG_BULK.
    for opcode in [7_u32, 5, 0xB, 2] {
        put(&packet(at, opcode << 24));
        assert_eq!(raw.submit(&mut [chunk(handle, 24, 0)]).0, -libc::EPERM);
    }
    put(&packet(at, 0x1F << 24));
    assert_eq!(raw.submit(&mut [chunk(handle, 24, 0)]).0, -libc::EINVAL);
    put(&packet(at, 0xE900_0008));
    assert_eq!(
        raw.submit(&mut [chunk(handle, 16, 0)]).0,
        -libc::EINVAL,
        "beyond the end"
    );
    assert_eq!(raw.submit(&mut [chunk(handle, 8192, 0)]).0, -libc::EINVAL);
    assert_eq!(
        raw.submit(&mut [chunk(at, 24, 1)]).0,
        -libc::EINVAL,
        "a user's buffer"
    );
    let (result, seq) = raw.submit(&mut [chunk(handle, 24, 0)]);
    assert_eq!((result, raw.wait(seq, 60_000_000)), (0, (0, 0)));
    // Without its own bits it is no copy.
    put(&packet(at, 0xA900_0000));
    let (_, seq) = raw.submit(&mut [chunk(handle, 24, 0)]);
    assert_ne!(raw.wait(seq, 60_000_000).0, 0);
}

#[test]
fn a_dma_buf_wants_exact_words() {
    type Export = unsafe extern "C" fn(i32, u64, u64, u64, u32) -> i32;
    let raw = Raw::new(2);
    let alloc: unsafe extern "C" fn(i32, u64, u64, bool, bool) -> u64 =
        raw.function("hlthunk_device_memory_alloc");
    let map: unsafe extern "C" fn(i32, u64, u64) -> u64 = raw.function("hlthunk_device_memory_map");
    // SAFETY: numbers.
    let address = unsafe { map(raw.fd, alloc(raw.fd, 1, 0, false, false), 0) };
    let export: Export = raw.function("hlthunk_device_mapped_memory_export_dmabuf_fd");
    let page = 4096;
    for (address, size, offset, flags) in [
        (address, page, 0, 2),
        (address, page, 0, 0),
        (address + page, page, 0, 0x80002),
        (address, page, 1, 0x80002),
        (address, 768 << 20, page, 0x80002),
    ] {
        // SAFETY: numbers.
        let result = unsafe { export(raw.fd, address, size, offset, flags) };
        assert_eq!(result, -libc::EINVAL);
    }
    // SAFETY: numbers.
    let fd = unsafe { export(raw.fd, address, 768 << 20, 0, 0x80002) };
    assert!(fd >= 0);
    let told = emulated::control_of(&raw.own.path, &format!("dmabuf {fd}"));
    assert!(told.ends_with(" 0x0 0x30000000"), "{told}");
}
