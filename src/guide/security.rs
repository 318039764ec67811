//! Security: who is trusted with what on each way, what is proved, encrypted, limited and logged, and what to set where many tenants meet.
//!
//! wharf holds that a peer can harm its own connection and nothing else. That is about what a peer *sends* or *writes into memory that it shares with
//! this process*; what the system lets it do beside wharf (a debugger of the same user, root) is the system's to say. It holds on every way but one:
//! `cma`, which is used where the kernel lets the two processes at each other's memory, has [two exceptions](#what-cma-takes-on-trust), and is turned off
//! by a word.
//!
//! # Who is trusted with what
//!
//! | way | who can connect | who can read or change what goes over it | what a peer can touch here |
//! |---|---|---|---|
//! | `self` | this worker | nobody | its own |
//! | `shm`, `cma` | a process of the **same user** in the same network namespace; the kernel tells who it is (`SO_PEERCRED`) before a place is taken | the two ends; root, and whoever may trace them | the rings of its own connection; exposed memory whose [`Descriptor`](crate::Descriptor) it has, with the [`Access`](crate::Access) given; what of [`Context::allocate`](crate::Context::allocate) may be written it maps, and so can read too |
//! | `tcp` | whoever reaches the port, and passes the secret, the certificates and [`admit`](crate::ContextBuilder::admit) | whoever is on the way, unless [`tls`](crate::guide::tls) is set; [`tcp_checksums`](crate::ContextBuilder::tcp_checksums) notice accidents, not attackers | exposed memory whose descriptor it has, checked for each operation |
//! | `rc_verbs` | as `tcp`, for the set-up goes by it | whoever is on the fabric: **there is no encryption**, and it is refused where TLS is demanded | as `tcp`; the device checks the rkey of a registered region. A long message is read by its receiver. Only where the receiver's own `WHARF_RNDV_SCHEME` is `put_zcopy` does the sender write it, unobserved: so the receiver clears its buffer before it gives the keys, and what a peer did not write arrives as zeros |
//! | `cuda_ipc`, `rocm_ipc`, `gaudi_ipc` | as `shm` | as `shm` | the exposed device memory that was opened for it |
//!
//! The right to a region is the possession of its descriptor, which holds a random key: give it to whom it is meant for, and to nobody else. A
//! connection that has not shown the key is answered with [`ErrorKind::StaleKey`](crate::ErrorKind::StaleKey), and finds no other key in what it shares with this
//! process. [`Region::unexpose`](crate::Region::unexpose) ends all access, and gives the bytes back in memory that no peer has mapped. It waits for what a peer has under way: over TCP a
//! peer that stops in the middle of a put's bytes keeps it waiting until its connection ends.
//!
//! Long messages from and into buffers of [`Context::allocate`](crate::Context::allocate) are copied once, because the two processes map them. What a peer gets
//! is these two kinds of buffers, each a segment of its own, and nothing that lies beside them:
//!
//! * **What it is sent**, when all of the buffer is: frozen memory, which nobody here writes any more, sealed so that the peer only reads. So it sees the
//!   message that it was sent, for as long as it likes, and cannot change it under those who read it here. A part of a buffer goes the other ways.
//! * **What it writes a message into**, and only where the kernel lets it write all of this process anyway, which both ends try when they connect (`cma`).
//!   Such a buffer is lent to one connection. The loan ends with the connection, or when bytes of another peer are to come into the buffer: from then on this
//!   process writes pages of its own, at the same address, and the peer keeps what the buffer held. Until then the peer sees what the program
//!   writes into the buffer; so what one peer is not to see belongs into a buffer that was not received into from it.
//!
//! A process of the same user that the kernel lets trace this one (Yama's `ptrace_scope` 0, or `CAP_SYS_PTRACE`) can read and write all of it without wharf;
//! `cma` works by that very right. Tenants that must not see each other run under users of their own, or with `ptrace_scope` at 1 or more.
//!
//! # What `cma` takes on trust
//!
//! Over `cma` the kernel copies out of and into the peer's own memory (`process_vm_readv`). Two things cannot be held down there:
//!
//! * **A peer can make such a copy wait.** Its memory may be a file of a file system that it serves itself (FUSE), or have a handler of its own for page
//!   faults (`userfaultfd`); the copy waits for as long as these do, and holds the worker's lock meanwhile. So all connections of *this worker* stand
//!   still until whoever serves that memory goes on, or is killed, and so does whoever exposes memory in the context meanwhile, or takes it back. No byte of theirs is
//!   lost, or seen.
//! * **A peer is believed what it says to have copied.** Both ends copy a share of a long message, put or get; each counts the chunks that it has moved, and
//!   the other cannot look. One that counts what it has not moved has a receive or a get end well over bytes that the buffer held before: another
//!   peer's, perhaps, where the program uses buffers again.
//!
//! Neither gives a peer more than it has: whoever the kernel lets at this process's memory can stop it, and read and write all of it. But it is more than
//! harm to its own connection. Where a peer on this host is not to be trusted so far, turn `cma` off: [`cma(false)`](crate::ContextBuilder::cma),
//! `WHARF_CMA=n`, or `WHARF_TLS=^cma` (among the names of transports `shm` means both, as it does for UCX). One end without it is enough. Long messages
//! are then copied through the rings, or by this end alone out of memory that both map. Or let the kernel keep the two apart, for all programs: users of
//! their own, or Yama's `ptrace_scope` at 1 or more, under which a peer may still let itself be read (`PR_SET_PTRACER`): then no connection has `cma`, but
//! the look that each end takes at the other's memory when they connect may be made to wait, which costs the connection and a thread, 64 at most and 32 of one user's, and
//! nobody else's time. Without any such look: `cma` turned off here, or `ptrace_scope` at 2 or more. [`Endpoint::transports`](crate::Endpoint::transports) says whether a connection has `cma`.
//!
//! # What is proved
//!
//! * **Which worker answers.** Each worker has an X25519 key of its own, and its id is a hash of the public half. Both ends prove in the handshake that
//!   they hold theirs. A [`WorkerAddress`](crate::WorkerAddress) leads to its worker or to an error; so get addresses from somewhere that is trusted.
//! * **That both know the secret**, where [`secret`](crate::ContextBuilder::secret) is set: by a balanced PAKE (CPace over ristretto255), so that there is one guess for each
//!   connection, and nothing to try guesses on at home. [What is told to whom](crate::guide::processes) before and after.
//! * **Certificates**, with [`tls`](crate::guide::tls): names against the host that was dialled, and of the client where the configuration demands one.
//! * **The user of a peer on this host**, by the kernel.
//!
//! # What is encrypted
//!
//! TCP under TLS, from its first byte. Without it what a handshake says of the two processes is sealed, and nothing else is: shared memory stays within the host and the user, RDMA has no encryption, and TCP without TLS is plain
//! text.
//!
//! # What is limited
//!
//! [`Limits`](crate::config::Limits) bound for each connection, each source and the whole worker what peers may make a worker hold; beyond them peers are held back, then refused with
//! [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted). A source is what the kernel or the network says, never what a peer says of itself. A listener gives places for handshakes by kind of socket and by source, 2 seconds for the first bytes, and lets the oldest silent peer
//! make way. No message costs more than its length paid for: what is long is done in parts, between which other connections have their turn.
//!
//! # What is logged
//!
//! Refused and ended connections are `tracing` events of the target `wharf::wireup`, once for each cause, with the peer's name; no secret, key or payload is
//! ever logged. [`Worker::metrics`](crate::Worker::metrics) counts who was accepted, who was refused by `admit` or for silence, and what each limit refused, by the limit's name
//! ([`Refusals`](crate::Refusals)). [Observing](crate::guide::observing) has the rest.
//!
//! # For an operator of many tenants
//!
//! ```
//! # fn main() -> wharf::Result<()> {
//! use wharf::{Admission, Context, config::Limits};
//!
//! let context = Context::builder()
//!     .transports("tcp")?                       // no memory shared with anybody
//!     .net_devices("lo")?                       // where peers are expected, and nowhere else
//!     .secret("one for each tenant")
//!     .tcp_checksums(true)                      // or .tls(..), which is more
//!     .limits(
//!         Limits::default()
//!             .each_connection(|quota| quota.unexpected_bytes(1 << 20).unaccepted_streams(8))
//!             .each_source(|quota| quota.connections(64).unexpected_bytes(32 << 20))
//!             .whole_worker(|quota| quota.connections(4096).unexpected_bytes(256 << 20)),
//!     )
//!     .admit(|peer| match peer.peer_addr() {
//!         Some(from) if peer.peer_credentials().is_none() && !from.ip().is_loopback() => {
//!             Admission::Refuse("from this host only".to_owned())
//!         }
//!         _ => Admission::Accept,
//!     })
//!     .build()?;
//! # drop(context);
//! # Ok(())
//! # }
//! ```
//!
//! * No [`cma`](#what-cma-takes-on-trust) where processes of one user are tenants: `WHARF_CMA=n`, or `ptrace_scope` at 1 or more.
//! * A context for each tenant, with a secret of its own: workers share nothing that a peer can reach.
//! * [`tls`](crate::guide::tls) between hosts, with client certificates demanded; `WHARF_TLS=^rc_verbs` says the same of RDMA without a program's change.
//! * A process forked from one that uses wharf is refused at every operation ([`ErrorKind::Forked`](crate::ErrorKind::Forked)); `exec` first.
//! * Alarms on `refused_by_check` and [`refused`](crate::WorkerMetrics::refused) of [`Worker::metrics`](crate::Worker::metrics). What `refused.source` counts is a tenant that asks for
//!   too much; what `refused.worker` counts are tenants together, of which each kept to its own bound: those of the worker are too low for them, or those of a source too high.
//!
//! Point by point, with the test that fails without it: `tests/SECURITY.md` in the repository.
