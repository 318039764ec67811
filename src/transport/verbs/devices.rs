//! The devices of a context: which are used, under which number.

use std::{fmt, sync::Arc};

use super::{device::OpenDevice, domain::Domain, options::RcOptions};
use crate::{
    driver::verbs::Transport,
    error::{Error, ErrorKind, Result},
    transport::{DeviceInfo, accelerator::Reaper},
    util::lock::Mutex,
};

/// Destroys queue pairs and ends registrations where it may take its time.
pub(super) type SharedReaper = Arc<Reaper>;

/// This number, or the next that is not 0 and that no other device has.
fn unique(mut id: u64, others: &[Arc<OpenDevice>]) -> u64 {
    while id == 0 || others.iter().any(|other| other.id == id) {
        id = id.wrapping_add(1);
    }
    id
}

/// The devices of a context. Opened when they are first asked for, and kept.
pub(crate) struct Devices {
    pub(super) options: RcOptions,
    pub(super) reaper: SharedReaper,
    open: Mutex<Option<Arc<[Arc<OpenDevice>]>>>,
    memory: Mutex<Option<Arc<Domain>>>,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices")
            .field("options", &self.options)
            .field("open", &self.open.lock())
            .finish_non_exhaustive()
    }
}

impl Devices {
    pub(super) fn new(options: RcOptions) -> Self {
        Self {
            options,
            reaper: SharedReaper::default(),
            open: Mutex::default(),
            memory: Mutex::default(),
        }
    }

    /// The memory of the context, as these devices see it. May take milliseconds the first time.
    /// Errors: as [`Devices::open`], and what keeps a registration cache from being made.
    pub(crate) fn memory(&self) -> Result<Arc<Domain>> {
        let devices = self.open()?;
        let mut memory = self.memory.lock();
        if let Some(memory) = &*memory {
            return Ok(Arc::clone(memory));
        }
        let made = Arc::new(Domain::new(&devices, &self.options.memory)?);
        *memory = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Every device of the machine with the ports that are used, or why it is not. May take milliseconds.
    /// Errors: as of [`Devices::open`].
    pub(super) fn inventory(&self) -> Result<Vec<DeviceInfo>> {
        let open = self.open()?;
        let mut all = self.options.libraries.verbs()?.devices()?;
        all.sort_by_cached_key(|device| (device.name().len(), device.name().to_owned()));
        let mut found = Vec::new();
        for device in all {
            let name = device.name();
            let info = |name: String| DeviceInfo::new(name).of_class("infiniband", device.name());
            let used = open.iter().find(|open| open.name() == name);
            let Some(used) = used else {
                let why = if device.transport() != Transport::IB {
                    "it is neither InfiniBand nor RoCE".to_owned()
                } else if (1..=u8::MAX).any(|port| self.options.devices.allows(name, port)) {
                    match OpenDevice::open(&device, &self.options) {
                        Ok(_) => "it can be used since this context was built".to_owned(),
                        Err(error) => error.to_string(),
                    }
                } else {
                    "left out by the configuration".to_owned()
                };
                found.push(DeviceInfo {
                    unused: Some(why),
                    ..info(name.to_owned())
                });
                continue;
            };
            used.take_events();
            used.look_again(&self.options);
            found.extend(used.ports().iter().map(|port| {
                let on_demand = used.attributes.on_demand.supported;
                let address = match &port.gid {
                    Some(gid) => format!("{} as {} (index {})", gid.kind, gid.gid, gid.index),
                    None => format!("LID {}", port.lid),
                };
                let info = info(format!("{name}:{}", port.number))
                    .detail("link layer", port.link_layer)
                    .detail("address", address)
                    .detail("MTU", format_args!("{} bytes", port.mtu.bytes()))
                    .detail("pages on demand", if on_demand { "y" } else { "n" });
                let info = match used.attributes.firmware.as_str() {
                    "" => info,
                    firmware => info.detail("firmware", firmware),
                };
                match used.is_lost() {
                    true => DeviceInfo {
                        unused: Some("it has failed or was removed".to_owned()),
                        ..info
                    },
                    false => info,
                }
            }));
        }
        Ok(found)
    }

    /// All devices that can be used, at least one, in the order of their names: the library's is another each time. May take milliseconds the first time.
    /// Errors: `Unsupported`, with the reason why there is none.
    pub(crate) fn open(&self) -> Result<Arc<[Arc<OpenDevice>]>> {
        let mut open = self.open.lock();
        if let Some(devices) = &*open {
            return Ok(Arc::clone(devices));
        }
        let verbs = self.options.libraries.verbs().map_err(|error| {
            Error::new(error.kind(), format!("{error}; install rdma-core")).with_source(error)
        })?;
        let mut found = Vec::new();
        let mut why = Vec::new();
        let mut devices = verbs.devices()?;
        // The second before the tenth.
        devices.sort_by_cached_key(|device| (device.name().len(), device.name().to_owned()));
        for device in devices {
            let allowed =
                (1..=u8::MAX).any(|port| self.options.devices.allows(device.name(), port));
            if !allowed || device.transport() != Transport::IB {
                continue;
            }
            match OpenDevice::open(&device, &self.options) {
                Ok(mut device) => {
                    device.id = unique(device.id, &found);
                    found.push(Arc::new(device));
                }
                Err(error) => why.push(error.to_string()),
            }
        }
        if found.is_empty() {
            if why.is_empty() {
                why.push("none of the devices may be used".to_owned());
            }
            return Err(Error::new(ErrorKind::Unsupported, why.join("; ")));
        }
        let found: Arc<[_]> = found.into();
        *open = Some(Arc::clone(&found));
        Ok(found)
    }
}
