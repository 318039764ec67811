//! The exported names once more, with the versions that programs ask for: each a jump to the plain name, by which those find it that ask for none.
//!
//! # Safety
//! A jump leaves registers and stack as they are: it is as if the plain name had been called.

/// `VERSION: NAMES;`
macro_rules! versions {
    ($($version:literal: $($name:ident)*;)*) => { $($(
        core::arch::global_asm!(
            ".text",
            concat!(".globl versioned_", stringify!($name)),
            concat!(".type versioned_", stringify!($name), ", @function"),
            concat!("versioned_", stringify!($name), ":"),
            concat!(jump!(), stringify!($name)),
            concat!(".size versioned_", stringify!($name), ", . - versioned_", stringify!($name)),
            concat!(
                ".symver versioned_", stringify!($name), ", ", stringify!($name), "@", $version, ", remove"
            ),
        );
    )*)* };
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp "
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b "
    };
}

versions! {
    "IBVERBS_1.0": ibv_create_comp_channel ibv_destroy_comp_channel ibv_read_sysfs_file;
    "IBVERBS_1.1":
        ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_get_device_guid
        ibv_open_device ibv_close_device ibv_get_async_event ibv_ack_async_event
        ibv_query_device ibv_query_port ibv_query_gid ibv_query_pkey
        ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_dereg_mr
        ibv_create_cq ibv_resize_cq ibv_destroy_cq ibv_get_cq_event ibv_ack_cq_events
        ibv_create_srq ibv_modify_srq ibv_query_srq ibv_destroy_srq
        ibv_create_qp ibv_query_qp ibv_modify_qp ibv_destroy_qp
        ibv_fork_init ibv_event_type_str ibv_node_type_str ibv_port_state_str ibv_wc_status_str;
    "IBVERBS_1.5": ibv_get_pkey_index;
    "IBVERBS_1.6": ibv_qp_to_qp_ex;
    "IBVERBS_1.7": ibv_reg_mr_iova;
    "IBVERBS_1.8": ibv_reg_mr_iova2;
    "IBVERBS_1.9": ibv_get_device_index;
    "IBVERBS_1.11": _ibv_query_gid_ex _ibv_query_gid_table;
    "IBVERBS_1.12": ibv_reg_dmabuf_mr;
    "IBVERBS_1.13": ibv_is_fork_initialized;
    "IBVERBS_PRIVATE_34": ibv_query_gid_type;
}
