//! Coming from UCX: call by call.
//!
//! The search of this documentation knows UCX's names: type `ucp_tag_send_nbx`, `UCP_ERR_HANDLING_MODE_PEER` or `UCX_TLS`. What is different is said
//! after each table.
//!
//! # Context and worker
//!
//! | UCX | here |
//! |---|---|
//! | `ucp_config_read`, `ucp_config_modify`, `ucp_init` | [`Context::builder`](crate::Context::builder): typed options beat `WHARF_*`, which beat `UCX_TLS` and its like |
//! | `ucp_cleanup`, `ucp_worker_destroy` | drop, or [`Worker::shutdown`](crate::Worker::shutdown) with a deadline |
//! | `UCP_FEATURE_*` | none: all features are there, and what a peer does not use costs nothing |
//! | `ucp_context_query`, `ucp_context_print_info` | [`Context::transports`](crate::Context::transports), [`unavailable`](crate::Context::unavailable), `wharf info` |
//! | `ucp_config_print`, `ucp_lib_query`, `ucp_get_version` | `wharf info`; the version is the crate's |
//! | `ucp_worker_create`, `UCS_THREAD_MODE_*` | [`Worker::new`](crate::Worker::new); every handle is `Send + Sync + Clone` |
//! | `ucp_worker_progress` | nobody calls it: futures do, and a task sleeps on the fds. [`Worker::progress`](crate::Worker::progress) is for loops other than Tokio's |
//! | `ucp_worker_get_efd`, `_arm`, `_wait`, `_signal` | [`Progress`](crate::Progress) says how futures wait. Loops of one's own: the fd is `Worker`'s `AsFd`, and [`Worker::arm`](crate::Worker::arm) says when to wait for it |
//! | `ucp_worker_wait_mem` | [`Counter::wait`](crate::Counter::wait), which sleeps |
//! | `ucp_worker_get_address`, `ucp_worker_query`, `_address_query`, `_release_address` | [`Worker::address`](crate::Worker::address), [`WorkerAddress`](crate::WorkerAddress) |
//! | `ucp_worker_print_info`, `UCX_STATS_*` | [`Worker::metrics`](crate::Worker::metrics) |
//!
//! # Connections
//!
//! | UCX | here |
//! |---|---|
//! | `ucp_ep_create` from an address, a socket address | [`Worker::connect`](crate::Worker::connect); it resolves when the connection stands |
//! | `ucp_ep_create` from a connection request | [`Incoming::accept`](crate::Incoming::accept), [`accept_on`](crate::Incoming::accept_on) another worker |
//! | `ucp_listener_create`, `_query`, `_destroy` | [`Worker::listen`](crate::Worker::listen), [`Listener::local_addr`](crate::Listener::local_addr), drop |
//! | `ucp_listener_reject`, `ucp_conn_request_query` | [`Incoming::reject`](crate::Incoming::reject) with a reason that the peer reads, [`Incoming::peer_name`](crate::Incoming::peer_name) |
//! | `ucp_ep_close_nbx`, `..._FORCE` | [`Endpoint::close`](crate::Endpoint::close), [`Endpoint::abort`](crate::Endpoint::abort) |
//! | `ucp_ep_params_t::err_handler` | [`Endpoint::closed`](crate::Endpoint::closed), a future |
//! | `UCP_ERR_HANDLING_MODE_PEER` | always so, and it takes no transport away |
//! | `ucp_ep_query`, `_print_info`, `_evaluate_perf`, `UCX_PROTO_INFO` | [`Endpoint::transports`](crate::Endpoint::transports), [`Endpoint::explain`](crate::Endpoint::explain) |
//! | `ucp_ep_modify_nb`, `ucp_disconnect_nb` | none; they are gone from UCX too |
//!
//! # Operations and requests
//!
//! | UCX | here |
//! |---|---|
//! | a request, `_test`, callbacks | a future; [`Op`](crate::Op) when it was posted |
//! | `NULL` instead of a request, `ucp_request_check_status` | [`Op::is_finished`](crate::Op::is_finished) |
//! | `ucp_request_free` under way | dropping the future. The operation owns its memory, so this is sound |
//! | `ucp_request_cancel` | [`Op::cancel`](crate::Op::cancel), for every operation, and it says what happened |
//! | `ucp_request_param_t::memory_type` | the buffer knows |
//! | `UCP_OP_ATTR_FLAG_FAST_CMPL` | [`Put::local`](crate::Put::local) |
//! | `UCP_OP_ATTR_FLAG_NO_IMM_CMPL`, `MULTI_SEND`, user-owned requests | none: no callback can come before the call returns, and limits are chosen by length |
//! | `UCS_ERR_NO_RESOURCE` | `.await` waits for a place; `.post()` says `WouldBlock` and gives the buffer back |
//!
//! # Tags, active messages, streams
//!
//! | UCX | here |
//! |---|---|
//! | `ucp_tag_send_nbx`, `_sync_nbx` | [`Endpoint::tag_send`](crate::Endpoint::tag_send), [`TagSend::sync`](crate::TagSend::sync) |
//! | `ucp_tag_recv_nbx`, the mask | [`Worker::tag_recv`](crate::Worker::tag_recv), [`Mask`](crate::Mask) |
//! | `ucp_tag_probe_nb` without and with `remove`, `ucp_tag_msg_recv_nbx` | [`Worker::tag_probe`](crate::Worker::tag_probe), [`tag_take`](crate::Worker::tag_take) and [`tag_matched`](crate::Worker::tag_matched), [`Matched::recv`](crate::Matched::recv) |
//! | `ucp_am_send_nbx`, header and payload | [`Endpoint::am_send`](crate::Endpoint::am_send) |
//! | `ucp_worker_set_am_recv_handler` | [`Worker::active_messages`](crate::Worker::active_messages): a stream ([`open`](crate::ActiveMessages::open)) or a callback ([`on_message`](crate::ActiveMessages::on_message)) |
//! | `ucp_am_recv_data_nbx`, `UCP_AM_RECV_ATTR_FLAG_RNDV` | [`ActiveMessage::receive`](crate::ActiveMessage::receive), [`is_announced`](crate::ActiveMessage::is_announced), [`reject`](crate::ActiveMessage::reject) |
//! | `UCP_AM_RECV_ATTR_FLAG_DATA`, `ucp_am_data_release` | [`ActiveMessage::bytes`](crate::ActiveMessage::bytes), dropped when you are done |
//! | `UCP_AM_SEND_FLAG_REPLY` | always: [`ActiveMessage::endpoint`](crate::ActiveMessage::endpoint) |
//! | `ucp_stream_send_nbx`, `_recv_nbx`, `_recv_data_nb` | [`ByteStream`](crate::ByteStream): `AsyncWrite`, `AsyncRead`, [`read_chunk`](crate::ByteStream::read_chunk); many on one endpoint |
//! | `ucp_stream_worker_poll` | [`Endpoint::accept_stream`](crate::Endpoint::accept_stream) |
//!
//! # Memory, put, get, atomics
//!
//! | UCX | here |
//! |---|---|
//! | `ucp_mem_map` with `ALLOCATE` | [`Context::allocate`](crate::Context::allocate), [`allocate_on`](crate::Context::allocate_on) a device |
//! | `ucp_mem_map` of memory that you have | not needed to send or receive, of a device either: [`Buffer::foreign`](crate::Buffer::foreign); [`Context::expose`](crate::Context::expose) to let peers in |
//! | `ucp_memh_pack`, `ucp_rkey_pack`, `ucp_ep_rkey_unpack`, `ucp_rkey_destroy` | [`Region::descriptor`](crate::Region::descriptor), [`Descriptor::to_bytes`](crate::Descriptor::to_bytes), [`Endpoint::import`](crate::Endpoint::import), drop |
//! | `ucp_mem_unmap` | [`Region::unexpose`](crate::Region::unexpose): refuses peers from then on and gives the memory back |
//! | `ucp_mem_query`, `ucp_mem_advise` | [`Context::memory_attributes`](crate::Context::memory_attributes), [`advise`](crate::Context::advise) |
//! | `ucp_rkey_ptr` | none: a mapped segment may go at any moment; put, get and atomics on it are plain loads and stores all the same |
//! | `UCP_FEATURE_EXPORTED_MEMH`, `ucp_mem_print_info` | [`Context::export`](crate::Context::export) gives a dma-buf; `Debug` of a region |
//! | `ucp_put_nbx`, `ucp_get_nbx` | [`Endpoint::put`](crate::Endpoint::put), [`Endpoint::get`](crate::Endpoint::get) |
//! | `ucp_atomic_op_nbx`, `reply_buffer` | [`RemoteRegion::fetch_add`](crate::RemoteRegion::fetch_add) and its like; [`add`](crate::RemoteRegion::add) without an answer |
//! | `ucp_ep_flush_nbx`, `ucp_worker_flush_nbx`, `ucp_worker_fence` | [`Endpoint::flush`](crate::Endpoint::flush), [`Worker::flush`](crate::Worker::flush), [`Endpoint::fence`](crate::Endpoint::fence) |
//! | put, fence, put of a flag | [`Put::signal`](crate::Put::signal): one call, and it wakes who sleeps |
//! | `ucp_dt_make_contig`, `_iov`, `_sgl`, strided | [`Buffer`](crate::Buffer), [`BufferList`](crate::BufferList), [`RemoteRegion::indexed`](crate::RemoteRegion::indexed), [`strided`](crate::RemoteRegion::strided) |
//! | `ucp_dt_create_generic` | none: pack into a buffer, or write to a stream |
//! | `ucp_device_*` | [`DeviceChannel`](crate::channel::DeviceChannel) |
//!
//! What to unlearn:
//! * `ucp_put_nbx` completes when the source may be reused. A [`put`](crate::Endpoint::put) here resolves when its bytes are *visible at the target*;
//!   [`local`](crate::Put::local) is the other one.
//! * A buffer is handed over, not lent, and comes back with the result, with an error too.
//! * Nobody polls. Put and atomics wake a sleeping target over shared memory as well.
//!
//! # UCT: one transport by hand
//!
//! [`transport::by_hand`](crate::transport::by_hand) has the calls of UCT beside its own: a [`Driver`](crate::transport::by_hand::Driver) is an interface, a memory domain
//! and a worker in one, over `tcp`, `shm`, `rc_verbs` or a transport of your own; put and get by a packed key, progressed by the program. An accelerator's copies
//! are driven so by its [`CopyEngine`](crate::transport::CopyEngine), as `examples/host_to_device --layer transport` does. What to unlearn: a put is over when its bytes are at the
//! target; the local buffer is handed over and need not be registered; and over `tcp` the other end has to be progressed, as in UCX.
//!
//! # Environment
//!
//! `UCX_TLS`, `UCX_NET_DEVICES`, `UCX_RNDV_THRESH`, `UCX_KEEPALIVE_INTERVAL`, `UCX_RCACHE_*`, `UCX_MEM_EVENTS`, `UCX_RNDV_SCHEME`, `UCX_IB_GID_INDEX`,
//! `UCX_IB_PCI_RELAXED_ORDERING` and `UCX_RC_*` work as they are; each has a `WHARF_` twin that beats it, and a method of the
//! [builder](crate::ContextBuilder) that beats both. These have an effect, and no other `UCX_*` variable has one:
//!
//! | variable | what is legal in UCX and is not here |
//! |---|---|
//! | `UCX_TLS` | transports that wharf has not (`rc_mlx5`, `ud`, `dc`, `rocm_gdr`, `ze`, `ugni_smsg`, …), or whose feature was left out of the build, are left out, and so is what is for connecting alone (`ud:aux`). Where none is left that works here, a worker reaches itself |
//! | `UCX_NET_DEVICES` | a card or an interface that is missing is left out, and no other is taken for it |
//! | `UCX_RNDV_SCHEME` | `get_ppln`, `put_ppln`, `rkey_ptr`: as `auto` |
//! | `UCX_RNDV_THRESH`, `UCX_MEM_EVENTS`, `UCX_RCACHE_ENABLE`, `UCX_IB_PCI_RELAXED_ORDERING`, `UCX_RC_PATH_MTU` | |
//! | `UCX_IB_GID_INDEX` | more than 255: as `auto` |
//! | `UCX_KEEPALIVE_INTERVAL` | more than a year: a year |
//! | `UCX_RCACHE_MAX_REGIONS`, `UCX_RCACHE_MAX_SIZE`, `UCX_RCACHE_MAX_UNRELEASED` | no region: one |
//! | `UCX_RC_TX_QUEUE_LEN`, `UCX_RC_RETRY_COUNT`, `UCX_RC_TIMEOUT` | the nearest that `rc_verbs` takes: 32 to 1024, 7 at the most, 4.096 µs to 2.4 h |
//!
//! `auto` is wharf's own choice, or its default: ten seconds between keepalives. What is left out, or taken otherwise, is told by a warning, once in a process; it never fails a context. The same in a `WHARF_` variable, or given to the
//! builder, is an error, and so is what UCX would not take either.
//!
//! `ucx_info` is `wharf info`, `ucx_perftest` is `wharf perf`, under the same names of tests.
