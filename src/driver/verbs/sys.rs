//! What `infiniband/verbs.h` says. The source are the headers of rdma-core v44 to v64, whose layouts are the same but for growth at the
//! ends of structs; the numbers in the assertions were printed by a C compiler on x86-64.
//!
//! Objects that the library makes (`ibv_context`, `ibv_qp`, …) are only read, and only as far as is written here. Enumerations are
//! numbers: a newer library may send values that are not known here.

use std::{
    ffi::{c_char, c_int, c_void},
    mem::offset_of,
};

use crate::driver::library::symbols;

/// `ibv_device`, only the beginning.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawDevice {
    _ops: [usize; 2],
    pub(super) node_type: u32,
    pub(super) transport_type: u32,
    pub(super) name: [c_char; 64],
    pub(super) dev_name: [c_char; 64],
}

/// `ibv_context_ops`: the calls that the header makes through the context.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Ops {
    _0: [usize; 11],
    pub(super) poll_cq: Option<PollCq>,
    pub(super) req_notify_cq: Option<ReqNotifyCq>,
    _13: [usize; 7],
    pub(super) post_srq_recv: Option<PostSrqRecv>,
    _21: [usize; 4],
    pub(super) post_send: Option<PostSend>,
    pub(super) post_recv: Option<PostRecv>,
    _27: [usize; 5],
}

pub(super) type PollCq = unsafe extern "C" fn(*mut RawCq, c_int, *mut RawCompletion) -> c_int;
pub(super) type ReqNotifyCq = unsafe extern "C" fn(*mut RawCq, c_int) -> c_int;
pub(super) type PostSrqRecv =
    unsafe extern "C" fn(*mut RawSrq, *mut RawReceive, *mut *mut RawReceive) -> c_int;
pub(super) type PostSend =
    unsafe extern "C" fn(*mut RawQp, *mut RawSend, *mut *mut RawSend) -> c_int;
pub(super) type PostRecv =
    unsafe extern "C" fn(*mut RawQp, *mut RawReceive, *mut *mut RawReceive) -> c_int;

/// `ibv_context`.
#[repr(C)]
pub(crate) struct RawContext {
    pub(super) device: *mut RawDevice,
    pub(super) ops: Ops,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    _mutex: libc::pthread_mutex_t,
    /// All ones: the extended table stands before this struct.
    pub(super) abi_compat: usize,
}

/// Where a function of the extended table stands: so many bytes before the `ibv_context`.
pub(super) mod before {
    pub(crate) const SIZE: usize = 8;
    pub(crate) const QUERY_DEVICE_EX: usize = 104;
    pub(crate) const QUERY_PORT: usize = 320;
}

pub(super) type QueryDeviceEx =
    unsafe extern "C" fn(*mut RawContext, *const c_void, *mut RawDeviceAttrEx, usize) -> c_int;
pub(super) type QueryPort =
    unsafe extern "C" fn(*mut RawContext, u8, *mut RawPortAttr, usize) -> c_int;

/// `ibv_pd`, not looked into.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawPd(c_void);

/// `ibv_mr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawMr {
    _context: usize,
    _pd: usize,
    pub(super) addr: usize,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `ibv_comp_channel`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawChannel {
    _context: usize,
    pub(super) fd: c_int,
    _refcnt: c_int,
}

/// `ibv_cq`, the beginning.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawCq {
    _context: usize,
    _channel: usize,
    pub(super) cq_context: usize,
    _handle: u32,
    pub(super) cqe: c_int,
}

/// `ibv_srq`, the beginning.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawSrq {
    _context: usize,
    pub(super) srq_context: usize,
}

/// `ibv_qp`, the beginning.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawQp {
    _context: usize,
    _qp_context: usize,
    _pd: usize,
    _send_cq: usize,
    _recv_cq: usize,
    _srq: usize,
    _handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: u32,
    pub(super) qp_type: u32,
}

/// `ibv_srq_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawSrqAttr {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `ibv_srq_init_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawSrqInit {
    pub(super) srq_context: usize,
    pub(super) attr: RawSrqAttr,
}

/// `ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawQpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `ibv_qp_init_attr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawQpInit {
    pub(super) qp_context: usize,
    pub(super) send_cq: *mut RawCq,
    pub(super) recv_cq: *mut RawCq,
    pub(super) srq: *mut RawSrq,
    pub(super) cap: RawQpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// `ibv_global_route`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawRoute {
    /// Aligned to 8, as the union in the header is.
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// `ibv_ah_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawAh {
    pub(super) grh: RawRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `ibv_qp_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RawQpAttr {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: RawQpCap,
    pub(super) ah_attr: RawAh,
    pub(super) alt_ah_attr: RawAh,
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

impl RawQpAttr {
    /// With only a state in it, to be filled by another.
    pub(in crate::driver) fn of(state: u32) -> Self {
        Self {
            qp_state: state,
            ..Self::default()
        }
    }
}

/// Bits of `ibv_qp_attr_mask`.
pub(super) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
}

/// `ibv_sge`: a piece of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Sge {
    /// Its address.
    pub(crate) addr: u64,
    /// Its length in bytes.
    pub(crate) length: u32,
    /// The local key of its registration.
    pub(crate) lkey: u32,
}

/// `ibv_send_wr`. The union `wr` is four words: RDMA (address, key) and atomics (address, operand, swap, key).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawSend {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *const Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    /// Big-endian.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    /// Atomics: what is added or compared with. RDMA: the key, in the first four bytes.
    pub(super) second: Second,
    pub(super) swap: u64,
    pub(super) atomic_rkey: u32,
    pub(super) _pad: u32,
    pub(super) _xrc: u32,
    pub(super) _tail: [usize; 6],
}

/// The second word of the union.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Second {
    pub(super) rkey: u32,
    pub(super) operand: u64,
}

impl std::fmt::Debug for Second {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

impl RawSend {
    pub(super) const EMPTY: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        remote_addr: 0,
        second: Second { operand: 0 },
        swap: 0,
        atomic_rkey: 0,
        _pad: 0,
        _xrc: 0,
        _tail: [0; 6],
    };
}

/// `ibv_recv_wr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawReceive {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *const Sge,
    pub(super) num_sge: c_int,
}

/// `ibv_wc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawCompletion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// Big-endian.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `ibv_async_event`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawAsyncEvent {
    /// A pointer to the object, or a port's number in the first four bytes.
    pub(super) element: usize,
    pub(super) event_type: u32,
}

/// `ibv_port_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawPortAttr {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
    pub(super) active_speed_ex: u32,
}

/// `ibv_device_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawDeviceAttr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: u32,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: u32,
    _168: [c_int; 11],
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    pub(super) max_srq_sge: c_int,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `ibv_device_attr_ex`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawDeviceAttrEx {
    pub(super) orig: RawDeviceAttr,
    pub(super) comp_mask: u32,
    pub(super) odp_general: u64,
    pub(super) odp_rc: u32,
    pub(super) odp_uc: u32,
    pub(super) odp_ud: u32,
    _260: [u32; 3],
    pub(super) hca_core_clock: u64,
    pub(super) device_cap_flags_ex: u64,
    _288: [u32; 22],
    pub(super) max_dm_size: u64,
    _384: [u32; 3],
    pub(super) phys_port_cnt_ex: u32,
}

/// `ibv_gid_entry`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawGidEntry {
    pub(super) gid: [u64; 2],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(RawDevice, node_type) == 16 && offset_of!(RawDevice, transport_type) == 20);
    assert!(offset_of!(RawDevice, name) == 24 && offset_of!(RawDevice, dev_name) == 88);
    // 40 bytes on x86-64, 48 on aarch64.
    let mutex = size_of::<libc::pthread_mutex_t>();
    assert!(size_of::<RawContext>() == 288 + mutex && align_of::<RawContext>() == 8);
    assert!(offset_of!(RawContext, device) == 0 && offset_of!(RawContext, ops) == 8);
    assert!(offset_of!(RawContext, ops.poll_cq) == 96);
    assert!(offset_of!(RawContext, ops.req_notify_cq) == 104);
    assert!(offset_of!(RawContext, ops.post_srq_recv) == 168);
    assert!(offset_of!(RawContext, ops.post_send) == 208);
    assert!(offset_of!(RawContext, ops.post_recv) == 216);
    assert!(offset_of!(RawContext, cmd_fd) == 264 && offset_of!(RawContext, async_fd) == 268);
    assert!(offset_of!(RawContext, num_comp_vectors) == 272);
    assert!(offset_of!(RawContext, abi_compat) == 280 + mutex);
    assert!(size_of::<RawMr>() == 48 && offset_of!(RawMr, addr) == 16);
    assert!(offset_of!(RawMr, length) == 24 && offset_of!(RawMr, handle) == 32);
    assert!(offset_of!(RawMr, lkey) == 36 && offset_of!(RawMr, rkey) == 40);
    assert!(size_of::<RawChannel>() == 16 && offset_of!(RawChannel, fd) == 8);
    assert!(offset_of!(RawCq, cq_context) == 16 && offset_of!(RawCq, cqe) == 28);
    assert!(offset_of!(RawSrq, srq_context) == 8);
    assert!(offset_of!(RawQp, _handle) == 48 && offset_of!(RawQp, qp_num) == 52);
    assert!(offset_of!(RawQp, state) == 56 && offset_of!(RawQp, qp_type) == 60);
    assert!(size_of::<RawSrqAttr>() == 12 && size_of::<RawSrqInit>() == 24);
    assert!(offset_of!(RawSrqInit, attr) == 8 && size_of::<RawQpCap>() == 20);
    assert!(size_of::<RawQpInit>() == 64 && offset_of!(RawQpInit, send_cq) == 8);
    assert!(offset_of!(RawQpInit, srq) == 24 && offset_of!(RawQpInit, cap) == 32);
    assert!(offset_of!(RawQpInit, qp_type) == 52 && offset_of!(RawQpInit, sq_sig_all) == 56);
    assert!(size_of::<RawRoute>() == 24 && offset_of!(RawRoute, flow_label) == 16);
    assert!(offset_of!(RawRoute, sgid_index) == 20 && offset_of!(RawRoute, hop_limit) == 21);
    assert!(offset_of!(RawRoute, traffic_class) == 22);
    assert!(size_of::<RawAh>() == 32 && offset_of!(RawAh, dlid) == 24);
    assert!(offset_of!(RawAh, sl) == 26 && offset_of!(RawAh, src_path_bits) == 27);
    assert!(offset_of!(RawAh, static_rate) == 28 && offset_of!(RawAh, is_global) == 29);
    assert!(offset_of!(RawAh, port_num) == 30);
    assert!(size_of::<RawQpAttr>() == 144 && align_of::<RawQpAttr>() == 8);
    assert!(offset_of!(RawQpAttr, path_mtu) == 8 && offset_of!(RawQpAttr, rq_psn) == 20);
    assert!(offset_of!(RawQpAttr, sq_psn) == 24 && offset_of!(RawQpAttr, dest_qp_num) == 28);
    assert!(offset_of!(RawQpAttr, qp_access_flags) == 32 && offset_of!(RawQpAttr, cap) == 36);
    assert!(offset_of!(RawQpAttr, ah_attr) == 56 && offset_of!(RawQpAttr, alt_ah_attr) == 88);
    assert!(offset_of!(RawQpAttr, pkey_index) == 120);
    assert!(offset_of!(RawQpAttr, max_rd_atomic) == 126);
    assert!(offset_of!(RawQpAttr, max_dest_rd_atomic) == 127);
    assert!(offset_of!(RawQpAttr, min_rnr_timer) == 128 && offset_of!(RawQpAttr, port_num) == 129);
    assert!(offset_of!(RawQpAttr, timeout) == 130 && offset_of!(RawQpAttr, retry_cnt) == 131);
    assert!(offset_of!(RawQpAttr, rnr_retry) == 132 && offset_of!(RawQpAttr, rate_limit) == 136);
    assert!(size_of::<Sge>() == 16 && offset_of!(Sge, length) == 8 && offset_of!(Sge, lkey) == 12);
    assert!(size_of::<RawSend>() == 128 && offset_of!(RawSend, next) == 8);
    assert!(offset_of!(RawSend, sg_list) == 16 && offset_of!(RawSend, num_sge) == 24);
    assert!(offset_of!(RawSend, opcode) == 28 && offset_of!(RawSend, send_flags) == 32);
    assert!(offset_of!(RawSend, imm_data) == 36 && offset_of!(RawSend, remote_addr) == 40);
    assert!(offset_of!(RawSend, second) == 48 && offset_of!(RawSend, swap) == 56);
    assert!(offset_of!(RawSend, atomic_rkey) == 64 && offset_of!(RawSend, _xrc) == 72);
    assert!(size_of::<RawReceive>() == 32 && offset_of!(RawReceive, sg_list) == 16);
    assert!(offset_of!(RawReceive, num_sge) == 24);
    assert!(size_of::<RawCompletion>() == 48 && offset_of!(RawCompletion, status) == 8);
    assert!(offset_of!(RawCompletion, opcode) == 12 && offset_of!(RawCompletion, vendor_err) == 16);
    assert!(offset_of!(RawCompletion, byte_len) == 20 && offset_of!(RawCompletion, imm_data) == 24);
    assert!(offset_of!(RawCompletion, qp_num) == 28 && offset_of!(RawCompletion, src_qp) == 32);
    assert!(offset_of!(RawCompletion, wc_flags) == 36 && offset_of!(RawCompletion, slid) == 42);
    assert!(size_of::<RawAsyncEvent>() == 16 && offset_of!(RawAsyncEvent, event_type) == 8);
    assert!(size_of::<RawPortAttr>() == 56 && offset_of!(RawPortAttr, gid_tbl_len) == 12);
    assert!(offset_of!(RawPortAttr, max_msg_sz) == 20 && offset_of!(RawPortAttr, lid) == 34);
    assert!(
        offset_of!(RawPortAttr, active_width) == 43 && offset_of!(RawPortAttr, link_layer) == 46
    );
    assert!(offset_of!(RawPortAttr, flags) == 47 && offset_of!(RawPortAttr, active_speed_ex) == 52);
    assert!(size_of::<RawDeviceAttr>() == 232 && offset_of!(RawDeviceAttr, node_guid) == 64);
    assert!(offset_of!(RawDeviceAttr, vendor_id) == 96 && offset_of!(RawDeviceAttr, max_qp) == 108);
    assert!(offset_of!(RawDeviceAttr, max_sge) == 120 && offset_of!(RawDeviceAttr, max_cqe) == 132);
    assert!(offset_of!(RawDeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(RawDeviceAttr, max_qp_init_rd_atom) == 156);
    assert!(
        offset_of!(RawDeviceAttr, atomic_cap) == 164 && offset_of!(RawDeviceAttr, max_srq) == 212
    );
    assert!(offset_of!(RawDeviceAttr, max_srq_wr) == 216);
    assert!(offset_of!(RawDeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<RawDeviceAttrEx>() == 400 && offset_of!(RawDeviceAttrEx, odp_general) == 240);
    assert!(offset_of!(RawDeviceAttrEx, odp_rc) == 248);
    assert!(offset_of!(RawDeviceAttrEx, hca_core_clock) == 272);
    assert!(offset_of!(RawDeviceAttrEx, max_dm_size) == 376);
    assert!(offset_of!(RawDeviceAttrEx, phys_port_cnt_ex) == 396);
    assert!(size_of::<RawGidEntry>() == 32 && offset_of!(RawGidEntry, gid_type) == 24);
};

symbols! {
    /// The functions of `libibverbs.so.1`. `since` is 1000 × major + minor of the version that the library gives the symbol.
    struct Symbols;
    required {
        ibv_get_device_list(*mut c_int) -> *mut *mut RawDevice, since 1001;
        ibv_free_device_list(*mut *mut RawDevice), since 1001;
        ibv_get_device_name(*mut RawDevice) -> *const c_char, since 1001;
        ibv_get_device_guid(*mut RawDevice) -> u64, since 1001;
        ibv_open_device(*mut RawDevice) -> *mut RawContext, since 1001;
        ibv_close_device(*mut RawContext) -> c_int, since 1001;
        ibv_get_async_event(*mut RawContext, *mut RawAsyncEvent) -> c_int, since 1001;
        ibv_ack_async_event(*mut RawAsyncEvent), since 1001;
        ibv_query_device(*mut RawContext, *mut RawDeviceAttr) -> c_int, since 1001;
        ibv_query_port(*mut RawContext, u8, *mut RawPortAttr) -> c_int, since 1001;
        ibv_query_gid(*mut RawContext, u8, c_int, *mut [u64; 2]) -> c_int, since 1001;
        ibv_alloc_pd(*mut RawContext) -> *mut RawPd, since 1001;
        ibv_dealloc_pd(*mut RawPd) -> c_int, since 1001;
        ibv_reg_mr_iova2(*mut RawPd, *mut c_void, usize, u64, u32) -> *mut RawMr, since 1008;
        ibv_dereg_mr(*mut RawMr) -> c_int, since 1001;
        ibv_create_comp_channel(*mut RawContext) -> *mut RawChannel, since 1000;
        ibv_destroy_comp_channel(*mut RawChannel) -> c_int, since 1000;
        ibv_create_cq(*mut RawContext, c_int, *mut c_void, *mut RawChannel, c_int) -> *mut RawCq, since 1001;
        ibv_destroy_cq(*mut RawCq) -> c_int, since 1001;
        ibv_get_cq_event(*mut RawChannel, *mut *mut RawCq, *mut *mut c_void) -> c_int, since 1001;
        ibv_ack_cq_events(*mut RawCq, u32), since 1001;
        ibv_create_srq(*mut RawPd, *mut RawSrqInit) -> *mut RawSrq, since 1001;
        ibv_destroy_srq(*mut RawSrq) -> c_int, since 1001;
        ibv_create_qp(*mut RawPd, *mut RawQpInit) -> *mut RawQp, since 1001;
        ibv_modify_qp(*mut RawQp, *mut RawQpAttr, c_int) -> c_int, since 1001;
        ibv_destroy_qp(*mut RawQp) -> c_int, since 1001;
    }
    optional {
        _ibv_query_gid_table(*mut RawContext, *mut RawGidEntry, usize, u32, usize) -> isize, since 1011;
        ibv_reg_dmabuf_mr(*mut RawPd, u64, usize, u64, c_int, c_int) -> *mut RawMr, since 1012;
    }
}
