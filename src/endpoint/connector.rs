//! Byte streams for clients that connect by a `tower` service: feature `hyper`.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{
    FutureExt,
    future::{Shared, WeakShared},
};
use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tower_service::Service;

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    util::lock::Mutex,
};

use super::{ByteStream, Destination, Endpoint, Worker, handle::WeakEndpoint};

/// Connects tonic's channels and hyper-util's clients over byte streams: what it gives them is a stream of a wharf connection, which it makes where there is none.
///
/// For `tonic::transport::Endpoint::connect_with_connector`, and for hyper-util's `legacy::Client`: a `tower_service::Service<Uri>`. At the other end is a
/// [`StreamListener`](crate::StreamListener).
///
/// # Connections
/// One for each destination, however many streams: it is dialled when a stream is asked for, by one for all who wait for it, and lasts as long as any of its
/// streams, or [`Endpoint`] of the program's. So a client that has lost its server is connected again by its next request.
///
/// # Errors
/// Those of [`Worker::connect`] and of [`Endpoint::stream`]; `InvalidArgument` for a [`Uri`] that names no host.
///
/// # Cancel safety
/// Dropped, a stream that is on its way is given up, and the connection too, where nobody else waits for it.
#[derive(Clone, Debug)]
pub struct StreamConnector {
    way: Way,
}

#[derive(Clone, Debug)]
enum Way {
    Over(Endpoint),
    To(Arc<Dialler>),
}

/// How a destination is dialled: by the name that the URI has, or always the same.
type Dial = Box<dyn Fn(String) -> Dialling + Send + Sync>;
type Dialling = Pin<Box<dyn Future<Output = Result<Endpoint>> + Send>>;

struct Dialler {
    dial: Dial,
    by_uri: bool,
    /// By `host:port`, or by nothing where all go to one place.
    places: Mutex<HashMap<String, Place>>,
}

enum Place {
    /// The last of those who wait gives it up.
    Dialled(WeakShared<Dialling>),
    Connected(WeakEndpoint),
}

impl StreamConnector {
    /// Connects to the host and port of the URI that is asked for; the port is 80, or 443 for `https`, where it names none.
    ///
    /// Whatever its scheme, the streams are plain: [`Tls`](crate::guide::tls) is that of the connection below.
    #[must_use]
    pub fn new(worker: &Worker) -> Self {
        let worker = worker.clone();
        Self::dialling(true, move |name| {
            let worker = worker.clone();
            async move { worker.connect(name).await }.boxed()
        })
    }

    /// Connects to this destination, whatever the URI says.
    #[must_use]
    pub fn to<D>(worker: &Worker, destination: D) -> Self
    where
        D: Destination + Clone + Send + Sync + 'static,
    {
        let worker = worker.clone();
        Self::dialling(false, move |_| {
            let (worker, destination) = (worker.clone(), destination.clone());
            async move { worker.connect(destination).await }.boxed()
        })
    }

    /// Opens streams on this connection alone, whatever the URI says. It keeps it open, and fails when it has ended.
    #[must_use]
    pub fn over(endpoint: Endpoint) -> Self {
        let way = Way::Over(endpoint);
        Self { way }
    }

    fn dialling(by_uri: bool, dial: impl Fn(String) -> Dialling + Send + Sync + 'static) -> Self {
        let dialler = Dialler {
            dial: Box::new(dial),
            by_uri,
            places: Mutex::default(),
        };
        let way = Way::To(Arc::new(dialler));
        Self { way }
    }
}

impl Dialler {
    async fn open(&self, uri: &Uri) -> Result<ByteStream> {
        let name = match self.by_uri {
            true => name(uri)?,
            false => String::new(),
        };
        loop {
            let (endpoint, is_new) = match self.place(&name) {
                Ok(endpoint) => (endpoint, false),
                Err(dialled) => (self.dialled(&name, dialled).await?, true),
            };
            match endpoint.stream().await {
                Ok(stream) => return Ok(stream),
                Err(error) if is_new => return Err(error),
                // It has ended since. Another is dialled, unless somebody has already.
                Err(_) => self.forget(&name, &endpoint),
            }
        }
    }

    /// The connection that there is, or the dialling of one.
    fn place(&self, name: &str) -> Result<Endpoint, Shared<Dialling>> {
        let mut places = self.places.lock();
        match places.get(name) {
            Some(Place::Connected(endpoint)) => {
                if let Some(endpoint) = endpoint.upgrade() {
                    return Ok(endpoint);
                }
            }
            Some(Place::Dialled(dialled)) => {
                if let Some(dialled) = dialled.upgrade() {
                    return Err(dialled);
                }
            }
            None => {}
        }
        places.retain(|_, place| place.is_there());
        let dialled = (self.dial)(name.to_owned()).shared();
        if let Some(weak) = dialled.downgrade() {
            places.insert(name.to_owned(), Place::Dialled(weak));
        }
        Err(dialled)
    }

    async fn dialled(&self, name: &str, dialled: Shared<Dialling>) -> Result<Endpoint> {
        let made = dialled.clone().await;
        let mut places = self.places.lock();
        if let Some(Place::Dialled(weak)) = places.get(name)
            && weak.upgrade().is_some_and(|now| now.ptr_eq(&dialled))
        {
            // The first of those who waited. The others have it from the dialling, which ends with the last of them.
            match &made {
                Ok(endpoint) => {
                    let place = Place::Connected(endpoint.downgrade());
                    places.insert(name.to_owned(), place);
                }
                Err(_) => drop(places.remove(name)),
            }
        }
        drop(places);
        made
    }

    fn forget(&self, name: &str, ended: &Endpoint) {
        let mut places = self.places.lock();
        if let Some(Place::Connected(endpoint)) = places.get(name)
            && endpoint.upgrade().is_none_or(|now| now == *ended)
        {
            places.remove(name);
        }
    }
}

impl Place {
    fn is_there(&self) -> bool {
        match self {
            Self::Dialled(dialled) => dialled.upgrade().is_some(),
            Self::Connected(endpoint) => endpoint.upgrade().is_some(),
        }
    }
}

/// What a URI names, as `host:port`.
fn name(uri: &Uri) -> Result<String> {
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| {
        let text = format!("{uri} names no host");
        Error::new(ErrorKind::InvalidArgument, text).during(Operation::Connect)
    })?;
    let default = match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    };
    let port = uri.port_u16().unwrap_or(default);
    Ok(format!("{host}:{port}"))
}

impl Service<Uri> for StreamConnector {
    type Response = TokioIo<ByteStream>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<ByteStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let way = self.way.clone();
        Box::pin(async move {
            let stream = match way {
                Way::Over(endpoint) => endpoint.stream().await?,
                Way::To(dialler) => dialler.open(&uri).await?,
            };
            Ok(TokioIo::new(stream))
        })
    }
}

/// For hyper-util's `legacy::Client`.
impl Connection for ByteStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl fmt::Debug for Dialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialler")
            .field("by_uri", &self.by_uri)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_host_and_a_port() {
        let name = |uri: &str| name(&uri.parse().expect("a URI"));
        assert_eq!(name("http://greeter").expect("named"), "greeter:80");
        assert_eq!(name("https://greeter/path").expect("named"), "greeter:443");
        assert_eq!(name("http://[::1]:7777").expect("named"), "[::1]:7777");
        let error = name("/path").expect_err("no host");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
