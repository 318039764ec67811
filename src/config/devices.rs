//! Which network interfaces and RDMA devices may be used.

use std::net::IpAddr;

use super::{
    environment::{Names, Word},
    nearest::did_you_mean,
    value::Text,
};
#[cfg(feature = "verbs")]
use crate::{driver::rdmacm::Libraries, transport::verbs::DeviceChoice};
use crate::{
    error::{Error, Result},
    sys::interfaces::{self, Interface},
};

/// A selection of interfaces and devices that exist. RDMA devices are named with a port (`rxe0:1`) or without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum NetDevices {
    /// Any.
    #[default]
    All,
    /// Only these.
    Only(Vec<String>),
    /// Any but these.
    Except(Vec<String>),
}

impl NetDevices {
    /// As a variable has it. Of what UCX's names, what is missing is left out.
    pub(super) fn read(word: &Word<'_>) -> Result<Self, String> {
        let strict = Self::parse(word.text, &word.names);
        match strict {
            Err(why) if word.is_ucx() => {
                word.leave_out(&why);
                Ok(Self::named(word.text))
            }
            strict => strict,
        }
    }

    /// What a list names, whether or not it is there.
    fn named(text: &str) -> Self {
        let text = text.trim();
        let (negated, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let names = list.split(',').map(|name| name.trim().to_owned()).collect();
        match negated {
            true => Self::Except(names),
            false => Self::Only(names),
        }
    }

    /// Parses `all`, names with commas between, or `^` and names.
    pub(crate) fn parse(text: &str, there: &Names<'_>) -> Result<Self, String> {
        let text = text.trim();
        if text == "all" {
            return Ok(Self::All);
        }
        let chosen = Self::named(text);
        let names = match &chosen {
            Self::Only(names) | Self::Except(names) => &names[..],
            Self::All => &[],
        };
        let mut existing = (there.interfaces)().map_err(|error| error.to_string())?;
        if !names.iter().all(|name| existing.contains(name)) {
            // Where interfaces do not explain it: the library is looked for.
            let mut devices = (there.devices)();
            let ports = names.iter().filter(|name| {
                name.split_once(':').is_some_and(|(device, port)| {
                    devices.iter().any(|known| known == device)
                        && port.parse::<u8>().is_ok_and(|port| port > 0)
                })
            });
            let ports: Vec<String> = ports.cloned().collect();
            devices.extend(ports);
            existing.extend(devices);
        }
        if let Some(stranger) = names.iter().find(|name| !existing.contains(name)) {
            let nearest = did_you_mean(stranger, existing.iter().map(String::as_str));
            return Err(format!(
                "no interface or device \"{stranger}\" here; there are {}{nearest}",
                existing.join(", ")
            ));
        }
        if existing.iter().any(|name| chosen.names(name)) {
            Ok(chosen)
        } else {
            Err(format!(
                "leaves no interface out of {}",
                existing.join(", ")
            ))
        }
    }

    fn names(&self, interface: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|name| name == interface),
            Self::Except(names) => !names.iter().any(|name| name == interface),
        }
    }

    /// Whether an address of this interface is told to peers. Where only RDMA devices are named, all are: connections over those are set up
    /// over sockets.
    pub(crate) fn allows(&self, interface: &str) -> bool {
        self.names(interface) || self.is_only_rdma()
    }

    /// Whether there is no interface among those that may be used.
    pub(crate) fn is_only_rdma(&self) -> bool {
        match self {
            Self::Only(names) => system_interfaces()
                .is_ok_and(|there| !names.iter().any(|name| there.contains(name))),
            Self::All | Self::Except(_) => false,
        }
    }

    /// The same, as a choice of RDMA devices. Where only interfaces are named, all devices.
    #[cfg(feature = "verbs")]
    pub(crate) fn rdma(&self) -> DeviceChoice {
        let interfaces = system_interfaces().unwrap_or_default();
        let devices = |names: &[String]| -> Vec<String> {
            let names = names.iter().filter(|name| !interfaces.contains(name));
            names.cloned().collect()
        };
        match self {
            Self::All => DeviceChoice::All,
            Self::Only(names) => match devices(names) {
                names if names.is_empty() => DeviceChoice::All,
                names => DeviceChoice::Only(names),
            },
            Self::Except(names) => DeviceChoice::Except(devices(names)),
        }
    }
}

impl Text for NetDevices {
    fn text(&self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Only(names) => names.join(","),
            Self::Except(names) => format!("^{}", names.join(",")),
        }
    }
}

/// The names of this machine's RDMA devices; none where there is no library for them.
#[cfg(feature = "verbs")]
pub(crate) fn rdma_devices(libraries: &Libraries) -> Vec<String> {
    let devices = libraries.verbs().and_then(|verbs| verbs.devices());
    let devices = devices.unwrap_or_default();
    devices
        .iter()
        .map(|device| device.name().to_owned())
        .collect()
}

/// This machine's interfaces, each with one of its addresses.
/// Errors: what the system said.
fn interfaces() -> Result<Vec<Interface>> {
    interfaces::interfaces().map_err(|error| Error::io("listing the network interfaces", error))
}

/// The names of this machine's interfaces, each once.
/// Errors: what the system said.
pub(crate) fn system_interfaces() -> Result<Vec<String>> {
    let all = interfaces()?.into_iter();
    let mut names: Vec<String> = all.map(|interface| interface.name).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// The addresses of this machine, with the interface that has each.
pub(crate) fn interface_addresses() -> Result<Vec<(String, IpAddr)>> {
    let all = interfaces()?.into_iter();
    Ok(all
        .filter_map(|interface| Some((interface.name, interface.ip?)))
        .collect())
}

#[cfg(all(test, feature = "verbs"))]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NetDevices, String> {
        let interfaces = || Ok(vec!["lo".to_owned(), "eth0".to_owned()]);
        NetDevices::parse(
            text,
            &Names {
                own: &[],
                interfaces: &interfaces,
                devices: &|| vec!["rxe0".to_owned()],
            },
        )
    }

    #[test]
    fn selects() {
        assert_eq!(parse("all"), Ok(NetDevices::All));
        let only = parse("eth0, lo").unwrap();
        assert!(only.allows("eth0") && only.allows("lo") && !only.allows("eth1"));
        let except = parse("^lo").unwrap();
        assert!(except.allows("eth0") && !except.allows("lo"));
    }

    #[test]
    fn selects_devices() {
        let only = |names: &[&str]| {
            DeviceChoice::Only(names.iter().map(|name| (*name).to_owned()).collect())
        };
        let one = parse("rxe0:1").unwrap();
        assert_eq!(one.rdma(), only(&["rxe0:1"]));
        assert!(one.allows("eth0") && one.is_only_rdma());
        assert!(one.rdma().allows("rxe0", 1) && !one.rdma().allows("rxe0", 2));
        let both = parse("lo,rxe0").unwrap();
        assert_eq!(both.rdma(), only(&["rxe0"]));
        assert!(both.rdma().allows("rxe0", 2));
        assert!(both.allows("lo") && !both.allows("eth1") && !both.is_only_rdma());
        let none = parse("^rxe0").unwrap();
        assert!(!none.rdma().allows("rxe0", 1) && none.allows("lo"));
        for bad in ["rxe1", "rxe0:0", "rxe0:x", "eth0:1"] {
            assert!(parse(bad).unwrap_err().contains("rxe0"), "{bad}");
        }
    }

    /// A card that is not there is left out, and no other one is taken for it.
    #[test]
    fn what_ucx_takes() {
        let read = |name, text| {
            let interfaces = || Ok(vec!["lo".to_owned(), "eth0".to_owned()]);
            let names = Names {
                interfaces: &interfaces,
                ..Names::NONE
            };
            NetDevices::read(&Word { name, text, names })
        };
        let card = read("UCX_NET_DEVICES", "mlx5_9:1").expect("legal");
        assert!(card.is_only_rdma() && !card.rdma().allows("rxe0", 1));
        let both = read("UCX_NET_DEVICES", "mlx5_9:1,lo").expect("legal");
        assert!(both.allows("lo") && !both.allows("eth0") && !both.rdma().allows("rxe0", 1));
        let except = read("UCX_NET_DEVICES", "^eth9").expect("legal");
        assert!(except.allows("eth0"));
        assert!(read("WHARF_NET_DEVICES", "mlx5_9:1").is_err());
    }

    #[test]
    fn refuses() {
        let text = parse("etho").unwrap_err();
        assert!(
            text.contains("lo, eth0") && text.contains("did you mean \"eth0\"?"),
            "{text}"
        );
        assert!(
            parse("^lo,eth0")
                .unwrap_err()
                .contains("leaves no interface")
        );
        assert!(parse("lo,").is_err());
        assert!(parse("^all").is_err());
    }

    #[test]
    fn this_machine_has_interfaces() {
        assert!(!system_interfaces().unwrap().is_empty());
    }
}
