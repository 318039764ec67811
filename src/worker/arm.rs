//! The worker's fd is made readable, or not, for loops that are not Tokio's.

use crate::worker::engine::Engine;

impl Engine {
    /// A pass for a loop of the program's. Returns how many things happened.
    pub(crate) fn progress_outside(&mut self) -> usize {
        // First, so that what comes from here on makes an edge.
        self.watch.wake_up();
        // What this takes from the fds and leaves undone wakes nobody: the reactor arms anew after it.
        self.disarm();
        self.rung();
        self.poll_fds();
        let moved = self.progress();
        self.watch.seen = self.happened;
        moved
    }

    /// Before a loop of the program's goes to sleep. `false`: something is here, or has happened since it looked.
    pub(crate) fn arm_outside(&mut self) -> bool {
        let seen = std::mem::replace(&mut self.watch.seen, self.happened);
        if seen != self.happened || !self.arm_or_leave() {
            return false;
        }
        self.watch.asleep = true;
        true
    }
}
