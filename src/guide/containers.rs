//! Containers and permissions: what each path wants, and what is said where it is refused.
//!
//! Nothing is required. What is refused is not used, and wharf says so: once for each reason at the level `WARN`, with what mends it, and in [`Context::unavailable`](crate::Context::unavailable)
//! and [`Endpoint::explain`](crate::Endpoint::explain).
//!
//! | path | wants | without it |
//! |---|---|---|
//! | `shm` | `memfd_create`, `eventfd`, Unix sockets (one abstract): **one network namespace**. Nothing of `/dev/shm`: its size does not matter | `shared memory cannot be used: falling back to tcp` |
//! | `shm` between containers | the same network namespace (`--network container:…`, one pod), and the same user | goes by `tcp` |
//! | `cma` | the right to trace the peer: the same user, one pid namespace (`--pid container:…`, `shareProcessNamespace`), no Yama in the way, system calls `process_vm_readv` and `process_vm_writev` | `cma cannot be used: long messages are copied twice through shared memory`, with the reason |
//! | [`Context::allocate`](crate::Context::allocate) | `memfd_create` | memory that no peer maps: `buffers are of memory that no peer maps` |
//! | noticing death at once | `pidfd_open` | the end of the Unix socket, a moment later |
//! | registrations kept for any memory | `userfaultfd` | `no memory events can be had, so only registrations of wharf's own memory are kept` |
//! | `rc_verbs` | `libibverbs.so.1`, `/dev/infiniband/uverbs*`, locked memory | in `unavailable()` and `explain()`: which library, device or port, and why |
//! | `cuda` | `libcuda.so.1` and its devices | `… is not here: …`: each name that was tried and the loader's words |
//! | `rocm` | `libhsa-runtime64.so.1`, `/dev/kfd`, `/dev/dri` | the same |
//! | `gaudi` | `libhl-thunk.so`, `/dev/accel*` or `/dev/hl*` | the same |
//!
//! # Recipes
//!
//! **`cma` says "the system does not let this process reach the peer's memory (user, namespace, Yama or seccomp)".** In order of likelihood:
//!
//! * `cat /proc/sys/kernel/yama/ptrace_scope` is `1` or more. `0` lets processes of one user trace each other; or `--cap-add SYS_PTRACE` on the
//!   container (in Kubernetes `securityContext.capabilities.add: ["SYS_PTRACE"]`).
//! * The two are in different pid or user namespaces: share them, or stay with `shm` alone: [`cma(false)`](crate::ContextBuilder::cma) or `WHARF_CMA=n` ends the
//!   warning. Exposed memory of [`Context::allocate`](crate::Context::allocate) needs no `cma`: it is mapped by both; nor do long
//!   messages that are sent from all of such a buffer.
//! * The seccomp profile refuses the two system calls. Docker's default profile allows them on kernels from 4.8 on.
//!
//! **userfaultfd.** `sysctl vm.unprivileged_userfaultfd=1`, or `CAP_SYS_PTRACE`, or give the container `/dev/userfaultfd` (Linux 6.1 on); Linux 5.18 is
//! the first that tells all that is needed. Docker's default seccomp profile refuses the call; the device is the way around it. Or take memory from wharf: [`Context::allocate`](crate::Context::allocate),
//! [`BufferPool`](crate::memory::BufferPool) and [`TrackedAlloc`](crate::memory::TrackedAlloc) need none.
//!
//! **Locked memory.** RDMA pins what it registers. `this process may lock … KiB of memory (ulimit -l): raise RLIMIT_MEMLOCK` is remedied by `memlock` in
//! `/etc/security/limits.conf`, `LimitMEMLOCK=infinity` in a systemd unit, `--ulimit memlock=-1` for a container; in Kubernetes by the runtime's own
//! limits, or `IPC_LOCK`.
//!
//! **RDMA devices.** `--device /dev/infiniband` (all of `uverbs*` and `rdma_cm`), readable and writable by the user: else `the files in
//! /dev/infiniband must be readable and writable for this user`. For RoCE the network interface has to be in the container's network namespace as well:
//! the GIDs are its addresses.
//!
//! **CUDA.** The NVIDIA container toolkit mounts the driver: `--gpus all` (or `--runtime nvidia`), `NVIDIA_DRIVER_CAPABILITIES=compute,utility` or `all`. The CUDA toolkit is not
//! needed. A driver at another place is named by `WHARF_LIBCUDA=/path/libcuda.so.1`. Device memory of another process (`cuda_ipc`) wants one IPC view
//! of the devices; where a handle cannot be opened, transfers are staged through host memory, said once.
//!
//! **ROCm.** `--device /dev/kfd --device /dev/dri --group-add video` (or `render`). **Gaudi.** Habana's runtime, or `--device` for each of
//! `/dev/accel/accel*`; `HABANA_VISIBLE_MODULES` is understood.
//!
//! **Nothing is left behind.** Shared memory is anonymous, sockets are abstract: a killed process leaves no file.
//!
//! To see how a program behaves without a facility, turn it off: `WHARF_PIDFD=n`, `WHARF_CMA=n`, `WHARF_TLS=^shm`, `WHARF_MEM_MONITOR=none`.
