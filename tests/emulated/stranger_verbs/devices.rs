//! What the programs list that only ask.

use std::collections::BTreeMap;

use super::Network;

#[test]
#[ignore = "needs the package ibverbs-utils"]
fn ibv_devices_lists_both() {
    let text = Network::new().run("ibv_devices", &[]);
    let lines = text.lines().map(|line| line.split_whitespace().collect());
    let lines = Vec::<Vec<&str>>::from_iter(lines);
    let devices = [["emu0", "0000000000000001"], ["emu1", "0000000000000002"]];
    for device in devices {
        assert!(lines.contains(&device.to_vec()), "{device:?}: {text}");
    }
}

/// What `ibv_devinfo` says of each device: the last value of each key.
fn told(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut devices = BTreeMap::new();
    let mut device = String::new();
    for line in text.lines() {
        let Some((key, value)) = line.trim().split_once(':') else {
            continue;
        };
        let (key, value) = (key.to_owned(), value.trim().to_owned());
        if key == "hca_id" {
            device = value;
            continue;
        }
        let facts: &mut BTreeMap<_, _> = devices.entry(device.clone()).or_default();
        facts.insert(key, value);
    }
    devices
}

const FACTS: [(&str, &str); 10] = [
    ("transport", "InfiniBand (0)"),
    ("fw_ver", "1.0.0"),
    ("vendor_id", "0xe0e0e0"),
    ("phys_port_cnt", "1"),
    ("state", "PORT_ACTIVE (4)"),
    ("max_mtu", "4096 (5)"),
    ("active_mtu", "4096 (5)"),
    ("sm_lid", "0"),
    ("port_lid", "0"),
    ("link_layer", "Ethernet"),
];

const MORE: [(&str, &str); 16] = [
    ("max_mr_size", "0x10000000000"),
    ("page_size_cap", "0xfffffffffffff000"),
    ("max_qp", "1024"),
    ("max_qp_wr", "4096"),
    ("max_sge", "16"),
    ("max_cqe", "65536"),
    ("max_srq_wr", "4096"),
    ("max_qp_rd_atom", "16"),
    ("atomic_cap", "ATOMIC_HCA (1)"),
    ("max_pkeys", "1"),
    ("max_msg_sz", "0x80000000"),
    ("pkey_tbl_len", "1"),
    ("gid_tbl_len", "1"),
    ("active_width", "4X (2)"),
    ("active_speed", "25.0 Gbps (32)"),
    ("phys_state", "LINK_UP (5)"),
];

#[test]
#[ignore = "needs the package ibverbs-utils"]
fn ibv_devinfo_tells_what_devices_can() {
    let network = Network::new();
    let brief = network.run("ibv_devinfo", &[]);
    let all = network.run("ibv_devinfo -v", &[]);
    for (text, more) in [(&brief, &[][..]), (&all, &MORE)] {
        let devices = told(text);
        assert!(devices.keys().eq(["emu0", "emu1"]), "{text}");
        for (index, facts) in devices.values().enumerate() {
            let said = |key: &str| facts.get(key).map(String::as_str);
            for (key, value) in FACTS.iter().chain(more) {
                assert_eq!(said(key), Some(*value), "{key} of {index}: {text}");
            }
            let guid = format!("0000:0000:0000:000{}", index + 1);
            assert_eq!(said("node_guid"), Some(guid.as_str()), "{text}");
            if !more.is_empty() {
                let gid = format!(":ffff:10.99.0.{}, RoCE v2", index + 1);
                let line = said("GID[  0]").unwrap_or_default();
                assert!(line.ends_with(&gid), "{line:?}: {text}");
            }
        }
    }
    // An old library tells the same: these devices have nothing of what came later.
    let old = network.run("ibv_devinfo -v", &[("EMULATED_VERBS_OLD", "1")]);
    assert_eq!(old, all);
}

#[test]
#[ignore = "needs the package ibverbs-utils"]
fn ibv_devinfo_says_what_failed() {
    let network = Network::new();
    for (plan, words) in [
        (
            "ibv_get_device_list@1=38",
            "Failed to get IB devices list: Function not implemented",
        ),
        ("ibv_get_device_list@1=skip", "No IB devices found"),
        ("ibv_open_device@1+=13", "Failed to open device"),
        (
            "ibv_query_device@1+=5,ibv_query_device_ex@1+=5",
            "Failed to query device props",
        ),
        ("ibv_query_port@1+=5", "Failed to query port 1 props"),
    ] {
        let (status, text) = network
            .start("ibv_devinfo", &[("EMULATED_VERBS_FAULTS", plan)])
            .end();
        assert!(!status.success() && text.contains(words), "{plan}: {text}");
    }
}
