//! How reliable connections over InfiniBand and RoCE are made.

use std::time::Duration;

use super::{
    environment::{Environment, Names, Word},
    setting::{Setting, invalid},
    table::{Told, options},
    value::{self, Text, displayed},
};
use crate::{
    driver::verbs::Mtu,
    error::Result,
    transport::verbs::{RcOptions, RelaxedOrdering},
};

options! {
    /// What can be set of RDMA devices and of `rc_verbs`, beside which devices.
    struct Rc;

    /// What the builder was given of them.
    given RcOverrides {
        /// When writes of network devices may overtake each other.
        relaxed_ordering: RelaxedOrdering = |_| RelaxedOrdering::default(),
            "WHARF_IB_PCI_RELAXED_ORDERING" or "UCX_IB_PCI_RELAXED_ORDERING"
                by |word| relaxed_ordering(word.text);
        /// Network devices fetch pages when they want them.
        on_demand: bool = |_| false,
            "WHARF_IB_ON_DEMAND" by |word| value::yes_no(word.text);
        /// Where in a port's table the GID stands; `None`: chosen.
        gid_index: Option<u8> = |_| RcOptions::default().gid_index,
            "WHARF_IB_GID_INDEX" or "UCX_IB_GID_INDEX" by gid_index,
            told by |index| index.map_or_else(|| "auto".to_owned(), |index| index.to_string());
        /// How long a packet may go unanswered; rounded up to a power of two times 4.096 µs, of which the device takes 1 to 31.
        timeout: Duration = |_| time_of(RcOptions::default().timeout),
            "WHARF_RC_TIMEOUT" or "UCX_RC_TIMEOUT" by timeout;
        /// How often such a packet is sent again, at most 7.
        retries: u8 = |_| RcOptions::default().retries,
            "WHARF_RC_RETRY_COUNT" or "UCX_RC_RETRY_COUNT" by retries;
        /// The largest packets; `None`: as large as both ports take.
        mtu: Option<Mtu> = |_| RcOptions::default().mtu,
            "WHARF_RC_PATH_MTU" or "UCX_RC_PATH_MTU" by |word| mtu(word.text),
            told by |mtu| mtu.map_or_else(|| "default".to_owned(), |mtu| mtu.bytes().to_string());
        /// Messages of a connection that may be on their way to the device.
        sends: usize = |_| RcOptions::default().sends as usize,
            "WHARF_RC_TX_QUEUE_LEN" or "UCX_RC_TX_QUEUE_LEN" by sends;
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
    /// Refuses what no device takes.
    pub(super) fn check(&self) -> Result<()> {
        let (time, source) = (*self.timeout, self.timeout.source);
        if time.is_zero() || time > time_of(31) {
            let text = format!("timeout of rc_verbs ({source}): above zero and at most 2h");
            return Err(invalid(text));
        }
        if *self.retries > 7 {
            let source = self.retries.source;
            return Err(invalid(format!(
                "retries of rc_verbs ({source}): at most 7"
            )));
        }
        if !(32..=1024).contains(&*self.sends) {
            let source = self.sends.source;
            return Err(invalid(format!(
                "send queue of rc_verbs ({source}): 32 to 1024"
            )));
        }
        Ok(())
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

/// `auto`, also as `try`; or yes or no.
fn relaxed_ordering(text: &str) -> Result<RelaxedOrdering, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "auto" | "try" => Ok(RelaxedOrdering::Auto),
        _ => match value::yes_no(text) {
            Ok(true) => Ok(RelaxedOrdering::On),
            Ok(false) => Ok(RelaxedOrdering::Off),
            Err(_) => Err("expected auto, y or n".to_owned()),
        },
    }
}

displayed! { RelaxedOrdering }

fn small(text: &str, most: u8) -> Result<u8, String> {
    let number = text.trim().parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("expected a number up to {most}"))
}

/// UCX's may be more than a device takes.
fn retries(word: &Word<'_>) -> Result<u8, String> {
    match value::count(word.text) {
        Ok(8..) if word.is_ucx() => {
            word.leave_out("a device takes 7 at the most");
            Ok(7)
        }
        _ => small(word.text, 7),
    }
}

/// The same of these.
fn timeout(word: &Word<'_>) -> Result<Duration, String> {
    let (time, longest) = (value::time(word.text)?, time_of(31));
    match time.is_zero() || time > longest {
        true if word.is_ucx() => {
            word.leave_out("a device takes 4.096 us to 2.4 h");
            Ok(time.clamp(time_of(1), longest))
        }
        true => Err("expected a time above zero and at most 2h".to_owned()),
        false => Ok(time),
    }
}

/// The largest packets by their bytes; `default`: as large as both ports take.
pub(crate) fn mtu(text: &str) -> Result<Option<Mtu>, String> {
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

/// UCX's may be any.
fn sends(word: &Word<'_>) -> Result<usize, String> {
    match value::count(word.text)? {
        count @ 32..=1024 => Ok(count),
        count if word.is_ucx() => {
            word.leave_out("32 to 1024 here");
            Ok(count.clamp(32, 1024))
        }
        _ => Err("expected a count from 32 to 1024".to_owned()),
    }
}

/// UCX's may be any.
fn gid_index(word: &Word<'_>) -> Result<Option<u8>, String> {
    if word.text.trim().eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    match value::count(word.text) {
        Ok(256..) if word.is_ucx() => {
            word.leave_out("no port has so many: one is chosen");
            Ok(None)
        }
        _ => small(word.text, u8::MAX)
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
        let word = |name, text| Word {
            name,
            text,
            names: Names::NONE,
        };
        let gid = |name, text| gid_index(&word(name, text));
        for name in ["WHARF_IB_GID_INDEX", "UCX_IB_GID_INDEX"] {
            assert_eq!(gid(name, "auto"), Ok(None));
            assert_eq!(gid(name, "3"), Ok(Some(3)));
            assert!(gid(name, "first").is_err());
        }
        assert_eq!(gid("UCX_IB_GID_INDEX", "256"), Ok(None));
        let own = |text| word("WHARF_RC_TX_QUEUE_LEN", text);
        let ucx = |text| word("UCX_RC_TX_QUEUE_LEN", text);
        assert_eq!(sends(&own("256")), Ok(256));
        assert_eq!(sends(&ucx("4096")), Ok(1024));
        assert_eq!(sends(&ucx("1")), Ok(32));
        assert_eq!(retries(&ucx("9")), Ok(7));
        assert_eq!(timeout(&ucx("0")), Ok(time_of(1)));
        assert!(timeout(&ucx("3h")).is_err());
        assert_eq!(timeout(&ucx("200m")), Ok(time_of(31)));
        for bad in ["", "8", "1000", "256K"] {
            assert!(mtu(bad).is_err(), "{bad}");
        }
        assert!(retries(&own("8")).is_err() && gid("WHARF_IB_GID_INDEX", "256").is_err());
        assert!(sends(&own("2")).is_err() && sends(&ucx("few")).is_err());
        for bad in ["0", "3h", "200m"] {
            assert!(timeout(&own(bad)).is_err(), "{bad}");
        }
    }
}
