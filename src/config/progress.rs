//! How a worker waits.

use std::{fmt, str::FromStr, time::Duration};

use super::{
    nearest::did_you_mean,
    value::{self, displayed},
};
use crate::error::{Error, ErrorKind, Operation, Result};

/// How a worker waits for what has not arrived yet.
///
/// Every policy ends a wait by an event when it has to, except [`Progress::Busy`]. They differ in how long a future looks
/// for the answer itself before it parks: looking costs processor time, being woken costs some microseconds.
///
/// On a runtime whose threads must never be held up, take [`Progress::EventDriven`] or [`Progress::Thread`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias(
    "ucp_worker_arm",
    "ucp_worker_wait",
    "ucp_worker_wait_mem",
    "ucp_worker_signal",
    "ucp_wakeup_event_t",
    "UCP_FEATURE_WAKEUP",
    "UCP_WAKEUP_RX",
    "UCP_WAKEUP_TX",
    "UCP_WAKEUP_RMA",
    "UCP_WAKEUP_AMO",
    "UCP_WAKEUP_TAG_SEND",
    "UCP_WAKEUP_TAG_RECV",
    "UCP_WAKEUP_EDGE"
))]
pub enum Progress {
    /// Looks while that pays, as measured over the last waits: the future itself for some microseconds and 20 µs at the most (40 over sockets), and
    /// then the worker between the turns of other tasks, for as long, and for byte streams 100 to 250 µs; then it sleeps.
    #[default]
    Adaptive,
    /// Spins for this long, then parks. For a millisecond at the most before the runtime's timers and sockets have their turn.
    ///
    /// A window above zero but below the time that a parked peer takes to answer (about 12 µs) is worse than none: both
    /// ends then park on every message, and the spinning is lost. Take zero, or 20 µs and more.
    Spin(Duration),
    /// Spins until the answer is there and never parks while a future is polled. For a processor of one's own.
    Busy,
    /// Parks at once. An arrival wakes the task.
    EventDriven,
    /// A thread of the worker's own drives it; futures park at once.
    Thread,
}

impl Progress {
    /// Parses `adaptive`, `spin:TIME`, `busy`, `event` or `thread`.
    pub(super) fn parse(text: &str) -> std::result::Result<Self, String> {
        let known = ["adaptive", "spin:TIME", "busy", "event", "thread"];
        match text.trim().to_ascii_lowercase().as_str() {
            "adaptive" => Ok(Self::Adaptive),
            "busy" => Ok(Self::Busy),
            "event" => Ok(Self::EventDriven),
            "thread" => Ok(Self::Thread),
            other => match other.strip_prefix("spin:") {
                Some(window) if window.ends_with('s') || window == "0" => {
                    value::time(window).map(Self::Spin)
                }
                Some(_) => Err("the time of \"spin\" needs a unit, as in spin:20us".to_owned()),
                None => Err(format!(
                    "expected one of {}{}",
                    known.join(", "),
                    did_you_mean(other, known)
                )),
            },
        }
    }
}

/// As in `WHARF_PROGRESS`.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adaptive => f.pad("adaptive"),
            // In ASCII.
            Self::Spin(time) => f.pad(&format!("spin:{time:?}").replace('µ', "u")),
            Self::Busy => f.pad("busy"),
            Self::EventDriven => f.pad("event"),
            Self::Thread => f.pad("thread"),
        }
    }
}

impl FromStr for Progress {
    type Err = Error;

    /// `adaptive`, `spin:TIME` with the unit of the time, `busy`, `event` or `thread`.
    ///
    /// # Errors
    /// `Configuration`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why| Error::new(ErrorKind::Configuration, why).during(Operation::Configure);
        Self::parse(text).map_err(wrong)
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_text! { Progress }

displayed! { Progress }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses() {
        assert_eq!(Progress::parse("Adaptive"), Ok(Progress::Adaptive));
        assert_eq!(Progress::parse("event"), Ok(Progress::EventDriven));
        assert_eq!(Progress::parse("busy"), Ok(Progress::Busy));
        assert_eq!(Progress::parse("thread"), Ok(Progress::Thread));
        assert_eq!(
            Progress::parse("spin:50us"),
            Ok(Progress::Spin(Duration::from_micros(50)))
        );
        assert_eq!(
            Progress::parse("spin:0"),
            Ok(Progress::Spin(Duration::ZERO))
        );
    }

    #[test]
    fn refuses_with_the_nearest() {
        assert!(Progress::parse("spin:20").unwrap_err().contains("unit"));
        assert!(
            Progress::parse("spin")
                .unwrap_err()
                .contains("did you mean \"spin:TIME\"?")
        );
        assert!(
            Progress::parse("adaptve")
                .unwrap_err()
                .contains("did you mean \"adaptive\"?")
        );
    }
}
