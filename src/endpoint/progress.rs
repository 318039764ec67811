//! How far an operation is.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::Stream;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::{
    types::OpKey,
    worker::{Handle, drivers::Driver},
};

use super::{op::Op, operation::Completion};

/// How many bytes of an operation were moved, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transferred {
    /// Bytes that are where they go, or on their way there, as far as this side knows. What this side moves, or both ends together, it has counted. What the peer moves
    /// alone (its processor out of this side's memory, its network devices, its engines) it tells after each 16 MiB, where its link has room for that. What
    /// goes in one piece, and what a peer moves alone of up to 16 MiB, is counted when it is over.
    pub done: u64,
    /// All of them. `None`: a receive that has met no message yet.
    pub total: Option<u64>,
}

impl fmt::Display for Transferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.total {
            Some(total) => write!(f, "{} of {total} bytes", self.done),
            None => f.write_str("not matched"),
        }
    }
}

impl<T: Completion> Op<T> {
    /// Tells how far the operation is, while that is awaited or not: puts, gets, messages and copies have bytes that are counted.
    ///
    /// ```
    /// # async fn run() -> wharf::Result<()> {
    /// # use std::time::Duration;
    /// # use futures::StreamExt;
    /// # let worker = wharf::Worker::new(&wharf::Context::builder().transports("self")?.build()?)?;
    /// let copy = worker.copy(vec![7; 1 << 20], vec![0; 1 << 20]).post();
    /// let mut bar = copy.progress().every(Duration::from_millis(100));
    /// let draw = async {
    ///     while let Some(transferred) = bar.next().await {
    ///         println!("{transferred}");
    ///     }
    /// };
    /// let (copied, ()) = tokio::join!(copy, draw);
    /// # copied?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    #[must_use]
    #[doc(alias("ucp_request_query", "progress bar"))]
    pub fn progress(&self) -> OpProgress {
        let place = self.place();
        OpProgress(place.map(|(handle, key, _)| (handle.clone(), key)))
    }
}

/// Tells how far an operation is; made by [`Op::progress`]. It holds nothing of it, and keeps its worker.
#[derive(Clone)]
pub struct OpProgress(Option<(Arc<Handle>, OpKey)>);

impl OpProgress {
    /// How far it is now: a look at what is counted anyhow. `None`: the operation is over, as its future says, or has no bytes.
    #[must_use]
    pub fn now(&self) -> Option<Transferred> {
        let (handle, key) = self.0.as_ref()?;
        let moved = handle.shared.ask(|engine| engine.core.moved(*key));
        let (done, total) = moved.flatten()?;
        Some(Transferred {
            done: done as u64,
            total: total.map(|total| total as u64),
        })
    }

    /// How far it is, at once and then as often as this, where that has changed; ends when the operation is over. Runs by the clock of the worker's runtime.
    #[must_use = "streams do nothing unless polled"]
    pub fn every(self, pause: Duration) -> ProgressStream {
        ProgressStream {
            progress: self,
            pause: pause.max(LEAST),
            timer: None,
            last: None,
        }
    }
}

/// Between two looks of a stream.
const LEAST: Duration = Duration::from_millis(1);

impl fmt::Debug for OpProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpProgress").field(&self.now()).finish()
    }
}

/// How far an operation is, again and again; made by [`OpProgress::every`].
///
/// # Cancel safety
/// Cancel safe: what is not taken is not lost, since the next look tells all of it.
#[must_use = "streams do nothing unless polled"]
#[derive(Debug)]
pub struct ProgressStream {
    progress: OpProgress,
    pause: Duration,
    timer: Option<Interval>,
    last: Option<Transferred>,
}

impl Stream for ProgressStream {
    type Item = Transferred;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Transferred>> {
        let this = &mut *self;
        let Some((handle, _)) = &this.progress.0 else {
            return Poll::Ready(None);
        };
        let pause = this.pause;
        loop {
            let timer = &mut this.timer;
            let look = handle.shared.while_it_runs(&[Driver::Timers], || {
                if let Some(timer) = timer {
                    return timer.poll_tick(cx).map(drop);
                }
                let _within = handle.shared.runtime.enter();
                let first = Instant::now() + pause;
                let timer = timer.insert(tokio::time::interval_at(first, pause));
                timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
                Poll::Ready(())
            });
            // All operations of a worker that was stopped have ended.
            let Some(look) = look else {
                return Poll::Ready(None);
            };
            ready!(look);
            match this.progress.now() {
                None => return Poll::Ready(None),
                now if now == this.last => {}
                now => {
                    this.last = now;
                    return Poll::Ready(now);
                }
            }
        }
    }
}
