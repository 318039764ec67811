//! `axum::serve` on byte streams: feature `axum`.

use std::{future, io};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};

use crate::endpoint::ByteStream;

use super::streams::{StreamAddr, StreamListener};

/// For `axum::serve`. A listener that has ended accepts nothing more: end the server by `with_graceful_shutdown`.
impl Listener for StreamListener {
    type Io = ByteStream;
    type Addr = StreamAddr;

    async fn accept(&mut self) -> (ByteStream, StreamAddr) {
        match Self::accept(self).await {
            Ok(accepted) => accepted,
            // It has ended, for which axum has no word.
            Err(error) => {
                tracing::debug!(target: "wharf::wireup", %error, "a server has nothing more to accept");
                future::pending().await
            }
        }
    }

    fn local_addr(&self) -> io::Result<StreamAddr> {
        Ok(StreamAddr::of_listener(self))
    }
}

/// For `ConnectInfo<StreamAddr>`: a router's `into_make_service_with_connect_info::<StreamAddr>()`.
impl Connected<IncomingStream<'_, StreamListener>> for StreamAddr {
    fn connect_info(stream: IncomingStream<'_, StreamListener>) -> Self {
        stream.remote_addr().clone()
    }
}
