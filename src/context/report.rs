//! What a context found: every transport with its devices, or the reason why it is not used; the place of things.

use std::{fmt, str::FromStr};

use super::{
    handle::Context,
    reason::{NOT_BUILT_IN, reason},
};
use crate::{
    config::{Config, Source},
    error::{Error, Result},
    memory::MemoryTypes,
    sys::topology::{self, NumaNode},
    transport::{DeviceInfo, Reach, cma, registry},
    types::text::no,
};

/// What a context found on this machine; made by [`Context::report`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Every transport that there is, the preferred first, the program's own before this build's: with those of accelerators and their parts.
    pub transports: Vec<TransportReport>,
    /// The NUMA nodes of the machine; none where the system does not say.
    pub numa_nodes: Vec<NumaNode>,
    /// The cache of memory types.
    pub type_cache: TypeCacheReport,
}

/// A transport, or the part of one that has a name of its own in configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransportReport {
    /// Its name in configuration.
    pub name: String,
    /// Whether it is used.
    pub state: TransportState,
    /// What it is between; `None` of what copies to and from devices, and of parts.
    pub reach: Option<Reach>,
    /// The transport that it is a part of.
    pub part_of: Option<&'static str>,
    /// What to do about it, where it is unavailable and something can be done.
    pub remedy: Option<&'static str>,
    /// What there is to say of it, where it is used.
    pub note: Option<String>,
    /// Its devices; none of those that need none.
    pub devices: Vec<DeviceInfo>,
}

/// Whether a transport is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportState {
    /// It is.
    Usable,
    /// It does not work here: why not, with the remedy where there is one.
    Unavailable(String),
    /// The configuration leaves it out: which.
    LeftOut(String),
}

impl fmt::Display for TransportState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable => f.write_str("usable"),
            Self::Unavailable(why) => write!(f, "unavailable: {why}"),
            Self::LeftOut(why) => write!(f, "left out: {why}"),
        }
    }
}

impl FromStr for TransportState {
    type Err = Error;

    /// From its `Display` form.
    ///
    /// # Errors
    /// `InvalidArgument`.
    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(": ") {
            None if text == "usable" => Ok(Self::Usable),
            Some(("unavailable", why)) => Ok(Self::Unavailable(why.to_owned())),
            Some(("left out", why)) => Ok(Self::LeftOut(why.to_owned())),
            _ => {
                let wanted = "usable, unavailable: and why, or left out: and by what";
                Err(no("state of a transport", text, wanted))
            }
        }
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_text! { TransportState }

/// The cache that remembers whose memory is where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeCacheReport {
    /// Whether there may be memory that is not the host's; as long as not, nothing is looked up.
    pub is_in_use: bool,
    /// Allocations that can be remembered.
    pub capacity: u32,
}

impl Context {
    /// What this context found on this machine, for people and for programs that choose by it. Asks drivers for their devices, for which it
    /// initialises them: to be called on a thread that may block, for seconds where a driver is slow to start.
    #[must_use]
    #[doc(alias = "ucp_context_print_info")]
    pub fn report(&self) -> Report {
        Report {
            transports: self.transport_reports(),
            numa_nodes: topology::nodes(),
            type_cache: TypeCacheReport {
                is_in_use: self.memory().types.is_in_use(),
                capacity: MemoryTypes::CAPACITY,
            },
        }
    }

    fn transport_reports(&self) -> Vec<TransportReport> {
        let config = self.config();
        let built_in = |name: &str| registry::NAMES.contains(&name);
        let own = self.message_transports().iter().map(|own| own.name());
        let own = own.chain(self.accelerators().iter().map(|own| own.name()));
        let own = own.filter(|name| !built_in(name)).map(str::to_owned);
        let missing = self.unavailable().iter().map(|(name, _)| name.clone());
        let missing = missing.filter(|name| !built_in(name));
        let all = own
            .chain(registry::NAMES.iter().map(|name| (*name).to_owned()))
            .chain(missing)
            .chain(registry::left_out().map(|(name, _)| name.to_owned()));
        let mut reports: Vec<TransportReport> = Vec::new();
        for name in all {
            if reports.iter().any(|known| known.name == name) {
                continue;
            }
            let part_of = registry::part_of(&name);
            let mut report = TransportReport {
                state: self.state(config, &name, part_of),
                name,
                reach: None,
                part_of,
                remedy: None,
                note: None,
                devices: Vec::new(),
            };
            if report.state == TransportState::Usable {
                self.look(config, &mut report);
            }
            // What only stands on another is had with that.
            let stands = |why: &str| why.starts_with("it needs");
            report.remedy = match &report.state {
                TransportState::Unavailable(why) if !stands(why) => registry::remedy(&report.name),
                _ => None,
            };
            reports.push(report);
        }
        reports
    }

    /// Whether a transport is used, as far as is known without asking it.
    fn state(&self, config: &Config, name: &str, whole: Option<&str>) -> TransportState {
        let missing = self.unavailable().iter().find(|(known, _)| known == name);
        if let Some((_, why)) = missing {
            return TransportState::Unavailable(why.clone());
        }
        if registry::missing_feature(name).is_some() && !self.can_use(name) {
            return TransportState::Unavailable(NOT_BUILT_IN.to_owned());
        }
        if registry::NAMES.contains(&name) && !config.transports.allows(name) {
            return TransportState::LeftOut(match config.transports.source {
                Source::Env(variable) => format!("left out by {variable}"),
                _ => "left out by the program".to_owned(),
            });
        }
        match whole {
            Some(whole) if !self.can_use(whole) => {
                TransportState::Unavailable(format!("it needs {whole}"))
            }
            None if !self.can_use(name) => {
                // What is allowed, works and is not used stands on something else.
                TransportState::Unavailable("it needs shm".to_owned())
            }
            _ => TransportState::Usable,
        }
    }

    /// Asks a transport that is used.
    fn look(&self, config: &Config, report: &mut TransportReport) {
        let mut accelerators = self.accelerators().iter();
        let devices = if let Some(transport) = self
            .message_transports()
            .iter()
            .find(|transport| transport.name() == report.name)
        {
            report.reach = Some(transport.reach());
            report.note = transport.note();
            transport.devices()
        } else if report.name == cma::NAME {
            report.reach = Some(Reach::Host);
            return;
        } else if let Some(whole) = report.part_of {
            let of_whole = accelerators.find(|accelerator| accelerator.name() == whole);
            let parts = of_whole.map(|accelerator| accelerator.parts());
            let mut parts = parts.unwrap_or_default().into_iter();
            match parts.find(|(name, _)| *name == report.name) {
                Some((_, Ok(note))) => report.note = Some(note),
                Some((_, Err(error))) => report.state = TransportState::Unavailable(reason(&error)),
                None => {}
            }
            return;
        } else {
            let found = accelerators.find(|accelerator| accelerator.name() == report.name);
            found.map_or_else(|| Ok(Vec::new()), |accelerator| accelerator.devices())
        };
        match devices {
            Ok(devices) => report.devices = devices,
            // The library is there, and a device is not, or cannot be asked.
            Err(error) => report.state = TransportState::Unavailable(reason(&error)),
        }
        if report.name == "tcp" {
            for device in &mut report.devices {
                if device.unused.is_none() && !config.net_devices.allows(&device.name) {
                    device.unused = Some(match config.net_devices.source {
                        Source::Env(variable) => format!("left out by {variable}"),
                        _ => "left out by the program".to_owned(),
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(report: &'a Report, name: &str) -> &'a TransportReport {
        let mut all = report.transports.iter();
        all.find(|one| one.name == name).expect("every transport")
    }

    #[test]
    fn every_transport_is_told_of() {
        let builder = Context::builder().transports("shm,tcp,ze_ipc").unwrap();
        let context = builder.net_devices("lo").unwrap().build();
        let report = context.expect("tcp on the loopback interface").report();
        let names: Vec<&str> = report
            .transports
            .iter()
            .map(|transport| transport.name.as_str())
            .collect();
        assert!(names.starts_with(&registry::NAMES), "{names:?}");
        assert_eq!(names[registry::NAMES.len()], "ze_ipc");
        let left_out = registry::left_out().map(|(name, _)| name);
        assert!(
            names
                .into_iter()
                .skip(registry::NAMES.len() + 1)
                .eq(left_out)
        );
        assert_eq!(of(&report, "tcp").state, TransportState::Usable);
        let interfaces = &of(&report, "tcp").devices;
        assert!(!interfaces.is_empty());
        for interface in interfaces {
            let why = (interface.name != "lo").then_some("left out by the program");
            assert!(
                interface.unused.as_deref() == why
                    || interface.unused.as_deref() == Some("it is down"),
                "{interface:?}"
            );
        }
        assert_eq!(
            of(&report, "rc_verbs").state,
            TransportState::LeftOut("left out by the program".to_owned())
        );
        assert!(matches!(
            of(&report, "ze_ipc").state,
            TransportState::Unavailable(_)
        ));
    }

    #[test]
    fn what_stands_on_another_says_so() {
        let context = Context::builder().transports("cma,tcp,cuda_ipc").unwrap();
        let report = context.build().expect("tcp").report();
        for (name, needs) in [("cma", "it needs shm"), ("cuda_ipc", "it needs cuda_copy")] {
            assert_eq!(
                of(&report, name).state,
                TransportState::Unavailable(needs.to_owned()),
                "{name}"
            );
        }
    }
}
