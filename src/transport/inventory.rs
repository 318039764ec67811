//! What a transport has on this machine: its devices and their place, for people and for programs that choose by them.

use crate::types::MemoryType;

/// A device of a transport or an accelerator: a network interface, a port of an RDMA device, an accelerator's card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "uct_tl_resource_desc_t")]
pub struct DeviceInfo {
    /// Its name, as configuration has it where it can be chosen (`eth0`, `mlx5_0:1`), else what it calls itself.
    pub name: String,
    /// The type of its memory, of an accelerator's.
    pub memory_type: Option<MemoryType>,
    /// Its place on the PCI bus, as in `0000:17:00.0`.
    pub pci: Option<String>,
    /// The NUMA node that it is near; `None` where the system does not say.
    pub numa_node: Option<u32>,
    /// What else there is to say: what it is, and how much.
    pub details: Vec<(&'static str, String)>,
    /// Why it is not used, where it is not.
    pub unused: Option<String>,
}

impl DeviceInfo {
    /// A device of this name, of which nothing else is known yet.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// At this place of the PCI bus, with the NUMA node that the system says.
    pub(crate) fn at(mut self, pci: String) -> Self {
        self.numa_node = crate::sys::topology::node_of_pci(&pci);
        self.pci = Some(pci);
        self
    }

    /// The place that the system has for a device of this name and class (`net`, `infiniband`).
    pub(crate) fn of_class(mut self, class: &str, name: &str) -> Self {
        let (pci, node) = crate::sys::topology::place(class, name);
        self.pci = pci;
        self.numa_node = node;
        self
    }

    pub(crate) fn detail(mut self, name: &'static str, value: impl ToString) -> Self {
        self.details.push((name, value.to_string()));
        self
    }
}
