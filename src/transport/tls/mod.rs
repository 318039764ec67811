//! TLS for TCP: whom a context trusts and as whom it shows itself, and one connection's session, by rustls.
//!
//! Comes in: rustls's configurations, as values of the program's. Goes out: [`Session`], which stands between a socket and those who read and
//! write it. Knows nothing of frames. No provider of cryptography is chosen here: a configuration brings its own.
//! Tests: `tests/tls/`.

mod session;

use std::{fmt, net::IpAddr, sync::Arc};

use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};

use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::RwLock,
};

pub(crate) use session::{Certificates, Session, explained};

/// How a context's TCP connections are encrypted: rustls's configurations, one for connections that it dials, one for those that it takes.
///
/// Given to [`ContextBuilder::tls`](crate::ContextBuilder::tls). A cheap clone; what is [replaced](Self::replace_server) in one is replaced in all.
/// What is checked is what the configurations check: roots, names, dates, and a certificate of the peer's where
/// the [server's](ServerConfig) verifier wants one.
///
/// ```
/// # fn certificates() -> (rustls::RootCertStore, Vec<rustls::pki_types::CertificateDer<'static>>, rustls::pki_types::PrivateKeyDer<'static>) { unimplemented!() }
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use wharf::{Context, Tls, rustls};
///
/// let provider = Arc::new(rustls_graviola::default_provider());
/// let (roots, chain, key) = certificates();
/// let client = rustls::ClientConfig::builder_with_provider(provider.clone())
///     .with_safe_default_protocol_versions()?
///     .with_root_certificates(roots)
///     .with_no_client_auth();
/// let server = rustls::ServerConfig::builder_with_provider(provider)
///     .with_safe_default_protocol_versions()?
///     .with_no_client_auth()
///     .with_single_cert(chain, key)?;
/// let tls = Tls::new(Arc::new(client), Arc::new(server));
/// let context = Context::builder().tls(tls.clone()).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls {
    configs: Arc<Configs>,
    /// The name of workers that are dialled by their addresses.
    workers: Option<ServerName<'static>>,
}

struct Configs {
    client: RwLock<Option<Arc<ClientConfig>>>,
    server: RwLock<Option<Arc<ServerConfig>>>,
}

impl Tls {
    /// For a context that dials and listens.
    #[must_use]
    pub fn new(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Self {
        Self::of(Some(client), Some(server))
    }

    /// For a context that only dials: it takes no TCP connection.
    #[must_use]
    pub fn client(config: Arc<ClientConfig>) -> Self {
        Self::of(Some(config), None)
    }

    /// For a context that only listens: it dials no TCP connection.
    #[must_use]
    pub fn server(config: Arc<ServerConfig>) -> Self {
        Self::of(None, Some(config))
    }

    fn of(client: Option<Arc<ClientConfig>>, server: Option<Arc<ServerConfig>>) -> Self {
        let configs = Configs {
            client: RwLock::new(client),
            server: RwLock::new(server),
        };
        Self {
            configs: Arc::new(configs),
            workers: None,
        }
    }

    /// The name that the certificates of workers have which are dialled by [`WorkerAddress`](crate::WorkerAddress), a DNS name or an IP address.
    /// Without it their certificates must name the IP address that is dialled. Who is dialled by `host:port` must be that host either way.
    ///
    /// # Errors
    /// `InvalidArgument`: it is neither.
    pub fn worker_name(mut self, name: &str) -> Result<Self> {
        self.workers = Some(server_name(name)?);
        Ok(self)
    }

    /// From now on connections are dialled with this. Those that stand, and those that are being made, go on as they are.
    pub fn replace_client(&self, config: Arc<ClientConfig>) {
        *self.configs.client.write() = Some(config);
    }

    /// From now on connections are taken with this: a new certificate, without a restart. Those that stand, and those that are being made, go on
    /// as they are.
    pub fn replace_server(&self, config: Arc<ServerConfig>) {
        *self.configs.server.write() = Some(config);
    }

    /// Begins with whoever is dialled at `address`: a worker by its own address, or a host of this name.
    pub(crate) fn dial(
        &self,
        worker: bool,
        host: Option<&str>,
        address: IpAddr,
    ) -> Result<Session> {
        let name = match (&self.workers, host) {
            (Some(name), _) if worker => name.clone(),
            (_, Some(host)) => server_name(host)?,
            (_, None) => ServerName::IpAddress(address.into()),
        };
        let Some(config) = self.configs.client.read().clone() else {
            return Err(without("dials no TCP connection: its TLS has no client's"));
        };
        Session::client(config, name)
    }

    /// Begins with whoever has connected.
    pub(crate) fn accept(&self) -> Result<Session> {
        let Some(config) = self.configs.server.read().clone() else {
            return Err(without("takes no TCP connection: its TLS has no server's"));
        };
        Session::server(config)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("client", &self.configs.client.read().is_some())
            .field("server", &self.configs.server.read().is_some())
            .field("workers", &self.workers)
            .finish()
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).map_err(|error| {
        let text = format!("{name:?} is no name that a certificate can have");
        Error::new(ErrorKind::InvalidArgument, text).with_source(error)
    })
}

#[cold]
fn without(what: &str) -> Error {
    Error::new(
        ErrorKind::Configuration,
        format!("this context {what} configuration"),
    )
}
