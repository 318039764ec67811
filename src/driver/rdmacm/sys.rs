//! What `rdma/rdma_cma.h` says. The source are the headers of rdma-core v44 to v64, which agree; the numbers in the assertions were
//! printed by a C compiler on x86-64.

use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
};

use crate::driver::{
    library::symbols,
    verbs::sys::{RawContext, RawQpAttr},
};

/// `rdma_event_channel`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawEventChannel {
    pub(super) fd: c_int,
}

/// `rdma_cm_id`, the beginning.
#[repr(C)]
pub(super) struct RawId {
    pub(super) verbs: *mut RawContext,
    pub(super) channel: *mut RawEventChannel,
    pub(super) context: usize,
    pub(super) qp: usize,
    pub(super) src_addr: libc::sockaddr_storage,
    pub(super) dst_addr: libc::sockaddr_storage,
    _ib: [u64; 5],
    _path_rec: usize,
    _num_paths: [c_int; 2],
    pub(super) ps: u32,
    pub(super) port_num: u8,
    pub(super) event: usize,
}

/// `rdma_conn_param`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawConnParam {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

/// `rdma_cm_event`, with the larger half of its union.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawEvent {
    pub(super) id: *mut RawId,
    pub(super) listen_id: *mut RawId,
    pub(super) event: u32,
    pub(super) status: c_int,
    pub(super) conn: RawConnParam,
    _ud: [u64; 4],
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<RawEventChannel>() == 4);
    assert!(offset_of!(RawId, channel) == 8 && offset_of!(RawId, context) == 16);
    assert!(offset_of!(RawId, qp) == 24 && offset_of!(RawId, src_addr) == 32);
    assert!(offset_of!(RawId, dst_addr) == 160 && offset_of!(RawId, _ib) == 288);
    assert!(offset_of!(RawId, _path_rec) == 328 && offset_of!(RawId, ps) == 344);
    assert!(offset_of!(RawId, port_num) == 348 && offset_of!(RawId, event) == 352);
    assert!(size_of::<RawConnParam>() == 24 && offset_of!(RawConnParam, private_data_len) == 8);
    assert!(offset_of!(RawConnParam, responder_resources) == 9);
    assert!(offset_of!(RawConnParam, initiator_depth) == 10);
    assert!(offset_of!(RawConnParam, retry_count) == 12);
    assert!(offset_of!(RawConnParam, srq) == 14 && offset_of!(RawConnParam, qp_num) == 16);
    assert!(size_of::<RawEvent>() == 80 && offset_of!(RawEvent, event) == 16);
    assert!(offset_of!(RawEvent, status) == 20 && offset_of!(RawEvent, conn) == 24);
};

symbols! {
    /// The functions of `librdmacm.so.1`. `since` is 1000 × major + minor of the version that the library gives the symbol.
    struct Symbols;
    required {
        rdma_create_event_channel() -> *mut RawEventChannel, since 1000;
        rdma_destroy_event_channel(*mut RawEventChannel), since 1000;
        rdma_create_id(*mut RawEventChannel, *mut *mut RawId, *mut c_void, u32) -> c_int, since 1000;
        rdma_destroy_id(*mut RawId) -> c_int, since 1000;
        rdma_bind_addr(*mut RawId, *mut libc::sockaddr) -> c_int, since 1000;
        rdma_resolve_addr(*mut RawId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int, since 1000;
        rdma_resolve_route(*mut RawId, c_int) -> c_int, since 1000;
        rdma_listen(*mut RawId, c_int) -> c_int, since 1000;
        rdma_connect(*mut RawId, *mut RawConnParam) -> c_int, since 1000;
        rdma_accept(*mut RawId, *mut RawConnParam) -> c_int, since 1000;
        rdma_reject(*mut RawId, *const c_void, u8) -> c_int, since 1000;
        rdma_disconnect(*mut RawId) -> c_int, since 1000;
        rdma_get_cm_event(*mut RawEventChannel, *mut *mut RawEvent) -> c_int, since 1000;
        rdma_ack_cm_event(*mut RawEvent) -> c_int, since 1000;
        rdma_migrate_id(*mut RawId, *mut RawEventChannel) -> c_int, since 1000;
        rdma_establish(*mut RawId) -> c_int, since 1002;
        rdma_init_qp_attr(*mut RawId, *mut RawQpAttr, *mut c_int) -> c_int, since 1002;
    }
    optional {
    }
}
