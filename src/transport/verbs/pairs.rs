//! Which rails of the two ends belong together.
//!
//! The ends may list their devices in another order, and a device need not reach each of the other end's. Two addresses of one subnet have more
//! leading bits in common than two of different ones, whatever the masks are; so those that have the most are joined first. Where that does not
//! tell, the order of the lists does. Both ends come to the same: they know the same lists, and which of them has dialled.

use std::{cmp::Reverse, net::IpAddr};

use super::wire::RailOffer;
use crate::transport::Role;

/// How near two ends are: more is nearer.
fn nearness(one: &RailOffer, other: &RailOffer) -> u32 {
    if one.link_layer != other.link_layer {
        return 0;
    }
    let common = u128::from_be_bytes(one.gid.0) ^ u128::from_be_bytes(other.gid.0);
    let common = common.leading_zeros();
    // What follows the prefix of the subnet in others is the port's own number.
    let most = match (one.gid.ip(), other.gid.ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) => 128,
        _ => 64,
    };
    1 + common.min(most)
}

/// Pairs of an index of `ours` and one of `theirs`: the nearest first, each index at most once. At most `messages` of rails for messages, then at
/// most `data` of those for one-sided operations.
pub(super) fn pairs(
    ours: &[RailOffer],
    theirs: &[RailOffer],
    role: Role,
    messages: usize,
    data: usize,
) -> Vec<(usize, usize)> {
    let mut chosen = Vec::new();
    for (kind, most) in [(false, messages), (true, data)] {
        let of = |rails: &[RailOffer]| -> Vec<usize> {
            let those = rails
                .iter()
                .enumerate()
                .filter(|(_, rail)| rail.data == kind);
            those.map(|(index, _)| index).collect()
        };
        let (here, there) = (of(ours), of(theirs));
        let mut all: Vec<(usize, usize)> = here
            .iter()
            .flat_map(|here| there.iter().map(move |there| (*here, *there)))
            .collect();
        all.sort_by_key(|&(here, there)| {
            let order = match role {
                Role::Client => (here, there),
                Role::Server => (there, here),
            };
            (Reverse(nearness(&ours[here], &theirs[there])), order)
        });
        let before = chosen.len();
        for (here, there) in all {
            let free = chosen[before..]
                .iter()
                .all(|&(one, other)| one != here && other != there);
            if free && chosen.len() - before < most {
                chosen.push((here, there));
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::driver::verbs::{Gid, LinkLayer, Mtu};

    fn rails(addresses: &[[u8; 4]], data: bool) -> Vec<RailOffer> {
        let rail = |address: &[u8; 4]| RailOffer {
            guid: 1,
            port: 1,
            link_layer: LinkLayer::ETHERNET,
            mtu: Mtu::within(1024).unwrap(),
            reads: 16,
            lid: 0,
            gid: Gid(Ipv4Addr::from(*address).to_ipv6_mapped().octets()),
            queue_pair: 1,
            first_packet: 1,
            data,
        };
        addresses.iter().map(rail).collect()
    }

    /// What both ends choose, which has to be the same.
    fn choose(client: &[RailOffer], server: &[RailOffer]) -> Vec<(usize, usize)> {
        let chosen = pairs(client, server, Role::Client, 4, 2);
        let other = pairs(server, client, Role::Server, 4, 2);
        assert!(chosen.iter().map(|&(one, other)| (other, one)).eq(other));
        chosen
    }

    #[test]
    fn ends_of_one_cable_are_joined_in_whatever_order_they_are_listed() {
        let client = [[10, 78, 0, 1], [10, 77, 0, 1]];
        let server = [[10, 77, 0, 2], [10, 78, 0, 2]];
        let mut client: Vec<_> = [false, true].map(|data| rails(&client, data)).concat();
        let server: Vec<_> = [false, true].map(|data| rails(&server, data)).concat();
        assert_eq!(choose(&client, &server), [(0, 1), (1, 0), (2, 3), (3, 2)]);
        client.swap(0, 1);
        assert_eq!(choose(&client, &server), [(0, 0), (1, 1), (2, 3), (3, 2)]);
    }

    #[test]
    fn subnets_of_other_lengths() {
        let client = rails(&[[192, 168, 1, 1], [10, 0, 0, 1]], false);
        let server = rails(&[[10, 200, 0, 1], [172, 16, 0, 1], [192, 168, 1, 9]], false);
        assert_eq!(choose(&client, &server), [(0, 2), (1, 0)]);
    }

    #[test]
    fn where_addresses_do_not_tell_the_order_does() {
        let client = rails(&[[10, 1, 0, 1], [10, 1, 1, 1], [10, 1, 2, 1]], true);
        let server = rails(&[[10, 2, 0, 1], [10, 2, 1, 1], [10, 2, 2, 1]], true);
        assert_eq!(choose(&client, &server), [(0, 0), (1, 1)]);
        let mut server = rails(&[[10, 2, 0, 1]; 9], false);
        assert!(choose(&client, &server).is_empty());
        let client = rails(&[[10, 2, 0, 1]; 9], false);
        assert_eq!(choose(&client, &server).len(), 4);
        // Of another kind: joined last, so that the attempt tells why.
        server.truncate(2);
        server[0].link_layer = LinkLayer::INFINIBAND;
        assert_eq!(choose(&client, &server), [(0, 1), (1, 0)]);
    }

    #[test]
    fn of_infiniband_the_subnet_counts() {
        let client = rails(&[[1, 1, 1, 1], [1, 1, 1, 2]], false);
        let server = rails(&[[1, 1, 1, 2], [1, 1, 1, 1]], false);
        let infiniband = |mut rails: Vec<RailOffer>, prefixes: [u8; 2]| {
            for (rail, prefix) in rails.iter_mut().zip(prefixes) {
                rail.link_layer = LinkLayer::INFINIBAND;
                rail.gid.0[..2].copy_from_slice(&[0xfe, prefix]);
            }
            rails
        };
        let of = |one, other| {
            let client = infiniband(client.clone(), one);
            choose(&client, &infiniband(server.clone(), other))
        };
        assert_eq!(of([0x80, 0x80], [0x80, 0x80]), [(0, 0), (1, 1)]);
        assert_eq!(of([0x80, 0xc0], [0xc0, 0x80]), [(0, 1), (1, 0)]);
    }
}
