//! TLS between hosts: feature `tls`.
//!
//! Without it what goes over TCP can be read and changed by whoever is on the way. With [`ContextBuilder::tls`](crate::ContextBuilder::tls) every TCP
//! connection of the context is encrypted from its first byte, by [rustls](https://docs.rs/rustls): wharf's own handshake, messages, streams, puts and
//! what is got. The configurations are values of rustls's own, so all that it can do holds here: roots, certificates by name, a verifier of one's own,
//! a certificate demanded of the other end, sessions that are resumed.
//!
//! ```toml
//! [dependencies]
//! wharf = { path = "../wharf", features = ["tls"] }
//! rustls-graviola = "0.4"     # cryptography in Rust and assembler, no C compiler; x86-64 with AVX2, or AArch64
//! ```
//!
#![cfg_attr(feature = "tls", doc = "```no_run")]
#![cfg_attr(not(feature = "tls"), doc = "```ignore")]
//! # fn read() -> (rustls::RootCertStore, Vec<rustls::pki_types::CertificateDer<'static>>, rustls::pki_types::PrivateKeyDer<'static>) { unimplemented!() }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use wharf::{Context, Tls, Worker, rustls};
//!
//! // The program's own choice; another provider is another line.
//! let provider = Arc::new(rustls_graviola::default_provider());
//! let (roots, chain, key) = read();
//! let roots = Arc::new(roots);
//! // Both ends show a certificate.
//! let client = rustls::ClientConfig::builder_with_provider(provider.clone())
//!     .with_safe_default_protocol_versions()?
//!     .with_root_certificates(roots.clone())
//!     .with_client_auth_cert(chain.clone(), key.clone_key())?;
//! let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
//! let server = rustls::ServerConfig::builder_with_provider(provider)
//!     .with_safe_default_protocol_versions()?
//!     .with_client_cert_verifier(verifier.build()?)
//!     .with_single_cert(chain, key)?;
//! let tls = Tls::new(Arc::new(client), Arc::new(server));
//!
//! let context = Context::builder().tls(tls.clone()).build()?;
//! let worker = Worker::new(&context)?;
//! let listener = worker.listen("0.0.0.0:7777").await?;
//! let incoming = listener.accept().await?;
//! match incoming.peer_certificates() {
//!     Some(chain) if is_welcome(&chain[0]) => drop(incoming.accept().await?),
//!     _ => incoming.reject("not on the list").await,
//! }
//! # Ok(())
//! # }
//! # fn is_welcome(_: &rustls::pki_types::CertificateDer<'_>) -> bool { true }
//! ```
//!
//! Peers that connect by the worker's own address come to no listener: a check by their certificates is
//! [`ContextBuilder::admit`](crate::ContextBuilder::admit).
//!
//! # Names
//! Who is dialled by `host:port` must have a certificate for that host, or for that IP address where it is one. Who is dialled by a
//! [`WorkerAddress`](crate::WorkerAddress) must have one for the IP address that is dialled, or for the one name that the context expects of all
//! workers ([`Tls::worker_name`](crate::Tls::worker_name)).
//!
//! # Who is refused, and hears what
//! A certificate that does not please, or that is missing, ends the handshake; the end that refuses has the reason of rustls, the other the alert
//! that it was sent. [`connect`](crate::Worker::connect) ends with `AuthenticationFailed` either way; a listener logs it (target `wharf::wireup`, level
//! `debug`). Nothing falls back to plain text: with TLS at one end alone, the one that dials hears `AuthenticationFailed`.
//!
//! A bit that was changed on the way ends the connection with `Protocol`. A connection that is cut off ends with `ConnectionReset`, in the middle of a
//! message or stream or between two: what an end has not announced is never taken for one.
//!
//! # A new certificate
//! [`Tls::replace_server`](crate::Tls::replace_server) and [`Tls::replace_client`](crate::Tls::replace_client) hold for all connections from then on, of
//! listeners that run as well; those that stand go on. A resolver of rustls's (`ResolvesServerCert`) does the same from within.
//!
//! # What has no TLS
//! | way | with TLS demanded |
//! |---|---|
//! | `self`, `shm`, `cma` | as ever, between processes of one user on one host: nobody else can open that memory. No certificates are looked at; leave `shm` out of [`transports`](crate::ContextBuilder::transports) where each peer must show one. Another user of the host goes by TCP |
//! | `rc_verbs`, RDMA addresses | refused: network devices write what they are given, and encrypt nothing |
//! | transports of one's own | as they are |
//! | [groups](crate::channel::bootstrap) | they meet in plain text, with a secret that is proved and not sent; their members' workers go by their own contexts |
//!
//! # What it costs
//! Each byte is encrypted once and decrypted once by the threads that drive the worker, and copied twice more at the end that sends, once at the other; a message is at least 22
//! bytes longer. Up to 80 KiB for each connection wait encrypted for a socket that is full. The keys are made by the runtime's threads, as with
//! `tokio-rustls`. Without TLS, [checksums](crate::ContextBuilder::tcp_checksums) find what faulty hardware changes.
