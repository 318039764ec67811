//! Where things are: NUMA nodes, and the places of devices, as the kernel tells in `/sys`.

use std::{fs, path::Path};

/// A NUMA node: processors, and the memory that is near them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its processors, as the kernel lists them (`0-3,8-11`); empty where it has memory alone.
    pub processors: String,
    /// Bytes of its memory; 0 where the system does not say.
    pub memory: u64,
    /// How far each node is, by number, itself among them: 10 is near (ACPI's distances).
    pub distances: Vec<u32>,
}

/// The NUMA nodes of this machine by number; none where the system does not say, as in some containers.
pub(crate) fn nodes() -> Vec<NumaNode> {
    nodes_in(Path::new("/sys/devices/system/node"))
}

/// The NUMA node of a PCI device.
pub(crate) fn node_of_pci(place: &str) -> Option<u32> {
    is_pci(place).then_some(())?;
    number(&Path::new("/sys/bus/pci/devices").join(place))
}

/// PCI place and NUMA node of a device by its class and name.
pub(crate) fn place(class: &str, name: &str) -> (Option<String>, Option<u32>) {
    place_in(Path::new("/sys/class"), class, name)
}

/// How far two devices are from each other on the bus: less is nearer, and what passes between them is the faster (NIXL and UCX tell these apart too).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Distance {
    /// Below one bridge or switch: what passes does not come to a processor.
    Switch,
    /// Of one root complex, or one NUMA node.
    Socket,
    /// Across sockets; or the system does not say.
    Far,
}

/// The distance of two PCI devices by their places.
pub(crate) fn distance(one: &str, other: &str) -> Distance {
    distance_in(Path::new("/sys/bus/pci/devices"), one, other)
}

fn distance_in(devices: &Path, one: &str, other: &str) -> Distance {
    let way = |place: &str| {
        is_pci(place).then_some(())?;
        let real = fs::canonicalize(devices.join(place)).ok()?;
        Some(real)
    };
    let (Some(here), Some(there)) = (way(one), way(other)) else {
        return Distance::Far;
    };
    let name = |part: std::path::Component<'_>| part.as_os_str().to_str().map(str::to_owned);
    let both = here.components().zip(there.components());
    let shared = both.take_while(|(one, other)| one == other);
    let (mut bridge, mut root) = (false, false);
    for part in shared.filter_map(|(part, _)| name(part)) {
        bridge |= is_pci(&part);
        root |= part.starts_with("pci");
    }
    let nodes = (number(&here), number(&there));
    match (bridge, root, nodes) {
        (true, ..) => Distance::Switch,
        (_, true, _) => Distance::Socket,
        (_, _, (Some(one), Some(other))) if one == other => Distance::Socket,
        _ => Distance::Far,
    }
}

/// The rate of a network interface in megabits a second.
pub(crate) fn interface_speed(name: &str) -> Option<u32> {
    is_name(name).then_some(())?;
    text(&Path::new("/sys/class/net").join(name).join("speed"))?
        .parse()
        .ok()
        .filter(|speed| *speed > 0)
}

fn place_in(classes: &Path, class: &str, name: &str) -> (Option<String>, Option<u32>) {
    if !is_name(name) {
        return (None, None);
    }
    let device = classes.join(class).join(name).join("device");
    let mut pci = None;
    // A function of a card may stand above what the class knows, as under virtio.
    if let Ok(real) = fs::canonicalize(&device) {
        let mut parts = real.iter().rev().filter_map(|part| part.to_str());
        pci = parts.find(|part| is_pci(part)).map(str::to_owned);
    }
    let node = number(&device).or_else(|| pci.as_deref().and_then(node_of_pci));
    (pci, node)
}

fn nodes_in(folder: &Path) -> Vec<NumaNode> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut nodes: Vec<NumaNode> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.strip_prefix("node")?;
            let distances = text(&path.join("distance")).unwrap_or_default();
            Some(NumaNode {
                number: number.parse().ok()?,
                processors: text(&path.join("cpulist")).unwrap_or_default(),
                memory: text(&path.join("meminfo")).map_or(0, |text| total(&text)),
                distances: distances
                    .split_whitespace()
                    .map_while(|distance| distance.parse().ok())
                    .collect(),
            })
        })
        .collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// `MemTotal` of a node, in bytes: `Node 0 MemTotal: 16 kB`.
fn total(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.split_once("MemTotal:"));
    line.and_then(|(_, rest)| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .and_then(|kilobytes| kilobytes.checked_mul(1024))
        .unwrap_or(0)
}

/// The NUMA node in a device's folder; the kernel says -1 where it knows none.
fn number(device: &Path) -> Option<u32> {
    text(&device.join("numa_node"))?.parse().ok()
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Whether it is a name, and no way out of a folder.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

/// Whether it is a place such as `0000:17:00.0`.
fn is_pci(text: &str) -> bool {
    let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit())
    };
    let mut parts = text.split(':');
    let (Some(domain), Some(bus), Some(rest), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    rest.split_once('.').is_some_and(|(device, function)| {
        hex(domain, 4..=8) && hex(bus, 2..=2) && hex(device, 2..=2) && hex(function, 1..=1)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn places_are_told_from_names() {
        for yes in ["0000:17:00.0", "10000:e1:00.1", "0000:AF:1f.7"] {
            assert!(is_pci(yes), "{yes}");
        }
        for no in [
            "",
            "eth0",
            "17:00.0",
            "0000:17:00",
            "0000:17:00.10",
            "0000:17:00.0:1",
            "zzzz:17:00.0",
        ] {
            assert!(!is_pci(no), "{no}");
        }
        assert_eq!(node_of_pci("../../etc"), None);
        assert_eq!(place("net", "../net/lo"), (None, None));
        assert_eq!(place("net", "no-such-interface"), (None, None));
        assert_eq!(interface_speed("no-such-interface"), None);
    }

    #[test]
    fn nodes_as_the_kernel_has_them() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, cpus, memory, distance) in [
            ("node1", "4-7\n", "Node 1 MemTotal:   8 kB\n", "21 10\n"),
            ("node0", "0-3\n", "Node 0 MemTotal:  16 kB\n", "10 21\n"),
            ("nodes", "", "", ""),
            ("node2", "", "nonsense", "x"),
        ] {
            let node = folder.path().join(name);
            fs::create_dir(&node).expect("a node");
            fs::write(node.join("cpulist"), cpus).expect("a file");
            fs::write(node.join("meminfo"), memory).expect("a file");
            fs::write(node.join("distance"), distance).expect("a file");
        }
        let nodes = nodes_in(folder.path());
        assert_eq!(nodes.len(), 3);
        assert_eq!(
            nodes[1],
            NumaNode {
                number: 1,
                processors: "4-7".to_owned(),
                memory: 8192,
                distances: vec![21, 10],
            }
        );
        assert_eq!((nodes[2].memory, nodes[2].distances.len()), (0, 0));
        assert_eq!(nodes_in(&folder.path().join("none")), []);
    }

    /// A tree as the kernel has it: each device by its way from a root complex, with its NUMA node.
    fn bus(devices: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let all = folder.path().join("bus");
        fs::create_dir(&all).expect("a folder");
        for (way, node) in devices {
            let device = folder.path().join(way);
            fs::create_dir_all(&device).expect("a device");
            fs::write(device.join("numa_node"), node).expect("a file");
            let place = device.file_name().expect("a place");
            symlink(&device, all.join(place)).expect("a link");
        }
        folder
    }

    fn distances(bus: &tempfile::TempDir, card: &str, others: &[&str]) -> Vec<Distance> {
        let all = bus.path().join("bus");
        let distance = |other: &&str| distance_in(&all, card, other);
        others.iter().map(distance).collect()
    }

    #[test]
    fn cards_are_near_what_shares_a_switch_or_a_socket() {
        use Distance::{Far, Socket, Switch};
        // As in a DGX: a switch for two cards and two network devices, two such on a socket.
        let dgx = bus(&[
            ("pci0000:07/0000:07:01.0/0000:08:00.0/0000:0b:00.0", "0"),
            ("pci0000:07/0000:07:01.0/0000:08:04.0/0000:0c:00.0", "0"),
            ("pci0000:48/0000:48:01.0/0000:49:00.0/0000:4c:00.0", "0"),
            ("pci0000:c8/0000:c8:01.0/0000:c9:00.0/0000:cc:00.0", "1"),
        ]);
        let others = [
            "0000:0c:00.0",
            "0000:4c:00.0",
            "0000:cc:00.0",
            "0000:ff:00.0",
        ];
        assert_eq!(
            distances(&dgx, "0000:0b:00.0", &others),
            [Switch, Socket, Far, Far]
        );
        assert_eq!(distances(&dgx, "0000:cc:00.0", &others[..2]), [Far, Far]);
        // As in an HGX or an HLS without a switch: each card at a root port of its own.
        let hgx = bus(&[
            ("pci0000:17/0000:17:01.0/0000:18:00.0", "0"),
            ("pci0000:17/0000:17:03.0/0000:19:00.0", "0"),
            ("pci0000:a0/0000:a0:01.0/0000:a1:00.0", "1"),
        ]);
        let others = ["0000:19:00.0", "0000:a1:00.0"];
        assert_eq!(distances(&hgx, "0000:18:00.0", &others), [Socket, Far]);
        // A laptop, whose system knows no nodes.
        let laptop = bus(&[
            ("pci0000:00/0000:00:01.0/0000:01:00.0", "-1"),
            ("pci0000:00/0000:00:1c.0/0000:02:00.0", "-1"),
        ]);
        assert_eq!(
            distances(&laptop, "0000:01:00.0", &["0000:02:00.0"]),
            [Socket]
        );
        assert_eq!(distance("nowhere", "../etc"), Far);
    }

    #[test]
    fn a_device_has_the_place_of_its_card() {
        let folder = tempfile::tempdir().expect("a folder");
        let card = folder.path().join("pci0000:00/0000:17:00.0");
        let function = card.join("virtio1");
        fs::create_dir_all(&function).expect("a device");
        fs::write(card.join("numa_node"), "1\n").expect("a file");
        let class = folder.path().join("net/eth0");
        fs::create_dir_all(&class).expect("a class");
        symlink(&function, class.join("device")).expect("a link");
        let (pci, node) = place_in(folder.path(), "net", "eth0");
        assert_eq!((pci.as_deref(), node), (Some("0000:17:00.0"), None));
        symlink(&card, folder.path().join("net/card")).expect("a link");
        fs::create_dir(folder.path().join("net/direct")).expect("a class");
        symlink(&card, folder.path().join("net/direct/device")).expect("a link");
        assert_eq!(
            place_in(folder.path(), "net", "direct"),
            (Some("0000:17:00.0".to_owned()), Some(1))
        );
    }
}
