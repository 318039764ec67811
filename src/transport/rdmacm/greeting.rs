//! What the two ends tell each other with request and answer, which tells a wharf from anybody else.
//!
//! ```text
//! "wharfcm"  version 1  receives posted (u8)  0  bytes in each (u16)  0 …          little-endian; later versions may append
//! ```

use super::{pair::SLOT, window::RECEIVES};
use crate::error::{Error, ErrorKind, Result};

const MAGIC: &[u8; 7] = b"wharfcm";
const VERSION: u8 = 1;

/// The least that a peer's receives must hold, in bytes.
const LEAST: u16 = 64;

/// What an end takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Receives that it has posted.
    pub(super) receives: u8,
    /// Bytes in each.
    pub(super) bytes: u16,
}

impl Greeting {
    /// This side's.
    pub(super) const OWN: Self = Self {
        receives: RECEIVES as u8,
        bytes: SLOT as u16,
    };

    pub(super) fn encode(self) -> [u8; 12] {
        let mut to = [0; 12];
        to[..7].copy_from_slice(MAGIC);
        to[7] = VERSION;
        to[8] = self.receives;
        to[10..].copy_from_slice(&self.bytes.to_le_bytes());
        to
    }

    /// # Errors
    /// `Protocol`: another program's. `VersionMismatch`.
    pub(super) fn decode(data: &[u8]) -> Result<Self> {
        let [
            m0,
            m1,
            m2,
            m3,
            m4,
            m5,
            m6,
            version,
            receives,
            _,
            low,
            high,
            ..,
        ] = *data
        else {
            return Err(foreign());
        };
        if [m0, m1, m2, m3, m4, m5, m6] != *MAGIC {
            return Err(foreign());
        }
        if version < VERSION {
            return Err(Error::new(
                ErrorKind::VersionMismatch,
                format!(
                    "the peer speaks version {version} of channels over RDMA, this side {VERSION}"
                ),
            ));
        }
        let bytes = u16::from_le_bytes([low, high]);
        // One receive would be spent on the notice that there is another.
        if receives < 2 || bytes < LEAST {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("the peer takes {receives} messages of {bytes} bytes only"),
            ));
        }
        Ok(Self { receives, bytes })
    }
}

#[cold]
fn foreign() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "the program at that RDMA address is no wharf listener or worker",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_with_what_follows_it() {
        let mut data = Greeting::OWN.encode().to_vec();
        assert_eq!(Greeting::decode(&data).expect("own"), Greeting::OWN);
        data.resize(56, 0);
        assert_eq!(Greeting::decode(&data).expect("padded"), Greeting::OWN);
        data[7] = VERSION + 1;
        assert!(Greeting::decode(&data).is_ok(), "a later version");
    }

    #[test]
    fn what_others_send_is_told() {
        let own = Greeting::OWN.encode();
        let mut old = own;
        old[7] = 0;
        let mut small = own;
        small[10..].copy_from_slice(&[63, 0]);
        let mut narrow = own;
        narrow[8] = 1;
        for (data, kind) in [
            (&b""[..], ErrorKind::Protocol),
            (&own[..11], ErrorKind::Protocol),
            (&[0; 56][..], ErrorKind::Protocol),
            (&b"wharfcn\x01\x08\x00\x00\x10"[..], ErrorKind::Protocol),
            (&old[..], ErrorKind::VersionMismatch),
            (&small[..], ErrorKind::Protocol),
            (&narrow[..], ErrorKind::Protocol),
        ] {
            let error = Greeting::decode(data).expect_err("is refused");
            assert_eq!(error.kind(), kind, "{data:?}: {error}");
        }
    }
}
