//! Plain values as text: sizes, times, counts, yes and no. Units are UCX's.

use std::time::Duration;

use super::environment::Word;
use crate::{error::Error, types::text::words};

/// A value as its variable takes it.
pub(super) trait Text {
    fn text(&self) -> String;
}

/// The same as it is displayed.
macro_rules! displayed {
    ($($name:ty),+) => {
        $(impl $crate::config::value::Text for $name {
            fn text(&self) -> String {
                self.to_string()
            }
        })+
    };
}
pub(super) use displayed;

/// How a long message travels where network devices reach memory, or one process the other's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RendezvousScheme {
    /// The cheapest: between network devices as `Get`, on one host what was measured.
    #[default]
    Auto,
    /// The receiver reads it out of the sender's memory.
    Get,
    /// The sender writes it into the receiver's memory, which is cleared before: the receiver cannot tell what was written. As the receiver has it.
    Put,
    /// In messages.
    Messages,
}

words! {
    RendezvousScheme, "rendezvous scheme":
    Auto = "auto",
    Get = "get_zcopy",
    Put = "put_zcopy",
    Messages = "am",
}

impl RendezvousScheme {
    /// As a variable has it; UCX's may name more.
    pub(super) fn read(word: &Word<'_>) -> Result<Self, String> {
        let text = word.text.trim().to_ascii_lowercase();
        match text.as_str() {
            "get_ppln" | "put_ppln" | "rkey_ptr" if word.is_ucx() => {
                word.leave_out("there is no such scheme here; as with auto");
                Ok(Self::Auto)
            }
            _ => text.parse().map_err(|error: Error| error.to_string()),
        }
    }
}

/// From which size on a message goes by rendezvous, to peers on this host and to peers on others. `None`: where the cost model says; `usize::MAX`:
/// never, as far as the protocol can do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RendezvousThreshold {
    /// On this host.
    pub(crate) intra: Option<usize>,
    /// To other hosts.
    pub(crate) inter: Option<usize>,
}

impl RendezvousThreshold {
    /// The same for all peers.
    pub(crate) fn same(threshold: Option<usize>) -> Self {
        Self {
            intra: threshold,
            inter: threshold,
        }
    }

    /// Parses one threshold for all, or `intra:A,inter:B` (either alone leaves the other `auto`).
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if !text.contains(':') {
            return threshold(text).map(Self::same);
        }
        let mut both = Self::default();
        for part in text.split(',') {
            match part.trim().split_once(':') {
                Some(("intra", value)) => both.intra = threshold(value)?,
                Some(("inter", value)) => both.inter = threshold(value)?,
                _ => {
                    return Err(format!(
                        "expected \"intra:SIZE\" or \"inter:SIZE\", found \"{part}\""
                    ));
                }
            }
        }
        Ok(both)
    }
}

fn threshold(text: &str) -> Result<Option<usize>, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "auto" => Ok(None),
        "inf" => Ok(Some(usize::MAX)),
        _ => bytes(text)
            .map(Some)
            .map_err(|error| format!("{error}, \"auto\" or \"inf\"")),
    }
}

/// A size in bytes: digits, then nothing or one of `B`, `K`, `M`, `G`, `T` (powers of 1024; a `B` may follow).
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let expected = || "expected a size such as 4096, 8K, 1M".to_owned();
    let (number, unit) = split_unit(text);
    let shift = match unit.strip_suffix('b').unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(expected()),
    };
    let number: usize = number.parse().map_err(|_| expected())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "size too large".to_owned())
}

/// A count, without unit.
pub(super) fn count(text: &str) -> Result<usize, String> {
    text.trim()
        .parse()
        .map_err(|_| "expected a count such as 4096".to_owned())
}

/// A time: a decimal number and one of `ns`, `us`, `ms`, `s`, `m` (minutes); without unit seconds, as UCX has it.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 20us, 5ms, 1.5s, 2m".to_owned();
    let (number, unit) = split_unit(text);
    let scale = match unit.as_str() {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        _ => return Err(expected()),
    };
    let number: f64 = number.parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| "time out of range".to_owned())
}

/// As [`time`], with `inf` and zero for never.
pub(super) fn time_or_never(text: &str) -> Result<Option<Duration>, String> {
    if text.trim().eq_ignore_ascii_case("inf") {
        return Ok(None);
    }
    Ok(Some(time(text)?).filter(|time| !time.is_zero()))
}

/// The same between two probes. UCX's may be `auto`, and as long as one likes.
pub(super) fn keepalive(word: &Word<'_>) -> Result<Option<Duration>, String> {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    match word.is_ucx() {
        true if word.text.trim().eq_ignore_ascii_case("auto") => Ok(Some(Duration::from_secs(10))),
        true => Ok(time_or_never(word.text)?.map(|time| {
            if time > YEAR {
                word.leave_out("a year here");
            }
            time.min(YEAR)
        })),
        false => time_or_never(word.text),
    }
}

/// `y`, `yes`, `on`, `true`, `1` and their opposites.
pub(super) fn yes_no(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" | "on" | "true" | "1" => Ok(true),
        "n" | "no" | "off" | "false" | "0" => Ok(false),
        _ => Err("expected y or n".to_owned()),
    }
}

/// Number and lower-case unit.
fn split_unit(text: &str) -> (&str, String) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim().to_lowercase())
}

impl Text for RendezvousThreshold {
    fn text(&self) -> String {
        let [intra, inter] = [self.intra, self.inter].map(|threshold| match threshold {
            None => "auto".to_owned(),
            Some(usize::MAX) => "inf".to_owned(),
            Some(bytes) => bytes.to_string(),
        });
        match intra == inter {
            true => intra,
            false => format!("intra:{intra},inter:{inter}"),
        }
    }
}

impl Text for Duration {
    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl Text for Option<Duration> {
    fn text(&self) -> String {
        self.map_or_else(|| "inf".to_owned(), |time| time.text())
    }
}

impl Text for bool {
    fn text(&self) -> String {
        if *self { "y" } else { "n" }.to_owned()
    }
}

displayed! { RendezvousScheme, usize, u8 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes(" 8K "), Ok(8192));
        assert_eq!(bytes("8kb"), Ok(8192));
        assert_eq!(bytes("12B"), Ok(12));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        for bad in [
            "",
            "K",
            "1.5K",
            "-1",
            "8Q",
            "8KK",
            "1 2",
            "99999999T",
            "999999999999999999999",
        ] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(time("20us"), Ok(Duration::from_micros(20)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("20.00s"), Ok(Duration::from_secs(20)));
        assert_eq!(time("3"), Ok(Duration::from_secs(3)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(time_or_never("INF"), Ok(None));
        assert_eq!(time_or_never("0"), Ok(None));
        for bad in ["", "s", "-1s", "1h", "1e400", "1..5s", "nan"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn thresholds() {
        assert_eq!(
            RendezvousThreshold::parse("auto"),
            Ok(RendezvousThreshold::default())
        );
        assert_eq!(
            RendezvousThreshold::parse("8K"),
            Ok(RendezvousThreshold::same(Some(8192)))
        );
        let both = RendezvousThreshold::parse("intra:inf,inter:1M").unwrap();
        assert_eq!((both.intra, both.inter), (Some(usize::MAX), Some(1 << 20)));
        assert!(RendezvousThreshold::parse("intra:8K,outer:1").is_err());
        assert!(RendezvousThreshold::parse("").is_err());
    }
}
