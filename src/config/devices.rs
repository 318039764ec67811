//! Which network interfaces may be used.

use std::net::IpAddr;

use super::did_you_mean;
use crate::error::{Error, Result};

/// A selection of interfaces that exist.
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
    /// Parses `all`, names with commas between, or `^` and names.
    pub(crate) fn parse(
        text: &str,
        interfaces: &dyn Fn() -> Result<Vec<String>>,
    ) -> Result<Self, String> {
        let text = text.trim();
        let (negated, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        if list.trim() == "all" && !negated {
            return Ok(Self::All);
        }
        let existing = interfaces().map_err(|error| error.to_string())?;
        let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
        if let Some(stranger) = names.iter().find(|name| !existing.contains(name)) {
            let nearest = did_you_mean(stranger, existing.iter().map(String::as_str));
            return Err(format!(
                "no interface \"{stranger}\" here; there are {}{nearest}",
                existing.join(", ")
            ));
        }
        let chosen = if negated {
            Self::Except(names)
        } else {
            Self::Only(names)
        };
        if existing.iter().any(|name| chosen.allows(name)) {
            Ok(chosen)
        } else {
            Err(format!(
                "leaves no interface out of {}",
                existing.join(", ")
            ))
        }
    }

    /// Whether an interface may be used.
    pub(crate) fn allows(&self, interface: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|name| name == interface),
            Self::Except(names) => !names.iter().any(|name| name == interface),
        }
    }
}

/// The names of this machine's interfaces, each once.
///
/// # Errors
/// What the system said.
pub(crate) fn system_interfaces() -> Result<Vec<String>> {
    let list = nix::ifaddrs::getifaddrs()
        .map_err(|error| Error::io("listing the network interfaces", error))?;
    let mut names: Vec<String> = list.map(|interface| interface.interface_name).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// The addresses of this machine, with the interface that has each.
pub(crate) fn interface_addresses() -> Result<Vec<(String, IpAddr)>> {
    let list = nix::ifaddrs::getifaddrs()
        .map_err(|error| Error::io("listing the network interfaces", error))?;
    Ok(list
        .filter_map(|interface| {
            let address = interface.address?;
            let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => IpAddr::V4(v4.ip()),
                (_, Some(v6)) => IpAddr::V6(v6.ip()),
                _ => return None,
            };
            Some((interface.interface_name, ip))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NetDevices, String> {
        NetDevices::parse(text, &|| Ok(vec!["lo".to_owned(), "eth0".to_owned()]))
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
