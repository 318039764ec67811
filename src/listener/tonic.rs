//! tonic's servers on byte streams: feature `tonic`.

use tonic::transport::server::Connected;

use crate::endpoint::ByteStream;

use super::streams::StreamAddr;

/// For `Server::serve_with_incoming`. Handlers find a [`StreamAddr`] in the extensions of their requests.
impl Connected for ByteStream {
    type ConnectInfo = StreamAddr;

    fn connect_info(&self) -> StreamAddr {
        StreamAddr::of(self.endpoint())
    }
}
