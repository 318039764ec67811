//! What `hlthunk.h` and `habanalabs_accel.h` say: types, numbers, structs and the table of functions.
//!
//! The sources are the headers of hl-thunk 1.10 (2023) and of the 1.19 and 1.21 releases (2024, 2025); sizes and offsets were printed by
//! a C compiler. All functions are plain C without symbol versions. What reports an error returns a negative `errno`; what returns an
//! address or a handle returns 0 and leaves `errno`.
//!
//! The interface of 2021 has some of the same names with other arguments, so a library of that time is refused before anything else of
//! it is called (`mod.rs`).

use std::{
    ffi::{c_char, c_void},
    mem::offset_of,
};

use crate::driver::library::symbols;

/// `struct hlthunk_hw_ip_info` of 2023 and later. A newer library may write more: it is always given an [`Oversized`] one.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct HwIpInfo {
    pub(super) sram_base_address: u64,
    pub(super) dram_base_address: u64,
    pub(super) dram_size: u64,
    pub(super) sram_size: u32,
    pub(super) num_of_events: u32,
    pub(super) device_id: u32,
    pub(super) cpld_version: u32,
    pub(super) psoc_pci_pll: [u32; 4],
    pub(super) tpc_enabled_mask: u16,
    pub(super) dram_enabled: u8,
    pub(super) cpucp_version: [u8; 128],
    pub(super) module_id: u32,
    pub(super) card_name: [u8; 16],
    pub(super) unused_208: [u64; 2],
    pub(super) dram_page_size: u64,
    pub(super) first_available_interrupt_id: u16,
    pub(super) edma_enabled_mask: u32,
    pub(super) server_type: u16,
    pub(super) pdma_user_owned_ch_mask: u64,
    pub(super) number_of_user_interrupts: u16,
    pub(super) device_mem_alloc_default_page_size: u64,
    pub(super) nic_ports_mask: u64,
    pub(super) unused_280: u64,
    pub(super) nic_ports_external_mask: u64,
    pub(super) unused_296: [u8; 6],
    pub(super) revision_id: u8,
    pub(super) unused_303: [u8; 25],
    pub(super) reserved_dram_size: u64,
}

/// A struct that the library fills in its own size, with room behind it for what newer ones have.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Oversized<T: Copy> {
    pub(super) value: T,
    pub(super) room: [u64; 512],
}

/// `struct hl_cs_chunk`: one command buffer of a submission.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CsChunk {
    /// The kernel's handle, or the device's address of a user's command buffer.
    pub(super) cb_handle: u64,
    pub(super) queue_index: u32,
    pub(super) cb_size: u32,
    pub(super) cs_chunk_flags: u32,
    pub(super) collective_engine_id: u32,
    pub(super) pad: [u32; 10],
}

/// `struct hlthunk_cs_in`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CsIn {
    pub(super) chunks_restore: *mut c_void,
    pub(super) chunks_execute: *mut c_void,
    pub(super) num_chunks_restore: u32,
    pub(super) num_chunks_execute: u32,
    pub(super) flags: u32,
    pub(super) pad: u32,
}

/// `struct hlthunk_cs_out`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CsOut {
    pub(super) seq: u64,
    pub(super) status: u32,
    pub(super) sob_count: u16,
    pub(super) pad: u16,
}

/// `struct hlthunk_wait_multi_cs_in`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct WaitMultiIn {
    pub(super) seq: *const u64,
    pub(super) timeout_us: u64,
    pub(super) seq_len: u32,
    pub(super) pad: u32,
}

/// `struct hlthunk_wait_multi_cs_out`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct WaitMultiOut {
    pub(super) status: u32,
    pub(super) seq_set: u32,
    pub(super) completed: u8,
    pub(super) pad: [u8; 3],
}

const _: () = {
    assert!(size_of::<HwIpInfo>() == 336);
    assert!(offset_of!(HwIpInfo, dram_size) == 16 && offset_of!(HwIpInfo, sram_size) == 24);
    assert!(offset_of!(HwIpInfo, num_of_events) == 28 && offset_of!(HwIpInfo, device_id) == 32);
    assert!(offset_of!(HwIpInfo, psoc_pci_pll) == 40);
    assert!(offset_of!(HwIpInfo, tpc_enabled_mask) == 56);
    assert!(offset_of!(HwIpInfo, dram_enabled) == 58);
    assert!(offset_of!(HwIpInfo, cpucp_version) == 59);
    assert!(offset_of!(HwIpInfo, module_id) == 188 && offset_of!(HwIpInfo, card_name) == 192);
    assert!(offset_of!(HwIpInfo, dram_page_size) == 224);
    assert!(offset_of!(HwIpInfo, first_available_interrupt_id) == 232);
    assert!(offset_of!(HwIpInfo, edma_enabled_mask) == 236);
    assert!(offset_of!(HwIpInfo, server_type) == 240);
    assert!(offset_of!(HwIpInfo, pdma_user_owned_ch_mask) == 248);
    assert!(offset_of!(HwIpInfo, number_of_user_interrupts) == 256);
    assert!(offset_of!(HwIpInfo, device_mem_alloc_default_page_size) == 264);
    assert!(offset_of!(HwIpInfo, nic_ports_mask) == 272);
    assert!(offset_of!(HwIpInfo, nic_ports_external_mask) == 288);
    assert!(offset_of!(HwIpInfo, revision_id) == 302);
    assert!(offset_of!(HwIpInfo, reserved_dram_size) == 328);
    assert!(size_of::<Oversized<HwIpInfo>>() >= 4096);
    assert!(size_of::<CsChunk>() == 64 && offset_of!(CsChunk, queue_index) == 8);
    assert!(offset_of!(CsChunk, cb_size) == 12 && offset_of!(CsChunk, cs_chunk_flags) == 16);
    assert!(offset_of!(CsChunk, collective_engine_id) == 20);
    assert!(size_of::<CsIn>() == 32 && offset_of!(CsIn, chunks_execute) == 8);
    assert!(offset_of!(CsIn, num_chunks_restore) == 16);
    assert!(offset_of!(CsIn, num_chunks_execute) == 20 && offset_of!(CsIn, flags) == 24);
    assert!(size_of::<CsOut>() == 16 && offset_of!(CsOut, status) == 8);
    assert!(offset_of!(CsOut, sob_count) == 12);
    assert!(size_of::<WaitMultiIn>() == 24 && offset_of!(WaitMultiIn, timeout_us) == 8);
    assert!(offset_of!(WaitMultiIn, seq_len) == 16);
    assert!(size_of::<WaitMultiOut>() == 12 && offset_of!(WaitMultiOut, seq_set) == 4);
    assert!(offset_of!(WaitMultiOut, completed) == 8);
};

/// `HLTHUNK_DEVICE_DONT_CARE`.
pub(super) const DEVICE_DONT_CARE: u32 = 4;
/// `HLTHUNK_MAX_MINOR`: how many nodes there can be.
pub(super) const MAX_MINOR: i32 = 256;
/// `HL_CS_CHUNK_FLAGS_USER_ALLOC_CB`: the chunk names a user's command buffer by its device address.
pub(super) const CHUNK_USER_CB: u32 = 1;
/// `HL_CS_STATUS_SUCCESS`.
pub(super) const CS_STATUS_SUCCESS: u32 = 0;
/// `HL_WAIT_CS_STATUS_COMPLETED`.
pub(super) const WAIT_COMPLETED: u32 = 0;
/// `HL_WAIT_CS_STATUS_BUSY`.
pub(super) const WAIT_BUSY: u32 = 1;
/// What the wait for several submissions takes at most.
pub(super) const WAIT_MULTI_MAX: usize = 32;
/// The only flags that the export of a dma-buf takes: `O_RDWR | O_CLOEXEC`.
pub(super) const DMABUF_FLAGS: u32 = (libc::O_RDWR | libc::O_CLOEXEC) as u32;

/// What tells the interface of 2023 from that of 2021, which lacks it.
pub(super) const GENERATION: &str = "hlthunk_device_mapped_memory_export_dmabuf_fd";

symbols! {
    /// The functions of `libhl-thunk.so`. `since` is the year of the interface that has the signature.
    struct Symbols;
    required {
        hlthunk_get_version() -> *mut c_char, since 2021;
        hlthunk_free(*mut c_void), since 2021;
        hlthunk_open(u32, *const c_char) -> i32, since 2021;
        hlthunk_open_control(i32, *const c_char) -> i32, since 2021;
        hlthunk_close(i32) -> i32, since 2021;
        hlthunk_get_hw_ip_info(i32, *mut Oversized<HwIpInfo>) -> i32, since 2023;
        hlthunk_get_pci_bus_id_from_fd(i32, *mut c_char, i32) -> i32, since 2021;
        hlthunk_get_device_name_from_fd(i32) -> u32, since 2023;
        hlthunk_device_memory_alloc(i32, u64, u64, bool, bool) -> u64, since 2023;
        hlthunk_device_memory_free(i32, u64) -> i32, since 2021;
        hlthunk_device_memory_map(i32, u64, u64) -> u64, since 2021;
        hlthunk_host_memory_map(i32, *mut c_void, u64, u64) -> u64, since 2021;
        hlthunk_memory_unmap(i32, u64) -> i32, since 2021;
        hlthunk_command_submission(i32, *mut CsIn, *mut CsOut) -> i32, since 2021;
        hlthunk_wait_for_cs(i32, u64, u64, *mut u32) -> i32, since 2021;
    }
    optional {
        hlthunk_get_device_status_info(i32) -> i32, since 2021;
        hlthunk_request_command_buffer(i32, u32, *mut u64) -> i32, since 2021;
        hlthunk_destroy_command_buffer(i32, u64) -> i32, since 2021;
        hlthunk_wait_for_multi_cs(i32, *mut WaitMultiIn, *mut WaitMultiOut) -> i32, since 2023;
        hlthunk_device_memory_export_dmabuf_fd(i32, u64, u64, u32) -> i32, since 2023;
        hlthunk_device_mapped_memory_export_dmabuf_fd(i32, u64, u64, u64, u32) -> i32, since 2023;
        hlthunk_notifier_create(i32) -> i32, since 2023;
        hlthunk_notifier_release(i32, i32) -> i32, since 2023;
        hlthunk_notifier_recv(i32, i32, *mut u64, *mut u64, u32, u32) -> i32, since 2023;
    }
}
