//! The guide: from the first message to pipelines of device memory, in steps that run.
//!
//! | I want to | read |
//! |---|---|
//! | send my first message, stream, put or signal | [`first_steps`] |
//! | use memory well: buffers that stay registered, devices, pipelines with streams | [`memory`] |
//! | talk between processes and groups of processes | [`processes`] |
//! | put a service on it: axum, tonic (gRPC), hyper | [`services`] |
//! | find what I know from UCX | [`coming_from_ucx`] |
//! | find what I know from MSCCL++ | [`coming_from_mscclpp`] |
//! | run it in a container, or know which rights it wants | [`containers`] |
//! | encrypt what goes between hosts, and know who is there | [`tls`] |
//! | know who is trusted with what, and set limits for many tenants | [`security`] |
//! | make it faster, or calmer | [`tuning`] |
//! | understand an error or a warning | [`troubleshooting`] |
//! | see what it does: logs, spans, traces, counters | [`observing`] |
//! | know what a dropped future does | [the chapter on the front page](crate#cancel-safety) |
//!
//! Every listing is a program of its own and is run by `cargo test --doc`; larger ones are in `examples/`, with a table "I want to … → file" in
//! `examples/README.md`.

pub mod coming_from_mscclpp;
// What has no item of its own here is explained there.
#[doc(alias(
    "ucp_am_h",
    "ucp_config_print",
    "ucp_get_version",
    "ucp_get_version_string"
))]
#[doc(alias(
    "ucp_lib_query",
    "ucp_lib_attr_t",
    "ucp_mem_print_info",
    "ucp_rkey_ptr"
))]
#[doc(alias(
    "ucp_dt_create_generic",
    "ucp_dt_destroy",
    "ucp_dt_query",
    "ucp_dt_make_config"
))]
#[doc(alias("ucp_generic_dt_ops_t", "ucp_datatype_attr_t", "UCP_DATATYPE_GENERIC"))]
#[doc(alias(
    "ucp_ep_modify_nb",
    "ucp_err_h",
    "ucp_worker_flags_t",
    "UCP_FEATURE_EXPORTED_MEMH"
))]
#[doc(alias(
    "ucp_listener_accept_h",
    "ucp_listener_conn_h",
    "ucp_stream_recv_callback_t"
))]
#[doc(alias("ucp_request_init_callback_t", "ucp_request_cleanup_callback_t"))]
#[doc(alias(
    "ucp_tag_recv_callback_t",
    "ucp_ep_perf_attr_field_t",
    "ucp_ep_perf_param_field_t"
))]
pub mod coming_from_ucx;
pub mod containers;
pub mod first_steps;
pub mod memory;
pub mod observing;
pub mod processes;
pub mod security;
pub mod services;
pub mod tls;
pub mod troubleshooting;
pub mod tuning;
