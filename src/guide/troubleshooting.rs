//! Troubleshooting by symptom: the text of an error or a warning, its cause, its remedy.
//!
//! An [`Error`](crate::Error) says what failed, doing what, with whom, over which transport; [`kind`](crate::Error::kind) is for programs and
//! [`get_ref`](crate::Error::get_ref) has the system's own error. A warning says what is slower than it could be. Texts are as they are printed, `…` stands for what varies.
//!
//! # It does not start
//!
//! | text | cause | remedy |
//! |---|---|---|
//! | `a worker is made on a Tokio runtime: call this in its context` | `Worker::new` outside a runtime | call it in `#[tokio::main]`, or within `Runtime::enter` |
//! | `a worker needs the runtime's …: build it with` | the runtime lacks its drivers; Tokio's panic before it is how it tells | `Builder::enable_all()` |
//! | `… is not a variable of wharf` | a misspelt `WHARF_` variable | the nearest name is in the error |
//! | `… is not in this build of wharf: its feature …`, `… does nothing: this build of wharf is without its feature …` | a transport or a variable of what was left out of the build | that feature of the dependency on wharf, or `default-features` |
//! | `… not available in this build of wharf, which has …` | a transport's name in `WHARF_TLS` | one of those that are listed |
//! | `transport … is not available: …` | a transport asked for by name does not work here | the reason follows; [`containers`](super::containers) |
//! | `… is not here: …` | a vendor's library was not found | install it, or `WHARF_LIBCUDA=/path/…` and its like; each name that was tried is listed with the loader's words |
//! | `this process is a child made by fork; what its parent opened cannot be used here` | use after `fork` | make a context and a worker in the child, or start it by `exec` |
//!
//! # It does not connect
//!
//! | text | cause | remedy |
//! |---|---|---|
//! | `… is not host:port` | the address | `host:port`, with brackets for IPv6 |
//! | `nobody answered within …` | nothing answers; a firewall drops | the port; [`connect_timeout`](crate::ContextBuilder::connect_timeout) |
//! | `a wharf listener is there, and nobody accepted the connection within …` | the program does not call [`accept`](crate::Listener::accept), or later | the other program |
//! | `what answers there is no wharf listener: …` | an HTTP server, for one, has that port | the port |
//! | kind `ConnectionRefused` | nobody listens there | start order; retry |
//! | kind `AddrInUse` | another has the port | another port, or 0 for any |
//! | `no transport in common: the listener has …` | the lists of both ends have nothing in common | `WHARF_TLS` of both: `shm` is for one host alone, `tcp` goes anywhere |
//! | `no path: that worker, …, has … and no address in the network` | an address of a worker with `shm` alone, from elsewhere | add `tcp` there |
//! | `an endpoint to oneself needs the transport …` | connecting to one's own address without `self` | add `self` |
//! | `one end has a shared secret and the other has none`, `the shared secret is wrong, …` | [`secret`](crate::ContextBuilder::secret) at one end, or two different ones | the same at both |
//! | `the peer did not prove that it is who it says` | somebody else is where a worker was, and has its id; or bytes were altered on their way | ask who listens there |
//! | `another worker answers there: the one that was addressed is gone` | an address of a worker that has ended | exchange addresses again |
//! | `the peer speaks versions …` | versions too far apart | update the older one |
//! | `the descriptor is of another process than this endpoint leads to` | a descriptor of somebody else, or of a process that was started anew | exchange descriptors again after a reconnect |
//!
//! # It ends in the middle
//!
//! | text | cause | remedy |
//! |---|---|---|
//! | `the peer's process has ended` (kind `PeerDied`) | it crashed, was killed or exited without a goodbye; told of peers on this host | its log; every operation on the endpoint says so; connect again |
//! | kind `ClosedByPeer` | the peer closed the endpoint, dropped it or shut its worker down, and all that it sent before has come | nothing: it is no failure |
//! | kind `AbortedByPeer` | the peer called [`abort`](crate::Endpoint::abort) | its log |
//! | `the connection ended without a goodbye` (kind `ConnectionReset`) | the peer's process has ended, on another host or where this one does not see it; or its runtime; or something between the two closes connections; or an `abort` that found the link full | the peer's log; connect again |
//! | other texts of kind `ConnectionReset` | the connection broke | [`Endpoint::closed`](crate::Endpoint::closed) says why |
//! | kind `Unreachable` | nothing came from the peer's host for three [keepalive](crate::ContextBuilder::keepalive) intervals, or the network or the network device went | the network; connect again |
//! | `the peer could not do its part` | the peer failed the operation for a reason of its own | its log |
//! | kind `DeviceLost` | a device failed | a new context; nothing else is touched |
//! | `the worker's Tokio runtime has ended` | the runtime that the worker was made on was dropped | keep it, or [make the worker](super::first_steps#runtimes) on one that stays |
//! | `the worker was shut down` | use after [`shutdown`](crate::Worker::shutdown), or the last handle was dropped | hold a handle as long as it is used |
//! | `queue pair …` | an RDMA transfer failed: retries used up, link down | the link; `WHARF_RC_TIMEOUT`, `WHARF_RC_RETRY_COUNT`; messages go over the next rail by themselves |
//!
//! # An operation is refused
//!
//! | text | cause | remedy |
//! |---|---|---|
//! | `a message of … bytes for a buffer of …` | a receive is too short; the message is gone, the buffer comes back | [`tag_matched`](crate::Worker::tag_matched) tells the length first |
//! | `the window of posted operations is full` | more posted than an endpoint takes | [`ready`](crate::Endpoint::ready), or `.await`; `WHARF_OPS_WINDOW` |
//! | `the remote memory is not exposed any more` | the owner unexposed or revoked it | exchange a new descriptor |
//! | `the range leaves the exposed region` | offset and length | check them before |
//! | `the region was not exposed for this access` | `READ` or `WRITE` is missing | [`expose`](crate::Context::expose) with more |
//! | `the remote region was imported on another endpoint` | a mix of endpoints | [`import`](crate::Endpoint::import) on each |
//! | `the peer receives no active messages of this id` | nobody opened it there | [`active_messages`](crate::Worker::active_messages) before the peer sends |
//! | `active messages of id … are received already` | opened twice | one receiver for each id; clone what it gets |
//! | `…: the limit of … (…) is reached` | who refuses holds as much as it may: for this connection, for its source, or for all | it receives or accepts; higher [`Limits`](crate::config::Limits) there, of which its [`refused`](crate::WorkerMetrics::refused) names the one |
//! | `the peer holds up memory that others wait for` | transfers of device memory stop in pinned memory that all peers share. Others waited for it, none was handed out for ten minutes, or twenty where peers are to send, and this peer has had some for longest | peers whose tasks compute leave the runtime its turns (`spawn_blocking`); [ways](super::memory) that stop nowhere |
//! | `polled after completion` | a future was polled again after it had ended | `fuse()` in `select!` loops |
//!
//! # It is slower than it should be
//!
//! | text (`WARN`) | cause | remedy |
//! |---|---|---|
//! | `cma cannot be used: long messages are copied twice through shared memory` | no right to trace the peer | [`containers`](super::containers#recipes), or memory of [`Context::allocate`](crate::Context::allocate) |
//! | `shared memory cannot be used: falling back to tcp` | different network namespaces, users, or no memory for the rings | the reason follows |
//! | `no memory events can be had, so only registrations of wharf's own memory are kept` | no `userfaultfd` | the same chapter |
//! | `the worker has … connections, which is its limit` | as many peers are connected as may be | `ContextBuilder::limits`, or `WHARF_LIMITS=worker.connections=…,source.connections=…` |
//! | `a listener has no place` with the system's "too many open files" | `RLIMIT_NOFILE`; silent connections are sent away at once, and where that makes no place peers are told | `ulimit -n`, `LimitNOFILE=`; who they are tells `wharf::wireup` at level DEBUG |
//! | `memory cannot be registered with network devices; it travels in messages` | locked memory, or memory of a kind that the device cannot have | `ulimit -l`; the reason follows |
//! | `this process may lock … KiB of memory (ulimit -l)` | `RLIMIT_MEMLOCK` | `memlock` in `limits.conf`, `LimitMEMLOCK=`, `--ulimit memlock=-1` |
//! | `the files in /dev/infiniband must be readable and writable for this user` | rights | the group of the files, or `--device /dev/infiniband` |
//! | `the kernel has no InfiniBand support: …` | no driver, or a container without the devices | load `ib_uverbs` and the card's driver |
//!
//! What is slow without a warning: [`tuning`](super::tuning).
//!
//! # It hangs
//!
//! Nothing hangs for want of a wake-up, so somebody waits for something that does not come. [`Worker::metrics`](crate::Worker::metrics) tells how many
//! operations are [in flight](crate::WorkerMetrics::in_flight); with `RUST_LOG=wharf=debug,wharf::operation=trace` ([`observing`](super::observing)) each
//! begin and end is told. The usual suspects: two receives whose masks overlap, so that one takes what the other waits for; a flush of an
//! endpoint whose peer does not receive a synchronous send; a task that blocks its thread (`std::sync::Mutex`, `std::thread::sleep`) on a `current_thread`
//! runtime, where nothing else can run; a stream that nobody reads, whose window is full.
