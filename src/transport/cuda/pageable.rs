//! Ordinary host memory, registered with the driver through the registration cache.
//!
//! The driver registers no page twice, and tells of a registration by its address alone, also when other memory is mapped there by now. So all that is registered
//! here is noted in one table of the process: whoever wants a page of it waits until the older registration is undone, for a while, and has its bytes brought
//! another way if it is not. What the program itself has registered, all of it, is used as it is; it is told from what is registered here by the driver's number.
//!
//! # Safety
//! The cache hears when memory is unmapped, and gives such a registration to nobody; what a device does through it meets pages that are kept.
#![allow(unsafe_code)]

use std::{collections::BTreeMap, ptr::NonNull, time::Duration};

use super::words::is_end;
use crate::{
    driver::cuda::{CudaContext, DevicePtr, HostRegistration, PointerInfo, PointerKind},
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, Registrar, RegistrarAttributes},
    types::Access,
    util::lock::{Condvar, Mutex},
};

/// For how long one waits for an older registration to be undone. That takes some 50 µs, and 20 ms for a GiB.
const WAIT: Duration = Duration::from_millis(25);

/// What is registered here, by all engines of the process, and where.
static TABLE: Mutex<BTreeMap<u64, Own>> = Mutex::new(BTreeMap::new());
static UNDONE: Condvar = Condvar::new();

/// A registration made here.
struct Own {
    end: u64,
    /// The driver's number of it; `None` until it is known.
    id: Option<u64>,
}

/// The last of those that have bytes of this memory.
fn within(table: &BTreeMap<u64, Own>, range: AddressRange) -> Option<&Own> {
    let (_, own) = table.range(..range.end()).next_back()?;
    (own.end > range.start()).then_some(own)
}

/// Whether what the driver says of this memory is of a registration made here, for the length of its use alone: then it is nobody's pinned memory. An older
/// one may be there still where the program has pinned memory of its own by now, which has another number.
pub(super) fn is_own(range: AddressRange, info: &PointerInfo) -> bool {
    let table = TABLE.lock();
    within(&table, range).is_some_and(|own| own.id.is_none_or(|id| id == info.buffer_id))
}

/// Whether the program has registered all of it. About 1 µs.
pub(super) fn is_pinned(context: &CudaContext, range: AddressRange) -> bool {
    let Ok(info) = context.cuda().inspect(DevicePtr(range.start())) else {
        return false;
    };
    let whole = info
        .range
        .and_then(|(start, length)| AddressRange::new(start.0, length).ok());
    info.kind == PointerKind::HostPinned
        && whole.is_some_and(|whole| whole.contains(range))
        && !is_own(range, &info)
}

/// Registers host memory for all devices.
#[derive(Debug)]
pub(super) struct Pinner {
    context: CudaContext,
    /// In errors and logs.
    name: &'static str,
}

impl Pinner {
    /// By a context, for all of them.
    pub(super) fn new(context: &CudaContext, name: &'static str) -> Self {
        Self {
            context: context.clone(),
            name,
        }
    }

    /// # Errors
    /// What the driver said; `Exhausted`: a page of it is registered by the program.
    fn pin(&self, range: AddressRange) -> Result<HostRegistration> {
        let none = || Error::new(ErrorKind::InvalidArgument, format!("no memory at {range}"));
        let start = std::ptr::with_exposed_provenance_mut::<u8>(range.start() as usize);
        let start = NonNull::new(start).ok_or_else(none)?;
        let length = usize::try_from(range.len()).map_err(|_| none())?;
        let guard = self.context.enter()?;
        // SAFETY: whoever has it registered has it mapped now, and the cache hears when it no more is.
        let made = unsafe { guard.register_host(start, length, true) }?;
        match made.is_owned() {
            true => Ok(made),
            false => Err(taken(range)),
        }
    }

    /// The driver's number of what is there.
    fn number(&self, range: AddressRange) -> Option<u64> {
        let id = self.context.cuda().buffer_id(DevicePtr(range.start()));
        id.ok().map(Option::unwrap_or_default)
    }
}

impl Registrar for Pinner {
    type Handle = HostRegistration;

    fn name(&self) -> &'static str {
        self.name
    }

    /// Never in the thread that asks, which is a runtime's: every page is touched.
    fn attributes(&self) -> RegistrarAttributes {
        RegistrarAttributes::default().inline_max(0)
    }

    fn register(&self, range: AddressRange, _: Access) -> Result<HostRegistration> {
        let table = TABLE.lock();
        let mut table = UNDONE.wait_while(table, WAIT, |table| within(table, range).is_some());
        if within(&table, range).is_some() {
            return Err(taken(range));
        }
        let own = Own {
            end: range.end(),
            id: None,
        };
        table.insert(range.start(), own);
        drop(table);
        let made = self.pin(range);
        if made.is_err() {
            forget(range);
            return made;
        }
        let id = self.number(range);
        if let Some(own) = TABLE.lock().get_mut(&range.start()) {
            own.id = id;
        }
        made
    }

    fn deregister(&self, registration: HostRegistration, range: AddressRange) -> Result<()> {
        match registration.unregister() {
            // The driver has it still: nobody else is to meet it.
            Err(error) if !is_end(&error) => return Err(error),
            // A context that is gone has no registrations.
            Err(_) | Ok(()) => forget(range),
        }
        Ok(())
    }
}

fn forget(range: AddressRange) {
    TABLE.lock().remove(&range.start());
    UNDONE.notify_all();
}

#[cold]
fn taken(range: AddressRange) -> Error {
    let text = format!("a page at {range} is registered for other memory");
    Error::new(ErrorKind::Exhausted, text)
}
