//! Time in an emulated device: what its work takes, and looks at what nobody tells of.

use std::{thread, time::Duration};

/// What a call or a copy takes, where a setting or a fault says that it takes any time.
pub fn takes(time: Duration) {
    if !time.is_zero() {
        thread::sleep(time);
    }
}

/// Paces a loop that looks at what others write without a word: a setting of a test's, memory of another process.
#[derive(Debug)]
pub struct Looks(Duration);

impl Default for Looks {
    fn default() -> Self {
        Self::new()
    }
}

impl Looks {
    /// Soon at first, then twice a millisecond.
    pub const fn new() -> Self {
        Self(Duration::from_micros(5))
    }

    /// Before the next look; how long that was.
    pub fn pause(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (2 * pause).min(Duration::from_micros(500));
        takes(pause);
        pause
    }
}
