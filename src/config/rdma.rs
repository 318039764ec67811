//! How reliable connections over InfiniBand and RoCE are made.

use std::time::Duration;

use super::{Environment, Setting, Source, value};
use crate::{driver::verbs::Mtu, error::Result, transport::verbs::RcOptions};

/// What can be set of `rc_verbs`, beside its devices.
#[derive(Clone, Debug)]
pub(crate) struct Rc {
    /// How long a packet may go unanswered; rounded up to a power of two times 4.096 µs, of which the device takes 1 to 31.
    pub(crate) timeout: Setting<Duration>,
    /// How often such a packet is sent again, at most 7.
    pub(crate) retries: Setting<u8>,
    /// The largest packets; `None`: as large as both ports take.
    pub(crate) mtu: Setting<Option<Mtu>>,
    /// Messages of a connection that may be on their way to the device.
    pub(crate) sends: Setting<usize>,
    /// Where in a port's table the GID stands; `None`: chosen.
    pub(crate) gid_index: Setting<Option<u8>>,
}

/// 4.096 µs × 2^t.
fn time_of(code: u8) -> Duration {
    Duration::from_nanos(4096 << code)
}

/// The code of the least time that is not below this one.
fn code_of(time: Duration) -> u8 {
    (1..31).find(|code| time_of(*code) >= time).unwrap_or(31)
}

impl Default for Rc {
    fn default() -> Self {
        let options = RcOptions::default();
        Self {
            timeout: time_of(options.timeout).into(),
            retries: options.retries.into(),
            mtu: options.mtu.into(),
            sends: (options.sends as usize).into(),
            gid_index: options.gid_index.into(),
        }
    }
}

impl Rc {
    pub(super) fn load(environment: &Environment<'_>) -> Result<Self> {
        let default = Self::default();
        Ok(Self {
            timeout: environment.choose(
                None,
                &["WHARF_RC_TIMEOUT", "UCX_RC_TIMEOUT"],
                timeout,
                || *default.timeout,
            )?,
            retries: environment.choose(
                None,
                &["WHARF_RC_RETRY_COUNT", "UCX_RC_RETRY_COUNT"],
                |text| small(text, 7),
                || *default.retries,
            )?,
            mtu: environment.choose(
                None,
                &["WHARF_RC_PATH_MTU", "UCX_RC_PATH_MTU"],
                mtu,
                || *default.mtu,
            )?,
            sends: environment.choose(
                None,
                &["WHARF_RC_TX_QUEUE_LEN", "UCX_RC_TX_QUEUE_LEN"],
                sends,
                || *default.sends,
            )?,
            gid_index: environment.choose(
                None,
                &["WHARF_IB_GID_INDEX", "UCX_IB_GID_INDEX"],
                gid_index,
                || *default.gid_index,
            )?,
        })
    }

    pub(super) fn describe(&self) -> [(&'static str, String, Source); 5] {
        [
            (
                "WHARF_RC_TIMEOUT",
                format!("{:?}", *self.timeout),
                self.timeout.source,
            ),
            (
                "WHARF_RC_RETRY_COUNT",
                self.retries.to_string(),
                self.retries.source,
            ),
            (
                "WHARF_RC_PATH_MTU",
                self.mtu
                    .map_or_else(|| "default".to_owned(), |mtu| mtu.bytes().to_string()),
                self.mtu.source,
            ),
            (
                "WHARF_RC_TX_QUEUE_LEN",
                self.sends.to_string(),
                self.sends.source,
            ),
            (
                "WHARF_IB_GID_INDEX",
                self.gid_index
                    .map_or_else(|| "auto".to_owned(), |index| index.to_string()),
                self.gid_index.source,
            ),
        ]
    }

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
