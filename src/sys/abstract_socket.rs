//! Unix sockets with names in the abstract namespace: no file, gone with the socket.
//!
//! The namespace belongs to the network namespace, and anyone in it may bind or connect any name: check the peer's
//! credentials.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixListener as StdListener},
        },
    },
};

use tokio::net::{UnixListener, UnixStream};

/// Longest name in bytes.
#[cfg(test)]
const MAX_NAME: usize = 107;

/// Listens at `name`. Must be called within a Tokio runtime.
/// Errors: `AddrInUse` when the name is taken, `InvalidInput` when it is longer than 107 bytes.
pub(crate) fn bind(name: &[u8]) -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Connects to `name`. Never blocks for long: a Unix socket connects at once or not at all. Must be called within a Tokio
/// runtime.
/// Errors: `ConnectionRefused` when nobody listens there, `WouldBlock` when the listener's queue is full.
pub(crate) async fn connect(name: &[u8]) -> io::Result<UnixStream> {
    // Checks the length; Tokio takes a name that begins with a zero byte as an abstract one and connects without blocking.
    SocketAddr::from_abstract_name(name)?;
    let mut path = Vec::with_capacity(name.len() + 1);
    path.push(0);
    path.extend_from_slice(name);
    UnixStream::connect(OsStr::from_bytes(&path)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bind_connect_and_vanish() {
        let name = format!("wharf-test-abstract-{}", std::process::id()).into_bytes();
        let refused = connect(&name).await.expect_err("nobody listens yet");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener = bind(&name).expect("bind");
        assert_eq!(
            bind(&name).expect_err("taken").kind(),
            io::ErrorKind::AddrInUse
        );
        let client = connect(&name).await.expect("connect");
        let (server, _) = listener.accept().await.expect("accept");
        client.writable().await.expect("writable");
        assert_eq!(client.try_write(b"hi").expect("write"), 2);
        server.readable().await.expect("readable");
        let mut bytes = [0; 4];
        assert_eq!(server.try_read(&mut bytes).expect("read"), 2);
        drop(listener);
        let refused = connect(&name)
            .await
            .expect_err("the name went with the listener");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn long_names_are_refused() {
        assert_eq!(
            bind(&[b'x'; MAX_NAME + 1]).expect_err("too long").kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(
            connect(&[b'x'; MAX_NAME + 1])
                .await
                .expect_err("too long")
                .kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
