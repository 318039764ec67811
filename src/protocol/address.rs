//! Where a worker can be reached: what one program gives another, by any means, so that it can connect.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    str::FromStr,
};

use crate::{
    error::{Error, ErrorKind, Result},
    types::{Identity, WorkerId, hex},
    util::wire::{Field, MAX_ENTRIES, MAX_NAME, Name, Reader, fields, malformed, open, seal},
};

fields! {
    /// Where a worker can be reached, as bytes or as text.
    ///
    /// Made by the worker, passed on by any means (a file, a command line, a database), used by another program to connect.
    /// It holds no secret, and it leads to its own worker alone: the worker's id is bound to a key that the worker proves to hold when it
    /// answers. So it has to be got from somewhere that is trusted, and need not be kept to oneself. It carries a checksum, so that altered
    /// bytes are an error and not a wrong destination.
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
        worker: WorkerId = 1,
        identity: Identity = 2,
        unix_name: Option<Name> = 3 or None,
        sockets: Vec<SocketAddr> = 4,
        transports: Vec<String> = 5,
        secret_required: bool = 6,
    }
}

impl WorkerAddress {
    /// An address of these parts. `unix_name` is the abstract name that its Unix socket is bound to.
    /// Errors: `InvalidArgument` when there are more than 64 sockets or transports, or a name is longer than 255 bytes.
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
            unix_name: unix_name.map(Name),
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
        self.unix_name.as_ref().map(|name| &name.0[..])
    }

    /// The address as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        seal(MAGIC, VERSION, &self.encode_fields())
    }

    /// Reads an address from exactly these bytes.
    ///
    /// # Errors
    /// `Malformed` when they are not an intact address, `VersionMismatch` when it is of a version that this side does not know.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::decode_fields(open(MAGIC, VERSION, "worker address", bytes)?)
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

impl Field for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::V4(socket) => {
                4_u8.put(out);
                socket.ip().octets().put(out);
                socket.port().put(out);
            }
            Self::V6(socket) => {
                6_u8.put(out);
                socket.ip().octets().put(out);
                socket.port().put(out);
                socket.flowinfo().put(out);
                socket.scope_id().put(out);
            }
        }
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        match body.u8()? {
            4 => Ok(SocketAddrV4::new(Ipv4Addr::from(body.array()?), body.u16()?).into()),
            6 => {
                let ip = Ipv6Addr::from(body.array::<16>()?);
                Ok(SocketAddrV6::new(ip, body.u16()?, body.u32()?, body.u32()?).into())
            }
            _ => Err(malformed("a socket address of an unknown family")),
        }
    }
}

impl Field for Vec<SocketAddr> {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|socket| socket.put(out));
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        body.list(SocketAddr::read)
    }
}

const TEXT_PREFIX: &str = "wharf1-";
const MAGIC: [u8; 4] = *b"WHAD";
const VERSION: u16 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::util::wire::tests::{
        hex, identities, identity, names, refuses_flips, refuses_truncation, with_unknown_field,
        workers,
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

    #[test]
    fn its_bytes_stay_what_they_are() {
        let sockets = vec![
            SocketAddr::from((Ipv4Addr::new(1, 2, 3, 4), 0x0506)),
            SocketAddrV6::new(Ipv6Addr::from(*b"sixteen bytes ip"), 0x0708, 9, 10).into(),
        ];
        let names = vec!["tcp".to_owned(), "shm".to_owned()];
        let worker = WorkerId(*b"a worker, 16 by.");
        let name = Some(b"socket".to_vec());
        let address = WorkerAddress::new(worker, identity(), name, sockets, names, true);
        assert_eq!(
            hex(&address.unwrap().to_bytes()),
            "5748414401009500010010006120776f726b65722c2031362062792e020030003031323334353637\
             38396162636465660807060504030201181716151413121128272625242322213433323144434241\
             03000600736f636b65740400220004010203040605067369787465656e2062797465732069700807\
             090000000a00000005000800037463700373686d0600010001939e2de2"
        );
        let least = WorkerAddress::new(worker, identity(), None, vec![], vec![], false);
        assert_eq!(
            hex(&least.unwrap().to_bytes()),
            "5748414401006100010010006120776f726b65722c2031362062792e020030003031323334353637\
             38396162636465660807060504030201181716151413121128272625242322213433323144434241\
             0400000005000000060001000030d8c01d"
        );
    }
}
