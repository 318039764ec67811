//! What `infiniband/verbs.h` declares, written from it alone, and the library looked up by the loader as a program does that brings no header.
//!
//! # Safety
//! Types are those of the header. Objects live until they are destroyed; structs and what they name live through the calls.
#![allow(unsafe_code)]

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
    sync::{OnceLock, atomic::AtomicU64},
};

use crate::support::emulated;

pub(super) type Raw = *mut c_void;

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Cap {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) send_pieces: u32,
    pub(super) receive_pieces: u32,
    pub(super) inline: u32,
}

#[repr(C)]
pub(super) struct QpInit {
    pub(super) qp_context: Raw,
    pub(super) send_cq: Raw,
    pub(super) recv_cq: Raw,
    pub(super) srq: Raw,
    pub(super) cap: Cap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
pub(super) struct QpInitEx {
    pub(super) qp_context: Raw,
    pub(super) send_cq: Raw,
    pub(super) recv_cq: Raw,
    pub(super) srq: Raw,
    pub(super) cap: Cap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
    pub(super) comp_mask: u32,
    pub(super) pd: Raw,
    pub(super) rest: [u64; 7],
    pub(super) send_ops: u64,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct QpAttr {
    pub(super) state: u32,
    pub(super) cur_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) access: u32,
    pub(super) cap: Cap,
    /// Aligned to 8, as the header's union is.
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) ah_port_num: u8,
    pub(super) alternative: [u64; 4],
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) list: *const Sge,
    pub(super) pieces: c_int,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) imm: u32,
    pub(super) remote: u64,
    pub(super) rkey: u64,
    pub(super) rest: [u64; 9],
}

#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) list: *const Sge,
    pub(super) pieces: c_int,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) flags: u32,
    pub(super) rest: [u16; 4],
}

const _: () = {
    assert!(size_of::<QpInit>() == 64 && size_of::<QpInitEx>() == 136);
    assert!(size_of::<QpAttr>() == 144 && std::mem::offset_of!(QpAttr, is_global) == 85);
    assert!(size_of::<SendWr>() == 128 && std::mem::offset_of!(SendWr, rkey) == 48);
    assert!(size_of::<RecvWr>() == 32 && size_of::<Wc>() == 48);
};

pub(super) const SEND: u32 = 2;
pub(super) const WRITE: u32 = 0;
pub(super) const READ: u32 = 4;
pub(super) const SIGNALED: u32 = 2;
pub(super) const INLINE: u32 = 8;

pub(super) const LOCAL_WRITE: c_int = 1;
pub(super) const REMOTE_WRITE: c_int = 2;
pub(super) const ALL: c_int = 15;

pub(super) const RESET: u32 = 0;
pub(super) const INIT: u32 = 1;
pub(super) const RTR: u32 = 2;
pub(super) const RTS: u32 = 3;
pub(super) const ERR: u32 = 6;

pub(super) const TO_INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
pub(super) const TO_RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
pub(super) const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

/// An exported function, with the type that the header gives it.
pub(super) fn function<F: Copy>(name: &str) -> F {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    // SAFETY: the emulator runs nothing when it is loaded, and stays; the caller's type belongs to the name.
    unsafe {
        let load = || libloading::Library::new(emulated::verbs()).expect("loads");
        *LIBRARY.get_or_init(load).get::<F>(name).expect("exported")
    }
}

/// Calls an exported function.
macro_rules! call {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $result;
        let function: Function = $crate::stranger_verbs::raw::function(stringify!($name));
        // SAFETY: see the head of the file.
        unsafe { function($($argument),*) }
    }};
}
pub(super) use call;

/// The number at an offset of an object.
pub(super) fn field<T: Copy>(object: Raw, offset: usize) -> T {
    // SAFETY: a live object, and an offset of the header's.
    unsafe { object.byte_add(offset).cast::<T>().read() }
}

/// A function of a context's table.
pub(super) fn operation<F: Copy>(context: Raw, offset: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    field(context, offset)
}

pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An open device with a domain and a queue for completions, destroyed by hand or left.
pub(super) struct Device {
    pub(super) context: Raw,
    pub(super) pd: Raw,
    pub(super) channel: Raw,
    pub(super) cq: Raw,
    pub(super) gid: [u64; 2],
}

impl Device {
    pub(super) fn open(index: usize) -> Self {
        let list = call!(ibv_get_device_list(ptr::null_mut() => *mut c_int) -> *mut Raw);
        assert!(!list.is_null());
        // SAFETY: the list has two devices.
        let device = unsafe { *list.add(index) };
        let context = call!(ibv_open_device(device => Raw) -> Raw);
        assert!(!context.is_null(), "{}", errno());
        call!(ibv_free_device_list(list => *mut Raw) -> ());
        let pd = call!(ibv_alloc_pd(context => Raw) -> Raw);
        let channel = call!(ibv_create_comp_channel(context => Raw) -> Raw);
        let mut gid = [0_u64; 2];
        let answer = call!(ibv_query_gid(context => Raw, 1 => u8, 0 => c_int, &raw mut gid => *mut [u64; 2]) -> c_int);
        assert_eq!(answer, 0);
        let mut this = Self {
            context,
            pd,
            channel,
            cq: ptr::null_mut(),
            gid,
        };
        this.cq = this.queue(64);
        this
    }

    /// All of it; nothing else was made.
    pub(super) fn close(self) {
        assert_eq!(call!(ibv_destroy_cq(self.cq => Raw) -> c_int), 0);
        assert_eq!(
            call!(ibv_destroy_comp_channel(self.channel => Raw) -> c_int),
            0
        );
        assert_eq!(call!(ibv_dealloc_pd(self.pd => Raw) -> c_int), 0);
        assert_eq!(call!(ibv_close_device(self.context => Raw) -> c_int), 0);
    }

    pub(super) fn queue(&self, entries: c_int) -> Raw {
        call!(ibv_create_cq(self.context => Raw, entries => c_int, ptr::null_mut() => Raw, self.channel => Raw, 0 => c_int) -> Raw)
    }

    pub(super) fn queue_pair(&self, srq: Raw) -> Raw {
        let mut init = self.init(srq);
        let qp = call!(ibv_create_qp(self.pd => Raw, &raw mut init => *mut QpInit) -> Raw);
        assert!(!qp.is_null(), "{}", errno());
        qp
    }

    pub(super) fn init(&self, srq: Raw) -> QpInit {
        QpInit {
            qp_context: ptr::null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq,
            cap: Cap {
                sends: 4,
                receives: 4,
                send_pieces: 2,
                receive_pieces: 2,
                inline: 16,
            },
            qp_type: 2,
            sq_sig_all: 0,
        }
    }

    /// Eight words of zeros, registered.
    pub(super) fn register(&self, access: c_int) -> Region {
        let words: Box<[AtomicU64; 8]> = Box::default();
        let start: Raw = words.as_ptr().cast_mut().cast();
        let mr =
            call!(ibv_reg_mr(self.pd => Raw, start => Raw, 64 => usize, access => c_int) -> Raw);
        assert!(!mr.is_null(), "{}", errno());
        Region {
            mr,
            addr: start as u64,
            lkey: field(mr, 36),
            rkey: field(mr, 40),
            _words: words,
        }
    }

    /// What was completed.
    pub(super) fn poll(&self) -> Vec<Wc> {
        type Poll = unsafe extern "C" fn(Raw, c_int, *mut Wc) -> c_int;
        let poll: Poll = operation(self.context, 96);
        let mut some = [Wc::default(); 64];
        // SAFETY: see the head of the file.
        let count = unsafe { poll(self.cq, 64, some.as_mut_ptr()) };
        assert!(count >= 0, "{count}");
        some[..count as usize].to_vec()
    }
}

pub(super) struct Region {
    _words: Box<[AtomicU64; 8]>,
    pub(super) mr: Raw,
    pub(super) addr: u64,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

impl Region {
    pub(super) fn piece(&self, length: u32) -> Sge {
        Sge {
            addr: self.addr,
            length,
            lkey: self.lkey,
        }
    }
}

pub(super) fn number(qp: Raw) -> u32 {
    field(qp, 52)
}

pub(super) fn modify(qp: Raw, attr: &QpAttr, mask: c_int) -> c_int {
    call!(ibv_modify_qp(qp => Raw, ptr::from_ref(attr).cast_mut() => *mut QpAttr, mask => c_int) -> c_int)
}

pub(super) fn state(qp: Raw) -> u32 {
    let mut attr = QpAttr::default();
    // SAFETY: all of it are numbers and pointers, for which zeros are values.
    let mut init: QpInit = unsafe { std::mem::zeroed() };
    let answer = call!(ibv_query_qp(qp => Raw, &raw mut attr => *mut QpAttr, 1 => c_int, &raw mut init => *mut QpInit) -> c_int);
    assert_eq!(answer, 0);
    attr.state
}

/// What a queue pair is to know to be connected with that one.
pub(super) fn attributes(peer: u32, gid: [u64; 2]) -> QpAttr {
    QpAttr {
        path_mtu: 5,
        rq_psn: 7,
        sq_psn: 7,
        dest_qp_num: peer,
        access: ALL as u32,
        dgid: gid,
        hop_limit: 1,
        is_global: 1,
        ah_port_num: 1,
        port_num: 1,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 1,
        ..QpAttr::default()
    }
}

/// Takes it to where it sends.
pub(super) fn connect(qp: Raw, attr: &QpAttr) {
    for (state, mask) in [(INIT, TO_INIT), (RTR, TO_RTR), (RTS, TO_RTS)] {
        assert_eq!(
            modify(qp, &QpAttr { state, ..*attr }, mask),
            0,
            "to {state}"
        );
    }
}

/// Posts requests, which are linked to each other: the answer, and which of them is the bad one.
pub(super) fn post_send(context: Raw, qp: Raw, requests: &mut [SendWr]) -> (c_int, Option<usize>) {
    type Post = unsafe extern "C" fn(Raw, *mut SendWr, *mut *mut SendWr) -> c_int;
    let post: Post = operation(context, 208);
    let mut next = ptr::null_mut();
    for request in requests.iter_mut().rev() {
        request.next = next;
        next = request;
    }
    let mut bad = ptr::null_mut();
    // SAFETY: see the head of the file.
    let answer = unsafe { post(qp, next, &raw mut bad) };
    let bad = requests.iter().position(|one| ptr::eq(one, bad));
    (answer, bad)
}

pub(super) fn send(id: u64, opcode: u32, flags: u32, list: &[Sge]) -> SendWr {
    SendWr {
        wr_id: id,
        next: ptr::null_mut(),
        list: list.as_ptr(),
        pieces: list.len() as c_int,
        opcode,
        flags,
        imm: 0,
        remote: 0,
        rkey: 0,
        rest: [0; 9],
    }
}

/// Posts a receive to a queue pair (`offset` 216) or a shared queue (168).
pub(super) fn post_receive(context: Raw, offset: usize, to: Raw, id: u64, list: &[Sge]) -> c_int {
    type Post = unsafe extern "C" fn(Raw, *mut RecvWr, *mut *mut RecvWr) -> c_int;
    let post: Post = operation(context, offset);
    let mut request = RecvWr {
        wr_id: id,
        next: ptr::null_mut(),
        list: list.as_ptr(),
        pieces: list.len() as c_int,
    };
    let mut bad = ptr::null_mut();
    // SAFETY: see the head of the file.
    let answer = unsafe { post(to, &raw mut request, &raw mut bad) };
    assert_eq!(answer != 0, ptr::eq(bad, &raw const request));
    answer
}

pub(super) const QUEUE_PAIR: usize = 216;
pub(super) const SHARED: usize = 168;

pub(super) fn name(text: *const c_char) -> String {
    // SAFETY: a string of the library's.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
