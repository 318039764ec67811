//! What a vendor gives for the engine that all of them have: its devices, each with its queues, and how a place in the program's work is fixed.
//!
//! ```text
//! Engine<V> ─ opens on a thread of its own ─▶ V::open() ─▶ V::Home     one device as one engine uses it
//!     │  push, flush ─────────────────────────────────────────▶ │
//!     │ ◀──────────────────────────── collect: reports ──────── │ ◀── words in memory that the device, or a thread, writes
//!     └─ arm: ask ────────────────────────────────────────────▶ │ ──▶ Bell
//! ```

use std::{collections::VecDeque, fmt, sync::Arc, time::Instant};

use super::{Bell, CopyAttributes, DevicePlace, DeviceStream, Stop, inline::InlineCopy};
use crate::{
    error::{Error, ErrorKind, Result},
    types::MemoryType,
};

/// What an engine has to tell: a token, and how it went.
pub(in crate::transport) type Reports = VecDeque<(u64, Result<()>)>;

/// Between which memories a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Route {
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    ToHost,
    /// From a device to itself or another.
    Across,
}

/// A copy as a home takes it. Whoever submitted it vouches for both ends, until it is reported.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Queued {
    pub(in crate::transport) token: u64,
    /// As the device has it, or the host.
    pub(in crate::transport) to: u64,
    pub(in crate::transport) from: u64,
    pub(in crate::transport) length: usize,
    /// The device of `to`, where the copy is between two.
    pub(in crate::transport) other: Option<u16>,
    /// It fails where it would be staged.
    pub(in crate::transport) unstaged: bool,
    /// One end is host memory that is not pinned.
    pub(in crate::transport) pageable: bool,
}

/// How a home can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Asked {
    /// Something is done already.
    Done,
    /// The bell is rung.
    Rings,
    /// Nobody rings: look again soon.
    Silent,
}

/// Where memory of a type is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Owner {
    /// Of this device.
    Device(u16),
    /// Of any: the vendor moves it to where it is used.
    Any,
    /// The host's, in reach of all devices.
    Host,
}

/// See the module.
pub(in crate::transport) trait Vendor:
    Send + Sync + fmt::Debug + 'static
{
    /// The accelerator's name.
    const NAME: &'static str;
    /// What every engine can do.
    const ATTRIBUTES: CopyAttributes;
    /// A device as one engine uses it.
    type Home: Home<Mark = Self::Mark, Stream = Self::Stream>;
    /// A place in the program's work, fixed.
    type Mark: Send + fmt::Debug;
    /// A stream of the program's, checked.
    type Stream;

    /// Devices to be opened with the engine: those that somebody uses already. May take long.
    ///
    /// # Errors
    /// What the driver said.
    fn first(&self) -> Result<Vec<u16>>;

    /// What makes small copies by the processor, if anything does.
    fn inline(&self) -> Option<Box<dyn InlineCopy>> {
        None
    }

    /// The type of a device's memory.
    fn memory(device: u16) -> MemoryType;

    /// Where memory of this type is. `None`: not this vendor's.
    fn owner(&self, memory_type: MemoryType) -> Option<Owner>;

    /// Opens a device for one engine. May take long.
    ///
    /// # Errors
    /// What the driver said.
    fn open(&self, device: u16, bell: &Arc<Bell>) -> Result<Self::Home>;

    /// Whether a device that was lost was opened anew in this process since. A few locks; asked of lost devices alone.
    fn is_back(&self, device: u16) -> bool {
        let _ = device;
        false
    }

    /// Lets two devices reach each other's memory where they can. May take long.
    ///
    /// # Errors
    /// What the driver said: then copies between them go another way.
    fn join(&self, one: u16, other: u16) -> Result<()>;

    /// Fixes a place in the program's work. A few short calls.
    ///
    /// # Errors
    /// `InvalidArgument`: no such stream, or it is capturing a graph; what the driver said.
    fn mark(&self, place: DevicePlace) -> Result<Self::Mark>;

    /// A stream of the program's, and its device.
    ///
    /// # Errors
    /// As of [`Vendor::mark`].
    fn stream(&self, stream: DeviceStream) -> Result<(Self::Stream, u16)>;

    /// A device did not end its work in time: what it may still touch is never freed from now on.
    fn gave_up(&self);
}

/// A device as one engine uses it. Called with the worker's lock held: no call of the driver that takes long, and none at all by
/// [`collect`](Home::collect) and [`has_done`](Home::has_done) but loads of words, as long as only copies are under way.
pub(in crate::transport) trait Home:
    Send + fmt::Debug + Sized + 'static
{
    type Mark;
    type Stream;

    fn ordinal(&self) -> u16;

    /// Why it is lost, if it is.
    fn lost(&self) -> Option<&Error>;

    /// Whether nothing is under way.
    fn is_idle(&self) -> bool;

    /// Whether copies are under way, which touch memory: places that are waited for touch none.
    fn has_copies(&self) -> bool {
        !self.is_idle()
    }

    /// Whether [`Home::check`] is to be called now and then while something is under way: else whatever happens is told by the bell.
    fn needs_checks(&self) -> bool {
        true
    }

    /// Why a copy of this length to another device stops in host memory, if it does.
    fn stops(&self, other: u16, length: usize) -> Option<Stop> {
        let _ = (other, length);
        None
    }

    /// Copies that have stopped there so far, and their bytes.
    fn stopped(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Takes a copy, for [`Home::flush`].
    fn push(&mut self, route: Route, copy: Queued);

    /// Hands over what is queued. What the driver refuses is reported.
    fn flush(&mut self, reports: &mut Reports);

    /// Whether [`Home::flush`] has something to do that was found by [`Home::collect`].
    fn goes_on(&self) -> bool {
        false
    }

    /// Whether anything has completed that was not reported. It is not so any more after one [`collect`](Home::collect), and
    /// [`flush`](Home::flush) where it [goes on](Home::goes_on), unless something has come meanwhile: else the worker would never park.
    fn has_done(&self) -> bool;

    /// Reports what is done.
    fn collect(&mut self, reports: &mut Reports);

    /// Asks for a ring by the next completion.
    fn ask(&mut self, reports: &mut Reports) -> Asked;

    /// Asks the driver about work of which nothing is heard.
    fn check(&mut self, reports: &mut Reports);

    /// Whether [`Home::after`] can be called for this place.
    fn has_gate(&self, mark: &Self::Mark) -> bool;

    /// Whether [`Home::reached`] has an answer for a place.
    fn can_ask(&self, mark: &Self::Mark) -> bool {
        let _ = mark;
        false
    }

    /// Asks the driver whether a place was reached, for one that [has no gate](Home::has_gate). `None`: it cannot be asked.
    fn reached(&mut self, mark: &Self::Mark, reports: &mut Reports) -> Option<Result<bool>> {
        let _ = (mark, reports);
        None
    }

    /// Reports `token` when the place is reached.
    ///
    /// # Errors
    /// What the driver said; then nothing is told.
    fn after(&mut self, mark: &Self::Mark, token: u64, reports: &mut Reports) -> Result<()>;

    /// Whether a copy waits for something before its device has it.
    fn holds(&self, token: u64) -> bool {
        let _ = token;
        false
    }

    /// Makes a stream of the program's wait for what is under way here of these copies; see [`CopyEngine::then`](super::CopyEngine::then).
    ///
    /// # Errors
    /// `Unsupported`; what the driver said.
    fn then(&mut self, stream: &Self::Stream, tokens: &[u64]) -> Result<()> {
        let _ = (stream, tokens);
        let text = "its streams do not wait for copies";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// The device does not end its work: what is under way is reported, and nothing that the device may still touch is freed. Where that is
    /// [no copy](Home::has_copies), it is nothing but the home's own.
    fn give_up(&mut self, error: Error, reports: &mut Reports);

    /// Takes the device's things down. What the device may still touch stays for good. Blocks.
    fn close(self, deadline: Instant);
}
