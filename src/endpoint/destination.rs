//! Where to connect to, and where to listen: what names socket addresses, or a worker.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    protocol::WorkerAddress,
    worker::connect,
};

/// Where [`Worker::connect`](crate::Worker::connect) leads: a [`WorkerAddress`], or [`SocketAddresses`].
pub trait Destination: sealed::Destination {}

/// Socket addresses, in all forms that [`tokio::net::ToSocketAddrs`] has and some more:
/// `"host:port"`, a `String` of that, `("host", port)`, addresses, and an IP address with a port;
/// and borrowed. Names are looked up when they are used. Where there is TLS a certificate has to
/// have the name; without one, the address.
pub trait SocketAddresses: sealed::SocketAddresses {}

pub(crate) mod sealed {
    use std::{future::Future, net::SocketAddr};

    use crate::{
        error::{Operation, Result},
        worker::connect,
    };

    pub trait Destination: Send {
        fn resolve(self) -> impl Future<Output = Result<connect::Destination>> + Send;
    }

    pub trait SocketAddresses: Send {
        /// The addresses, and the name that they are of.
        fn find(
            self,
            operation: Operation,
        ) -> impl Future<Output = Result<(Vec<SocketAddr>, Option<String>)>> + Send;
    }
}

/// Addresses, and the name that they are of.
type Found = (Vec<SocketAddr>, Option<String>);

impl sealed::Destination for &WorkerAddress {
    async fn resolve(self) -> Result<connect::Destination> {
        Ok(connect::Destination::Worker(self.clone()))
    }
}

impl Destination for &WorkerAddress {}

impl sealed::Destination for WorkerAddress {
    async fn resolve(self) -> Result<connect::Destination> {
        Ok(connect::Destination::Worker(self))
    }
}

impl Destination for WorkerAddress {}

impl<A: SocketAddresses> sealed::Destination for A {
    async fn resolve(self) -> Result<connect::Destination> {
        let (addresses, name) = self.find(Operation::Connect).await?;
        Ok(connect::Destination::Sockets(addresses, name))
    }
}

impl<A: SocketAddresses> Destination for A {}

/// What is looked up.
macro_rules! by_name {
    ($($Form:ty: $name:expr;)*) => {$(
        impl sealed::SocketAddresses for $Form {
            async fn find(self, operation: Operation) -> Result<Found> {
                let name: fn(&Self) -> String = $name;
                named(&name(&self), operation).await
            }
        }

        impl SocketAddresses for $Form {}
    )*};
}

by_name! {
    &str: |name| (*name).to_owned();
    String: Self::clone;
    Box<str>: |name| name.to_string();
    Cow<'_, str>: |name| name.to_string();
    (&str, u16): |(host, port)| joined(host, *port);
    (String, u16): |(host, port)| joined(host, *port);
}

/// What is an address already.
macro_rules! by_address {
    ($($Form:ty),*) => {$(
        impl sealed::SocketAddresses for $Form {
            async fn find(self, _: Operation) -> Result<Found> {
                Ok((vec![self.into()], None))
            }
        }

        impl SocketAddresses for $Form {}
    )*};
}

by_address!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

impl sealed::SocketAddresses for Vec<SocketAddr> {
    async fn find(self, operation: Operation) -> Result<Found> {
        match self.is_empty() {
            false => Ok((self, None)),
            true => Err(Error::new(ErrorKind::InvalidArgument, "no address").during(operation)),
        }
    }
}

impl SocketAddresses for Vec<SocketAddr> {}

impl sealed::SocketAddresses for &[SocketAddr] {
    async fn find(self, operation: Operation) -> Result<Found> {
        self.to_vec().find(operation).await
    }
}

impl SocketAddresses for &[SocketAddr] {}

impl<const N: usize> sealed::SocketAddresses for [SocketAddr; N] {
    async fn find(self, operation: Operation) -> Result<Found> {
        self.to_vec().find(operation).await
    }
}

impl<const N: usize> SocketAddresses for [SocketAddr; N] {}

/// Borrowed, of all that is not borrowed by itself.
impl<A: SocketAddresses + Clone + Sync> sealed::SocketAddresses for &A {
    async fn find(self, operation: Operation) -> Result<Found> {
        self.clone().find(operation).await
    }
}

impl<A: SocketAddresses + Clone + Sync> SocketAddresses for &A {}

/// `host:port`, with the brackets that an IPv6 address needs.
fn joined(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(host) => SocketAddr::from((host, port)).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

/// The addresses of a host by its name, which a certificate of its has to have where there is TLS.
async fn named(name: &str, operation: Operation) -> Result<Found> {
    let sockets = lookup(name, operation).await?;
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((sockets, Some(host.to_owned())))
}

pub(crate) async fn lookup(name: &str, operation: Operation) -> Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host(name)
        .await
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Error::new(
                ErrorKind::InvalidArgument,
                format!("{name:?} is not host:port"),
            )
            .with_source(error),
            _ => Error::new(ErrorKind::Unreachable, format!("looking up {name:?}"))
                .with_source(error),
        })
        .map_err(|error| error.during(operation))?
        .collect();
    if found.is_empty() {
        return Err(
            Error::new(ErrorKind::Unreachable, format!("{name:?} has no address"))
                .during(operation),
        );
    }
    Ok(found)
}
