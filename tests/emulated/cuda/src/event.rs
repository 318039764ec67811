//! Events: a place in a stream. Those for other processes share two words in a memory file.

use std::{sync::Arc, sync::OnceLock, time::Instant};

use parking_lot::Mutex;
use wharf_emulated_common::{backing::Backing, pace::Looks};

use crate::{
    abi::{Outcome, Status},
    stream::{Op, Stream},
};

/// `CUevent_flags`.
pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    /// Number of its context.
    pub(crate) context: u64,
    /// As it was made.
    pub(crate) flags: u32,
    /// The last place where it was recorded.
    pub(crate) mark: Mutex<Option<Arc<Mark>>>,
    /// For an event of several processes: word 0 is the last recording that passed, word 1 the last that was queued.
    pub(crate) shared: Option<Arc<Backing>>,
}

/// A recording.
#[derive(Debug)]
pub(crate) struct Mark {
    stream: Arc<Stream>,
    place: OnceLock<u64>,
    passed: OnceLock<Instant>,
}

impl Mark {
    /// Notes the time.
    pub(crate) fn pass(&self) {
        let _ = self.passed.set(Instant::now());
    }

    /// Whether its stream came past it.
    fn is_passed(&self) -> bool {
        self.place
            .get()
            .is_some_and(|place| self.stream.reached(*place))
    }
}

impl Event {
    /// Records it in `stream`.
    pub(crate) fn record(&self, stream: &Arc<Stream>) -> Outcome {
        if stream.context.id != self.context {
            return Err(Status::INVALID_HANDLE);
        }
        let mark = Arc::new(Mark {
            stream: Arc::clone(stream),
            place: OnceLock::new(),
            passed: OnceLock::new(),
        });
        let mut place = stream.push(Op::Mark(Arc::clone(&mark)))?;
        if let Some(words) = &self.shared {
            let number = word(words, 8)? + 1;
            words
                .write(8, &number.to_le_bytes())
                .map_err(|_| Status::OPERATING_SYSTEM)?;
            place = stream.push(Op::Share(Arc::clone(words), number))?;
        }
        let _ = mark.place.set(place);
        *self.mark.lock() = Some(mark);
        Ok(())
    }

    /// Whether what was recorded has passed; one that was never recorded has.
    pub(crate) fn is_done(&self) -> Outcome<bool> {
        let mark = self.mark.lock().clone();
        if let Some(mark) = mark {
            mark.stream.context.check()?;
            return Ok(mark.is_passed());
        }
        match &self.shared {
            Some(words) => Ok(word(words, 0)? >= word(words, 8)?),
            None => Ok(true),
        }
    }

    /// Waits until it has.
    pub(crate) fn wait(&self) -> Outcome {
        let mark = self.mark.lock().clone();
        if let Some(mark) = mark {
            return mark.stream.wait(mark.place.get().copied().unwrap_or(0));
        }
        let mut looks = Looks::new();
        while !self.is_done()? {
            looks.pause();
        }
        Ok(())
    }

    /// Makes `stream` wait for it.
    pub(crate) fn hold_up(&self, stream: &Arc<Stream>) -> Outcome {
        let mark = self.mark.lock().clone();
        if let Some(mark) = mark {
            let place = mark.place.get().copied().unwrap_or(0);
            if !mark.is_passed() && mark.stream.id != stream.id {
                stream.push(Op::After(Arc::clone(&mark.stream), place))?;
            }
            return Ok(());
        }
        if let Some(words) = &self.shared {
            let number = word(words, 8)?;
            stream.push(Op::AfterShared(Arc::clone(words), number))?;
        }
        Ok(())
    }

    /// Milliseconds from `self` to `end`.
    pub(crate) fn until(&self, end: &Self) -> Outcome<f32> {
        if (self.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(Status::INVALID_HANDLE);
        }
        let first = self.mark.lock().clone().ok_or(Status::INVALID_HANDLE)?;
        let last = end.mark.lock().clone().ok_or(Status::INVALID_HANDLE)?;
        if !first.is_passed() || !last.is_passed() {
            return Err(Status::NOT_READY);
        }
        let (Some(first), Some(last)) = (first.passed.get(), last.passed.get()) else {
            return Err(Status::NOT_READY);
        };
        Ok(match last.checked_duration_since(*first) {
            Some(time) => time.as_secs_f32() * 1e3,
            None => -first.duration_since(*last).as_secs_f32() * 1e3,
        })
    }
}

fn word(words: &Backing, offset: u64) -> Outcome<u64> {
    let mut bytes = [0; 8];
    words
        .read(offset, &mut bytes)
        .map_err(|_| Status::OPERATING_SYSTEM)?;
    Ok(u64::from_le_bytes(bytes))
}
