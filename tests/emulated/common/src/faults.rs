//! The fault plan: which call of which function goes wrong, and how.
//!
//! A fault is written `NAME@NTH=WHAT`, or `NAME:DEVICE@NTH=WHAT` for calls on one device only, with
//! * `NAME`: an exported name, or `*` for every function;
//! * `NTH`: which call from now on, 1 the next; `NTH+` that one and all later ones;
//! * `WHAT`: a result code (the call does nothing and returns it); `slow:MICROSECONDS` (it takes so much longer);
//!   `die:CODE` (the device's context is broken from then on, and the call returns the code); `late:CODE` (the call
//!   succeeds, and what it queued breaks the context when its turn comes); `skip` (the call does nothing and succeeds).

use std::{fmt, str::FromStr, time::Duration};

use parking_lot::Mutex;

use crate::pace::takes;

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It returns this code and does nothing.
    Code(u32),
    /// The context is broken with this code.
    Die(u32),
    /// What the call queues breaks the context with this code.
    Late(u32),
    /// It does nothing and says that it did.
    Skip,
}

/// One line of the plan.
#[derive(Clone, Debug)]
struct Line {
    name: String,
    device: Option<u32>,
    /// Matching calls until it strikes.
    left: u64,
    always: bool,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The call takes so much longer.
    Slow(Duration),
    Fault(Fault),
}

/// The plan.
#[derive(Debug)]
pub struct Faults(Mutex<Vec<Line>>);

impl Default for Faults {
    fn default() -> Self {
        Self::new()
    }
}

impl Faults {
    /// No fault.
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Adds faults: several are parted by commas or blanks.
    ///
    /// # Errors
    /// What was not understood.
    pub fn add(&self, text: &str) -> Result<(), NotAFault> {
        let lines = text
            .split([',', ' ', ';'])
            .filter(|word| !word.is_empty())
            .map(str::parse)
            .collect::<Result<Vec<Line>, _>>()?;
        self.0.lock().extend(lines);
        Ok(())
    }

    /// Drops the plan.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// How many faults wait for their call.
    pub fn waiting(&self) -> usize {
        self.0.lock().len()
    }

    /// The faults of this call: every line that matches counts it. A call that is slow takes its time here.
    pub fn strike(&self, name: &str, device: Option<u32>) -> Vec<Fault> {
        let (mut struck, mut time) = (Vec::new(), Duration::ZERO);
        self.0.lock().retain_mut(|line| {
            if (line.name != "*" && line.name != name)
                || (line.device.is_some() && line.device != device)
            {
                return true;
            }
            line.left = line.left.saturating_sub(1);
            if line.left > 0 {
                return true;
            }
            match line.what {
                What::Slow(longer) => time += longer,
                What::Fault(fault) => struck.push(fault),
            }
            line.always
        });
        takes(time);
        struck
    }
}

/// Text that is no fault.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NotAFault(String);

impl fmt::Display for NotAFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no fault: NAME[:DEVICE]@NTH[+]=WHAT", self.0)
    }
}

impl std::error::Error for NotAFault {}

impl FromStr for Line {
    type Err = NotAFault;

    fn from_str(text: &str) -> Result<Self, NotAFault> {
        let wrong = || NotAFault(text.to_owned());
        let (call, what) = text.split_once('=').ok_or_else(wrong)?;
        let (name, nth) = call.split_once('@').ok_or_else(wrong)?;
        let (name, device) = match name.split_once(':') {
            Some((name, device)) => (name, Some(device.parse().map_err(|_| wrong())?)),
            None => (name, None),
        };
        let always = nth.ends_with('+');
        let left: u64 = nth.trim_end_matches('+').parse().map_err(|_| wrong())?;
        let what = match what.split_once(':') {
            Some(("slow", micros)) => {
                What::Slow(Duration::from_micros(micros.parse().map_err(|_| wrong())?))
            }
            Some(("die", code)) => What::Fault(Fault::Die(code.parse().map_err(|_| wrong())?)),
            Some(("late", code)) => What::Fault(Fault::Late(code.parse().map_err(|_| wrong())?)),
            None if what == "skip" => What::Fault(Fault::Skip),
            None => What::Fault(Fault::Code(what.parse().map_err(|_| wrong())?)),
            Some(_) => return Err(wrong()),
        };
        if name.is_empty() || left == 0 {
            return Err(wrong());
        }
        Ok(Self {
            name: name.to_owned(),
            device,
            left,
            always,
            what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_is_struck_and_no_other() {
        let faults = Faults::new();
        faults
            .add("a@2=700, b:1@1+=slow:5000 *@4=die:719")
            .expect("a plan");
        assert_eq!(faults.strike("a", None), []);
        assert_eq!(faults.strike("a", None), [Fault::Code(700)]);
        assert_eq!(faults.strike("b", Some(0)), []);
        let is_slow = |expected: &[Fault]| {
            let start = std::time::Instant::now();
            assert_eq!(faults.strike("b", Some(1)), expected);
            assert!(start.elapsed() >= Duration::from_millis(5));
        };
        is_slow(&[Fault::Die(719)]);
        is_slow(&[]);
        assert_eq!(faults.waiting(), 1);
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for text in [
            "a",
            "a@1",
            "a@0=1",
            "a@x=1",
            "@1=1",
            "a@1=fast:1",
            "a:x@1=1",
        ] {
            Faults::new().add(text).expect_err(text);
        }
    }
}
