//! The structs of `infiniband/verbs.h` as far as the emulator reads or fills them, written from the header by itself.

use std::{ffi::c_void, mem::offset_of};

#[repr(C)]
pub(crate) struct Device {
    pub(crate) ops: [usize; 2],
    pub(crate) node_type: i32,
    pub(crate) transport_type: i32,
    pub(crate) name: [u8; 64],
    pub(crate) dev_name: [u8; 64],
    pub(crate) dev_path: [u8; 256],
    pub(crate) ibdev_path: [u8; 256],
}

#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *const Device,
    /// The 32 functions of `ibv_context_ops`.
    pub(crate) ops: [usize; 32],
    pub(crate) cmd_fd: i32,
    pub(crate) async_fd: i32,
    pub(crate) num_comp_vectors: i32,
    pub(crate) mutex: [u64; 5],
    pub(crate) abi_compat: usize,
}

/// `verbs_context` of rdma-core 44: what stands before the context that a program has. Those of newer versions are longer at the front.
#[repr(C)]
pub(crate) struct Extended {
    pub(crate) query_port: usize,
    pub(crate) _advise_to_create_wq: [usize; 23],
    pub(crate) query_rt_values: usize,
    pub(crate) create_cq_ex: usize,
    pub(crate) private: usize,
    pub(crate) query_device_ex: usize,
    pub(crate) _flows: [usize; 4],
    pub(crate) open_qp: usize,
    pub(crate) create_qp_ex: usize,
    pub(crate) _get_srq_num: usize,
    pub(crate) create_srq_ex: usize,
    pub(crate) _domains: [usize; 3],
    pub(crate) size: usize,
    pub(crate) context: Context,
}

#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct Channel {
    pub(crate) context: *mut Context,
    pub(crate) fd: i32,
    pub(crate) refcnt: i32,
}

#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut Channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: i32,
    pub(crate) rest: [u64; 12],
}

/// `ibv_cq_ex`.
#[repr(C)]
pub(crate) struct CqEx {
    pub(crate) base: Cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) functions: [*const c_void; 18],
}

#[repr(C)]
pub(crate) struct CqInitEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut Channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) _parent_domain: usize,
}

#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
    pub(crate) rest: [u64; 12],
}

#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: u32,
    pub(crate) qp_type: u32,
    pub(crate) rest: [u64; 12],
}

/// `ibv_qp_ex`, as long as in the newest version.
#[repr(C)]
pub(crate) struct QpEx {
    pub(crate) base: Qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: u32,
    pub(crate) functions: [*const c_void; 22],
}

/// `ibv_data_buf`.
#[repr(C)]
pub(crate) struct DataBuf {
    pub(crate) address: u64,
    pub(crate) length: usize,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
pub(crate) struct QpInit {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: Cap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: i32,
}

/// `ibv_qp_init_attr_ex`, which begins as the plain struct does.
#[repr(C)]
pub(crate) struct QpInitEx {
    pub(crate) _plain: [u64; 7],
    pub(crate) _sq_sig_all: i32,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut Pd,
    pub(crate) _xrcd_to_source: [u64; 7],
    pub(crate) send_ops_flags: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C)]
pub(crate) struct SrqInit {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

#[repr(C)]
pub(crate) struct GidEntry {
    pub(crate) gid: [u8; 16],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// `ibv_ah_attr`: the way to a peer's port.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Path {
    /// Aligned to 8, as the union in the header is.
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: Cap,
    pub(crate) path: Path,
    pub(crate) alternative: Path,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: i32,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    pub(crate) imm_data: u32,
    /// `wr`: the address, then key (RDMA) or operand, swap, key (atomics).
    pub(crate) wr: [u64; 4],
    pub(crate) rest: [u64; 7],
}

#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: i32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: usize,
    pub(crate) event_type: u32,
}

const _: () = {
    assert!(size_of::<Device>() == 664 && offset_of!(Device, name) == 24);
    assert!(size_of::<Context>() == 328 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Context, abi_compat) == 320 && size_of::<Mr>() == 48);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<Cq>() == 128 && offset_of!(Cq, cqe) == 28);
    assert!(size_of::<Srq>() == 128 && offset_of!(Srq, srq_context) == 8);
    assert!(size_of::<Qp>() == 160 && offset_of!(Qp, qp_num) == 52);
    assert!(size_of::<QpInit>() == 64 && offset_of!(QpInit, cap) == 32);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, path) == 56);
    assert!(size_of::<Path>() == 32 && offset_of!(Path, is_global) == 29);
    assert!(size_of::<Extended>() == 648 && offset_of!(Extended, context) == 320);
    assert!(offset_of!(Extended, size) == 320 - 8 && offset_of!(Extended, query_port) == 0);
    assert!(offset_of!(Extended, create_srq_ex) == 320 - 40);
    assert!(offset_of!(Extended, create_qp_ex) == 320 - 56);
    assert!(offset_of!(Extended, query_device_ex) == 320 - 104);
    assert!(offset_of!(Extended, create_cq_ex) == 320 - 120);
    assert!(size_of::<CqEx>() == 288 && offset_of!(CqEx, functions) == 144);
    assert!(size_of::<CqInitEx>() == 56 && offset_of!(CqInitEx, wc_flags) == 32);
    assert!(size_of::<QpEx>() == 360 && offset_of!(QpEx, functions) == 184);
    assert!(size_of::<QpInitEx>() == 136 && offset_of!(QpInitEx, pd) == 64);
    assert!(offset_of!(QpInitEx, send_ops_flags) == 128);
    assert!(size_of::<GidEntry>() == 32 && size_of::<SrqInit>() == 24);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, rnr_retry) == 132);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, wr) == 40);
    assert!(size_of::<RecvWr>() == 32 && size_of::<Wc>() == 48);
    assert!(size_of::<AsyncEvent>() == 16);
};
