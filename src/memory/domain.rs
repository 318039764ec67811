//! Memory domains: who knows, allocates, advises and exports memory of which types (UCX's memory domains).
//!
//! A transport that meets memory which it does not know asks the context, which asks the domains; the answer has the same form whoever gives
//! it. No transport names another's device.
//!
//! # Safety
//! [`DomainMemory`] is unsafe to implement because buffers make slices of what it says the host can reach.
#![allow(unsafe_code)]

use std::{any::Any, fmt, os::fd::OwnedFd, sync::Arc};

use super::{AddressRange, Cause, host::segment_at, invalidate};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    sys::{pages, udmabuf::DEVICE},
    types::{
        MemoryType,
        text::{flags, words},
    },
};

bitflags::bitflags! {
    /// What a [`MemoryDomain`] can do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DomainCapabilities: u32 {
        /// Say whose memory is at an address: [`MemoryDomain::detect`].
        const DETECT = 1;
        /// Allocate: [`MemoryDomain::allocate`].
        const ALLOCATE = 1 << 1;
        /// Register memory that it did not allocate; there is a [`Registrar`](super::Registrar) for it.
        const REGISTER = 1 << 2;
        /// Take advice on memory: [`MemoryDomain::advise`].
        const ADVISE = 1 << 3;
        /// Hand memory to other devices as a dma-buf: [`MemoryDomain::export`].
        const EXPORT = 1 << 4;
    }
}

flags! {
    DomainCapabilities, "capability":
    DETECT = "detect",
    ALLOCATE = "allocate",
    REGISTER = "register",
    ADVISE = "advise",
    EXPORT = "export",
}

/// What a [`MemoryDomain`] can do, and with which memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "uct_md_attr_t")]
pub struct DomainAttributes {
    /// What it can do.
    pub capabilities: DomainCapabilities,
    /// The types of memory that it detects, allocates and exports.
    pub memory_types: Vec<MemoryType>,
}

impl DomainAttributes {
    /// These capabilities, with memory of these types.
    #[must_use]
    pub fn new(capabilities: DomainCapabilities, memory_types: impl Into<Vec<MemoryType>>) -> Self {
        Self {
            capabilities,
            memory_types: memory_types.into(),
        }
    }

    /// Whether it can do this with memory of this type.
    #[must_use]
    pub fn can(&self, capability: DomainCapabilities, memory_type: MemoryType) -> bool {
        self.capabilities.contains(capability) && self.memory_types.contains(&memory_type)
    }
}

/// What is known of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "ucp_mem_attr_t")]
pub struct MemoryAttributes {
    /// Its type, with the device.
    pub memory_type: MemoryType,
    /// The allocation that the address lies in, from end to end; of host memory only what was asked about.
    pub allocation: AddressRange,
    /// A number that the driver gave the allocation and gives to no other (CUDA's buffer id); 0 without.
    pub id: u64,
    /// Whether its domain can export it as a dma-buf.
    pub dma_buf: bool,
}

impl MemoryAttributes {
    /// Memory of this type, without an id, not to be exported.
    #[must_use]
    pub const fn new(memory_type: MemoryType, allocation: AddressRange) -> Self {
        Self {
            memory_type,
            allocation,
            id: 0,
            dma_buf: false,
        }
    }

    /// With the driver's number of the allocation.
    #[must_use]
    pub const fn id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }

    /// With whether it can be exported as a dma-buf.
    #[must_use]
    pub const fn dma_buf(mut self, yes: bool) -> Self {
        self.dma_buf = yes;
        self
    }
}

/// What a program intends with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "ucp_mem_advice_t")]
#[doc(alias("ucp_mem_advise_params_t", "UCP_MADV_NORMAL", "UCP_MADV_WILLNEED"))]
pub enum Advice {
    /// Nothing special.
    Normal,
    /// It is used soon.
    WillNeed,
}

words! { Advice, "advice": Normal = "normal", WillNeed = "will-need" }

/// Device memory as other devices' drivers take it.
#[derive(Debug)]
pub struct DmaBuf {
    /// The dma-buf.
    pub fd: OwnedFd,
    /// Where the asked range begins in it, in bytes.
    pub offset: u64,
    /// Whether the device that has the memory sees, in work that begins later, what another device has written and said so. Else that takes
    /// [`MemoryDomain::flush`], or a read of the same bytes by the device that wrote them.
    pub ordered: bool,
}

/// Memory that a domain allocated. Freed when dropped.
///
/// # Safety
/// [`range`](Self::range) and [`memory_type`](Self::memory_type) always say the same. When the type
/// [is host accessible](MemoryType::is_host_accessible), the bytes of the range are initialised, readable and writable until the value is
/// dropped, nothing else in the process makes references into them, and there are at most `isize::MAX`.
pub unsafe trait DomainMemory: Any + Send + Sync + fmt::Debug {
    /// Where it is. Of device memory, addresses of the device.
    fn range(&self) -> AddressRange;

    /// Its type.
    fn memory_type(&self) -> MemoryType;

    /// The driver's number of the allocation; 0 without.
    fn id(&self) -> u64 {
        0
    }

    /// Whether its domain can export it, where the domain exports memory of its type at all.
    fn exports(&self) -> bool {
        true
    }

    /// The allocation that it is in, where registrations of all of that may be kept: the caches hear of its end, or [`id`](Self::id) tells it from
    /// what is there later.
    fn whole(&self) -> Option<AddressRange> {
        Some(self.range())
    }
}

/// An expert for some types of memory.
///
/// Every method may call a driver: wharf calls them without a lock of its own, from threads that may block. A context asks its domains in the
/// order in which they were given to it.
#[doc(alias = "uct_md_h")]
pub trait MemoryDomain: Send + Sync + fmt::Debug {
    /// Its name in errors and logs.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn attributes(&self) -> DomainAttributes;

    /// Whether its driver is in use in this process, so that there can be memory of its types; it is asked nothing before. One that becomes so
    /// after its context was built says so by [`announce_device_runtime`](super::announce_device_runtime), right before the first memory of its
    /// types can exist.
    fn is_loaded(&self) -> bool {
        true
    }

    /// Whose the memory of `range` is; `None`: not this domain's. An answer holds for the part of `range` within the allocation.
    ///
    /// # Errors
    /// What the driver said. The memory stays unknown then.
    fn detect(&self, range: AddressRange) -> Result<Option<MemoryAttributes>> {
        let _ = range;
        Ok(None)
    }

    /// Whether an answer that [`detect`](Self::detect) gave for an allocation around `range` still holds: nobody tells when the program frees memory by its
    /// own calls. Or whether what the program said of it may. Asked of what is remembered, each time that memory of the program's becomes a [`Buffer`](crate::Buffer). `false` where that takes
    /// as long as to detect it anew.
    fn is_current(&self, range: AddressRange, known: &MemoryAttributes) -> bool {
        let _ = (range, known);
        false
    }

    /// Whether network devices may be given its devices' memory by the address, without a dma-buf: `None`: never, as other memory of the process may have
    /// that address; else whether the kernel is known to take such addresses, as it does where a module of the vendor's is loaded.
    fn by_address(&self) -> Option<bool> {
        None
    }

    /// Where on the PCI bus the device is whose memory has this type, as in `0000:17:00.0`: what is near it moves the memory. `None`: nobody knows.
    fn place(&self, memory_type: MemoryType) -> Option<String> {
        let _ = memory_type;
        None
    }

    /// Allocates `length` bytes, more than 0.
    ///
    /// # Errors
    /// `Unsupported` for another domain's types, `Exhausted`, and what the driver said.
    fn allocate(&self, memory_type: MemoryType, length: usize) -> Result<Box<dyn DomainMemory>> {
        let _ = length;
        Err(cannot(
            self.name(),
            format_args!("allocate memory of type {memory_type}"),
        ))
    }

    /// Tells what the program intends.
    ///
    /// # Errors
    /// `Unsupported`, and what the driver said.
    fn advise(&self, range: AddressRange, advice: Advice) -> Result<()> {
        let _ = range;
        Err(cannot(
            self.name(),
            format_args!("take the advice {advice:?}"),
        ))
    }

    /// A dma-buf that holds the bytes of `range`, which is within one allocation.
    ///
    /// # Errors
    /// `Unsupported`, and what the driver said.
    fn export(&self, range: AddressRange) -> Result<DmaBuf> {
        Err(cannot(self.name(), format_args!("export {range}")))
    }

    /// What other devices have written into the memory of `range`, and said so, is seen by work of its device that begins later; where
    /// [`DmaBuf::ordered`] does not say that it is anyway.
    ///
    /// # Errors
    /// `Unsupported`: its driver has no such call; and what the driver said.
    fn flush(&self, range: AddressRange) -> Result<()> {
        Err(cannot(
            self.name(),
            format_args!("flush what other devices wrote into {range}"),
        ))
    }
}

#[cold]
fn cannot(domain: &str, what: fmt::Arguments<'_>) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("the memory domain {domain} cannot {what}"),
    )
    .during(Operation::Memory)
}

/// Memory whose end the caches hear of.
#[derive(Debug)]
struct Announced(Box<dyn DomainMemory>);

impl Drop for Announced {
    fn drop(&mut self) {
        invalidate(self.0.range(), Cause::Freed);
    }
}

// SAFETY: all of it is what the memory within says.
unsafe impl DomainMemory for Announced {
    fn range(&self) -> AddressRange {
        self.0.range()
    }

    fn memory_type(&self) -> MemoryType {
        self.0.memory_type()
    }

    fn id(&self) -> u64 {
        self.0.id()
    }

    fn exports(&self) -> bool {
        self.0.exports()
    }

    fn whole(&self) -> Option<AddressRange> {
        self.0.whole()
    }
}

/// Allocates by the first of `domains` that can. Before the memory is freed the caches hear of it.
/// Errors: `Unsupported` when none can; what the domain said.
pub(crate) fn allocate(
    domains: &[Arc<dyn MemoryDomain>],
    memory_type: MemoryType,
    length: usize,
) -> Result<Box<dyn DomainMemory>> {
    let able = domains.iter().find(|domain| {
        domain
            .attributes()
            .can(DomainCapabilities::ALLOCATE, memory_type)
    });
    let Some(domain) = able else {
        let text = format!("no memory domain allocates memory of type {memory_type}");
        return Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory));
    };
    let memory = domain.allocate(memory_type, length)?;
    if memory.memory_type() != memory_type || memory.range().len() < length as u64 {
        let text = format!(
            "the memory domain {} gave {} at {} for {length} bytes of type {memory_type}",
            domain.name(),
            memory.memory_type(),
            memory.range()
        );
        return Err(Error::new(ErrorKind::Io, text).during(Operation::Memory));
    }
    Ok(announced(memory))
}

/// The same memory. Before it is freed the caches hear of it.
pub(crate) fn announced(memory: Box<dyn DomainMemory>) -> Box<dyn DomainMemory> {
    Box::new(Announced(memory))
}

/// Host memory. It detects nothing: what no other domain knows is the host's.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostDomain;

impl MemoryDomain for HostDomain {
    fn name(&self) -> &'static str {
        "host"
    }

    fn attributes(&self) -> DomainAttributes {
        let capabilities =
            DomainCapabilities::ALLOCATE | DomainCapabilities::ADVISE | DomainCapabilities::EXPORT;
        DomainAttributes::new(capabilities, [MemoryType::Host])
    }

    fn allocate(&self, memory_type: MemoryType, length: usize) -> Result<Box<dyn DomainMemory>> {
        if memory_type != MemoryType::Host {
            return Err(cannot(
                self.name(),
                format_args!("allocate memory of type {memory_type}"),
            ));
        }
        let memory = pages::Anonymous::new(length)
            .map_err(|error| Error::io(format!("allocating {length} bytes"), error))?;
        Ok(Box::new(HostMemory(memory)))
    }

    fn advise(&self, range: AddressRange, advice: Advice) -> Result<()> {
        let range = range.align_to(pages::page_size() as u64)?;
        let advice = match advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::WillNeed => libc::MADV_WILLNEED,
        };
        pages::advise(range.start(), range.len(), advice).map_err(|error| {
            let kind = match error.raw_os_error() {
                Some(libc::ENOMEM) => ErrorKind::InvalidArgument,
                _ => ErrorKind::Io,
            };
            Error::new(kind, format!("advice on {range}"))
                .with_source(error)
                .during(Operation::Memory)
        })
    }

    /// What [`Context::allocate`](crate::Context::allocate) and [`HostBufferMut`](super::HostBufferMut) have, where the kernel has `/dev/udmabuf`: the same pages, kept by whoever has the
    /// dma-buf. It holds whole pages. Network devices need none for the host's memory; other drivers take it, where they import those of strangers.
    fn export(&self, range: AddressRange) -> Result<DmaBuf> {
        let segment = segment_at(range).filter(|_| !range.is_empty()).ok_or_else(|| {
            let text = format!("{range} is in no memory of Context::allocate, and of the host's nothing else is exported as a dma-buf");
            Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
        })?;
        let pages = range.align_to(pages::page_size() as u64)?;
        let fd = segment
            .export(pages)
            .map_err(|error| not_exported(range, error))?;
        Ok(DmaBuf {
            fd,
            offset: range.start() - pages.start(),
            // Caches of the host are the bus's matter, and a driver that takes it says by `DMA_BUF_IOCTL_SYNC` where they are not.
            ordered: true,
        })
    }
}

#[cold]
fn not_exported(range: AddressRange, error: std::io::Error) -> Error {
    let (kind, text) = match error.kind() {
        std::io::ErrorKind::NotFound => (
            ErrorKind::Unsupported,
            format!(
                "the host's memory is exported by {DEVICE}, which is not here (load the kernel's module udmabuf, CONFIG_UDMABUF)"
            ),
        ),
        std::io::ErrorKind::PermissionDenied => (
            ErrorKind::PermissionDenied,
            format!("{DEVICE} is not this user's"),
        ),
        std::io::ErrorKind::InvalidInput => (
            ErrorKind::InvalidArgument,
            format!(
                "the kernel exports no such memory as {range}: it has a limit for each (/sys/module/udmabuf/parameters/size_limit_mb)"
            ),
        ),
        std::io::ErrorKind::Unsupported => (
            ErrorKind::Unsupported,
            format!("{range} is lent to a peer, or was"),
        ),
        _ => (ErrorKind::Io, format!("exporting {range}")),
    };
    Error::new(kind, text)
        .with_source(error)
        .during(Operation::Memory)
}

/// Pages of the host.
#[derive(Debug)]
struct HostMemory(pages::Anonymous);

// SAFETY: a private mapping of its own, zeroed, which stays mapped until it is dropped and is at most `isize::MAX` long, as the kernel has it.
unsafe impl DomainMemory for HostMemory {
    fn range(&self) -> AddressRange {
        AddressRange::of_mapping(self.0.as_ptr(), self.0.len())
    }

    fn memory_type(&self) -> MemoryType {
        MemoryType::Host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_zeroed_and_takes_advice() {
        let memory = HostDomain
            .allocate(MemoryType::Host, 10_000)
            .expect("memory");
        let range = memory.range();
        assert_eq!(range.len(), 10_000);
        for advice in [Advice::Normal, Advice::WillNeed] {
            HostDomain.advise(range, advice).expect("advice");
        }
        drop(memory);
        let cuda = HostDomain.allocate(MemoryType::Cuda(0), 8).unwrap_err();
        assert_eq!(cuda.kind(), ErrorKind::Unsupported);
        assert!(HostDomain.allocate(MemoryType::Host, usize::MAX).is_err());
        // The kernel maps nothing there by itself, nor does a sanitizer.
        let nowhere = AddressRange::new(0x57c0_0000_0000, 4096).expect("a range");
        assert_eq!(
            HostDomain
                .advise(nowhere, Advice::WillNeed)
                .unwrap_err()
                .kind(),
            ErrorKind::InvalidArgument
        );
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        #[derive(Debug)]
        struct Mute;
        impl MemoryDomain for Mute {
            fn name(&self) -> &'static str {
                "mute"
            }
            fn attributes(&self) -> DomainAttributes {
                DomainAttributes::default()
            }
        }
        let range = AddressRange::new(4096, 4096).expect("a range");
        assert_eq!(Mute.detect(range).expect("no error"), None);
        for error in [
            Mute.allocate(MemoryType::Host, 1).map(drop).unwrap_err(),
            Mute.advise(range, Advice::Normal).unwrap_err(),
            Mute.export(range).map(drop).unwrap_err(),
            Mute.flush(range).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }
}
