//! Who may connect: what is known of a peer that asks, and what the program says to it.

use std::{fmt, net::SocketAddr, str::FromStr, sync::Arc};

use crate::{
    error::{Error, Result},
    transport::{
        channel::{Channel, Origin, PeerCredentials},
        tls::Certificates,
    },
    types::{
        WorkerId,
        text::{no, words},
    },
};

/// What a program's own check decides ([`ContextBuilder::admit`](crate::ContextBuilder::admit)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The peer is let in; a listener's program is asked next.
    Accept,
    /// It is turned down. Its connect ends with `Rejected` and this reason, cut after 255 bytes.
    Refuse(String),
}

/// Over what a peer asks for a connection. What the two then talk over may be something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Via {
    /// TCP, under TLS where the context has it.
    Tcp,
    /// The Unix socket for peers on this host.
    Unix,
    /// A connection by RDMA address.
    Rdma,
}

words! { Via, "way": Tcp = "tcp", Unix = "unix", Rdma = "rdma" }

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accepted"),
            Self::Refuse(reason) => write!(f, "refused: {reason}"),
        }
    }
}

impl FromStr for Admission {
    type Err = Error;

    /// From its `Display` form.
    ///
    /// # Errors
    /// `InvalidArgument`.
    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(": ") {
            None if text == "accepted" => Ok(Self::Accept),
            Some(("refused", reason)) => Ok(Self::Refuse(reason.to_owned())),
            _ => Err(no(
                "admission",
                text,
                "accepted, or refused: and the reason",
            )),
        }
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_text! { Admission }

/// What is known of a peer that asks for a connection: nothing that it only says of itself.
#[derive(Clone, Debug)]
pub struct IncomingInfo {
    worker: WorkerId,
    via: Via,
    origin: Origin,
    // Read where the feature is.
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    certificates: Option<Certificates>,
    knows_secret: bool,
    by_address: bool,
}

impl IncomingInfo {
    pub(crate) fn new(
        channel: &Channel,
        worker: WorkerId,
        knows_secret: bool,
        by_address: bool,
    ) -> Self {
        Self {
            worker,
            via: match channel.medium() {
                "unix" => Via::Unix,
                "rdma" => Via::Rdma,
                _ => Via::Tcp,
            },
            origin: channel.origin(),
            certificates: channel.certificates(),
            knows_secret,
            by_address,
        }
    }

    /// Its worker, which has proved by its key that it is this one.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Over what it asks.
    #[must_use]
    pub fn via(&self) -> Via {
        self.via
    }

    /// The address that it comes from, over TCP and RDMA; also of who dialled an address of this
    /// host and went on over the Unix socket, which has
    /// [`peer_credentials`](Self::peer_credentials) too.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.origin.peer
    }

    /// The address that it has dialled, where it [has](Self::peer_addr) one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.origin.local
    }

    /// Its process, user and group, over the Unix socket: as the kernel recorded them when it connected.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        self.origin.process
    }

    /// The certificates that it has shown over TLS, its own first, which have passed the verifier; `None` where none were asked for, and over
    /// shared memory.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn peer_certificates(&self) -> Option<&[rustls::pki_types::CertificateDer<'static>]> {
        self.certificates.as_deref()
    }

    /// Whether it has proved that it knows the context's [secret](crate::ContextBuilder::secret); `false` where there is none.
    #[must_use]
    pub fn knows_secret(&self) -> bool {
        self.knows_secret
    }

    /// Whether it comes to the worker's own [address](crate::Worker::address), where nobody else is asked; `false` at a
    /// [listener](crate::Listener).
    #[must_use]
    pub fn is_by_address(&self) -> bool {
        self.by_address
    }
}

/// The program's check.
pub(crate) type Admit = Arc<dyn Fn(&IncomingInfo) -> Admission + Send + Sync>;
