//! Where a worker can be reached: what one program gives another, by any means, so that it can connect.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    str::FromStr,
};

use super::wire::{
    MAX_ENTRIES, MAX_NAME, Reader, identity_bytes, malformed, once, open, put_field, put_texts,
    required, seal,
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{Identity, WorkerId, hex},
};

/// Where a worker can be reached, as bytes or as text.
///
/// Made by the worker, passed on by any means (a file, a command line, a database), used by another program to connect.
/// It holds no secret, and it leads to its own worker alone: the worker's id is bound to a key that the worker proves to hold when it
/// answers. So it has to be got from somewhere that is trusted, and need not be kept to oneself. It carries a checksum, so that altered bytes are an error and not a wrong destination.
///
/// ```text
/// let text = address.to_string();              // "wharf1-57484144..."
/// let address: WorkerAddress = text.parse()?;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ucp_worker_get_address")]
#[doc(alias(
    "ucp_address_t",
    "ucp_worker_release_address",
    "ucp_worker_address_flags_t"
))]
pub struct WorkerAddress {
    worker: WorkerId,
    identity: Identity,
    unix_name: Option<Vec<u8>>,
    sockets: Vec<SocketAddr>,
    transports: Vec<String>,
    secret_required: bool,
}

impl WorkerAddress {
    /// An address of these parts. `unix_name` is the abstract name that its Unix socket is bound to.
    ///
    /// # Errors
    /// `InvalidArgument` when there are more than 64 sockets or transports, or a name is longer than 255 bytes.
    pub(crate) fn new(
        worker: WorkerId,
        identity: Identity,
        unix_name: Option<Vec<u8>>,
        sockets: Vec<SocketAddr>,
        transports: Vec<String>,
        secret_required: bool,
    ) -> Result<Self> {
        let too_long = |length: usize| length > MAX_NAME;
        if sockets.len() > MAX_ENTRIES
            || transports.len() > MAX_ENTRIES
            || transports.iter().any(|name| too_long(name.len()))
            || unix_name.as_ref().is_some_and(|name| too_long(name.len()))
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "an address holds up to {MAX_ENTRIES} sockets and transports, with names of up to {MAX_NAME} bytes"
                ),
            ));
        }
        Ok(Self {
            worker,
            identity,
            unix_name,
            sockets,
            transports,
            secret_required,
        })
    }

    /// The worker that it leads to.
    #[must_use]
    #[doc(alias("ucp_worker_address_query", "ucp_worker_address_attr_t"))]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// The socket addresses that it listens on; empty when it can be reached from its own host only.
    #[must_use]
    pub fn sockets(&self) -> &[SocketAddr] {
        &self.sockets
    }

    /// The transports that it offers.
    #[must_use]
    pub fn transports(&self) -> &[String] {
        &self.transports
    }

    /// Whether it talks only to those who know the shared secret.
    #[must_use]
    pub fn secret_required(&self) -> bool {
        self.secret_required
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn unix_name(&self) -> Option<&[u8]> {
        self.unix_name.as_deref()
    }

    /// The address as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        put_field(&mut fields, field::WORKER, &self.worker.0);
        put_field(
            &mut fields,
            field::IDENTITY,
            &identity_bytes(&self.identity),
        );
        if let Some(name) = &self.unix_name {
            put_field(&mut fields, field::UNIX_NAME, name);
        }
        let mut sockets = Vec::new();
        for socket in &self.sockets {
            put_socket(&mut sockets, socket);
        }
        put_field(&mut fields, field::SOCKETS, &sockets);
        put_texts(&mut fields, field::TRANSPORTS, &self.transports);
        put_field(
            &mut fields,
            field::SECRET_REQUIRED,
            &[self.secret_required.into()],
        );
        seal(MAGIC, VERSION, &fields)
    }

    /// Reads an address from exactly these bytes.
    ///
    /// # Errors
    /// `Malformed` when they are not an intact address, `VersionMismatch` when it is of a version that this side does not know.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = open(MAGIC, VERSION, "worker address", bytes)?;
        let (mut worker, mut identity, mut unix_name) = (None, None, None);
        let (mut sockets, mut transports, mut secret_required) = (None, None, None);
        while let Some((id, body)) = reader.field()? {
            match id {
                field::WORKER => once(&mut worker, body.whole(Reader::worker)?)?,
                field::IDENTITY => once(&mut identity, body.whole(Reader::identity)?)?,
                field::UNIX_NAME => once(&mut unix_name, body.name()?)?,
                field::SOCKETS => once(&mut sockets, body.list(socket)?)?,
                field::TRANSPORTS => once(&mut transports, body.texts()?)?,
                field::SECRET_REQUIRED => once(&mut secret_required, body.whole(Reader::bool)?)?,
                _ => {}
            }
        }
        Ok(Self {
            worker: required(worker)?,
            identity: required(identity)?,
            unix_name,
            sockets: required(sockets)?,
            transports: required(transports)?,
            secret_required: required(secret_required)?,
        })
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_bytes! { WorkerAddress: Self::to_bytes, Self::from_bytes }

impl TryFrom<&[u8]> for WorkerAddress {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Self> {
        Self::from_bytes(bytes)
    }
}

/// One word of letters and digits: `wharf1-` and the bytes in hexadecimal.
impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TEXT_PREFIX)?;
        hex::write(&self.to_bytes(), f)
    }
}

impl FromStr for WorkerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text
            .strip_prefix(TEXT_PREFIX)
            .ok_or_else(|| malformed("a worker address begins with wharf1-"))?;
        if !digits.len().is_multiple_of(2) {
            return Err(malformed("the worker address is cut short"));
        }
        let bytes = hex::read(digits)
            .ok_or_else(|| malformed("a worker address is written in hexadecimal digits"))?;
        Self::from_bytes(&bytes)
    }
}

fn put_socket(out: &mut Vec<u8>, socket: &SocketAddr) {
    match socket {
        SocketAddr::V4(socket) => {
            out.push(4);
            out.extend_from_slice(&socket.ip().octets());
            out.extend_from_slice(&socket.port().to_le_bytes());
        }
        SocketAddr::V6(socket) => {
            out.push(6);
            out.extend_from_slice(&socket.ip().octets());
            out.extend_from_slice(&socket.port().to_le_bytes());
            out.extend_from_slice(&socket.flowinfo().to_le_bytes());
            out.extend_from_slice(&socket.scope_id().to_le_bytes());
        }
    }
}

fn socket(reader: &mut Reader<'_>) -> Result<SocketAddr> {
    match reader.u8()? {
        4 => Ok(SocketAddrV4::new(Ipv4Addr::from(reader.array::<4>()?), reader.u16()?).into()),
        6 => {
            let ip = Ipv6Addr::from(reader.array::<16>()?);
            Ok(SocketAddrV6::new(ip, reader.u16()?, reader.u32()?, reader.u32()?).into())
        }
        _ => Err(malformed("a socket address of an unknown family")),
    }
}

const TEXT_PREFIX: &str = "wharf1-";
const MAGIC: [u8; 4] = *b"WHAD";
const VERSION: u16 = 1;

mod field {
    pub(super) const WORKER: u16 = 1;
    pub(super) const IDENTITY: u16 = 2;
    pub(super) const UNIX_NAME: u16 = 3;
    pub(super) const SOCKETS: u16 = 4;
    pub(super) const TRANSPORTS: u16 = 5;
    pub(super) const SECRET_REQUIRED: u16 = 6;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::wire::tests::{
        identities, names, refuses_flips, refuses_truncation, with_unknown_field, workers,
    };

    fn sockets() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(|(ip, port)| SocketAddr::from((ip, port))),
            any::<([u8; 16], u16, u32, u32)>().prop_map(|(ip, port, flow, scope)| {
                SocketAddrV6::new(ip.into(), port, flow, scope).into()
            }),
        ]
    }

    fn addresses() -> impl Strategy<Value = WorkerAddress> {
        let unix_name = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
        let sockets = prop::collection::vec(sockets(), 0..4);
        (
            workers(),
            identities(),
            unix_name,
            sockets,
            names(),
            any::<bool>(),
        )
            .prop_map(
                |(worker, identity, unix_name, sockets, transports, secret_required)| {
                    WorkerAddress::new(
                        worker,
                        identity,
                        unix_name,
                        sockets,
                        transports,
                        secret_required,
                    )
                    .unwrap()
                },
            )
    }

    proptest! {
        #[test]
        fn goes_round_and_nothing_altered_does(
            address in addresses(),
            change in 1u8..,
            unknown in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let bytes = address.to_bytes();
            prop_assert_eq!(&WorkerAddress::from_bytes(&bytes).unwrap(), &address);
            prop_assert_eq!(&address.to_string().parse::<WorkerAddress>().unwrap(), &address);
            let more = with_unknown_field(&bytes, &unknown);
            prop_assert_eq!(&WorkerAddress::from_bytes(&more).unwrap(), &address);
            refuses_truncation(&bytes, WorkerAddress::from_bytes);
            refuses_flips(&bytes, change, WorkerAddress::from_bytes);
        }

        #[test]
        fn anything_else_is_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            text in ".{0,40}",
        ) {
            prop_assert!(WorkerAddress::from_bytes(&bytes).is_err());
            prop_assert!(text.parse::<WorkerAddress>().is_err());
            let prefixed = format!("{TEXT_PREFIX}{text}").parse::<WorkerAddress>();
            prop_assert!(prefixed.is_err());
            // Arbitrary fields behind an intact envelope.
            let _ = WorkerAddress::from_bytes(&seal(MAGIC, VERSION, &bytes));
        }
    }

    #[test]
    fn bounds_are_kept() {
        let identity = Identity {
            boot: [1; 16],
            net_namespace: 1,
            pid_namespace: 1,
            user_namespace: 1,
            user: 0,
            pid: 1,
        };
        let make = |count: usize, length: usize| {
            let names = (0..count).map(|_| "x".repeat(length)).collect();
            let sockets = vec![SocketAddr::from((Ipv6Addr::LOCALHOST, 1)); count];
            WorkerAddress::new(
                WorkerId([1; 16]),
                identity.clone(),
                Some(vec![1; length]),
                sockets,
                names,
                true,
            )
        };
        let largest = make(MAX_ENTRIES, MAX_NAME).unwrap();
        assert_eq!(
            WorkerAddress::from_bytes(&largest.to_bytes()).unwrap(),
            largest
        );
        assert_eq!(
            make(MAX_ENTRIES + 1, 1).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            make(1, MAX_NAME + 1).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
}
