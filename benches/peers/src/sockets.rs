//! Sockets with nothing above them: raw ones that spin (`raw`), and Tokio's own (`tokio`).
//!
//! Comes in: a half; its transport says TCP over the loopback, the same under TLS (`tls`, by tokio-rustls), or a Unix socket pair (`shm`: what a Tokio user has today on one
//! host). Goes out: nanoseconds one way, or GB a second.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificates::Authority;
use crate::half::{Arrivals, Half, Laps, parked_sender};
use crate::spec::{Spec, Verb};
use crate::{Outcome, runtime};

pub(crate) const GO: u8 = 1;
pub(crate) const STOP: u8 = 2;

/// A connected pair, non-blocking.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

fn connect(half: &mut Half) -> Outcome<Socket> {
    let socket = if matches!(half.spec.transport.as_str(), "tcp" | "tls") {
        let stream = if half.is_a() {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            half.link.send(&listener.local_addr()?.to_string())?;
            listener.accept()?.0
        } else {
            TcpStream::connect(half.link.receive()?)?
        };
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Socket::Tcp(stream)
    } else {
        let stream = if half.is_a() {
            let (mine, theirs) = UnixStream::pair()?;
            half.link.send_fd(&theirs)?;
            mine
        } else {
            half.link.receive_fd()?.into()
        };
        stream.set_nonblocking(true)?;
        Socket::Unix(stream)
    };
    half.barrier()?;
    Ok(socket)
}

pub(crate) fn raw(half: &mut Half) -> Outcome<f64> {
    match connect(half)? {
        Socket::Tcp(stream) => raw_on(half, stream),
        Socket::Unix(stream) => raw_on(half, stream),
    }
}

fn raw_on(half: &mut Half, mut stream: impl Read + Write) -> Outcome<f64> {
    let mut buffer = vec![GO; half.spec.size];
    match (half.spec.verb, half.is_a()) {
        (Verb::Latency, true) => {
            let mut laps = Laps::start(&half.spec);
            loop {
                for _ in 0..laps.batch() {
                    write_all(&mut stream, &buffer)?;
                    read_exact(&mut stream, &mut buffer)?;
                }
                if !laps.lap() {
                    buffer[0] = STOP;
                    write_all(&mut stream, &buffer)?;
                    return Ok(laps.median() / 2.0);
                }
            }
        }
        (Verb::Latency, false) => loop {
            read_exact(&mut stream, &mut buffer)?;
            if buffer[0] == STOP {
                return Ok(0.0);
            }
            write_all(&mut stream, &buffer)?;
        },
        (Verb::Stream, true) => {
            let mut laps = Laps::start(&half.spec);
            loop {
                for _ in 0..laps.batch() {
                    write_all(&mut stream, &buffer)?;
                }
                if !laps.lap() {
                    break;
                }
            }
            buffer[0] = STOP;
            write_all(&mut stream, &buffer)?;
            read_exact(&mut stream, &mut [0])?;
            Ok(half.spec.size as f64 / laps.mean())
        }
        (Verb::Stream, false) => loop {
            read_exact(&mut stream, &mut buffer)?;
            if buffer[0] == STOP {
                write_all(&mut stream, &[GO])?;
                return Ok(0.0);
            }
        },
        (verb, _) => Err(format!("raw sockets have no {verb:?}").into()),
    }
}

fn write_all(stream: &mut impl Write, mut bytes: &[u8]) -> Outcome<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err("the socket takes nothing more".into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn read_exact(stream: &mut impl Read, mut bytes: &mut [u8]) -> Outcome<()> {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => return Err("the socket ended".into()),
            Ok(n) => bytes = &mut bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

pub(crate) fn tokio(half: &mut Half) -> Outcome<f64> {
    let socket = connect(half)?;
    if half.spec.verb == Verb::Parked && half.is_a() {
        match socket {
            Socket::Tcp(stream) => parked_writer(half, stream)?,
            Socket::Unix(stream) => parked_writer(half, stream)?,
        }
        return half.hand_over(0.0);
    }
    runtime()?.block_on(async {
        match socket {
            Socket::Tcp(stream) if half.spec.transport == "tls" => {
                secured(half, ::tokio::net::TcpStream::from_std(stream)?).await
            }
            Socket::Tcp(stream) => tokio_on(half, ::tokio::net::TcpStream::from_std(stream)?).await,
            Socket::Unix(stream) => {
                tokio_on(half, ::tokio::net::UnixStream::from_std(stream)?).await
            }
        }
    })
}

/// With the certificates and the provider of wharf's side.
async fn secured(half: &Half, stream: ::tokio::net::TcpStream) -> Outcome<f64> {
    let authority = Authority::known();
    if half.is_a() {
        let shown = authority.issue(&["127.0.0.1"]);
        let acceptor = TlsAcceptor::from(authority.server(&shown, false));
        return bytes(&half.spec, true, acceptor.accept(stream).await?).await;
    }
    let connector = TlsConnector::from(authority.client(None));
    let name = ServerName::try_from("127.0.0.1")?;
    bytes(&half.spec, false, connector.connect(name, stream).await?).await
}

fn parked_writer(half: &Half, mut stream: impl Write) -> Outcome<()> {
    parked_sender(&half.spec, |stamp| {
        write_all(&mut stream, &stamp.to_le_bytes())
    })
}

async fn tokio_on(
    half: &mut Half,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> Outcome<f64> {
    if half.spec.verb == Verb::Parked {
        let mut arrivals = Arrivals::default();
        while arrivals.note(stream.read_u64_le().await?) {}
        return half.hand_over(arrivals.median());
    }
    bytes(&half.spec, half.is_a(), stream).await
}

/// What is measured on anything that is a stream of bytes.
pub(crate) async fn bytes(
    spec: &Spec,
    is_a: bool,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> Outcome<f64> {
    let mut buffer = vec![GO; spec.size];
    match (spec.verb, is_a) {
        (Verb::Latency | Verb::BytesLatency, true) => {
            let mut laps = Laps::start(spec);
            loop {
                for _ in 0..laps.batch() {
                    stream.write_all(&buffer).await?;
                    stream.read_exact(&mut buffer).await?;
                }
                if !laps.lap() {
                    buffer[0] = STOP;
                    stream.write_all(&buffer).await?;
                    return Ok(laps.median() / 2.0);
                }
            }
        }
        (Verb::Latency | Verb::BytesLatency, false) => loop {
            stream.read_exact(&mut buffer).await?;
            if buffer[0] == STOP {
                return Ok(0.0);
            }
            stream.write_all(&buffer).await?;
        },
        (
            Verb::Stream | Verb::Bytes | Verb::BytesOwned | Verb::BytesAllocated | Verb::Rate,
            true,
        ) => {
            let mut laps = Laps::start(spec);
            loop {
                for _ in 0..laps.batch() {
                    stream.write_all(&buffer).await?;
                }
                if !laps.lap() {
                    break;
                }
            }
            buffer[0] = STOP;
            stream.write_all(&buffer).await?;
            // TLS may hold some of it.
            stream.flush().await?;
            stream.read_u8().await?;
            Ok(match spec.verb {
                Verb::Rate => 1e3 / laps.mean(),
                _ => spec.size as f64 / laps.mean(),
            })
        }
        (
            Verb::Stream | Verb::Bytes | Verb::BytesOwned | Verb::BytesAllocated | Verb::Rate,
            false,
        ) => loop {
            stream.read_exact(&mut buffer).await?;
            if buffer[0] == STOP {
                stream.write_all(&[GO]).await?;
                stream.flush().await?;
                return Ok(0.0);
            }
        },
        (verb, _) => Err(format!("byte streams have no {verb:?}").into()),
    }
}
