//! How reliable connections over InfiniBand and RoCE are made.

use std::time::Duration;

use super::{
    environment::{Environment, Names},
    setting::Setting,
    table::{Told, options},
    value::{self, Text},
};
use crate::{driver::verbs::Mtu, error::Result, transport::verbs::RcOptions};

options! {
    /// What can be set of `rc_verbs`, beside its devices.
    struct Rc;

    read {
        /// Where in a port's table the GID stands; `None`: chosen.
        gid_index: Option<u8> = |_| RcOptions::default().gid_index,
            "WHARF_IB_GID_INDEX" or "UCX_IB_GID_INDEX" by |word| gid_index(word.text),
            told by |index| index.map_or_else(|| "auto".to_owned(), |index| index.to_string());
        /// How long a packet may go unanswered; rounded up to a power of two times 4.096 µs, of which the device takes 1 to 31.
        timeout: Duration = |_| time_of(RcOptions::default().timeout),
            "WHARF_RC_TIMEOUT" or "UCX_RC_TIMEOUT" by |word| timeout(word.text);
        /// How often such a packet is sent again, at most 7.
        retries: u8 = |_| RcOptions::default().retries,
            "WHARF_RC_RETRY_COUNT" or "UCX_RC_RETRY_COUNT" by |word| small(word.text, 7);
        /// The largest packets; `None`: as large as both ports take.
        mtu: Option<Mtu> = |_| RcOptions::default().mtu,
            "WHARF_RC_PATH_MTU" or "UCX_RC_PATH_MTU" by |word| mtu(word.text),
            told by |mtu| mtu.map_or_else(|| "default".to_owned(), |mtu| mtu.bytes().to_string());
        /// Messages of a connection that may be on their way to the device.
        sends: usize = |_| RcOptions::default().sends as usize,
            "WHARF_RC_TX_QUEUE_LEN" or "UCX_RC_TX_QUEUE_LEN" by |word| sends(word.text);
    }
}

/// 4.096 µs × 2^t.
fn time_of(code: u8) -> Duration {
    Duration::from_nanos(4096 << code)
}

/// The code of the least time that is not below this one.
fn code_of(time: Duration) -> u8 {
    (1..31).find(|code| time_of(*code) >= time).unwrap_or(31)
}

impl Rc {
    /// For the transport; the devices are chosen apart.
    pub(crate) fn options(&self) -> RcOptions {
        RcOptions {
            timeout: code_of(*self.timeout),
            retries: *self.retries,
            mtu: *self.mtu,
            sends: u32::try_from(*self.sends).unwrap_or(u32::MAX),
            gid_index: *self.gid_index,
            ..RcOptions::default()
        }
    }
}

fn small(text: &str, most: u8) -> Result<u8, String> {
    let number = text.trim().parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("expected a number up to {most}"))
}

fn timeout(text: &str) -> Result<Duration, String> {
    let time = value::time(text)?;
    match time.is_zero() || time > time_of(31) {
        true => Err("expected a time above zero and at most 2h".to_owned()),
        false => Ok(time),
    }
}

fn mtu(text: &str) -> Result<Option<Mtu>, String> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("default") {
        return Ok(None);
    }
    let bytes = text.parse().ok();
    let mtu = bytes.and_then(|bytes| Mtu::within(bytes).filter(|mtu| mtu.bytes() == bytes));
    match mtu {
        Some(mtu) => Ok(Some(mtu)),
        None => Err("expected 256, 512, 1024, 2048, 4096 or default".to_owned()),
    }
}

fn sends(text: &str) -> Result<usize, String> {
    match value::count(text)? {
        count @ 32..=1024 => Ok(count),
        _ => Err("expected a count from 32 to 1024".to_owned()),
    }
}

fn gid_index(text: &str) -> Result<Option<u8>, String> {
    match text.trim().eq_ignore_ascii_case("auto") {
        true => Ok(None),
        false => small(text, u8::MAX)
            .map(Some)
            .map_err(|why| format!("{why}, or auto")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_codes() {
        for code in 1..=31 {
            assert_eq!(code_of(time_of(code)), code);
        }
        assert_eq!(code_of(Duration::from_secs(1)), 18);
        assert_eq!(code_of(Duration::from_nanos(1)), 1);
        let default = Rc::default().options();
        assert_eq!(
            format!("{default:?}"),
            format!("{:?}", RcOptions::default())
        );
    }

    #[test]
    fn values() {
        assert_eq!(mtu("1024"), Ok(Mtu::within(1024)));
        assert_eq!(mtu("default"), Ok(None));
        assert_eq!(gid_index("auto"), Ok(None));
        assert_eq!(gid_index("3"), Ok(Some(3)));
        assert_eq!(sends("256"), Ok(256));
        for bad in ["", "8", "1000", "256K"] {
            assert!(mtu(bad).is_err(), "{bad}");
        }
        assert!(small("8", 7).is_err() && gid_index("256").is_err() && sends("2").is_err());
        assert!(timeout("0").is_err() && timeout("3h").is_err() && timeout("200m").is_err());
    }
}
