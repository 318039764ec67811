//! Where a connection comes from.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Where a connection comes from, as far as it cannot be made up: whose shares of what is limited are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The worker itself: counted, and not limited.
    Itself,
    /// A user of this host, as the kernel knows it; not as a peer calls itself.
    User(u32),
    V4(Ipv4Addr),
    /// The first 64 bits: who has one address of such a network has all of them.
    V6(u64),
    Unknown,
}

impl From<IpAddr> for Source {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip),
            IpAddr::V6(ip) => Self::V6((ip.to_bits() >> 64) as u64),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Itself => f.write_str("the worker itself"),
            Self::User(user) => write!(f, "user {user}"),
            Self::V4(ip) => ip.fmt(f),
            Self::V6(network) => {
                write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(*network) << 64))
            }
            Self::Unknown => f.write_str("an unknown source"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_one_source() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("2001:db8:0:1::1").to_string(), "2001:db8:0:1::/64");
    }
}
