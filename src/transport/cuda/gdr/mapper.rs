//! Making and unmaking windows on a thread of its own: pinning takes 16 µs and more, unpinning may wait for the device.
//!
//! # Safety
//! Memory that is freed while it is being mapped gives a window onto nothing or onto other memory; its number tells, and it is not used.
#![allow(unsafe_code)]

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
        mpsc::{Sender, channel},
    },
    thread,
};

use super::windows::{Numbered, Pane, extent};
use crate::{
    driver::{
        cuda::{Cuda, DevicePtr, PointerKind},
        gdr::{DirectWindow, GdrSession, PAGE},
    },
    error::{Error, ErrorKind, Result},
    memory::AddressRange,
    util::lock::Mutex,
};

/// What came of a wish.
#[derive(Debug)]
pub(super) enum Made {
    Window(Numbered),
    /// None of this memory can be mapped.
    Refused {
        range: Option<AddressRange>,
        error: Error,
    },
}

/// Makes windows. Any thread.
#[derive(Debug)]
pub(super) struct Maker {
    cuda: &'static Cuda,
    /// Without, the driver's own mappings.
    session: Option<GdrSession>,
}

impl Maker {
    pub(super) fn new(cuda: &'static Cuda, session: Option<GdrSession>) -> Self {
        Self { cuda, session }
    }

    fn make(&self, at: DevicePtr) -> Made {
        // Until more is known, its page.
        let mut range = AddressRange::new(at.0 / PAGE * PAGE, PAGE).ok();
        match self.try_make(at, &mut range) {
            Ok(window) => Made::Window(window),
            Err(error) => Made::Refused { range, error },
        }
    }

    fn try_make(&self, at: DevicePtr, range: &mut Option<AddressRange>) -> Result<Numbered> {
        let info = self.cuda.inspect(at)?;
        let (PointerKind::Device, Some((start, len))) = (info.kind, info.range) else {
            return Err(refused("not memory of a kind that is mapped"));
        };
        let allocation = AddressRange::new(start.0, len)?;
        *range = Some(allocation);
        if info.buffer_id == 0 {
            return Err(refused("the driver does not number its memory"));
        }
        let (start, len) = extent(allocation, at);
        let pane = match &self.session {
            // SAFETY: of memory that is freed meanwhile the driver takes the pages away; it is not accessed, see above.
            Some(session) => Pane::Gdr(unsafe { session.map(start, len) }?),
            None => self.direct(info.device, start, len)?,
        };
        let id = info.buffer_id;
        if self.cuda.buffer_id(at)? != Some(id) {
            return Err(refused("it was freed meanwhile"));
        }
        Ok(Numbered { pane, id })
    }

    /// By the device's primary context: one that is not there is not made for this.
    fn direct(&self, device: Option<u16>, start: DevicePtr, len: usize) -> Result<Pane> {
        let ordinal = device.ok_or_else(|| refused("of no device"))?;
        let context = self.cuda.device(ordinal)?.active_context()?;
        let context =
            context.ok_or_else(|| refused("its device's primary context is not in use"))?;
        let guard = context.enter()?;
        DirectWindow::map(&guard, start, len).map(Pane::Direct)
    }
}

enum Wish {
    Map(DevicePtr),
    Retire(Numbered),
}

/// The thread's other end. There is one thread, from the first wish until the mapper is dropped; it drops what it was given before it ends.
#[derive(Debug)]
pub(super) struct Mapper {
    maker: Arc<Maker>,
    wishes: Option<Sender<Wish>>,
    slot: Arc<Slot>,
    /// Whether a window is being made, or was and was not taken.
    busy: bool,
}

#[derive(Debug, Default)]
struct Slot {
    done: AtomicBool,
    made: Mutex<Option<Made>>,
}

impl Mapper {
    pub(super) fn new(maker: Maker) -> Self {
        Self {
            maker: Arc::new(maker),
            wishes: None,
            slot: Arc::default(),
            busy: false,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Has a window made for an address. One at a time.
    pub(super) fn map(&mut self, at: DevicePtr) {
        self.busy = self.send(Wish::Map(at)).is_ok();
    }

    /// What was made, once.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Made> {
        if !self.busy || !self.slot.done.load(Acquire) {
            return None;
        }
        self.slot.done.store(false, Release);
        self.busy = false;
        self.slot.made.lock().take()
    }

    /// Undoes a window; here, where no thread can be had.
    pub(super) fn retire(&mut self, window: Numbered) {
        drop(self.send(Wish::Retire(window)));
    }

    /// Gives it back when there is no thread.
    fn send(&mut self, wish: Wish) -> Result<(), Option<Wish>> {
        if self.wishes.is_none() {
            self.wishes = self.start();
        }
        match &self.wishes {
            Some(wishes) => wishes.send(wish).map_err(|error| Some(error.0)),
            None => Err(Some(wish)),
        }
    }

    fn start(&self) -> Option<Sender<Wish>> {
        let (sender, wishes) = channel();
        let (maker, slot) = (Arc::clone(&self.maker), Arc::clone(&self.slot));
        let run = move || {
            for wish in wishes {
                match wish {
                    Wish::Map(at) => {
                        *slot.made.lock() = Some(maker.make(at));
                        slot.done.store(true, Release);
                    }
                    Wish::Retire(window) => drop(window),
                }
            }
        };
        thread::Builder::new()
            .name("wharf-gdr-map".to_owned())
            .spawn(run)
            .ok()
            .map(|_| sender)
    }
}

#[cold]
fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}
