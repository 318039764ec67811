//! Memory of a peer, as a program has it from the descriptor.

use std::{fmt, ops::RangeBounds, sync::Arc};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{Region, region::denied},
    protocol::{
        Descriptor,
        descriptor::{RegionKey, ShmRoute},
    },
    sys::identity::identity,
    types::{Access, DeviceKey},
    util::slicing::within,
    worker::rma::{Near, Target},
};

use super::handle::{Endpoint, alive};

/// Memory of a peer, as imported from its descriptor, or a part of it.
///
/// A cheap clone. Bounds and rights are checked before anything moves; the owner checks them again, and that the memory is still exposed.
#[derive(Clone)]
#[doc(alias = "ucp_rkey_h")]
#[doc(alias("ucp_rkey_destroy", "ucp_rkey_compare", "ucp_rkey_compare_params_t"))]
pub struct RemoteRegion {
    imported: Arc<Imported>,
    /// Where it begins in what was imported, and how long it is.
    offset: u64,
    length: usize,
}

/// What a descriptor says, checked.
struct Imported {
    endpoint: Endpoint,
    access: Access,
    target: Target,
    /// The same, if it may be mapped here.
    near: Option<Near>,
    /// Keys by which network devices reach it.
    route: Option<Arc<[DeviceKey]>>,
}

impl RemoteRegion {
    pub(crate) fn import(endpoint: &Endpoint, descriptor: &Descriptor) -> Result<Self> {
        endpoint.shared().admits(Operation::Memory)?;
        let owner = endpoint.identity()?;
        let named = descriptor.identity();
        if (owner.boot, owner.pid, owner.pid_namespace)
            != (named.boot, named.pid, named.pid_namespace)
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the descriptor is of another process than this endpoint leads to",
            )
            .during(Operation::Memory));
        }
        let key = descriptor.key();
        let route = descriptor.shm();
        let on_device = !descriptor.memory_type().is_host_accessible();
        if !on_device {
            let (link, _) = endpoint.place();
            let segment = route.map_or(0, |route| route.segment);
            endpoint.shared().begin(Operation::Memory, |engine| {
                let core = &mut engine.core;
                core.movers
                    .ctx
                    .show_key(link, segment, key.slot, key.generation);
            })?;
        }
        let target = Target {
            slot: key.slot,
            generation: key.generation,
            address: descriptor.address(),
            offset: 0,
            segment: route.map_or(0, |route| route.segment),
            segment_offset: route.map_or(0, |route| route.offset),
            on_device,
            read_back: descriptor.is_read_back(),
        };
        let imported = Imported {
            endpoint: endpoint.clone(),
            access: descriptor.access(),
            target,
            near: Near::new(target),
            route: (!descriptor.devices().is_empty()).then(|| descriptor.devices().into()),
        };
        Ok(Self {
            imported: Arc::new(imported),
            offset: 0,
            length: usize::try_from(descriptor.len()).map_err(|_| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    "a region longer than this machine's addresses",
                )
                .during(Operation::Memory)
            })?,
        })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What the owner allows.
    #[must_use]
    pub fn access(&self) -> Access {
        self.imported.access
    }

    /// A part of it.
    ///
    /// # Panics
    /// When the range leaves the region, as with a slice.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let range = within(range, self.length);
        let mut part = self.clone();
        part.offset += range.start as u64;
        part.length = range.len();
        part
    }

    /// Where it begins, in the owner's process.
    pub(crate) fn address(&self) -> u64 {
        self.imported.target.address.wrapping_add(self.offset)
    }

    #[inline]
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.imported.endpoint
    }

    /// Gives `act` the address at which the first `length` bytes are mapped here, for the time of the call, when they are and lie aligned to 8;
    /// `None` when not. What it does there is seen by the owner at once.
    pub(crate) fn within_mapping<R>(
        &self,
        length: usize,
        act: impl FnOnce(*mut u8) -> R,
    ) -> Option<Result<R>> {
        let endpoint = self.endpoint();
        if let Err(error) = self.check(endpoint, length, Access::WRITE, Operation::Put) {
            return Some(Err(error));
        }
        let (link, _) = endpoint.place();
        let begun = endpoint.shared().begin(Operation::Put, |engine| {
            match alive(engine, endpoint, Operation::Put) {
                Ok(()) => engine
                    .ctx()
                    .within_mapping(link, &self.target(), length, act),
                Err(error) => Some(Err(error)),
            }
        });
        match begun {
            Ok((result, _)) => result,
            Err(error) => Some(Err(error)),
        }
    }

    /// Whether it lies, at the address of its owner, in the same process and overlaps these bytes.
    pub(crate) fn overlaps(&self, address: u64, length: usize) -> bool {
        let start = self.address();
        self.endpoint().is_own()
            && start < address.saturating_add(length as u64)
            && address < start.saturating_add(self.length as u64)
    }

    #[inline]
    pub(super) fn target(&self) -> Target {
        Target {
            offset: self.offset,
            ..self.imported.target
        }
    }

    /// Keys by which network devices reach it.
    #[inline]
    pub(super) fn route(&self) -> Option<&Arc<[DeviceKey]>> {
        self.imported.route.as_ref()
    }

    /// Whether its owner's processor cannot reach it either.
    #[inline]
    pub(super) fn is_on_device(&self) -> bool {
        self.imported.target.on_device
    }

    /// Where so many bytes of it are, from its beginning on, if an operation over this endpoint may have them and they may be mapped here: of what was
    /// imported, and how far into it. `None`: that is not so, and [`RemoteRegion::check`] says whether it is an error.
    #[inline(always)]
    pub(super) fn near(
        &self,
        endpoint: &Endpoint,
        length: usize,
        access: Access,
    ) -> Option<(&Near, u64)> {
        let imported = &*self.imported;
        let may = *endpoint == imported.endpoint
            && imported.access.contains(access)
            && length <= self.length;
        match &imported.near {
            Some(near) if may => Some((near, self.offset)),
            _ => None,
        }
    }

    /// Whether an operation over this endpoint may have so many bytes of it.
    #[inline]
    pub(crate) fn check(
        &self,
        endpoint: &Endpoint,
        length: usize,
        access: Access,
        operation: Operation,
    ) -> Result<()> {
        if self.is_of(endpoint) && self.access().contains(access) && length <= self.length {
            return Ok(());
        }
        Err(self.refusal(endpoint, length, access).during(operation))
    }

    #[inline]
    fn is_of(&self, endpoint: &Endpoint) -> bool {
        let of = self.endpoint();
        endpoint == of || endpoint.id() == of.id() && std::ptr::eq(endpoint.shared(), of.shared())
    }

    #[cold]
    fn refusal(&self, endpoint: &Endpoint, length: usize, access: Access) -> Error {
        if !self.is_of(endpoint) {
            Error::new(
                ErrorKind::InvalidArgument,
                "the remote region was imported on another endpoint",
            )
        } else if !self.access().contains(access) {
            denied()
        } else {
            Error::new(
                ErrorKind::OutOfBounds,
                format!("{length} bytes for {} bytes of remote memory", self.length),
            )
        }
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("len", &self.length)
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}

impl Region {
    /// What a peer needs to access the region, to be sent to it by any means.
    ///
    /// # Errors
    /// None in practice: the region's own range is always one that a descriptor can hold.
    #[doc(alias = "ucp_rkey_pack")]
    pub fn descriptor(&self) -> Result<Descriptor> {
        let exposed = self.exposed();
        let shm = exposed.segment.as_ref().map(|(segment, offset)| ShmRoute {
            segment: segment.id(),
            offset: *offset as u64,
            segment_length: segment.mapping().len() as u64,
        });
        let key = RegionKey {
            slot: exposed.slot,
            generation: exposed.generation,
        };
        let length = exposed.length as u64;
        let address = match exposed.device {
            Some((_, address)) => address,
            None => exposed.address as u64,
        };
        let descriptor = Descriptor::new(
            identity().clone(),
            exposed.memory_type(),
            exposed.access,
            address,
            length,
            key,
            shm,
        )?;
        let (keys, read_back) = self.device_keys();
        Ok(descriptor.with_devices(&keys, read_back))
    }
}

impl Endpoint {
    /// Makes exposed memory of this endpoint's peer accessible.
    ///
    /// # Errors
    /// `InvalidArgument` when it is another process's.
    #[doc(alias = "ucp_ep_rkey_unpack")]
    pub fn import(&self, descriptor: &Descriptor) -> Result<RemoteRegion> {
        RemoteRegion::import(self, descriptor)
    }
}
